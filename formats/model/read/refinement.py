"""Progressive reads of a model: high planes first, further ones added to what is there.

    refine(2) -> the two most significant bytes of each number; refine(3) -> one more; ...

Each plane is read once and stays in memory: all refinements together read what a whole read would.
Only tensors that are stored as byte planes come by parts. Others (raw, deltas, palettes, small
ones) come whole with the first refinement, and are exact from then on.

What is not read yet bounds each number: its magnitude grows with every unknown bit.
"""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import field
from functools import partial
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.tensors import TensorType
from tensorrepo.formats.model.delta.frame_codec import numbers_of
from tensorrepo.formats.model.layout.fingerprints import frame_bytes
from tensorrepo.formats.model.layout.number_values import numbers
from tensorrepo.formats.model.read.frames import StoredFrames
from tensorrepo.formats.model.read.members import MemberPlace, about_frame
from tensorrepo.formats.model.stored_model import DEFAULT_THREADS, StoredModel
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, NotFoundError, UnsupportedError

FIRST_PLANES: Final = 2  # a float's sign lies in its second plane
Bounds = tuple[NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class _Held:
    """What is in memory of a tensor: bytes, zero where unknown, and how much of each frame."""

    type: TensorType
    shape: tuple[int, ...]
    data: NDArray[np.uint8]
    known: list[int]

    @property
    def planes(self) -> int:
        """Planes of each number, all of them."""
        return numbers_of(self.type).size

    @property
    def is_whole(self) -> bool:
        return all(known == self.planes for known in self.known)


@dataclass(slots=True)
class RefinedModel:
    """A model of which more and more bytes of each number are in memory.

    Not for several threads at once.

    Attributes:
        stored: the model.
        read_bytes: stored bytes that were read until now, bases of deltas counted once.
    """

    stored: StoredModel
    read_bytes: int = 0
    _held: dict[str, _Held] = field(default_factory=dict)
    _bases: set[MemberPlace] = field(default_factory=set)

    @property
    def is_whole(self) -> bool:
        """Whether every number is exact."""
        done = len(self._held) == len(self.stored.tensors)
        return done and all(held.is_whole for held in self._held.values())

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory that it takes."""
        return sum(held.data.nbytes for held in self._held.values())

    def refine(self, planes: int | None, *, threads: int = DEFAULT_THREADS) -> None:
        """Have the `planes` most significant bytes of each number, at least two; None: all.

        Raises:
            CorruptError: stored bytes are damaged; names the tensor.
        """
        with ThreadPoolExecutor(threads) as pool:
            for name in self.stored.tensors:
                self._refine(name, planes, pool)

    def bounds(self, name: str) -> Bounds:
        """Least and largest value of each number, float64 of the tensor's shape.

        The same array twice where they are exact.

        Raises:
            UnsupportedError: its elements are no real numbers.
        """
        held = self._held[self.stored.aliases.get(name, name)]
        low = _values(name, held, held.data)
        if held.is_whole:
            return low, low
        high = _values(name, held, held.data | _unknown_bits(held))
        unknown = ~np.isfinite(low) | ~np.isfinite(high)
        least, most = np.minimum(low, high), np.maximum(low, high)
        least[unknown], most[unknown] = -np.inf, np.inf
        return least, most

    def middle(self, name: str) -> NDArray[Any]:
        """The tensor with each unknown part in its middle: an estimate; exact where all is known.

        Of element types that numpy lacks, unsigned integers of the same bits.
        """
        held = self._held[self.stored.aliases.get(name, name)]
        data = held.data
        if not held.is_whole:
            size = held.planes
            # Zero is likelier zero than next to it.
            some = np.repeat(held.data.reshape(-1, size).any(axis=1), size)
            data = data | np.where(some, _masked(held, 0x80, every=False), np.uint8(0))
        kind = held.type.numpy or np.dtype(f"<u{held.type.block_bytes}")
        return data.view(kind).reshape(held.shape)

    def _refine(self, name: str, planes: int | None, pool: Executor) -> None:
        tensor = self.stored.tensor(name)
        if not isinstance(tensor, StoredFrames) or tensor.value is not None:
            if name not in self._held:
                self._hold_whole(name)
            return
        held = self._held.get(name)
        if held is None:
            data = np.zeros(tensor.size_bytes, np.uint8)
            held = _Held(tensor.type, tensor.shape, data, [0] * len(tensor.frames))
            self._held[name] = held
        wanted = held.planes if planes is None else min(max(planes, FIRST_PLANES), held.planes)
        runs = [run for run in tensor.runs() if held.known[run.start] < wanted]
        for count in pool.map(partial(_refine_run, tensor, held, wanted=wanted), runs):
            self.read_bytes += count
        self._count_bases({tensor.frames[run.start].place for run in runs}, tensor)

    def _hold_whole(self, name: str) -> None:
        tensor, spec = self.stored.tensor(name), self.stored.spec(name)
        data = np.empty(spec.size_bytes, np.uint8)
        for fill in tensor.fills(None, data.data, None) if data.size else ():
            fill()
        self._held[name] = _Held(spec.type, spec.shape, data, [numbers_of(spec.type).size])
        self.read_bytes += tensor.stored_bytes

    def _count_bases(self, places: set[MemberPlace], tensor: StoredFrames) -> None:
        needed = tensor.members.with_bases(places) - places - self._bases
        self._bases |= needed
        self.read_bytes += sum(tensor.members.entries[place].stored_bytes for place in needed)


def _refine_run(tensor: StoredFrames, held: _Held, run: range, *, wanted: int) -> int:
    """Refine frames that lie in one member; the stored bytes that were read."""
    size = frame_bytes(tensor.type)
    part = held.data[run.start * size : run.stop * size].data
    rooms = [part[at : at + size] for at in range(0, part.nbytes, size)]
    about = [about_frame(tensor.type, tensor.shape, index) for index in run]
    place = tensor.frames[run.start].place
    try:
        known, count = tensor.members.refine_into(
            place, run, about, rooms, known=held.known[run.start], planes=wanted
        )
    except (CorruptError, NotFoundError, UnsupportedError) as error:
        raise type(error)(f"tensor {tensor.name!r}: {error}") from error
    held.known[run.start : run.stop] = [known] * len(run)
    return count


def _values(name: str, held: _Held, data: NDArray[np.uint8]) -> NDArray[np.float64]:
    found = numbers(data.data, held.type) if data.size else np.zeros(0)
    if found is None or found.dtype.kind == "c" or found.size != prod(held.shape):
        raise UnsupportedError(
            f"tensor {name!r:.80}: elements of type {held.type.name} are no real numbers, which "
            "have no bounds"
        )
    return np.asarray(found, np.float64).reshape(held.shape)


def _unknown_bits(held: _Held) -> NDArray[np.uint8]:
    """Bytes of the tensor, all bits set that are not known yet."""
    return _masked(held, 0xFF, every=True)


def _masked(held: _Held, value: int, *, every: bool) -> NDArray[np.uint8]:
    """`value` in the bytes that are not known: in each number in all of them, or in the highest."""
    size, step = held.planes, frame_bytes(held.type)
    made = np.zeros(held.data.nbytes, np.uint8)
    for at, known in enumerate(held.known):
        part = made[at * step : (at + 1) * step].reshape(-1, size)
        unknown = size - known
        part[:, (0 if every else max(unknown - 1, 0)) : unknown] = value
    return made
