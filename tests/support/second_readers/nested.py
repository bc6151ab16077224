"""Dates, decimals and nested rows as docs/spec/dataset.md says that they lie, value by value."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal, localcontext
from typing import Any

import numpy as np

Kind = Mapping[str, Any]
NESTED = ("list", "struct", "map")
SECONDS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def nested_row(kind: Kind, data: bytes) -> Any:
    """The value of one row."""
    cursor = Cursor(data)
    (value,) = body(cursor, kind, 1, [True])
    assert cursor.at == len(data), "bytes are left"
    return value


class Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, size: int) -> bytes:
        assert self.at + size <= len(self.data), "bytes are missing"
        self.at += size
        return self.data[self.at - size : self.at]

    def lengths(self, count: int) -> list[int]:
        return list(struct.unpack(f"<{count}I", self.take(4 * count)))


def block(cursor: Cursor, kind: Kind, count: int) -> list[Any]:
    valid = [True] * count
    if count and (flag := cursor.take(1)[0]):
        assert flag == 1
        valid = [bool(each) for each in cursor.take(count)]
        assert not all(valid)
    values = body(cursor, kind, count, valid)
    return [value if there else None for value, there in zip(values, valid, strict=True)]


def body(cursor: Cursor, kind: Kind, count: int, valid: list[bool]) -> list[Any]:
    match kind["type"]:
        case "struct":
            parts = {name: block(cursor, each, count) for name, each in kind["fields"]}
            return [{name: part[at] for name, part in parts.items()} for at in range(count)]
        case "list" if "size" in kind:
            values = block(cursor, kind["value"], count * kind["size"])
            return cut(values, [kind["size"]] * count)
        case "list":
            lengths = cursor.lengths(count)
            return cut(block(cursor, kind["value"], sum(lengths)), lengths)
        case "map":
            lengths = cursor.lengths(count)
            keys = block(cursor, kind["key"], sum(lengths))
            items = block(cursor, kind["value"], sum(lengths))
            return cut(list(zip(keys, items, strict=True)), lengths)
        case "text" | "bytes" if "size" not in kind:
            texts = [cursor.take(length) for length in cursor.lengths(count)]
            return [text.decode() if kind["type"] == "text" else text for text in texts]
    found = [cursor.take(width(kind)) for _ in range(count)]
    assert all(there or not any(each) for each, there in zip(found, valid, strict=True))
    return [single(kind, each) for each in found]


def cut(values: list[Any], lengths: list[int]) -> list[Any]:
    rest = iter(values)
    return [[next(rest) for _ in range(length)] for length in lengths]


def width(kind: Kind) -> int:
    match kind["type"]:
        case "scalar":
            return int(np.dtype(kind["dtype"]).itemsize)
        case "bytes":
            return int(kind["size"])
        case "null":
            return 1
        case "date":
            return 4
        case "time":
            return 4 if kind["unit"] in ("s", "ms") else 8
        case "decimal":
            return 16 if kind["precision"] <= 38 else 32
    return 8


def single(kind: Kind, data: bytes) -> Any:
    """One value of fixed width."""
    if kind["type"] == "scalar":
        return np.frombuffer(data, kind["dtype"])[0].item()
    number = int.from_bytes(data, "little", signed=True)
    return data if kind["type"] == "bytes" else counted(kind, number)


def counted(kind: Kind, number: int) -> Any:
    """What a whole number means in a column of this type."""
    match kind["type"]:
        case "null":
            return None
        case "date":
            return date(1970, 1, 1) + timedelta(days=number)
        case "decimal":
            with localcontext(prec=80):
                return Decimal(number).scaleb(-kind["scale"])
        case "time" if kind["unit"] != "ns":
            past = timedelta(microseconds=number * 10**6 // SECONDS[kind["unit"]])
            return (datetime(1970, 1, 1) + past).time()  # noqa: DTZ001  # of no day at all
    return np.timedelta64(number, kind["unit"]) if kind["type"] != "timestamp" else number


def stored_number(array: Any) -> int:
    """The number of a decimal, whose words come lowest first."""
    return int.from_bytes(np.asarray(array).tobytes(), "little", signed=True)
