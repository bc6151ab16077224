from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tensorrepo.formats.common.tensors import (
    SAFETENSORS_TYPES,
    TORCH_NAMES,
    TYPES,
    TensorType,
    memory_key,
    tensor_of,
)
from tensorrepo.repo.errors import InvalidInputError

STORED = [name for name in TYPES if TYPES[name].numpy is not None]


def bytes_of(value: Any) -> bytes:
    reader = tensor_of("x", value)
    data = bytearray(reader.type.bytes_of(reader.shape))
    reader.read_into(0, memoryview(data))
    return bytes(data)


@st.composite
def views(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Arrays as users have them: transposed, reversed, every second row, read-only."""
    dtype = TYPES[draw(st.sampled_from(STORED))].numpy
    assert dtype is not None, "only types that numpy has are drawn"
    order = draw(st.sampled_from("<>"))
    array = draw(arrays.arrays(dtype.newbyteorder(order), arrays.array_shapes(max_dims=4)))
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    step = draw(st.sampled_from([1, 2, -1, -3]))
    return array[::step]


@given(views())
def test_any_view_hands_over_its_elements_in_c_order_little_endian(array: Any) -> None:
    assert bytes_of(array) == array.astype(array.dtype.newbyteorder("<")).tobytes("C")


@given(views(), st.data())
def test_any_range_is_the_range_of_the_whole(array: Any, data: st.DataObject) -> None:
    whole, size = bytes_of(array), array.itemsize
    start = data.draw(st.integers(0, array.size))
    stop = data.draw(st.integers(start, array.size))
    part = bytearray((stop - start) * size)
    tensor_of("x", array).read_into(start * size, memoryview(part))
    assert bytes(part) == whole[start * size : stop * size]


@pytest.mark.parametrize("name", STORED)
def test_every_numpy_type_has_its_name(name: str) -> None:
    reader = tensor_of("x", np.zeros((2, 3), TYPES[name].numpy))
    assert (reader.type, reader.shape) == (TYPES[name], (2, 3))


def test_a_scalar_has_no_dimensions() -> None:
    assert tensor_of("x", np.float32(1.5)).shape == ()
    assert bytes_of(np.float32(1.5)) == np.float32(1.5).tobytes()


@pytest.mark.parametrize(
    "value",
    [
        np.array(["a"]),
        np.array([object()]),
        np.array([b"a"]),
        np.zeros(2, "M8[s]"),
        np.zeros(2, [("a", "i4")]),
        np.zeros(2, np.longdouble),
        np.ma.MaskedArray([1.0, 2.0], [False, True]),
        [1, 2],
        1.0,
        None,
    ],
    ids=lambda value: str(getattr(value, "dtype", type(value))),
)
def test_what_is_no_tensor_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidInputError, match=r"'layer\.weight'"):
        tensor_of("layer.weight", value)


@pytest.mark.parametrize("blocks", [(0, 1), (3, 1), (1, 0), (1, 17), (8192, 1)])
def test_a_block_is_a_power_of_two_of_elements_in_few_bytes(blocks: tuple[int, int]) -> None:
    with pytest.raises(InvalidInputError):
        TensorType("X", *blocks)


@pytest.mark.parametrize("shape", [(-1,), (3,), (1 << 62,), (1 << 40, 1 << 40), (2,) * 65])
def test_a_shape_that_no_tensor_has_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InvalidInputError):
        TYPES["F4"].bytes_of(shape)


def test_types_stand_in_the_order_of_safetensors_own_list() -> None:
    assert SAFETENSORS_TYPES[0] == "BOOL"
    assert SAFETENSORS_TYPES[-1] == "U64"
    assert not {"C32", "C128", "OPAQUE"} & set(SAFETENSORS_TYPES)


def test_the_same_memory_has_the_same_key() -> None:
    array = np.arange(12.0).reshape(3, 4)
    assert memory_key(array) == memory_key(array[:])


@pytest.mark.parametrize(
    "other",
    [
        lambda array: array.copy(),
        lambda array: array.T,
        lambda array: array[1:],
        lambda array: array.reshape(4, 3),
        lambda array: array.view("<i8"),
    ],
)
def test_other_memory_or_another_view_of_it_has_another_key(other: Any) -> None:
    array = np.arange(12.0).reshape(3, 4)
    assert memory_key(array) != memory_key(other(array))


def test_arrays_without_elements_are_never_one() -> None:
    assert memory_key(np.zeros((0, 3))) is None


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("name", TORCH_NAMES)
def test_every_torch_type_is_read_as_it_lies_in_memory(name: str) -> None:
    torch = pytest.importorskip("torch")
    element = TYPES[name]
    raw = torch.arange(48 * element.block_bytes, dtype=torch.uint8).reshape(6, -1)
    tensor = raw.view(getattr(torch, TORCH_NAMES[name]))
    reader = tensor_of("x", tensor)
    assert reader.type is element
    assert math.prod(reader.shape) == tensor.numel() * element.block_elements
    assert bytes_of(tensor) == raw.numpy().tobytes()
    # By bytes: torch's copy of a bool is whether it is 0.
    items = raw.reshape(*tensor.shape, tensor.element_size())
    assert bytes_of(tensor.t()) == items.transpose(0, 1).contiguous().numpy().tobytes()
    assert bytes_of(tensor[2:4]) == raw[2:4].numpy().tobytes()


def test_torch_parameters_strides_and_lazy_conjugates_are_stored_as_they_read() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.complex(torch.arange(6.0), torch.ones(6))
    assert bytes_of(tensor.conj()) == tensor.conj().resolve_conj().numpy().tobytes()
    one = torch.arange(5.0)[None, 4::5]
    assert one.stride(-1) != 1
    assert bytes_of(one) == np.array([4], "<f4").tobytes()
    weight = torch.nn.Parameter(torch.ones(2, 3))
    assert bytes_of(weight) == np.ones((2, 3), "<f4").tobytes()


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
@pytest.mark.parametrize(
    "make",
    [
        lambda torch: torch.zeros(2, device="meta"),
        lambda torch: torch.eye(3).to_sparse(),
        lambda torch: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    ],
)
def test_torch_tensors_without_plain_data_are_refused_by_name(make: Any) -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(InvalidInputError, match=r"'a\.b'"):
        tensor_of("a.b", make(torch))


def test_a_torch_view_of_other_shape_or_place_is_another_tensor() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.zeros(4, 4)
    assert memory_key(tensor) == memory_key(tensor.detach())
    others = [tensor.t()[:2], tensor[1:], tensor.clone(), tensor.view(2, 8)]
    assert memory_key(tensor) not in {memory_key(other) for other in others}


@pytest.mark.parametrize(
    "other",
    [lambda value: value.conj(), lambda value: value.imag, lambda value: value.conj().imag],
)
def test_numbers_that_torch_changes_when_they_are_read_have_another_key(other: Any) -> None:
    torch = pytest.importorskip("torch", reason="pip install tensorrepo[torch]")
    value = torch.arange(8) * (1 + 2j)
    keys = {memory_key(value), memory_key(value.imag), memory_key(value.conj().imag)}
    assert len(keys) == 3
    assert memory_key(other(value)) == memory_key(other(value))
    assert memory_key(other(value)) != memory_key(value)


def test_a_bool_of_torch_hands_over_its_byte() -> None:
    torch = pytest.importorskip("torch", reason="pip install tensorrepo[torch]")
    given = torch.arange(64, dtype=torch.uint8).view(torch.bool).reshape(8, 8).T
    found = np.zeros(64, np.uint8)
    tensor_of("mask", given).read_into(0, found.data)
    assert found.tolist() == np.arange(64).reshape(8, 8).T.reshape(-1).tolist()


def test_two_numbers_without_a_dimension_are_refused() -> None:
    torch = pytest.importorskip("torch", reason="pip install tensorrepo[torch]")
    pair = torch.zeros((), dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    with pytest.raises(InvalidInputError, match=r"'pair'.*reshape it to \(1,\)"):
        tensor_of("pair", pair)


def test_arrays_of_jax_are_tensors_with_their_bits() -> None:
    jax = pytest.importorskip("jax")
    for dtype in ("float32", "bfloat16", "int8"):
        array = jax.numpy.asarray([1.5, -2, 3]).astype(dtype)
        assert bytes_of(array) == np.asarray(array).tobytes()
        assert tensor_of("x", array).shape == (3,)


@pytest.mark.parametrize("tree", [{"w": np.ones(2)}, [np.ones(2)]])
def test_trees_are_refused_with_what_takes_them(tree: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"tensor 'x'.*`repo.checkpointer\(run\)`"):
        tensor_of("x", tree)
