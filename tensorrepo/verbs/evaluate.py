"""Evaluation: candidates scored by a function, each in a run of its own, and the best kept.

    candidate = stored model, or settings of a training, or both
    key       = model, settings, data and functions: what a score is a function of
    score     = the metrics of the finished run that is called by the key

So the runs are what is known: a candidate whose run finished is not scored again, by whomever and
from whichever machine, until one of the parts of its key is another.

Of trainings a model is stored when it is among the best that are known by then; those that others
displaced are taken out at the end. What does not belong to the best of some is not of the best of
more, so that a call that was cut off has lost nothing that a later one needs.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED as FIRST
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from dataclasses import field, fields, replace
from itertools import product
from math import isfinite
from multiprocessing import get_context
from numbers import Real
from typing import Any, Final, Literal, TypeAlias

from tensorrepo.context import Context
from tensorrepo.datasets.dataset import Dataset, dataset_at
from tensorrepo.formats.common.arguments import (
    check_instance,
    chosen,
    counted,
    real,
    text,
    whole,
    wrong,
)
from tensorrepo.formats.common.function_identity import identify
from tensorrepo.formats.common.json import as_plain
from tensorrepo.formats.runs.run_record import FINISHED, check_metric_name, check_run_name
from tensorrepo.models.model import Model, model_at
from tensorrepo.query.dql.grammar import parse_keep
from tensorrepo.query.dql.selection import keeps
from tensorrepo.query.dql.statements import Among, And, Best, Compare, Condition, Not, Or
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.json_rules import check_json
from tensorrepo.repo.suggest import did_you_mean
from tensorrepo.repo.tables import Cell, RecordTable, Shown, bytes_text
from tensorrepo.runs.record import find_record
from tensorrepo.runs.run import Run
from tensorrepo.runs.run_context import note_streamed
from tensorrepo.transaction import begin_transaction

Metrics: TypeAlias = Mapping[str, float]
Metric: TypeAlias = Callable[[Any, Any], Any]
Train: TypeAlias = Callable[[Model | None, dict[str, Any], Any], Mapping[str, Any]]
Outcome = Literal["scored", "known", "bounded", "failed"]

PROGRESSIVE: Final = ("bounds", "estimates")
MAX_CANDIDATES: Final = 100_000
_RULES: Final = "1"  # of what a key is made: another number scores everything anew
KEY_DIGITS: Final = 16
KEY: Final = "evaluation_key"  # parameter of the runs


@dataclass(frozen=True, slots=True)
class EvaluationCandidate:
    """What is scored: a stored model, settings of a training, or both.

    Attributes:
        model: the stored model; None: training starts from nothing.
        config: settings that `train` is given; None: the model is scored as it is.
        key: hash of all that the score follows from, 64 hex digits.
    """

    model: Model | None
    config: Mapping[str, Any] | None
    key: str

    @property
    def name(self) -> str:
        told = "" if self.config is None else ", ".join(f"{k}={v}" for k, v in self.config.items())
        return " ".join(filter(None, ["" if self.model is None else self.model.path, told]))


@dataclass(frozen=True, slots=True)
class Score:
    """What became of a candidate.

    Attributes:
        candidate: what was scored.
        outcome: "scored" now, "known" from an earlier evaluation, "bounded" where bounds decided
            already, or "failed".
        metrics: values by name; empty where none is exact.
        run: name of the run that has them.
        seconds: time that it took now.
        error: why it failed.
        model: path of the model that was trained, and kept; None else.
        bounds: least and largest value that the metric may have; None: no progressive evaluation.
        read_bytes: stored bytes of the model that were read now; 0: not counted.
    """

    candidate: EvaluationCandidate
    outcome: Outcome
    metrics: Metrics
    run: str
    seconds: float = 0.0
    error: str | None = None
    model: str | None = None
    bounds: tuple[float, float] | None = None
    read_bytes: int = 0


@dataclass(frozen=True, slots=True, repr=False)
class Evaluation(Shown):
    """Scores of all candidates, the best first, and which are kept.

    Attributes:
        scores: those that have a score, then those that failed.
        kept: the best of them, in order.
        metric: metric that they are ordered by.
        removed: paths of models of earlier calls that others displaced now.
        read_bytes: stored bytes of models that a progressive evaluation read.
        whole_bytes: stored bytes of all candidates, which a whole evaluation would have read.
    """

    scores: tuple[Score, ...]
    kept: tuple[Score, ...]
    metric: str
    removed: tuple[str, ...] = ()
    read_bytes: int = 0
    whole_bytes: int = 0

    @property
    def failed(self) -> tuple[Score, ...]:
        """Candidates without a score; `error` of each says why."""
        return tuple(score for score in self.scores if score.outcome == "failed")

    def __len__(self) -> int:
        return len(self.scores)

    def __iter__(self) -> Iterator[Score]:
        return iter(self.scores)

    def to_table(self) -> RecordTable:
        """A row for each candidate."""
        kept = {score.candidate.key for score in self.kept}
        names = sorted({name for score in self.scores for name in score.metrics})
        columns: dict[str, Cell] = {
            "candidate": lambda score: score.candidate.name,
            "kept": lambda score: "yes" if score.candidate.key in kept else "",
            **{f">{name}": _metric_cell(name) for name in names},
            **({f">{self.metric} between": _bounds_text} if self.whole_bytes else {}),
            "outcome": lambda score: score.error or score.outcome,
            "run": "run",
        }
        return RecordTable.of(self.scores, columns, repr(self)[1:-1])

    def __repr__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        told = f"{counted(len(self.scores), 'candidate')}, {len(self.kept)} kept{failed}"
        if self.whole_bytes:
            sizes = f"{bytes_text(self.read_bytes)} of {bytes_text(self.whole_bytes)}"
            told += f", {sizes} of weights read"
        return f"<evaluation by {self.metric}: {told}>"


def _bounds_text(score: Score) -> str:
    return "-" if score.bounds is None else "{:.6g} and {:.6g}".format(*score.bounds)


def _metric_cell(name: str) -> Cell:
    def cell(score: Score) -> str:
        return f"{score.metrics[name]:.6g}" if name in score.metrics else "-"

    return cell


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """What `Repository.evaluate` was asked for; it says what each means."""

    data: Dataset | str
    metric: Metric
    models: tuple[Model | str, ...] = ()
    keep: int | str | Best | Condition = 1
    by: str | None = None
    mode: str = "max"
    train: Train | None = None
    train_data: Dataset | str | None = None
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    ref: str = "main"
    branch: str = "main"
    name: str = "evaluation"
    version: str | None = None
    executor: str = "thread"
    workers: int = 1
    progressive: str | None = None
    confidence: float = 0.9
    memory_bytes: int = 2 << 30
    progress: Callable[[int, int], None] = lambda _done, _total: None

    def __post_init__(self) -> None:
        for word, value in (("metric", self.metric), ("train", self.train)):
            if value is not None and not callable(value):
                raise wrong(word, "a function", value)
        chosen("mode", self.mode, ("max", "min"))
        chosen("executor", self.executor, ("thread", "process"))
        whole("workers", self.workers, 1)
        real("confidence", self.confidence, 0.5, 0.999)
        check_run_name(self.name)
        if self.progressive is not None:
            chosen("progressive", self.progressive, PROGRESSIVE)
            if self.train is not None or self.executor != "thread" or self.workers != 1:
                raise InvalidInputError(
                    "a progressive evaluation scores stored models one by one, whose planes it "
                    "reads on several threads: leave out train, executor and workers"
                )
        if self.by is not None:
            check_metric_name(self.by)
        check_instance("grid", self.grid, Mapping, "values by name, as {'lr': [0.1, 0.01]}")
        if self.train is None and self.grid:
            raise InvalidInputError(
                "a grid varies settings of a training: give train=, a function of a model and "
                "settings that returns tensors"
            )
        if self.train is not None and self.executor == "process":
            raise InvalidInputError(
                "executor='process' scores stored models; trainings run in threads: leave it out"
            )

    def of_statement(
        self,
        models: Iterable[Model],
        grid: Mapping[str, Sequence[Any]],
        keep: Best | Condition,
    ) -> EvaluationRequest:
        """The same for models, settings and what is kept as a statement of DQL says them."""
        settings = dict(grid)
        if isinstance(keep, Best) and keep.iterations is not None:
            settings["iterations"] = [keep.iterations]
        if settings and self.train is None:
            raise InvalidInputError(
                "the statement varies settings, or says how long to train: give train=function"
            )
        return replace(self, models=tuple(models), grid=settings, keep=keep)


def request_of(options: Mapping[str, Any]) -> EvaluationRequest:
    """A request by the names of its arguments. Raises InvalidInputError for one that is missing."""
    known = {each.name for each in fields(EvaluationRequest)}
    for name in options:
        if name not in known:
            raise InvalidInputError(f"no argument {name!r:.80}.{did_you_mean(name, known)}")
    if missing := [name for name in ("data", "metric") if name not in options]:
        raise InvalidInputError(f"an evaluation needs {' and '.join(missing)}=")
    return EvaluationRequest(**options)


@dataclass(frozen=True, slots=True)
class ScoreRule:
    """Which scores are kept, and in which order they stand.

    Attributes:
        count: number of the best; None where `condition` decides.
        condition: condition on metrics.
        by: metric that orders; None: the only one there is.
        sign: 1 where large values are good, -1 where small ones are.
    """

    count: int | None
    condition: Condition | None
    by: str | None
    sign: int

    def metric(self, metrics: Metrics) -> str:
        """Name of the metric that orders. Raises InvalidInputError."""
        if self.by is not None:
            if self.by not in metrics:
                there = ", ".join(metrics) or "nothing"
                raise InvalidInputError(f"the metric gave no {self.by!r:.80}; it gave {there}")
            return self.by
        if len(metrics) != 1:
            there = ", ".join(metrics) or "nothing"
            raise InvalidInputError(f"the metric gave {there}: say which orders them, as by='loss'")
        return next(iter(metrics))

    def orders(self, metrics: Metrics) -> bool:
        """Whether one of these metrics orders."""
        return len(metrics) == 1 if self.by is None else self.by in metrics

    def rank(self, metrics: Metrics) -> tuple[bool, float]:
        """Smaller is better; NaN comes last."""
        value = metrics[self.metric(metrics)]
        return (value != value, -self.sign * value)  # noqa: PLR0124  NaN differs from itself

    def best(self, scores: Iterable[Score]) -> list[Score]:
        """What is kept of scores, in order."""
        ordered = sorted(scores, key=lambda score: self.rank(score.metrics))
        if self.condition is not None:
            return [score for score in ordered if keeps(self.condition, score.metrics)]
        finite = [score for score in ordered if not self.rank(score.metrics)[0]]
        return finite[: self.count]


def evaluate_whole(context: Context, request: EvaluationRequest) -> Evaluation:
    """Score every candidate by all of it. See `Repository.evaluate`."""
    job = job_of(context, request)
    candidates = candidates_of(job, request)
    scores = list(_scored(job, candidates, request))
    kept = job.rule.best(score for score in scores if score.outcome != "failed")
    removed: tuple[str, ...] = ()
    if request.train is not None:
        kept = [_with_model(job, score) for score in kept]
        removed = _displaced(job, candidates, kept)
    again = {score.candidate.key: score for score in kept}
    return evaluation(job, [again.get(each.candidate.key, each) for each in scores], kept, removed)


def evaluation(
    job: EvaluationJob,
    scores: Iterable[Score],
    kept: Iterable[Score],
    removed: tuple[str, ...] = (),
) -> Evaluation:
    """Scores in order: the best first, then those without one."""
    every = list(scores)
    done = [score for score in every if score.metrics]
    done.sort(key=lambda score: job.rule.rank(score.metrics))
    rest = [score for score in every if not score.metrics]
    named = job.rule.metric(done[0].metrics) if done else job.rule.by or _name_of(job.metric)
    return Evaluation((*done, *rest), tuple(kept), named, removed)


def job_of(context: Context, request: EvaluationRequest) -> EvaluationJob:
    """What every candidate of a request is scored with. Raises NotFoundError, InvalidInputError."""
    rule = _rule(request)
    data = _rows("data", context, request.data, request.ref)
    train_data = None
    if request.train_data is not None:
        train_data = _rows("train_data", context, request.train_data, request.ref)
    return EvaluationJob(
        context,
        request.metric,
        data,
        request.train,
        train_data,
        request.name,
        request.branch,
        rule,
        _BestRanks(rule),
    )


def _rows(word: str, context: Context, value: Any, ref: str) -> Dataset:
    found = dataset_at(context, value, ref) if isinstance(value, str) else value
    check_instance(word, found, Dataset, "a dataset, a view or a selection of rows")
    return found


def _rule(request: EvaluationRequest) -> ScoreRule:
    keep: int | Best | Condition
    keep = parse_keep(request.keep) if isinstance(request.keep, str) else request.keep
    sign = 1 if request.mode == "max" else -1
    if isinstance(keep, Best):
        return ScoreRule(keep.count, None, keep.metric, -1 if keep.ascending else 1)
    if not isinstance(keep, Compare | Among | Not | And | Or):
        return ScoreRule(whole("keep", keep, 1), None, request.by, sign)
    return ScoreRule(None, keep, request.by, sign)


# ------------------------------------------------------------------------------ candidates


def candidates_of(
    job: EvaluationJob, request: EvaluationRequest, *more: str
) -> list[EvaluationCandidate]:
    """The candidates of a request, each once; `more` is what else their scores follow from."""
    models: list[Model | None] = []
    for one in request.models:
        if isinstance(one, str):
            models.append(model_at(job.context, one, request.ref))
        else:
            check_instance("models", one, Model, "names or models, as repo.model(...) gives them")
            models.append(one)
    configs: list[Mapping[str, Any] | None] = [*_configs(request)]
    if not models and request.train is None:
        raise InvalidInputError("nothing to evaluate: give models, or train= with a grid=")
    count = max(1, len(models)) * len(configs)
    if count > MAX_CANDIDATES:
        raise InvalidInputError(f"{count:,} candidates; at most {MAX_CANDIDATES:,}")
    functions = [each for each in (job.metric, job.train) if each is not None]
    rows = [each for each in (job.data, job.train_data) if each is not None]
    told = [
        _RULES,
        [[str(each.digest), each.told, each.columns] for each in rows],
        [identify(each, request.version).digest for each in functions],
        *more,
    ]
    made = [
        EvaluationCandidate(model, config, _key(told, model, config))
        for model, config in product(models or [None], configs)
    ]
    return list({one.key: one for one in made}.values())


def _configs(request: EvaluationRequest) -> Iterator[Mapping[str, Any] | None]:
    if request.train is None:
        yield None
        return
    for name, values in request.grid.items():
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise wrong(f"grid[{name!r}]", "a list of values", values)
    plain = {text("a setting", name): as_plain([*each]) for name, each in request.grid.items()}
    check_json(plain, "grid")
    for values in product(*plain.values()):
        yield dict(zip(plain, values, strict=True))


def _key(told: list[Any], model: Model | None, config: Mapping[str, Any] | None) -> str:
    parts = [*told, None if model is None else str(model.digest), config]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


# ------------------------------------------------------------------------------ scoring


class _BestRanks:
    """The ranks of what was scored until now, told by whatever thread: is a new one of the best?"""

    def __init__(self, rule: ScoreRule) -> None:
        self.rule = rule
        self._ranks: list[tuple[bool, float]] = []
        self._lock = threading.Lock()

    def add(self, metrics: Metrics) -> bool:
        """Note one; whether its model is to be stored for now."""
        rank = self.rule.rank(metrics)
        with self._lock:
            self._ranks.append(rank)
            better = sum(one < rank for one in self._ranks)
        if self.rule.condition is not None:
            return keeps(self.rule.condition, metrics)
        return not rank[0] and better < (self.rule.count or 0)


@dataclass(frozen=True, slots=True)
class EvaluationJob:
    """What scoring a candidate takes, beside the candidate."""

    context: Context
    metric: Metric
    data: Dataset
    train: Train | None
    train_data: Dataset | None
    name: str
    branch: str
    rule: ScoreRule
    known: _BestRanks | None

    def run_name(self, candidate: EvaluationCandidate) -> str:
        return f"{self.name}-{candidate.key[:KEY_DIGITS]}"

    def model_path(self, candidate: EvaluationCandidate) -> str:
        return f"models/{self.name}/{candidate.key[:KEY_DIGITS]}"


def _scored(
    job: EvaluationJob, candidates: Sequence[EvaluationCandidate], request: EvaluationRequest
) -> Iterator[Score]:
    """Scores in the order of the candidates; what is known comes without work."""
    found: dict[str, Score] = {}
    for candidate in candidates:
        if (known := known_score(job, candidate)) is not None:
            found[candidate.key] = known
            if job.known is not None:
                job.known.add(known.metrics)
    left = [one for one in candidates if one.key not in found]
    request.progress(len(found), len(candidates))
    for each in _done(job, left, request):
        found[each.candidate.key] = each
        request.progress(len(found), len(candidates))
    return (found[one.key] for one in candidates)


def _done(
    job: EvaluationJob, left: Sequence[EvaluationCandidate], request: EvaluationRequest
) -> Iterator[Score]:
    """Scores as they come."""
    if request.executor == "thread" and request.workers == 1:
        # In the caller's thread: Ctrl-C ends the run that it interrupts.
        yield from (score(job, one) for one in left)
        return
    if request.executor == "process":
        job = replace(job, known=None)  # which is of this process; no models are stored
    with _pool(request) as pool:
        waiting: dict[Future[Score], EvaluationCandidate] = {}
        try:
            for one in left:
                waiting[pool.submit(score, job, one)] = one
                if len(waiting) >= 2 * request.workers:
                    yield from _first_of(job, waiting)
            while waiting:
                yield from _first_of(job, waiting)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _pool(request: EvaluationRequest) -> Executor:
    if request.executor == "thread":
        return ThreadPoolExecutor(request.workers, "tensorrepo-evaluate")
    # A fork would share connections and locks of threads that it does not have.
    return ProcessPoolExecutor(request.workers, get_context("spawn"))


def _first_of(
    job: EvaluationJob, waiting: dict[Future[Score], EvaluationCandidate]
) -> Iterator[Score]:
    done, _ = wait(waiting, return_when=FIRST)
    for future in done:
        candidate = waiting.pop(future)
        try:
            yield future.result()
        except InvalidInputError:
            raise
        except Exception as error:  # noqa: BLE001  a worker died, or could not be sent the function
            yield failed_score(job, candidate, error, 0.0)


def known_score(job: EvaluationJob, candidate: EvaluationCandidate) -> Score | None:
    """What the finished run of an earlier call says."""
    name = job.run_name(candidate)
    run = find_record(job.context, name)
    if run is None or run.status != FINISHED or run.params.get(KEY) != candidate.key:
        return None
    names = run.params.get("metrics", [])
    metrics = {one: run.metrics[one] for one in names if one in run.metrics}
    if len(metrics) != len(names) or not metrics:
        return None
    model = job.model_path(candidate) if _is_stored(job, candidate) else None
    return Score(candidate, "known", metrics, name, model=model)


def score(job: EvaluationJob, candidate: EvaluationCandidate, *, store: bool = False) -> Score:
    """Score one candidate in a run of its own; whatever fails is told by the score."""
    began = time.monotonic()
    name = job.run_name(candidate)
    params = {KEY: candidate.key, "evaluation": job.name, "config": candidate.config}
    run = Run(job.context, name, params=params, resume=True, system_seconds=None)
    model: str | None = None
    metrics: Metrics = {}
    try:
        with run:
            note_inputs(job, candidate, run)
            subject: Any = candidate.model
            if job.train is not None:
                subject = job.train(candidate.model, dict(candidate.config or {}), job.train_data)
                check_instance("what train gives", subject, Mapping, "tensors by name")
            metrics = checked_scores(job.metric, job.metric(subject, job.data))
            job.rule.metric(metrics)
            if job.known is not None:
                store = job.known.add(metrics) or store
            if store and job.train is not None:
                model = _store(job, candidate, run, subject, metrics)
            run.log_metrics(metrics)
            run.log_params({"metrics": list(metrics)})
    except Exception as error:
        # One candidate's failure is not the others'; that nothing orders is the call's mistake.
        if metrics and not job.rule.orders(metrics):
            raise
        return failed_score(job, candidate, error, time.monotonic() - began)
    seconds = time.monotonic() - began
    return Score(candidate, "scored", metrics, name, seconds, model=model)


def note_inputs(job: EvaluationJob, candidate: EvaluationCandidate, run: Run) -> None:
    """Lineage of a score, for the run that this thread is in."""
    note_streamed(job.data.whole, lambda: dict(job.data.told), evaluated=True)
    if candidate.model is not None:
        run.use(candidate.model)


def failed_score(
    job: EvaluationJob, candidate: EvaluationCandidate, error: Exception, seconds: float
) -> Score:
    told = f"{type(error).__name__}: {error}"
    return Score(candidate, "failed", {}, job.run_name(candidate), seconds, told)


def checked_scores(metric: Metric, value: Any) -> Metrics:
    """What a metric gave, by name; a single number is called as the function is.

    Raises:
        InvalidInputError: something else than numbers.
    """
    values = value if isinstance(value, Mapping) else {_name_of(metric): value}
    if not values:
        raise InvalidInputError("the metric gave no number")
    return {check_metric_name(name): _number(name, each) for name, each in values.items()}


def _number(name: str, value: Any) -> float:
    plain = value.item() if hasattr(value, "item") and getattr(value, "size", 1) == 1 else value
    if not isinstance(plain, Real):
        raise InvalidInputError(
            f"metric {name!r:.80} is {value!r:.80}: expected a number, or numbers by name"
        )
    return float(plain)


def _name_of(metric: Metric) -> str:
    name = str(getattr(metric, "__name__", type(metric).__name__))
    return "score" if name == "<lambda>" else name


# ------------------------------------------------------------------------------ trained models


def _store(
    job: EvaluationJob,
    candidate: EvaluationCandidate,
    run: Run,
    tensors: Mapping[str, Any],
    metrics: Metrics,
) -> str:
    path = job.model_path(candidate)
    base = {} if candidate.model is None else {"base": candidate.model}
    run.save_model(
        path.removeprefix("models/"),
        tensors,
        branch=job.branch,
        message=f"Evaluation {job.name}: {candidate.name}",
        metrics={name: value for name, value in metrics.items() if isfinite(value)},
        **base,
    )
    return path


def _is_stored(job: EvaluationJob, candidate: EvaluationCandidate) -> bool:
    if job.train is None:
        return False
    tip = job.context.core.log.refresh().state.refs.get(f"heads/{job.branch}")
    if tip is None:
        return False
    tree = job.context.resolve(tip).commit.tree
    return job.context.core.entry(tree, job.model_path(candidate)) is not None


def _with_model(job: EvaluationJob, kept: Score) -> Score:
    """A score that is kept with its model; it is trained again where an earlier call had it out."""
    if kept.model is not None or _is_stored(job, kept.candidate):
        return replace(kept, model=job.model_path(kept.candidate))
    return score(replace(job, known=None), kept.candidate, store=True)


def _displaced(
    job: EvaluationJob, candidates: Iterable[EvaluationCandidate], kept: Iterable[Score]
) -> tuple[str, ...]:
    """Take out the models of candidates that are not of the best any more."""
    stay = {each.candidate.key for each in kept}
    gone = [
        job.model_path(one) for one in candidates if one.key not in stay and _is_stored(job, one)
    ]
    if gone:
        with begin_transaction(job.context, job.branch, f"Evaluation {job.name}: the best") as tx:
            for path in gone:
                tx.remove(path)
    return tuple(gone)
