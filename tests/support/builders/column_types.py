"""Column types of every kind and values for them, and what it means for values to be equal."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tensorrepo.formats.common.dtypes import CODES
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    ColumnType,
    Embedding,
    Image,
    Json,
    Link,
    Scalar,
    Schema,
    Tensor,
    Text,
    Timestamp,
)
from tensorrepo.formats.dataset.schema.types import LinkValue
from tests.support.builders.jpegs import baseline

DTYPES = st.sampled_from(sorted(CODES))
DIMS = st.one_of(st.none(), st.integers(0, 3))

TYPES: st.SearchStrategy[ColumnType] = st.one_of(
    st.builds(Scalar, DTYPES),
    st.builds(Tensor, DTYPES, st.lists(DIMS, max_size=3).map(tuple)),
    st.builds(Embedding, DTYPES, st.integers(1, 4)),
    st.builds(
        Image, st.sampled_from([None, "png", "jpeg"]), st.sampled_from([False, True, "beside"])
    ),
    st.just(Bytes()),
    st.just(Text()),
    st.just(Json()),
    st.just(Link()),
    st.builds(ClassLabel, st.just(("cat", "dog", "猫"))),
    st.builds(
        Timestamp,
        st.sampled_from(["s", "ms", "us", "ns"]),
        st.sampled_from([None, "UTC", "Europe/Berlin", "+02:00"]),
    ),
)
NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1, max_size=8
)

PICTURE = baseline(40, 56)  # which is put in bands where a column is progressive


@st.composite
def tiled(draw: st.DrawFn) -> ColumnType:
    """Tensors cut into tiles."""
    shape = draw(st.lists(DIMS, min_size=1, max_size=3))
    tile = [draw(st.integers(1, 4)) for _ in shape]
    return Tensor(draw(DTYPES), tuple(shape), tuple(tile))


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """Up to four columns of any type that is not tiled."""
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    return Schema(tuple(Column(name, draw(TYPES), draw(st.booleans())) for name in names))


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
    if isinstance(kind, Link):
        return _link(rng)
    if isinstance(kind, Bytes | Image):
        is_photo = isinstance(kind, Image) and rng.random() < 0.2
        return PICTURE if is_photo else rng.bytes(int(rng.integers(0, 600)))
    if isinstance(kind, ClassLabel):
        return np.int64(rng.integers(0, len(kind.names)))
    if isinstance(kind, Timestamp):
        return np.datetime64(int(rng.integers(-(2**62), 2**62)), kind.unit)
    storage = column.storage
    shape = tuple(int(rng.integers(0, 4)) if dim is None else dim for dim in storage.shape)
    array = elements(storage.element, shape, rng)
    return array if storage.shape else array[()]


def _link(rng: np.random.Generator) -> LinkValue:
    start = int(rng.integers(0, 2**40))
    stop = start + int(rng.integers(0, 2**20)) if rng.random() < 0.5 else None
    etag, digest = rng.choice([None, '"ä"', "猫"]), rng.choice([None, "sha256:00"])
    size = int(rng.integers(0, 2**62)) if rng.random() < 0.5 else None
    return LinkValue(f"s3://b/{'ä' * int(rng.integers(0, 3))}", start, stop, size, etag, digest)


def elements(
    dtype: np.dtype[Any], shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray[Any, np.dtype[Any]]:
    """Any bits that are elements of this type, NaNs of all kinds too."""
    if dtype.kind == "b":
        return rng.random(shape) < 0.5
    size = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(rng.bytes(size), dtype).reshape(shape)


def equal(left: Any, right: Any) -> bool:
    """Whether two values are the same bits of the same type and shape."""
    if left is None or right is None:
        return left is None and right is None
    if _is_numpy(left) or _is_numpy(right):
        one, two = np.asarray(left), np.asarray(right)
        return (one.dtype, one.shape, one.tobytes()) == (two.dtype, two.shape, two.tobytes())
    return type(left) is type(right) and bool(left == right)


def _is_numpy(value: Any) -> bool:
    # Scalars of ml_dtypes are no np.generic, but have a dtype too.
    return hasattr(value, "dtype")
