"""Check of sorted values against the pages that they were made of.

An index of vectors or words can do no more than miss a row; what one of values leaves out, or calls
otherwise, is a wrong answer. So a deep fsck compares it, value by value.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, narrowed, open_dataset, scan
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.search_index.kinds import BTREE
from tensorrepo.formats.search_index.known_rows import KnownRows
from tensorrepo.formats.search_index.sorted_values import KeyBlock, SortedSegment, sort_keys
from tensorrepo.formats.search_index.stored_index import StoredIndex
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import ObjectSource


def value_faults(
    objects: ObjectSource, index: StoredIndex, outside: Outside | None
) -> Iterator[str]:
    """What an index of values says otherwise than the version that it was brought up to.

    Nothing of an index of another kind. Memory is that of the keys of one segment.

    Raises:
        CorruptError, NotFoundError: a block, or a page of the column, cannot be read.
    """
    if index.kind != BTREE:
        return
    dataset = open_dataset(objects, index.dataset, outside)
    column = next((each for each in dataset.schema.columns if each.id == index.column_id), None)
    if column is None:
        yield f"the index is of column {index.column!r}, which its dataset does not have"
        return
    known = KnownRows.of(index, dataset, column)
    wrong = [np.zeros(0, np.int64)]
    for at, segment in enumerate(index.segments):
        every = known.every_row(at)
        places = np.flatnonzero(every >= 0)
        rows, first = np.unique(every[places], return_index=True)
        keys = None
        if segment.files:
            keys = SortedSegment(objects, segment, LimitedCache[KeyBlock](0))
        wrong.append(_wrong_rows(dataset, column, rows, places[first], keys, segment.rows))
    numbers = live_rows(dataset).live(np.unique(np.concatenate(wrong)))
    if len(numbers):
        yield (
            f"the index says other values of column {index.column!r} than the dataset has, in "
            f"{counted(len(numbers), 'row')}, such as row {numbers[0]:,}: make it anew with "
            "`tensorrepo index create`, after `tensorrepo rm` of this entry"
        )


def _wrong_rows(
    dataset: StoredDataset,
    column: Column,
    rows: Ints,
    places: Ints,
    keys: SortedSegment | None,
    count: int,
) -> Ints:
    """Those of some physical rows, ascending, that a segment of `count` has another key of."""
    is_there = np.zeros(count, np.bool_)
    values = np.zeros(count, np.uint8 if keys is None else keys.key_dtype)
    for block in keys.every_block() if keys is not None else ():
        is_there[block.places] = True
        values[block.places] = block.keys
    wrong = [np.zeros(0, np.int64)]
    first = 0
    for some, batch in scan(narrowed(dataset, rows), [column.name]):
        at = places[first : first + len(some)]
        first += len(some)
        found = sort_keys(batch[column.name])
        differs = found.present != is_there[at]
        if (found.keys.dtype.kind == "S") == (values.dtype.kind == "S"):
            differs[found.present] |= found.keys != values[at[found.present]]
        else:
            differs |= found.present
        if keys is not None and keys.is_whole and not found.is_whole:
            differs[found.present] = True
        wrong.append(some[differs])
    return np.concatenate(wrong)
