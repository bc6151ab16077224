"""Changes of datasets made by hand, below the verbs that users call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tensorrepo.formats.dataset.metadata.boundaries import ColumnPart, WaitingPage
from tensorrepo.formats.dataset.metadata.deletions import pack_deletions
from tensorrepo.formats.dataset.metadata.span_write import PatchPart
from tensorrepo.formats.dataset.metadata.tree_edit import FragmentEdit, TreeEditor
from tensorrepo.formats.dataset.pages.page import encode_page
from tensorrepo.formats.dataset.read import StoredDataset, fragment_records, open_dataset
from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.repo.objects.envelope import ObjectSink


def waiting(column: Column, values: Any) -> ColumnPart:
    """All `values` as one page that has yet to be stored."""
    page = encode_page(coerce_column(column, values), column.storage)
    return ColumnPart(column.id, column.storage, [WaitingPage(0, lambda: page, page.data.nbytes)])


def patched(column: Column, offsets: Sequence[int], values: Any) -> PatchPart:
    return PatchPart(waiting(column, values), np.array(offsets, np.uint32))


def edited(
    objects: ObjectSink,
    base: StoredDataset,
    edits: Mapping[int, FragmentEdit],
    *,
    schema: Schema | None = None,
    groups: Any = None,
) -> StoredDataset:
    """`base` with edits of some fragments, by their number in the dataset."""
    with ThreadPoolExecutor(1) as storers:
        editor = TreeEditor(
            objects, base, schema or base.schema, groups or base.root.groups, storers, 1 << 20
        )
        first = 0
        for number, entry in enumerate(base.root.leaves):
            some = {at - first: edits[at] for at in edits if first <= at < first + entry.fragments}
            if some:
                editor.edit(iter(sorted(some.items())), number)
            first += entry.fragments
        return open_dataset(objects, editor.finish().digest)


def without(objects: ObjectSink, base: StoredDataset, rows: Sequence[int]) -> StoredDataset:
    """`base` without some of its rows, of which none may be deleted yet."""
    counts = fragment_records(base)["rows"].astype(np.int64)
    starts = np.cumsum(counts) - counts
    fragment = np.searchsorted(starts, rows, side="right") - 1
    edits = {}
    for at in np.unique(fragment).tolist():
        offsets = np.unique(np.array(rows)[fragment == at]) - starts[at]
        edits[at] = FragmentEdit(deletions=pack_deletions(offsets, int(counts[at])))
    return edited(objects, base, edits)
