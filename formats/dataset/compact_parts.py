"""Compaction by workers: each writes some worn rows anew, one process puts them in their places.

    plan_compaction -> row_pieces -> write_compacted, by workers -> join_compacted, in one process

Rows keep their ids and their order. What workers say is not believed: the ids of every piece are
compared with those of the rows that it takes the place of, and a sample of pages is decoded.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from tensorrepo.formats.dataset.compact import CompactionPlan
from tensorrepo.formats.dataset.metadata.chunk import CHUNK_BYTES
from tensorrepo.formats.dataset.metadata.span_write import (
    leaf_fragments,
    read_fragments,
    regrouped,
)
from tensorrepo.formats.dataset.metadata.tree_write import TreeWriter
from tensorrepo.formats.dataset.parts import (
    WAITING_BYTES,
    RowsPart,
    open_part,
    part_ids,
    secure_chunks,
    verify_parts,
)
from tensorrepo.formats.dataset.read import (
    BATCH_BYTES,
    StoredDataset,
    live_rows,
    row_id_table,
    scan,
)
from tensorrepo.formats.dataset.schema.coerce import CoercedRows
from tensorrepo.formats.dataset.write import BUDGET_BYTES, write_dataset
from tensorrepo.formats.dataset.writing.fragment_write import writer_threads
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSink
from tensorrepo.repo.objects.writer import ObjectWriter

PIECE_BYTES: Final = 4 * CHUNK_BYTES  # that one worker writes at a time


def row_pieces(
    dataset: StoredDataset, plan: CompactionPlan, piece_bytes: int = PIECE_BYTES
) -> Iterator[tuple[int, int]]:
    """Physical rows ``[start, stop)`` that are written anew, cut where fragments end."""
    row = start = held = 0
    for entry, chosen in zip(dataset.root.leaves, plan.rewritten, strict=True):
        if not any(chosen):
            if row > start:
                yield start, row
            row = start = row + entry.rows
            held = 0
            continue
        for fragment, rewritten in zip(leaf_fragments(dataset, entry), chosen, strict=True):
            if row > start and (not rewritten or held >= piece_bytes):
                yield start, row
                start, held = row, 0
            row += fragment.rows
            held += fragment.stored_bytes
            if not rewritten:
                start, held = row, 0
    if row > start:
        yield start, row


def write_compacted(
    objects: ObjectSink,
    dataset: StoredDataset,
    rows: tuple[int, int],
    key: str,
    *,
    budget_bytes: int = BUDGET_BYTES,
) -> ObjectLink:
    """Store what is alive of physical rows ``[start, stop)`` as a dataset of its own.

    Args:
        objects: store of the objects.
        dataset: dataset that has the rows.
        rows: a piece of `row_pieces`.
        key: name of the part, from which the uids of its fragments follow.
        budget_bytes: bound of the memory used.

    Returns:
        Link of its root.
    """
    ids, names = row_id_table(dataset), dataset.schema.names
    batches = (
        CoercedRows([values[name] for name in names], ids.of(numbers))
        for numbers, values in scan(dataset, names, *rows, max_bytes=BATCH_BYTES)
    )
    return write_dataset(
        objects,
        dataset.schema.without_ids(),
        batches,
        like=dataset,
        budget_bytes=budget_bytes,
        rng=part_ids(key),
    )


def join_compacted(
    objects: ObjectWriter,
    dataset: StoredDataset,
    plan: CompactionPlan,
    pieces: Sequence[tuple[tuple[int, int], RowsPart]],
    rng: random.Random | None = None,
) -> ObjectLink:
    """The dataset with pieces in the place of the rows that they were made of.

    Args:
        objects: the transaction's store.
        dataset: dataset that was compacted.
        plan: fragments that were written anew.
        pieces: what `write_compacted` stored of each of `row_pieces`, in their order.
        rng: chance for the sample of pages that are decoded; None: the system's.

    Raises:
        CommitExpired: an object of a piece was collected, and no copy is left.
        CorruptError: a piece is not what it says, or has other rows.
    """
    opened = [(part, open_part(objects, dataset.schema, part, moved=True)) for _, part in pieces]
    for (rows, part), (_, stored) in zip(pieces, opened, strict=True):
        _check_rows(dataset, rows, part, stored)
    secure_chunks(objects, opened)
    verify_parts(opened, "sample", rng or random.SystemRandom())
    waiting = deque((rows, stored) for (rows, _), (_, stored) in zip(pieces, opened, strict=True))
    with writer_threads() as (_, storers):
        tree = TreeWriter(
            objects,
            dataset.schema,
            dataset.root.groups,
            dataset,
            storers,
            WAITING_BYTES,
            behind=False,
        )
        _join(dataset, plan, waiting, tree)
        return tree.finish(dataset.root.properties, dataset.root.lineage)


def _join(
    dataset: StoredDataset,
    plan: CompactionPlan,
    waiting: deque[tuple[tuple[int, int], StoredDataset]],
    tree: TreeWriter,
) -> None:
    live = frozenset(column.id for column in dataset.schema.columns)
    row = 0

    def place(until: int) -> None:
        """Put in the pieces that end there, or before."""
        while waiting and waiting[0][0][1] <= until:
            for fragment in read_fragments(waiting.popleft()[1]):
                known = regrouped(fragment, dataset.root.groups, live)
                tree.add_known(known, counted=False)

    for entry, chosen in zip(dataset.root.leaves, plan.rewritten, strict=True):
        if not any(chosen):
            place(row)
            tree.keep_leaf(dataset, entry, last=entry is dataset.root.leaves[-1])
            row += entry.rows
            continue
        for fragment, rewritten in zip(leaf_fragments(dataset, entry), chosen, strict=True):
            place(row)
            if rewritten:
                tree.forget(fragment)
            else:
                tree.add_known(fragment, counted=True)
            row += fragment.rows
    place(row)


def _check_rows(
    dataset: StoredDataset, rows: tuple[int, int], part: RowsPart, stored: StoredDataset
) -> None:
    """A piece has exactly the rows that are alive in its place, in their order."""
    table = live_rows(dataset)
    numbers = np.arange(*rows)
    expected = row_id_table(dataset).of(numbers[table.live(numbers) >= 0])
    found = row_id_table(stored).of(np.arange(stored.root.rows))
    if not np.array_equal(expected, found):
        raise CorruptError(
            f"part {part.key!r} has {len(found):,} rows in the place of rows {rows[0]:,} to "
            f"{rows[1]:,}, of which {len(expected):,} are alive, or their ids differ. Nothing "
            "changed."
        )
