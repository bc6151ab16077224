"""Dataset writer: batches go in, a root comes out.

Order of storing: chunk, page index, leaf, root. What was stored before a failure is not reachable.

A long import that can be cut off and go on is written in stretches, each an append to what was
there. After a stretch the caller is told of a root that holds all rows so far and of how many rows
of the input it took: with both, it goes on behind them. The input must give the same rows in the
same order.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from tensorrepo.formats.common.buffer_codecs import Codec, CodecChoice
from tensorrepo.formats.common.provenance import ProvenanceEdge, with_edges
from tensorrepo.formats.dataset.metadata.tree_write import Groups, TreeWriter
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.coerce import CoercedRows, LastingBatch
from tensorrepo.formats.dataset.schema.lenient import (
    Misfits,
    batch_part,
    batch_rows,
    coerce_leniently,
)
from tensorrepo.formats.dataset.schema.schema import Column, InputBatch, Schema, type_to_json
from tensorrepo.formats.dataset.schema.types import check_zones
from tensorrepo.formats.dataset.writing.fragment_write import (
    FragmentWriter,
    WriteOptions,
    writer_threads,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.ids import Digest, digest_bytes
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSink

BUDGET_BYTES = 256 << 20
CHECKPOINT_BYTES = 1 << 30
_RANDOM = random.SystemRandom()


def write_dataset(  # noqa: PLR0913  the one call by which rows are stored
    objects: ObjectSink,
    schema: Schema,
    batches: Iterable[InputBatch | CoercedRows],
    *,
    base: StoredDataset | None = None,
    like: StoredDataset | None = None,
    budget_bytes: int = BUDGET_BYTES,
    page_bytes: int | None = None,
    codec: CodecChoice = Codec.NONE,
    rng: random.Random = _RANDOM,
    misfits: Misfits | None = None,
    edges: Iterable[ProvenanceEdge] = (),
    progress: Callable[[int, int], None] | None = None,
) -> ObjectLink:
    """Store the rows of `batches` as a dataset, or behind those of `base`.

    Args:
        objects: store of the objects; only what is new is stored, the root last.
        schema: the columns. With `base` it must have the same ones.
        batches: batches of any size; each is columns, an Arrow batch or table, or a list of rows,
            or `CoercedRows` of the columns of `base`. A batch may be reused by its owner once the
            next one is asked for.
        base: append to this dataset, whose chunks and leaves are linked, not rewritten.
        like: without `base`: give columns the ids and groups that they have in this dataset, so
            that the rows can be put behind its own later. `schema` must have the same columns.
        budget_bytes: bound of the memory used, beside one batch (two lasting ones) and one row.
        page_bytes: size of a full page; None: 1 MiB, or 256 KiB where rows are under 4 KiB.
        codec: codec tried on every page and tile, kept where it saves a quarter; "auto" tries some.
        rng: source of the fragments' uids.
        misfits: treatment of rows that do not fit, and then the report of them; None: raise.
        edges: origins of the rows, noted beside the lineage of `base`.
        progress: callback for rows and bytes written so far, after every batch.

    Returns:
        Link of the DATASET root.

    Raises:
        InvalidInputError: a row that does not fit; nothing that was stored is reachable.
    """
    known = base if base is not None else like
    columns = _identified(schema, known)
    misfits = misfits or Misfits()
    with writer_threads() as (encoders, storers):
        options = WriteOptions(encoders, budget_bytes, page_bytes, codec, rng)

        def tree(groups: Groups) -> TreeWriter:
            return TreeWriter(objects, columns, groups, base, storers, options.quarter_bytes)

        # A base without rows knows nothing of their weight.
        groups = known.root.groups if known is not None and known.root.leaves else ()
        writer = FragmentWriter(columns, options, tree, groups)
        for batch in batches:
            # A table in parts: as a whole its chunks would be copied together first.
            for part in batch.to_batches() if isinstance(batch, pa.Table) else [batch]:
                if isinstance(part, CoercedRows):
                    writer.add(part.values, part.ids)
                    continue
                values = coerce_leniently(columns, part, misfits)
                writer.add(values, lasting=isinstance(part, LastingBatch))
            if progress is not None:
                progress(writer.rows, writer.bytes)
        finished = writer.finish()
        if base is None:
            return finished.finish({}, with_edges((), edges))
        return finished.finish(base.root.properties, with_edges(base.root.lineage, edges))


def column_id(base: Digest | None, column: Column) -> str:
    """The id of a column that is added to the dataset whose root is `base` (None: a new one)."""
    root = bytes(32) if base is None else digest_bytes(base)
    kind = json.dumps(type_to_json(column.type), sort_keys=True, separators=(",", ":"))
    return content_tag(root + f"{column.name}\0{kind}".encode())[:8].hex()


def _identified(schema: Schema, base: StoredDataset | None) -> Schema:
    """The schema with ids: those of `base`, whose columns it must have, or new ones."""
    if base is None:
        return _named(_named(schema.without_ids()).with_derived())
    visible = base.schema.visible
    for column in schema.visible.columns:
        known = visible.column(column.name) if column.name in visible else None
        if known is None or (known.type, known.nullable) != (column.type, column.nullable):
            found = "no such column" if known is None else known.type_text
            raise InvalidInputError(
                f"cannot append: column {column.name!r} is {column.type_text} in the new rows, "
                f"the dataset has {found}"
            )
    for column in visible.columns:
        schema.column(column.name)
    return base.schema


def _named(schema: Schema) -> Schema:
    """With ids for columns that have none. Raises InvalidInputError: a zone is unknown."""
    for column in schema.columns:
        if not column.id:
            check_zones(column.type, column.name)
    columns = (
        column if column.id else replace(column, id=column_id(None, column))
        for column in schema.columns
    )
    return Schema(tuple(columns))


# ------------------------------------------------------------------------------ resumable ingest


@dataclass(slots=True)
class _Input:
    """Batches, handed on a stretch at a time."""

    batches: Iterator[InputBatch | CoercedRows]
    rows: int  # of the input, those of earlier runs too
    stretch_bytes: int = 0
    is_over: bool = False

    def stretch(self, limit_bytes: int) -> Iterator[InputBatch | CoercedRows]:
        while self.stretch_bytes < limit_bytes:
            batch = next(self.batches, None)
            if batch is None:
                self.is_over = True
                return
            self.rows += _rows_of(batch)
            yield batch


def ingest(
    objects: ObjectSink,
    schema: Schema,
    batches: Iterable[InputBatch | CoercedRows],
    checkpoint: Callable[[ObjectLink, int], None],
    *,
    base: StoredDataset | None = None,
    skip_rows: int = 0,
    checkpoint_bytes: int = CHECKPOINT_BYTES,
    misfits: Misfits | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> ObjectLink:
    """Write `batches` as `write_dataset` does, telling from time to time how far it got.

    `batches` give the same rows in the same order as in the run that was cut off, of which `base`,
    that the last checkpoint told, holds `skip_rows`. `checkpoint` receives the root of all rows so
    far and the rows of the input that it took, whose objects need not be durable yet, about every
    `checkpoint_bytes`; `progress` counts skipped rows as written.

    Returns:
        Link of the DATASET root.
    """
    given = _Input(_behind(iter(batches), skip_rows), skip_rows)
    misfits = misfits or Misfits()
    misfits.rows = skip_rows
    done_rows, done_bytes = skip_rows, 0
    while True:
        given.stretch_bytes = 0

        def told(rows: int, size: int, done: tuple[int, int] = (done_rows, done_bytes)) -> None:
            given.stretch_bytes = size
            if progress is not None:
                progress(done[0] + rows, done[1] + size)

        link = write_dataset(
            objects,
            schema,
            given.stretch(checkpoint_bytes),
            base=base,
            misfits=misfits,
            progress=told,
            **options,
        )
        if given.is_over:
            return link
        done_rows, done_bytes = given.rows, done_bytes + given.stretch_bytes
        base = open_dataset(objects, link.digest)
        schema = base.schema.visible.without_ids()
        checkpoint(link, given.rows)


def _rows_of(batch: InputBatch | CoercedRows) -> int:
    return len(batch) if isinstance(batch, CoercedRows) else batch_rows(batch)


def _behind(
    batches: Iterator[InputBatch | CoercedRows], rows: int
) -> Iterator[InputBatch | CoercedRows]:
    """The batches without their first `rows` rows."""
    for batch in batches:
        if isinstance(batch, CoercedRows):
            assert not rows, "coerced rows are made from where they are needed"
            yield batch
            continue
        count = batch_rows(batch) if rows else 0
        if rows and count <= rows:
            rows -= count
            continue
        yield batch_part(batch, rows, count) if rows else batch
        rows = 0
