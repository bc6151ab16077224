"""Progressive evaluation: the best of many models by few bytes of each, more where it is undecided.

    all candidates: high planes -> bounds of the metric -> who may be of the best, and in which
    order, is undecided -> one more plane of those, and so on; at the end every bit

With "bounds" the metric is computed on intervals (see `tensorrepo.intervals`): the best, and their
order, are those that the whole weights give. With "estimates" it is any function: some candidates
drawn by chance are scored whole, too, and the largest difference seen bounds the others' one by one
with the confidence asked for (split conformal prediction). Whoever is kept then was scored whole.

Source:
    H. Miao et al., "Towards Unified Data and Lifecycle Management for Deep Learning", ICDE 2017,
    section "Progressive query evaluation". V. Vovk et al., "Algorithmic Learning in a Random
    World", for the confidence of estimates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import ceil, inf, isnan
from typing import Any, Final

from tensorrepo.context import Context
from tensorrepo.formats.model.read.refinement import FIRST_PLANES, RefinedModel
from tensorrepo.formats.runs.run_record import FINISHED
from tensorrepo.intervals import Interval
from tensorrepo.models.model import Model
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.runs.record import find_record
from tensorrepo.runs.run import Run
from tensorrepo.verbs.evaluate import (
    KEY,
    Evaluation,
    EvaluationCandidate,
    EvaluationJob,
    EvaluationRequest,
    Score,
    candidates_of,
    checked_scores,
    evaluate_whole,
    failed_score,
    job_of,
    known_score,
    note_inputs,
    score,
)

_BOUNDS: Final = "bounds"
_ARITHMETIC: Final = "float64 bounds"  # part of keys: exact scores of bounds are of float64


class RefinedWeights(Mapping[str, Any]):
    """What a metric gets for a model of which not all bytes were read: tensors by name.

    Exact tensors are arrays of float64, others are `Interval`.
    """

    def __init__(self, refined: RefinedModel, path: str) -> None:
        self._refined, self.path = refined, path

    @property
    def name(self) -> str:
        return self.path.removeprefix("models/")

    def __getitem__(self, name: str) -> Any:
        low, high = self._refined.bounds(self._refined.stored.spec(name).name)
        return low if low is high else Interval(low, high)

    def __iter__(self) -> Iterator[str]:
        return iter(self._refined.stored)

    def __len__(self) -> int:
        return len(self._refined.stored)


class _EstimatedWeights(RefinedWeights):
    """Arrays of the tensors' own types, unknown parts in their middle."""

    def __getitem__(self, name: str) -> Any:
        return self._refined.middle(self._refined.stored.spec(name).name)


@dataclass(slots=True)
class _Contender:
    """A candidate, and what is known of its metric: larger is better, whatever the metric says.

    `sign` is that of the rule; `low` and `high` are of sign * value.
    """

    candidate: EvaluationCandidate
    model: Model
    sign: int
    low: float = -inf
    high: float = inf
    refined: RefinedModel | None = None
    is_exact: bool = False
    is_told: bool = False  # by its run
    read_bytes: int = 0
    told: Score | None = None  # of a known score, or of a failure

    @property
    def failed(self) -> bool:
        return self.told is not None and self.told.outcome == "failed"

    @property
    def bounds(self) -> tuple[float, float]:
        """Of the metric itself."""
        return (self.low, self.high) if self.sign > 0 else (-self.high, -self.low)

    def learn(self, low: float, high: float, *, exact: bool) -> None:
        """Take bounds of the metric. NaN is worse than every number."""
        ends = (low, high) if self.sign > 0 else (-high, -low)
        if exact and isnan(low):
            ends = (-inf, -inf)
        self.low, self.high = max(self.low, ends[0]), min(self.high, ends[1])
        if exact:
            self.low, self.high, self.is_exact = *ends, True


def undecided(contenders: Iterable[_Contender], count: int) -> list[_Contender]:
    """Those who may be among the best `count`, and whose place is not sure.

    A candidate that so many are above for sure is out. Of the others those are undecided whose
    bounds overlap another's.
    """
    alive = [one for one in contenders if not one.failed]
    lows = sorted((one.low for one in alive), reverse=True)
    least = lows[count - 1] if len(lows) >= count else -inf
    alive = sorted((one for one in alive if one.high >= least), key=lambda one: one.low)
    found: list[_Contender] = []
    group: list[_Contender] = []
    reach = -inf
    for one in [*alive, None]:
        if one is not None and group and one.low <= reach:
            group.append(one)
            reach = max(reach, one.high)
            continue
        if len(group) > 1:
            found += [each for each in group if not each.is_exact]
        if one is not None:
            group, reach = [one], one.high
    return found


def evaluate(context: Context, request: EvaluationRequest) -> Evaluation:
    """See `Repository.evaluate`."""
    if request.progressive is None:
        return evaluate_whole(context, request)
    job = job_of(context, request)
    count = job.rule.count
    if count is None:
        raise InvalidInputError(
            "a progressive evaluation finds the best: keep= is how many; a condition needs every "
            "score, so leave out progressive="
        )
    by_bounds = request.progressive == _BOUNDS
    more = (_ARITHMETIC,) if by_bounds else ()
    contenders = [
        _Contender(one, one.model, job.rule.sign)
        for one in candidates_of(job, request, *more)
        if one.model is not None
    ]
    run = _BoundedRun(job, count, request) if by_bounds else _EstimatedRun(job, count, request)
    run(contenders)
    return _evaluation(job, contenders, count)


