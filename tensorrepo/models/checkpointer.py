"""Checkpointer: asynchronous checkpoints of a training, their retention, their commits.

    save: copy, return -> queue, bounded in bytes -> one thread: store, commit, drop the expired

Every checkpoint is a commit at the ref ``runs/<run>/<step>``, with the start of the run as its
parent. Its tree has the state as a model, at `STATE_PATH`, and at ``runs/<run>`` the metrics of all
steps so far, which outlive the weights. One record of the log makes a new checkpoint and drops the
expired ones, so a crash at any moment leaves whole checkpoints only.

At the end of a program `concurrent.futures` refuses all new work, then waits for what its threads
have begun: a thread that needs others for its work, as storing does, would fail silently. What
`before_pools_end` registers runs before that; `atexit` comes long after.
"""

from __future__ import annotations

import atexit
import json
import logging
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import field, replace
from math import isnan
from typing import Any, Final, Literal, Self
from weakref import WeakMethod

from tensorrepo.context import Context
from tensorrepo.formats.common.arguments import byte_size, counted, whole
from tensorrepo.formats.common.provenance import ProvenanceEdge
from tensorrepo.formats.common.tensors import TensorReader, is_torch, tensor_of
from tensorrepo.formats.model.layout.placement import decode_placement
from tensorrepo.formats.model.state.adam_steps import adam_steps, predictions
from tensorrepo.formats.model.state.chains import next_step
from tensorrepo.formats.model.state.lossy import (
    Approximation,
    LossyState,
    approximation_of,
    shorten_state,
)
from tensorrepo.formats.model.state.snapshot_buffer import SnapshotBuffer, bytes_of
from tensorrepo.formats.model.state.state_dict import dict_of, put_together, take_apart
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.base_choice import DeltaOptions, Prediction
from tensorrepo.formats.model.write.model_writer import write_model
from tensorrepo.formats.runs.run_record import RUNS, check_metric_name, check_run_name
from tensorrepo.repo.changes.refs import BRANCHES, delete_ref
from tensorrepo.repo.changes.transaction import (
    MOST_DROPPED,
    CommitTransaction,
    begin_beside,
    commit_beside,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError, NotFoundError
from tensorrepo.repo.history.trees import Entry, file_entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.json_rules import refuse_newer
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.runs.run_context import note_checkpoint


def before_pools_end(finish: Callable[[], None]) -> None:
    """Call a bound method when the program ends; its object is not kept alive for that.

    What it raises is printed as an uncaught error is, and does not keep others from being called.
    """
    method = WeakMethod(finish)

    def call() -> None:
        found = method()
        if found is None:
            return
        try:
            found()
        except BaseException as error:  # noqa: BLE001  whatever it is, it is told
            sys.excepthook(type(error), error, error.__traceback__)

    # Private to Python, whose own pools use it; without it failures are printed at least.
    register = getattr(threading, "_register_atexit", atexit.register)
    with suppress(RuntimeError):  # the program is ending already
        register(call)


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """The last `last` checkpoints, those of every `every` steps, and the `best_count` best.

    Where a training goes back to an earlier step, the checkpoints above the next one that it saves
    are of a past that it gave up: all of them go, unless all are kept.

    Attributes:
        last: how many of the newest; at least 1, since training resumes from it. None: all, also
            those of a past that was given up: going on from the right one is up to you then.
        every: steps that are multiples of it are kept for good.
        best: name of the metric by which some are kept; checkpoints without it, or with NaN, are
            never among the best.
        mode: "min" where less is better, as of a loss; "max" as of an accuracy.
        best_count: how many of the best.

    Example:
        ``RetentionPolicy(last=3, every=1000, best="loss")``
    """

    last: int | None = 3
    every: int | None = None
    best: str | None = None
    mode: Literal["min", "max"] = "min"
    best_count: int = 1

    def __post_init__(self) -> None:
        if self.last is not None and self.last < 1:
            raise InvalidInputError(f"last={self.last}: at least the newest checkpoint is kept")
        if self.every is not None and self.every < 1:
            raise InvalidInputError(f"every={self.every}: expected steps, at least 1")
        if self.mode not in {"min", "max"}:
            raise InvalidInputError(f"mode={self.mode!r}: expected 'min' or 'max'")
        if self.best_count < 1:
            raise InvalidInputError(f"best_count={self.best_count}: at least 1")

    def for_good(self, step: int) -> bool:
        """Whether the checkpoint of a step never goes."""
        return self.last is None or (self.every is not None and step % self.every == 0)

    def expired(
        self, metrics: Mapping[int, Mapping[str, float]], saved: int | None = None
    ) -> list[int]:
        """The steps that go, ascending.

        Args:
            metrics: metrics of every checkpoint that there is, by step.
            saved: the one just saved, which never goes; None: the newest.
        """
        if self.last is None:
            return []
        past = {step: told for step, told in metrics.items() if saved is None or step <= saved}
        steps = sorted(past)
        kept = set(steps[-self.last :])
        if self.every is not None:
            kept.update(step for step in steps if step % self.every == 0)
        kept.update(self._best(past))
        return [step for step in sorted(metrics) if step not in kept]

    def _best(self, metrics: Mapping[int, Mapping[str, float]]) -> list[int]:
        if self.best is None:
            return []
        known = {step: told[self.best] for step, told in metrics.items() if self.best in told}
        usable = [step for step, value in known.items() if not isnan(value)]
        sign = 1 if self.mode == "min" else -1
        # Of equal ones the newest: it has been trained longest.
        return sorted(usable, key=lambda step: (sign * known[step], -step))[: self.best_count]


STATE_PATH: Final = "models/state"
_MOST_STEP: Final = (1 << 63) - 1
_HISTORY_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class CommittedCheckpoint:
    """A checkpoint's commit, and the steps that went because of it."""

    digest: Digest
    dropped: tuple[int, ...]
    history: MetricHistory


@dataclass(frozen=True, slots=True)
class MetricHistory:
    """Metrics of every step of a run, those of checkpoints that are gone as well."""

    metrics: dict[int, dict[str, float]] = field(default_factory=dict)

    def encoded(self) -> bytes:
        steps = [[step, self.metrics[step]] for step in sorted(self.metrics)]
        return json.dumps({"version": _HISTORY_VERSION, "steps": steps}, sort_keys=True).encode()


def ref_of(run: str, step: int) -> str:
    return f"{RUNS}{run}/{step}"


def steps_of(view: LogView, run: str) -> dict[int, Digest]:
    """The checkpoints of a run by step."""
    space = f"{RUNS}{run}/"
    return {
        int(ref.removeprefix(space)): commit
        for ref, commit in view.state.refs.items()
        if ref.startswith(space) and ref.removeprefix(space).isdecimal()
    }


def find_step(view: LogView, run: str, step: int | None) -> Digest:
    """The commit of a checkpoint, of the newest without `step`.

    Raises:
        NotFoundError: no such checkpoint; says which there are.
    """
    held = steps_of(view, run)
    wanted = max(held, default=None) if step is None else checked_step(step)
    if wanted is None or wanted not in held:
        there = ", ".join(map(str, sorted(held)[-8:]))
        raise NotFoundError(
            f"run {run!r} has no checkpoint{'' if step is None else f' of step {step}'}"
            + (f"; the newest are {there}" if there else "")
        )
    return held[wanted]


def state_entry(context: Context, commit: Digest) -> Entry:
    """The state in a checkpoint's commit."""
    entry = context.core.entry(context.resolve(commit).commit.tree, STATE_PATH)
    if entry is None:
        raise CorruptError(f"commit {commit:.12} is no checkpoint: it has no {STATE_PATH}")
    return entry


def warn_if_approximate(model: StoredModel, run: str, *, stacklevel: int) -> None:
    """Tell who resumes from a state that it is not bit by bit what was saved."""
    found = approximation_of(model.lineage)
    if found is not None:
        step = model.metadata.get("step")
        warnings.warn(f"run {run!r}, step {step}: {found.text}", stacklevel=stacklevel + 1)


def against_newest(
    context: Context, view: LogView, run: str, step: int, keep: RetentionPolicy
) -> DeltaOptions:
    """What a new checkpoint is encoded against: the newest one in a view, or nothing.

    Predictions of an optimizer's step are added by who has the state, where `depth` is not 0.
    """
    held = steps_of(view, run)
    newest = max(held, default=step)
    before = state_entry(context, held[newest]) if held else None
    kept = keep.last
    if keep.for_good(step):
        if not keep.for_good(newest):
            # It would keep one for good that goes.
            return DeltaOptions(before, 0)
        kept = None
    digest = before.storage if before is not None and kept is not None else None
    placed = None
    if digest is not None:
        placed = decode_placement(context.core.objects.get(digest).payload, digest)
    return replace(next_step(placed, kept), base=before)


def predicted(
    context: Context, before: Entry | None, skeleton: Any, tensors: Mapping[str, Any]
) -> dict[str, tuple[Prediction, ...]]:
    """What an optimizer's step made of the checkpoint before."""
    if before is None:
        return {}
    known = open_model(context.core.objects, before).metadata.get("state")
    return predictions(adam_steps(skeleton, tensors, known))


def read_history(context: Context, run: str) -> MetricHistory:
    """The metrics of a run, as its newest checkpoint tells them."""
    held = steps_of(context.core.log.refresh(), run)
    if not held:
        return MetricHistory()
    tree = context.resolve(held[max(held)]).commit.tree
    entry = context.core.entry(tree, f"{RUNS}{run}")
    if entry is None:
        return MetricHistory()
    data, where = context.core.objects.get(entry.digest).payload, f"metrics of run {run!r:.100}"
    refuse_newer(data, _HISTORY_VERSION, where)
    try:
        told = json.loads(bytes(data))
        return MetricHistory({int(step): dict(values) for step, values in told["steps"]})
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError(f"{where}: no list of steps: {error!r:.200}") from error


def commit_checkpoint(
    transaction: CommitTransaction,
    run: str,
    step: int,
    *,
    metrics: Mapping[str, float],
    history: MetricHistory,
    keep: RetentionPolicy,
    parent: Digest | None,
    author: str,
) -> CommittedCheckpoint:
    """Commit the state that is staged at `STATE_PATH`; those that expire go in the same record.

    The transaction was begun beside others, at the ref of the step. `metrics` are those of the
    step, `history` has the steps before, `parent` is the commit that the run began at.
    """
    # What was there of this step, and of steps after it, was another past.
    earlier = {at: told for at, told in history.metrics.items() if at < step}
    history = MetricHistory({**earlier, step: dict(metrics)})
    told = transaction.objects.put(Kind.BLOB, history.encoded())
    transaction.stage(f"{RUNS}{run}", file_entry(told))
    expired: list[int] = []

    def drops(view: LogView) -> list[str]:
        told = {at: history.metrics.get(at, {}) for at in {*steps_of(view, run), step}}
        gone = [at for at in keep.expired(told, step) if ref_of(run, at) in view.state.refs]
        # Those of another past first: while one is left, it is what a training resumes from.
        expired[:] = sorted(gone, key=lambda at: (at < step, at))[:MOST_DROPPED]
        return [ref_of(run, at) for at in expired]

    made = commit_beside(
        transaction,
        parent,
        f"Checkpoint {step} of {run}",
        author=author,
        metadata={"run": run, "step": step},
        drops=drops,
    )
    return CommittedCheckpoint(made.digest, tuple(sorted(expired)), history)


def checked_step(step: Any) -> int:
    """The step of a training. Raises InvalidInputError when it is none."""
    return whole("step", step, 0, _MOST_STEP)


def numbers_of(metrics: Mapping[str, Any] | None) -> dict[str, float]:
    """Metrics of a checkpoint. Raises InvalidInputError for a name or a value that is none."""
    if metrics is not None and not isinstance(metrics, Mapping):
        raise InvalidInputError(f"metrics {metrics!r:.80}: expected numbers by name")
    return {check_metric_name(name): number(name, value) for name, value in (metrics or {}).items()}


def number(name: str, value: Any) -> float:
    """A metric's value. Raises InvalidInputError when it is none."""
    try:
        # torch warns of a number that gradients lead to, as every loss is one.
        return float(value.detach() if is_torch(value) else value)
    except OverflowError as error:
        raise InvalidInputError(f"metric {name!r}: too large for 64 bits of float") from error
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"metric {name!r}: {value!r:.80} is no number") from error


