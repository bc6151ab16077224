"""Page pruning: rows for which a predicate cannot be true, by the bounds in page indexes.

Every page of numbers carries its smallest and largest value, how many rows are null, and whether
some are NaN. For each part of a predicate that tells which outcomes are possible on the rows of a
page: true, false, null. Outcomes of parts are combined as Arrow combines values, for all pages at
once; where "true" is not among them, no page need be read. What is not understood may be anything.

Of text and bytes a page index keeps the first 32 bytes of the smallest and the largest value, which
bound it all the same.
"""

from __future__ import annotations

import decimal
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.dtypes import Bools, Ints, is_float
from tensorrepo.formats.dataset.metadata.index import ColumnIndex
from tensorrepo.formats.dataset.pages.page import HAS_NAN, HAS_RANGE
from tensorrepo.formats.dataset.pages.text_bounds import low_and_high, successor, text_bounds
from tensorrepo.formats.dataset.schema.arrow_forms import is_bytes, is_text
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import (
    Bytes,
    ClassLabel,
    ColumnLayout,
    Date,
    Decimal,
    Duration,
    Scalar,
    Text,
    Time,
    Timestamp,
)
from tensorrepo.formats.dataset.schema.values import BinaryValues
from tensorrepo.formats.dataset.selecting.expression import (
    ArrowCall,
    ColumnRef,
    ExpressionNode,
    Literal,
    expression_tree,
    field_names,
)
from tensorrepo.repo.deferred_dataclass import dataclass

