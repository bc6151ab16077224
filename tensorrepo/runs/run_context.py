"""Context of a run: handles of the SDK report to it what is read and written.

The run belongs to the thread, or the task, that entered it: what other threads do, the run's own
methods note (`Run.stream`, `Run.save_model`).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeVar

from tensorrepo.formats.common.provenance import (
    CHECKPOINT_OF,
    EVALUATED_ON,
    MADE_BY,
    TRAINED_ON,
    USED,
    ProvenanceEdge,
    check_edge,
)
from tensorrepo.formats.runs.run_record import MAX_EDGES, RUNS, RunOutput
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


_LEARNED: Final = frozenset({TRAINED_ON, EVALUATED_ON})
_Key = tuple[str, str, str, str]


class RunNotes:
    """The notes of one run, in this process: what a forked worker tells is passed over.

    `ended` is for other threads, which cannot leave what the run's own thread is in.
    """

    def __init__(
        self,
        name: str,
        run_id: str,
        log: Callable[[Mapping[str, float], int], None],
        inputs: Iterable[ProvenanceEdge] = (),
        outputs: Iterable[RunOutput] = (),
    ) -> None:
        """Go on from what an earlier attempt noted. `log` is told the metrics of checkpoints."""
        self.id, self.ended = run_id, False
        self._run, self._log = name, log
        self._edges: dict[_Key, ProvenanceEdge] = {}
        self._places: dict[_Key, Callable[[], dict[str, Any]]] = {}
        self._outputs = [*outputs]
        self._made = {made.digest for made in self._outputs}
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._reading = TRAINED_ON
        for edge in inputs:
            self.add(edge)

    def opened(self, origin: CommittedEntry) -> None:
        """Something was opened for reading; what the run made itself is no input."""
        if origin.digest not in self._made:
            self.add(ProvenanceEdge(USED, origin.path, origin.digest, origin.commit))

    def streamed(
        self,
        origin: CommittedEntry,
        place: Callable[[], dict[str, Any]] | None,
        *,
        evaluated: bool = False,
    ) -> None:
        """Rows are read for training, or to measure models, as inside of `evaluating`.

        They are read by a stream, whose place is asked for later, or by number: `place` is None.
        """
        details = {} if place is None else place()
        relation = EVALUATED_ON if evaluated else self._reading
        key = self.add(ProvenanceEdge(relation, origin.path, origin.digest, origin.commit, details))
        if place is not None and key is not None:
            with self._lock:
                self._places[key] = place

    def committed(self, commit: Digest, staged: Mapping[str, Entry | None]) -> None:
        """A transaction made a commit."""
        if os.getpid() != self._process:
            return
        made = [RunOutput(path, entry.digest, commit) for path, entry in staged.items() if entry]
        with self._lock:
            self._outputs = [*self._outputs, *made][-MAX_EDGES:]
            self._made |= {one.digest for one in made}

    def checkpoint(self, run: str, step: int, metrics: Mapping[str, float]) -> list[ProvenanceEdge]:
        """A checkpoint is saved: its metrics are the run's, too."""
        if run != self._run or os.getpid() != self._process:
            return []
        self._log(metrics, step)
        of_run = ProvenanceEdge(CHECKPOINT_OF, f"{RUNS}{run}", self.id, None, {"step": step})
        return [of_run, *self._learned()]

    def edges(self) -> list[ProvenanceEdge]:
        """What a model that is saved now came from."""
        return [*self._learned(), ProvenanceEdge(MADE_BY, f"{RUNS}{self._run}", self.id)]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """What is streamed in here is evaluated on, not trained on."""
        before, self._reading = self._reading, EVALUATED_ON
        try:
            yield
        finally:
            self._reading = before

    def add(self, edge: ProvenanceEdge) -> _Key | None:
        """Note what the run read; None where it is passed over."""
        if os.getpid() != self._process:
            return None
        check_edge(edge)
        told = edge.details if edge.relation in _LEARNED else {}
        order = f"{told.get('seed')} {told.get('selection')}"
        key = (edge.relation, edge.path, edge.digest, order)
        with self._lock:
            if key not in self._edges and len(self._edges) >= MAX_EDGES:
                return None
            self._edges[key] = edge
            self._places.pop(key, None)
        return key

    def inputs(self) -> tuple[ProvenanceEdge, ...]:
        """All that was read. What was learned from is not told again as being used."""
        with self._lock:
            edges, places = dict(self._edges), dict(self._places)
        found = [_here(edge, places.get(key)) for key, edge in edges.items()]
        learned = {(edge.path, edge.digest) for edge in found if edge.relation in _LEARNED}
        return tuple(
            edge
            for edge in found
            if edge.relation != USED or (edge.path, edge.digest) not in learned
        )

    def outputs(self) -> tuple[RunOutput, ...]:
        """All that was written, the newest of very much."""
        with self._lock:
            return tuple(self._outputs)

    def _learned(self) -> list[ProvenanceEdge]:
        return [edge for edge in self.inputs() if edge.relation in _LEARNED]


def _here(edge: ProvenanceEdge, place: Callable[[], dict[str, Any]] | None) -> ProvenanceEdge:
    if place is None:
        return edge
    return ProvenanceEdge(edge.relation, edge.path, edge.digest, edge.commit, place())


EntryT = TypeVar("EntryT", bound=CommittedEntry)
CURRENT: ContextVar[RunNotes | None] = ContextVar("tensorrepo_run", default=None)


def _current() -> RunNotes | None:
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
