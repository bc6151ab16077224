"""Values of Python of which Arrow would take a part, or take them for another kind, without a word.

Arrow makes a whole number of 1.5, text of bytes and bytes of text, a day of a moment, a time of day
of one with a zone, and cuts seconds, and the nanoseconds of pandas, off where a type counts in
something coarser; of numpy's counts of several units it takes each for one. Wherever Arrow converts
values of Python, alone or inside lists and dicts, it is asked here whether it says all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tensorrepo.formats.dataset.schema.arrow_forms import is_bytes, is_list, is_text

_NONE: Final = type(None)
_MICROSECONDS: Final = {"s": 10**6, "ms": 10**3}  # of a unit that is coarser


def says_all(values: Iterable[Any], kind: pa.DataType, *, inferred: bool = False) -> bool:
    """Whether Arrow's array of these values, which it does make, says all that each of them says.

    Args:
        values: objects of Python, None where null.
        kind: type of the array.
        inferred: whether the values alone tell the type: then a zone, or a time of day, that some
            have and others lack is lost too. Where the caller said the type he asked for that.
    """
    types = pa.types
    if not _may_lose(kind, inferred=inferred):
        return True
    if is_list(kind) or types.is_fixed_size_list(kind):
        return _lists_say_all(values, kind.value_type, inferred=inferred)
    if types.is_struct(kind):
        rows = [value for value in values if value is not None]
        fields = (kind.field(at) for at in range(kind.num_fields))
        return all(
            not _may_lose(each.type, inferred=inferred)
            or says_all([_field(row, each.name) for row in rows], each.type, inferred=inferred)
            for each in fields
        )
    if types.is_map(kind):
        pairs = [pair for value in values if value is not None for pair in _pairs(value)]
        keys, items = ([pair[at] for pair in pairs] for at in (0, 1))
        return says_all(keys, kind.key_type, inferred=inferred) and says_all(
            items, kind.item_type, inferred=inferred
        )
    given = values if isinstance(values, Sequence) else list(values)
    if types.is_floating(kind):
        return _rounds_all(given, kind)
    plain = _plain_types(kind, inferred=inferred)
    odd = {each for each in set(map(type, given)) if not _is_one(each, plain)}
    return not odd or all(
        _says(value, kind, inferred=inferred) for value in given if type(value) in odd
    )


# Of other types that hold no others Arrow itself refuses what they do not hold.
_LOSING: Final = (
    pa.types.is_integer, pa.types.is_float16, pa.types.is_float32, is_text, is_bytes,
    pa.types.is_date, pa.types.is_time, pa.types.is_timestamp, pa.types.is_duration,
)  # fmt: skip


@cache
def _may_lose(kind: pa.DataType, *, inferred: bool) -> bool:
    """Whether there are values of which an array of this type says a part."""
    if pa.types.is_nested(kind):
        inside = (kind.field(at).type for at in range(kind.num_fields))
        return any(_may_lose(each, inferred=inferred) for each in inside)
    return not (inferred and _is_number(kind)) and any(test(kind) for test in _LOSING)


def _lists_say_all(values: Iterable[Any], kind: pa.DataType, *, inferred: bool) -> bool:
    rows = [value for value in values if value is not None]
    if any(isinstance(row, np.ndarray) for row in rows):
        rows = [row for row in rows if not _is_exact_array(row, kind)]
    return says_all(list(chain.from_iterable(rows)), kind, inferred=inferred)


def _is_exact_array(row: Any, kind: pa.DataType) -> bool:
    """Whether these are numbers of numpy, every one of which the type holds."""
    numbers = isinstance(row, np.ndarray) and row.dtype.kind in "biuf"
    return (
        numbers
        and _is_number(kind)
        and bool(np.can_cast(row.dtype, kind.to_pandas_dtype(), "safe"))
    )


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _field(row: Any, name: str) -> Any:
    """A field of a struct, which Arrow takes as pairs, too."""
    return (row if isinstance(row, dict) else dict(row)).get(name)


def _pairs(value: Any) -> Iterable[Any]:
    return value.items() if isinstance(value, Mapping) else value


def _plain_types(kind: pa.DataType, *, inferred: bool) -> tuple[type, ...]:
    """Types of Python that are always said in full."""
    types = pa.types
    if types.is_integer(kind):
        return int, np.integer
    if is_text(kind):
        return (str,)
    if is_bytes(kind):
        return bytes, bytearray, memoryview
    if types.is_date(kind):
        return (date,)
    if kind.unit in _MICROSECONDS:
        return ()
    return (timedelta,) if types.is_duration(kind) else () if inferred else (datetime,)


def _is_one(given: type, plain: tuple[type, ...]) -> bool:
    # Moments and durations have subclasses that say more, and numpy's durations are integers.
    exact = given is _NONE or given in plain
    is_clock = issubclass(given, date | timedelta | np.timedelta64)
    return exact or (issubclass(given, plain) and not is_clock)


def _says(value: Any, kind: pa.DataType, *, inferred: bool) -> bool:
    if isinstance(value, float | np.floating | Decimal):  # a number, or a count of a unit
        return bool(value == value // 1)
    if is_text(kind) or is_bytes(kind):
        return isinstance(value, str) == is_text(kind)
    if isinstance(value, np.datetime64):
        is_moment = pa.types.is_timestamp(kind) and not (inferred and kind.tz is not None)
        return is_moment and _counts_ones(value)
    if isinstance(value, np.timedelta64):
        return pa.types.is_duration(kind) and _counts_ones(value)
    if isinstance(value, datetime):
        return _says_moment(value, kind, inferred=inferred)
    if isinstance(value, time):
        return value.tzinfo is None and not value.microsecond % _MICROSECONDS.get(kind.unit, 1)
    if isinstance(value, timedelta):
        return _counts(value, value.microseconds, kind.unit)
    return True


def _counts_ones(value: np.datetime64 | np.timedelta64) -> bool:
    return np.datetime_data(value.dtype)[1] == 1


def _says_moment(value: datetime, kind: pa.DataType, *, inferred: bool) -> bool:
    if pa.types.is_date(kind):
        return not inferred and is_midnight(value)
    zones_differ = (value.tzinfo is None) != (kind.tz is None)
    return not (inferred and zones_differ) and _counts(value, value.microsecond, kind.unit)


def is_midnight(moment: datetime) -> bool:
    """Whether a moment says a day, and nothing else."""
    return moment.time() == time() and moment.tzinfo is None and not nanoseconds(moment)


def nanoseconds(value: datetime | timedelta) -> int:
    """Those below a microsecond, which moments and durations of pandas have; else 0."""
    found = getattr(value, "nanosecond", 0) or getattr(value, "nanoseconds", 0)
    return int(found)


def _counts(value: datetime | timedelta, microseconds: int, unit: str) -> bool:
    """Whether a count of a unit says all of a moment or duration."""
    if unit == "ns":
        return True
    return not nanoseconds(value) and not microseconds % _MICROSECONDS.get(unit, 1)


def _rounds_all(numbers: Sequence[Any], kind: pa.DataType) -> bool:
    """Whether numbers are kept in a float of 16 or 32 bits but for what rounding takes."""
    narrow, kinds = kind.to_pandas_dtype(), set(map(type, numbers)) - {_NONE}
    if kinds <= {narrow}:
        return True
    given = [number for number in numbers if number is not None]
    with np.errstate(over="ignore"):
        wide = np.array(given, np.float64)
        is_kept = np.isfinite(wide.astype(narrow)) | ~np.isfinite(wide)
        whole = (each for each in given if not isinstance(each, float | np.floating))
        has_whole = not all(issubclass(each, float | np.floating) for each in kinds)
        return bool(is_kept.all()) and not (
            has_whole and any(float(narrow(each)) != each for each in whole)
        )
