"""Runs as experiment trackers know them: with experiments, tags, a name that people give, and
deletion that can be taken back. They are the runs of the house, and what these lack stands in tags.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.api.content.experiments import DEFAULT, get_experiment
from tensorrepo.api.content.live_runs import LiveRuns, points_of
from tensorrepo.api.content.record_filter import (
    DATASET,
    METRIC,
    PARAM,
    TAG,
    FilterFields,
    Lookup,
    fits_all,
    parse_filter,
    sort_records,
)
from tensorrepo.api.content.runs import find_run, list_runs
from tensorrepo.formats.common.provenance import (
    EVALUATED_ON,
    TRAINED_ON,
    USED,
    ProvenanceEdge,
)
from tensorrepo.formats.runs.metrics import MetricPoints
from tensorrepo.formats.runs.run_record import (
    FAILED,
    FINISHED,
    INTERRUPTED,
    RUNNING,
    RUNS,
    RunDocument,
)
from tensorrepo.formats.runs.run_tags import TAGS, checked_tags, tags_of
from tensorrepo.formats.runs.stored_run import StoredRun, ref_of_record
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError

OWN: Final = "tensorrepo."  # tags that begin so are the house's
EXPERIMENT_TAG: Final = "tensorrepo.experiment"
DELETED_TAG: Final = "tensorrepo.deleted"
OUTPUTS_TAG: Final = "tensorrepo.outputs"
MODELS_TAG: Final = "mlflow.log-model.history"
NAME_TAG: Final = "mlflow.runName"
USER_TAG: Final = "mlflow.user"
CONTEXT_TAG: Final = "mlflow.data.context"
DATASET_DETAILS: Final = "dataset"  # of an edge to a dataset that a client described
STATUSES: Final[Mapping[str, str]] = {
    RUNNING: "RUNNING",
    FINISHED: "FINISHED",
    FAILED: "FAILED",
    INTERRUPTED: "KILLED",
}
_OURS: Final = {theirs: own for own, theirs in STATUSES.items()} | {"SCHEDULED": RUNNING}
ACTIVE_ONLY, DELETED_ONLY, ALL = "ACTIVE_ONLY", "DELETED_ONLY", "ALL"
RUN_FIELDS: Final = FilterFields(
    texts=frozenset({"run_id", "run_name", "status", "user_id", "artifact_uri"}),
    numbers=frozenset({"start_time", "end_time"}),
    kinds=frozenset({METRIC, PARAM, TAG, DATASET}),
    lists=frozenset({"run_id"}),
    aliases={
        "created": "start_time", "Created": "start_time",
        "run name": "run_name", "Run name": "run_name", "Run Name": "run_name",
    },
)  # fmt: skip
MAX_DATASET_BYTES: Final = 1 << 20  # of what is said about one
_NAME = re.compile(r"[^A-Za-z0-9_-]+")
_NS_OF_MS: Final = 10**6


@dataclass(frozen=True, slots=True)
class TrackedRun:
    """A run as trackers see it."""

    stored: StoredRun

    @property
    def id(self) -> str:
        return self.stored.name

    @property
    def all_tags(self) -> dict[str, str]:
        return tags_of(self.stored.document)

    @property
    def tags(self) -> dict[str, str]:
        return {name: text for name, text in self.all_tags.items() if not name.startswith(OWN)}

    @property
    def name(self) -> str:
        return self.all_tags.get(NAME_TAG, self.id)

    @property
    def experiment(self) -> str:
        return self.all_tags.get(EXPERIMENT_TAG, DEFAULT)

    @property
    def is_deleted(self) -> bool:
        return DELETED_TAG in self.all_tags

    @property
    def user(self) -> str:
        return self.all_tags.get(USER_TAG) or self.stored.document.author.partition(" <")[0]

    @property
    def status(self) -> str:
        return STATUSES[self.stored.status]

    @property
    def start_ms(self) -> int:
        return self.stored.document.started_ns // _NS_OF_MS

    @property
    def end_ms(self) -> int | None:
        ended = self.stored.document.ended_ns
        return None if ended is None else ended // _NS_OF_MS

    @property
    def params(self) -> dict[str, str]:
        return {name: param_text(value) for name, value in self.stored.params.items()}

    @property
    def datasets(self) -> list[dict[str, Any]]:
        """Datasets that it read: name, digest, source_type, source, schema, profile, tags."""
        edges = self.stored.inputs
        return [_dataset(one) for one in edges if not one.path.startswith(("models/", RUNS))]

    @property
    def model_inputs(self) -> list[str]:
        """Ids of models of runs that it read."""
        edges = self.stored.inputs
        return [one.path.removeprefix(RUNS) for one in edges if one.path.startswith(RUNS)]

    @property
    def outputs(self) -> list[dict[str, Any]]:
        """Models that it made: model_id, and the step."""
        try:
            told = json.loads(self.all_tags.get(OUTPUTS_TAG, "[]"))
        except (ValueError, RecursionError):
            return []
        return told if isinstance(told, list) else []

    def lookup(self, kind: str, key: str) -> object:
        """Value of a field that `RUN_FIELDS` has."""
        if kind == METRIC:
            return self.stored.metrics.get(key)
        if kind == PARAM:
            return self.params.get(key)
        if kind == TAG:
            return self.tags.get(key)
        if kind == DATASET:
            return [value for one in self.datasets for value in _values_of(one, key)]
        attributes: dict[str, object] = {
            "run_id": self.id,
            "run_name": self.name,
            "status": self.status,
            "user_id": self.user,
            "start_time": self.start_ms,
            "end_time": self.end_ms,
        }
        return attributes.get(key)


def begin_run(
    access: RepositoryAccess,
    live: LiveRuns,
    *,
    experiment: str = DEFAULT,
    name: str = "",
    user: str = "",
    start_ms: int | None = None,
    tags: Mapping[str, str] | None = None,
) -> TrackedRun:
    """Begin a run of an experiment.

    Raises:
        NotFoundError: there is no such experiment.
        InvalidInputError: it was deleted.
    """
    held = get_experiment(access, experiment)
    if held.is_deleted:
        raise InvalidInputError(
            f"experiment {held.name!r:.200} was deleted: restore it, or take another"
        )
    called = name or (tags or {}).get(NAME_TAG) or f"run-{secrets.token_hex(3)}"
    told = {**checked_tags(tags or {}), NAME_TAG: called, EXPERIMENT_TAG: experiment}
    if user:
        told[USER_TAG] = user
    checked_tags(told)
    stored = live.begin(
        access,
        new_id(called),
        params={},
        environment={TAGS: told},
        started_ns=None if start_ms is None else start_ms * _NS_OF_MS,
    )
    return TrackedRun(stored)


def new_id(name: str) -> str:
    """A name for a new run that no other has, by what people call it."""
    plain = _NAME.sub("-", name).strip("-_")[:60].rstrip("-_")
    return f"{plain or 'run'}-{secrets.token_hex(6)}"


def get_run(access: RepositoryAccess, live: LiveRuns, id_: str) -> TrackedRun:
    """A run as it is now. Raises NotFoundError."""
    return TrackedRun(live.find(access, id_))


def update_run(
    access: RepositoryAccess,
    live: LiveRuns,
    id_: str,
    *,
    status: str | None = None,
    end_ms: int | None = None,
    name: str | None = None,
) -> TrackedRun:
    """Say how a run ended, that it goes on, or what it is called.

    Raises:
        NotFoundError: there is no such run.
        InvalidInputError: it was deleted; so of all that follow, but for bringing it back.
    """
    if status is not None and status not in _OURS:
        raise InvalidInputError(
            f"status {status!r:.40}: expected one of {', '.join(sorted(_OURS))}"
        )
    _require_active(access, id_)
    stored = live.find(access, id_)
    if name:
        stored = live.change(access, id_, tags={NAME_TAG: name})
    wanted = None if status is None else _OURS[status]
    if wanted == RUNNING and stored.status != RUNNING:
        stored = live.begin(access, id_, params={}, environment={}, resume=True)
    elif wanted is not None and wanted != RUNNING:
        ended = None if end_ms is None else end_ms * _NS_OF_MS
        stored = live.end(access, id_, wanted, ended_ns=ended)
    return TrackedRun(stored)


def log_batch(
    access: RepositoryAccess,
    live: LiveRuns,
    id_: str,
    *,
    metrics: Iterable[tuple[str, int, float, int]] = (),
    params: Mapping[str, str] | None = None,
    tags: Mapping[str, str | None] | None = None,
) -> None:
    """Keep points (metric, step, value, time in ms), parameters, and tags (None removes one).

    Raises:
        NotFoundError: there is no such run.
        InvalidInputError: a parameter has another value already, which never changes; nothing of
            this call was kept. Or the run was deleted.
    """
    _require_active(access, id_)
    for tag in tags or ():
        if tag.startswith(OWN):
            raise InvalidInputError(f"tag {tag!r:.80}: names that begin with {OWN} are the house's")
    if params or tags:

        def check(document: RunDocument) -> None:
            refuse_changed(document, params or {})

        live.change(access, id_, params=params, tags=tags, check=check)
    points = points_of(metrics)
    if points:
        live.log(access, id_, points, late=True)


def _require_active(access: RepositoryAccess, id_: str) -> None:
    """Refuse what is told of a deleted run, which nobody would look for there, in MLflow's words.

    Raises:
        PermissionDenied: the caller may not write the run.
        NotFoundError: there is no such run.
        InvalidInputError: it was deleted.
    """
    access.require(Action.WRITE, ref_of_record(id_))
    if TrackedRun(find_run(access, id_)).is_deleted:
        raise InvalidInputError(
            f"The run {id_} must be in the 'active' state. Current state is deleted: restore it "
            "(restore_run), or log to another run."
        )


def refuse_changed(document: RunDocument, params: Mapping[str, str]) -> None:
    """Raises InvalidInputError where a parameter has another value already."""
    for name, value in params.items():
        if name in document.params and param_text(document.params[name]) != value:
            raise InvalidInputError(
                f"Changing param values is not allowed. Param with key={name!r:.100} was already "
                f"logged with value={param_text(document.params[name])!r:.200} for run "
                f"{document.name!r}. Attempted logging new value {value!r:.200}."
            )


def set_deleted(access: RepositoryAccess, live: LiveRuns, id_: str, *, on: bool) -> None:
    """Delete a run so that it can come back, or bring it back. Raises NotFoundError."""
    told = str(time.time_ns() // _NS_OF_MS) if on else None
    live.change(access, id_, tags={DELETED_TAG: told})


def distinct(params: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Parameters by name. Raises InvalidInputError where one has two values."""
    found: dict[str, str] = {}
    for name, value in params:
        if found.setdefault(name, value) != value:
            raise InvalidInputError(
                f"Duplicate parameter keys have been submitted: {name!r:.100}. Please ensure the "
                "request contains only one param value per param key."
            )
    return found


