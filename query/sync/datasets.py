"""Which rows say what a version of a dataset is?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tensorrepo.formats.dataset.columns.schema import type_to_json
from tensorrepo.formats.dataset.columns.statistics import value_of_key
from tensorrepo.formats.dataset.columns.types import Layout, storage_of
from tensorrepo.formats.dataset.tree.manifest import decode_root
from tensorrepo.formats.lineage import edges_of
from tensorrepo.query import tables
from tensorrepo.query.sync.edges import edge_rows
from tensorrepo.query.sync.values import as_json, bounded

if TYPE_CHECKING:
    from tensorrepo.formats.dataset.columns.schema import Column, ColumnType
    from tensorrepo.formats.dataset.tree.manifest import ColumnStatistics
    from tensorrepo.query.sync.loader import Row, Rows
    from tensorrepo.repo.objects import ObjectSource
    from tensorrepo.repo.trees import Entry


def dataset_rows(objects: ObjectSource, entry: Entry) -> Rows:
    """The rows of a dataset that a tree names. Reads its root alone."""
    root = decode_root(objects.get(entry.digest).payload)
    yield (
        tables.dataset_version,
        (
            entry.digest,
            root.rows - root.deleted,
            root.deleted,
            len(root.schema.columns),
            sum(leaf.fragments for leaf in root.leaves),
            root.stored_bytes,
            sum(each.raw_bytes for each in root.statistics),
            as_json(root.properties),
        ),
    )
    known = zip(root.schema.columns, root.statistics, strict=True)
    for place, (column, statistics) in enumerate(known):
        yield tables.dataset_column, _column_row(entry.digest, place, column, statistics)
    yield from edge_rows(entry.digest, "dataset", edges_of(root.lineage))


def type_in_words(column_type: ColumnType) -> str:
    """``tensor<uint8>[28, ?]``, ``scalar<int64>``, ``text``."""
    form = type_to_json(column_type)
    words = str(form["type"])
    if "dtype" in form:
        words += f"<{form['dtype']}>"
    shape = form.get("shape", [form["dim"]] if "dim" in form else None)
    if shape is not None:
        words += "[" + ", ".join("?" if size is None else str(size) for size in shape) + "]"
    return words


def _column_row(dataset: str, place: int, column: Column, known: ColumnStatistics) -> Row:
    storage = storage_of(column.type)
    binary = storage.layout is Layout.BINARY
    scalar = storage.layout is Layout.FIXED and not storage.shape
    ends = (known.min, known.max) if scalar else (None, None)
    numbers = [None if key is None else value_of_key(key, storage.dtype) for key in ends]
    return (
        dataset,
        place,
        column.name,
        type_in_words(column.type),
        None if binary else storage.dtype,
        None if binary else json.dumps(storage.shape),
        known.nulls,
        *(bounded(number) for number in numbers),
        *(None if key is None else key.to_bytes(8, "big") for key in ends),
        known.stored_bytes,
        known.raw_bytes,
    )
