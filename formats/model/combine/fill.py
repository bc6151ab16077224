"""What values does a tensor get that nobody has?

A rule's numbers are a function of the tensor's name, the seed and the place in it: any stretch can
be made alone, and every machine makes the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod, sqrt
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from blake3 import blake3

from tensorrepo.formats.model.frames import FRAME_ELEMENTS, frame_bytes
from tensorrepo.formats.model.rounding import ROUNDABLE, rounded
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.formats.tensors import TensorType

RULES: Final = ("default", "normal", "ones", "uniform", "zeros")
NORMAL_DEVIATION: Final = 0.02
_SUMMANDS: Final = 12


@dataclass(frozen=True, slots=True)
class FilledTensor:
    """A `TensorReader` of a rule's numbers: `low` + (`high` - `low`) * a draw, constant if equal.

    `summands`: how many draws from [0, 1) each number is the sum of.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    low: float
    high: float
    summands: int
    seed: int

    def read_into(self, start_byte: int, buffer: memoryview) -> None:
        size, at = frame_bytes(self.type), 0
        while at < buffer.nbytes:
            frame, skip = divmod(start_byte + at, size)
            part = min(size - skip, buffer.nbytes - at)
            data = rounded(self._values(frame), self.type)
            np.frombuffer(buffer, np.uint8)[at : at + part] = data[skip : skip + part]
            at += part

    def _values(self, frame: int) -> NDArray[Any]:
        count = min(FRAME_ELEMENTS, prod(self.shape) - frame * FRAME_ELEMENTS)
        if self.low == self.high:
            values = np.full(count, self.low)
        else:
            values = self.low + (self.high - self.low) * self._draws(frame, count)
        return values.astype(np.complex128) if self.type.name[0] == "C" else values

    def _draws(self, frame: int, count: int) -> NDArray[np.float64]:
        key = blake3(f"{self.seed}/{frame}/{self.name}".encode()).digest(16)
        # Raw bits of a counter-based generator: unlike its distributions, they never change.
        source = np.random.Philox(key=int.from_bytes(key, "little"))
        total = np.zeros(count)
        for _ in range(self.summands):
            bits: NDArray[np.uint64] = np.asarray(source.random_raw(count), np.uint64)
            total += (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
        return total / self.summands


def filled(
    name: str, element: TensorType, shape: tuple[int, ...], rule: str, seed: int
) -> FilledTensor:
    """A tensor by a rule.

    "zeros" and "ones" are that. "uniform" draws from (-1, 1) over the root of the fan-in, the
    product of all dimensions but the first. "normal" has mean 0 and deviation 0.02, as the mean of
    12 uniform draws, which is bounded at six deviations. "default" is "uniform" for two dimensions
    or more, ones for what is called "weight" else, zeros for the rest.

    Raises:
        InvalidInputError: an unknown rule, or a type that has no such numbers.
    """
    if rule not in RULES:
        raise InvalidInputError(f"no rule {rule!r:.40}: there are {', '.join(RULES)}")
    if element.name not in ROUNDABLE and rule != "zeros" and not _is_counter(element):
        raise InvalidInputError(f"tensor {name!r:.80}: no rule fills {element.name}; give it")
    if element.name not in ROUNDABLE:
        return _Zeros(name, element, shape, 0, 0, 0, seed)
    low, high, summands = _bounds(name, shape, rule)
    return FilledTensor(name, element, shape, low, high, summands, seed)


class _Zeros(FilledTensor):
    """All bits zero, of any type: counters, masks."""

    __slots__ = ()

    def read_into(self, start_byte: int, buffer: memoryview) -> None:  # noqa: ARG002  # the protocol's
        np.frombuffer(buffer, np.uint8)[:] = 0


def _is_counter(element: TensorType) -> bool:
    return element.numpy is not None and element.numpy.kind in "iub"


def _bounds(name: str, shape: tuple[int, ...], rule: str) -> tuple[float, float, int]:
    if rule == "default":
        if len(shape) < 2:
            rule = "ones" if name.rpartition(".")[2] == "weight" else "zeros"
        else:
            rule = "uniform"
    if rule == "normal":
        # The mean of n draws from [0, 1) has the deviation 1 / sqrt(12 n).
        half = NORMAL_DEVIATION * sqrt(12 * _SUMMANDS) / 2
        return -half, half, _SUMMANDS
    if rule == "uniform":
        bound = 1 / sqrt(max(1, prod(shape[1:])))
        return -bound, bound, 1
    value = 1.0 if rule == "ones" else 0.0
    return value, value, 0
