"""Similarity signatures of tensors: systematic samples, compared by their Hamming distance.

A signature is 256 elements' highest 16 bits, taken at equal steps through the tensor, and no hash:
the bits that differ between two signatures, per element, estimate the bits that differ between the
tensors: about 5.5 of 16 for independent weights in bf16, under 3 for a fine-tuned model and its
base.

Source:
    docs/spec/model.md, section "Signatures".
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.tensors import MemoryTensor, TensorReader, TensorType

SIGNATURE_ITEMS: Final = 256
LEAST_ELEMENTS: Final = 1 << 16  # of a tensor that has a signature
ALIKE_BITS: Final = 4.3  # tensors that differ by less, of 16 bits, are worth a trial
SIGNATURE: Final = np.dtype(
    [("member", "<u4"), ("zero", "<u4"), ("items", "<u2", (SIGNATURE_ITEMS,))]
)


def signature(reader: TensorReader) -> NDArray[np.uint16] | None:
    """The signature of a tensor; None where it is too small, or elements are no whole bytes."""
    element = reader.type
    size = element.bytes_of(reader.shape)
    if element.block_elements != 1 or size // element.block_bytes < LEAST_ELEMENTS:
        return None
    step = size // element.block_bytes // SIGNATURE_ITEMS
    if isinstance(reader, MemoryTensor):
        items = np.frombuffer(reader.data, np.uint8).reshape(-1, element.block_bytes)
        return highest_bits(items[: SIGNATURE_ITEMS * step : step], element)
    taken = np.empty((SIGNATURE_ITEMS, element.block_bytes), np.uint8)
    for at, row in enumerate(taken):
        reader.read_into(at * step * element.block_bytes, row.data)
    return highest_bits(taken, element)


def look(reader: TensorReader) -> NDArray[np.uint16] | None:
    """As `signature`, of a tensor so small that it is read whole; None for elements of no bytes."""
    element = reader.type
    whole = np.empty(element.bytes_of(reader.shape), np.uint8)
    if element.block_elements != 1 or not whole.size:
        return None
    reader.read_into(0, whole.data)
    items = whole.reshape(-1, element.block_bytes)
    return highest_bits(items[:: max(1, len(items) // SIGNATURE_ITEMS)], element)


def highest_bits(items: NDArray[np.uint8], element: TensorType) -> NDArray[np.uint16]:
    """The highest 16 bits of each row of bytes; of complex numbers those of the real part."""
    half = element.block_bytes // 2 if element.name in {"C32", "C64", "C128"} else None
    wide = items[:, :half]
    high: NDArray[np.uint16] = wide[:, -1].astype(np.uint16) << np.uint16(8)
    return high if wide.shape[1] == 1 else high | wide[:, -2]


def as_float32_bits(halves: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """The highest 16 bits that numbers of F16 have in F32, to be compared with those of F32."""
    wide = halves.view("<f2").astype("<f4").view("<u4")
    return (wide >> np.uint32(16)).astype(np.uint16)


def distance(one: NDArray[np.uint16], other: NDArray[np.uint16]) -> float:
    """Bits that differ per element, of 16."""
    return float(np.bitwise_count(one ^ other).mean())
