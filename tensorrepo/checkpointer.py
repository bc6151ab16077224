"""How are the checkpoints of a training saved while it goes on, and read when it resumes?

    save: copy, return -> queue, bounded in bytes -> one thread: store, commit, drop the expired

One record of the log makes a new checkpoint and drops the expired ones (see `checkpoints`), so a
crash at any moment leaves whole checkpoints only.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from tensorrepo.atend import before_pools_end
from tensorrepo.checkpoints import (
    STATE_PATH,
    against_newest,
    checked_step,
    commit_checkpoint,
    find_step,
    numbers_of,
    read_history,
    ref_of,
    state_entry,
    steps_of,
    warn_if_approximate,
)
from tensorrepo.connect import parse_size
from tensorrepo.formats.model.read import open_model
from tensorrepo.formats.model.training.adamsteps import adam_steps, predictions
from tensorrepo.formats.model.training.lossy import approximation_of, shorten_state
from tensorrepo.formats.model.training.staging import Staging, bytes_of
from tensorrepo.formats.model.training.statetree import put_together, take_apart
from tensorrepo.formats.model.write import write_model
from tensorrepo.formats.run.document import check_run_name
from tensorrepo.formats.tensors import tensor_of
from tensorrepo.noting import note_checkpoint
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.refs import BRANCHES, delete_ref
from tensorrepo.repo.series import begin_beside
from tensorrepo.retention import Keep

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType
    from typing import Self

    from tensorrepo.context import Context
    from tensorrepo.formats.lineage import Edge
    from tensorrepo.formats.model.bases import Prediction
    from tensorrepo.formats.model.training.lossy import Approximation, Lossy
    from tensorrepo.formats.tensors import TensorReader
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.transaction import Transaction
    from tensorrepo.repo.trees import Entry

_STAGING_BYTES: Final = 4 << 30
_WAITING: Final = 2  # checkpoints: one being stored, one behind it
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that is durable.

    Attributes:
        step: of the training.
        commit: its commit; ``runs/<run>/<step>`` names it.
        metrics: as given.
        size_bytes: of its tensors.
        seconds: from `save` to here.
        dropped: steps that went because of it.
        approximate: what is promised of numbers kept in fewer bits; None: all are as they were.
    """

    step: int
    commit: Digest
    metrics: Mapping[str, float]
    size_bytes: int
    seconds: float
    dropped: tuple[int, ...] = ()
    approximate: Approximation | None = None


@dataclass(frozen=True, slots=True)
class _Waiting:
    step: int
    tensors: dict[str, Any]
    skeleton: Any
    metrics: dict[str, float]
    size_bytes: int
    began: float
    lineage: tuple[Edge, ...]  # what the run around it knew when it was saved


def checkpointer_of(
    context: Context,
    run: str,
    *,
    start: str | None = None,
    staging: int | str = "4GiB",
    **options: Any,
) -> Checkpointer:
    """See `Repository.checkpointer`."""
    began = context.core.log.refresh().state.refs.get(BRANCHES + "main")
    if start is not None:
        began = context.resolve(start).digest
    return Checkpointer(context, run, start=began, staging_bytes=parse_size(staging), **options)


