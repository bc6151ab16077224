"""Feedback loop of a stream: losses that a training reports, and the weights of its next epoch.

What is reported in an epoch is put together when the next one begins: on several ranks by a
function of the user's, which all of them call. So all have the same scores, and the same rows in
the next epoch. A state has the scores that this epoch's weights follow from, and what all ranks
reported in it, so that whoever resumes has the same next epoch as whoever went on.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.dataset.streaming.collate.batch import Batch
from tensorrepo.formats.dataset.streaming.feed import DatasetFeed
from tensorrepo.formats.dataset.streaming.order.feedback import (
    Feedback,
    Reports,
    Scores,
    decoded_feedback,
    encoded_feedback,
)
from tensorrepo.formats.dataset.streaming.order.items import UNIT_BITS
from tensorrepo.repo.errors import InvalidInputError


class FeedbackLoop:
    """Scores in force, and reports since they are."""

    def __init__(self, how: Feedback, scores: Scores, reports: Reports, epoch: int) -> None:
        """Weigh rows as `how` says; `scores` are in force in `epoch`."""
        self._how, self._scores, self._reports, self._epoch = how, scores, reports, epoch

    @classmethod
    def new(cls, how: Feedback, feed: DatasetFeed) -> Self:
        """Before anything was reported."""
        return cls(how, Scores.none(feed.dataset.rows), Reports(), 0)

    def report(self, batch: Any, losses: Any) -> None:
        """Note the loss of each row of a batch; rows that fill up a last step count once.

        Raises:
            InvalidInputError: no batch of this stream, or not one sound loss for each row.
        """
        if not isinstance(batch, Batch):
            raise InvalidInputError(
                f"report takes a batch as the stream gave it, got {type(batch).__name__}: a "
                "transform that returns something else hides which rows these are. Change the "
                "batch in place and return it, or keep it beside your own"
            )
        values = _numbers(losses)
        own = len(batch.rows) - batch.repeated
        if values.shape == batch.rows.shape:
            self._reports.add(batch.rows[:own], values[:own])
        else:
            self._reports.add(batch.rows, values)  # which says what is wrong

    def begun(self, feed: DatasetFeed, epoch: int) -> DatasetFeed:
        """The data with the weights of `epoch`: others than before if that is another epoch."""
        if epoch == self._epoch:
            return feed
        reports = self._reports.of_all(self._how.gather)
        self._scores = self._scores.after(reports, self._how.smoothing)
        self._reports, self._epoch = Reports(), epoch
        return feed.scored(self._scores, self._how)

    def state(self, *, gathered: bool = True) -> dict[str, Any]:
        """Scores and reports as JSON values: of all ranks, if they are `gathered`."""
        reports = self._reports.of_all(self._how.gather if gathered else None)
        return encoded_feedback(self._how, self._scores, reports)

    def loaded(self, form: Any, epoch: Any, feed: DatasetFeed) -> tuple[FeedbackLoop, DatasetFeed]:
        """The loop of a saved state, and the data with its weights.

        Raises:
            InvalidInputError: the state has none, or one of another stream.
        """
        if form is None or not isinstance(epoch, int):
            raise InvalidInputError(
                "the state was saved without feedback=, and this stream has it: its positions "
                "count other rows. Leave feedback= out to resume"
            )
        scores, reports = decoded_feedback(form, feed.dataset.rows, self._how)
        loop = FeedbackLoop(self._how, scores, reports, epoch)
        return loop, feed.scored(scores, self._how)


def importance(feed: DatasetFeed, batch: Batch) -> NDArray[np.float32]:
    """1 / weight of each row of a batch: what its loss is multiplied by, so that the mean over an
    epoch is the mean over all rows; 1 where rows have no weights.
    """
    selection = feed.plan.selection
    if selection is None or selection.weights is None:
        return np.ones(len(batch.rows), np.float32)
    weights = selection.weights
    units = weights.units if weights.kind is None else weights.units[weights.kind]
    return (2.0**UNIT_BITS / units[batch.rows]).astype(np.float32)


def _numbers(losses: Any) -> NDArray[np.float64]:
    """Losses of numpy, torch, JAX, or a list, as an array."""
    detached = losses.detach() if hasattr(losses, "detach") else losses
    on_cpu = detached.cpu() if hasattr(detached, "cpu") else detached
    kept = on_cpu.float() if hasattr(on_cpu, "float") else on_cpu  # numpy has no bfloat16
    try:
        return np.asarray(kept, np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(
            f"losses are one number for each row of the batch, got {losses!r:.80}"
        ) from error
