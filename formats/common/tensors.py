"""Tensor types and readers: element types, shapes, and bytes of arrays and torch tensors.

Element types are named as safetensors names them. A type is a block: so many elements in so many
bytes, (1, 4) for F32, (2, 1) for F4. A tensor's bytes are its elements in C order, little-endian.

Source:
    docs/spec/model.md, section "Element types".
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from math import prod
from typing import Any, Final, Literal, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import counted
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError

MAX_DIMS: Final = 64
MAX_TENSOR_BYTES: Final = 1 << 62
MAX_ELEMENT_BYTES: Final = 16  # keeps a frame of 2^19 elements within 8 MiB
_MAX_BLOCK_ELEMENTS: Final = 1 << 12

TensorOutput = Literal["numpy", "torch"]


@dataclass(frozen=True, slots=True)
class TensorType:
    """`block_elements` elements lie in `block_bytes` bytes."""

    name: str
    block_elements: int
    block_bytes: int

    def __post_init__(self) -> None:
        elements, size = self.block_elements, self.block_bytes
        if not 1 <= elements <= _MAX_BLOCK_ELEMENTS or elements & (elements - 1):
            raise InvalidInputError(f"type {self.name!r:.40}: {elements} elements in a block")
        if not 1 <= size <= MAX_ELEMENT_BYTES * elements:
            raise InvalidInputError(f"type {self.name!r:.40}: {size} bytes in a block")
        if not (0 < len(self.name) <= 32 and self.name.isascii() and self.name.isprintable()):
            raise InvalidInputError(f"type name {self.name!r:.40}: 1 to 32 ASCII characters")

    @property
    def numpy(self) -> np.dtype[Any] | None:
        """The numpy type with this meaning, None where numpy has none (BF16, F8, blocks)."""
        return _NUMPY.get(self.name)

    @property
    def units(self) -> np.dtype[Any]:
        """What arrays of this type hold: `numpy`, else unsigned integers with the bits.

        Bytes, for types whose blocks are no unsigned integer.
        """
        known = self.numpy
        if known is not None:
            return known
        whole = self.block_elements == 1 and self.block_bytes in {1, 2, 4, 8}
        return np.dtype(f"<u{self.block_bytes}" if whole else "u1")

    def bytes_of(self, shape: tuple[int, ...]) -> int:
        """Bytes of a tensor. Raises InvalidInputError: no shape, too large, or no whole blocks."""
        return _size_of(self.name, self.block_elements, self.block_bytes, shape)

    def units_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of the array of `units`: a last dimension of blocks is counted in bytes."""
        if self.block_bytes == self.units.itemsize and self.block_elements == 1:
            return shape
        if not shape or shape[-1] % self.block_elements:
            return (self.bytes_of(shape),)
        return (*shape[:-1], shape[-1] // self.block_elements * self.block_bytes)


def named_bytes(name: str, element: TensorType, shape: tuple[int, ...]) -> int:
    """As `TensorType.bytes_of`; an error names the tensor."""
    try:
        return element.bytes_of(shape)
    except InvalidInputError as error:
        raise InvalidInputError(f"tensor {name!r:.80}: {error}") from error


@lru_cache(4096)  # models have few shapes, and ask for the bytes of each tensor several times
def _size_of(name: str, block_elements: int, block_bytes: int, shape: tuple[int, ...]) -> int:
    if len(shape) > MAX_DIMS or any(dim < 0 or dim >= MAX_TENSOR_BYTES for dim in shape):
        raise InvalidInputError(
            f"shape {shape!s:.80}: expected up to {MAX_DIMS} dimensions of 0 to "
            f"{MAX_TENSOR_BYTES - 1}"
        )
    elements = prod(shape)
    if elements % block_elements:
        raise InvalidInputError(
            f"shape {shape!s:.80}: {elements} elements are no whole number of {name} blocks of "
            f"{block_elements}"
        )
    size = elements // block_elements * block_bytes
    if size > MAX_TENSOR_BYTES:
        raise InvalidInputError(
            f"shape {shape!s:.80} of {name} takes {size} bytes, at most {MAX_TENSOR_BYTES} are "
            "stored"
        )
    return size


# Names of each block form (elements, bytes), in the order of safetensors' own list: its writer puts
# later types first. GGUF's blocks hold scales and small integers together.
_FORMS: Final = (
    ((1, 1), "BOOL"),
    ((2, 1), "F4"),
    ((4, 3), "F6_E2M3 F6_E3M2"),
    ((1, 1), "U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ"),
    ((1, 2), "I16 U16 F16 BF16"),
    ((1, 4), "I32 U32 F32"),
    ((1, 8), "C64 F64 I64 U64"),
    # Ours: safetensors has no name for these.
    ((1, 4), "C32"), ((1, 16), "C128"), ((1, 1), "OPAQUE"),
    # ONNX's: several in a byte, the first one lowest.
    ((2, 1), "I4 U4"), ((4, 1), "I2 U2"),
    ((128, 18), "Q1_0"), ((32, 18), "Q4_0 IQ4_NL"), ((32, 20), "Q4_1"), ((32, 22), "Q5_0"),
    ((32, 24), "Q5_1"), ((32, 34), "Q8_0"), ((32, 40), "Q8_1"), ((256, 84), "Q2_K"),
    ((256, 110), "Q3_K IQ3_S"), ((256, 144), "Q4_K"), ((256, 176), "Q5_K"), ((256, 210), "Q6_K"),
    ((256, 292), "Q8_K"), ((256, 50), "IQ1_S"), ((256, 56), "IQ1_M"), ((256, 74), "IQ2_XS"),
    ((256, 66), "IQ2_XXS TQ2_0"), ((256, 82), "IQ2_S"), ((256, 98), "IQ3_XXS"),
    ((256, 136), "IQ4_XS"), ((256, 54), "TQ1_0"), ((32, 17), "MXFP4"), ((64, 36), "NVFP4"),
)  # fmt: skip
TYPES: Final = {name: TensorType(name, *form) for form, names in _FORMS for name in names.split()}
SAFETENSORS_TYPES: Final = tuple(TYPES)[:22]
_NUMPY: Final = {
    name: np.dtype(code)
    for name, code in {
        "BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "F16": "<f2",
        "I32": "<i4", "U32": "<u4", "F32": "<f4", "C64": "<c8", "F64": "<f8", "I64": "<i8",
        "U64": "<u8", "C128": "<c16",
    }.items()
}  # fmt: skip
ML_DTYPES: Final = {
    "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
}  # fmt: skip
# By numpy's name, and by those of the ml_dtypes package, which numpy shows for its arrays.
_BY_NUMPY_NAME: Final = {str(dtype.name): name for name, dtype in _NUMPY.items()} | {
    word: name for name, word in ML_DTYPES.items()
}
TORCH_NAMES: Final = {
    **{name: str(dtype.name) for name, dtype in _NUMPY.items()},
    **ML_DTYPES,
    "F4": "float4_e2m1fn_x2",
    "C32": "complex32",
}
TYPES_BY_TORCH_NAME: Final = {torch: TYPES[name] for name, torch in TORCH_NAMES.items()}


class TensorReader(Protocol):
    """A tensor somewhere: in memory, in a file, in a repository."""

    @property
    def type(self) -> TensorType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    def read_into(self, start_byte: int, buffer: memoryview) -> None:
        """Fill `buffer` with the tensor's bytes from `start_byte`. Thread-safe.

        Both ends lie between blocks.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class MemoryTensor:
    """A tensor whose bytes lie in memory as they would be stored."""

    type: TensorType
    shape: tuple[int, ...]
    data: memoryview

    def read_into(self, start_byte: int, buffer: memoryview) -> None:
        buffer[:] = self.data[start_byte : start_byte + buffer.nbytes]


class ArrayTensor(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A tensor in memory: `array` is numpy's or torch's, with one item per block."""

    array: Any
    type: TensorType
    shape: tuple[int, ...]

    def read_into(self, start_byte: int, buffer: memoryview) -> None:
        """Copies the range alone, also of a strided array and from another device."""
        if buffer.nbytes:
            data = self.bytes_at(start_byte, buffer.nbytes)
            np.frombuffer(buffer, np.uint8)[:] = data

    def bytes_at(self, start_byte: int, size_bytes: int) -> NDArray[np.uint8]:
        """Some of the tensor's bytes: where they lie, if that is as they would be stored."""
        data = _plain_bytes(self.array)
        if data is not None:
            return data[start_byte : start_byte + size_bytes]
        unit = self.type.block_bytes
        return _bytes_of(_gather(self.array, start_byte // unit, (start_byte + size_bytes) // unit))


def read_rows(readers: Sequence[TensorReader], rows: NDArray[np.uint8]) -> int:
    """Fill row after row with whole tensors of one type and shape.

    Arrays in memory are copied in one call.

    Returns:
        Number of the tensors that were read: where it is less than all, the next one's `read_into`
        says what is wrong.
    """
    arrays = [one.array for one in readers if type(one) is ArrayTensor]
    dtype = arrays[0].dtype if arrays else None
    is_native = isinstance(dtype, np.dtype) and dtype.isnative and len(arrays) == len(readers)
    if is_native and all(type(one) is np.ndarray and one.dtype == dtype for one in arrays):
        flat = [one if one.ndim == 1 else one.reshape(-1) for one in arrays]
        np.concatenate(flat, out=rows.reshape(-1).view(dtype))
        return len(readers)
    for at, reader in enumerate(readers):
        try:
            reader.read_into(0, rows[at].data)
        except InvalidInputError:
            return at
    return len(readers)


def _plain_bytes(array: Any) -> NDArray[np.uint8] | None:
    """All bytes of a torch tensor that lie in memory as they are stored, in few calls of torch."""
    if isinstance(array, np.ndarray) or not array.ndim or not array.is_contiguous():
        return None
    # A last dimension of one item may have any stride; torch does not view that as bytes.
    if array.stride(-1) != 1 or array.device.type != "cpu" or array.is_conj() or array.is_neg():
        return None
    import torch

    data: NDArray[np.uint8] = array.view(torch.uint8).numpy().reshape(-1)
    return data


def _gather(array: Any, start: int, stop: int) -> Any:
    """Items ``[start, stop)`` in C order, flat: a view where the array is contiguous."""
    if array.ndim <= 1:
        return array.reshape(-1)[start:stop]
    row = prod(array.shape[1:])
    first, last = start // row, -(-stop // row)
    before = first * row
    if last - first == 1:
        return _gather(array[first], start - before, stop - before)
    return array[first:last].reshape(-1)[start - before : stop - before]


def _bytes_of(flat: Any) -> NDArray[np.uint8]:
    if isinstance(flat, np.ndarray):
        little = flat.astype(flat.dtype.newbyteorder("<"), copy=False)
        return np.ascontiguousarray(little).view(np.uint8)
    import torch

    plain = flat.resolve_conj().resolve_neg().contiguous()
    if plain.stride(-1) != 1:  # one item is contiguous whatever its stride
        plain = plain.clone(memory_format=torch.contiguous_format)
    packed: NDArray[np.uint8] = plain.view(torch.uint8).cpu().numpy()
    return packed


def tensor_of(name: str, value: object) -> TensorReader:
    """`value` (array of numpy or JAX, torch tensor, TensorReader) as a tensor called `name`.

    Raises:
        InvalidInputError: not a tensor, or of a type that cannot be stored.
    """
    if isinstance(value, (np.ndarray, np.generic)):
        if masked := int(np.count_nonzero(np.ma.getmask(value))):
            raise InvalidInputError(
                f"tensor {name!r}: {counted(masked, 'element')} masked, and a tensor has no "
                "missing values; say what stands for them: array.filled(value)"
            )
        return _from_numpy(name, np.asarray(value))
    if is_torch(value):
        return _from_torch(name, value)
    if hasattr(value, "read_into"):
        return value  # type: ignore[return-value]  # the protocol, told by its one method
    if _is_jax(value):
        return _from_jax(name, value)
    is_tree = isinstance(value, dict | list | tuple)
    raise InvalidInputError(
        f"tensor {name!r}: expected an array of numpy or JAX, or a torch tensor, got "
        f"{type(value).__name__}" + _ABOUT_TREES * is_tree
    )


_ABOUT_TREES: Final = (
    ". The tensors of a model have names, and no tree: join its keys to names, or keep trees with "
    "`repo.checkpointer(run)`"
)


def _is_jax(value: object) -> bool:
    """Whether this is an array of JAX, told without importing it."""
    is_of_jax = type(value).__module__.partition(".")[0] in {"jax", "jaxlib"}
    return is_of_jax and hasattr(value, "__array__") and hasattr(value, "addressable_shards")


def is_torch(value: object) -> bool:
    """Whether this is a torch tensor, told without importing torch."""
    return _is_plain_torch(value) or any(
        base.__module__ == "torch" and base.__name__ == "Tensor" for base in type(value).__mro__
    )


def _is_plain_torch(value: object) -> bool:
    """Whether this is a torch tensor, and of no subclass: it has memory of its own."""
    kind = type(value)
    return kind.__name__ == "Tensor" and kind.__module__ == "torch"


def _from_numpy(name: str, array: NDArray[Any]) -> ArrayTensor:
    known = _BY_NUMPY_NAME.get(array.dtype.name)
    if known is None:
        raise InvalidInputError(
            f"tensor {name!r}: numpy type {array.dtype} cannot be stored; "
            f"use one of {', '.join(sorted(_BY_NUMPY_NAME))}"
        )
    element = TYPES[known]
    return ArrayTensor(
        array if element.numpy is not None else array.view(element.units), element, array.shape
    )


def _from_jax(name: str, value: Any) -> ArrayTensor:
    if not value.is_fully_addressable:
        raise InvalidInputError(
            f"tensor {name!r}: parts of this array of JAX lie at other processes; gather it first, "
            "by jax.experimental.multihost_utils.process_allgather"
        )
    return _from_numpy(name, np.asarray(value))


def _from_torch(name: str, value: Any) -> ArrayTensor:
    element = _type_of_torch(value.dtype)
    if element is not None and _lies_as_stored(value):
        shape = tuple(value.shape)
        if element.block_elements == 1 and shape:
            return ArrayTensor(_items_in_memory(value, element), element, shape)
    fault = (
        f"type {value.dtype} cannot be stored"
        if element is None or value.is_quantized
        else "it has no data (device 'meta')"
        if value.device.type == "meta"
        else f"layout {value.layout} cannot be stored; call .to_dense()"
        if str(value.layout) != "torch.strided"
        else "it is one rank's share of a tensor; call .full_tensor()"
        if hasattr(value, "full_tensor")
        else None
    )
    if element is None or fault:
        raise InvalidInputError(f"tensor {name!r}: {fault}")
    shape = tuple(int(dim) for dim in value.shape)
    if element.block_elements > 1:  # float4_e2m1fn_x2: torch counts pairs
        if not shape:
            raise InvalidInputError(
                f"tensor {name!r}: {value.dtype} without a dimension is two numbers; reshape it to "
                "(1,)"
            )
        shape = (*shape[:-1], shape[-1] * element.block_elements)
    return ArrayTensor(_items_in_memory(_bits_of(value.detach()), element), element, shape)


@lru_cache
def _type_of_torch(dtype: Any) -> TensorType | None:
    return TYPES_BY_TORCH_NAME.get(str(dtype).removeprefix("torch."))


def _is_strided(value: Any) -> bool:
    import torch

    return value.layout is torch.strided


def _lies_as_stored(value: Any) -> bool:
    """Whether all is well with a torch tensor, as it is with most: told in few calls."""
    import torch

    return (
        _is_plain_torch(value)
        and not value.requires_grad
        and _is_strided(value)
        and value.dtype is not torch.bool
        and value.device.type == "cpu"
        and not value.is_quantized
    )


def _items_in_memory(array: Any, element: TensorType) -> Any:
    """A torch tensor as numpy sees its items, flat, where they lie in memory as they are stored.

    Here, where one tensor is looked at after the other: between frames, whose bytes drive torch's
    code out of the processor's cache, the same calls take ten times as long.
    """
    import torch

    # A subclass may have no memory at all, as fake tensors do.
    data = _plain_bytes(array) if type(array) is torch.Tensor and array.numel() else None
    return array if data is None else data.view(_void(element.block_bytes))


@lru_cache
def _void(size: int) -> np.dtype[Any]:
    """The type of items of so many bytes."""
    return np.dtype((np.void, size))


def _bits_of(value: Any) -> Any:
    """A bool as its byte, of which a copy by torch would keep only whether it is 0."""
    import torch

    return value.view(torch.uint8) if value.dtype == torch.bool else value


def memory_address(value: object) -> int | None:
    """Where an array begins, equal for those whose `memory_key` is; None where only that tells."""
    if isinstance(value, np.ndarray):
        address: int = value.__array_interface__["data"][0]
        return address
    if not _is_plain_torch(value) or not _is_strided(value):
        return None
    place: int = value.data_ptr()  # type: ignore[attr-defined]  # a torch tensor, told without importing torch
    return place


def memory_key(value: object) -> tuple[object, ...] | None:
    """Equal for two tensors in memory that are one: same storage, offset, shape and stride.

    None where that means nothing: no elements, or not in memory.
    """
    if isinstance(value, np.ndarray) and value.size:
        address = value.__array_interface__["data"][0]
        return "numpy", address, value.dtype.str, value.shape, value.strides
    if is_torch(value) and value.numel() and str(value.layout) == "torch.strided":  # type: ignore[attr-defined]  # a torch tensor, told without importing torch
        return _torch_key(value)
    return None


def _torch_key(value: Any) -> tuple[object, ...] | None:
    address = value.untyped_storage().data_ptr()
    place = str(value.device), value.storage_offset(), tuple(value.shape), value.stride()
    # Conjugated or negated are other numbers in the same memory.
    means = str(value.dtype), value.is_conj(), value.is_neg()
    return ("torch", address, *means, *place) if address else None


def array_of(data: memoryview | NDArray[Any], element: TensorType, shape: tuple[int, ...]) -> Any:
    """The tensor as a numpy array of `element.units`, a view into `data`."""
    return np.frombuffer(data, element.units).reshape(element.units_shape(shape))


def import_library(module: str, missing: str) -> Any:
    """An optional library; UnsupportedError, which says what is `missing`, where there is none."""
    try:
        return import_module(module)
    except ImportError as error:
        # A library that is there, but lacks another one, says so.
        cause = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        raise UnsupportedError(missing + cause) from error


def import_torch(instead: str) -> Any:
    """The package torch; UnsupportedError, which says what to do `instead`, where it is missing."""
    missing = f"torch is not installed: `pip install tensorrepo[torch]`, or {instead}"
    return import_library("torch", missing)


def torch_of(data: memoryview, element: TensorType, shape: tuple[int, ...]) -> Any:
    """The tensor as a torch tensor that shares the (writable) memory of `data`.

    Raises:
        UnsupportedError: torch is not installed, or has no such type.
    """
    torch = import_torch("ask for numpy arrays")
    dtype = getattr(torch, TORCH_NAMES.get(element.name, ""), None)
    if dtype is None:
        raise UnsupportedError(f"torch has no type {element.name}; ask for numpy arrays")
    if element.block_elements > 1:
        shape = element.units_shape(shape)
    if not data.nbytes:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape)
