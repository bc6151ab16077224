"""Descriptions of entries and values: tables for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from tensorrepo.formats.common.arguments import bytes_text, counted
from tensorrepo.formats.common.summaries import list_entry
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.cells import cell_of, cell_text, has_pictures, type_text
from tensorrepo.formats.dataset.schema.json_values import bytes_json
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import ColumnLayout
from tensorrepo.formats.runs.run_record import RUNS
from tensorrepo.repo.changes.refs import BRANCHES, TAGS
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.errors import Error
from tensorrepo.repo.tables import HTML_COLUMNS, Cell, RecordTable

if TYPE_CHECKING:
    from tensorrepo.formats.model.stored_model import StoredModel

HEAD_ROWS: Final = 8
HEAD_BYTES: Final = 32 << 20  # that the rows of a table may take in the store
_PICTURE_COLUMNS: Final = 3  # of a table that have thumbnails
_TENSORS: Final = 40
_ENTRIES: Final = 40
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


def file_json(path: str, data: memoryview, whole_bytes: int | None) -> dict[str, Any]:
    """A file for programs: as text where it is some, else as bytes."""
    try:
        return {"path": path, "bytes": data.nbytes, "text": str(data, "utf-8")}
    except UnicodeDecodeError:
        return {"path": path} | bytes_json(data, whole_bytes)
