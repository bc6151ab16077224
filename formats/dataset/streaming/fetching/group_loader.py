"""How are the runs of open groups loaded, as if they were of one dataset?

Each run is loaded by the loader of its group; pieces of a store carry the number of their group in
front of their keys.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.dataset.streaming.fetching.run_loader import NOTHING, RunLoader
from tensorrepo.formats.dataset.streaming.groupedplan import GroupedPlan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorrepo.formats.dataset.read import Dataset
    from tensorrepo.formats.dataset.streaming.batching.gather import InMemory
    from tensorrepo.formats.dataset.streaming.fetching.pieces import Piece
    from tensorrepo.formats.dataset.streaming.fetching.run_loader import Fetched
    from tensorrepo.formats.dataset.streaming.groups import OpenGroup
    from tensorrepo.formats.dataset.streaming.ordering.plan import Plan
    from tensorrepo.repo.errors import CorruptError


def loader_of(
    dataset: Dataset, plan: Plan, nullable: Sequence[bool], *, by_row: bool
) -> RunLoader | GroupLoader:
    """What loads the runs of a plan; see `RunLoader`."""
    if isinstance(plan, GroupedPlan):
        return GroupLoader(plan, nullable, by_row=by_row)
    return RunLoader(dataset, plan, nullable, by_row=by_row)


class GroupLoader:
    """Loads runs by their slots. Thread-safe."""

    def __init__(self, plan: GroupedPlan, nullable: Sequence[bool], *, by_row: bool) -> None:
        """Made for one iteration; the arguments are those of `RunLoader`."""
        self.objects = plan.table.dataset.objects
        self._slots, self._store = plan.slots, plan.store
        self._nullable, self._by_row = tuple(nullable), by_row
        self._lock = Lock()
        self._sample = RunLoader(plan.sample.dataset, plan.sample.plan, nullable, by_row=by_row)

    @property
    def is_local(self) -> bool:
        """Whether loading is a matter of memory, where the other groups are like the first."""
        return self._sample.is_local

    @property
    def is_in_place(self) -> bool:
        return self._sample.is_in_place

    def size_of(self, run: int) -> int:
        """Decoded bytes of a run."""
        return self._slots.run_bytes.item(run)

    def pieces(self, run: int) -> list[Piece]:
        """What loading a run needs of the store."""
        group, place = self._slots.where(run)
        pieces = self._loader(group).pieces(place)
        return [piece._replace(key=(group, *piece.key)) for piece in pieces]

    def reads_more(self, run: int) -> bool:
        """Whether loading a run reads from the store more than its pieces."""
        group, place = self._slots.where(run)
        return self._loader(group).reads_more(place)

    def arrived(self, piece: Piece, data: memoryview) -> None:
        """A piece is there; called on any thread."""
        self._loader(piece.key[0]).arrived(piece._replace(key=piece.key[1:]), data)

    def damaged(self, piece: Piece, error: CorruptError) -> CorruptError:
        """What is to be raised when a piece stays damaged."""
        return self._loader(piece.key[0]).damaged(piece._replace(key=piece.key[1:]), error)

    def load(self, runs: list[int], fetched: Fetched = NOTHING) -> list[list[InMemory]]:
        """All rows of some runs, column by column."""
        found: list[list[InMemory]] = [[] for _ in self._nullable]
        by_group: dict[int, list[tuple[int, int]]] = {}
        for run in runs:
            group, place = self._slots.where(run)
            by_group.setdefault(group, []).append((run, place))
        for group, some in by_group.items():
            slots = np.zeros(1 + max(place for _, place in some), np.int64)
            slots[[place for _, place in some]] = [run for run, _ in some]
            pieces = {key[1:]: data for key, data in fetched.items() if key[0] == group}
            loaded = self._loader(group).load([place for _, place in some], pieces)
            for column, ones in zip(found, loaded, strict=True):
                column += [one._replace(runs=slots[one.runs]) for one in ones]
        return found

    def _loader(self, group: int) -> RunLoader:
        return self._made(self._store.get(group))

    def _made(self, group: OpenGroup) -> RunLoader:
        if not group.loader:
            made = RunLoader(group.dataset, group.plan, self._nullable, by_row=self._by_row)
            with self._lock:
                if not group.loader:
                    group.loader.append(made)
        found: RunLoader = group.loader[0]
        return found
