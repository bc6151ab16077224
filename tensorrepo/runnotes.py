"""What has a run read and written so far?

Handles of the SDK tell it (see `noting`), on whatever thread. Of streams it keeps the newest of
each dataset and seed, and asks them how far they are when somebody wants to know.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from tensorrepo.formats.lineage import (
    CHECKPOINT_OF,
    EVALUATED_ON,
    MADE_BY,
    TRAINED_ON,
    USED,
    Edge,
    check_edge,
)
from tensorrepo.formats.run.document import MAX_EDGES, Made
from tensorrepo.runrecord import RUNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tensorrepo.noting import Origin
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.trees import Entry

_LEARNED: Final = frozenset({TRAINED_ON, EVALUATED_ON})
_Key = tuple[str, str, str, str]


class RunNotes:
    """The notes of one run, in this process: what a forked worker tells is passed over."""

    def __init__(
        self,
        name: str,
        run_id: str,
        log: Callable[[Mapping[str, float], int], None],
        inputs: Iterable[Edge] = (),
        outputs: Iterable[Made] = (),
    ) -> None:
        """Go on from what an earlier attempt noted. `log` is told the metrics of checkpoints."""
        self.id, self.ended = run_id, False
        self._run, self._log = name, log
        self._edges: dict[_Key, Edge] = {}
        self._places: dict[_Key, Callable[[], dict[str, Any]]] = {}
        self._outputs = [*outputs]
        self._made = {made.digest for made in self._outputs}
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._reading = TRAINED_ON
        for edge in inputs:
            self.add(edge)

    def opened(self, origin: Origin) -> None:
        """Something was opened for reading; what the run made itself is no input."""
        if origin.digest not in self._made:
            self.add(Edge(USED, origin.path, origin.digest, origin.commit))

    def streamed(
        self, origin: Origin, place: Callable[[], dict[str, Any]] | None, *, evaluated: bool = False
    ) -> None:
        """Rows are read for training, or to measure models, as inside of `evaluating`."""
        details = {} if place is None else place()
        relation = EVALUATED_ON if evaluated else self._reading
        edge = Edge(relation, origin.path, origin.digest, origin.commit, details)
        key = self.add(edge)
        if place is not None and key is not None:
            with self._lock:
                self._places[key] = place

    def committed(self, commit: Digest, staged: Mapping[str, Entry | None]) -> None:
        """A transaction made a commit."""
        if os.getpid() != self._process:
            return
        made = [Made(path, entry.digest, commit) for path, entry in staged.items() if entry]
        with self._lock:
            self._outputs = [*self._outputs, *made][-MAX_EDGES:]
            self._made |= {one.digest for one in made}

    def checkpoint(self, run: str, step: int, metrics: Mapping[str, float]) -> list[Edge]:
        """A checkpoint is saved: its metrics are the run's, too."""
        if run != self._run or os.getpid() != self._process:
            return []
        if metrics:
            self._log(metrics, step)
        of_run = Edge(CHECKPOINT_OF, f"{RUNS}{run}", self.id, None, {"step": step})
        return [of_run, *self._learned()]

    def edges(self) -> list[Edge]:
        """What a model that is saved now came from."""
        return [*self._learned(), Edge(MADE_BY, f"{RUNS}{self._run}", self.id)]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """What is streamed in here is evaluated on, not trained on."""
        before, self._reading = self._reading, EVALUATED_ON
        try:
            yield
        finally:
            self._reading = before

    def add(self, edge: Edge) -> _Key | None:
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

    def inputs(self) -> tuple[Edge, ...]:
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

    def outputs(self) -> tuple[Made, ...]:
        """All that was written, the newest of very much."""
        with self._lock:
            return tuple(self._outputs)

    def _learned(self) -> list[Edge]:
        return [edge for edge in self.inputs() if edge.relation in _LEARNED]


def _here(edge: Edge, place: Callable[[], dict[str, Any]] | None) -> Edge:
    if place is None:
        return edge
    return Edge(edge.relation, edge.path, edge.digest, edge.commit, place())
