"""How are runs of several datasets loaded as if they were of one?

Runs are numbered one source after the other. Each is loaded by the loader of its source; pieces of
a store carry the number of their source in front of their keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.dataset.streaming.fetching.run_loader import NOTHING
from tensorrepo.repo.objects import ReadsOnce

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.streaming.batching.gather import InMemory
    from tensorrepo.formats.dataset.streaming.fetching.group_loader import GroupLoader
    from tensorrepo.formats.dataset.streaming.fetching.pieces import Piece
    from tensorrepo.formats.dataset.streaming.fetching.run_loader import Fetched, RunLoader
    from tensorrepo.repo.errors import CorruptError
    from tensorrepo.repo.ids import Buffer
    from tensorrepo.repo.objects import Link


class MixLoader:
    """Loads runs of all sources. Thread-safe."""

    def __init__(
        self,
        loaders: Sequence[RunLoader | GroupLoader],
        places: Sequence[Sequence[int]],
        bounds: NDArray[np.int64],
    ) -> None:
        """Made of the loaders of all sources.

        Args:
            loaders: one a source.
            places: per source, which of its columns is which column of the mix.
            bounds: the number of the first run of each source, and of all runs.
        """
        self._loaders, self._places, self._bounds = loaders, places, bounds
        self.objects = _MixObjects(loaders)

    @property
    def is_local(self) -> bool:
        return all(loader.is_local for loader in self._loaders)

    @property
    def is_in_place(self) -> bool:
        return all(loader.is_in_place for loader in self._loaders)

    def size_of(self, run: int) -> int:
        """Decoded bytes of a run."""
        source, own = self._own(run)
        return self._loaders[source].size_of(own)

    def pieces(self, run: int) -> list[Piece]:
        """What loading a run needs of the store of its source."""
        source, own = self._own(run)
        found = self._loaders[source].pieces(own)
        self.objects.expect(source, found)
        return [piece._replace(key=(source, *piece.key)) for piece in found]

    def reads_more(self, run: int) -> bool:
        """Whether loading a run reads from the store more than its pieces."""
        source, own = self._own(run)
        return self._loaders[source].reads_more(own)

    def arrived(self, piece: Piece, data: memoryview) -> None:
        """A piece is there; called on any thread."""
        self._loaders[piece.key[0]].arrived(piece._replace(key=piece.key[1:]), data)

    def damaged(self, piece: Piece, error: CorruptError) -> CorruptError:
        """What is to be raised when a piece stays damaged."""
        return self._loaders[piece.key[0]].damaged(piece._replace(key=piece.key[1:]), error)

    def load(self, runs: list[int], fetched: Fetched = NOTHING) -> list[list[InMemory]]:
        """All rows of some runs, column by column in the order of the mix's plan."""
        numbers = np.array(runs)
        source = np.searchsorted(self._bounds, numbers, side="right") - 1
        found: list[list[InMemory]] = [[] for _ in self._places[0]]
        for each in np.unique(source).tolist():
            first = int(self._bounds[each])
            own = (numbers[source == each] - first).tolist()
            pieces = {key[1:]: data for key, data in fetched.items() if key[0] == each}
            loaded = self._loaders[each].load(own, pieces)
            for column, place in zip(found, self._places[each], strict=True):
                column += [one._replace(runs=one.runs + first) for one in loaded[place]]
        return found

    def _own(self, run: int) -> tuple[int, int]:
        """The source of a run, and its number there."""
        source = int(np.searchsorted(self._bounds, run, side="right")) - 1
        return source, run - int(self._bounds[source])


class _MixObjects:
    """Reads chunks from the stores of all sources: each from one that has it."""

    def __init__(self, loaders: Sequence[RunLoader | GroupLoader]) -> None:
        stores = [loader.objects for loader in loaders]
        self._reads = [
            store.read_once if isinstance(store, ReadsOnce) else store.read_range
            for store in stores
        ]
        self._source_of: dict[str, int] = {}

    def expect(self, source: int, pieces: Sequence[Piece]) -> None:
        """These are to be read, from the store of this source."""
        for piece in pieces:
            self._source_of[piece.link.digest] = source

    def read_once(self, link: Link, start: int, stop: int) -> Buffer:
        """Payload bytes ``[start, stop)`` of a chunk, by one request where the store can."""
        return self._reads[self._source_of[link.digest]](link, start, stop)
