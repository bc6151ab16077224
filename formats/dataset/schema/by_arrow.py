"""Coercion through Arrow: dates, times, durations, decimals and nested values.

Numpy has no such numbers, or several; Arrow has one of each and takes Python's own. Texts are taken
for what they say (ISO 8601, decimal digits), counts of another unit where nothing is lost.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time
from functools import cache
from itertools import chain
from typing import Any, Final, NoReturn, get_args

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.dataset.schema.arrow import from_arrow_array
from tensorrepo.formats.dataset.schema.arrow_losses import is_midnight, says_all
from tensorrepo.formats.dataset.schema.arrow_types import arrow_type
from tensorrepo.formats.dataset.schema.numpy_moments import whole_units
from tensorrepo.formats.dataset.schema.python_values import parse_duration
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import (
    ColumnType,
    Date,
    Decimal,
    Duration,
    List,
    Map,
    Nested,
    Null,
    Struct,
    Time,
    Timestamp,
)
from tensorrepo.formats.dataset.schema.values import ColumnValues, FixedValues
from tensorrepo.repo.errors import InvalidInputError

# Types whose Python values Arrow takes in.
BY_ARROW: Final = (Date, Time, Duration, Decimal, Null, *get_args(Nested))
_DAY_NS: Final = 86_400 * 10**9
_PER_SECOND: Final = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def coerce_by_arrow(column: Column, values: Any, first_row: int) -> ColumnValues:
    """Values of types that numpy does not hold as such, or not in any one way."""
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidInputError(
            f"column {column.name!r}: expected a sequence of rows, found {type(values).__name__}"
        )
    if isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "mM":
        found = _from_arrow(column, _clock_counts(column, values, first_row), first_row)
        if found is not None:
            return found
    rows = []
    for at, row in enumerate(_unmasked(values)):
        try:
            rows.append(_arrow_value(column.type, row))
        except TypeError:
            refuse_value(column, first_row + at, _wanted(column.type), shown_value(row))
    _check_keys(column, rows, first_row)
    if isinstance(column.type, Nested) and _holds_clock(column.type) and _holds_numpy(rows):
        rows = [_arrow_inside(column.type, row) for row in rows]
    found = _from_rows(column, rows, first_row)
    if found is None:  # all is looked at only where Arrow refuses some of it: pandas' NA is rare
        rows = [_arrow_inside(column.type, row) for row in rows]
        found = _from_rows(column, rows, first_row)
    return _one_by_one(column, rows, first_row) if found is None else found


def _from_rows(column: Column, rows: list[Any], first_row: int) -> ColumnValues | None:
    """The values of rows that Arrow takes together; None: it does not, or would take a part."""
    target = arrow_type(column.type)
    try:
        array = pa.array(rows, target)
        return _from_arrow(column, array, first_row) if says_all(rows, target) else None
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None


@cache
def _holds_clock(kind: ColumnType) -> bool:
    match kind:
        case Struct(fields=fields):
            return any(_holds_clock(each) for _, each in fields)
        case List(value=value):
            return _holds_clock(value)
        case Map(key=key, value=value):
            return _holds_clock(key) or _holds_clock(value)
    return isinstance(kind, Date | Time | Duration | Timestamp)


def _holds_numpy(values: list[Any]) -> bool:
    """Whether there are arrays, moments or durations of numpy in any depth of lists and dicts."""
    while values:
        kinds = set(map(type, values))
        if any(issubclass(kind, np.ndarray | np.datetime64 | np.timedelta64) for kind in kinds):
            return True
        if not any(issubclass(kind, list | tuple | dict) for kind in kinds):
            return False
        inside = (each for each in values if isinstance(each, list | tuple | dict))
        parts = (each.values() if isinstance(each, dict) else each for each in inside)
        values = list(chain.from_iterable(parts))
    return False


def _arrow_inside(kind: ColumnType, row: Any) -> Any:
    """A row whose moments and durations of numpy are counts of the type's own unit, with None in
    the place of pandas' NA and NaT.

    Of such an array inside a list Arrow takes bare counts, of whatever unit they are.
    """
    match kind:
        case List(value=value) if isinstance(row, list | tuple | np.ndarray):
            return [_arrow_inside(value, each) for each in _unmasked(row)]
        case Struct(fields=fields) if isinstance(row, Mapping):
            return {name: _arrow_inside(each, row.get(name)) for name, each in fields}
        case Map(key=key, value=value) if isinstance(row, list | tuple):
            return [(_arrow_inside(key, name), _arrow_inside(value, each)) for name, each in row]
        case Date() if isinstance(row, np.datetime64):
            return _whole_count(row, "D")
        case Timestamp(unit=unit) if isinstance(row, np.datetime64):
            return _whole_count(row, unit)
        case Time(unit=unit) | Duration(unit=unit) if isinstance(row, np.timedelta64):
            return _whole_count(row, unit)
    return None if is_pandas_null(row) else row


def _check_keys(column: Column, rows: list[Any], first_row: int) -> None:
    """See that no dict has a key that its struct has not: Arrow would leave it out unsaid."""
    if not _holds_struct(column.type):
        return
    for at, row in enumerate(rows):
        if (key := _strange_key(column.type, row)) is not None:
            found = f"the key {key!r:.60} in {shown_value(row)}"
            refuse_value(column, first_row + at, _wanted(column.type), found)


@cache
def _holds_struct(kind: ColumnType) -> bool:
    match kind:
        case Struct():
            return True
        case List(value=value):
            return _holds_struct(value)
        case Map(key=key, value=value):
            return _holds_struct(key) or _holds_struct(value)
    return False


@cache
def _names(kind: Struct) -> tuple[frozenset[str], tuple[tuple[str, ColumnType], ...]]:
    """Names of all fields, and those fields that hold structs."""
    inner = tuple((name, each) for name, each in kind.fields if _holds_struct(each))
    return frozenset(name for name, _ in kind.fields), inner


def _strange_key(kind: ColumnType, row: Any) -> Any:
    """A key in a value that the struct there has not; None if there is none."""
    inside: Iterable[tuple[ColumnType, Any]] = ()
    match kind:
        case Struct() if isinstance(row, Mapping):
            known, inner = _names(kind)
            if strange := row.keys() - known:
                return min(strange, key=str)
            inside = ((each, row.get(name)) for name, each in inner)
        case List(value=value) if isinstance(row, list | tuple | np.ndarray):
            inside = ((value, each) for each in row)
        case Map(key=key, value=value) if isinstance(row, list):
            inside = (pair for each in row for pair in zip((key, value), each, strict=False))
    found = (_strange_key(each, held) for each, held in inside if _holds_struct(each))
    return next((key for key in found if key is not None), None)


def _one_by_one(column: Column, rows: list[Any], first_row: int) -> ColumnValues:
    """Rows that Arrow does not take together, to name the first that it does not take as it is."""
    target = arrow_type(column.type)
    for at, row in enumerate(rows):
        try:
            pa.array([row], target)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            refuse_value(
                column, first_row + at, _wanted(column.type), f"{shown_value(row)} ({error})"
            )
        if not says_all([row], target):
            refuse_value(column, first_row + at, _wanted(column.type), shown_value(row))
    refuse_value(column, first_row, _wanted(column.type), "values of types that do not mix")


def _unmasked(values: Any) -> list[Any]:
    if isinstance(values, np.ma.MaskedArray) or (
        isinstance(values, np.ndarray) and values.dtype.kind in "mM"
    ):
        return [None if _is_missing(row) else row for row in values]
    return list(values)


def _is_missing(row: Any) -> bool:
    return row is np.ma.masked or (
        isinstance(row, np.datetime64 | np.timedelta64) and np.isnat(row)
    )


def _arrow_value(kind: ColumnType, row: Any) -> Any:  # noqa: PLR0911  one return for each kind
    """A row as Arrow takes it: texts as what they say, numpy's counts as whole ones."""
    match kind:
        case Date() | Time() | Decimal() | Duration() if isinstance(row, str):
            found = _parsed(_PARSERS[type(kind)], row)
            if isinstance(found, np.timedelta64) and isinstance(kind, Time | Duration):
                return _whole_count(found, kind.unit)
            return found
        case Date() | Duration() if is_pandas_null(row):
            return None
        case Date() if isinstance(row, datetime):
            return row.date() if is_midnight(row) else row.isoformat()
        case Date() if isinstance(row, np.datetime64):
            return _whole_count(row, "D")
        case Time() | Duration() if isinstance(row, np.timedelta64):
            return _whole_count(row, kind.unit)
        case Duration() if isinstance(row, pa.MonthDayNano) and not row.months:  # of SQL
            return _whole_count(
                np.timedelta64(row.days * _DAY_NS + row.nanoseconds, "ns"), kind.unit
            )
        case Decimal() if isinstance(row, int | np.integer) and not isinstance(row, bool):
            return decimal.Decimal(int(row))
        case Map() if isinstance(row, Mapping):
            return list(row.items())
        case Struct() | List() | Map() if isinstance(row, np.ndarray):
            return _unmasked(row) if row.dtype.kind in "mM" else row.tolist()
        case List() if isinstance(row, str | bytes):  # in which Arrow sees a list of letters
            raise TypeError("a list, not text")
    return row