class Checkpointer:
    """Saves and loads the checkpoints of one run. See `Repository.checkpointer`.

    Used by one thread of the training. Leaving its ``with`` waits until all is stored, and so does
    the end of the program.
    """

    def __init__(
        self,
        context: Context,
        run: str,
        *,
        keep: Keep | None = None,
        optimizer: Lossy | None = None,
        start: Digest | None = None,
        staging_bytes: int = _STAGING_BYTES,
        on_saved: Callable[[Saved], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Made by `Repository.checkpointer`."""
        self.run = check_run_name(run)
        self.noted: Callable[[str, int, Mapping[str, float]], list[Edge]] = note_checkpoint
        self.keep = keep or Keep()
        self.optimizer = optimizer
        self._context = context
        self._start = start
        self._staging = Staging(staging_bytes)
        self._on_saved = on_saved
        self._clock = clock
        self._waiting: deque[Future[Saved]] = deque()
        self._thread = ThreadPoolExecutor(1, "tensorrepo-checkpoint")
        self._closed = False
        before_pools_end(self._finish)
        self._history = read_history(context, run)
        self._last: tuple[Digest | None, dict[str, Any]] = (None, {})

    def save(
        self, step: int, state: Mapping[str, Any], *, metrics: Mapping[str, float] | None = None
    ) -> Future[Saved]:
        """Copy a state, and store it while training goes on.

        Waits only for the copy, and where too much is waiting to be stored.

        Args:
            step: of the training; saved again, it takes the place of the earlier one.
            state: names to state dicts, tensors, numbers, text: what `load` gives back.
            metrics: numbers of this step, by which `Keep` judges, and which stay when it goes.

        Returns:
            What becomes of it. It need not be looked at: a failure is raised by the next `save` or
            `wait`, too.

        Raises:
            InvalidInputError: something in the state cannot be stored; says where. Or the
                checkpointer is closed.
            Error: an earlier checkpoint could not be stored.
        """
        step = checked_step(step)
        numbers = numbers_of(metrics)
        if self._closed:
            raise InvalidInputError(
                f"the checkpointer of run {self.run!r} is closed, step {step} was not saved: make "
                f"another, repo.checkpointer({self.run!r})"
            )
        self._raise_failures(self._waiting_limit())
        apart = take_apart(state)
        size = bytes_of(apart.tensors)
        began = self._clock()
        self._staging.reserve(size)
        box: list[_Waiting] = []
        handed = False
        try:
            copies = self._staging.copies(apart.tensors)
            lineage = tuple(self.noted(self.run, step, numbers))
            box.append(_Waiting(step, copies, apart.skeleton, numbers, size, began, lineage))
            del copies
            handed = True
            future = self._thread.submit(self._store, box)
            self._waiting.append(future)
        except BaseException:
            # The room of what the thread took out of the box is given back by the thread.
            with suppress(IndexError):
                if handed:
                    box.pop()
                self._staging.release(size)
            raise
        return future

    def wait(self) -> None:
        """Until all that was saved is durable.

        Raises:
            Error: a checkpoint could not be stored: says which. Those after it were tried, too.
        """
        self._raise_failures(0)

    def steps(self) -> list[int]:
        """Steps that can be loaded, ascending."""
        return sorted(steps_of(self._context.core.log.refresh(), self.run))

    def latest(self) -> int | None:
        """The newest step that can be loaded."""
        return max(self.steps(), default=None)

    def metrics(self) -> dict[int, dict[str, float]]:
        """Metrics by step, also of checkpoints that are gone."""
        return read_history(self._context, self.run).metrics

    def load(self, step: int | None = None, *, output: str = "torch") -> dict[str, Any]:
        """The state that `save` was given, but for numbers kept in fewer bits: a warning says so.

        Args:
            step: which; None: the newest.
            output: of tensors: "torch", or "numpy" for the arrays of their bits.

        Raises:
            NotFoundError: no such checkpoint; says which there are.
        """
        if output not in {"numpy", "torch"}:
            raise InvalidInputError(f"output {output!r}: expected 'numpy' or 'torch'")
        self.wait()
        entry = state_entry(self._context, self._commit_of(step))
        model = open_model(self._context.core.objects, entry)
        warn_if_approximate(model, self.run, stacklevel=3)
        tensors = model.load(output="torch" if output == "torch" else "numpy")
        found: dict[str, Any] = put_together(model.metadata.get("state"), tensors)
        return found

    def approximation(self, step: int | None = None) -> Approximation | None:
        """What is promised of numbers that a checkpoint keeps in fewer bits; None: all are exact.

        Raises:
            NotFoundError: no such checkpoint; says which there are.
        """
        self.wait()
        entry = state_entry(self._context, self._commit_of(step))
        return approximation_of(open_model(self._context.core.objects, entry).lineage)

    def delete(self, step: int) -> None:
        """Drop a checkpoint. Its bytes go with the next collection, its metrics stay."""
        self.wait()
        self._commit_of(step)
        delete_ref(self._context.core, ref_of(self.run, step), actor=self._context.author)

    def close(self) -> None:
        """Wait, and end the thread. Loading goes on to work."""
        self._closed = True
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<checkpointer of run {self.run!r}: {len(self.steps())} checkpoints>"

    def _waiting_limit(self) -> int:
        return _WAITING - 1

    def _raise_failures(self, most_waiting: int) -> None:
        """Take what is done, and wait until no more than that many are not."""
        while self._waiting and (self._waiting[0].done() or len(self._waiting) > most_waiting):
            # Forgotten when it is done, and not before: Ctrl-C may come while this waits.
            wait([self._waiting[0]])
            self._waiting.popleft().result()

    def _finish(self) -> None:
        """At the end of the program: wait for all, and raise all that failed."""
        self._closed = True
        failures: list[Exception] = []
        while self._waiting:
            try:
                self._raise_failures(len(self._waiting) - 1)
            except Exception as error:  # noqa: BLE001  raised below, with the others
                failures.append(error)
        if failures:
            raise ExceptionGroup(f"checkpoints of run {self.run!r} were not stored", failures)

    def _commit_of(self, step: int | None) -> Digest:
        return find_step(self._context.core.log.refresh(), self.run, step)

    def _store(self, box: list[_Waiting]) -> Saved:
        waiting = box.pop()
        try:
            saved = self._committed(waiting)
        except BaseException:
            waiting.tensors.clear()
            self._staging.release(waiting.size_bytes)
            raise
        # The next checkpoint is encoded against this one: a copy at hand is not decoded again.
        self._last = saved.commit, waiting.tensors
        self._staging.hold(waiting.size_bytes, waiting.tensors.clear)
        if self._on_saved is not None:
            try:
                self._on_saved(saved)
            except Exception:
                # It is stored: neither its future nor the next `save` may say that it is not.
                _LOGGER.exception("on_saved failed for step %d of run %r", saved.step, self.run)
        return saved

    def _committed(self, waiting: _Waiting) -> Saved:
        edge = None
        if self.optimizer is not None:
            # Where the copies lie: the next checkpoint is encoded against what is stored of this.
            edge = shorten_state(waiting.skeleton, waiting.tensors, self.optimizer, STATE_PATH)
        lineage = waiting.lineage if edge is None else (edge, *waiting.lineage)
        with begin_beside(self._context.core, ref_of(self.run, waiting.step)) as transaction:
            with self._staging.pinned():
                entry = self._write(transaction, waiting, lineage)
            transaction.stage(STATE_PATH, entry)
            made = commit_checkpoint(
                transaction,
                self.run,
                waiting.step,
                metrics=waiting.metrics,
                history=self._history,
                keep=self.keep,
                parent=self._start,
                author=self._context.author,
            )
        self._history = made.history
        return Saved(
            waiting.step,
            made.digest,
            waiting.metrics,
            waiting.size_bytes,
            self._clock() - waiting.began,
            made.dropped,
            approximation_of(lineage),
        )

    def _write(
        self, transaction: Transaction, waiting: _Waiting, lineage: tuple[Edge, ...]
    ) -> Entry:
        # What does not change is kept there, and the rest encoded against it.
        against = against_newest(self._context, transaction.pin, self.run, waiting.step, self.keep)
        before = against.base
        if against.depth:
            against = replace(
                against,
                predictions=self._predicted(waiting, before),
                held=self._held(transaction),
            )
        return write_model(
            transaction.objects,
            waiting.tensors,
            metadata={"run": self.run, "step": waiting.step, "state": waiting.skeleton},
            metrics=waiting.metrics,
            lineage=lineage,
            known=[] if before is None else [before],
            against=against,
        )

    def _held(self, transaction: Transaction) -> dict[str, TensorReader]:
        """The tensors of the checkpoint before, where this saved it and they are here still."""
        commit, tensors = self._last
        held = steps_of(transaction.pin, self.run)
        if not held or held[max(held)] != commit:
            return {}
        return {name: tensor_of(name, value) for name, value in tuple(tensors.items())}

    def _predicted(
        self, waiting: _Waiting, before: Entry | None
    ) -> dict[str, tuple[Prediction, ...]]:
        """What an optimizer's step made of the checkpoint before."""
        if before is None:
            return {}
        known = open_model(self._context.core.objects, before).metadata.get("state")
        return predictions(adam_steps(waiting.skeleton, waiting.tensors, known))
