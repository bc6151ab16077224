"""A dataset does what a list of dicts does, whatever is done to it and in whatever order."""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tensorrepo.formats.dataset.changing import patch as setvalues
from tensorrepo.formats.dataset.compact import compact_dataset
from tensorrepo.formats.dataset.evolve import (
    add_column,
    drop_column,
    rename_column,
    widen_column,
)
from tensorrepo.formats.dataset.merge import DatasetMergeDriver
from tensorrepo.formats.dataset.metadata import tree_edit, tree_write
from tensorrepo.formats.dataset.metadata.manifest import INLINE_DATA_BYTES
from tensorrepo.formats.dataset.metadata.row_ids import format_row_id
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Column, Scalar, Tensor, Text
from tensorrepo.formats.dataset.schema.values import order_key
from tensorrepo.formats.dataset.sync import sync_dataset
from tensorrepo.formats.dataset.update import delete_rows, update_rows
from tensorrepo.formats.dataset.upsert import upsert
from tensorrepo.formats.dataset.versions.row_diff import row_changes
from tensorrepo.formats.dataset.write import write_dataset
from tensorrepo.repo.history.merge_trees import Conflict, MergeContext
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import Kind, ObjectLink
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.streams import stream
from tests.support.effort import examples
from tests.support.golden.dataset import small_cuts
from tests.support.reference.dataset import SCHEMA, Model, given, plain, rows_of, value
from tests.support.reference.merge import merge_versions
from tests.support.second_readers.comparison import agrees, ids_of
from tests.support.second_readers.linked import unbounded, unlinked

SEEDS = st.integers(0, 10_000)
PLACES = st.lists(st.integers(0, 60), min_size=1, max_size=8, unique=True)
HOW = st.sampled_from(["numbers", "ids", "keys", "predicate", "mask"])
NAMES = st.sampled_from(["label", "text", "x", "r", "t", "a", "b"])
BUDGETS = st.sampled_from([1 << 14, 1 << 20])
VERBS = st.sampled_from(["append", "delete", "update", "patch", "upsert", "add", "compact"])
NEW = st.sampled_from(["a", "b", "c"])
KINDS: list[Column] = [
    Column("new", Scalar("int16"), default=7),
    Column("new", Text(), nullable=True),
    Column("new", Tensor("uint8", (3,))),
    Column("new", Scalar("int32"), nullable=True, default=5),
]
WIDER = {"int8": "int16", "int16": "int32", "int32": "float64", "uint8": "int16"}
CONTEXT = MergeContext(automatic=False, strategy="fail", generations=(1, 2))
Version = tuple[StoredDataset, Model]


