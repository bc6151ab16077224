"""A store whose answers are scripted: late, refused, failed or damaged, piece by piece."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from threading import Lock

from tensorrepo.formats.dataset.streaming.load.requests import PagePiece
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.objects.envelope import Kind, ObjectLink

PIECE = 1 << 10
CHUNK = ObjectLink("ab" * 32, 1 << 40, Kind.CHUNK, leaf=True)
SPREAD = 1 << 20  # pieces lie so far apart that each is a request of its own

# Called with the number of a piece and how often it was asked for before, from the reading thread.
Script = Callable[[int, int], None]


@dataclass
class ScriptedRuns:
    """Runs of some pieces each, whose "rows" are the bytes of their pieces.

    `needs` says which pieces a run has; else run n has piece n alone. `shared` pieces were told of.
    """

    script: Script = lambda _piece, _before: None
    needs: Mapping[int, list[int]] = field(default_factory=dict)
    run_bytes: int = PIECE
    asked: Counter[int] = field(default_factory=Counter)
    order: list[int] = field(default_factory=list)
    told: list[int] = field(default_factory=list)
    damage: dict[int, int] = field(default_factory=dict)  # so many answers of a piece are damaged
    odd: frozenset[int] = frozenset()
    lock: Lock = field(default_factory=Lock)

    def data(self, piece: int) -> bytes:
        return piece.to_bytes(8, "little") * (PIECE // 8)

    def read(self, _link: ObjectLink, start: int, stop: int) -> bytes:
        piece = start // SPREAD
        with self.lock:
            before = self.asked[piece]
            self.asked[piece] += 1
            self.order.append(piece)
        self.script(piece, before)
        found = bytearray(self.data(piece))
        if before < self.damage.get(piece, 0):
            found[17] ^= 1
        return bytes(found[: stop - start])

    def size_of(self, _run: int) -> int:
        return self.run_bytes

    def pieces(self, run: int) -> list[PagePiece]:
        return [
            PagePiece((0, at), CHUNK, at * SPREAD, at * SPREAD + PIECE, content_tag(self.data(at)))
            for at in self.needs.get(run, [run])
        ]

    def reads_more(self, run: int) -> bool:
        return run in self.odd

    def arrived(self, piece: PagePiece, data: memoryview) -> None:
        with self.lock:
            self.told.append(piece.key[1])

    def damaged(self, piece: PagePiece, error: CorruptError) -> CorruptError:
        return CorruptError(f"column 'x', page {piece.key[1]}: {error}")

    def load(self, runs: list[int], fetched: Mapping[tuple[int, ...], memoryview]) -> list[bytes]:
        (run,) = runs
        return [bytes(fetched[0, at]) for at in self.needs.get(run, [run])]
