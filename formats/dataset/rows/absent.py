"""How much memory would rows take that no page holds?

A dataset of a kilobyte may say that it has 2^32 rows which all have a default. What is stored
bounds what any other rows take; of these only a limit does.

Source:
    docs/spec/dataset.md, section "Limits".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.tree.index import ColumnIndex

ABSENT_BYTES = 1 << 30


def check_absent(
    columns: Mapping[str, ColumnIndex],
    rows: range | NDArray[np.int64],
    *,
    limit_bytes: int = ABSENT_BYTES,
) -> None:
    """Refuse to make more rows of defaults at once than `limit_bytes` hold.

    Args:
        columns: that are read, by name.
        rows: physical rows that are read of each.
        limit_bytes: of all columns together.

    Raises:
        InvalidInputError: names the column that takes most, and says what to do.
    """
    if sum(len(rows) * _row_bytes(index) for index in columns.values()) <= limit_bytes:
        return
    found = {name: _absent_rows(index, rows) for name, index in columns.items()}
    sizes = {name: count * _row_bytes(columns[name]) for name, count in found.items()}
    if sum(sizes.values()) <= limit_bytes:
        return
    name = max(sizes, key=lambda each: sizes[each])
    raise InvalidInputError(
        f"column {name!r} stores no values for {found[name]:,} of these {len(rows):,} rows: their "
        f"defaults or nulls take {sizes[name]:,} bytes, {sum(sizes.values()):,} in all columns, "
        f"and {limit_bytes:,} are made at once. Read fewer rows, ds[a:b], or columns, or batches: "
        "to_batches(), stream()."
    )


def _row_bytes(index: ColumnIndex) -> int:
    """What a row takes that has no page, its null flag too; 0 where every row has a page."""
    return 0 if index.default is None else index.default.nbytes + 1


def _absent_rows(index: ColumnIndex, rows: range | NDArray[np.int64]) -> int:
    """How many of `rows` no page holds; of a range with steps no fewer."""
    if index.default is None or not len(rows):
        return 0
    absent = np.array([chunk is None for chunk in index.chunks], np.bool_)[index.chunk]
    if not isinstance(rows, range):
        return int(np.count_nonzero(absent[index.page_of(rows)]))
    low, high = min(rows[0], rows[-1]), max(rows[0], rows[-1]) + 1
    inside = np.diff(np.clip(index.first_row, low, high))
    return min(len(rows), int(inside[absent].sum()))
