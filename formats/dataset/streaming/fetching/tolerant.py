"""What stands in for runs that cannot be loaded, where the stream goes on without them?

A run whose page is damaged or cannot be read, after all that is tried for it, becomes rows of zeros
that are never handed out: they keep everything behind it as it was planned. Whoever assembles
batches asks which runs are lost, and leaves their rows out.

A store that cannot be reached for a while is no loss: its error ends the stream, as what is left
out then would differ from rank to rank and from run to run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import numpy as np

from tensorrepo.formats.dataset.columns.types import Layout, Storage
from tensorrepo.formats.dataset.columns.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    RaggedValues,
)
from tensorrepo.formats.dataset.streaming.batching.gather import in_memory
from tensorrepo.repo.errors import CorruptError, Error, NotFoundError, PurgedError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tensorrepo.formats.dataset.streaming.batching.gather import InMemory
    from tensorrepo.formats.dataset.streaming.ordering.plan import Plan

    Loaded = list[list[InMemory]]
    Load = Callable[[list[int]], Loaded]

# Not what a later attempt or other rows would meet as well: missing rights, another version.
_LOST = (CorruptError, NotFoundError, PurgedError, StorageError)


class RunSource(Protocol):
    """Loads runs ahead, in the order in which they will be taken."""

    def expect(self, runs: Sequence[int]) -> None:
        """These will be taken next, after those expected before."""
        ...

    def take(self, runs: Sequence[int]) -> list[Loaded]:
        """Those expected first; runs that were loaded together come together."""
        ...

    def stop(self) -> None:
        """Let whoever takes go: that raises. For any thread."""
        ...

    def close(self) -> None: ...


class LostRuns(dict[int, Error]):
    """Runs that could not be loaded, and why; gives the rows that stand in for them."""

    def __init__(self, plan: Plan, nullable: Sequence[bool]) -> None:
        """Prepare; `nullable` says it of each of the plan's columns."""
        super().__init__()
        self._plan, self._nullable = plan, nullable

    def add(self, run: int, error: Error) -> Loaded:
        """Note a run as lost; rows of zeros for each of its columns."""
        self[run] = error
        rows = int(self._plan.live[run])
        return [
            [in_memory(run, _zeros(column.index.storage, rows), nullable=nullable)]
            for column, nullable in zip(self._plan.columns, self._nullable, strict=True)
        ]


class TolerantLoader:
    """Loads runs together, and one by one where that fails. Thread-safe."""

    def __init__(self, load: Load, lost: LostRuns) -> None:
        self._load, self._lost = load, lost

    def load(self, runs: list[int]) -> Loaded:
        """All rows of some runs, column by column; zeros for those that are lost."""
        try:
            return self._load(runs)
        except _LOST as error:
            _refuse_outage(error)
            if len(runs) == 1:
                return self._lost.add(runs[0], error)
        parts = [self.load([run]) for run in runs]
        return [
            [where for part in parts for where in part[column]] for column in range(len(parts[0]))
        ]


class TolerantSource:
    """Takes runs from a source, and zeros for those that it could not load."""

    def __init__(self, source: RunSource, lost: LostRuns) -> None:
        self._source, self._lost = source, lost
        self.expect, self.stop, self.close = source.expect, source.stop, source.close

    def take(self, runs: Sequence[int]) -> list[Loaded]:
        """Those expected first, taken one by one: an error says nothing about the others."""
        found = []
        for run in runs:
            try:
                found += self._source.take([run])
            except _LOST as error:
                _refuse_outage(error)
                found.append(self._lost.add(run, error))
        return found


def _refuse_outage(error: Error) -> None:
    """Raise an error that may be gone when the same is asked again: nothing is lost."""
    if isinstance(error, StorageError) and error.transient:
        raise error


def _zeros(storage: Storage, rows: int) -> ColumnValues:
    """Rows of zeros, or empty ones. Zeros take no memory before they are read."""
    if storage.layout is Layout.FIXED:
        return FixedValues(np.zeros((rows, *storage.row_shape), storage.element))
    offsets = np.zeros(rows + 1, np.int64)
    if storage.layout is Layout.BINARY:
        return BinaryValues(offsets, np.zeros(0, np.uint8))
    dims = np.zeros((rows, storage.unknown_dims), np.uint32) if storage.stores_dims else None
    return RaggedValues(offsets, np.zeros(0, storage.element), storage.shape, dims)