def is_pandas_null(row: Any) -> bool:
    """Whether a value is what pandas has in place of one that is missing: NaT or NA."""
    return is_pandas_null_type(type(row))


def is_pandas_null_type(kind: type) -> bool:
    """Whether this is the type of NaT or NA; pandas need not be there."""
    return kind.__name__ in ("NaTType", "NAType")


def _parsed_time(text: str) -> time | np.timedelta64:
    """A time of day; of nanoseconds, which `time` has not, as a duration since midnight."""
    return parse_duration(text) if text.startswith("PT") else time.fromisoformat(text)


def _parsed(parse: Callable[[str], Any], text: str) -> Any:
    try:
        return parse(text)
    except (ValueError, ArithmeticError):
        return text  # which Arrow refuses, and the error shows


_PARSERS: Final[dict[type, Callable[[str], Any]]] = {
    Date: date.fromisoformat,
    Time: _parsed_time,
    Decimal: decimal.Decimal,
    Duration: parse_duration,
}


def _whole_count(row: np.datetime64 | np.timedelta64, unit: str) -> Any:
    if np.isnat(row):
        return None
    count = row.astype(f"{row.dtype.kind}8[{unit}]")
    # Cast back: compared as they are, both would be multiplied, and may wrap around.
    return int(count.astype(np.int64)) if count.astype(row.dtype) == row else str(row)


