"""Conditions answered by indexes of sorted values: lookup of the rows for which one is true.

Comparisons of a column with a value, `in` and beginnings of text become intervals of sorted keys.
Those of one column are intersected, so that ``price >= 3 and price < 4`` is one; the most
selective of an `and` gives rows, of which the others leave some; those of an `or` are united. Where
that does not answer all of a condition, it is asked of the rows that remain, by their pages, and
always of the rows that an index does not know. So the answer is that of a scan, as long as the
index has the values of its dataset.

Nothing is answered where the rows are so many that a scan takes less, nor what no interval says:
`!=`, `not`, `is null`, arithmetic, comparisons of columns with one another.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.dtypes import Ints, is_float
from tensorrepo.formats.dataset.pages.text_bounds import successor
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, page_reader
from tensorrepo.formats.dataset.reading.row_read import read_columns
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import ClassLabel, Scalar
from tensorrepo.formats.dataset.selecting.expression import (
    ArrowCall,
    ColumnRef,
    ExpressionNode,
    Literal,
    expression_tree,
)
from tensorrepo.formats.dataset.selecting.pruning import (
    EXACT_FLOAT,
    MIRRORED,
    OF_PREFIXES,
    as_looked_up,
    has_bounds,
    has_text_bounds,
    is_class_name,
    number_of_literal,
)
from tensorrepo.formats.dataset.selecting.select_rows import (
    SCAN_ROWS,
    comparable,
    filtered,
    named_columns,
)
from tensorrepo.formats.search_index.opened_index import OpenedIndex
from tensorrepo.formats.search_index.sorted_values import KeySide, SortedSegment
from tensorrepo.repo.deferred_dataclass import dataclass

LEAST_ROWS: Final = 1 << 16  # of a dataset: fewer are scanned before an index has been opened
MOST_SHARE: Final = 0.1  # of the rows, that an index is asked for: beyond, a scan takes less
MOST_READ_SHARE: Final = 0.02  # likewise where pages are read of them
MOST_VALUES: Final = 10_000  # of an `in`
_MOST_PAIRS: Final = 1 << 16  # of intervals that are intersected
FindIndex: TypeAlias = Callable[[str], OpenedIndex | None]


def rows_by_indexes(
    dataset: StoredDataset,
    expression: pc.Expression,
    index_of: FindIndex,
    most: int | None = None,
) -> Ints | None:
    """Physical rows for which a condition is true, ascending; None where a scan has to answer.

    Args:
        dataset: rows that are asked, all or some of the version that the indexes are asked about.
        expression: the condition.
        index_of: gives the index of sorted values of a column, by its name; None: there is none.
        most: rows that the caller takes at most; None: all.
    """
    found = _plan(dataset, expression, index_of)
    if found is None:
        return None
    unknown = found.unknown
    read = len(unknown) + (0 if found.is_exact else found.count)
    share = MOST_SHARE * dataset.root.rows
    if most is not None:
        share = min(share, max(most, SCAN_ROWS))
    if read > MOST_READ_SHARE * dataset.root.rows or found.count > share:
        return None
    rows, unknown = (_live(dataset, each) for each in (found.rows(), unknown))
    if not found.is_exact:
        return _fulfilling(dataset, expression, np.union1d(rows, unknown))
    if not len(unknown):
        return rows
    rows = np.setdiff1d(rows, unknown, assume_unique=True)
    return np.union1d(rows, _fulfilling(dataset, expression, unknown))


def candidates_by_indexes(
    dataset: StoredDataset, expression: pc.Expression, index_of: FindIndex
) -> Ints | None:
    """Physical rows outside of which a condition is true for none; None where a scan has to look.

    As for `rows_by_indexes`. Whoever asks reads the pages of these rows, and may compare columns in
    another form, as SQL does names of classes.
    """
    found = _plan(dataset, expression, index_of)
    if found is None or found.count + len(found.unknown) > MOST_READ_SHARE * dataset.root.rows:
        return None
    return _live(dataset, np.union1d(found.rows(), found.unknown))


def _plan(
    dataset: StoredDataset, expression: pc.Expression, index_of: FindIndex
) -> ConditionPlan | None:
    if dataset.root.rows < LEAST_ROWS:
        return None
    return _Planning(dataset, index_of).of(expression_tree(expression))


def _live(dataset: StoredDataset, rows: Ints) -> Ints:
    return rows[live_rows(dataset).live(rows) >= 0]


def _fulfilling(dataset: StoredDataset, expression: pc.Expression, rows: Ints) -> Ints:
    """Those of some rows for which a condition is true; their pages are read."""
    columns = [dataset.schema.column(name) for name in named_columns(expression, dataset.schema)]
    readers = [page_reader(dataset, column.name) for column in columns]
    number = "#" * (1 + max(map(len, dataset.schema.names)))  # a name that no column has
    found = [np.zeros(0, np.int64)]
    for at in range(0, len(rows), SCAN_ROWS):
        some = rows[at : at + SCAN_ROWS]
        values = read_columns(readers, some)
        arrays = {
            column.name: comparable(column, each)
            for column, each in zip(columns, values, strict=True)
        }
        arrays[number] = pa.array(some)
        found.append(filtered(pa.table(arrays), expression)[number].to_numpy())
    return np.concatenate(found)


# ------------------------------------------------------------------------------ plans


class _Plan(ABC):
    """What all plans have."""

    __slots__ = ()

    @property
    @abstractmethod
    def indexes(self) -> tuple[OpenedIndex, ...]:
        """The indexes that are asked."""

    @property
    def unknown(self) -> Ints:
        """Physical rows that one of the indexes does not know, ascending."""
        every = [each.known.unknown for each in self.indexes]
        return np.unique(np.concatenate(every))


@dataclass(frozen=True, slots=True, eq=False)
class Intervals(_Plan):
    """Positions of keys of one index for which a comparison may be true.

    Attributes:
        opened: the index.
        spans: int64 ``(n, 2)`` for each segment with keys: positions ``[start, stop)``, ascending,
            none of them in two.
        is_exact: whether it is true of all of them.
    """

    opened: OpenedIndex
    spans: Mapping[int, Ints]
    is_exact: bool

    @property
    def indexes(self) -> tuple[OpenedIndex, ...]:
        return (self.opened,)

    @property
    def count(self) -> int:
        return int(sum((each[:, 1] - each[:, 0]).sum() for each in self.spans.values()))

    def rows(self) -> Ints:
        """Physical rows that the index knows, ascending."""
        found = [np.zeros(0, np.int64)]
        segments = self.opened.sorted_segments()
        for at, spans in self.spans.items():
            segment = segments[at]
            for start, stop in spans.tolist():
                rows = self.opened.known.rows(at, segment.places(start, stop))
                found.append(rows[rows >= 0])
        return np.unique(np.concatenate(found))

    def within(self, other: Intervals) -> Intervals | None:
        """Where both may be true, of one index; None: they are too many to be compared."""
        pairs = sum(len(each) * len(other.spans[at]) for at, each in self.spans.items())
        if pairs > _MOST_PAIRS:
            return None
        spans = {}
        for at, mine in self.spans.items():
            theirs = other.spans[at]
            low = np.maximum(mine[:, None, 0], theirs[None, :, 0]).reshape(-1)
            high = np.minimum(mine[:, None, 1], theirs[None, :, 1]).reshape(-1)
            spans[at] = np.stack([low, high], axis=1)[low < high]
        return Intervals(self.opened, spans, self.is_exact and other.is_exact)


@dataclass(frozen=True, slots=True, eq=False)
class AllOf(_Plan):
    """Rows of which all parts may be true; `parts` begin with the most selective."""

    parts: tuple[ConditionPlan, ...]
    is_exact: bool

    @property
    def indexes(self) -> tuple[OpenedIndex, ...]:
        return tuple(each for part in self.parts for each in part.indexes)

    @property
    def count(self) -> int:
        return self.parts[0].count

    def rows(self) -> Ints:
        """Physical rows, ascending."""
        found = self.parts[0].rows()
        for part in self.parts[1:]:
            found = np.intersect1d(found, part.rows(), assume_unique=True)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class AnyOf(_Plan):
    """Rows of which some part may be true."""

    parts: tuple[ConditionPlan, ...]

    @property
    def indexes(self) -> tuple[OpenedIndex, ...]:
        return tuple(each for part in self.parts for each in part.indexes)

    @property
    def is_exact(self) -> bool:
        return all(part.is_exact for part in self.parts)

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    def rows(self) -> Ints:
        """Physical rows, ascending."""
        return np.unique(np.concatenate([part.rows() for part in self.parts]))


ConditionPlan: TypeAlias = Intervals | AllOf | AnyOf


class _Planning:
    """Plans for the parts of a condition; None for what no index answers."""

    def __init__(self, dataset: StoredDataset, index_of: FindIndex) -> None:
        self._dataset = dataset
        self._index_of = functools.cache(index_of)

    def of(self, node: ExpressionNode) -> ConditionPlan | None:
        match node:
            case ArrowCall("and_kleene"):
                return self._all([*_joined(node, "and_kleene")])
            case ArrowCall("or_kleene"):
                parts = [self.of(each) for each in _joined(node, "or_kleene")]
                known = tuple(part for part in parts if part is not None)
                return AnyOf(known) if len(known) == len(parts) else None
            case ArrowCall("if_else", (ArrowCall("is_null", (tested,)), Literal(value), inner)):
                # What `in` is to SQL: of null it is not known.
                if not isinstance(inner, ArrowCall) or value.is_valid:
                    return None
                is_same = inner.function == "is_in" and inner.arguments == (tested,)
                return self.of(inner) if is_same else None
        return self._term(node)

    def _all(self, nodes: list[ExpressionNode]) -> ConditionPlan | None:
        parts: list[ConditionPlan] = []
        is_exact = True
        for node in nodes:
            part = self.of(node)
            if part is None:
                is_exact = False
            elif isinstance(part, Intervals):
                parts = _narrowed_by(parts, part)
            else:
                parts.append(part)
        if not parts:
            return None
        parts.sort(key=lambda part: part.count)
        # What is true of many rows takes longer to be listed than to be asked of a few.
        most = max(SCAN_ROWS, 8 * parts[0].count)
        asked = tuple(part for part in parts if part.count <= most)
        is_exact &= len(asked) == len(parts) and all(part.is_exact for part in asked)
        return AllOf(asked, is_exact)

    def _term(self, node: ExpressionNode) -> Intervals | None:
        match node:
            case ColumnRef(name):
                return self._compared("equal", name, pa.scalar(True))
            case ArrowCall("is_in", (ColumnRef(name),), options):
                return self._among(name, options.get("value_set"))
            case ArrowCall(function, (ColumnRef(name),), options) if function in OF_PREFIXES:
                return self._prefixed(name, function, options)
            case ArrowCall(function, (ColumnRef(name), Literal(value))):
                return self._compared(function, name, value)
            case ArrowCall(function, (Literal(value), ColumnRef(name))):
                return self._compared(MIRRORED.get(function, ""), name, value)
        return None

    def _column(self, name: str) -> Column | None:
        schema = self._dataset.schema
        column = schema.column(name) if name in schema else None
        return column if column is not None and has_bounds(column) else None

    def _compared(self, function: str, name: str, value: pa.Scalar) -> Intervals | None:
        column = self._column(name)
        if column is None or function not in _SIDES:
            return None
        if is_class_name(column, value) and function != "equal":
            return None  # classes are numbered in their order, not that of their names
        number = _number(column, value)
        if number is None or (opened := self._index_of(name)) is None:
            return None
        low, high = _SIDES[function]
        ranges = _KeyRanges([number] if low else None, low, [number] if high else None, high)
        return _intervals(opened, ranges)

    def _among(self, name: str, values: pa.ListScalar | None) -> Intervals | None:
        column = self._column(name)
        if column is None or values is None or values.values is None:
            return None
        given = as_looked_up(column, values.values)
        is_other = is_float(column.storage.element) or column.storage.element.kind == "b"
        if given is None or is_other or given.null_count or len(given) > MOST_VALUES:
            return None  # Arrow compares floats by their bits here, and null with null
        numbers = [_number(column, each) for each in given]
        if any(each is None for each in numbers) or not _fit(column, numbers):
            return None
        if (opened := self._index_of(name)) is None:
            return None
        wanted = sorted(set(numbers))
        return _intervals(opened, _KeyRanges(wanted, "left", wanted, "right"))

    def _prefixed(self, name: str, function: str, options: Mapping[str, Any]) -> Intervals | None:
        column = self._column(name)
        if column is None or not has_text_bounds(column):
            return None
        prefix = OF_PREFIXES[function](options)
        if not prefix or b"\0" in prefix or (opened := self._index_of(name)) is None:
            return None
        pattern = options["pattern"].as_py()
        letters = pattern.encode() if isinstance(pattern, str) else pattern
        is_exact = function == "starts_with" or letters == prefix + b"%"
        after = successor(prefix)
        ranges = _KeyRanges([prefix], "left", [after] if after else None, "left", is_prefix=True)
        return _intervals(opened, ranges, is_exact=is_exact)


# ------------------------------------------------------------------------------ keys

# Of a comparison with a value: on which side of keys that equal it the first one lies for which it
# is true, and where the last one ends; None: there is no such bound.
_SIDES: Final[dict[str, tuple[KeySide | None, KeySide | None]]] = {
    "equal": ("left", "right"),
    "less": (None, "left"),
    "less_equal": (None, "right"),
    "greater": ("right", None),
    "greater_equal": ("left", None),
}


@dataclass(frozen=True, slots=True, eq=False)
class _KeyRanges:
    """Ranges of values, ascending: the first and the last of each, and the sides of equal ones."""

    low: list[Any] | None
    low_side: KeySide | None
    high: list[Any] | None
    high_side: KeySide | None
    is_prefix: bool = False

    def of(self, keys: SortedSegment) -> tuple[Ints, bool]:
        """Positions int64 ``(n, 2)`` in a segment, and whether no value outside is among them."""
        ranges = self._cut(keys)
        starts = np.zeros(1, np.int64)
        stops = np.full(1, keys.values)
        if ranges.low is not None and ranges.low_side is not None:
            starts = keys.positions(ranges.low, ranges.low_side)
        if ranges.high is not None and ranges.high_side is not None:
            stops = keys.positions(ranges.high, ranges.high_side)
        spans = np.stack(np.broadcast_arrays(starts, stops), axis=1)
        if len(spans) > 1:
            spans = np.unique(spans, axis=0)
        return spans[spans[:, 0] < spans[:, 1]], ranges is self

    def _cut(self, keys: SortedSegment) -> _KeyRanges:
        """Ranges of beginnings where keys are no more than that, with whatever lies at the ends."""
        width = keys.key_dtype.itemsize
        if keys.key_dtype.kind != "S" or keys.is_whole:
            return self
        if self.is_prefix and self.low is not None and len(self.low[0]) <= width:
            return self
        low, high = (
            None if each is None else [value[:width] for value in each]
            for each in (self.low, self.high)
        )
        return _KeyRanges(low, "left", high, "right")


def _intervals(opened: OpenedIndex, ranges: _KeyRanges, *, is_exact: bool = True) -> Intervals:
    spans = {}
    for at, keys in opened.sorted_segments().items():
        spans[at], is_right = ranges.of(keys)
        is_exact = is_exact and is_right
    return Intervals(opened, spans, is_exact)


def _narrowed_by(parts: list[ConditionPlan], part: Intervals) -> list[ConditionPlan]:
    """`parts` and one more, intersected with that of the same index."""
    for at, each in enumerate(parts):
        if isinstance(each, Intervals) and each.opened is part.opened:
            both = each.within(part)
            return [*parts, part] if both is None else [*parts[:at], both, *parts[at + 1 :]]
    return [*parts, part]


def _joined(node: ArrowCall, function: str) -> Iterator[ExpressionNode]:
    """What is joined by a function, however it is nested."""
    waiting: list[ExpressionNode] = [node]
    while waiting:
        each = waiting.pop()
        if isinstance(each, ArrowCall) and each.function == function:
            waiting.extend(reversed(each.arguments))
        else:
            yield each


def _number(column: Column, value: pa.Scalar) -> Any:
    """A literal as keys of a column; None where Arrow compares it in another way than they are."""
    number = number_of_literal(column, value)
    if isinstance(number, bytes) or not isinstance(column.type, Scalar | ClassLabel):
        return number
    if is_float(column.storage.element):
        is_whole = pa.types.is_integer(value.type)
        return None if is_whole and abs(number) > EXACT_FLOAT else number
    return number if isinstance(number, int) else None


def _fit(column: Column, numbers: list[Any]) -> bool:
    """Whether numbers are of the type of a column, which Arrow casts them to."""
    if has_text_bounds(column) or not numbers:
        return True
    limits = np.iinfo(column.storage.element)
    return bool(limits.min <= min(numbers) and max(numbers) <= limits.max)
