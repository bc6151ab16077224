"""What would each tensor take, stored in each way, and what would reading it so cost?

Samples are really encoded, and really decoded: the cost of a read is the bytes that come from the
store, and the time that decoding takes as the bytes that the store would have sent meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from tensorrepo.formats.model.bases import WrittenBase
from tensorrepo.formats.model.chunks import Part, read_chunks
from tensorrepo.formats.model.codecs.registry import CODECS
from tensorrepo.formats.model.encode import (
    LEAST_BYTES,
    SAMPLE_ELEMENTS,
    Way,
    shares,
    ways_with_base,
    ways_without_base,
)
from tensorrepo.formats.model.frames import frame_bytes
from tensorrepo.formats.model.placement import TAG_BYTES, PackEntry
from tensorrepo.formats.model.repack.plan import Option
from tensorrepo.formats.model.reuse import Location
from tensorrepo.formats.model.signature import SIGNATURE_ITEMS
from tensorrepo.repo.ids import DIGEST_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Executor

    from tensorrepo.formats.model.chunks import Chunk
    from tensorrepo.formats.model.repack.stock import Stock

CANDIDATES: Final = 3  # bases that are tried for a tensor
STORE_BYTES_PER_SECOND: Final = 200e6  # what time is turned into bytes by
SAMPLED_FRAMES: Final = 8
# A base that is only tried needs no place.
UNPLACED: Final = Location(PackEntry(bytes(DIGEST_BYTES), 0, 0, bytes(TAG_BYTES)), 0, 0)


@dataclass(frozen=True, slots=True)
class Measured:
    """An option of the plan, and what it stands for.

    `codec` None: as it is. `bases` are those of the option as the codec takes them, which may be
    one of them twice.
    """

    option: Option
    codec: str | None
    bases: tuple[int, ...] = ()
    params: bytes = b""


@dataclass(slots=True)
class Scale:
    """Measures options of tensors. `clock` gives seconds of work done."""

    stock: Stock
    pool: Executor
    clock: Callable[[], float]
    _seconds: dict[str, float] = field(default_factory=dict)  # by codec, to decode one byte

    def options(self, number: int, candidates: list[int]) -> tuple[Measured, ...]:
        """The ways to store one tensor: as it is, and by the smallest codec for each base."""
        size = self.stock.tensors[number].size_bytes
        plain = Measured(Option((), size, size), None)
        if size < LEAST_BYTES:
            return (plain,)
        chunk = self._chunk(number)
        found = [plain]
        for base in (None, *candidates):
            ways = ways_without_base(chunk) if base is None else self._against(chunk, base)
            best = min(shares(chunk, ways), key=lambda one: one[0], default=None)
            if best is not None and best[0] < 1:
                bases = () if base is None else (base,)
                found.append(self._measured(chunk, int(best[0] * size), best[1], bases))
        return (*found, *self._predicted(chunk, number))

    def _chunk(self, number: int) -> Chunk:
        """The first frames of a tensor."""
        reader, holding = self.stock.reader(number), self.stock.tensors[number]
        stop = min(holding.size_bytes, SAMPLED_FRAMES * frame_bytes(reader.type))
        (chunk,) = read_chunks([Part(holding.name, reader, 0, stop)], self.pool)
        return chunk

    def _against(self, chunk: Chunk, base: int) -> list[Way]:
        return ways_with_base(chunk, WrittenBase(self.stock.reader(base), UNPLACED), base)

    def _predicted(self, chunk: Chunk, number: int) -> Iterator[Measured]:
        """As it is stored now, where that is by a codec of several bases that are here."""
        holding, known = self.stock.tensors[number], self.stock.numbers
        codec = CODECS.get(holding.codec)
        if codec is None or codec.bases < 2 or any(base not in known for base in holding.bases):
            return
        bases = tuple(known[base] for base in holding.bases)
        readers = tuple(WrittenBase(self.stock.reader(base), UNPLACED) for base in bases)
        way = Way(codec, readers, holding.params)
        yield self._measured(chunk, holding.stored_bytes, way, bases)

    def _measured(
        self, chunk: Chunk, stored_bytes: int, way: Way, bases: tuple[int, ...]
    ) -> Measured:
        if way.codec.name not in self._seconds:
            self._seconds[way.codec.name] = self._decoding(chunk, way)
        size = chunk.part.reader.type.bytes_of(tuple(chunk.part.reader.shape))
        seconds = self._seconds[way.codec.name] * size
        cost = stored_bytes + int(seconds * STORE_BYTES_PER_SECOND)
        option = Option(tuple(sorted(set(bases))), stored_bytes, cost)
        return Measured(option, way.codec.name, bases, way.params)

    def _decoding(self, chunk: Chunk, way: Way) -> float:
        """Seconds that decoding a byte takes, of a sample from the first frame."""
        reader, about = chunk.part.reader, chunk.about(0)
        unit = reader.type.block_bytes
        size = min(about.size_bytes, SAMPLE_ELEMENTS * unit)
        part = about._replace(size_bytes=size, params=way.params)
        bases = [base.frame(0, about)[:size] for base in way.bases]
        planes = way.codec.encode(chunk.frame(0)[:size], bases, part)
        if planes is None:
            return 0.0
        out = np.empty(size, np.uint8).data
        way.codec.decode(planes, bases, part, out)  # tables and kernels are loaded now
        began = self.clock()
        way.codec.decode(planes, bases, part, out)
        return (self.clock() - began) / size


def likely_bases(stock: Stock) -> list[list[int]]:
    """For each tensor those that are tried as its bases: its present one, then the nearest."""
    groups: dict[object, list[int]] = defaultdict(list)
    for number, holding in enumerate(stock.tensors):
        groups[holding.kind].append(number)
    found: list[list[int]] = [[] for _ in stock.tensors]
    for kind, numbers in groups.items():
        for number, near in zip(numbers, _nearest(stock, numbers), strict=True):
            bases = stock.tensors[number].bases
            present = [stock.numbers[base] for base in bases if base in stock.numbers]
            fit = [one for one in present if stock.tensors[one].kind == kind]
            found[number] = list(dict.fromkeys([*fit, *near]))[:CANDIDATES]
    return found


def _nearest(stock: Stock, numbers: Sequence[int]) -> Iterator[list[int]]:
    """For each of these tensors the others whose signatures differ least.

    Of equal ones, such as tensors without signatures, those that were taken stock of next to it.
    """
    few = min(CANDIDATES, len(numbers) - 1)
    known = [stock.tensors[number].signature for number in numbers]
    signed = np.array([one is not None for one in known])
    words = np.zeros((len(numbers), SIGNATURE_ITEMS), np.uint16)
    for row, one in zip(words, known, strict=True):
        if one is not None:
            row[:] = one
    wide, places = words.view(np.uint64), np.arange(len(numbers))
    for at in range(len(numbers)):
        far = np.abs(places - at)
        if signed[at]:
            bits = np.bitwise_count(wide ^ wide[at]).sum(1, dtype=np.int64)
            far += len(numbers) * np.where(signed, bits, 0)
        far[at] = np.iinfo(far.dtype).max
        nearest = np.argpartition(far, few)[:few]
        yield [numbers[one] for one in nearest[np.argsort(far[nearest])].tolist()]
