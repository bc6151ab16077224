"""Schemas and rows of every kind, for properties of datasets; and what it means to be equal."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from tensorrepo.formats.dataset.read import Dataset, open_dataset
from tensorrepo.formats.dataset.schema import (
    Bytes,
    ClassLabel,
    Column,
    ColumnType,
    Embedding,
    Image,
    Json,
    Scalar,
    Schema,
    Tensor,
    Text,
    Timestamp,
)
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.formats.dtypes import CODES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorrepo.repo.objects import ObjectSink

Rows = list[dict[str, Any]]
DTYPES = st.sampled_from(sorted(CODES))
DIMS = st.one_of(st.none(), st.integers(0, 3))

TYPES: st.SearchStrategy[ColumnType] = st.one_of(
    st.builds(Scalar, DTYPES),
    st.builds(Tensor, DTYPES, st.lists(DIMS, max_size=3).map(tuple)),
    st.builds(Embedding, DTYPES, st.integers(1, 4)),
    st.builds(Image, st.sampled_from([None, "png", "jpeg"])),
    st.just(Bytes()),
    st.just(Text()),
    st.just(Json()),
    st.builds(ClassLabel, st.just(("cat", "dog", "猫"))),
    st.builds(Timestamp, st.sampled_from(["s", "ms", "us", "ns"]), st.sampled_from([None, "UTC"])),
)
NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=8
)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """Up to four columns of any type."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    return Schema(tuple(Column(name, draw(TYPES), draw(st.booleans())) for name in names))


@st.composite
def datasets(draw: st.DrawFn, max_rows: int = 40) -> tuple[Schema, Rows]:
    """A schema and rows that fit it."""
    schema = draw(schemas())
    count = draw(st.integers(0, max_rows))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = [{column.name: value(column, rng) for column in schema.columns} for _ in range(count)]
    return schema, rows


def value(column: Column, rng: np.random.Generator) -> Any:
    """One value of a column, as reading gives it back."""
    if column.nullable and rng.random() < 0.3:
        return None
    kind = column.type
    if isinstance(kind, Text):
        return "".join(rng.choice(list("aä猫🙂\0"), int(rng.integers(0, 9))))
    if isinstance(kind, Json):
        leaf = rng.choice([True, 1.5, "ä", 7])
        return [{"k": leaf.item()}, None, []][: int(rng.integers(0, 4))]
    if isinstance(kind, Bytes | Image):
        return rng.bytes(int(rng.integers(0, 600)))
    if isinstance(kind, ClassLabel):
        return np.int64(rng.integers(0, len(kind.names)))
    if isinstance(kind, Timestamp):
        return np.datetime64(int(rng.integers(-(2**62), 2**62)), kind.unit)
    storage = column.storage
    shape = tuple(int(rng.integers(0, 4)) if dim is None else dim for dim in storage.shape)
    array = _elements(storage.element, shape, rng)
    return array if storage.shape else array[()]


def _elements(
    dtype: np.dtype[Any], shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray[Any, np.dtype[Any]]:
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    size = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(rng.bytes(size), dtype).reshape(shape)  # every bit pattern, NaNs too


def equal(left: Any, right: Any) -> bool:
    """Whether two values are the same bits of the same type and shape."""
    if left is None or right is None:
        return left is None and right is None
    if isinstance(left, np.ndarray | np.generic) or isinstance(right, np.ndarray | np.generic):
        one, two = np.asarray(left), np.asarray(right)
        return (one.dtype, one.shape, one.tobytes()) == (two.dtype, two.shape, two.tobytes())
    return type(left) is type(right) and bool(left == right)


def same_rows(found: Sequence[dict[str, Any]], expected: Sequence[dict[str, Any]]) -> bool:
    return len(found) == len(expected) and all(
        one.keys() == two.keys() and all(equal(one[name], two[name]) for name in one)
        for one, two in zip(found, expected, strict=True)
    )


def column_values(rows: Rows, name: str) -> list[Any]:
    return [row[name] for row in rows]


def stored(
    objects: ObjectSink, schema: Schema, batches: Sequence[Any], seed: int = 0, **options: Any
) -> Dataset:
    """The dataset that these batches make; uids come from `seed`."""
    rng = random.Random(seed)
    link = write_dataset(objects, schema, batches, rng=rng, **options)
    return open_dataset(objects, link.digest)