def remove_tag(access: RepositoryAccess, live: LiveRuns, id_: str, tag: str) -> None:
    """Remove a tag of a run. Raises NotFoundError: also where it has none of that name."""
    _require_active(access, id_)
    if tag not in TrackedRun(live.find(access, id_)).tags:
        raise NotFoundError(f"No tag with name: {tag!r:.100} in run with id {id_!r:.128}")
    live.change(access, id_, tags={tag: None})


def note_model(access: RepositoryAccess, live: LiveRuns, id_: str, told: str) -> None:
    """Note what older clients say of a model among the files of a run, in their own tag."""
    _require_active(access, id_)
    try:
        model = json.loads(told)
        known = json.loads(TrackedRun(live.find(access, id_)).tags.get(MODELS_TAG, "[]"))
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"model_json is no JSON: {error}") from error
    if not isinstance(known, list):  # anybody may set the tag
        raise InvalidInputError(f"tag {MODELS_TAG} of the run is no list: delete it")
    live.change(access, id_, tags={MODELS_TAG: json.dumps([*known, model])})


def log_inputs(
    access: RepositoryAccess,
    live: LiveRuns,
    id_: str,
    datasets: Iterable[Mapping[str, Any]] = (),
    models: Iterable[str] = (),
) -> None:
    """Note datasets, as `TrackedRun.datasets` gives them, and ids of models that a run read."""
    _require_active(access, id_)
    edges = [_dataset_edge(one) for one in datasets]
    edges += [ProvenanceEdge(USED, f"{RUNS}{model}", "") for model in models]
    live.change(access, id_, inputs=edges)


