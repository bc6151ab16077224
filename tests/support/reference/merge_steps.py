"""Changes of a small dataset that two people may make at once."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from tensorrepo.formats.dataset.compact import compact_dataset
from tensorrepo.formats.dataset.evolve import (
    add_column,
    drop_column,
    rename_column,
    set_properties,
    widen_column,
)
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Bytes, Column, Scalar, Schema, Text
from tensorrepo.formats.dataset.update import delete_rows, update_rows
from tensorrepo.formats.dataset.upsert import upsert
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSink
from tests.support.builders.datasets import stored

Step = Callable[[ObjectSink, StoredDataset, int], ObjectLink]

SCHEMA = Schema(
    (
        Column("n", Scalar("int64")),
        Column("label", Scalar("int32")),
        Column("text", Text(), nullable=True),
        Column("blob", Bytes()),
    )
)


def rows(start: int, count: int, *, names: tuple[str, ...] = SCHEMA.names) -> dict[str, Any]:
    """Rows whose key is `start` and up."""
    numbers = range(start, start + count)
    values: dict[str, list[Any]] = {
        "n": list(numbers),
        "label": [number % 5 for number in numbers],
        "text": [None if number % 3 == 0 else f"row {number}" for number in numbers],
        "blob": [bytes([number % 251]) * 900 for number in numbers],
    }
    return {name: values[name] for name in names}


def base_dataset(objects: ObjectSink, fragments: int = 3, count: int = 8) -> StoredDataset:
    """Some fragments of `count` rows each, keys from 0 on."""
    found: StoredDataset | None = None
    for at in range(fragments):
        found = stored(objects, SCHEMA, [rows(at * count, count)], at, base=found)
    assert found is not None, "one fragment at least"
    return found


def _column(column: Column, values: Any = None) -> Step:
    return lambda objects, base, _: add_column(
        objects, base, column, None if values is None else values(base)
    )


def _named(base: StoredDataset, name: str) -> str:
    """What column `name` is called by now."""
    return next(each for each in base.schema.names if each.startswith(name))


def _update(name: str, where: Any, value: Any) -> Step:
    return lambda objects, base, _: update_rows(
        objects, base, where, {_named(base, name): value(base) if callable(value) else value}
    )


def _append(objects: ObjectSink, base: StoredDataset, seed: int) -> ObjectLink:
    more = dict(rows(1000 * (seed + 1), 3))
    batch = {
        column.name: more.get(column.name.partition("_")[0], [None if column.nullable else 9] * 3)
        for column in base.schema.columns
    }
    found = stored(objects, base.schema, [batch], 100 + seed, base=base)
    return objects.describe(found.digest)


def _upsert(objects: ObjectSink, base: StoredDataset, seed: int) -> ObjectLink:
    batch = {"n": [5, 2000 + seed], "text": ["upserted", f"new {seed}"]}
    more = rows(2000, 2)
    batch |= {
        column.name: more.get(column.name.partition("_")[0], [None if column.nullable else 9] * 2)
        for column in base.schema.columns
        if column.name not in batch
    }
    return upsert(objects, base, "n", [batch])


def _compact(objects: ObjectSink, base: StoredDataset, seed: int) -> ObjectLink:
    return compact_dataset(objects, base, everything=True, rng=random.Random(500 + seed))


def _nothing(objects: ObjectSink, base: StoredDataset, _: int) -> ObjectLink:
    return objects.describe(base.digest)


# What one side does, by name. Steps that end alike touch the same thing.
STEPS: dict[str, Step] = {
    "nothing": _nothing,
    "append": _append,
    "upsert": _upsert,
    "label of row 1": _update("label", [1], 77),
    "other label of row 1": _update("label", [1], 78),
    "label of row 9": _update("label", [9], 79),
    "text of row 1": _update("text", [1], "changed"),
    "text to null": _update("text", [1, 2], None),
    "all labels": _update("label", slice(None), lambda base: list(range(base.rows))),
    "blob of row 1": _update("blob", [1], b"x" * 700),
    "all blobs": _update("blob", slice(0, 8), lambda _: [b"y" * (800 + at) for at in range(8)]),
    "delete row 1": lambda objects, base, _: delete_rows(objects, base, [1]),
    "delete rows": lambda objects, base, _: delete_rows(objects, base, [1, 4, 9, 17]),
    "delete a fragment": lambda objects, base, _: delete_rows(objects, base, slice(8, 16)),
    "add with default": _column(Column("extra", Scalar("int16"), default=3)),
    "add with nulls": _column(Column("maybe", Scalar("float32"), nullable=True)),
    "add with values": _column(
        Column("given", Scalar("int64")), lambda base: list(range(100, 100 + base.rows))
    ),
    "add text with values": _column(
        Column("long", Text(), nullable=True),
        lambda base: [f"{at}" * 300 for at in range(base.rows)],
    ),
    "drop label": lambda objects, base, _: drop_column(objects, base, _named(base, "label")),
    "drop text": lambda objects, base, _: drop_column(objects, base, "text"),
    "rename label": lambda objects, base, _: rename_column(objects, base, "label", "label_a"),
    "rename label otherwise": lambda objects, base, _: rename_column(
        objects, base, "label", "label_b"
    ),
    "widen label": lambda objects, base, _: widen_column(
        objects, base, _named(base, "label"), "int64"
    ),
    "widen label to float": lambda objects, base, _: widen_column(
        objects, base, _named(base, "label"), "float64"
    ),
    "nullable label": lambda objects, base, _: widen_column(
        objects, base, _named(base, "label"), nullable=True
    ),
    "compact": _compact,
    "property": lambda objects, base, _: set_properties(objects, base, {"by": "one"}),
    "other property": lambda objects, base, _: set_properties(objects, base, {"by": "two"}),
    "property beside": lambda objects, base, _: set_properties(objects, base, {"license": "cc0"}),
}


def step(objects: ObjectSink, base: StoredDataset, name: str, seed: int = 0) -> StoredDataset:
    """`base` after one of `STEPS`; `seed` tells two people apart who do the same."""
    return open_dataset(objects, STEPS[name](objects, base, seed).digest)
