"""What frameworks get: their own types, of the same memory where that can be."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from tensorrepo.formats.dataset.columns.schema import (
    Column,
    Scalar,
    Schema,
    Tensor,
    Text,
    Timestamp,
)
from tensorrepo.formats.dataset.stream import stream
from tensorrepo.formats.dataset.streaming.batching.outputs import (
    as_jax,
    map_leaves,
    numbers_as_jax,
    pinned,
    pins,
)
from tensorrepo.formats.dtypes import CODES, element_dtype
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError
from tests.support.datasets import stored
from tests.support.streams import MappedObjects

WIDE = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}
SCHEMA = Schema(
    (
        Column("x", Tensor("bfloat16", (8,))),
        Column("n", Scalar("float32"), nullable=True),
        Column("b", Scalar("bool")),
        Column("r", Tensor("int16", (None,)), nullable=True),
        Column("when", Timestamp("s")),
        Column("t", Text()),
    )
)
ROWS = [
    {
        "x": np.full(8, at, element_dtype("bfloat16")),
        "n": None if at % 2 else np.float32(at),
        "b": np.bool_(at % 3 == 0),
        "r": None if at == 3 else np.arange(at, dtype=np.int16),
        "when": np.datetime64(at, "s"),
        "t": f"row {at}",
    }
    for at in range(6)
]


def aligned(name: str, count: int = 64) -> np.ndarray[Any, Any]:
    dtype = element_dtype(name)
    memory = np.zeros(count * dtype.itemsize + 64, np.uint8)
    start = -memory.__array_interface__["data"][0] % 64
    memory[:] = np.arange(memory.size) % 2
    return memory[start : start + count * dtype.itemsize].view(dtype).reshape(8, -1)


def address(array: np.ndarray[Any, Any]) -> int:
    found: int = array.__array_interface__["data"][0]
    return found


@pytest.mark.parametrize("name", CODES)
def test_every_element_type_reaches_jax_and_those_of_its_own_without_a_copy(name: str) -> None:
    array = aligned(name)
    found = as_jax(array)
    assert str(found.dtype) == WIDE.get(name, name)
    assert np.asarray(found).tobytes() == array.astype(found.dtype).tobytes()
    assert (found.unsafe_buffer_pointer() == address(array)) == (name not in WIDE)


def test_jax_keeps_the_memory_that_it_was_given() -> None:
    array = aligned("float32")
    before = sys.getrefcount(array.base)
    found = as_jax(array)
    assert sys.getrefcount(array.base) > before
    assert found.shape == array.shape


def test_memory_that_is_not_aligned_is_copied() -> None:
    array = aligned("float32", 128).reshape(-1)[1:65]
    assert as_jax(array).unsafe_buffer_pointer() != address(array)


def test_wide_numbers_stay_wide_where_jax_is_told_so() -> None:
    with jax.enable_x64(True):
        assert as_jax(aligned("int64")).dtype == jnp.int64


def test_a_stream_gives_jax_arrays_zeros_where_null_and_says_which() -> None:
    ds = stored(MappedObjects(), SCHEMA, [ROWS])
    batch = next(iter(stream(ds, batch_size=6, shuffle=False, output="jax")))
    assert all(isinstance(batch[name], jax.Array) for name in ("x", "n", "b", "when"))
    assert batch["x"].dtype == jnp.bfloat16
    assert batch["x"][:, 0].tolist() == list(range(6))
    assert batch["n"].tolist() == [0, 0, 2, 0, 4, 0]
    assert batch.valid["n"].tolist() == [True, False] * 3
    assert isinstance(batch.valid["n"], jax.Array)
    assert [None if row is None else row.tolist() for row in batch["r"]] == [
        None if at == 3 else list(range(at)) for at in range(6)
    ]
    assert isinstance(batch["r"][2], jax.Array)
    assert batch["when"].tolist() == list(range(6))
    assert batch["t"] == [f"row {at}" for at in range(6)]


def test_what_comes_from_elsewhere_as_numpy_becomes_jax() -> None:
    masked = numbers_as_jax(np.ma.MaskedArray([1, 2], [True, False]))
    moments = numbers_as_jax(np.array([5, 6], "M8[s]"))
    assert (masked.tolist(), moments.tolist()) == ([1, 2], [5, 6])
    text = np.array(["a"])
    assert numbers_as_jax(text) is text
    assert numbers_as_jax("a") == "a"


def test_without_jax_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(UnsupportedError, match=r"pip install 'tensorrepo\[jax\]'"):
        as_jax(np.zeros(3))


@pytest.mark.skipif(torch.cuda.is_available(), reason="for machines without a GPU")
def test_pinning_is_for_machines_with_a_gpu() -> None:
    ds = stored(MappedObjects(), SCHEMA, [ROWS])
    assert not pins(None, "torch")
    batch = next(iter(stream(ds, batch_size=6, output="torch")))
    assert not batch["n"].is_pinned()
    with pytest.raises(InvalidInputError, match="is_available"):
        stream(ds, batch_size=6, output="torch", pin=True)


@pytest.mark.parametrize("output", ["numpy", "jax", "arrow"])
def test_only_tensors_are_pinned(output: Any) -> None:
    assert not pins(None, output)
    with pytest.raises(InvalidInputError, match="output='torch'"):
        pins(True, output)


def test_what_is_no_tensor_of_this_machines_memory_is_not_pinned() -> None:
    assert pinned("text") == "text"
    elsewhere = torch.empty(3, device="meta")
    assert pinned(elsewhere) is elsewhere


class Pair(NamedTuple):
    left: Any
    right: Any


def test_leaves_are_changed_wherever_they_are() -> None:
    value = {"a": [1, (2, Pair(3, {"b": 4}))]}
    assert map_leaves(value, lambda leaf: -leaf) == {"a": [-1, (-2, Pair(-3, {"b": -4}))]}