def log_outputs(
    access: RepositoryAccess, live: LiveRuns, id_: str, models: Iterable[Mapping[str, Any]]
) -> None:
    """Note models that a run made: model_id, and the step."""
    _require_active(access, id_)
    run = TrackedRun(live.find(access, id_))
    every = [*run.outputs, *(one for one in models if one not in run.outputs)]
    live.change(access, id_, tags={OUTPUTS_TAG: json.dumps(every)})


def search_runs(
    access: RepositoryAccess,
    live: LiveRuns,
    *,
    experiments: Sequence[str],
    filter_text: str = "",
    view: str = ACTIVE_ONLY,
    order_by: Sequence[str] = (),
) -> list[TrackedRun]:
    """Runs of experiments that fit, ordered; else those that began last come first.

    Raises:
        InvalidInputError: a filter or an order that is not understood.
    """
    clauses, wanted = parse_filter(filter_text, RUN_FIELDS), set(experiments)
    found = [
        run
        for run in _runs(access, live)
        if run.experiment in wanted
        and (view == ALL or run.is_deleted == (view == DELETED_ONLY))
        and fits_all(clauses, run.lookup)
    ]
    found.sort(key=lambda run: (-run.start_ms, run.id))
    return sort_records(found, order_by, RUN_FIELDS, _lookup)


