"""Arrow itself is the oracle: what it gives back is compared with what it was given."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tensorrepo.formats.dataset.schema.arrow_losses import says_all

MOMENT = datetime.fromisoformat("2020-01-01T05:06:07.000008")
VALUES: list[Any] = [
    1, True, 2.0, 1.5, np.float32(2.5), np.int8(3), Decimal("1.5"), Decimal(2), 2**24 + 1, 2049,
    1e300, float("inf"), "a", b"a", bytearray(b"a"), np.str_("a"), date(2020, 1, 1), MOMENT,
    MOMENT.replace(tzinfo=UTC), MOMENT.replace(microsecond=0), pd.Timestamp(1, unit="ns"),
    pd.Timestamp(1, unit="us"), np.datetime64(3, "ns"), np.datetime64(3, "10s"), MOMENT.time(),
    time(1), time(1, tzinfo=UTC), timedelta(microseconds=1), timedelta(seconds=1),
    pd.Timedelta(1, unit="ns"), np.timedelta64(2, "7s"), np.timedelta64(2, "ns"), None,
]  # fmt: skip
KINDS = [
    pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_(),
    pa.large_string(), pa.large_binary(), pa.date32(), pa.time32("s"), pa.time64("us"),
    *map(pa.timestamp, ("s", "ms", "us", "ns")), pa.timestamp("us", "UTC"),
    *map(pa.duration, ("s", "ms", "us", "ns")), pa.decimal128(9, 2), pa.null(),
]  # fmt: skip
INSIDE: dict[str, tuple[Callable[[Any], Any], Callable[[pa.DataType], pa.DataType]]] = {
    "alone": (lambda value: value, lambda kind: kind),
    "in a list": (lambda value: [None, value], pa.large_list),
    "in an array": (
        lambda value: [np.array([value], np.object_)],
        lambda kind: pa.list_(pa.list_(kind)),
    ),
    "in a struct": (lambda value: {"a": value}, lambda kind: pa.struct([("a", kind)])),
    "in a map": (lambda value: [("a", value)], lambda kind: pa.map_(pa.string(), kind)),
}  # fmt: skip


def counted(value: Any) -> tuple[int, bool]:
    """Nanoseconds, and whether they are of a moment: numpy's own, and pandas', compare as Python's.

    Moments with a zone are those of UTC: who names a type has them converted.
    """
    if isinstance(value, datetime):
        return pd.Timestamp(value).as_unit("ns").value, True
    if isinstance(value, timedelta):
        return pd.Timedelta(value).as_unit("ns").value, False
    found = value.astype(f"{value.dtype.kind}8[ns]").astype(np.int64)
    return int(found), isinstance(value, np.datetime64)


def is_same(value: Any, found: Any, kind: pa.DataType) -> bool:
    """Whether a value came back, but for what rounding of floats takes."""
    if value is None or found is None:
        return value is found
    if isinstance(value, datetime | timedelta | np.datetime64 | np.timedelta64):
        clock = isinstance(found, datetime | timedelta)
        return clock and counted(value) == counted(found)
    if isinstance(value, float) and pa.types.is_floating(kind):
        return bool(np.isfinite(found) == np.isfinite(value))
    if pa.types.is_temporal(kind) and isinstance(value, int | float | np.number | Decimal):
        return int(value) == value  # a count
    return isinstance(value, str) == isinstance(found, str) and bool(value == found)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("inside", INSIDE)
def test_values_that_come_back_are_said_in_full_and_no_others(
    kind: pa.DataType, inside: str
) -> None:
    put, around = INSIDE[inside]
    wrong = []
    for value in VALUES:
        with suppress(pa.ArrowException, ValueError, TypeError, OverflowError):
            (found,) = pa.array([value], kind).to_pylist()
            if says_all([put(value)], around(kind)) != is_same(value, found, kind):
                wrong.append((value, found))
    assert not wrong


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([MOMENT, MOMENT.replace(tzinfo=UTC)], pa.timestamp("us")),
        ([np.datetime64(1, "us"), MOMENT.replace(tzinfo=UTC)], pa.timestamp("us", "UTC")),
        ([date(2020, 1, 1), datetime.fromisoformat("2020-01-01")], pa.date32()),
    ],
)
def test_a_zone_or_a_time_that_some_have_is_lost_where_nobody_named_the_type(
    values: list[Any], kind: pa.DataType
) -> None:
    assert says_all(values, kind)
    assert not says_all(values, kind, inferred=True)
