"""Descriptions of entries and values: tables for people, JSON for programs."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from tensorrepo import lazy
from tensorrepo.formats.common.arguments import bytes_text, counted
from tensorrepo.formats.common.summaries import list_entry, shape_text
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.cells import cell_of, cell_text, has_pictures, type_text
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import ColumnLayout, type_to_json
from tensorrepo.json_values import bytes_json, value_json
from tensorrepo.repo.changes.refs import BRANCHES, TAGS
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.errors import Error
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind, ObjectSource
from tensorrepo.repo.tables import HTML_COLUMNS, Cell, RecordTable
from tensorrepo.repo.threads import ordered_map
from tensorrepo.runs.run_context import RUNS

if TYPE_CHECKING:
    from tensorrepo.formats.model.stored_model import StoredModel, TensorSpec

HEAD_ROWS: Final = 8
HEAD_BYTES: Final = 32 << 20  # that the rows of a table may take in the store
_PICTURE_COLUMNS: Final = 3  # of a table that have thumbnails
_TENSORS: Final = 40
_ENTRIES: Final = 40
_READERS: Final = 16  # of entries, at once
TENSOR_COLUMNS: Final[Mapping[str, Cell]] = {
    "tensor": "name",
    "dtype": "type.name",
    "shape": lambda spec: str(list(spec.shape)),
    ">bytes": lambda spec: f"{spec.size_bytes:,}",
}
ENTRY_COLUMNS: Final[Mapping[str, Cell]] = {
    "path": "path",
    "kind": "kind",
    "content": "content",
    ">size": lambda entry: bytes_text(entry.bytes),
    "digest": lambda entry: entry.digest[:12],
}


@dataclass(frozen=True, slots=True)
class EntryDescription:
    """An entry for people and programs.

    Attributes:
        bytes: size of its content, decoded.
        details: lines for people, behind `content`.
        facts: what these say, for programs: columns of a dataset, number of a model's tensors.
    """

    path: str
    kind: str
    content: str
    bytes: int
    digest: Digest
    details: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        named = {"path": self.path, "kind": self.kind, "digest": self.digest, "bytes": self.bytes}
        return named | dict(self.facts)


def describe_entry(objects: ObjectSource, path: str, entry: Entry) -> EntryDescription:
    """What lies at `path`."""
    if entry.kind is Kind.DATASET:
        return _describe_dataset(path, entry, open_dataset(objects, entry.digest))
    if entry.kind is Kind.MODEL:
        return _describe_model(path, entry, lazy.open_model(objects, entry))
    if entry.kind is Kind.VIEW:
        view = lazy.open_view(objects, entry.digest)
        shape = f"{counted(view.rows, 'row')} of {view.path}"
        size = objects.describe(entry.digest).bytes
        details, facts = (f"query: {view.sql}",), {"rows": view.rows, "of": view.path}
        return EntryDescription(
            path, "view", shape, size, entry.digest, details, facts | {"query": view.sql}
        )
    size = objects.get(entry.digest).payload.nbytes if entry.kind is Kind.BLOB else 0
    kind = entry.kind.noun
    return EntryDescription(path, kind, counted(size, "byte"), size, entry.digest)


def describe_entries(
    objects: ObjectSource, entries: Iterable[tuple[str, Entry]]
) -> Iterator[EntryDescription]:
    """What lies at each path, in order; several are read side by side, for a store answers late."""
    return ordered_map(
        entries,
        lambda each: describe_entry(objects, *each),
        threads=_READERS,
        name="describe",
    )


def dataset_table(title: str, dataset: StoredDataset) -> RecordTable:
    """The first rows, with thumbnails and the names of classes.

    Columns cut into tiles are told by their type: a row of them may be larger than memory.
    """
    every = dataset.schema.visible.columns
    columns = every[:HTML_COLUMNS]
    row_bytes = dataset.stored_bytes // max(len(dataset), 1)
    if row_bytes > HEAD_BYTES:
        note = f"a row takes {bytes_text(row_bytes)}, so none is shown"
        return replace(dataset.schema.to_table(), lines=(title, note))
    count = min(HEAD_ROWS, len(dataset), HEAD_BYTES // max(row_bytes, 1))
    pictures = [column.name for column in columns if has_pictures(column.type)][:_PICTURE_COLUMNS]
    try:
        cells = [_head_cells(dataset, column, count, column.name in pictures) for column in columns]
    except Error as error:  # data outside, that may not be read or is gone
        return replace(dataset.schema.to_table(), lines=(title, f"rows cannot be read: {error}"))
    names = tuple(column.name.removeprefix(">") for column in columns)
    some = (
        (f"the first {len(columns)} of {counted(len(every), 'column')}",)
        if every != columns
        else ()
    )
    rows = tuple(zip(*cells, strict=True))
    return RecordTable((title, *some), names, rows, len(dataset) - count)


def _head_cells(dataset: StoredDataset, column: Column, count: int, pictures: bool) -> list[object]:
    if column.storage.layout is ColumnLayout.TILED:
        return [type_text(column.type)] * count
    values = dataset[column.name][:count]
    shown = cell_of if pictures else cell_text
    return [shown(column.type, value) for value in values]


def model_table(title: str, model: StoredModel) -> RecordTable:
    """The first tensors of a model."""
    specs = (model.spec(name) for name in islice(model.keys(), _TENSORS))
    table = RecordTable.of(specs, TENSOR_COLUMNS, title)
    return replace(table, more=max(len(model) - _TENSORS, 0))


def repository_table(title: str, core: RepositoryCore, tree: bytes | None) -> RecordTable:
    """What lies in a repository, and in one of its commits; None: there is none yet."""
    refs = core.log.refresh().state.refs
    branches = counted(sum(ref.startswith(BRANCHES) for ref in refs), "branch", "branches")
    tags = counted(sum(ref.startswith(TAGS) for ref in refs), "tag")
    runs = counted(len({ref.split("/")[1] for ref in refs if ref.startswith(RUNS)}), "run")
    lines = (title, f"{branches}, {tags}, {runs}")
    if tree is None:
        return RecordTable((*lines, "main has no commit yet"))
    paths = core.entries(tree)
    shown = [list_entry(*each) for each in islice(paths, _ENTRIES)]
    table = RecordTable.of(shown, ENTRY_COLUMNS, *lines)
    return replace(table, more=sum(1 for _ in paths))


def column_json(column: Column) -> dict[str, Any]:
    """A column for programs; its type is in the form that `dataset column add` takes, too."""
    kind = type_to_json(column.type)
    return {"name": column.name, "type": kind, "nullable": column.nullable}


def file_json(path: str, data: memoryview, whole_bytes: int | None) -> dict[str, Any]:
    """A file for programs: as text where it is some, else as bytes."""
    try:
        return {"path": path, "bytes": data.nbytes, "text": str(data, "utf-8")}
    except UnicodeDecodeError:
        return {"path": path} | bytes_json(data, whole_bytes)


def _describe_dataset(path: str, entry: Entry, dataset: StoredDataset) -> EntryDescription:
    columns = tuple(
        f"{column.name}: {column.type_text}" for column in dataset.schema.visible.columns
    )
    shape = shape_text(len(dataset), len(columns))
    properties = tuple(
        f"{name} = {json.dumps(value, ensure_ascii=False, default=str)}"
        for name, value in dataset.root.properties.items()
    )
    facts = {
        "rows": len(dataset),
        "columns": [column_json(column) for column in dataset.schema.visible.columns],
        "properties": value_json(dict(dataset.root.properties)),
    }
    size, details = dataset.stored_bytes, columns + properties
    return EntryDescription(path, "dataset", shape, size, entry.digest, details, facts)


def _describe_model(path: str, entry: Entry, model: StoredModel) -> EntryDescription:
    specs = [(name, model.spec(name)) for name in model]
    details = [_size_text([spec for _, spec in specs])] if specs else []
    details += [f"{name}: {spec.type.name}{list(spec.shape)}" for name, spec in specs]
    details += [f"file {name}" for name in model.files]
    details += [f"{name} = {value}" for name, value in model.metrics.items()]
    total = sum(spec.size_bytes for _, spec in specs)
    shape = counted(len(specs), "tensor")
    facts = {"tensors": len(specs), "files": list(model.files), "metrics": dict(model.metrics)}
    return EntryDescription(path, "model", shape, total, entry.digest, tuple(details), facts)


def _size_text(specs: Sequence[TensorSpec]) -> str:
    """How many numbers a model has, and of which types, the commonest first."""
    counts = Counter[str]()
    for spec in specs:
        counts[spec.type.name] += math.prod(spec.shape)
    types = ", ".join(name for name, _ in counts.most_common())
    return f"{counted(counts.total(), 'parameter')} ({types})"
