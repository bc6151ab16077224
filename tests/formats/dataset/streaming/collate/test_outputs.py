"""What frameworks get: their own types, of the same memory where that can be."""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tensorrepo.formats.common.dtypes import CODES, element_dtype
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import Column, Scalar, Schema, Tensor, Text, Timestamp
from tensorrepo.formats.dataset.streaming.collate.batch import (
    as_jax,
    map_leaves,
    numbers_as_jax,
    pinned,
    pins,
)
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError
from tests.support.builders.datasets import stored
from tests.support.builders.streams import MappedObjects, stream

WIDE = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}
SCHEMA = Schema(
    (
        Column("x", Tensor("bfloat16", (8,))),
        Column("n", Scalar("float32"), nullable=True),
        Column("b", Scalar("bool")),
        Column("r", Tensor("int16", (None,)), nullable=True),
        Column("t", Text()),
    )
)
ROWS = [
    {
        "x": np.full(8, at, element_dtype("bfloat16")),
        "n": None if at % 2 else np.float32(at),
        "b": np.bool_(at % 3 == 0),
        "r": None if at == 3 else np.arange(at, dtype=np.int16),
        "t": f"row {at}",
    }
    for at in range(6)
]


def aligned(name: str, count: int = 64) -> np.ndarray[Any, Any]:
    dtype = element_dtype(name)
    memory = np.zeros(count * dtype.itemsize + 64, np.uint8)
    start = -memory.__array_interface__["data"][0] % 64
    memory[start :: dtype.itemsize][:count] = np.arange(count) % 2  # integers stay small
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
    import jax

    with jax.enable_x64(True):
        assert as_jax(aligned("int64")).dtype == jax.numpy.int64


TOO_LARGE = [
    ("int64", 2**31),
    ("int64", -(2**31) - 1),
    ("int64", 2**40),
    ("uint64", 2**32),
    ("uint64", 2**63),
]
FITTING = [("int64", 2**31 - 1), ("int64", -(2**31)), ("uint64", 2**32 - 1)]


def single(name: str, value: int, shape: tuple[int | None, ...] = ()) -> StoredDataset:
    """Three rows; `value` is in the second one."""
    schema = Schema((Column("n", Tensor(name, shape) if shape else Scalar(name)),))
    dtype = element_dtype(name)
    rows = [np.full(2 if shape else (), at, dtype)[()] for at in (1, value, 3)]
    return stored(MappedObjects(), schema, [[{"n": row} for row in rows]])


@pytest.mark.parametrize(("name", "value"), TOO_LARGE)
@pytest.mark.parametrize("shape", [(), (2,), (None,)], ids=["scalar", "tensor", "ragged"])
def test_an_integer_that_jax_would_cut_is_an_error_that_names_its_column(
    name: str, value: int, shape: tuple[int | None, ...]
) -> None:
    batches = stream(single(name, value, shape), batch_size=3, output="jax")
    with pytest.raises(InvalidInputError, match=rf"column .n. holds {value}, .*jax_enable_x64"):
        list(batches)


@pytest.mark.parametrize(("name", "value"), FITTING)
def test_wide_integers_that_fit_32_bits_reach_jax(name: str, value: int) -> None:
    batches = stream(single(name, value), batch_size=3, shuffle=False, output="jax")
    assert next(iter(batches))["n"].tolist() == [1, value, 3]


def test_a_padded_integer_that_jax_would_cut_names_its_column() -> None:
    batches = stream(single("int64", 2**40, (None,)), batch_size=3, output="jax", pad=0)
    with pytest.raises(InvalidInputError, match=f"column 'n' holds {2**40}"):
        list(batches)


MOMENTS = Schema((Column("x", Scalar("float32")), Column("when", Timestamp("us"))))
MOMENT = [{"x": np.float32(1), "when": np.datetime64("2025-06-01", "us")}]


def test_moments_are_refused_when_a_stream_for_jax_is_opened() -> None:
    ds = stored(MappedObjects(), MOMENTS, [MOMENT])
    with pytest.raises(InvalidInputError, match=r"column .when. holds moments.*jax_enable_x64"):
        stream(ds, batch_size=1, output="jax")
    assert next(iter(stream(ds, batch_size=1, output="jax", columns=["x"])))["x"].tolist() == [1]


def test_moments_stay_whole_where_jax_is_told_so() -> None:
    import jax

    ds = stored(MappedObjects(), MOMENTS, [MOMENT])
    with jax.enable_x64(True):
        batch = next(iter(stream(ds, batch_size=1, output="jax", prefetch=0)))
    assert batch["when"].tolist() == MOMENT[0]["when"].reshape(1).view(np.int64).tolist()


def test_what_a_transform_of_a_process_gives_is_not_cut_either() -> None:
    made = {"of": {"n": np.array([2**40])}}
    with pytest.raises(InvalidInputError, match="an array of int64 holds") as raised:
        map_leaves(made, numbers_as_jax)
    assert raised.value.__notes__ == ["that is what 'n' holds", "that is what 'of' holds"]


def test_a_stream_gives_jax_arrays_zeros_where_null_and_says_which() -> None:
    import jax

    ds = stored(MappedObjects(), SCHEMA, [ROWS])
    batch = next(iter(stream(ds, batch_size=6, shuffle=False, output="jax")))
    assert all(isinstance(batch[name], jax.Array) for name in ("x", "n", "b"))
    assert batch["x"].dtype == jax.numpy.bfloat16
    assert batch["x"][:, 0].tolist() == list(range(6))
    assert batch["n"].tolist() == [0, 0, 2, 0, 4, 0]
    assert batch.valid["n"].tolist() == [True, False] * 3
    assert isinstance(batch.valid["n"], jax.Array)
    assert [None if row is None else row.tolist() for row in batch["r"]] == [
        None if at == 3 else list(range(at)) for at in range(6)
    ]
    assert isinstance(batch["r"][2], jax.Array)
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
