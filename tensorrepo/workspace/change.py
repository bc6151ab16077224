"""How does a change of a dataset's rows or columns become a staged entry?

The new version is stored first and staged then, as `add` does it: nothing of a workspace changes
before all of it is stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tensorrepo.formats.dataset.columns.schema import (
    Bytes,
    Image,
    Json,
    Scalar,
    Tensor,
    Text,
    Timestamp,
    type_from_json,
)
from tensorrepo.formats.dataset.columns.types import Link as LinkType
from tensorrepo.formats.dataset.editing.where import count_rows, matching_rows, predicate_of
from tensorrepo.formats.dataset.read import open_dataset
from tensorrepo.formats.exchange import registry
from tensorrepo.repo.attempt import tree_of
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.trees import Entry
from tensorrepo.sqledit import row_selection
from tensorrepo.workspace.session import entry_at, full_path
from tensorrepo.workspace.stage import begin_stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tensorrepo.formats.dataset.columns.schema import Column
    from tensorrepo.formats.dataset.columns.types import ColumnType
    from tensorrepo.formats.dataset.editing.where import Where
    from tensorrepo.formats.dataset.read import Dataset
    from tensorrepo.repo.objects import Link
    from tensorrepo.repo.writer import ObjectWriter
    from tensorrepo.workspace.session import Session

    Progress = Callable[[int, int], None]  # rows done so far, and rows in all
    Verb = Callable[[ObjectWriter, Dataset, Where | None, Progress], Link]

_PLAIN_TYPES: dict[str, ColumnType] = {
    "text": Text(), "json": Json(), "bytes": Bytes(), "image": Image(), "link": LinkType(),
    "timestamp": Timestamp(),
}  # fmt: skip
_NUMBER = re.compile(r"-?(\d+\.?\d*([eE][+-]?\d+)?|\.\d+([eE][+-]?\d+)?)")
_QUOTED = re.compile(r"""'([^']|'')*'|"([^"]|"")*\"""")
_MAX_DIGITS = 40  # of a whole number; Python refuses some thousands
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
    session: Session,
    name: str,
    verb: Verb,
    what: str,
    where: Where | None = None,
    progress: Progress = lambda _done, _total: None,
) -> Changed:
    """Apply a verb to a dataset as it is staged, else as HEAD has it, and stage what comes of it.

    Args:
        session: of the command.
        name: of the dataset.
        verb: stores the new version and gives its link; is given the rows that are meant.
        what: is shown beside it by `status`.
        where: the rows that the verb is for. A predicate is read once, and becomes their numbers.
        progress: told rows done so far, first of looking for rows, then of the change.

    Raises:
        NotFoundError: there is no such dataset.
        InvalidInputError: what the verb refuses; nothing was staged.
    """
    with begin_stage(session) as stage:
        path, entry = _dataset_at(session, name)
        before = open_dataset(stage.objects, entry.digest, session.outside)
        where = None if where is None else row_selection(before, where)
        predicate = None if where is None else predicate_of(before, where)
        if predicate is not None:
            where = matching_rows(before, predicate, lambda done: progress(done, len(before)))
        chosen = None if where is None else count_rows(before, where)
        link = verb(stage.objects, before, where, progress)
        after = open_dataset(stage.objects, link.digest)
        stage.stage(path, Entry(Kind.DATASET, link.digest))
        stage.describe(path, rows=len(after), source=what)
        changed = stage.drop_if_unchanged(path)
    return Changed(path, len(before), len(after), changed, chosen)


def _dataset_at(session: Session, name: str) -> tuple[str, Entry]:
    path = name if name.startswith("datasets/") else f"datasets/{name}"
    entry = entry_at(session, path)
    if entry is None:
        tree = tree_of(session.repository.objects, session.base())
        path = full_path(session.repository, tree, name)
        entry = entry_at(session, path)
    if entry is None or entry.kind is not Kind.DATASET:
        kind = "staged for removal" if entry is None else f"a {entry.kind.label}, not a dataset"
        raise InvalidInputError(f"{path} is {kind}")
    return path, entry


def parse_type(text: str) -> ColumnType:
    """A column type as people type it: ``int64``, ``text``, ``float32[768]``, ``uint8[?,?,3]``, or
    the JSON form of any type.

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
    found = _TENSOR.fullmatch(given)
    if not found:
        return Scalar(given)
    dims = [part.strip() for part in found[2].split(",")]
    if not all(dim == "?" or dim.isdigit() for dim in dims):
        raise InvalidInputError(f"column type {given!r}: dimensions are numbers, or ? where open")
    return Tensor(found[1], tuple(None if dim == "?" else int(dim) for dim in dims))


def parse_property(text: str) -> Any:
    """A value of a property as people type it: JSON where it is some, else text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


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
        if isinstance(kind, Json) or column.storage.shape:
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
