"""A dataset as a list of dicts: what every change of one must come to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import Column, Scalar, Schema, Tensor, Text
from tests.support.reference.merge import Version

Id = tuple[int, int]

SCHEMA = Schema(
    (
        Column("key", Scalar("int16")),
        Column("label", Scalar("int8")),
        Column("text", Text(), nullable=True),
        Column("x", Tensor("int16", (100,)), nullable=True),
        Column("r", Tensor("int32", (None,))),
        Column("t", Tensor("int16", (None, 4), tile=(2, 3)), nullable=True),
    )
)


def value(column: Column, seed: int) -> Any:
    """A value of a column; equal seeds give equal ones."""
    if column.nullable and seed % 7 == 3:
        return None
    match column.type:
        case Text():
            return f"text {seed}" * (seed % 3)
        case Scalar():
            return seed % 100
        case _:
            dims = iter([seed % 5, seed % 3])
            shape = [next(dims) if dim is None else dim for dim in column.storage.shape]
            return np.full(shape, seed % 100).tolist()


def given(column: Column, values: Sequence[Any]) -> Any:
    """Values as a writer takes them, one per row."""
    if not column.storage.shape:
        return list(values)
    shape = [dim or 0 for dim in column.storage.shape]
    return [
        None if each is None else np.array(each, np.int64) if each else np.zeros(shape, np.int64)
        for each in values
    ]


def plain(found: Any) -> Any:
    """A value that was read, as the model has it."""
    return found.tolist() if hasattr(found, "dtype") else found


@dataclass(frozen=True)
class Model:
    """Columns, and of each row its id and values by column id, in order."""

    columns: tuple[Column, ...] = ()
    ids: tuple[Id, ...] = ()
    rows: tuple[dict[str, Any], ...] = field(default=(), repr=False)

    def column(self, name: str) -> Column:
        return next(column for column in self.columns if column.name == name)

    def with_ids(self, ids: Iterable[Id]) -> Model:
        return replace(self, ids=tuple(ids))

    def with_columns(self, columns: Sequence[Column]) -> Model:
        """With other columns: what is new has its default."""
        rows = tuple(
            {column.id: row.get(column.id, column.default) for column in columns}
            for row in self.rows
        )
        return replace(self, columns=tuple(columns), rows=rows)

    def with_values(self, column: Column, values: dict[int, Any]) -> Model:
        """With other values of some rows, by their place."""
        rows = tuple(
            row | {column.id: values[at]} if at in values else row
            for at, row in enumerate(self.rows)
        )
        return replace(self, rows=rows)

    def without(self, places: set[int]) -> Model:
        kept = [at for at in range(len(self.rows)) if at not in places]
        return replace(
            self,
            ids=tuple(self.ids[at] for at in kept),
            rows=tuple(self.rows[at] for at in kept),
        )

    def keys(self) -> list[int]:
        key = self.column("key").id
        return [row[key] for row in self.rows]

    def version(self) -> Version:
        """As the model of merges has it."""
        rows = {f"{uid:016x}:{at}": row for (uid, at), row in zip(self.ids, self.rows, strict=True)}
        return Version({column.id: column for column in self.columns}, rows, {})


def rows_of(dataset: StoredDataset, model: Model) -> list[dict[str, Any]]:
    """All rows of a dataset as the model has them."""
    return [{column.id: plain(row[column.name]) for column in model.columns} for row in dataset]
