"""Staged changes of entries: datasets that change, models and views that are made.

The new version is stored first and staged then: nothing of a workspace changes before all of it is
stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tensorrepo.context import Context
from tensorrepo.datasets.draft import DatasetDraft
from tensorrepo.datasets.sql_edit import row_selection
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    Column,
    Date,
    Decimal,
    Duration,
    Image,
    Json,
    List,
    Scalar,
    Tensor,
    Text,
    Time,
    Timestamp,
    type_from_json,
)
from tensorrepo.formats.dataset.schema.types import ColumnType, Nested
from tensorrepo.formats.dataset.schema.types import Link as LinkType
from tensorrepo.formats.dataset.selecting.select_rows import Where, count_rows, matching_rows
from tensorrepo.formats.exchange import registry
from tensorrepo.formats.model.merging.adapters import adapter_of
from tensorrepo.formats.model.merging.new_model import ModelRef, NewModel
from tensorrepo.formats.model.merging.recipe import Recipe, recipe_of
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.search_index.build import IndexReport
from tensorrepo.formats.views import StoredView, open_view
from tensorrepo.query.untrusted.sandbox import QueryLimits
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest, parse_digest
from tensorrepo.repo.names import check_path
from tensorrepo.repo.objects.envelope import Kind, ObjectSink
from tensorrepo.verbs import indexes
from tensorrepo.verbs.models import stage_new
from tensorrepo.verbs.views import create_view
from tensorrepo.workspace.session import (
    WorkspaceSession,
    find_staged,
    full_path,
    next_commit,
)
from tensorrepo.workspace.staging import begin_stage

Progress = Callable[[int, int], None]  # rows done so far, and rows in all
Verb = Callable[[DatasetDraft, Any], object]


_PLAIN_TYPES: dict[str, ColumnType] = {
    "text": Text(), "json": Json(), "bytes": Bytes(), "image": Image(), "link": LinkType(),
    "timestamp": Timestamp(), "date": Date(), "time": Time(), "duration": Duration(),
}  # fmt: skip
_NUMBER = re.compile(r"-?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?)")
_QUOTED = re.compile(r"""'([^']|'')*'|"([^"]|"")*\"""")
_MAX_DIGITS = 40  # of a whole number; Python refuses some thousands
_COUNTED = re.compile(r"(time|duration|timestamp)\((s|ms|us|ns)\)")
_DECIMAL = re.compile(r"decimal\((\d+)(?:,\s*(\d+))?\)")
_LIST = re.compile(r"list\((.+)\)")
_TENSOR = re.compile(r"(\w+)\[([^\]]*)\]")


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of a dataset; `changed` False: it is what it was, and nothing was staged.

    `chosen` is how many rows the change was for; None: it was for no rows in particular.
    """

    path: str
    rows_before: int
    rows: int
    changed: bool
    chosen: int | None = None


def change_dataset(
    session: WorkspaceSession,
    name: str,
    verb: Verb,
    what: str,
    where: Where | None = None,
    progress: Progress = lambda _done, _total: None,
    workers: Context | None = None,
) -> Changed:
    """Apply a verb to a dataset as it is staged, else as HEAD has it, and stage what comes of it.

    Args:
        session: workspace and repository of the command.
        name: name of the dataset.
        verb: change of a draft; receives the draft and the rows that are meant.
        what: text that `status` shows beside it.
        where: rows that the verb is for. A predicate is read once, and becomes their numbers.
        progress: receives rows done so far, first of looking for rows, then of the change.
        workers: repository as workers of a cluster open it, where a verb has some.

    Raises:
        NotFoundError: there is no such dataset.
        InvalidInputError: what the verb refuses; nothing was staged.
    """
    with begin_stage(session) as stage:
        path = _dataset_at(session, name)
        draft = DatasetDraft(
            stage, path, session.outside, progress=progress, context=workers, leases=stage.leases
        )
        before = draft.stored
        if where is not None:
            where = row_selection(before, where)
            matching = matching_rows(before, where, lambda done: progress(done, len(before)))
            where = where if matching is None else matching
        chosen = None if where is None else count_rows(before, where)
        verb(draft, where)
        rows = draft.rows
        stage.describe(path, rows=rows, source=what)
        changed = stage.drop_if_unchanged(path)
    return Changed(path, len(before), rows, changed, chosen)


def create_index(
    session: WorkspaceSession,
    name: str,
    column: str,
    kind: str | None,
    metric: str | None,
    options: Mapping[str, int],
    progress: Callable[[int, int, str], None],
) -> tuple[str, IndexReport, bool]:
    """Stage a search index of a column of a dataset as it is staged; see `indexes.create_index`.

    Returns:
        Its path, what was done, and whether it differs from what HEAD has.
    """
    with begin_stage(session) as stage:
        path, report = indexes.create_index(
            stage,
            session.machine,
            session.outside,
            _dataset_at(session, name),
            column,
            kind,
            metric,
            options,
            progress,
        )
        changed = path in stage.changes
        if changed:
            stage.describe(path, rows=report.rows, source=f"index of {column}")
            changed = stage.drop_if_unchanged(path)
    return path, report, changed


def _dataset_at(session: WorkspaceSession, name: str) -> str:
    path = name if name.startswith("datasets/") else f"datasets/{name}"
    following = next_commit(session)
    entry = following.entry(path)
    if entry is None:
        path = full_path(session.repository, following.tree, name)
        entry = following.entry(path)
    if entry is None or entry.kind is not Kind.DATASET:
        kind = "staged for removal" if entry is None else f"a {entry.kind.label}, not a dataset"
        raise InvalidInputError(f"{path} is {kind}")
    return path


def parse_type(text: str) -> ColumnType:
    """A column type as people type it: ``int64``, ``text``, ``float32[768]``, ``uint8[?,?,3]``,
    ``decimal(10, 2)``, ``time(ms)``, ``list(text)``, or the JSON form of any type.

    Raises:
        InvalidInputError: none of these.
    """
    given = text.strip()
    try:
        if given.startswith("{"):
            return type_from_json(json.loads(given))
    except ValueError as error:
        raise InvalidInputError(f"column type {given!r}: {error}") from error
    if given in _PLAIN_TYPES:
        return _PLAIN_TYPES[given]
    if found := _COUNTED.fullmatch(given):
        return type_from_json({"type": found[1], "unit": found[2]})
    if found := _DECIMAL.fullmatch(given):
        return Decimal(int(found[1]), int(found[2] or 0))
    if found := _LIST.fullmatch(given):
        return List(parse_type(found[1]))
    found = _TENSOR.fullmatch(given)
    if not found:
        return Scalar(given)
    dims = [part.strip() for part in found[2].split(",")]
    if not all(dim == "?" or dim.isdigit() for dim in dims):
        raise InvalidInputError(f"column type {given!r}: dimensions are numbers, or ? where open")
    return Tensor(found[1], tuple(None if dim == "?" else int(dim) for dim in dims))


def parse_literal(text: str) -> Any:
    """A number, text in quotes, true, false or null; anything else is text as it is."""
    stripped = text.strip()
    if _NUMBER.fullmatch(stripped):
        is_whole = stripped.lstrip("-").isdigit() and len(stripped) <= _MAX_DIGITS
        return int(stripped) if is_whole else float(stripped)
    if _QUOTED.fullmatch(stripped):
        return stripped[1:-1].replace(stripped[0] * 2, stripped[0])
    return {"true": True, "false": False, "null": None}.get(stripped.lower(), text)


def parse_value(column: Column, text: str) -> Any:
    """A value of a column as people type it; null is None.

    Raises:
        InvalidInputError: no moment, or no JSON, where the column holds these.
    """
    kind, value = column.type, parse_literal(text)
    if value is None:
        return None
    try:
        if isinstance(kind, Text):
            return value if text[:1] in ("'", '"') else text
        if isinstance(kind, Timestamp) and isinstance(value, str):
            return datetime.fromisoformat(value)
        if isinstance(kind, Date | Time | Duration | Decimal):
            return value if isinstance(value, str) else text.strip()
        if isinstance(kind, Json | Nested) or column.storage.shape:
            return json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"column {column.name!r}, value {text!r}: {error}") from error
    return value.encode() if isinstance(kind, Bytes) and isinstance(value, str) else value


def values_of_file(source: Path, name: str) -> tuple[ColumnType, bool, Iterator[Any]]:
    """Type, nullability and values of a column that a file holds alone, or under that name.

    Raises:
        InvalidInputError: the file has several columns, none of that name.
    """
    reading = registry.read(source)
    names = reading.schema.names
    found = name if name in names else names[0]
    if found != name and len(names) > 1:
        raise InvalidInputError(f"{source} has columns {', '.join(names)}, none called {name!r}")
    column = reading.schema.column(found)

    def values() -> Iterator[Any]:
        for batch in reading.batches:
            columns: Any = batch
            if isinstance(batch, Sequence):
                columns = {found: [row.get(found) for row in batch]}
            yield columns[found]

    return column.type, column.nullable, values()


@dataclass(frozen=True, slots=True)
class StagedModel:
    """A model that was made and staged; `changed` False: the name held exactly that already."""

    path: str
    digest: str
    tensors: int
    bytes: int
    changed: bool
    notes: tuple[str, ...]


def find_model(session: WorkspaceSession, text: str, *, staged: bool = False) -> ModelRef:
    """The model that ``[REF:]NAME`` names, with where it is; with `staged` as it is staged.

    Raises:
        NotFoundError: no such commit, or no such entry in it.
        InvalidInputError: the entry is no model.
    """
    if staged:
        commit, (path, entry) = None, find_staged(session, text)
    else:
        revision, path, entry = session.find(text)
        commit = revision.digest
    if entry.kind is not Kind.MODEL:
        raise InvalidInputError(f"{path} is a {entry.kind.label}, not a model")
    return ModelRef(open_model(session.repository.objects, entry), path, commit)


def make_model(
    session: WorkspaceSession,
    name: str,
    make: Callable[[ObjectSink], NewModel],
    what: str,
    *,
    replace: bool,
) -> StagedModel:
    """Stage a model that `make` stores. `what` is shown beside it; `replace`: NAME may be taken.

    Raises:
        ConflictError: the name is taken. Nothing was staged.
    """
    path = check_path(name if name.startswith("models/") else f"models/{name}")
    with begin_stage(session) as stage:
        if stage.entry(path) is not None and not replace:
            raise ConflictError(f"{path} exists: choose another name, or give --replace")
        made = stage_new(stage, path, make(stage.objects))
        model = open_model(stage.objects, made.entry)
        stage.describe(path, size_bytes=model.size_bytes, source=what)
        changed = stage.drop_if_unchanged(path)
    return StagedModel(path, made.entry.digest, len(model), model.size_bytes, changed, made.notes)


def named_in(
    session: WorkspaceSession, recipe: Recipe, source: ModelRef
) -> tuple[list[ModelRef], ModelRef | None]:
    """The models that a recipe names: parents in its order, and the base.

    Each is looked for where the lineage of `source` says, then at all paths of HEAD.

    Raises:
        NotFoundError: one is in neither.
    """
    digests = [*recipe.parents, *([recipe.base] if recipe.base is not None else [])]
    found = [_by_digest(session, digest, source) for digest in digests]
    return found[: len(recipe.parents)], found[-1] if recipe.base is not None else None


def adapter_base(session: WorkspaceSession, adapter: ModelRef) -> ModelRef:
    """The model that an adapter was declared to be of, found as `named_in` does.

    Raises:
        InvalidInputError: it is no adapter.
        NotFoundError: its base is nowhere.
    """
    found = adapter_of(adapter.model.lineage)
    if found is None:
        raise InvalidInputError(
            f"{adapter.path} is no adapter, or was added without its base: "
            "`tensorrepo model add PATH NAME --adapter-of BASE`"
        )
    return _by_digest(session, found[0].digest, adapter)


def recipe_named(source: ModelRef) -> Recipe:
    """The recipe of a model. Raises InvalidInputError for one that was not blended."""
    recipe = recipe_of(source.model.manifest)
    if recipe is None:
        raise InvalidInputError(f"{source.path} was not made by `model merge`: it has no recipe")
    return recipe


def _by_digest(session: WorkspaceSession, digest: str, source: ModelRef) -> ModelRef:
    objects = session.repository.objects
    for path, entry, commit in _places(session, digest, source):
        if entry is not None and entry.digest == digest:
            return ModelRef(open_model(objects, entry), path, commit)
    raise NotFoundError(
        f"model {digest:.12}, of which {source.path} was made, is in no commit that its lineage "
        "names, nor in HEAD"
    )


def _places(
    session: WorkspaceSession, digest: str, source: ModelRef
) -> Iterable[tuple[str, Entry | None, Digest | None]]:
    """Where a model may be, the likeliest first."""
    repository = session.repository
    for edge in source.model.lineage:
        if edge.digest == digest and edge.commit is not None:
            try:
                tree = session.resolve(edge.commit).commit.tree
            except NotFoundError:
                continue
            yield edge.path, repository.entry(tree, edge.path), parse_digest(edge.commit)
    revision = session.resolve(None)
    for path, entry in repository.entries(revision.commit.tree, "models/"):
        yield path, entry, revision.digest


def view_path(name: str) -> str:
    """The path of a view."""
    return check_path(name if name.startswith("views/") else f"views/{name}")


def stage_view(
    session: WorkspaceSession,
    context: Context,
    name: str,
    sql: str,
    *,
    replace: bool,
    limits: QueryLimits | None = None,
) -> StoredView:
    """Ask for rows of what HEAD has, and stage which they are; `limits` as for `create_view`.

    Raises:
        ConflictError: the name is taken, and not `replace`. Nothing was staged.
        InvalidInputError: there is no commit yet, or the query chooses no rows of one dataset.
    """
    with begin_stage(session) as stage:
        path, tip = view_path(name), session.tip()
        if tip is None:
            raise InvalidInputError(
                "there is no commit yet to choose rows from: `tensorrepo commit`"
            )
        if stage.entry(path) is not None and not replace:
            raise ConflictError(f"{path} exists: `tensorrepo view refresh {name}` asks it again")
        link = create_view(stage, context, path, tip, sql, limits)
        stage.describe(path, size_bytes=link.bytes, source=sql)
        return open_view(stage.objects, link.digest)


def staged_view(session: WorkspaceSession, name: str) -> StoredView:
    """A view of HEAD, or staged on it. Raises NotFoundError."""
    path = view_path(name)
    entry = next_commit(session).entry(path)
    if entry is None:
        raise NotFoundError(f"no {path} in HEAD, and none is staged: `tensorrepo view ls`")
    if entry.kind is not Kind.VIEW:
        raise NotFoundError(f"{path} is a {entry.kind.label}, not a view")
    return open_view(session.repository.objects, entry.digest)