def metric_points(
    access: RepositoryAccess, live: LiveRuns, id_: str, metric: str
) -> MetricPoints | None:
    """All points of a metric; None where it was never logged. Raises NotFoundError."""
    run = live.find(access, id_)
    return None if run.document.metric(metric) is None else run.points(metric)


def param_text(value: object) -> str:
    """A parameter as clients have it, who know texts alone."""
    return value if isinstance(value, str) else json.dumps(value)


def _runs(access: RepositoryAccess, live: LiveRuns) -> Iterator[TrackedRun]:
    for name in list_runs(access):
        yield TrackedRun(live.find(access, name))


def _lookup(run: TrackedRun) -> Lookup:
    return run.lookup


def _dataset_edge(told: Mapping[str, Any]) -> ProvenanceEdge:
    size = sum(len(str(value).encode()) for value in told.values())
    if size > MAX_DATASET_BYTES:
        raise InvalidInputError(
            f"what is said about dataset {str(told.get('name'))!r:.100} has {size} bytes, at most "
            f"{MAX_DATASET_BYTES} are kept: log it without its profile"
        )
    context = {tag["key"]: tag["value"] for tag in told.get("tags", ())}.get(CONTEXT_TAG, "")
    relation = {"train": TRAINED_ON, "training": TRAINED_ON}.get(context.lower())
    if relation is None:
        relation = EVALUATED_ON if context else USED
    path = f"{told.get('name', 'dataset')}@{told.get('digest', '')}"
    return ProvenanceEdge(relation, path, "", None, {DATASET_DETAILS: dict(told)})


def _dataset(edge: ProvenanceEdge) -> dict[str, Any]:
    told = edge.details.get(DATASET_DETAILS)
    if isinstance(told, dict):
        return told
    commit = "" if edge.commit is None else edge.commit
    return {
        "name": edge.path,
        "digest": (edge.digest or commit)[:36],
        "source_type": "tensorrepo",
        "source": json.dumps({"path": edge.path, "commit": commit}),
        "tags": [{"key": CONTEXT_TAG, "value": edge.relation}],
    }


def _values_of(dataset: Mapping[str, Any], key: str) -> list[str]:
    if key == "context":
        return [tag["value"] for tag in dataset.get("tags", ()) if tag["key"] == CONTEXT_TAG]
    value = dataset.get(key)
    return [value] if isinstance(value, str) else []
