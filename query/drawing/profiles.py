"""Profiles of columns: histograms, class counts and pictures, of a bounded read.

A column that decodes to few bytes is read whole; of others a few stretches of rows, evenly spread,
so that only some pages are fetched. A profile says how many rows it tells of.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import is_small_float
from tensorrepo.formats.dataset.read import StoredDataset, column_index
from tensorrepo.formats.dataset.schema.cells import cell_of, cell_text, has_pictures
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import (
    ClassLabel,
    ColumnLayout,
    Embedding,
    Scalar,
    Tensor,
    Text,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.tables import Thumbnail

READ_BYTES: Final = 8 << 20  # of a column, decoded
STRETCHES: Final = 4
BINS: Final = 24
MOST_CLASSES: Final = 20
MOST_PICTURES: Final = 24
_EXAMPLES: Final = 3


@dataclass(frozen=True, slots=True)
class ColumnProfile:
    """What values of a column are like.

    Attributes:
        column: the column.
        rows: rows that were looked at.
        nulls: nulls among them.
        counts: values in each bin of a histogram; empty: it has none.
        edges: bounds of the bins, one more than there are bins; of bins that hold one whole number
            each these numbers.
        classes: class names, or values, and how often each is there, the most frequent first.
        more_classes: classes that `classes` leaves out.
        examples: a few values, as text.
    """

    column: Column
    rows: int
    nulls: int = 0
    counts: tuple[int, ...] = ()
    edges: tuple[float, ...] = ()
    classes: tuple[tuple[str, int], ...] = ()
    more_classes: int = 0
    examples: tuple[str, ...] = ()


def profile(dataset: StoredDataset, column: Column) -> ColumnProfile:
    """Read a bounded part of a column, and say what is in it.

    Raises:
        Error: the values cannot be read.
    """
    kind, storage = column.type, column.storage
    if storage.layout is ColumnLayout.TILED or not len(dataset):
        return ColumnProfile(column, 0)
    if isinstance(kind, Scalar | ClassLabel):
        values, nulls = _numbers(dataset, column)
        rows = len(values) + nulls
        if isinstance(kind, ClassLabel):
            return _classes(column, values, rows, nulls)
        return _histogram(column, values, rows, nulls)
    if isinstance(kind, Tensor | Embedding):
        return _histogram(column, *_elements(dataset, column))
    if isinstance(kind, Text):
        fit = min(_EXAMPLES, int(READ_BYTES / _row_bytes(dataset, column)))
        few = list(_some(dataset, column, fit))
        shown = tuple(cell_text(kind, value) for value in few)
        return ColumnProfile(column, len(few), examples=shown)
    return ColumnProfile(column, 0)


def pictures(dataset: StoredDataset, column: Column, label: Column | None) -> Iterator[Thumbnail]:
    """Thumbnails of some rows, evenly spread; their words are the class, where there is one."""
    if not has_pictures(column.type) or not len(dataset):
        return
    count = min(len(dataset), MOST_PICTURES, int(READ_BYTES / _row_bytes(dataset, column)))
    rows = np.linspace(0, len(dataset) - 1, count).astype(np.int64)
    classes = None if label is None else dataset[label.name][rows]
    for at, row in enumerate(rows.tolist()):
        cell = cell_of(column.type, dataset[column.name][row])  # one at a time: pictures are large
        words = f"row {row:,}"
        if label is not None and classes is not None:
            words = cell_text(label.type, _item(classes, at))
        if isinstance(cell, Thumbnail):
            yield Thumbnail(words, cell.make)


def _item(values: Any, at: int) -> Any:
    value = values[at]
    return None if value is np.ma.masked else value


def _row_bytes(dataset: StoredDataset, column: Column) -> float:
    """Bytes of a decoded row, in the mean."""
    index = column_index(dataset, column.name)
    total = int(index.entries["raw_bytes"].astype(np.int64).sum())
    return max(total / max(dataset.root.rows, 1), 1.0)


def _stretches(dataset: StoredDataset, column: Column) -> Iterator[slice]:
    """Rows to read: all, or a few runs of them."""
    rows = len(dataset)
    room = int(READ_BYTES / max(_row_bytes(dataset, column), 8.0))
    if rows <= room:
        yield slice(0, rows)
        return
    each = max(room // STRETCHES, 1)
    for start in np.linspace(0, rows - each, STRETCHES).astype(np.int64).tolist():
        yield slice(start, start + each)


def _numbers(dataset: StoredDataset, column: Column) -> tuple[NDArray[Any], int]:
    """Values that are not null, of some rows; and how many nulls those rows have."""
    parts: list[NDArray[Any]] = []
    nulls = 0
    for rows in _stretches(dataset, column):
        values: Any = dataset[column.name][rows]
        if isinstance(values, np.ma.MaskedArray):
            nulls += int(np.count_nonzero(np.ma.getmaskarray(values)))
            values = values.compressed()
        array = np.asarray(values)
        parts.append(array.astype(np.float32) if is_small_float(array.dtype) else array)
    return np.concatenate(parts), nulls


def _elements(dataset: StoredDataset, column: Column) -> tuple[NDArray[Any], int, int]:
    """Numbers of the tensors of some rows, how many rows those are, and how many of them null."""
    parts: list[NDArray[Any]] = []
    rows = nulls = 0
    for stretch in _stretches(dataset, column):
        values: Any = dataset[column.name][stretch]
        rows += len(values)
        if isinstance(values, np.ma.MaskedArray):
            mask = np.ma.getmaskarray(values).reshape(len(values), -1)
            nulls += int(np.count_nonzero(mask[:, :1]))
            values = [values.compressed()]
        tensors = [values] if isinstance(values, np.ndarray) and values.dtype != object else values
        known = [np.ravel(one) for one in tensors if one is not None]
        nulls += sum(one is None for one in tensors)
        parts += [one.astype(np.float32) if is_small_float(one.dtype) else one for one in known]
    return np.concatenate(parts or [np.empty(0, np.float32)]), rows, nulls


def _some(dataset: StoredDataset, column: Column, count: int) -> Iterator[Any]:
    for row in np.unique(np.linspace(0, len(dataset) - 1, count).astype(np.int64)).tolist():
        yield dataset[column.name][row]


def _histogram(column: Column, values: NDArray[Any], rows: int, nulls: int) -> ColumnProfile:
    if values.dtype.kind == "b":
        counts = [("true", int(values.sum())), ("false", int(len(values) - values.sum()))]
        return ColumnProfile(column, rows, nulls, classes=tuple(counts))
    if values.dtype.kind not in "iuf":
        return ColumnProfile(column, rows, nulls)
    with np.errstate(over="ignore", invalid="ignore"):
        numbers = values.astype(np.float64)
    numbers = numbers[np.isfinite(numbers)]
    if not len(numbers):
        return ColumnProfile(column, rows, nulls)
    low, high = float(numbers.min()), float(numbers.max())
    if low == high or not np.isfinite(high - low):
        return ColumnProfile(column, rows, nulls, (len(numbers),), (low, high))
    # Whole numbers of a small range have a bin each, so that none falls between two.
    whole = values.dtype.kind in "iu" and high - low < BINS
    bins: Any = np.arange(low, high + 2) - 0.5 if whole else BINS
    counts_of, edges = np.histogram(numbers, bins)
    if whole:
        edges = np.arange(low, high + 1)
    return ColumnProfile(column, rows, nulls, tuple(counts_of.tolist()), tuple(edges.tolist()))


def _classes(column: Column, values: NDArray[Any], rows: int, nulls: int) -> ColumnProfile:
    assert isinstance(column.type, ClassLabel)
    names: Sequence[str] = column.type.names
    counts = np.bincount(values.astype(np.int64), minlength=len(names))
    order = np.argsort(-counts, kind="stable")
    shown = [(names[at], int(counts[at])) for at in order[:MOST_CLASSES].tolist()]
    more = max(len(names) - MOST_CLASSES, 0)
    return ColumnProfile(column, rows, nulls, classes=tuple(shown), more_classes=more)