class _BoundedRun:
    """By interval arithmetic: rounds of one more plane for those that are undecided."""

    def __init__(self, job: EvaluationJob, count: int, request: EvaluationRequest) -> None:
        self._job, self._count, self._request = job, count, request

    def __call__(self, contenders: list[_Contender]) -> None:
        for one in contenders:
            self._recall(one)
        planes = FIRST_PLANES
        try:
            while waiting := self._undecided(contenders):
                for one in waiting:
                    self._step(one, planes)
                    self._release_beyond(contenders, one)
                planes += 1
                self._tell(contenders, {id(each) for each in self._undecided(contenders)})
        finally:
            self._tell(contenders, set())

    def _undecided(self, contenders: list[_Contender]) -> list[_Contender]:
        found = undecided(contenders, self._count)
        if len(contenders) == 1 and not contenders[0].failed and contenders[0].high == inf:
            found = contenders  # alone, it is the best; its metric is wanted all the same
        self._request.progress(len(contenders) - len(found), len(contenders))
        return found

    def _step(self, one: _Contender, planes: int) -> None:
        def measure() -> Any:
            if one.refined is None:
                one.refined = RefinedModel(one.model.stored)
            before = one.refined.read_bytes
            one.refined.refine(planes)
            one.read_bytes += one.refined.read_bytes - before
            return self._job.metric(RefinedWeights(one.refined, one.model.path), self._job.data)

        value = _measured(self._job, one, measure)
        if value is None or one.refined is None:
            return
        if isinstance(value, Interval):
            one.learn(value.low.item(), value.high.item(), exact=one.refined.is_whole)
        elif one.refined.is_whole:
            one.learn(value, value, exact=True)
        else:
            lost = InvalidInputError(
                "the metric made a plain number of weights that are known within bounds; what it "
                "lost cannot be bounded. Use numpy's functions on them, or progressive='estimates'"
            )
            one.told, one.refined = failed_score(self._job, one.candidate, lost, 0.0), None
        one.is_told = False

    def _release_beyond(self, contenders: list[_Contender], one: _Contender) -> None:
        """Let go of the model in hand when all together take more memory than they may."""
        held = sum(each.refined.memory_bytes for each in contenders if each.refined is not None)
        if held > self._request.memory_bytes or one.is_exact:
            one.refined = None

    def _recall(self, one: _Contender) -> None:
        """What a run of an earlier evaluation says: the score, or bounds of it."""
        found = known_score(self._job, one.candidate)
        if found is not None:
            value = next(iter(found.metrics.values()))
            one.learn(value, value, exact=True)
            one.told, one.is_told = found, True
            return
        record = find_record(self._job.context, self._job.run_name(one.candidate))
        if (
            record is None
            or record.status != FINISHED
            or record.params.get(KEY) != (one.candidate.key)
        ):
            return
        low, high = record.metrics.get(f"{_BOUNDS}/low"), record.metrics.get(f"{_BOUNDS}/high")
        if low is not None and high is not None and low <= high:
            one.learn(low, high, exact=False)
            one.is_told = True

    def _tell(self, contenders: list[_Contender], waiting: set[int]) -> None:
        """Record those that are decided, once."""
        for one in contenders:
            if one.is_told or id(one) in waiting or (one.low == -inf and not one.is_exact):
                continue
            one.is_told, one.refined = True, None
            params = {KEY: one.candidate.key, "evaluation": self._job.name}
            name = self._job.run_name(one.candidate)
            with Run(
                self._job.context, name, params=params, resume=True, system_seconds=None
            ) as run:
                note_inputs(self._job, one.candidate, run)
                low, high = one.bounds
                if one.is_exact:
                    metric = _named(self._job)
                    run.log_metrics({metric: low})
                    run.log_params({"metrics": [metric]})
                else:
                    run.log_metrics({f"{_BOUNDS}/low": low, f"{_BOUNDS}/high": high})


