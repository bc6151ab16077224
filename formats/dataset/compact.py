"""Compaction: worn fragments are written anew, the rest is linked.

A fragment wears when rows are deleted, values patched, many small ones stand in a row, or its rows
lie in foreign files. Rows keep their ids and their order. What is left out, deleted rows above all,
is really gone once no older version reaches it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import islice

import numpy as np

from tensorrepo.formats.common.buffer_codecs import CodecChoice
from tensorrepo.formats.dataset.metadata.chunk import CHUNK_BYTES
from tensorrepo.formats.dataset.metadata.span_write import Fragment, leaf_fragments
from tensorrepo.formats.dataset.metadata.tree_write import Groups, TreeWriter, known_entries
from tensorrepo.formats.dataset.pages.page import PAGE_FOREIGN, PAGE_TILES
from tensorrepo.formats.dataset.read import BATCH_BYTES, StoredDataset, row_id_table, scan
from tensorrepo.formats.dataset.write import BUDGET_BYTES
from tensorrepo.formats.dataset.writing.fragment_write import (
    FragmentWriter,
    WriteOptions,
    writer_threads,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSink

WORN_DELETED = 0.1  # share of a fragment's rows that are deleted
WORN_PATCHED = 0.01  # share of a fragment's rows of which one column was patched
_RANDOM = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Wear:
    """How one fragment stands: `is_worn` on its own, `is_small` enough to be joined with others.

    `is_fixed`: it holds samples that are too large to be rewritten within the budget.
    """

    rows: int
    is_worn: bool
    is_small: bool
    is_fixed: bool


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What compaction will do: per leaf, per fragment whether it is rewritten."""

    rewritten: tuple[tuple[bool, ...], ...]
    rows: int
    fragments: int


def plan_compaction(
    dataset: StoredDataset,
    *,
    target_bytes: int = CHUNK_BYTES,
    budget_bytes: int = BUDGET_BYTES,
    everything: bool = False,
) -> CompactionPlan:
    """Which fragments are worth it; reads metadata only.

    Neighbours of less than half of `target_bytes` are joined; fragments with tiled samples above a
    quarter of `budget_bytes` stay as they are.
    """
    wear = [
        [_wear(fragment, target_bytes, budget_bytes) for fragment in leaf_fragments(dataset, entry)]
        for entry in dataset.root.leaves
    ]
    flat = [each for leaf in wear for each in leaf]
    chosen = [not each.is_fixed for each in flat] if everything else _chosen(flat)
    each = iter(chosen)
    rewritten = tuple(tuple(islice(each, len(leaf))) for leaf in wear)
    rows = sum(fragment.rows for fragment, is_chosen in zip(flat, chosen, strict=True) if is_chosen)
    return CompactionPlan(rewritten, rows, sum(chosen))


def compact_dataset(
    objects: ObjectSink,
    dataset: StoredDataset,
    *,
    target_bytes: int = CHUNK_BYTES,
    budget_bytes: int = BUDGET_BYTES,
    everything: bool = False,
    codec: CodecChoice = "auto",
    rng: random.Random = _RANDOM,
    progress: Callable[[int, int], None] | None = None,
) -> ObjectLink:
    """Write worn fragments anew, in bounded memory.

    `dataset` stays as it is; `target_bytes` are those of a fragment. With `everything`, all
    fragments are rewritten and column groups chosen anew; `rng` gives fragments their uids;
    `progress` receives rows and bytes written so far.

    Returns:
        Link of the new root; that of `dataset` when nothing is worn.
    """
    plan = plan_compaction(
        dataset, target_bytes=target_bytes, budget_bytes=budget_bytes, everything=everything
    )
    if not plan.fragments:
        return objects.get(dataset.digest).link(dataset.digest)
    with writer_threads() as (encoders, storers):
        options = WriteOptions(encoders, budget_bytes, codec=codec, rng=rng)
        groups = () if all(map(all, plan.rewritten)) else dataset.root.groups
        base, waiting_bytes = dataset if groups else None, options.quarter_bytes

        def tree(groups: Groups) -> TreeWriter:
            return TreeWriter(
                objects, dataset.schema, groups, base, storers, waiting_bytes, behind=False
            )

        return _compact(
            dataset, plan, FragmentWriter(dataset.schema, options, tree, groups), progress
        )


def _compact(
    dataset: StoredDataset,
    plan: CompactionPlan,
    writer: FragmentWriter,
    progress: Callable[[int, int], None] | None,
) -> ObjectLink:
    ids, names = row_id_table(dataset), dataset.schema.names

    def rewrite(start: int, stop: int) -> None:
        """Write the live ones of physical rows ``[start, stop)``, as fragments of their own."""
        for rows, values in scan(dataset, names, start, stop, max_bytes=BATCH_BYTES):
            writer.add([values[name] for name in names], ids.of(rows))
            if progress is not None:
                progress(writer.rows, writer.bytes)
        writer.end_fragment()

    row = run_start = 0
    for entry, chosen in zip(dataset.root.leaves, plan.rewritten, strict=True):
        if not any(chosen):
            rewrite(run_start, row)
            last = entry is dataset.root.leaves[-1]
            writer.tree.keep_leaf(dataset, entry, last=last)
            row = run_start = row + entry.rows
            continue
        for fragment, rewritten in zip(leaf_fragments(dataset, entry), chosen, strict=True):
            if rewritten:
                if writer.groups:  # else the statistics begin anew
                    writer.tree.forget(fragment)
                row += fragment.rows
                continue
            rewrite(run_start, row)
            writer.tree.add_known(fragment, counted=True)
            row = run_start = row + fragment.rows
    rewrite(run_start, row)
    return writer.finish().finish(dataset.root.properties, dataset.root.lineage)


def _wear(fragment: Fragment, target_bytes: int, budget_bytes: int) -> Wear:
    deleted = fragment.deletions.deleted if fragment.deletions is not None else 0
    patched = max(
        (sum(len(patch.offsets) for patch in each) for each in fragment.patches.values()), default=0
    )
    entries = [known_entries(column) for column in fragment.columns]
    foreign = any((each["codec"] == PAGE_FOREIGN).any() for each in entries)
    largest = max(
        (int(each["max"].max()) for each in entries if (each["codec"] == PAGE_TILES).any()),
        default=0,
    )
    return Wear(
        fragment.rows,
        deleted >= WORN_DELETED * fragment.rows
        or patched >= max(1, WORN_PATCHED * fragment.rows)
        or foreign,
        fragment.stored_bytes < target_bytes // 2,
        largest > budget_bytes // 4,
    )


def _chosen(wear: Sequence[Wear]) -> list[bool]:
    """Worn ones, and small ones that stand beside another that is small or worn."""
    loose = np.array([(each.is_worn or each.is_small) and not each.is_fixed for each in wear], bool)
    worn = np.array([each.is_worn and not each.is_fixed for each in wear], bool)
    beside = np.zeros(len(wear), bool)
    beside[1:] |= loose[:-1]
    beside[:-1] |= loose[1:]
    chosen: list[bool] = (worn | (loose & beside)).tolist()
    return chosen
