"""Descriptions of entries and values: text for cells, JSON for programs, HTML for notebooks."""

from __future__ import annotations

import decimal
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date, time, timedelta
from html import escape
from typing import Any

import msgspec
import numpy as np

from tensorrepo.formats.common.arguments import counted, printable
from tensorrepo.formats.common.dtypes import is_small_float
from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.python_values import json_form
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import (
    ClassLabel,
    ColumnType,
    Date,
    Decimal,
    Duration,
    LinkValue,
    List,
    Map,
    Null,
    Scalar,
    Struct,
    Tensor,
    Time,
)
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.views import open_rows, open_view
from tensorrepo.repo.errors import InvalidInputError
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


SHOWN_BYTES = 60


@dataclass(frozen=True, slots=True)
class EntryDescription:
    """An entry for people. `bytes` is what its content takes when decoded."""

    path: str
    kind: str
    content: str
    bytes: int
    digest: Digest
    details: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"details": list(self.details)}


@dataclass(frozen=True, slots=True)
class Preview:
    """Rows to print: `rows` as text under `columns`, `records` as JSON values."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    records: list[dict[str, Any]]


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
        return EntryDescription(path, "view", shape, size, entry.digest, (f"query: {view.sql}",))
    size = objects.get(entry.digest).payload.nbytes if entry.kind is Kind.BLOB else 0
    kind = "file" if entry.kind is Kind.BLOB else entry.kind.label
    return EntryDescription(path, kind, f"{size:,} bytes", size, entry.digest)


def preview(
    objects: ObjectSource, path: str, entry: Entry, outside: Outside, *, start: int, rows: int
) -> Preview:
    """Some rows of a dataset or a view, or all tensors of a model."""
    if entry.kind is Kind.DATASET:
        return _preview_dataset(open_dataset(objects, entry.digest, outside), start, rows)
    if entry.kind is Kind.MODEL:
        return _preview_model(open_model(objects, entry))
    if entry.kind is Kind.VIEW:
        _, dataset = open_rows(objects, open_view(objects, entry.digest), outside)
        return _preview_dataset(dataset, start, rows)
    raise InvalidInputError(f"{path} is a {entry.kind.label}, which has no rows to print")


def value_text(value: Any) -> str:
    """One value in a cell: short ones whole, arrays and bytes by their kind."""
    if isinstance(value, np.ndarray) and value.ndim:
        inside = " ".join(str(item) for item in value.ravel()[:4])
        more = " ..." if value.size > 4 else ""
        return f"{value.dtype}{list(value.shape)} {inside}{more}"
    if isinstance(value, (bytes, memoryview)):
        return f"{len(value):,} bytes {bytes(value[:8]).hex()}"
    if isinstance(value, LinkValue):
        value = value.url
    elif isinstance(value, dict | list):
        value = json.dumps(value_json(value), ensure_ascii=False, default=str)
    elif isinstance(value, _IN_WORDS):
        value = json_form(value, str)
    text = printable(str(value)[: SHOWN_BYTES + 1].replace("\n", " "))
    return text if len(text) <= SHOWN_BYTES else text[: SHOWN_BYTES - 3] + "..."


def cell_text(column: Column, value: Any) -> str:
    """One value of a column in a cell: a class by its name."""
    if isinstance(column.type, ClassLabel) and value is not None:
        return value_text(column.type.names[int(value)])
    return value_text(value)


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
    return _nested_text(kind)


def _nested_text(kind: ColumnType) -> str:
    """``list(text)``, ``struct(a: int64, b: decimal(5, 2))``, ``time(us)``; of others as ever."""
    match kind:
        case List(value=value, size=size):
            return f"list({type_text(value)}{'' if size is None else f', {size}'})"
        case Struct(fields=fields):
            return f"struct({', '.join(f'{name}: {type_text(each)}' for name, each in fields)})"
        case Map(key=key, value=value):
            return f"map({type_text(key)}, {type_text(value)})"
        case Decimal(precision=precision, scale=scale):
            return f"decimal({precision}, {scale})"
        case Time(unit=unit) | Duration(unit=unit):
            return f"{kind.__struct_config__.tag}({unit})"
        case Date() | Null():
            return str(kind.__struct_config__.tag)
    return str(kind)


def value_json(value: Any) -> Any:
    """One value for programs: arrays as nested lists, bytes as hex, complex numbers as parts."""
    if isinstance(value, LinkValue):
        return msgspec.to_builtins(value)
    # Scalars of bfloat16 and float8 are no np.generic.
    if hasattr(value, "dtype") and value.dtype.kind not in "mM":
        wider = np.float32 if is_small_float(value.dtype) else value.dtype
        return value_json(np.asarray(value).astype(wider, copy=False).tolist())
    if isinstance(value, complex):
        return [value_json(value.real), value_json(value.imag)]
    if isinstance(value, (bytes, memoryview)):
        return bytes(value).hex()
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN, and programs that read it choke on one
    if isinstance(value, list | tuple):
        return [value_json(item) for item in value]
    if isinstance(value, dict):
        return {name: value_json(item) for name, item in value.items()}
    return json_form(value, str)


# Values that JSON says in ISO 8601, or as digits.
_IN_WORDS = (date, time, timedelta, decimal.Decimal, np.datetime64, np.timedelta64)


def file_json(path: str, data: memoryview) -> dict[str, Any]:
    """A file for programs: as text where it is some, else as hex."""
    content = bytes(data)
    try:
        return {"path": path, "bytes": len(content), "text": content.decode()}
    except UnicodeDecodeError:
        return {"path": path, "bytes": len(content), "hex": content.hex()}


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
    details = columns + properties
    return EntryDescription(path, "dataset", shape, dataset.stored_bytes, entry.digest, details)


def _describe_model(path: str, entry: Entry, model: StoredModel) -> EntryDescription:
    specs = [(name, model.spec(name)) for name in model]
    details = [f"{name}: {spec.type.name}{list(spec.shape)}" for name, spec in specs]
    details += [f"file {name}" for name in model.files]
    details += [f"{name} = {value}" for name, value in model.metrics.items()]
    total = sum(spec.size_bytes for _, spec in specs)
    shape = counted(len(specs), "tensor")
    return EntryDescription(path, "model", shape, total, entry.digest, tuple(details))


def _preview_dataset(dataset: StoredDataset, start: int, rows: int) -> Preview:
    stop = min(start + max(rows, 0), len(dataset))
    names = dataset.schema.visible.names
    records = [dataset[at] for at in range(min(start, stop), stop)]
    text = [
        (
            str(start + number),
            *(cell_text(dataset.schema.column(name), record[name]) for name in names),
        )
        for number, record in enumerate(records)
    ]
    plain = [{name: value_json(record[name]) for name in names} for record in records]
    return Preview((">row", *names), text, plain)


def _preview_model(model: StoredModel) -> Preview:
    plain = [
        {"name": name, "dtype": spec.type.name, "shape": list(spec.shape), "bytes": spec.size_bytes}
        for name, spec in ((name, model.spec(name)) for name in model)
    ]
    text: list[tuple[str, ...]] = [
        (str(each["name"]), str(each["dtype"]), str(each["shape"]), f"{each['bytes']:,}")
        for each in plain
    ]
    return Preview(("tensor", "dtype", "shape", ">bytes"), text, plain)