_SIGN = np.uint64(1 << 63)
EXACT_FLOAT = 1 << 53  # whole numbers up to it are floats of 64 bits
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}
MIRRORED = {
    "less": "greater", "less_equal": "greater_equal", "greater": "less",
    "greater_equal": "less_equal", "equal": "equal", "not_equal": "not_equal",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class PageBounds:
    """What is known of each of n runs of rows of one column.

    Attributes:
        low: numbers or bytes ``(n,)``: no value but NaN is smaller. Nothing where not `bounded`.
        high: likewise the largest.
        bounded: whether `low` and `high` hold.
        has_value: whether some row may hold a value that is no NaN.
        has_null: whether some row may be null.
        has_nan: whether some row may be NaN.
    """

    low: NDArray[Any]
    high: NDArray[Any]
    bounded: Bools
    has_value: Bools
    has_null: Bools
    has_nan: Bools


@dataclass(frozen=True, slots=True, eq=False)
class Outcomes:
    """Which values a predicate may have on each of n runs of rows: a superset."""

    true: Bools
    false: Bools
    null: Bools


def rows_that_may_match(
    expression: pc.Expression,
    columns: Mapping[str, Column],
    index_of: Callable[[str], ColumnIndex],
    rows: int,
) -> Ints:
    """Physical rows outside of which `expression` is true for none.

    `rows` counts deleted ones, too.

    Returns:
        int64 ``(n, 2)``: ranges ``[start, stop)``, ascending, with gaps between them.
    """
    tree = expression_tree(expression)
    names = sorted(columns.keys() & (field_names(tree) or ()))
    if not names or not rows:
        return np.array([[0, rows]] if rows else np.zeros((0, 2)), np.int64)
    indexes = {name: index_of(name) for name in names}
    starts = np.unique(np.concatenate([[0], *(each.first_row[:-1] for each in indexes.values())]))
    outcomes = _Evaluation(
        {
            name: _on_runs(page_bounds(columns[name], index), index, starts)
            for name, index in indexes.items()
        },
        columns,
        len(starts),
    ).of(tree)
    return _ranges(starts, rows, outcomes.true)


def _ranges(starts: Ints, rows: int, wanted: Bools) -> Ints:
    """Runs that are wanted, neighbours joined."""
    steps = np.diff(np.concatenate([[0], wanted.astype(np.int8), [0]]))
    ends = np.append(starts, rows)
    return np.stack([ends[steps == 1], ends[steps == -1]], axis=1).astype(np.int64)


# ------------------------------------------------------------------------------ bounds


def page_bounds(column: Column, index: ColumnIndex) -> PageBounds:
    """What the page entries of a column, and its patches, say about each page."""
    bounds = _entry_bounds(column, index)
    if index.default is not None:
        bounds = _with_default(column, index, bounds)
    if index.patches is None:
        return bounds
    return _with_patches(bounds, _entry_bounds(column, index.patches.pages), index)


def _entry_bounds(column: Column, index: ColumnIndex) -> PageBounds:
    entries = index.entries
    nulls = entries["nulls"].astype(np.int64)
    some = nulls < entries["rows"]
    if has_text_bounds(column):
        low, high, bounded = low_and_high(index.bounds)
        return PageBounds(low, high, bounded, some, nulls > 0, np.zeros(len(entries), np.bool_))
    if not has_bounds(column):
        none = np.zeros(len(entries), np.float64)
        return PageBounds(none, none, ~some, some, nulls > 0, some)
    known = (entries["flags"] & HAS_RANGE) > 0
    has_nan = (entries["flags"] & HAS_NAN) > 0
    low, high = _values(index, "min"), _values(index, "max")
    # All of a page without a range are null or NaN, if it says so; else nothing is known.
    silent = some & ~known & ~has_nan
    return PageBounds(
        low, high, known | ~silent, some & (known | silent), nulls > 0, has_nan | silent
    )


_COUNTED = Date | Time | Duration | Decimal


def has_text_bounds(column: Column) -> bool:
    """Whether rows are compared as bytes of any number."""
    is_bytes = isinstance(column.type, Text | Bytes)
    return is_bytes and column.storage.layout is ColumnLayout.BINARY


def has_bounds(column: Column) -> bool:
    """Whether pages of a column carry their smallest and largest value."""
    if has_text_bounds(column):
        return True
    kind = column.type
    is_scalar = isinstance(kind, Scalar | ClassLabel | Timestamp | _COUNTED)
    return is_scalar and not column.storage.shape and column.storage.element.kind != "c"


def _values(index: ColumnIndex, field: str) -> NDArray[Any]:
    """Order keys of one field as numbers of the schema's kind: float64, int64 or uint64."""
    keys = index.entries[field].astype(np.uint64)
    parts = [numbers_of_keys(keys, stored.element) for stored in index.storages]
    if len(parts) == 1:
        return parts[0]
    target = numbers_of_keys(keys[:0], index.storage.element).dtype
    found = np.zeros(len(keys), target)
    for place, part in enumerate(parts):
        here = index.stored_as == place
        found[here] = part[here].astype(target)
    return found


def numbers_of_keys(keys: NDArray[np.uint64], element: np.dtype[Any]) -> NDArray[Any]:
    """The numbers whose order keys these are: float64, int64 or uint64, as the element's kind."""
    if is_float(element):
        negative = (keys & _SIGN) == 0
        return np.where(negative, ~keys, keys ^ _SIGN).view(np.float64)
    return (keys ^ _SIGN).view(np.int64) if element.kind == "i" else keys


def _with_default(column: Column, index: ColumnIndex, bounds: PageBounds) -> PageBounds:
    """Runs of rows that have no page hold one value."""
    absent = index.is_absent
    default: Any = index.default
    is_null = default.valid is not None and not default.valid[0]
    if is_null or not has_bounds(column):
        return PageBounds(
            bounds.low, bounds.high, bounds.bounded,
            np.where(absent, not is_null, bounds.has_value),
            np.where(absent, is_null, bounds.has_null),
            np.where(absent, not is_null and not has_bounds(column), bounds.has_nan),
        )  # fmt: skip
    is_nan, is_bounded = False, True
    if isinstance(default, BinaryValues):
        low, high, known = low_and_high(text_bounds(default).reshape(1))
        is_bounded = bool(known[0])
    else:
        low = high = default.values[0].astype(bounds.low.dtype)
        is_nan = bool(low != low)  # noqa: PLR0124 - NaN alone differs from itself
    return PageBounds(
        np.where(absent, low, bounds.low),
        np.where(absent, high, bounds.high),
        np.where(absent, is_bounded, bounds.bounded),
        np.where(absent, not is_nan, bounds.has_value),
        np.where(absent, False, bounds.has_null),
        np.where(absent, is_nan, bounds.has_nan),
    )


def _with_patches(bounds: PageBounds, patches: PageBounds, index: ColumnIndex) -> PageBounds:
    """Bounds of pages widened by those of the patches that lie over them."""
    assert index.patches is not None, "the caller looked"
    pages = index.page_of(index.patches.rows)
    source = index.patches.pages.page_of(index.patches.source)
    pairs = np.unique(np.stack([pages, source]), axis=1)
    page, patch = pairs[0], pairs[1]
    # Values count where there are any: an empty side must not widen the other.
    low, high = bounds.low.copy(), bounds.high.copy()
    fresh = ~bounds.has_value[page] & patches.has_value[patch]
    low[page[fresh]], high[page[fresh]] = patches.low[patch[fresh]], patches.high[patch[fresh]]
    held = patches.has_value[patch]
    low = _extremes(np.minimum, low, page[held], patches.low[patch[held]])
    high = _extremes(np.maximum, high, page[held], patches.high[patch[held]])
    bounded = bounds.bounded.copy()
    np.logical_and.at(bounded, page, patches.bounded[patch])
    flags = []
    for name in ("has_value", "has_null", "has_nan"):
        flag = getattr(bounds, name).copy()
        np.logical_or.at(flag, page, getattr(patches, name)[patch])
        flags.append(flag)
    return PageBounds(low, high, bounded, *flags)


def _extremes(
    extreme: np.ufunc, values: NDArray[Any], at: Ints, others: NDArray[Any]
) -> NDArray[Any]:
    """The smaller, or larger, of `values` and of all `others` that are for the same place.

    Numbers are changed in place.
    """
    if values.dtype.kind != "S":
        extreme.at(values, at, others)
        return values
    # numpy has no smaller of two texts, but an order of many.
    ranked, rank = np.unique(np.concatenate([values, others]), return_inverse=True)
    found = rank[: len(values)]
    extreme.at(found, at, rank[len(values) :])
    return ranked[found]


def _on_runs(bounds: PageBounds, index: ColumnIndex, starts: Ints) -> PageBounds:
    """Bounds of runs that begin at `starts`, each inside one page."""
    pages = index.page_of(starts)
    return PageBounds(*(getattr(bounds, name)[pages] for name in PageBounds.__slots__))


# ------------------------------------------------------------------------------ outcomes


class _Evaluation:
    """Outcomes of the parts of a predicate on `runs` runs of rows."""

    def __init__(
        self, bounds: Mapping[str, PageBounds], columns: Mapping[str, Column], runs: int
    ) -> None:
        self._bounds = bounds
        self._columns = columns
        self._runs = runs

    def of(self, node: ExpressionNode) -> Outcomes:
        match node:
            case Literal(value):
                return self._constant(value.as_py())
            case ArrowCall(arguments=arguments) if any(map(self._is_elsewhere, arguments)):
                return self._anything()
            case ColumnRef(name) if name in self._bounds:
                return self._compared("equal", name, pa.scalar(True))
            case ArrowCall(function=name, arguments=arguments) if name in _COMBINED:
                return _COMBINED[name](*map(self.of, arguments))
            case ArrowCall(function=name, arguments=(ColumnRef(column),), options=options):
                return self._unary(name, column, options)
            case ArrowCall(function=name, arguments=(ColumnRef(column), Literal(value))):
                return self._compared(name, column, value)
            case ArrowCall(function=name, arguments=(Literal(value), ColumnRef(column))):
                return self._compared(MIRRORED.get(name, ""), column, value)
        return self._anything()

    def _is_elsewhere(self, node: ExpressionNode) -> bool:
        return isinstance(node, ColumnRef) and node.name not in self._bounds

    def _anything(self) -> Outcomes:
        maybe = np.ones(self._runs, np.bool_)
        return Outcomes(maybe, maybe, maybe)

    def _constant(self, value: Any) -> Outcomes:
        if value is not None and not isinstance(value, bool):
            return self._anything()
        return Outcomes(
            *(np.full(self._runs, value is outcome, np.bool_) for outcome in (True, False, None))
        )

    def _unary(self, function: str, name: str, options: Mapping[str, Any]) -> Outcomes:
        bounds, never = self._bounds[name], np.zeros(self._runs, np.bool_)
        if function == "is_null":
            nan_too = "nan_is_null" not in options or options["nan_is_null"].as_py()
            null = bounds.has_null | bounds.has_nan if nan_too else bounds.has_null
            return Outcomes(null, bounds.has_value | bounds.has_nan, never)
        if function == "is_valid":
            return Outcomes(bounds.has_value | bounds.has_nan, bounds.has_null, never)
        if function == "is_nan":
            return Outcomes(bounds.has_nan, bounds.has_value, bounds.has_null)
        if function == "is_in":
            return self._among(name, options.get("value_set"))
        if function in OF_PREFIXES and has_text_bounds(self._columns[name]):
            return self._prefixed(name, OF_PREFIXES[function](options))
        return self._anything()

    def _among(self, name: str, values: pa.ListScalar | None) -> Outcomes:
        """`is_in`: maybe true where one of its values lies between `low` and `high`."""
        if values is None or values.values is None or not has_bounds(self._columns[name]):
            return self._anything()
        bounds, cast = self._bounds[name], as_looked_up(self._columns[name], values.values)
        if cast is None:
            return self._anything()
        found = [number_of_literal(self._columns[name], each) for each in cast if each.is_valid]
        if None in found:
            return self._anything()  # some of them are not compared so
        try:
            kind: Any = "S" if has_text_bounds(self._columns[name]) else bounds.low.dtype
            wanted = np.array(sorted(found), kind)  # texts as long as they are
        except (OverflowError, ValueError, TypeError):
            return self._anything()  # not all of them are of one kind
        hit = np.searchsorted(wanted, bounds.low) < np.searchsorted(wanted, bounds.high, "right")
        maybe = np.ones(self._runs, np.bool_)
        some = bounds.has_value & (hit | ~bounds.bounded)
        return Outcomes(some | (bounds.has_null & (values.values.null_count > 0)), maybe, maybe)

    def _prefixed(self, name: str, prefix: bytes) -> Outcomes:
        """Whether text begins so: it may where it lies between the prefix and its successor."""
        bounds, after = self._bounds[name], successor(prefix)
        if not prefix or b"\0" in prefix:
            return self._anything()
        may = bounds.high >= prefix
        if after:
            may &= bounds.low < after
        true = bounds.has_value & (may | ~bounds.bounded)
        return Outcomes(true, bounds.has_value, bounds.has_null)

    def _compared(self, function: str, name: str, value: pa.Scalar) -> Outcomes:
        bounds = self._bounds[name]
        number = number_of_literal(self._columns[name], value)
        if number is None or function not in _COMPARED or not has_bounds(self._columns[name]):
            return self._anything()
        if is_class_name(self._columns[name], value) and function not in _OF_NAMES:
            return self._anything()  # classes are numbered in their order, not that of their names
        may, may_not = _COMPARED[function](bounds.low, bounds.high, number)
        unsure = ~bounds.bounded
        true, false = bounds.has_value & (may | unsure), bounds.has_value & (may_not | unsure)
        if function == "not_equal":
            return Outcomes(true | bounds.has_nan, false, bounds.has_null)
        return Outcomes(true, false | bounds.has_nan, bounds.has_null)


def as_looked_up(column: Column, values: pa.Array) -> pa.Array | None:
    """Values of an `is_in` as Arrow looks them up in a column of numbers: cast to its type.

    A comparison widens the column instead: 0.1 equals no float32, and is in a column that holds the
    float32 next to it. None: what they are looked up as is not known.
    """
    element, is_class = column.storage.element, isinstance(column.type, ClassLabel)
    if not is_class and not isinstance(column.type, Scalar):
        return values
    is_small = is_float(element) and element.itemsize < 4  # compared as float32
    try:
        cast = values.cast(pa.float32() if is_small else pa.from_numpy_dtype(element))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return values if is_class else None  # names of classes, in SQL
    # The text "1" is the number 1 to Arrow, and to SQL the class that is called so.
    return None if is_class and is_text(values.type) and len(values) else cast


def number_of_literal(column: Column, value: pa.Scalar) -> Any:
    """A literal as bounds of a column count it; None: it is not compared so.

    Of text and bytes it is bytes; of moments, dates, decimals and classes a whole number.
    """
    kind, element = column.type, column.storage.element
    if has_text_bounds(column):
        return _letters(kind, value)
    if isinstance(kind, Timestamp) or pa.types.is_timestamp(value.type):
        return _moment(kind, value)
    if isinstance(kind, _COUNTED):
        return _count(kind, value)
    number = value.as_py()
    if isinstance(kind, ClassLabel) and isinstance(number, str):
        # What no class is called is no row's: neither is the number behind the last.
        return kind.names.index(number) if number in kind.names else len(kind.names)
    if isinstance(number, bool):
        return int(number) if element.kind == "b" else None
    if isinstance(number, int):
        # Arrow compares whole numbers with floats as floats.
        return float(number) if is_float(element) else number
    if not isinstance(number, float) or number != number:  # noqa: PLR0124 - NaN alone differs
        return None
    # numpy rounds whole numbers to floats: beyond 2^53 others come to equal it.
    return number if is_float(element) or abs(number) < EXACT_FLOAT else None


def is_class_name(column: Column, value: pa.Scalar) -> bool:
    """Whether a literal is the name of a class, where the column has numbers."""
    return isinstance(column.type, ClassLabel) and bool(is_text(value.type))


def _letters(kind: Any, value: pa.Scalar) -> bytes | None:
    """A literal as the bytes of text; None where zeros would be lost from its end."""
    if not value.is_valid or not (is_text if isinstance(kind, Text) else is_bytes)(value.type):
        return None
    letters: bytes = value.as_buffer().to_pybytes()
    return None if b"\0" in letters else letters


def _moment(kind: Any, value: pa.Scalar) -> int | None:
    if not (isinstance(kind, Timestamp) and pa.types.is_timestamp(value.type) and value.is_valid):
        return None
    if (kind.zone is None) != (value.type.tz is None):
        return None
    nanoseconds = value.value * _NANOSECONDS[value.type.unit]
    whole, rest = divmod(nanoseconds, _NANOSECONDS[kind.unit])
    return None if rest else whole


def _count(kind: Date | Time | Duration | Decimal, value: pa.Scalar) -> int | None:
    """A literal in whole units of a column; None: there is none, or it is of another kind."""
    types, given = pa.types, value.type
    if not value.is_valid:
        return None
    if isinstance(kind, Decimal):
        is_exact = types.is_decimal(given) or types.is_integer(given)
        return _scaled(value.as_py(), kind.scale) if is_exact else None
    if isinstance(kind, Date):
        return int(value.value) if types.is_date32(given) else None
    if not (types.is_duration if isinstance(kind, Duration) else types.is_time)(given):
        return None
    whole, rest = divmod(value.value * _NANOSECONDS[given.unit], _NANOSECONDS[kind.unit])
    return None if rest else whole


def _scaled(number: int | decimal.Decimal, scale: int) -> int | None:
    numerator, denominator = number.as_integer_ratio()
    whole, rest = divmod(numerator * 10**scale, denominator)
    return whole if not rest and abs(whole) < 1 << 63 else None


def _less(low: Any, high: Any, value: Any) -> tuple[Bools, Bools]:
    return low < value, high >= value


def _greater(low: Any, high: Any, value: Any) -> tuple[Bools, Bools]:
    return high > value, low <= value


def _equal(low: Any, high: Any, value: Any) -> tuple[Bools, Bools]:
    return (low <= value) & (value <= high), (low != value) | (high != value)


# Of a comparison of values in [low, high] with one value: whether it may be true, and may be false.
_COMPARED: dict[str, Callable[[Any, Any, Any], tuple[Bools, Bools]]] = {
    "less": _less,
    "greater": _greater,
    "equal": _equal,
    "not_equal": lambda low, high, value: _equal(low, high, value)[::-1],
    "less_equal": lambda low, high, value: _greater(low, high, value)[::-1],
    "greater_equal": lambda low, high, value: _less(low, high, value)[::-1],
}


_OF_NAMES = ("equal", "not_equal")


def _like_prefix(options: Mapping[str, Any]) -> bytes:
    """The letters that whatever fits a LIKE pattern begins with."""
    if options["ignore_case"].as_py():
        return b""
    pattern: str = _text_option(options)
    return b"" if "\\" in pattern else re.split("[%_]", pattern, maxsplit=1)[0].encode()


def _text_option(options: Mapping[str, Any]) -> str:
    pattern = options["pattern"].as_py()
    return pattern.decode() if isinstance(pattern, bytes) else pattern


# What a text begins with for which a function of Arrow's is true.
OF_PREFIXES: dict[str, Callable[[Mapping[str, Any]], bytes]] = {
    "match_like": _like_prefix,
    "starts_with": lambda options: (
        b"" if options["ignore_case"].as_py() else _text_option(options).encode()
    ),
}


def _and(one: Outcomes, two: Outcomes) -> Outcomes:
    null = (one.null & (two.true | two.null)) | (two.null & (one.true | one.null))
    return Outcomes(one.true & two.true, one.false | two.false, null)


def _not(one: Outcomes) -> Outcomes:
    return Outcomes(one.false, one.true, one.null)


def _if_else(which: Outcomes, one: Outcomes, two: Outcomes) -> Outcomes:
    return Outcomes(
        (which.true & one.true) | (which.false & two.true),
        (which.true & one.false) | (which.false & two.false),
        which.null | (which.true & one.null) | (which.false & two.null),
    )


_COMBINED: dict[str, Callable[..., Outcomes]] = {
    "and_kleene": _and,
    "or_kleene": lambda one, two: _not(_and(_not(one), _not(two))),
    "invert": _not,
    "if_else": _if_else,
}
