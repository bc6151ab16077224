"""How are tensors stored as a plan says?

Bases first, so that what is encoded against them knows their places. Memory is bounded by a few
packs: one tensor, or a part of one, is in hand at a time.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tensorrepo.formats.model.bases import WrittenBase
from tensorrepo.formats.model.chunks import Part, each, read_chunks
from tensorrepo.formats.model.codecs.registry import CODECS
from tensorrepo.formats.model.encode import Way, encode_frame, fallback
from tensorrepo.formats.model.frames import Fingerprint, frame_bytes
from tensorrepo.formats.model.pack import LARGE_BYTES, RAW
from tensorrepo.formats.model.packing import Draft, Packer
from tensorrepo.formats.model.placement import ChosenBase
from tensorrepo.formats.model.reuse import build_placement
from tensorrepo.formats.model.tensorwrite import locations_of
from tensorrepo.repo.ids import digest_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor, Future

    from tensorrepo.formats.model.chunks import Chunk
    from tensorrepo.formats.model.packing import SealedFrame, Slot
    from tensorrepo.formats.model.placement import Placement
    from tensorrepo.formats.model.repack.measure import Measured
    from tensorrepo.formats.model.repack.stock import Stock
    from tensorrepo.repo.ids import Buffer, Digest


def depths(bases: Sequence[Sequence[int]]) -> list[int]:
    """Through how many bases each of some tensors is read, at most.

    `bases` are the numbers of each one's, without circles. Takes time in proportion to them: what
    has three bases, which have the same three, has very many ways.
    """
    found = [-1] * len(bases)
    pending = list(range(len(bases)))
    while pending:
        one = pending[-1]
        unknown = [base for base in bases[one] if found[base] < 0]
        if unknown:
            pending += unknown
        else:
            found[one] = 1 + max((found[base] for base in bases[one]), default=-1)
            pending.pop()
    return found


class Restorer:
    """Stores the tensors of a stock anew."""

    def __init__(
        self,
        stock: Stock,
        chosen: Sequence[Measured],
        pack_bytes: int,
        emit: Callable[[tuple[Buffer, ...]], Future[Digest]],
        pool: Executor,
    ) -> None:
        self._stock = stock
        self._chosen = chosen
        self._pack_bytes = pack_bytes
        self._pool = pool
        self._large = Packer(pack_bytes, emit)
        self._small = Packer(pack_bytes, emit)
        self._slots: dict[int, list[Slot]] = {}

    def store_all(self, progress: Callable[[int], None]) -> None:
        """Store all tensors, those of one model side by side. `progress`: bytes of tensors."""
        done = 0
        depth = depths([one.option.bases for one in self._chosen])
        for number in sorted(range(len(depth)), key=lambda one: (depth[one], one)):
            self._store(number)
            done += self._stock.tensors[number].size_bytes
            progress(done)
        self._large.flush()
        self._small.flush()

    def placement(self, model: int) -> Placement:
        """Where the tensors of a model lie now."""
        numbers = self._stock.models[model]
        places = {self._name(one): locations_of(self._slots[one]) for one in numbers}
        uses = Counter(
            self._stock.tensors[base].model
            for one in dict.fromkeys(numbers)
            for base in self._chosen[one].option.bases
        )
        chosen = [
            ChosenBase(digest_bytes(self._stock.entries[base].digest), "repack", count, None)
            for base, count in uses.most_common()
        ]
        return build_placement(places, chosen)

    def _name(self, number: int) -> Fingerprint:
        return Fingerprint(self._stock.tensors[number].fingerprint)

    def _store(self, number: int) -> None:
        reader, holding = self._stock.reader(number), self._stock.tensors[number]
        whole = frame_bytes(reader.type)
        # Equal shapes are cut alike: a base's member holds all frames of what needs it.
        step = max(1, self._pack_bytes // whole) * whole
        slots = []
        for start in range(0, holding.size_bytes, step):
            stop = min(start + step, holding.size_bytes)
            (chunk,) = read_chunks([Part(holding.name, reader, start, stop)], self._pool)
            slots.append(self._pack(number, chunk, start // step))
        self._slots[number] = slots

    def _pack(self, number: int, chunk: Chunk, cut: int) -> Slot:
        chosen, holding = self._chosen[number], self._stock.tensors[number]
        bases = tuple(
            WrittenBase(self._stock.reader(base), self._slots[base][cut]) for base in chosen.bases
        )
        way = None if chosen.codec is None else Way(CODECS[chosen.codec], bases, chosen.params)
        frames = self._encode(chunk, way)
        while None in frames:
            way = fallback(way)
            frames = self._encode(chunk, way)
        draft = Draft(
            chunk.part.frames.start,
            tuple(frame for frame in frames if frame is not None),
            RAW if way is None else way.codec.name,
            () if way is None else tuple(base.location for base in way.bases),
            b"" if way is None else way.params,
            holding.signature if cut == 0 else None,
        )
        return (self._large if holding.size_bytes >= LARGE_BYTES else self._small).add(draft)

    def _encode(self, chunk: Chunk, way: Way | None) -> list[SealedFrame | None]:
        size = chunk.part.size_bytes
        tasks = list(chunk.part.frames)
        return list(each(lambda at: encode_frame(chunk, way, at), tasks, size, self._pool))
