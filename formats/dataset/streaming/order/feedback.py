"""Importance sampling by loss: how often rows come in an epoch, after what was reported of them.

Every row has a score, which follows the losses that were reported of it: an exponential moving
average, one step an epoch. Before an epoch, weights in proportion to the scores are mixed with
equal ones, so that no row is ever left out for good. So the weights of an epoch are a pure function
of reports: of the sum and the number of the losses of each row, which are integers. It does not
matter in which order reports come, or from which rank; all machines agree to the bit.

Why the loss: rows whose gradient is large are those that reduce the variance of the estimate, and
the loss is the cheapest number that goes along with it (Katharopoulos and Fleuret, "Not all samples
are created equal", 2018; Loshchilov and Hutter, "Online batch selection", 2015). It goes along
loosely, and a wrong label has a large loss for ever: hence the floor, and a most.

Source:
    docs/spec/stream-order.md, section "Feedback".
"""

from __future__ import annotations

import base64
import binascii
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Final, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common import arguments
from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.selecting.row_bits import spans
from tensorrepo.formats.dataset.streaming.order.items import (
    UNIT_BITS,
    RowChoice,
    Weights,
    exact_sum,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

MOST_LOSS: Final = float(1 << 24)
_MOST_REPORTS: Final = 1 << 28  # of a state: 2 GiB
MOST_SCORED_ROWS: Final = 1 << 26  # scores travel in states: about 6 bytes a row
_LOSS_BITS: Final = 30  # losses are added up in units of 2^-30
_SCORE_BITS: Final = 40  # of the largest score
_NEVER: Final = np.float32(-1.0)  # score of a row of which nothing was reported
_REPORT: Final = np.dtype([("row", "<u4"), ("loss", "<f4")])

# What this rank reports -> what each of the ranks reports, in any order.
Gather = Callable[[bytes], Sequence[bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    """Weights that follow the losses which `Stream.report` is given.

    Attributes:
        floor: share of equal weights in ``(0, 1]``: with 0.2 a row comes at least 0.2 times an
            epoch on average, whatever its loss; 1 ignores losses.
        smoothing: share of the newest losses in a row's score in ``(0, 1]``; 1 forgets older ones.
        most: most times the mean score that a score counts for, so that a wrong label does not take
            the epoch.
        gather: function of the bytes that this rank reports, gives those of all ranks, and is
            called by all of them; needed where there are several. ``all_gather_object`` of
            torch.distributed does that, see the guide on sampling.
    """

    floor: float = 0.2
    smoothing: float = 0.5
    most: float = 16.0
    gather: Gather | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("floor", "smoothing"):
            _between(f"Feedback: {name}", getattr(self, name), 0.0, 1.0)
        _between("Feedback: most", self.most, 1.0, 1e6)
        if self.gather is not None and not callable(self.gather):
            raise arguments.wrong("Feedback: gather", "a function", self.gather)


def _between(name: str, value: Any, low: float, high: float) -> None:
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not (low < value <= high or (low == value == 1.0)):
        raise arguments.wrong(name, f"a number above {low:g}, at most {high:g}", value)


class FeedbackState(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Scores and reports as the state of a stream has them.

    Attributes:
        floor: as in `Feedback`, with which the weights of this epoch were made.
        smoothing: likewise.
        most: likewise.
        scores: float32 of every live row, -1 where nothing was reported yet: little-endian,
            deflated, base64.
        reports: what was reported in this epoch, of all ranks: pairs of row (u32) and loss
            (float32), likewise.
    """

    floor: float
    smoothing: float
    most: float
    scores: str
    reports: str


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """The score of each live row of a dataset: float32 ``(rows,)``, -1 where it has none."""

    values: NDArray[np.float32]

    @classmethod
    def none(cls, rows: int) -> Self:
        """Nothing was reported yet.

        Raises:
            InvalidInputError: more rows than states can hold.
        """
        if rows > MOST_SCORED_ROWS:
            raise InvalidInputError(
                f"feedback keeps a score of every row, and {rows:,} are too many: at most "
                f"{MOST_SCORED_ROWS:,}. Stream a part of them, or give weights= by a column"
            )
        return cls(np.full(rows, _NEVER, np.float32))

    def after(self, reports: Sequence[NDArray[Any]], smoothing: float) -> Scores:
        """The scores after an epoch, of what all ranks reported in it."""
        sums = np.zeros(len(self.values), np.int64)
        counts = np.zeros(len(self.values), np.int64)
        for some in reports:
            _check_rows(some, len(self.values))
            losses = np.rint(np.ldexp(some["loss"].astype(np.float64), _LOSS_BITS))
            np.add.at(sums, some["row"], losses.astype(np.int64))
            np.add.at(counts, some["row"], 1)
        told = np.flatnonzero(counts)
        means = np.ldexp(sums[told] / counts[told], -_LOSS_BITS)
        before = self.values[told].astype(np.float64)
        moved = np.where(before < 0, means, before + smoothing * (means - before))
        values = self.values.copy()
        values[told] = moved.astype(np.float32)
        return Scores(values)

    def weights(self, chosen: RowChoice, epoch_rows: int, how: Feedback) -> Weights:
        """How often each of the `chosen` rows comes, so that these are `epoch_rows` on average."""
        there = _chosen(chosen)
        rows = int(there.sum())
        equal = (epoch_rows << UNIT_BITS) / max(1, rows)
        whole = self._whole(there, how.most)
        total = exact_sum(whole)
        if not total:
            return Weights(np.where(there, np.rint(equal), 0.0).astype(np.uint64))
        by_score = whole.astype(np.float64) * ((epoch_rows << UNIT_BITS) / total)
        units = np.rint(by_score * (1.0 - how.floor)) + np.rint(equal * how.floor)
        return Weights(np.where(there, units, 0.0).astype(np.uint64))

    def _whole(self, there: Bools, most: float) -> NDArray[np.uint64]:
        """Scores as integers, cut to `most` times their mean; the mean where there is none."""
        seen = there & (self.values >= 0)
        scores = np.where(seen, self.values, np.float32(0)).astype(np.float64)
        exponent = math.frexp(float(scores.max(initial=0.0)))[1]
        whole = np.rint(np.ldexp(scores, _SCORE_BITS - exponent)).astype(np.uint64)
        mean = exact_sum(whole) // max(1, int(seen.sum()))
        whole[there & ~seen] = mean
        np.minimum(whole, np.uint64(math.ceil(mean * most)), out=whole)
        return whole


class Reports:
    """What this rank reported since its epoch began, or since a state was loaded.

    Attributes:
        shared: what all ranks had reported in the epoch when the state was saved.
    """

    def __init__(self, shared: NDArray[Any] | None = None) -> None:
        """With nothing of this rank."""
        self.shared = np.zeros(0, _REPORT) if shared is None else shared
        self._parts: list[NDArray[Any]] = []

    def add(self, rows: Ints, losses: NDArray[Any]) -> None:
        """Note the loss of each of `rows`.

        Raises:
            InvalidInputError: not one finite loss of at least 0 for each row.
        """
        if losses.shape != rows.shape:
            raise InvalidInputError(
                f"losses are one number for each of the {len(rows)} rows of the batch, got shape "
                f"{losses.shape}: give them before they are averaged, as reduction='none' does"
            )
        good = np.isfinite(losses) & (losses >= 0) & (losses <= MOST_LOSS)
        if not good.all():
            at = int(np.flatnonzero(~good)[0])
            raise InvalidInputError(
                f"the loss of row {int(rows[at])} is {losses[at]}: losses are finite, at least 0 "
                f"and at most {MOST_LOSS:,.0f}"
            )
        part = np.empty(len(rows), _REPORT)
        part["row"], part["loss"] = rows, losses
        self._parts.append(part)

    def of_all(self, gather: Gather | None) -> list[NDArray[Any]]:
        """What all ranks reported; without `gather` this is the only one."""
        own = b"".join(part.tobytes() for part in self._parts)
        gathered = [own] if gather is None else gather(own)
        return [self.shared, *map(_unpacked, gathered)]


def _unpacked(data: Any) -> NDArray[Any]:
    if not isinstance(data, bytes | bytearray | memoryview) or len(data) % _REPORT.itemsize:
        raise InvalidInputError(
            f"{data!r:.40} is no report of losses: gather= gives, for each rank, the bytes that "
            "it was called with there"
        )
    return np.frombuffer(data, _REPORT)


def packed_array(array: NDArray[Any]) -> str:
    """An array as text, for states."""
    return base64.b64encode(zlib.compress(array.tobytes(), 1)).decode()


def unpacked_array(text: str, dtype: Any, most: int) -> NDArray[Any]:
    """What `packed_array` gave, of at most so many elements.

    Raises:
        InvalidInputError: something else.
    """
    kind = np.dtype(dtype)
    try:
        inflater = zlib.decompressobj()
        data = inflater.decompress(base64.b64decode(text, validate=True), most * kind.itemsize + 1)
    except (binascii.Error, ValueError, zlib.error) as error:
        raise InvalidInputError(f"the feedback of this state is damaged: {error}") from error
    if not inflater.eof or len(data) % kind.itemsize or len(data) > most * kind.itemsize:
        raise InvalidInputError("the feedback of this state is damaged: it has another length")
    return np.frombuffer(data, kind)


def encoded_feedback(
    how: Feedback, scores: Scores, reports: Sequence[NDArray[Any]]
) -> dict[str, Any]:
    """Scores and reports as JSON values: the same in whatever order the reports come."""
    every = np.sort(np.concatenate(reports))
    form: dict[str, Any] = msgspec.to_builtins(
        FeedbackState(
            floor=how.floor,
            smoothing=how.smoothing,
            most=how.most,
            scores=packed_array(scores.values.astype("<f4")),
            reports=packed_array(every),
        )
    )
    return form


def decoded_feedback(form: Any, rows: int, how: Feedback) -> tuple[Scores, Reports]:
    """Scores and reports of a state, of a dataset with so many live rows.

    Raises:
        InvalidInputError: of another stream, or damaged.
    """
    try:
        state = msgspec.convert(form, FeedbackState)
    except msgspec.ValidationError as error:
        raise InvalidInputError(f"not the feedback of a stream: {error}") from error
    its, own = (state.floor, state.smoothing, state.most), (how.floor, how.smoothing, how.most)
    if its != own:
        raise InvalidInputError(
            f"the state was saved with Feedback(floor, smoothing, most) of {its}, this stream has "
            f"{own}: its positions count other rows. Give the same to resume."
        )
    values = unpacked_array(state.scores, "<f4", rows)
    if len(values) != rows:
        raise InvalidInputError(
            f"the state has scores of {len(values):,} rows, the dataset has {rows:,} rows"
        )
    told = unpacked_array(state.reports, _REPORT, _MOST_REPORTS)
    _check_rows(told, rows)
    return Scores(values.astype(np.float32)), Reports(told)


def _check_rows(reports: NDArray[Any], rows: int) -> None:
    if len(reports) and int(reports["row"].max()) >= rows:
        raise InvalidInputError(
            f"a loss of row {int(reports['row'].max())} was reported, and the dataset has "
            f"{rows:,} rows: report batches of this stream"
        )


def _chosen(chosen: RowChoice) -> Bools:
    there = np.zeros(chosen.rows, np.bool_)
    for start, stop in spans(chosen.rows):
        there[start:stop] = chosen.counts(start, stop) > 0
    return there
