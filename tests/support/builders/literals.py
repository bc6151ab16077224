"""Columns of every ordered type, and literals of every kind that they may be compared with."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from tensorrepo.formats.dataset.schema.types import (
    Bytes,
    ClassLabel,
    Date,
    Duration,
    Scalar,
    Text,
    Time,
    Timestamp,
)
from tensorrepo.formats.dataset.schema.types import Decimal as DecimalType

DAY, MOMENT = date(2024, 1, 1), datetime(2024, 1, 1, tzinfo=UTC)
_SMALL, _WIDE = [-1.5, -0.0, 0.0, 0.1, 0.5, 1.0, 300.0], [float(1 << 24), 1e20]
_REALS = [float("-inf"), *_SMALL, *_WIDE, float("inf"), float("nan")]
_TEXTS = ["", "0.1", "1", "a", "a\0", "cat", "x" * 40, "x" * 40 + "y", "\xff"]

# Values that ascend, so that pages of a few rows hold a few of them each.
ORDERED_COLUMNS: dict[str, tuple[Any, list[Any]]] = {
    "int8": (Scalar("int8"), [-128, -1, 0, 1, 2, 127]),
    "uint8": (Scalar("uint8"), [0, 1, 2, 44, 255]),
    "int32": (Scalar("int32"), [-(1 << 31), -1, 0, 1, 1 << 24, (1 << 24) + 1]),
    "int64": (Scalar("int64"), [-(1 << 63), -1, 0, 1, 1 << 53, (1 << 53) + 1, (1 << 63) - 1]),
    "uint64": (Scalar("uint64"), [0, 1, 1 << 53, (1 << 53) + 1, 1 << 63, (1 << 64) - 1]),
    "float16": (Scalar("float16"), [*_REALS[:8], *_REALS[10:]]),
    "bfloat16": (Scalar("bfloat16"), _REALS),
    "float8_e4m3fn": (Scalar("float8_e4m3fn"), _SMALL),
    "float32": (Scalar("float32"), _REALS),
    "float64": (Scalar("float64"), [*_REALS[:9], float((1 << 53) + 2), *_REALS[9:]]),
    "bool": (Scalar("bool"), [False, True]),
    "classes": (ClassLabel(("dog", "cat", "1")), [0, 1, 2]),
    "date": (Date(), [DAY + timedelta(days=each) for each in (-30_000, 0, 1, 2)]),
    "time": (Time("ms"), [time(0), time(0, 0, 1), time(12, 0, 0, 500_000)]),
    "seconds": (Timestamp("s"), [np.datetime64("1969-12-31T23:59:59"), *map(np.datetime64, (
        "1970-01-01T00:00:00", "1970-01-01T00:00:01", "2024-01-01T00:00:00"))]),
    "moments": (Timestamp("us", "UTC"), [MOMENT + timedelta(seconds=at / 2) for at in range(4)]),
    "duration": (Duration("ms"), [timedelta(milliseconds=each) for each in (-1, 0, 1, 1000)]),
    "decimal": (DecimalType(9, 2), [Decimal(each) / 100 for each in (-150, 0, 10, 100, 30_000)]),
    "text": (Text(), _TEXTS),
    "bytes": (Bytes(), [each.encode() for each in _TEXTS]),
}  # fmt: skip

LITERALS: list[pa.Scalar] = [
    *map(pa.scalar, [0, 1, -1, 2, 127, 128, -129, 255, 300, 1 << 24, (1 << 24) + 1, 1 << 31]),
    *map(pa.scalar, [1 << 53, (1 << 53) + 1, (1 << 63) - 1, -(1 << 63)]),
    *(pa.scalar(each, pa.uint64()) for each in (1, 1 << 63, (1 << 64) - 1)),
    *(pa.scalar(each, pa.int8()) for each in (-1, 1)),
    *map(pa.scalar, [*_REALS, 0.25, 2.5, 1e300, float(1 << 53), float(1 << 63)]),
    *(pa.scalar(each, pa.float32()) for each in (0.1, 0.5, 1e20)),
    pa.scalar(np.float16(0.1)),
    *map(pa.scalar, [True, False]),
    *map(pa.scalar, map(Decimal, ("0.1", "0.10", "0.105", "1", "300.000"))),
    *map(pa.scalar, [*_TEXTS, "dog", "eel", "2024-01-01", "00:00:01"]),
    *(pa.scalar(each, pa.large_string()) for each in ("a", "cat")),
    *(pa.scalar(each.encode()) for each in _TEXTS),
    *(pa.scalar(each, pa.date32()) for each in (DAY, date(1970, 1, 1))),
    *(pa.scalar(each, pa.date64()) for each in (DAY, date(1970, 1, 1))),
    *(pa.scalar(each, pa.timestamp(unit)) for each in (0, 1, 1500) for unit in ("s", "ms", "ns")),
    *(pa.scalar(each, pa.timestamp("us", zone)) for each in (MOMENT, MOMENT + timedelta(seconds=1))
      for zone in ("UTC", "Europe/Berlin")),
    *(pa.scalar(each, pa.time32("s")) for each in (0, 1)),
    *(pa.scalar(each, pa.time64("ns")) for each in (1, 10**9)),
    *(pa.scalar(each, pa.duration(unit)) for each in (1, 1500) for unit in ("ms", "us", "ns")),
]  # fmt: skip