def _clock_counts(column: Column, values: NDArray[Any], first_row: int) -> pa.Array:
    """Numpy's moments and durations as Arrow's, of a unit that Arrow has."""
    plain = np.ma.filled(values, values.dtype.type("NaT"))
    try:
        return pa.array(whole_units(plain))
    except (InvalidInputError, pa.ArrowException, TypeError) as error:
        refuse_value(column, first_row, _wanted(column.type), f"{plain.dtype} ({error})")


def _from_arrow(column: Column, array: pa.Array, first_row: int) -> ColumnValues | None:
    if isinstance(column.type, Time) and pa.types.is_duration(array.type):
        array = array.cast(pa.duration(column.type.unit)).cast(pa.int64())
        array = array.cast(pa.int32()) if column.storage.dtype == "int32" else array
        array = array.view(arrow_type(column.type))
    found = from_arrow_array(column.type, array)
    return None if found is None else check_times(column, found, first_row)


def check_times(column: Column, values: ColumnValues, first_row: int) -> ColumnValues:
    if not isinstance(column.type, Time) or not isinstance(values, FixedValues):
        return values
    wrong = (values.values < 0) | (values.values >= 86_400 * _PER_SECOND[column.type.unit])
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        found = f"{values.values[row]} {column.type.unit} after midnight"
        refuse_value(column, first_row + row, "a time within the day", found)
    return values


def _wanted(kind: ColumnType) -> str:
    match kind:
        case Date():
            return "a date, such as 2026-01-31"
        case Time(unit=unit):
            return f"a time of day without a zone, such as 12:30:00, in whole {unit}"
        case Duration(unit=unit):
            return f"a duration in whole {unit}"
        case Decimal(precision=precision, scale=scale):
            return f"a decimal of {precision} digits, {scale} of them behind the point"
    return str(arrow_type(kind))


def shown_value(row: Any) -> str:
    return f"{type(row).__name__} {row!r:.60}" if not isinstance(row, date) else repr(row)


def refuse_value(column: Column, row: int, expected: str, found: str) -> NoReturn:
    raise InvalidInputError(
        f"row {row}, column {column.name!r}: expected {expected}, found {found:.120}"
    )
