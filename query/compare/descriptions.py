"""Descriptions of entries: what datasets, models, views and files hold, in lines and as JSON."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.summaries import shape_text
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.json_values import value_json
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import type_to_json
from tensorrepo.formats.model.stored_model import StoredModel, TensorSpec, open_model
from tensorrepo.formats.search_index.kinds import BTREE
from tensorrepo.formats.search_index.stored_index import StoredIndex, open_index
from tensorrepo.formats.views import open_view
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind, ObjectSource
from tensorrepo.repo.threads import ordered_map

_READERS: Final = 16  # of entries, at once


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
    if entry.kind is Kind.SEARCH_INDEX:
        return _describe_index(path, entry, open_index(objects, entry.digest))
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


def column_json(column: Column) -> dict[str, Any]:
    """A column for programs; its type is in the form that `dataset column add` takes, too."""
    kind = type_to_json(column.type)
    return {"name": column.name, "type": kind, "nullable": column.nullable}


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


def _describe_index(path: str, entry: Entry, index: StoredIndex) -> EntryDescription:
    of = f"{index.path}, column {index.column}"
    content = f"{index.kind} of {counted(index.rows, 'row')} of {of}"
    made = "by value" if index.kind == BTREE else f"by {index.metric or 'BM25'}"
    details = [f"{made}, as of version {index.dataset:.12}"]
    details += [
        f"segment of {counted(each.rows, 'row')}: {each.method}, {counted(each.size_bytes, 'byte')}"
        + "".join(f", {name} {value}" for name, value in sorted(each.options.items()))
        + (f", finds about {each.recall:.0%}" if each.recall else "")
        for each in index.segments
    ]
    facts = {
        "rows": index.rows,
        "of": index.path,
        "column": index.column,
        "index": index.kind,
        "metric": index.metric or None,
        "dataset": index.dataset,
        "options": dict(index.options),
        "segments": [
            {
                "rows": each.rows,
                "method": each.method,
                "bytes": each.size_bytes,
                "options": dict(each.options),
                "recall": each.recall or None,
            }
            for each in index.segments
        ],
    }
    return EntryDescription(
        path, entry.kind.label, content, index.size_bytes, entry.digest, tuple(details), facts
    )


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
