"""Loader of runs that several loaders share: open groups of a dataset, or datasets of a mix.

Each run is loaded by the loader of its part, under its number there; pieces of a store carry the
number of their part in front of their keys.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tensorrepo.formats.dataset.streaming.fetching.run_loader import NOTHING, RunLoader
from tensorrepo.formats.dataset.streaming.groupedplan import GroupedPlan
from tensorrepo.repo.objects import ReadsOnce

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorrepo.formats.dataset.read import Dataset
    from tensorrepo.formats.dataset.streaming.batching.gather import InMemory
    from tensorrepo.formats.dataset.streaming.fetching.pieces import Piece
    from tensorrepo.formats.dataset.streaming.fetching.run_loader import Fetched
    from tensorrepo.formats.dataset.streaming.ordering.plan import Plan
    from tensorrepo.repo.errors import CorruptError
    from tensorrepo.repo.ids import Buffer
    from tensorrepo.repo.objects import Link, ObjectSource


def loader_of(
    dataset: Dataset, plan: Plan, nullable: Sequence[bool], *, by_row: bool
) -> RunLoader | RoutedLoader:
    """Loader of the runs of a plan; see `RunLoader`."""
    if isinstance(plan, GroupedPlan):
        return RoutedLoader(GroupRoutes(plan, tuple(nullable), by_row), dataset.objects)
    return RunLoader(dataset, plan, nullable, by_row=by_row)


class Routes(Protocol):
    """Which loader has a run, and under which number."""

    @property
    def examples(self) -> Sequence[RunLoader | RoutedLoader]:
        """Loaders of which one at least is like each other."""
        ...

    @property
    def columns(self) -> int:
        """Number of columns of a run."""
        ...

    def find(self, run: int) -> tuple[int, int]:
        """Number of the part that has a run, and the run's number there."""
        ...

    def loader(self, part: int) -> RunLoader | RoutedLoader:
        """Loader of a part."""
        ...

    def places(self, part: int) -> Sequence[int]:
        """Place of each column among those of the part's loader."""
        ...


class RoutedLoader:
    """Loads runs by the loaders of their parts. Thread-safe."""

    def __init__(self, routes: Routes, objects: ObjectSource | RoutedObjects) -> None:
        """Prepare; `objects` reads chunks of all parts."""
        self._routes, self.objects = routes, objects

    @property
    def is_local(self) -> bool:
        """Whether loading is a matter of memory, not of a network."""
        return all(loader.is_local for loader in self._routes.examples)

    @property
    def is_in_place(self) -> bool:
        """Whether loading is little more than verifying."""
        return all(loader.is_in_place for loader in self._routes.examples)

    def size_of(self, run: int) -> int:
        """Decoded bytes of a run."""
        part, own = self._routes.find(run)
        return self._routes.loader(part).size_of(own)

    def pieces(self, run: int) -> list[Piece]:
        """Pieces of the store that loading a run needs."""
        part, own = self._routes.find(run)
        pieces = self._routes.loader(part).pieces(own)
        if isinstance(self.objects, RoutedObjects):
            self.objects.expect(part, pieces)
        return [piece._replace(key=(part, *piece.key)) for piece in pieces]

    def reads_more(self, run: int) -> bool:
        """Whether loading a run reads from the store more than its pieces."""
        part, own = self._routes.find(run)
        return self._routes.loader(part).reads_more(own)

    def arrived(self, piece: Piece, data: memoryview) -> None:
        """A piece is there; called on any thread."""
        self._routes.loader(piece.key[0]).arrived(piece._replace(key=piece.key[1:]), data)

    def damaged(self, piece: Piece, error: CorruptError) -> CorruptError:
        """Error to raise when a piece stays damaged."""
        return self._routes.loader(piece.key[0]).damaged(piece._replace(key=piece.key[1:]), error)

    def load(self, runs: list[int], fetched: Fetched = NOTHING) -> list[list[InMemory]]:
        """All rows of some runs, column by column."""
        columns: list[list[InMemory]] = [[] for _ in range(self._routes.columns)]
        by_part: dict[int, dict[int, int]] = {}  # numbers of all by numbers in the part
        for run in runs:
            part, own = self._routes.find(run)
            by_part.setdefault(part, {})[own] = run
        for part, numbers in by_part.items():
            pieces = {key[1:]: data for key, data in fetched.items() if key[0] == part}
            loaded = self._routes.loader(part).load(list(numbers), pieces)
            for column, place in zip(columns, self._routes.places(part), strict=True):
                for rows in loaded[place]:
                    named = np.array([numbers[own] for own in rows.runs.tolist()], np.int64)
                    column.append(rows._replace(runs=named))
        return columns


@dataclass(frozen=True, slots=True, eq=False)
class GroupRoutes:
    """Routes of the slots of a grouped plan to loaders of its open groups."""

    plan: GroupedPlan
    nullable: tuple[bool, ...]
    by_row: bool
    examples: tuple[RunLoader, ...] = field(init=False)
    _lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        sample = self.plan.sample  # other groups are taken to be like it
        loader = RunLoader(sample.dataset, sample.plan, self.nullable, by_row=self.by_row)
        object.__setattr__(self, "examples", (loader,))

    @property
    def columns(self) -> int:
        return len(self.nullable)

    def find(self, run: int) -> tuple[int, int]:
        return self.plan.slots.where(run)

    def loader(self, part: int) -> RunLoader:
        group = self.plan.store.get(part)
        if not group.loader:
            made = RunLoader(group.dataset, group.plan, self.nullable, by_row=self.by_row)
            with self._lock:
                if not group.loader:
                    group.loader.append(made)
        loader: RunLoader = group.loader[0]
        return loader

    def places(self, part: int) -> range:  # noqa: ARG002  groups are of one dataset
        return range(len(self.nullable))


@dataclass(frozen=True, slots=True, eq=False)
class DatasetRoutes:
    """Routes of runs that are numbered one dataset after the other.

    Attributes:
        examples: loader of each dataset.
        column_places: per dataset, place of each column of the mix among its own.
        bounds: number of the first run of each dataset, and of all runs.
    """

    examples: Sequence[RunLoader | RoutedLoader]
    column_places: Sequence[Sequence[int]]
    bounds: Sequence[int]

    @property
    def columns(self) -> int:
        return len(self.column_places[0])

    def find(self, run: int) -> tuple[int, int]:
        dataset = bisect_right(self.bounds, run) - 1
        return dataset, run - self.bounds[dataset]

    def loader(self, part: int) -> RunLoader | RoutedLoader:
        return self.examples[part]

    def places(self, part: int) -> Sequence[int]:
        return self.column_places[part]


class RoutedObjects:
    """Reads chunks from the stores of several datasets: each from one that has it."""

    def __init__(self, loaders: Sequence[RunLoader | RoutedLoader]) -> None:
        stores = [loader.objects for loader in loaders]
        self._reads = [
            store.read_once if isinstance(store, ReadsOnce) else store.read_range
            for store in stores
        ]
        self._dataset_of: dict[str, int] = {}

    def expect(self, dataset: int, pieces: Sequence[Piece]) -> None:
        """These are to be read, from the store of this dataset."""
        for piece in pieces:
            self._dataset_of[piece.link.digest] = dataset

    def read_once(self, link: Link, start: int, stop: int) -> Buffer:
        """Payload bytes ``[start, stop)`` of a chunk, by one request where the store can."""
        return self._reads[self._dataset_of[link.digest]](link, start, stop)
