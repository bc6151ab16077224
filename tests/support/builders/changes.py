"""Changes of datasets, drawn at random, and what rows are once they are out of the dataset."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tensorrepo.formats.dataset.compact import compact_dataset
from tensorrepo.formats.dataset.evolve import add_column, drop_column, rename_column
from tensorrepo.formats.dataset.metadata.row_ids import format_row_id
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, open_dataset, row_id_table
from tensorrepo.formats.dataset.schema.arrow import to_arrow_array
from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.convert import present_row
from tensorrepo.formats.dataset.schema.schema import Column, Scalar
from tensorrepo.formats.dataset.schema.values import ColumnValues
from tensorrepo.formats.dataset.update import delete_rows, update_rows
from tensorrepo.formats.dataset.write import write_dataset
from tests.support.builders.datasets import value
from tests.support.builders.objects import MemoryObjects

CHANGES = ("append", "delete", "update", "rewrite", "compact", "add", "rename", "drop")


def changed(objects: MemoryObjects, dataset: StoredDataset, what: str, seed: int) -> StoredDataset:
    """What one change makes of a dataset; the same where it cannot be made."""
    rng = np.random.default_rng([seed, len(objects.stored)])  # no uid comes twice
    link = _CHANGES[what](objects, dataset, rng)
    return dataset if link is None else open_dataset(objects, link.digest)


def _append(objects: MemoryObjects, dataset: StoredDataset, rng: np.random.Generator) -> Any:
    columns = dataset.schema.visible.columns
    rows = [
        {column.name: value(column, rng) for column in columns} for _ in range(rng.integers(1, 9))
    ]
    uids = random.Random(int(rng.integers(2**62)))
    return write_dataset(
        objects, dataset.schema.visible, [rows], base=dataset, rng=uids, page_bytes=256
    )


def _delete(objects: MemoryObjects, dataset: StoredDataset, rng: np.random.Generator) -> Any:
    return delete_rows(objects, dataset, np.flatnonzero(rng.random(dataset.rows) < 0.3))


def _update(
    objects: MemoryObjects, dataset: StoredDataset, rng: np.random.Generator, share: float = 0.2
) -> Any:
    column = rng.choice(np.array(dataset.schema.visible.columns, object))
    rows = np.flatnonzero(rng.random(dataset.rows) < share)
    if not len(rows):
        return None

    def values(batch: pa.RecordBatch) -> pa.Array:
        rows = [value(column, rng) for _ in range(batch.num_rows)]
        return to_arrow_array(column.type, coerce_column(column, rows))

    return update_rows(objects, dataset, rows, {column.name: values})


def _rewrite(objects: MemoryObjects, dataset: StoredDataset, rng: np.random.Generator) -> Any:
    return _update(objects, dataset, rng, share=0.9)


def _compact(objects: MemoryObjects, dataset: StoredDataset, rng: np.random.Generator) -> Any:
    uids = random.Random(int(rng.integers(2**62)))
    return compact_dataset(objects, dataset, everything=True, rng=uids)


def _add(objects: MemoryObjects, dataset: StoredDataset, rng: np.random.Generator) -> Any:
    number = int(rng.integers(1 << 30))
    column = Column(f"added {number}", Scalar("int32"), default=int(rng.integers(9)))
    return add_column(objects, dataset, column)


def _rename(objects: MemoryObjects, dataset: StoredDataset, rng: np.random.Generator) -> Any:
    names = dataset.schema.visible.names
    return rename_column(objects, dataset, names[0], f"called {int(rng.integers(1 << 30))}")


def _drop(objects: MemoryObjects, dataset: StoredDataset, _: np.random.Generator) -> Any:
    names = dataset.schema.visible.names
    return drop_column(objects, dataset, names[-1]) if len(names) > 1 else None


_CHANGES = {
    "append": _append,
    "delete": _delete,
    "update": _update,
    "rewrite": _rewrite,
    "compact": _compact,
    "add": _add,
    "rename": _rename,
    "drop": _drop,
}


def rows_by_id(dataset: StoredDataset, columns: list[str]) -> dict[str, dict[str, Any]]:
    """All rows by their id; their values by the ids of `columns`."""
    names = {column.id: column.name for column in dataset.schema.columns}
    return {
        row_id: {column: row[names[column]] for column in columns}
        for row_id, row in zip(ids_of(dataset), dataset, strict=True)
    }


def ids_of(dataset: StoredDataset) -> list[str]:
    """Ids of all rows, in order."""
    rows = live_rows(dataset).physical(np.arange(dataset.rows))
    found = row_id_table(dataset).of(rows)
    return [format_row_id(each) for each in found]


def row_of(dataset: StoredDataset, values: Mapping[str, ColumnValues], at: int) -> dict[str, Any]:
    """One row of some values, by the names of their columns."""
    return {
        name: present_row(dataset.schema.column(name), each, at) for name, each in values.items()
    }
