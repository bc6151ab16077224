"""Sequences of changes, against a list of rows."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorrepo.formats.dataset.compact import compact_dataset
from tensorrepo.formats.dataset.evolve import add_column, drop_column, rename_column
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset, read_rows
from tensorrepo.formats.dataset.schema.convert import present_row
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.formats.dataset.selecting.select_rows import ids_of_rows, rows_of_ids
from tensorrepo.formats.dataset.update import delete_rows, update_rows
from tensorrepo.formats.dataset.upsert import upsert
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.objects.envelope import ObjectLink
from tests.support.builders.column_types import TYPES, tiled, value
from tests.support.builders.datasets import Rows, same_rows
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import examples


class Model:
    """A dataset, and the rows that it must hold."""

    def __init__(self, schema: Schema, rng: np.random.Generator) -> None:
        self.objects = MemoryObjects()
        self.rng = rng
        self.uids = random.Random(int(rng.integers(0, 2**32)))
        self.rows: Rows = []
        self.ids: list[str] = []
        self.next_key = 0
        self.dataset = self.opened(write_dataset(self.objects, schema, ()))

    def opened(self, link: ObjectLink) -> StoredDataset:
        return open_dataset(self.objects, link.digest)

    @property
    def schema(self) -> Schema:
        return self.dataset.schema.visible

    def row(self) -> dict[str, Any]:
        self.next_key += 1
        made = {column.name: value(column, self.rng) for column in self.schema.columns}
        return made | {"key": np.int64(self.next_key)}

    def chosen(self) -> list[int]:
        count = int(self.rng.integers(0, len(self.rows) + 1))
        return self.rng.permutation(len(self.rows))[:count].tolist()

    # ---------------------------------------------------------------------- verbs

    def append(self) -> None:
        added = [self.row() for _ in range(int(self.rng.integers(1, 20)))]
        link = write_dataset(
            self.objects,
            self.dataset.schema.without_ids(),
            [added],
            base=self.dataset,
            rng=self.uids,
            page_bytes=int(self.rng.integers(1, 5000)),
            budget_bytes=1 << 16,
        )
        self.rows += added
        self.dataset = self.opened(link)

    def delete(self) -> None:
        gone = self.chosen()
        self.dataset = self.opened(delete_rows(self.objects, self.dataset, gone))
        self.rows = [row for at, row in enumerate(self.rows) if at not in gone]
        self.ids = [name for at, name in enumerate(self.ids) if at not in gone]

    def update(self) -> None:
        rows = self.chosen()
        column = self.schema.columns[int(self.rng.integers(0, len(self.schema.columns)))]
        if column.name == "key":
            return
        values = [value(column, self.rng) for _ in rows]
        self.dataset = self.opened(
            update_rows(self.objects, self.dataset, rows, {column.name: values})
        )
        for row, new in zip(rows, values, strict=True):
            self.rows[row] = self.rows[row] | {column.name: new}

    def upsert(self) -> None:
        known = [self.row() | {"key": self.rows[at]["key"]} for at in self.chosen()]
        added = [self.row() for _ in range(int(self.rng.integers(0, 4)))]
        self.dataset = self.opened(upsert(self.objects, self.dataset, "key", [[*added, *known]]))
        by_key = {row["key"]: row for row in known}
        self.rows = [by_key.get(row["key"], row) for row in self.rows] + added

    def add_column(self) -> None:
        names = set(self.schema.names)
        name = next(f"new{at}" for at in range(99) if f"new{at}" not in names)
        column = Column(name, KINDS[int(self.rng.integers(0, len(KINDS)))], nullable=True)
        values = [value(column, self.rng) for _ in self.rows]
        with_values = bool(self.rng.integers(0, 2))
        self.dataset = self.opened(
            add_column(
                self.objects,
                self.dataset,
                column,
                values if with_values else None,
                page_bytes=int(self.rng.integers(1, 2000)),
            )
        )
        found = values if with_values else [None] * len(self.rows)
        self.rows = [row | {name: new} for row, new in zip(self.rows, found, strict=True)]

    def drop_column(self) -> None:
        names = [name for name in self.schema.names if name != "key"]
        if names:
            name = names[int(self.rng.integers(0, len(names)))]
            self.dataset = self.opened(drop_column(self.objects, self.dataset, name))
            self.rows = [{k: v for k, v in row.items() if k != name} for row in self.rows]

    def rename_column(self) -> None:
        old = self.schema.names[-1]
        if old != "key" and "other" not in self.schema:
            self.dataset = self.opened(rename_column(self.objects, self.dataset, old, "other"))
            self.rows = [
                {("other" if k == old else k): v for k, v in row.items()} for row in self.rows
            ]

    def compact(self) -> None:
        self.dataset = self.opened(
            compact_dataset(self.objects, self.dataset, target_bytes=10_000, rng=self.uids)
        )

    # ---------------------------------------------------------------------- claims

    def check(self) -> None:
        assert same_rows(list(self.dataset), self.rows)
        some = self.chosen()
        for column in self.schema.columns:
            taken = read_rows(self.dataset, column.name, np.array(some, np.int64))
            found = [{column.name: present_row(column, taken, at)} for at in range(len(some))]
            assert same_rows(found, [{column.name: self.rows[at][column.name]} for at in some])
        known = self.dataset.rows if not self.ids else len(self.ids)
        before, self.ids = self.ids, ids_of_rows(self.dataset, slice(None))
        assert self.ids[: min(known, len(before))] == before
        assert rows_of_ids(self.dataset, self.ids).tolist() == list(range(len(self.ids)))


KINDS: list[Any] = []
VERBS = ["append", "delete", "update", "upsert", "add_column", "drop_column", "rename_column"]
VERBS += ["compact", "update", "update", "append"]


@settings(max_examples=examples(10), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    kinds=st.lists(
        st.one_of(TYPES, tiled()),
        min_size=1,
        max_size=3,
    ),
    nullable=st.booleans(),
    verbs=st.lists(st.sampled_from(VERBS), min_size=2, max_size=12),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_sequence_of_changes_gives_the_rows_that_a_list_would_hold(
    kinds: list[Any], nullable: bool, verbs: list[str], seed: int
) -> None:
    KINDS[:] = kinds
    columns = [Column(f"c{at}", kind, nullable) for at, kind in enumerate(kinds)]
    schema = Schema((*Schema.of({"key": "int64"}).columns, *columns))
    model = Model(schema, np.random.default_rng(seed))
    for verb in ("append", *verbs):
        apply: Callable[[], None] = getattr(model, verb)
        apply()
        model.check()
