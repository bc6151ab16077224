"""Two-step writes: workers anywhere store rows, and one process commits them all.

    parts = [tensorrepo.parts.write(url, rows, dataset="photos", key=...) ...]   # in each worker
    tx.dataset("photos").append_parts(parts)                                     # in one process

What `write` gives is a small value, plain JSON. It leads to rows that no commit has; a lease keeps
them from garbage collection until the commit, or until it runs out.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from tensorrepo.datasets.draft import Rows
from tensorrepo.formats.common.arguments import byte_size, text
from tensorrepo.formats.common.buffer_codecs import DEFAULT_CODEC, parse_codec
from tensorrepo.formats.dataset.parts import write_part
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.lenient import Misfits, OnMisfit, parse_on_error
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.formats.dataset.schema.types import TypeLike
from tensorrepo.repo.changes.leases import close_leases, open_lease
from tensorrepo.repo.changes.moments import parse_span
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import content_tag
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repository import Repository
from tensorrepo.sdk import opened_once
from tensorrepo.transaction import schema_of
from tensorrepo.verbs.exchange import open_source
from tensorrepo.verbs.part_values import Part, PartLike, lease_name, parsed

__all__ = ["KEEP", "Part", "release", "write"]
KEEP: Final = "14d"
_NOBODY: Final = "somebody"  # a worker needs no name; who commits does


def write(
    repository: Repository | str | Path,
    rows: Rows,
    *,
    dataset: str | None = None,
    ref: str = "main",
    schema: Mapping[str, TypeLike | Column] | Schema | None = None,
    key: str | None = None,
    on_error: OnMisfit = "raise",
    codec: str = DEFAULT_CODEC,
    page_bytes: int | str | None = None,
    keep: str = KEEP,
) -> Part:
    """Store rows of a dataset without committing them, in bounded memory.

    Args:
        repository: where: a repository, which may come by pickle, or its URL; a process opens
            either once.
        rows: as for `DatasetDraft.append`.
        dataset: name of the dataset that they are for, whose columns they have.
        ref: the commit that has it.
        schema: instead of `dataset`: columns of a dataset that will be made with these.
        key: name of the part within its dataset, for good, such as ``f"{day}/{shard}"``. A worker
            that is started again gives the same key, and its rows count once. None: a random one.
        on_error: as for `append`; rows are passed over in silence.
        codec: as for `append`.
        page_bytes: as for `append`.
        keep: span of time, such as "14d", after which a collection may take what was not committed.

    Returns:
        The part: hand it to the process that commits, as it is or as `to_json`.

    Raises:
        InvalidInputError: a row does not fit, or neither or both of `dataset` and `schema`.

    Example:
        ``part = tensorrepo.parts.write("s3://bucket/team", rows, dataset="photos", key="0042")``
    """
    repo = _opened(repository)
    if (dataset is None) == (schema is None):
        raise InvalidInputError(
            'say once which columns the rows have: dataset="photos", or schema={name: type}'
        )
    seconds = parse_span(text("keep", keep))
    name = secrets.token_hex(16) if key is None else _key(key)
    core = repo.context.core
    like = None if dataset is None else _dataset(repo, dataset, ref)
    columns = schema_of(schema) if like is None else like.schema.without_ids()
    source = open_source(rows, schema=columns, on_error=parse_on_error(on_error))
    writer = ObjectWriter(core.objects, core.log.refresh().state.graves)
    try:
        link = write_part(
            writer,
            source.batches,
            name,
            schema=columns,
            like=like,
            misfits=Misfits(on_error),
            codec=parse_codec(codec),
            page_bytes=None if page_bytes is None else byte_size("page_bytes", page_bytes),
        )
        writer.flush()
        stored = open_dataset(writer, link.digest)
    finally:
        writer.abort()
    lease = lease_name(content_tag(name.encode())[:8].hex(), link.digest)
    holder = _holder(repo)
    open_lease(core, lease, [link.digest], holder=holder, note="part", seconds=seconds)
    return Part(
        repository=core.id,
        key=name,
        root=link.digest,
        rows=stored.root.rows,
        stored_bytes=stored.root.stored_bytes,
        lease=lease,
    )


def release(repository: Repository | str | Path, parts: Iterable[PartLike]) -> None:
    """Give up parts that nobody will commit: the next collection takes what only they led to.

    What was committed stays.
    """
    repo = _opened(repository)
    leases = [parsed(part).lease for part in parts]
    close_leases(repo.context.core, leases, holder=_holder(repo))


def _opened(repository: Repository | str | Path) -> Repository:
    return repository if isinstance(repository, Repository) else opened_once(repository)


def _dataset(repository: Repository, name: str, ref: str) -> StoredDataset:
    _, _, entry = repository.context.entry("datasets", name, ref, Kind.DATASET)
    return open_dataset(repository.context.core.objects, entry.digest)


def _key(key: str) -> str:
    name = text("key", key)
    if not 0 < len(name) <= 512:
        raise InvalidInputError(f"key of {len(name)} characters: expected 1 to 512")
    return name


def _holder(repository: Repository) -> str:
    try:
        return repository.author
    except InvalidInputError:
        return _NOBODY