class _EstimatedRun:
    """By estimates, whose errors are measured on candidates that are drawn by chance."""

    def __init__(self, job: EvaluationJob, count: int, request: EvaluationRequest) -> None:
        self._job, self._count, self._request = job, count, request

    def __call__(self, contenders: list[_Contender]) -> None:
        # The largest of n errors is above one more with a probability of n / (n + 1).
        calibrated = ceil(round(1 / (1 - self._request.confidence), 9)) - 1
        if len(contenders) <= calibrated + self._count:
            self._score_whole(contenders)
            return
        drawn = sorted(contenders, key=_draw)
        estimates = {id(one): self._estimate(one) for one in contenders}
        self._score_whole(drawn[:calibrated])
        errors = [
            abs(one.bounds[0] - estimate)
            for one in drawn[:calibrated]
            if one.is_exact and (estimate := estimates[id(one)]) is not None
        ]
        # One that failed, or that is no number, bounds nothing.
        margin = max(errors) if len(errors) == calibrated else inf
        for one in drawn[calibrated:]:
            if (estimate := estimates[id(one)]) is not None:
                one.learn(estimate - margin, estimate + margin, exact=False)
        while waiting := self._waiting(contenders):
            self._score_whole(waiting)

    def _waiting(self, contenders: list[_Contender]) -> list[_Contender]:
        """The undecided, and those of the best that are not exact yet."""
        found = undecided(contenders, self._count)
        if not found:
            found = [one for one in _best(contenders, self._count) if not one.is_exact]
        self._request.progress(len(contenders) - len(found), len(contenders))
        return found

    def _estimate(self, one: _Contender) -> float | None:
        """The metric of the high planes. None: it failed, or is no number."""

        def measure() -> Any:
            refined = RefinedModel(one.model.stored)
            refined.refine(FIRST_PLANES)
            one.read_bytes += refined.read_bytes
            return self._job.metric(_EstimatedWeights(refined, one.model.path), self._job.data)

        value = _measured(self._job, one, measure)
        assert not isinstance(value, Interval)
        return None if value is None or isnan(value) else value

    def _score_whole(self, contenders: Iterable[_Contender]) -> None:
        for one in contenders:
            if one.failed or one.is_exact:
                continue
            found = known_score(self._job, one.candidate)
            if found is None:
                found = score(self._job, one.candidate)
                one.read_bytes += whole_bytes(one.model)
            one.told = found
            if found.outcome != "failed":
                value = found.metrics[self._job.rule.metric(found.metrics)]
                one.learn(value, value, exact=True)


def whole_bytes(model: Model) -> int:
    """Stored bytes that a read of all tensors takes, bases of deltas counted once."""
    stored, places, total = model.stored, set(), 0
    for name in stored.tensors:
        tensor = stored.tensor(name)
        total += tensor.stored_bytes
        places |= {placed.place for placed in tensor.frames}
    members = stored.packs.members
    return total + sum(
        members.entries[place].stored_bytes for place in members.with_bases(places) - places
    )


def _draw(one: _Contender) -> str:
    """An order by chance, the same whenever it is asked for."""
    return hashlib.sha256(f"calibration {one.candidate.key}".encode()).hexdigest()


def _measured(
    job: EvaluationJob, one: _Contender, measure: Callable[[], Any]
) -> Interval | float | None:
    """The one number that a metric gives, or its bounds. None: it failed, as the candidate tells.

    Raises:
        InvalidInputError: it gave several of which none orders: that is the call's mistake.
    """
    given: Any = None
    try:
        given = measure()
        return _single(job, given)
    except Exception as error:
        if isinstance(given, Mapping) and given and not job.rule.orders(given):
            raise
        one.told, one.refined = failed_score(job, one.candidate, error, 0.0), None
        return None


def _single(job: EvaluationJob, value: Any) -> Interval | float:
    """The one number that a metric gave, or its bounds."""
    if isinstance(value, Mapping):
        value = value[job.rule.metric(value)]
    if isinstance(value, Interval):
        if value.size != 1:
            raise InvalidInputError(f"the metric gave numbers of shape {value.shape}, expected one")
        return value
    return next(iter(checked_scores(job.metric, value).values()))


def _named(job: EvaluationJob) -> str:
    return job.rule.by or next(iter(checked_scores(job.metric, 0.0)))


def _best(contenders: Iterable[_Contender], count: int) -> list[_Contender]:
    alive = [one for one in contenders if not one.failed and one.high > -inf]
    alive.sort(key=lambda one: (-one.low, -one.high))
    return alive[:count]


def _evaluation(job: EvaluationJob, contenders: list[_Contender], count: int) -> Evaluation:
    ranked = sorted(
        (one for one in contenders if not one.failed), key=lambda one: (-one.low, -one.high)
    )
    best = {id(one) for one in _best(contenders, count)}
    metric = _named(job)
    scores = {id(one): _score_of(job, one, metric) for one in contenders}
    failed = [one for one in contenders if one.failed]
    return Evaluation(
        tuple(scores[id(one)] for one in [*ranked, *failed]),
        tuple(scores[id(one)] for one in ranked if id(one) in best),
        metric,
        read_bytes=sum(one.read_bytes for one in contenders),
        whole_bytes=sum(whole_bytes(one.model) for one in contenders),
    )


def _score_of(job: EvaluationJob, one: _Contender, metric: str) -> Score:
    name = job.run_name(one.candidate)
    error = None if one.told is None else one.told.error
    if one.failed:
        return Score(one.candidate, "failed", {}, name, error=error, read_bytes=one.read_bytes)
    metrics = {metric: one.bounds[0]} if one.is_exact else {}
    if one.told is not None and one.told.metrics:
        metrics = dict(one.told.metrics)
    outcome = one.told.outcome if one.told is not None else "scored" if metrics else "bounded"
    return Score(
        one.candidate, outcome, metrics, name, bounds=one.bounds, read_bytes=one.read_bytes
    )
