"""Which checkpoints of a run are kept?

A pure decision, over steps and metrics, made anew with every checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isnan
from typing import TYPE_CHECKING, Literal

from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Keep:
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
        ``Keep(last=3, every=1000, best="loss")``
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
            metrics: of every checkpoint that there is, by step.
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
