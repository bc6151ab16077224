"""Frames: what comes out is what went in, as views of the frame's memory."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tensorrepo.formats.dataset.streaming.collate.batch import Batch
from tensorrepo.formats.dataset.streaming.collate.batch_frame import BatchFrame, read_frame
from tensorrepo.repo.errors import InvalidInputError

TORCH = [
    torch.bool, torch.uint8, torch.int16, torch.int64, torch.uint64, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


def ids_of(rows: Any) -> Any:
    return rows + 1000


def handed_over(value: Any) -> Any:
    frame = BatchFrame(value)
    memory = np.full(frame.bytes + 5, 0xEE, np.uint8)
    frame.write(memory)
    return read_frame(memory, frame.description_at, frame.description_bytes, ids_of)


def dtypes() -> st.SearchStrategy[np.dtype[Any]]:
    return st.one_of(
        npst.boolean_dtypes(),
        npst.integer_dtypes(endianness="="),
        npst.floating_dtypes(endianness="=", sizes=(16, 32, 64)),
        npst.complex_number_dtypes(endianness="=", sizes=(64, 128)),
        npst.datetime64_dtypes(endianness="="),
        npst.unicode_string_dtypes(endianness="=", max_len=5),
    )


def small_floats() -> st.SearchStrategy[Any]:
    bits = npst.array_shapes(min_side=0).flatmap(lambda shape: npst.arrays(np.uint16, shape))
    wide = bits.map(lambda array: array.view(ml_dtypes.bfloat16))
    narrow = st.sampled_from([ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
    return st.one_of(wide, st.tuples(bits, narrow).map(lambda drawn: drawn[0].view(drawn[1])))


def shown(value: Any) -> Any:
    """Type and content in a form that compares; NaN equals NaN."""
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: shown(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [shown(each) for each in value]
    return type(value), repr(value)


PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(), st.text(),
    st.binary(), dtypes().flatmap(lambda of: npst.arrays(of, npst.array_shapes(min_side=0))),
    small_floats(),
)  # fmt: skip
NESTED = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=4),
    ),
    max_leaves=8,
)


@given(NESTED)
def test_nested_values_come_out_as_they_went_in(value: Any) -> None:
    assert shown(handed_over(value)) == shown(value)


@pytest.mark.parametrize("dtype", TORCH, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (4, 3)], ids=str)
def test_tensors_of_every_type_come_out_as_they_went_in(dtype: Any, shape: Any) -> None:
    bits = np.random.default_rng(0).integers(0, 2, (*shape, dtype.itemsize), dtype=np.uint8)
    tensor = torch.from_numpy(bits.reshape(-1)).view(dtype).reshape(shape)
    found = handed_over(tensor)
    assert (found.dtype, found.shape) == (dtype, tensor.shape)
    assert found.reshape(-1).view(torch.uint8).numpy().tobytes() == bits.tobytes()


def test_arrays_come_as_writable_views_of_the_frame() -> None:
    frame = BatchFrame({"a": np.arange(5), "t": torch.arange(3)})
    memory = np.zeros(frame.bytes, np.uint8)
    frame.write(memory)
    found = read_frame(memory, frame.description_at, frame.description_bytes, ids_of)
    found["a"] += 1
    found["t"] += 1
    assert np.shares_memory(found["a"], memory)
    assert np.shares_memory(found["t"].numpy(), memory)
    assert memory[:40].view(np.int64).tolist() == [1, 2, 3, 4, 5]


def test_what_is_not_contiguous_is_laid_out_row_by_row() -> None:
    turned = np.arange(12).reshape(3, 4).T[::2]
    assert np.array_equal(handed_over(turned), turned)
    tensor = torch.arange(12).reshape(3, 4).T[::2]
    assert torch.equal(handed_over(tensor), tensor)


def test_masked_arrays_keep_their_mask() -> None:
    found = handed_over(np.ma.MaskedArray([1, 2, 3], [False, True, False]))
    assert found.tolist() == [1, None, 3]


@pytest.mark.parametrize(
    "array", [pa.array([1, None, 3]), pa.array(["a", None]), pa.array([[1], []])], ids=str
)
def test_arrow_arrays_come_out_equal(array: pa.Array) -> None:
    assert handed_over(array).equals(array)


def test_a_batch_keeps_its_attributes_and_finds_its_ids() -> None:
    batch = Batch({"x": np.arange(3)}, position=7, rows=np.array([4, 5, 6]), identify=ids_of)
    batch.valid["x"] = np.array([True, False, True])
    batch.repeated = 2
    found = handed_over(batch)
    assert type(found) is Batch
    assert (found.position, found.repeated) == (7, 2)
    assert found.valid["x"].tolist() == [True, False, True]
    assert found.row_ids.tolist() == [1004, 1005, 1006]


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, {2}]}, r"\['a'\]\[1\] is a set"),
        ((object(),), "is an object"),
        (np.array([{}, None]), "array of object"),
        (np.zeros(2, "i4,f8"), "array of"),
        ({(1, 2): 3}, "key that is a tuple"),
        (1 << 64, "more than 64 bits"),
        (torch.eye(2).to_sparse(), "sparse"),
        (torch.empty(2, device="meta"), "on meta"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_cannot_be_handed_over_is_named(value: Any, where: str) -> None:
    with pytest.raises(InvalidInputError, match=where):
        BatchFrame(value)
