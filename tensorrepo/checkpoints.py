"""How is a checkpoint committed, and what is known of those that a run has?

Every checkpoint is a commit at the ref ``runs/<run>/<step>``, with the start of the run as its
parent. Its tree has the state as a model, at `STATE_PATH`, and at ``runs/<run>`` the metrics of all
steps so far, which outlive the weights.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tensorrepo.formats.arguments import whole
from tensorrepo.formats.model.bases import Against
from tensorrepo.formats.model.placement import decode_placement
from tensorrepo.formats.model.training.chains import next_step
from tensorrepo.formats.model.training.lossy import approximation_of
from tensorrepo.formats.run.document import check_metric_name
from tensorrepo.repo.errors import CorruptError, InvalidInputError, NotFoundError
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.series import MOST_DROPPED, commit_beside
from tensorrepo.repo.trees import Entry

if TYPE_CHECKING:
    from tensorrepo.context import Context
    from tensorrepo.formats.model.read import Model
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.log import View
    from tensorrepo.repo.transaction import Transaction
    from tensorrepo.retention import Keep

RUNS: Final = "runs/"
STATE_PATH: Final = "models/state"
_MOST_STEP: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Committed:
    """A checkpoint's commit, and the steps that went because of it."""

    digest: Digest
    dropped: tuple[int, ...]
    history: History


@dataclass(frozen=True, slots=True)
class History:
    """Metrics of every step of a run, those of checkpoints that are gone as well."""

    metrics: dict[int, dict[str, float]] = field(default_factory=dict)

    def with_step(self, step: int, metrics: dict[str, float]) -> History:
        """With one more step; what was there of it, and of steps after it, was another past."""
        earlier = {at: told for at, told in self.metrics.items() if at < step}
        return History({**earlier, step: metrics})

    def encoded(self) -> bytes:
        steps = [[step, self.metrics[step]] for step in sorted(self.metrics)]
        return json.dumps({"version": 1, "steps": steps}, sort_keys=True).encode()


def ref_of(run: str, step: int) -> str:
    return f"{RUNS}{run}/{step}"


def steps_of(view: View, run: str) -> dict[int, Digest]:
    """The checkpoints of a run by step."""
    space = f"{RUNS}{run}/"
    return {
        int(ref.removeprefix(space)): commit
        for ref, commit in view.state.refs.items()
        if ref.startswith(space) and ref.removeprefix(space).isdecimal()
    }


def find_step(view: View, run: str, step: int | None) -> Digest:
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


def warn_if_approximate(model: Model, run: str, *, stacklevel: int) -> None:
    """Tell who resumes from a state that it is not bit by bit what was saved."""
    found = approximation_of(model.lineage)
    if found is not None:
        step = model.metadata.get("step")
        warnings.warn(f"run {run!r}, step {step}: {found.text}", stacklevel=stacklevel + 1)


def newest_entry(context: Context, view: View, run: str) -> Entry | None:
    """The state of the newest checkpoint in a view."""
    held = steps_of(view, run)
    return state_entry(context, held[max(held)]) if held else None


def against_newest(context: Context, view: View, run: str, step: int, keep: Keep) -> Against:
    """What a new checkpoint is encoded against: the newest one in a view, or nothing.

    Predictions of an optimizer's step are added by who has the state, where `depth` is not 0.
    """
    before = newest_entry(context, view, run)
    newest = max(steps_of(view, run), default=step)
    kept = keep.last
    if keep.for_good(step):
        if not keep.for_good(newest):
            # It would keep one for good that goes.
            return Against(before, 0)
        kept = None
    digest = before.storage if before is not None and kept is not None else None
    placed = None
    if digest is not None:
        placed = decode_placement(context.core.objects.get(digest).payload, digest)
    planned = next_step(placed, kept)
    return Against(before, planned.depth, worth=planned.worth)


def read_history(context: Context, run: str) -> History:
    """The metrics of a run, as its newest checkpoint tells them."""
    held = steps_of(context.core.log.refresh(), run)
    if not held:
        return History()
    tree = context.resolve(held[max(held)]).commit.tree
    entry = context.core.entry(tree, f"{RUNS}{run}")
    if entry is None:
        return History()
    told = json.loads(bytes(context.core.objects.get(entry.digest).payload))
    return History({int(step): dict(values) for step, values in told["steps"]})


def commit_checkpoint(
    transaction: Transaction,
    run: str,
    step: int,
    *,
    metrics: Mapping[str, float],
    history: History,
    keep: Keep,
    parent: Digest | None,
    author: str,
) -> Committed:
    """Commit the state that is staged at `STATE_PATH`; those that expire go in the same record.

    Args:
        transaction: begun beside others, at the ref of the step.
        run: name of the run.
        step: of the training.
        metrics: of the step.
        history: of the steps before.
        keep: which checkpoints stay.
        parent: the commit that the run began at.
        author: of the commit.
    """
    history = history.with_step(step, dict(metrics))
    told = transaction.objects.put(Kind.BLOB, history.encoded())
    transaction.stage(f"{RUNS}{run}", Entry(Kind.BLOB, told.digest))
    expired: list[int] = []

    def drops(view: View) -> list[str]:
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
    return Committed(made.digest, tuple(sorted(expired)), history)


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
        return float(value)
    except OverflowError as error:
        raise InvalidInputError(f"metric {name!r}: too large for 64 bits of float") from error
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"metric {name!r}: {value!r:.80} is no number") from error