_STAGING_BYTES: Final = 4 << 30
_WAITING: Final = 2  # checkpoints: one being stored, one behind it
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Saved:
    """A checkpoint that is durable.

    Attributes:
        step: step of the training.
        commit: its commit; ``runs/<run>/<step>`` names it.
        metrics: as given.
        size_bytes: bytes of its tensors.
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
    lineage: tuple[ProvenanceEdge, ...]  # what the run around it knew when it was saved


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
    staging_bytes = byte_size("staging", staging)
    return Checkpointer(context, run, start=began, staging_bytes=staging_bytes, **options)


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
        keep: RetentionPolicy | None = None,
        optimizer: LossyState | None = None,
        start: Digest | None = None,
        staging_bytes: int = _STAGING_BYTES,
        on_saved: Callable[[Saved], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Made by `Repository.checkpointer`."""
        self.run = check_run_name(run)
        self.noted: Callable[[str, int, Mapping[str, float]], list[ProvenanceEdge]] = (
            note_checkpoint
        )
        self.keep = keep or RetentionPolicy()
        self.optimizer = optimizer
        self._context = context
        self._start = start
        self._staging = SnapshotBuffer(staging_bytes)
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
            step: step of the training; saved again, it takes the place of the earlier one.
            state: names to state dicts, tensors, numbers, text: what `load` gives back.
            metrics: numbers of this step, by which `RetentionPolicy` judges, and which stay when it
                goes.

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
        self._raise_failures(_WAITING - 1)
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

    def load(
        self,
        step: int | None = None,
        *,
        output: str = "torch",
        shard: tuple[int, int, int] | None = None,
    ) -> dict[str, Any]:
        """The state that `save` was given, but for numbers kept in fewer bits: a warning says so.

        Args:
            step: which; None: the newest.
            output: library of tensors: "torch", or "numpy" for the arrays of their bits.
            shard: (dimension, rank, world): of each tensor the part that ``torch.chunk`` would give
                to that rank, and no more of it is read, however many ranks saved it. Tensors
                without that dimension come whole.

        Raises:
            NotFoundError: no such checkpoint; says which there are.
        """
        if output not in {"numpy", "torch"}:
            raise InvalidInputError(f"output {output!r}: expected 'numpy' or 'torch'")
        self.wait()
        entry = state_entry(self._context, self._commit_of(step))
        model = open_model(self._context.core.objects, entry)
        warn_if_approximate(model, self.run, stacklevel=3)
        tensors = model.load(output="torch" if output == "torch" else "numpy", shard=shard)
        found: dict[str, Any] = put_together(model.metadata.get("state"), tensors)
        return found

    def plain_value(self, step: int, name: str) -> Any:
        """What a state holds under a name, where that is plain; None: nothing. No tensor is read.

        Raises:
            NotFoundError: no such checkpoint; says which there are.
        """
        entry = state_entry(self._context, self._commit_of(step))
        skeleton = open_model(self._context.core.objects, entry).metadata.get("state")
        return (dict_of(skeleton) or {}).get(name)

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

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<checkpointer of run {self.run!r}: {counted(len(self.steps()), 'checkpoint')}>"

    def _raise_failures(self, most_waiting: int) -> None:
        """Take what is done, and wait until no more than that many are not."""
        while self._waiting and (self._waiting[0].done() or len(self._waiting) > most_waiting):
            # Forgotten when it is done, and not before: Ctrl-C may come while this waits.
            wait([self._waiting[0]])
            with suppress(CancelledError):  # nobody was given that future
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
        try:
            waiting = box.pop()
        except IndexError:
            raise CancelledError("an interrupt took it back while it was handed over") from None
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
        self, transaction: CommitTransaction, waiting: _Waiting, lineage: tuple[ProvenanceEdge, ...]
    ) -> Entry:
        # What does not change is kept there, and the rest encoded against it.
        against = against_newest(self._context, transaction.pin, self.run, waiting.step, self.keep)
        before = against.base
        if against.depth:
            against = replace(
                against,
                predictions=predicted(self._context, before, waiting.skeleton, waiting.tensors),
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

    def _held(self, transaction: CommitTransaction) -> dict[str, TensorReader]:
        """The tensors of the checkpoint before, where this saved it and they are here still."""
        commit, tensors = self._last
        held = steps_of(transaction.pin, self.run)
        if not held or held[max(held)] != commit:
            return {}
        return {name: tensor_of(name, value) for name, value in tuple(tensors.items())}
