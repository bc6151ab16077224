"""Python values of Arrow arrays, and the JSON and ISO 8601 texts of such values.

Counts of nanoseconds are numpy's `datetime64` and `timedelta64`, wherever they stand: Python's own
moments, times and spans end at microseconds.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from datetime import date, time, timedelta
from decimal import Decimal
from functools import cache
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tensorrepo.formats.dataset.schema.arrow_forms import is_list, is_text
from tensorrepo.formats.dataset.schema.types import TimeUnit
from tensorrepo.repo.errors import UnsupportedError


def python_values(array: pa.Array) -> list[Any]:
    """Values of any type but tensors, None where null; a map is a list of pairs.

    Raises:
        UnsupportedError: Python has no such value, as of the year 10,000.
    """
    try:
        return _values(array)
    except (ValueError, OverflowError) as error:
        raise UnsupportedError(
            f"Python has no such {array.type}: {error}. Read the column as Arrow."
        ) from error


def _values(array: pa.Array) -> list[Any]:
    types, kind = pa.types, array.type
    if not _counts_nanoseconds(kind):
        plain: list[Any] = array.to_pylist()
        return plain
    if types.is_struct(kind):
        parts = [_values(array.field(at)) for at in range(kind.num_fields)]
        given = zip(*parts, strict=True)
        rows: list[Any] = [dict(zip(kind.names, row, strict=True)) for row in given]
    elif types.is_map(kind):
        rows = _cut(array, list(zip(_values(array.keys), _values(array.items), strict=True)))
    elif types.is_fixed_size_list(kind):
        size = kind.list_size
        values = _values(array.values.slice(array.offset * size, len(array) * size))
        rows = [values[at : at + size] for at in range(0, len(values), size)]
    elif is_list(kind):
        rows = _cut(array, _values(array.values))
    else:
        name = "M8[ns]" if types.is_timestamp(kind) else "m8[ns]"
        counts = np.asarray(array.view(pa.int64()).fill_null(0))
        rows = list(counts.view(name))
    return [row if there else None for row, there in zip(rows, array.is_valid(), strict=True)]


def _cut(array: pa.Array, values: list[Any]) -> list[Any]:
    """Rows of a list or map, whose offsets count `values`."""
    offsets = np.asarray(array.offsets).tolist()
    return [values[start:stop] for start, stop in pairwise(offsets)]


@cache
def _counts_nanoseconds(kind: pa.DataType) -> bool:
    clock = pa.types.is_timestamp(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind)
    if clock:
        return bool(kind.unit == "ns")
    return any(_counts_nanoseconds(kind.field(at).type) for at in range(kind.num_fields))


# ------------------------------------------------------------------------------ as text


def duration_text(duration: timedelta | np.timedelta64) -> str:
    """ISO 8601 of a duration, in seconds: ``PT3.25S``, ``-PT60S``."""
    if isinstance(duration, timedelta):
        duration = np.timedelta64(duration, "us")
    unit, step = np.datetime_data(duration.dtype)
    count = int(duration.astype(np.int64)) * step
    seconds = Decimal(count) * _SECONDS[unit]
    digits = f"{abs(seconds):f}"
    digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
    return f"{'-' * (count < 0)}PT{digits}S"


def parse_duration(text: str) -> np.timedelta64:
    """The duration of such a text. Raises ValueError: there is none."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r:.80} is no duration such as PT3.25S")
    digits = found[3] or ""
    unit, power = next(each for each in _POWERS if len(digits) <= each[1])
    count = int(found[2] + digits.ljust(power, "0"))
    if count >= 1 << 63:
        raise ValueError(f"{text!r:.80} is longer than a duration of 64 bits")
    return np.timedelta64(-count if found[1] else count, unit)


_DURATION = re.compile(r"(-)?PT(\d{1,18})(?:\.(\d{1,9}))?S")
_POWERS: Final[tuple[tuple[TimeUnit, int], ...]] = (("s", 0), ("ms", 3), ("us", 6), ("ns", 9))
_SECONDS = {
    "W": Decimal(604_800), "D": Decimal(86_400), "h": Decimal(3600), "m": Decimal(60),
    "s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "ns": Decimal("1e-9"),
}  # fmt: skip


def json_form(value: Any, refused: Callable[[str], Any]) -> Any:
    """A value as JSON says it: dates, times and durations in ISO 8601, decimals as text.

    Args:
        value: what `python_values` gives.
        refused: what becomes of bytes, NaN and infinities, of which it is told the name.
    """
    match value:
        case dict():
            return {name: json_form(each, refused) for name, each in value.items()}
        case list() | tuple():
            return [json_form(each, refused) for each in value]
        case bytes():
            return refused("bytes")
        case float() if not math.isfinite(value):
            return refused(str(value))
        case timedelta() | np.timedelta64():
            return duration_text(value)
        case np.datetime64() | Decimal():
            return str(value)
        case date() | time():  # a datetime is a date
            return value.isoformat()
    return value


# ------------------------------------------------------------------------------ as JSON


def encode_json(value: Any) -> bytes:
    """A JSON value as it is stored; arrays and numbers of numpy are lists and numbers.

    Raises:
        TypeError, ValueError: JSON cannot say it, or not all of it: of a dict with the keys 1 and
            "1", which are one in JSON, one value would be read.
    """
    _check_keys(value)
    return _JSON.encode(value).encode()


def _plain_json(value: Any) -> Any:
    """Arrays and numbers of numpy, alone or inside a JSON value."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} {value!r:.60}, which JSON cannot say")


_JSON: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_plain_json
)
_PLAIN_JSON: Final = frozenset({str, int, float, bool, type(None)})


def _check_keys(value: Any) -> None:
    """See that the keys of each dict differ in JSON. Raises ValueError."""
    if isinstance(value, dict):
        if any(kind is not str for kind in set(map(type, value))):
            said = [key if isinstance(key, str) else _JSON.encode(key) for key in value]
            if len(set(said)) < len(said):
                alike = next(key for key in said if said.count(key) > 1)
                raise ValueError(f"two keys that are {alike!r} in JSON")
        inside: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple):
        inside = value
    else:
        return
    if not _PLAIN_JSON.issuperset(map(type, inside)):
        for each in inside:
            _check_keys(each)


def with_objects(value: Any, kind: pa.DataType) -> Any:
    """`value` with a dict for each map whose keys are text, and differ in it."""
    types = pa.types
    if value is None or not _holds_map(kind):
        return value
    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return {each.name: with_objects(value[each.name], each.type) for each in fields}
    if not types.is_map(kind):
        return [with_objects(each, kind.value_type) for each in value]
    pairs = [(key, with_objects(each, kind.item_type)) for key, each in value]
    found = dict(pairs) if is_text(kind.key_type) else {}
    return found if is_text(kind.key_type) and len(found) == len(pairs) else pairs


@cache
def _holds_map(kind: pa.DataType) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_holds_map(kind.field(at).type) for at in range(kind.num_fields))
