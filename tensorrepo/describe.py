"""Descriptions of entries and values: text for cells, JSON for programs, HTML for notebooks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from tensorrepo.formats.common.arguments import counted, printable
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import (
    ClassLabel,
    ColumnType,
    LinkValue,
    Scalar,
    Tensor,
    type_to_json,
)
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.views import open_view
from tensorrepo.json_values import bytes_json, value_json
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind, ObjectSource

MANY = 8


def html_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table under a title; everything that is shown is escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<div>{escape(title)}</div><table><tr>{head}</tr>{body}</table>"


SHOWN_CHARACTERS = 60


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
        return _describe_model(path, entry, open_model(objects, entry))
    if entry.kind is Kind.VIEW:
        view = open_view(objects, entry.digest)
        shape = f"{counted(view.rows, 'row')} of {view.path}"
        size = objects.describe(entry.digest).bytes
        details, facts = (f"query: {view.sql}",), {"rows": view.rows, "of": view.path}
        return EntryDescription(
            path, "view", shape, size, entry.digest, details, facts | {"query": view.sql}
        )
    size = objects.get(entry.digest).payload.nbytes if entry.kind is Kind.BLOB else 0
    kind = "file" if entry.kind is Kind.BLOB else entry.kind.label
    return EntryDescription(path, kind, f"{size:,} bytes", size, entry.digest)


def value_text(value: Any, most: int | None = SHOWN_CHARACTERS) -> str:
    """One value in a cell: arrays and bytes by their kind, others whole up to `most` characters.

    None is ``null``; the end of a line and what a terminal would obey are escaped.
    """
    if isinstance(value, np.ndarray) and value.ndim:
        inside = " ".join(str(item) for item in value.ravel()[:4])
        more = " ..." if value.size > 4 else ""
        return f"{value.dtype}{list(value.shape)} {inside}{more}"
    if isinstance(value, (bytes, memoryview)):
        return f"{len(value):,} bytes {bytes(value[:8]).hex()}"
    if value is None:
        return "null"
    if isinstance(value, dict | list):
        value = json.dumps(value_json(value), ensure_ascii=False)
    if isinstance(value, LinkValue):
        value = value.url
    whole = str(value)
    text = printable(whole if most is None else whole[: most + 1])
    return text if most is None or len(text) <= most else text[: most - 3] + "..."


def type_text(kind: ColumnType) -> str:
    """The type of a column, in a word where one does: ``float32[28, ?]``."""
    if isinstance(kind, Scalar):
        return kind.dtype
    if isinstance(kind, Tensor):
        dims = ", ".join("?" if dim is None else str(dim) for dim in kind.shape)
        return f"{kind.dtype}[{dims}]"
    if isinstance(kind, ClassLabel):
        shown = ", ".join(kind.names[:8])
        return f"label of {len(kind.names)} classes ({shown}{', ...' if kind.names[8:] else ''})"
    return str(kind)


def column_json(column: Column) -> dict[str, Any]:
    """A column for programs; its type is in the form that `column add` takes, too."""
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
        f"{column.name}: {type_text(column.type)}{' or null' if column.nullable else ''}"
        for column in dataset.schema.visible.columns
    )
    shape = f"{len(dataset):,} rows x {len(columns)} columns"
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
    details = [f"{name}: {spec.type.name}{list(spec.shape)}" for name, spec in specs]
    details += [f"file {name}" for name in model.files]
    details += [f"{name} = {value}" for name, value in model.metrics.items()]
    total = sum(spec.size_bytes for _, spec in specs)
    shape = counted(len(specs), "tensor")
    facts = {"tensors": len(specs), "files": list(model.files), "metrics": dict(model.metrics)}
    return EntryDescription(path, "model", shape, total, entry.digest, tuple(details), facts)
