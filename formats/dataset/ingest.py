"""Resumable ingest: a long import that can be cut off and go on.

The rows are written in stretches, each an append to what was there. After a stretch the caller is
told of a root that holds all rows so far and of how many rows of the input it took: with both, an
ingest that was cut off goes on behind them. The input must give the same rows in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.lenient import Misfits, batch_part, batch_rows
from tensorrepo.formats.dataset.schema.schema import InputBatch, Schema
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSink

CHECKPOINT_BYTES = 1 << 30


@dataclass(slots=True)
class _Input:
    """Batches, handed on a stretch at a time."""

    batches: Iterator[InputBatch]
    rows: int  # of the input, those of earlier runs too
    stretch_bytes: int = 0
    is_over: bool = False

    def stretch(self, limit_bytes: int) -> Iterator[InputBatch]:
        while self.stretch_bytes < limit_bytes:
            batch = next(self.batches, None)
            if batch is None:
                self.is_over = True
                return
            self.rows += batch_rows(batch)
            yield batch


def ingest(
    objects: ObjectSink,
    schema: Schema,
    batches: Iterable[InputBatch],
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

    Args:
        objects: where to store.
        schema: the columns.
        batches: the same rows in the same order as in the run that was cut off.
        checkpoint: called with the root of all rows so far and the rows of the input it took. The
            objects need not be durable yet.
        base: append to this dataset; when going on, what the last checkpoint told.
        skip_rows: rows of the input that `base` holds already.
        checkpoint_bytes: about how many bytes of rows lie between two checkpoints.
        misfits: what to do about rows that do not fit.
        progress: called with rows and bytes written so far, skipped ones counted as written.
        options: of `write_dataset`.

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


def _behind(batches: Iterator[InputBatch], rows: int) -> Iterator[InputBatch]:
    """The batches without their first `rows` rows."""
    for batch in batches:
        count = batch_rows(batch) if rows else 0
        if rows and count <= rows:
            rows -= count
            continue
        yield batch_part(batch, rows, count) if rows else batch
        rows = 0
