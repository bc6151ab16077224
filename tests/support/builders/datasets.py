"""Rows of datasets of every kind, for properties; and what it means for rows to be equal."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Schema
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.objects.envelope import ObjectSink
from tests.support.builders.column_types import TYPES, equal, schemas, value

__all__ = ["TYPES", "Rows", "column_values", "datasets", "equal", "same_rows", "schemas", "stored"]
__all__ += ["value"]

Rows = list[dict[str, Any]]


@st.composite
def datasets(draw: st.DrawFn, max_rows: int = 40) -> tuple[Schema, Rows]:
    """A schema and rows that fit it."""
    schema = draw(schemas())
    count = draw(st.integers(0, max_rows))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = [{column.name: value(column, rng) for column in schema.columns} for _ in range(count)]
    return schema, rows


def same_rows(found: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]]) -> bool:
    return len(found) == len(expected) and all(
        one.keys() == two.keys() and all(equal(one[name], two[name]) for name in one)
        for one, two in zip(found, expected, strict=True)
    )


def column_values(rows: Rows, name: str) -> list[Any]:
    return [row[name] for row in rows]


def stored(
    objects: ObjectSink, schema: Schema, batches: Sequence[Any], seed: int = 0, **options: Any
) -> StoredDataset:
    """The dataset that these batches make; uids come from `seed`."""
    rng = random.Random(seed)
    link = write_dataset(objects, schema, batches, rng=rng, **options)
    return open_dataset(objects, link.digest)