class DatasetMachine(RuleBasedStateMachine):
    """Every rule does something to a dataset and to its model; there are two branches of it."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = ExitStack()
        self.patches.enter_context(small_cuts())
        # Patches of small columns too, and many of them.
        for name, least in (("SMALL_COLUMN_BYTES", 0), ("PATCH_SHARE", 0.5), ("PATCH_LAYERS", 3)):
            self.patches.enter_context(patch.object(setvalues, name, least))
        self.objects = MemoryObjects()
        self.uids = 0
        self.next_key = 0
        self.born: dict[Any, int] = {}  # which key was in the row of an id

    def teardown(self) -> None:
        self.patches.close()

    @initialize(
        counts=st.lists(st.integers(1, 4), max_size=12),
        budget=st.sampled_from([0, 1 << 20]),
        inline_bytes=st.sampled_from([0, 1500, INLINE_DATA_BYTES]),
    )
    def make(self, counts: list[int], budget: int, inline_bytes: int) -> None:
        for module in (tree_write, tree_edit):
            self.patches.enter_context(patch.object(module, "INLINE_DATA_BYTES", inline_bytes))
        self.budget_bytes = budget or (1 << 14)
        link = write_dataset(self.objects, SCHEMA, [])
        self.dataset = open_dataset(self.objects, link.digest)
        self.model = Model(self.dataset.schema.columns)
        for at, count in enumerate(counts):
            self.append(count, at)
        self._fork()

    # ---- what is done

    @property
    def rng(self) -> random.Random:
        """Uids that nothing has yet."""
        self.uids += 1
        return random.Random(self.uids)

    def _take(self, link: ObjectLink, model: Model) -> None:
        """The result of a change, and what it must be; ids of rows that are new come from it."""
        self.dataset = open_dataset(self.objects, link.digest)
        new = len(model.rows) - len(model.ids)
        ids = ids_of(self.dataset)
        self.model = model.with_ids((*model.ids, *ids[len(ids) - new :]))

    def _new_rows(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Values by column id."""
        rows = []
        for at in range(count):
            row = {column.id: value(column, seed + at) for column in self.model.columns}
            rows.append(row | {self.model.column("key").id: self.next_key})
            self.next_key += 1
        return rows

    def _batch(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            column.name: given(column, [row[column.id] for row in rows])
            for column in self.model.columns
        }

    @rule(count=st.integers(1, 6), seed=SEEDS)
    def append(self, count: int, seed: int) -> None:
        rows = self._new_rows(count, seed)
        link = write_dataset(
            self.objects,
            self.dataset.schema.visible.without_ids(),
            [self._batch(rows)],
            base=self.dataset,
            rng=self.rng,
            page_bytes=300,
            budget_bytes=self.budget_bytes,
        )
        self._take(link, replace(self.model, rows=(*self.model.rows, *rows)))

    def _where(self, places: list[int], how: str) -> tuple[Any, list[int]]:
        """Rows named in some way, and which of the model's they are, in the order given."""
        places = [at for at in places if at < len(self.model.rows)]
        keys = self.model.keys()
        match how:
            case "ids":
                found = [np.array(self.model.ids[at], "<u8,<u4") for at in places]
                ids = [{"fragment": int(each["f0"]), "offset": int(each["f1"])} for each in found]
                return [format_row_id(each) for each in ids], places
            case "keys":
                return {"key": [keys[at] for at in places]}, places
            case "predicate":
                bound = keys[places[0]] if places else -1
                return f"key <= {bound}", [at for at, key in enumerate(keys) if key <= bound]
            case "mask":
                mask = np.zeros(len(keys), np.bool_)
                mask[places] = True
                return mask, sorted(places)
            case _:
                return np.array(places, np.int64), places

    @rule(places=PLACES, how=HOW, name=NAMES, seed=SEEDS, single=st.booleans())
    def update(self, places: list[int], how: str, name: str, seed: int, single: bool) -> None:
        if name not in {column.name for column in self.model.columns}:
            return
        column = self.model.column(name)
        where, chosen = self._where(places, how)
        if not chosen:
            return
        new = {at: value(column, seed + (0 if single else at)) for at in chosen}
        given_values = given(column, [new[at] for at in chosen])
        link = update_rows(
            self.objects,
            self.dataset,
            where,
            {name: given_values[0] if single else given_values},
            budget_bytes=self.budget_bytes,
        )
        self._take(link, self.model.with_values(column, new))

    @rule(places=PLACES, how=HOW)
    def delete(self, places: list[int], how: str) -> None:
        where, chosen = self._where(places, how)
        link = delete_rows(self.objects, self.dataset, where)
        self._take(link, self.model.without(set(chosen)))

    @rule(places=PLACES, count=st.integers(0, 3), seed=SEEDS)
    def upsert(self, places: list[int], count: int, seed: int) -> None:
        places = [at for at in places if at < len(self.model.rows)]
        keys, key = self.model.keys(), self.model.column("key").id
        rows = [
            {column.id: value(column, seed + at) for column in self.model.columns} | {key: keys[at]}
            for at in places
        ]
        model = self.model
        for column in model.columns:
            new = {at: row[column.id] for at, row in zip(places, rows, strict=True)}
            model = model.with_values(column, new)
        more = self._new_rows(count, seed)
        if not rows + more:
            return
        link = upsert(self.objects, self.dataset, "key", [self._batch(rows + more)])
        self._take(link, replace(model, rows=(*model.rows, *more)))

    @rule(places=PLACES, gone=PLACES, count=st.integers(0, 3), seed=SEEDS, turned=st.booleans())
    def sync(self, places: list[int], gone: list[int], count: int, seed: int, turned: bool) -> None:
        """A source has the rows that there are but for some: changed, gone, or new ones."""
        model, key = self.model, self.model.column("key").id
        places = [at for at in places if at < len(model.rows)]
        for column in model.columns:
            if column.id != key:
                new = {at: value(column, seed + at) for at in places}
                model = model.with_values(column, new)
        model = model.without({at for at in gone if at < len(model.rows)})
        more = self._new_rows(count, seed)
        rows = [*model.rows[:: -1 if turned else 1], *more]
        report = sync_dataset(
            self.objects,
            self.dataset,
            self.dataset.schema.visible.without_ids(),
            [self._batch(rows)],
            key=["key"],
            budget_bytes=self.budget_bytes,
        )
        assert report.inserted == len(more)
        assert report.deleted == len(self.model.rows) - len(model.rows)
        self._take(report.link, replace(model, rows=(*model.rows, *more)))

    @rule(places=PLACES, gone=PLACES, count=st.integers(0, 3), at=PLACES, seed=SEEDS)
    def sync_without_key(
        self, places: list[int], gone: list[int], count: int, at: list[int], seed: int
    ) -> None:
        """The same source in its order, new rows anywhere: rows as a dict of ids.

        A row that the source left alone keeps its id; which id a changed one has is the rule of
        runs, so the model learns it, and that no other row has it.
        """
        key = self.model.column("key").id
        before = dict(zip(self.model.ids, self.model.rows, strict=True))
        changed = {each for each in places if each < len(before)}
        absent = {each for each in gone if each < len(before)}
        source = [
            {column.id: value(column, seed + n) for column in self.model.columns} | {key: row[key]}
            if n in changed
            else row
            for n, row in enumerate(self.model.rows)
            if n not in absent
        ]
        for number, row in enumerate(self._new_rows(count, seed)):
            source.insert(min(len(source), (at or [0])[number % len(at or [0])]), row)
        report = sync_dataset(
            self.objects,
            self.dataset,
            self.dataset.schema.visible.without_ids(),
            [self._batch(source)],
            budget_bytes=self.budget_bytes,
        )
        self.dataset = open_dataset(self.objects, report.link.digest)
        rows = dict(zip(ids_of(self.dataset), rows_of(self.dataset, self.model), strict=True))
        assert sorted(rows.values(), key=lambda row: row[key]) == sorted(
            source, key=lambda row: row[key]
        )
        for number, (row_id, row) in enumerate(before.items()):
            if number not in changed | absent:
                assert rows[row_id] == row
        assert report.inserted - report.deleted == len(source) - len(before)
        self.born |= {row_id: row[key] for row_id, row in rows.items()}
        self.model = replace(self.model, ids=tuple(rows), rows=tuple(rows.values()))

    # ---- columns

    def _has(self, name: str) -> bool:
        return any(column.name == name for column in self.model.columns)

    @rule(name=NEW, kind=st.sampled_from(KINDS), seed=SEEDS, with_values=st.booleans())
    def add(self, name: str, kind: Column, seed: int, with_values: bool) -> None:
        if self._has(name) or (not with_values and not kind.nullable and kind.default is None):
            return
        column = replace(kind, name=name)
        new = [value(column, seed + at) for at in range(len(self.model.rows))]
        values = given(column, new) if with_values else None
        link = add_column(self.objects, self.dataset, column, values)
        added = open_dataset(self.objects, link.digest).schema.column(name)
        model = self.model.with_columns((*self.model.columns, added))
        if with_values:
            model = model.with_values(added, dict(enumerate(new)))
        self._take(link, model)

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        if not self._has(name):
            return
        link = drop_column(self.objects, self.dataset, name)
        kept = [column for column in self.model.columns if column.name != name]
        self._take(link, self.model.with_columns(kept))

    @rule(name=NAMES, new_name=NEW)
    def rename(self, name: str, new_name: str) -> None:
        if not self._has(name) or self._has(new_name):
            return
        link = rename_column(self.objects, self.dataset, name, new_name)
        self._follow(link)

    @rule(name=NAMES, nullable=st.booleans(), opened=st.booleans())
    def widen(self, name: str, nullable: bool, opened: bool) -> None:
        if not self._has(name) or isinstance(self.model.column(name).type, Text):
            return
        column = self.model.column(name)
        kind: Any = column.type
        dtype = WIDER.get(kind.dtype, kind.dtype)
        if isinstance(kind, Scalar):
            kind = Scalar(dtype)
        else:
            shape = (None, *kind.shape[1:]) if opened else kind.shape
            kind = Tensor(dtype, shape, kind.tile)
        self._follow(
            widen_column(
                self.objects, self.dataset, name, kind, nullable=nullable or column.nullable
            )
        )

    def _follow(self, link: ObjectLink) -> None:
        """Columns are called and typed otherwise, rows are as they were."""
        schema = open_dataset(self.objects, link.digest).schema
        self._take(link, self.model.with_columns(schema.columns))

    @rule(everything=st.booleans(), aim=st.sampled_from([500, 1 << 20]))
    def compact(self, everything: bool, aim: int) -> None:
        link = compact_dataset(
            self.objects,
            self.dataset,
            everything=everything,
            target_bytes=aim,
            budget_bytes=self.budget_bytes,
            rng=self.rng,
        )
        self._take(link, self.model)

    # ---- branches

    def _fork(self) -> None:
        self.base: Version = (self.dataset, self.model)
        self.other: Version = self.base

    @rule()
    def switch(self) -> None:
        self.other, (self.dataset, self.model) = (self.dataset, self.model), self.other

    @precondition(lambda self: self.other[0].digest != self.base[0].digest)
    @rule()
    def merge(self) -> None:
        three = [self.base, (self.dataset, self.model), self.other]
        entries = [Entry(Kind.DATASET, dataset.digest) for dataset, _ in three]
        found = DatasetMergeDriver().merge(self.objects, "d", *entries, CONTEXT)
        expected = merge_versions(*(model.version() for _, model in three))
        if isinstance(expected, set):
            assert isinstance(found, Conflict), f"expected conflicts in {expected}"
            self._fork()
            return
        assert not isinstance(found, Conflict), found.reason
        self.dataset = open_dataset(self.objects, found.digest)
        ids = ids_of(self.dataset)
        columns = self.dataset.schema.columns
        assert {column.id: column for column in columns} == expected.columns
        texts = [f"{uid:016x}:{offset}" for uid, offset in ids]
        assert sorted(texts) == sorted(expected.rows)
        rows = tuple(expected.rows[text] for text in texts)
        self.model = Model(columns, tuple(ids), rows)
        self._fork()

    @rule(ours=VERBS, theirs=VERBS, places=PLACES, others=PLACES, seed=SEEDS)
    def part_and_merge(
        self, ours: str, theirs: str, places: list[int], others: list[int], seed: int
    ) -> None:
        """What takes several steps that chance seldom puts behind each other."""
        self._fork()
        self._do(ours, places, seed)
        self.diff()
        self.switch()
        self._do(theirs, others, seed + 1)
        self.diff()
        self.rows_are_those_of_the_model()
        if self.other[0].digest != self.base[0].digest:
            self.merge()

    def _do(self, verb: str, places: list[int], seed: int) -> None:
        match verb:
            case "append":
                self.append(2, seed)
            case "delete":
                self.delete(places, "numbers")
            case "update":
                self.update(places, "ids", "label", seed, single=False)
            case "patch":
                self.update(places[:2], "ids", "x", seed, single=True)
            case "upsert":
                self.upsert(places, 1, seed)
            case "add":
                self.add("abc"[seed % 3], KINDS[0], seed, with_values=bool(seed % 2))
            case "compact":
                self.compact(everything=bool(seed % 2), aim=500)

    @rule()
    def diff(self) -> None:
        """What changed since the fork leads from the rows of then to those of now."""
        (old, before), new = self.base, self.dataset
        names = {column.name: column.id for column in self.model.columns}
        shared = {column.id for column in before.columns} & set(names.values())
        rows = {
            each: {name: value for name, value in row.items() if name in shared}
            for each, row in zip(before.ids, before.rows, strict=True)
        }
        for change in row_changes(old, new, max_bytes=2000):
            for at, row_id in enumerate(change.ids.tolist()):
                if change.change == "deleted":
                    del rows[row_id]
                    continue
                assert change.new_rows is not None
                found = new[int(change.new_rows[at])]
                changed = dict(zip(change.columns, change.changed[at], strict=True))
                row = rows.setdefault(row_id, {})
                for name, column in names.items():
                    if column in shared and (change.change == "added" or changed[name]):
                        assert change.change == "added" or row[column] != plain(found[name])
                        row[column] = plain(found[name])
        expected = {
            each: {name: value for name, value in row.items() if name in shared}
            for each, row in zip(self.model.ids, self.model.rows, strict=True)
        }
        assert rows == expected

    # ---- what is seen

    @rule()
    def reopen(self) -> None:
        self.dataset = open_dataset(self.objects, self.dataset.digest)

    @rule(start=st.integers(-9, 40), stop=st.integers(-9, 40), step=st.sampled_from([1, 2, -1, -3]))
    def read_slices(self, start: int, stop: int, step: int) -> None:
        part = slice(start, stop, step)
        expected = list(self.model.rows)[part]
        for column in self.model.columns:
            found = self.dataset[column.name][part]
            assert len(found) == len(expected)
        assert [plain(each) for each in self._column("key", part)] == [
            row[self.model.column("key").id] for row in expected
        ]

    def _column(self, name: str, key: Any) -> Any:
        return self.dataset[name][key]

    @rule(places=st.lists(st.integers(-60, 60), max_size=6), name=NAMES)
    def read_rows(self, places: list[int], name: str) -> None:
        count = len(self.model.rows)
        chosen = [at for at in places if -count <= at < count]
        if not self._has(name):
            return
        column = self.model.column(name)
        found = self.dataset[name][chosen]
        masked = [None if np.ma.is_masked(each) else plain(each) for each in found]
        assert masked == [self.model.rows[at][column.id] for at in chosen]
        assert [plain(self.dataset[name][at]) for at in chosen] == masked

    @precondition(lambda self: len(self.model.rows))
    @rule(shuffle=st.sampled_from(["pages", "global", False]), size=st.integers(1, 9))
    def stream_all(self, shuffle: Any, size: int) -> None:
        with stream(
            self.dataset, batch_size=size, columns=["key"], shuffle=shuffle, prefetch=0
        ) as batches:
            keys = [int(key) for batch in batches for key in batch["key"]]
        expected = self.model.keys()
        assert (keys if shuffle is False else sorted(keys)) == (
            expected if shuffle is False else sorted(expected)
        )

    @rule()
    def read_by_the_specification(self) -> None:
        assert agrees(self.objects, self.dataset)

    @rule()
    def all_that_is_named_is_linked_and_statistics_bound_all_values(self) -> None:
        assert not unlinked(self.dataset)
        assert not unbounded(self.dataset)

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        assert len(self.dataset) == len(self.model.rows)
        assert rows_of(self.dataset, self.model) == list(self.model.rows)
        assert tuple(ids_of(self.dataset)) == self.model.ids
        assert self.dataset.schema.columns == self.model.columns

    @invariant()
    def statistics_bound_all_values(self) -> None:
        if not hasattr(self, "model"):
            return
        for column, known in zip(self.model.columns, self.dataset.root.statistics, strict=True):
            values = [row[column.id] for row in self.model.rows]
            there = [each for each in values if each is not None]
            assert known.nulls >= len(values) - len(there)
            if isinstance(column.type, Scalar) and there:
                dtype = column.storage.element.type
                assert known.min is not None
                assert known.max is not None
                assert known.min <= order_key(dtype(min(there)))
                assert order_key(dtype(max(there))) <= known.max

    @invariant()
    def ids_never_change_their_meaning(self) -> None:
        if hasattr(self, "model"):
            for row_id, key in zip(self.model.ids, self.model.keys(), strict=True):
                assert self.born.setdefault(row_id, key) == key


TestDataset = DatasetMachine.TestCase
TestDataset.settings = settings(max_examples=examples(2), suppress_health_check=list(HealthCheck))
