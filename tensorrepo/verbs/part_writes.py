"""Parts of rows, stored by a worker: what `tensorrepo.parts.write` does, and tasks of a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from tensorrepo.context import Context
from tensorrepo.formats.common.buffer_codecs import CodecChoice, parse_codec
from tensorrepo.formats.dataset.compact_parts import write_compacted
from tensorrepo.formats.dataset.parts import write_part
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.lenient import Misfits, OnMisfit
from tensorrepo.formats.dataset.schema.schema import InputBatch, Schema
from tensorrepo.repo.changes.leases import open_lease
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import ObjectLink
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.verbs.exchange import open_source
from tensorrepo.verbs.part_values import Part, lease_name

TASK_SECONDS: Final = 2 * 24 * 3600.0  # for which parts are kept: a command ends sooner
_NOBODY: Final = "somebody"  # a worker needs no name; who commits does


def store_rows(
    context: Context,
    batches: Iterable[InputBatch],
    key: str,
    *,
    schema: Schema,
    like: StoredDataset | None,
    on_error: OnMisfit = "raise",
    codec: CodecChoice = "auto",
    page_bytes: int | None = None,
    seconds: float = TASK_SECONDS,
) -> Part:
    """Store rows as a part that a lease keeps for so many seconds.

    Args:
        context: repository.
        batches: the rows.
        key: name of the part.
        schema: the columns.
        like: the dataset that the rows are for; None: one that is made with `schema`.
        on_error: fate of rows that do not fit.
        codec: codec of the pages.
        page_bytes: size of a full page; None: as `write_dataset` chooses it.
        seconds: time after which a collection may take it.
    """
    core = context.core
    pin = core.log.refresh()
    with ObjectWriter(core.objects, pin.state.graves) as writer:
        link = write_part(
            writer,
            batches,
            key,
            schema=schema,
            like=like,
            misfits=Misfits(on_error),
            codec=codec,
            page_bytes=page_bytes,
        )
        return _kept(context, writer, pin.generation, link, key, seconds)


def holder_of(context: Context) -> str:
    """Who holds leases here."""
    try:
        return context.author
    except InvalidInputError:
        return _NOBODY


def _kept(
    context: Context, writer: ObjectWriter, since: int, link: ObjectLink, key: str, seconds: float
) -> Part:
    """A part whose objects were written since the log stood there."""
    writer.flush()
    stored = open_dataset(writer, link.digest)
    lease = lease_name(content_tag(key.encode())[:8].hex(), link.digest)
    keep = [link.digest]
    holder = holder_of(context)
    open_lease(context.core, lease, keep, since=since, holder=holder, note="part", seconds=seconds)
    return Part(
        repository=context.core.id,
        key=key,
        root=link.digest,
        rows=stored.root.rows,
        stored_bytes=stored.root.stored_bytes,
        lease=lease,
    )


@dataclass(frozen=True, slots=True)
class RowsTask:
    """Task that stores rows: of a file that it opens, or of batches that it is given.

    Attributes:
        context: repository, which the worker opens.
        schema: columns of the rows.
        like: root of the dataset that they are for; None: one that is made with `schema`.
        codec: codec of the pages.
        format: format of files.
        options: options of that format.
    """

    context: Context
    schema: Schema
    like: Digest | None
    codec: str
    format: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, piece: tuple[str, Path | list[InputBatch]]) -> str:
        """The part of this key, as JSON."""
        key, rows = piece
        batches: Iterable[InputBatch] = (
            open_source(rows, self.format, schema=self.schema, options=self.options).batches
            if isinstance(rows, Path)
            else rows
        )
        objects = self.context.core.objects
        part = store_rows(
            self.context,
            batches,
            key,
            schema=self.schema,
            like=None if self.like is None else open_dataset(objects, self.like),
            codec=parse_codec(self.codec),
        )
        return part.to_json()


@dataclass(frozen=True, slots=True)
class CompactionTask:
    """Task that writes rows of worn fragments anew, with their ids.

    Attributes:
        context: repository, which the worker opens.
        root: root of the dataset.
        key: name that parts begin with.
        budget_bytes: bound of the memory used.
    """

    context: Context
    root: Digest
    key: str
    budget_bytes: int

    def __call__(self, rows: tuple[int, int]) -> str:
        """The part of physical rows ``[start, stop)``, as JSON."""
        core = self.context.core
        key = f"{self.key}/{rows[0]:012d}"
        dataset = open_dataset(core.objects, self.root, self.context.outside)
        pin = core.log.refresh()
        with ObjectWriter(core.objects, pin.state.graves) as writer:
            link = write_compacted(writer, dataset, rows, key, budget_bytes=self.budget_bytes)
            kept = _kept(self.context, writer, pin.generation, link, key, TASK_SECONDS)
            return kept.to_json()
