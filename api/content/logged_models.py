"""Logged models: what a training handed over as a model, before anybody registers it.

Each is files of its own under an id, as those of a run are: the ref ``runs/ID/files`` names them,
and what is said about the model lies beside them. When its files are complete they become a model
of the house, whose weights are stored once.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from itertools import islice
from pathlib import Path
from typing import Final

import msgspec

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.api.content.experiments import get_experiment
from tensorrepo.api.content.live_runs import LiveRuns
from tensorrepo.api.content.record_filter import (
    METRIC,
    PARAM,
    TAG,
    FilterFields,
    Lookup,
    fits_all,
    parse_filter,
    sort_records,
)
from tensorrepo.api.content.runs import find_run
from tensorrepo.formats.common.provenance import MADE_BY, ProvenanceEdge
from tensorrepo.formats.runs.run_files import (
    ABOUT,
    Changes,
    FileTree,
    edit_files,
    file_tree,
    owner_of_ref,
    ref_of_files,
)
from tensorrepo.formats.runs.run_models import model_of_folder
from tensorrepo.formats.runs.run_record import RUNS, RunOutput, check_metric_name
from tensorrepo.formats.runs.run_tags import checked_tags
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    ConflictError,
    CorruptError,
    InvalidInputError,
    NotFoundError,
)
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.history.trees import Entry, file_entry
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.registry.versions import SPACE
from tensorrepo.repo.typed_decoding import from_json

PREFIX: Final = "m-"
PENDING, READY, FAILED = (
    "LOGGED_MODEL_PENDING",
    "LOGGED_MODEL_READY",
    "LOGGED_MODEL_UPLOAD_FAILED",
)
MAX_WORDS: Final = 1000  # tags, parameters, metrics, each
MODEL_FIELDS: Final = FilterFields(
    texts=frozenset({"name", "model_id", "model_type", "status", "source_run_id"}),
    numbers=frozenset({"creation_timestamp", "last_updated_timestamp"}),
    kinds=frozenset({METRIC, PARAM, TAG}),
    lists=frozenset({"name", "model_id", "model_type", "status", "source_run_id"}),
    aliases={
        "creation_time": "creation_timestamp",
        "last_updated_time": "last_updated_timestamp",
    },
)
_MOST_LOOKED_AT: Final = 512  # refs of each place, among which the newest are
_MOST_BASES: Final = 64  # models of each place that a new one may be stored against


class ModelMetric(msgspec.Struct, frozen=True):
    """The last value of a metric of a model, and what it was measured on and by.

    `value` is None where it is no finite number.
    """

    key: str
    value: float | None
    step: int = 0
    timestamp: int = 0
    dataset_name: str | None = None
    dataset_digest: str | None = None
    run_id: str | None = None


class LoggedModel(msgspec.Struct, frozen=True):
    """A logged model. Times are UTC in ms."""

    model_id: str
    experiment_id: str
    name: str
    created_ms: int
    updated_ms: int
    status: str = PENDING
    model_type: str = ""
    source_run_id: str = ""
    tags: dict[str, str] = {}
    params: dict[str, str] = {}
    metrics: tuple[ModelMetric, ...] = ()
    is_deleted: bool = False

    def lookup(self, kind: str, key: str) -> object:
        """Value of a field that `MODEL_FIELDS` has."""
        if kind == METRIC:
            return next((one.value for one in self.metrics if one.key == key), None)
        if kind in {PARAM, TAG}:
            return (self.params if kind == PARAM else self.tags).get(key)
        attributes: dict[str, object] = {
            "name": self.name,
            "model_id": self.model_id,
            "model_type": self.model_type,
            "status": self.status.removeprefix("LOGGED_MODEL_"),
            "source_run_id": self.source_run_id,
            "creation_timestamp": self.created_ms,
            "last_updated_timestamp": self.updated_ms,
        }
        return attributes.get(key)


@dataclass(frozen=True, slots=True)
class NewLoggedModel:
    """What is said about a model that is to be logged."""

    experiment_id: str
    name: str = ""
    model_type: str = ""
    source_run_id: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)


def create_logged_model(access: RepositoryAccess, new: NewLoggedModel) -> LoggedModel:
    """Begin a model, whose files come next. Raises NotFoundError: no such experiment."""
    get_experiment(access, new.experiment_id)
    now = _now_ms()
    id_ = f"{PREFIX}{secrets.token_hex(16)}"
    made = LoggedModel(
        id_,
        new.experiment_id,
        new.name or f"model-{secrets.token_hex(3)}",
        now,
        now,
        model_type=new.model_type,
        source_run_id=new.source_run_id,
        tags=dict(new.tags),
        params=dict(new.params),
    )
    access.require(Action.WRITE, ref_of_files(id_))
    checked = _checked(made)
    edit_files(
        access.core,
        id_,
        lambda objects, _: {ABOUT: _stored(objects, checked)},
        author=access.caller.author,
        message=f"Log model {checked.name}",
    )
    return checked


def get_logged_model(
    access: RepositoryAccess, id_: str, *, with_deleted: bool = False
) -> LoggedModel:
    """The logged model of that id. Raises NotFoundError."""
    access.require(Action.READ, ref_of_files(id_))
    found = _read(file_tree(access.core, access.view, id_))
    if found is None or (found.is_deleted and not with_deleted):
        raise NotFoundError(f"there is no logged model {id_!r:.128} in {access.name}")
    return found


def finish_logged_model(
    access: RepositoryAccess, live: LiveRuns, id_: str, status: str, *, scratch: Path
) -> LoggedModel:
    """Say that all files of a model came, or that they did not come.

    Its files become a model of the house, and an output of the run that it came from.

    Args:
        access: repository of the model.
        live: runs.
        id_: id of the model.
        status: `READY` or `FAILED`.
        scratch: folder on a disk with room for its files.
    """
    if status not in {READY, FAILED, PENDING}:
        raise InvalidInputError(f"status {status!r:.60}: expected {READY} or {FAILED}")
    model = get_logged_model(access, id_)
    if status == READY and _has_files(access, id_):
        store_as_model(access, live, id_, "", run=model.source_run_id, scratch=scratch)
    return _change(access, id_, lambda one: msgspec.structs.replace(one, status=status))


def store_as_model(
    access: RepositoryAccess, live: LiveRuns, owner: str, folder: str, *, run: str, scratch: Path
) -> str:
    """Make a folder of files a model, unless it is one; gives its path. Raises NotFoundError.

    The run that it came from is told by its lineage, and has it among its outputs.
    """
    access.require(Action.WRITE, ref_of_files(owner))
    edges, source = [], None
    if run:
        source = find_run(access, run)
        learned = [edge for edge in source.inputs if edge.digest]
        edges = [*learned, ProvenanceEdge(MADE_BY, f"{RUNS}{run}", source.id)]
    before = access.view.state.refs.get(ref_of_files(owner))
    path = model_of_folder(
        access.core,
        owner,
        folder,
        scratch=scratch,
        known=known_models(access),
        author=access.caller.author,
        lineage=edges,
    )
    commit = access.view.state.refs.get(ref_of_files(owner))
    if source is not None and commit is not None and commit != before:
        entry = access.core.entry(read_commit(access.core.objects, commit).tree, path)
        assert entry is not None, "it was just stored"
        with suppress(ConflictError):  # another process records the run: the model says it anyhow
            live.change(access, run, outputs=[RunOutput(path, entry.digest, commit)])
    return path


def change_logged_model(
    access: RepositoryAccess,
    id_: str,
    *,
    tags: Mapping[str, str | None] | None = None,
    params: Mapping[str, str] | None = None,
) -> LoggedModel:
    """Set tags (None removes one) and parameters of a logged model. Raises NotFoundError."""

    def change(one: LoggedModel) -> LoggedModel:
        joined = {**one.tags, **(tags or {})}
        kept = {name: text for name, text in joined.items() if text is not None}
        return msgspec.structs.replace(one, tags=kept, params={**one.params, **(params or {})})

    return _change(access, id_, change)


def add_model_metrics(
    access: RepositoryAccess, by_model: Mapping[str, Sequence[ModelMetric]]
) -> None:
    """Note values of metrics of logged models: the last of each, by dataset."""
    for id_, metrics in by_model.items():

        def change(one: LoggedModel, new: Sequence[ModelMetric] = metrics) -> LoggedModel:
            held = {
                (each.key, each.dataset_name, each.dataset_digest): each for each in one.metrics
            }
            for each in new:
                held[each.key, each.dataset_name, each.dataset_digest] = each
            return msgspec.structs.replace(one, metrics=tuple(held.values()))

        _change(access, id_, change)


def delete_logged_model(access: RepositoryAccess, id_: str) -> None:
    """Delete a logged model; what was registered of it stays. Raises NotFoundError."""
    get_logged_model(access, id_)
    _change(access, id_, lambda one: msgspec.structs.replace(one, is_deleted=True))


def search_logged_models(
    access: RepositoryAccess,
    *,
    experiments: Iterable[str],
    filter_text: str = "",
    order_by: Sequence[str] = (),
) -> list[LoggedModel]:
    """Logged models of experiments that fit; else those of the newest come first.

    Raises:
        InvalidInputError: a filter or an order that is not understood.
    """
    clauses, wanted = parse_filter(filter_text, MODEL_FIELDS), set(experiments)
    found = [
        model
        for model in _models(access)
        if model.experiment_id in wanted
        and not model.is_deleted
        and fits_all(clauses, model.lookup)
    ]
    found.sort(key=lambda one: (-one.created_ms, one.model_id))
    return sort_records(found, order_by, MODEL_FIELDS, _lookup)


def known_models(access: RepositoryAccess) -> list[Entry]:
    """Models that a new one may be stored against: of what the caller may read, the newest first.

    Those of branch main, of registered versions, and of runs; a bounded number of each.
    """
    refs = access.refs()
    registered = [ref for ref in refs if ref.startswith(SPACE) and "/v/" in ref]
    of_runs = [ref for ref in refs if owner_of_ref(ref) is not None]
    found: dict[Entry, None] = {}
    for some in (["heads/main"] if "heads/main" in refs else [], registered, of_runs):
        commits = [read_commit(access.core.objects, refs[ref]) for ref in some[-_MOST_LOOKED_AT:]]
        commits.sort(key=lambda commit: -commit.time_ns)
        entries = (
            entry
            for commit in commits[:_MOST_BASES]
            for _, entry in access.core.entries(commit.tree, "models/")
            if entry.kind is Kind.MODEL and entry.storage is not None
        )
        found |= dict.fromkeys(islice(entries, _MOST_BASES))
    return [access.core.current(entry) for entry in found]


def _models(access: RepositoryAccess) -> Iterator[LoggedModel]:
    view = access.view
    for ref in access.refs():
        owner = owner_of_ref(ref)
        if owner is not None and owner.startswith(PREFIX):
            found = _read(file_tree(access.core, view, owner))
            if found is not None:
                yield found


def _change(
    access: RepositoryAccess, id_: str, change: Callable[[LoggedModel], LoggedModel]
) -> LoggedModel:
    access.require(Action.WRITE, ref_of_files(id_))
    changed: list[LoggedModel] = []

    def decide(objects: ObjectWriter, tree: FileTree) -> Changes:
        model = _read(tree)
        if model is None:
            raise NotFoundError(f"there is no logged model {id_!r:.128} in {access.name}")
        now = msgspec.structs.replace(change(model), updated_ms=_now_ms())
        changed[:] = [_checked(now)]
        return {ABOUT: _stored(objects, changed[0])}

    edit_files(
        access.core, id_, decide, author=access.caller.author, message=f"Describe model {id_}"
    )
    return changed[0]


def _has_files(access: RepositoryAccess, id_: str) -> bool:
    tree = file_tree(access.core, access.view, id_)
    return next(tree.files(), None) is not None


def _read(tree: FileTree) -> LoggedModel | None:
    data = tree.about()
    if data is None:
        return None
    try:
        return from_json(data, LoggedModel)
    except msgspec.MsgspecError as error:
        raise CorruptError(f"{ABOUT} of {tree.owner}: {error}") from error


def _stored(objects: ObjectWriter, model: LoggedModel) -> Entry:
    data = msgspec.json.format(msgspec.json.encode(model, order="sorted"), indent=1)
    return file_entry(objects.put(Kind.BLOB, data))


def _checked(model: LoggedModel) -> LoggedModel:
    """The model, when it can be kept. Raises InvalidInputError."""
    check_metric_name(model.name)
    for words in (model.tags, model.params):
        checked_tags(words)
    sizes = {
        "tags": len(model.tags),
        "params": len(model.params),
        "metrics": len(model.metrics),
    }
    for noun, size in sizes.items():
        if size > MAX_WORDS:
            raise InvalidInputError(f"{size} {noun}, a logged model has {MAX_WORDS} at most")
    return model


def _lookup(model: LoggedModel) -> Lookup:
    return model.lookup


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
