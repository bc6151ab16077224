"""Context of a run: handles of the SDK report to it what is read and written.

The run belongs to the thread, or the task, that entered it: what other threads do, the run's own
methods note (`Run.stream`, `Run.save_model`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from tensorrepo.formats.common.provenance import ProvenanceEdge
    from tensorrepo.repo.history.trees import Entry
    from tensorrepo.repo.ids import Digest


class CommittedEntry(Protocol):
    """A dataset, a view or a model of a commit."""

    @property
    def path(self) -> str: ...
    @property
    def digest(self) -> Digest: ...
    @property
    def commit(self) -> Digest: ...


class RunObserver(Protocol):
    """What a run is told."""

    ended: bool  # another thread cannot leave what this one is in

    def opened(self, origin: CommittedEntry) -> None:
        """Something was opened for reading."""

    def streamed(
        self,
        origin: CommittedEntry,
        place: Callable[[], dict[str, Any]] | None,
        *,
        evaluated: bool = False,
    ) -> None:
        """Rows are read for training, or to measure models: by a stream, whose place is asked for
        later, or by number, where `place` is None.
        """

    def committed(self, commit: Digest, staged: Mapping[str, Entry | None]) -> None:
        """A transaction made a commit."""

    def edges(self) -> list[ProvenanceEdge]:
        """What a model that is saved now came from."""

    def checkpoint(self, run: str, step: int, metrics: Mapping[str, float]) -> list[ProvenanceEdge]:
        """A checkpoint is saved: what it came from, if it is one of this run."""


EntryT = TypeVar("EntryT", bound=CommittedEntry)
CURRENT: ContextVar[RunObserver | None] = ContextVar("tensorrepo_run", default=None)


def _current() -> RunObserver | None:
    notes = CURRENT.get()
    return None if notes is None or notes.ended else notes


def noted(origin: EntryT) -> EntryT:
    """What was opened for reading, of which the run around it now knows."""
    if (notes := _current()) is not None:
        notes.opened(origin)
    return origin


def note_streamed(
    origin: CommittedEntry,
    place: Callable[[], dict[str, Any]] | None = None,
    *,
    evaluated: bool = False,
) -> None:
    if (notes := _current()) is not None:
        notes.streamed(origin, place, evaluated=evaluated)


def note_committed(commit: Digest, staged: Mapping[str, Entry | None]) -> None:
    if (notes := _current()) is not None:
        notes.committed(commit, staged)


def note_checkpoint(run: str, step: int, metrics: Mapping[str, float]) -> list[ProvenanceEdge]:
    notes = _current()
    return [] if notes is None else notes.checkpoint(run, step, metrics)


def noted_edges(given: Iterable[ProvenanceEdge]) -> list[ProvenanceEdge]:
    """What a model came from: what is given, and what the run around it knows more."""
    found, notes = [*given], _current()
    said = {(edge.relation, edge.path, edge.digest) for edge in found}
    more = [] if notes is None else notes.edges()
    return found + [edge for edge in more if (edge.relation, edge.path, edge.digest) not in said]
