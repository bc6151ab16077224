"""Two-step writes: workers anywhere store rows or tensors, and one process commits them all.

    parts = [tensorrepo.parts.write(url, rows, dataset="photos", key=...) ...]   # in each worker
    tx.dataset("photos").append_parts(parts)                                     # in one process

    parts = [tensorrepo.parts.write_tensors(url, shards, model="net", key=...)]  # in each rank
    tx.save_model_parts("net", parts)                                            # in one process

What both give is a small value, plain JSON. It leads to what no commit has; a lease keeps that from
garbage collection until the commit, or until it runs out.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from tensorrepo.datasets.draft import Rows
from tensorrepo.formats.common.arguments import (
    byte_size,
    check_instance,
    mapping,
    path_in,
    text,
)
from tensorrepo.formats.common.buffer_codecs import DEFAULT_CODEC, parse_codec
from tensorrepo.formats.common.tensors import tensor_of
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.lenient import OnMisfit, parse_on_error
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.formats.dataset.schema.types import TypeLike
from tensorrepo.formats.model.layout.manifest import check_tensor_name
from tensorrepo.formats.model.parts import write_part
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.model.write.base_choice import DeltaOptions
from tensorrepo.formats.model.write.model_source import source_of
from tensorrepo.formats.model.write.shards import TensorShard
from tensorrepo.models.model import Model
from tensorrepo.repo.changes.leases import close_leases, open_lease
from tensorrepo.repo.changes.moments import parse_span
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repository import Repository
from tensorrepo.sdk import opened_once
from tensorrepo.transaction import schema_of
from tensorrepo.verbs.exchange import open_source
from tensorrepo.verbs.models import base_model, known_models
from tensorrepo.verbs.part_values import ModelPart, Part, PartLike, lease_name, parsed_any
from tensorrepo.verbs.part_writes import holder_of, store_rows

__all__ = ["KEEP", "ModelPart", "Part", "Shard", "release", "write", "write_tensors"]
KEEP: Final = "14d"


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
    like = None if dataset is None else _dataset(repo, dataset, ref)
    columns = schema_of(schema) if like is None else like.schema.without_ids()
    source = open_source(rows, schema=columns, on_error=parse_on_error(on_error))
    return store_rows(
        repo.context,
        source.batches,
        name,
        schema=columns,
        like=like,
        on_error=on_error,
        codec=parse_codec(codec),
        page_bytes=None if page_bytes is None else byte_size("page_bytes", page_bytes),
        seconds=seconds,
    )


@dataclass(frozen=True, slots=True)
class Shard:
    """A box of a tensor, as one rank holds it.

    Attributes:
        tensor: the elements: a numpy array, a torch tensor, or a reader.
        shape: shape of the whole tensor.
        offset: where the box begins in it.
    """

    tensor: Any
    shape: tuple[int, ...]
    offset: tuple[int, ...]


def write_tensors(
    repository: Repository | str | Path,
    tensors: Mapping[str, Any],
    *,
    model: str,
    ref: str = "main",
    key: str | None = None,
    base: Model | str | None = None,
    keep: str = KEEP,
) -> ModelPart:
    """Store tensors of a model, or shards of them, without committing them; memory is bounded.

    All ranks together store every tensor, whole or as a grid of boxes; what several hold alike
    counts once.

    Args:
        repository: as for `write`.
        tensors: what this rank holds, by name of the tensor: whole tensors, a `Shard`, or a list of
            shards. They must not change until this returns.
        model: name of the model that they are for. What its version at `ref`, or models near it,
            have is not stored again, and differences from them are stored.
        ref: the commit that is looked at.
        key: name of the part within the model, such as ``f"{step}/{rank}"``. A rank that is started
            again gives the same key, and counts once. None: a random one.
        base: a model, or ``REF:models/NAME``, to store the difference from. A shard finds the
            same shard of it, so the base was stored in the same shards, or tensors are whole.
        keep: as for `write`.

    Returns:
        The part: hand it to the process that commits, as it is or as `to_json`.

    Raises:
        InvalidInputError: what cannot be stored; a shard beyond its tensor.

    Example:
        ``tensorrepo.parts.write_tensors(url, {"w": Shard(rows, (8, 4), (2, 0))}, model="net")``
    """
    repo = _opened(repository)
    path = path_in("models", model)
    seconds = parse_span(text("keep", keep))
    name = secrets.token_hex(16) if key is None else _key(key)
    core = repo.context.core
    shards, aliases = _shards(tensors)
    under = None if base is None else base_model(repo.context, base)
    pin = core.log.refresh()
    with ObjectWriter(core.objects, pin.state.graves) as writer:
        entry = write_part(
            writer,
            shards,
            name,
            aliases=aliases,
            known=_known(repo, path, ref),
            against=DeltaOptions(None if under is None else core.current(under.stored.entry)),
        )
        writer.flush()
        stored = open_model(writer, entry)
    assert entry.storage is not None, "a model has a placement"
    lease = lease_name(content_tag(name.encode())[:8].hex(), entry.storage)
    kept = [entry.digest, entry.storage]
    open_lease(
        core,
        lease,
        kept,
        since=pin.generation,
        holder=holder_of(repo.context),
        note="part",
        seconds=seconds,
    )
    placement = stored.packs.placement
    return ModelPart(
        repository=core.id,
        key=name,
        root=entry.digest,
        placement=entry.storage,
        tensors=len(stored.tensors),
        stored_bytes=sum(
            member.stored_bytes for tensor in placement.tensors for member in tensor.members
        ),
        lease=lease,
    )


def release(repository: Repository | str | Path, parts: Iterable[PartLike]) -> None:
    """Give up parts that nobody will commit: the next collection takes what only they led to.

    What was committed stays.
    """
    repo = _opened(repository)
    leases = [parsed_any(part).lease for part in parts]
    close_leases(repo.context.core, leases, holder=holder_of(repo.context))


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


def _known(repository: Repository, path: str, ref: str) -> tuple[Entry, ...]:
    """Models of a commit that tensors may be stored against; none where there is no commit."""
    try:
        tree = repository.context.resolve(ref).commit.tree
    except NotFoundError:
        return ()
    return known_models(repository.context.core, tree, (), path)


def _shards(tensors: Mapping[str, Any]) -> tuple[list[TensorShard], Mapping[str, str]]:
    """What a rank holds, and further names of whole tensors."""
    given = mapping("tensors", tensors, "tensors by name")
    whole = {name: each for name, each in given.items() if not _is_cut(each)}
    source = source_of(whole)
    shards = [
        TensorShard(name, tuple(reader.shape), (0,) * len(reader.shape), reader)
        for name, reader in source.tensors.items()
    ]
    for name, each in given.items():
        if name not in whole:
            shards += [_shard(name, one) for one in (each if isinstance(each, list) else [each])]
    return shards, source.aliases


def _is_cut(value: Any) -> bool:
    return isinstance(value, Shard | list)


def _shard(name: str, given: Any) -> TensorShard:
    shard: Shard = check_instance(
        f"a shard of {name!r}", given, Shard, "tensorrepo.parts.Shard(...)"
    )
    reader = tensor_of(check_tensor_name(name), shard.tensor)
    return TensorShard(name, tuple(shard.shape), tuple(shard.offset), reader)
