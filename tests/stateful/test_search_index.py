"""Answers by indexes against those of every row, while rows come, change, go and come back.

The machine of values starts no process and runs often: what an index knows of a version is the same
for all kinds. That of vectors and words runs a few times.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import tensorrepo as tr
from tensorrepo.formats.search_index import indexed_nearest, indexed_values, sorted_values
from tensorrepo.repo.changes.fsck import ObjectTotals
from tensorrepo.verbs.fsck import fsck
from tests.support.effort import examples, soaking

DIM = 2
STEPS = 20 if soaking() else 5  # by indexes of vectors and words; each asks both and every row
WORDS = ["red", "blue", "car", "boat", "tree", ""]
VECTORS = st.lists(st.integers(-4, 4), min_size=DIM, max_size=DIM)
TEXTS = st.one_of(st.none(), st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join))
MANY = st.lists(st.tuples(VECTORS, TEXTS), min_size=12, max_size=20)
FEW = st.lists(st.tuples(st.one_of(st.none(), VECTORS), TEXTS), min_size=1, max_size=3)
QUERIES = [[0, 0], [3, -4], [-4, 2]]
VALUE_CONDITIONS = [
    (tr.col("n") >= -1) & (tr.col("n") < 2),
    (tr.col("n") == 3) | (tr.col("t") == "red car"),
    tr.col("t").like("blue%") & (tr.col("n") != 0),
    tr.col("n").isin([-4, 4]),
]
NUMBERS = st.lists(st.integers(0, 1 << 10), min_size=1, max_size=3)


class IndexedMachine(RuleBasedStateMachine):
    """A dataset with indexes of some columns, whose rows change."""

    columns: dict[str, Any]
    fresh = False

    @initialize(rows=MANY)
    def begin(self, rows: Any) -> None:
        self.repo = self.made()
        with self.repo.transaction(message="begin") as tx:
            tx.create_dataset("d", columns=self.columns).append(self.batch(rows))
        self.commits = [tx.commit.digest]
        self.index()

    def made(self) -> Any:
        return tr.init(f"memory://{uuid4()}", author="Ada <ada@example.org>")

    @rule(rows=FEW)
    def append(self, rows: Any) -> None:
        self._change(lambda draft: draft.append(self.batch(rows)))

    @rule(rows=FEW, numbers=NUMBERS)
    def update(self, rows: Any, numbers: list[int]) -> None:
        def change(draft: Any) -> None:
            chosen = sorted({number % len(draft.stored) for number in numbers})[: len(rows)]
            draft.update(chosen, self.batch(rows[: len(chosen)]))

        if len(self.dataset):
            self._change(change)

    @rule(numbers=NUMBERS)
    def delete(self, numbers: list[int]) -> None:
        def change(draft: Any) -> None:
            draft.delete(sorted({number % len(draft.stored) for number in numbers}))

        if len(self.dataset):
            self._change(change)

    @rule()
    def compact(self) -> None:
        self._change(lambda draft: draft.compact(everything=True))

    @rule(at=st.integers(0, 1 << 10))
    def go_back(self, at: int) -> None:
        """The dataset is what it was: its rows, some of them deleted since, are there again."""
        with self.repo.transaction(message="back") as tx:
            tx.restore("datasets/d", self.commits[at % len(self.commits)])
        self._note(tx)

    @rule()
    def index(self) -> None:
        with self.repo.transaction(message="index") as tx:
            for column in self.columns:
                report = tx.create_index("d", column)
                assert report.indexed <= len(self.dataset)
        self._note(tx)

    @rule(rows=FEW, numbers=NUMBERS)
    def update_and_index(self, rows: Any, numbers: list[int]) -> None:
        """A row stands in two segments, of which the later one counts."""
        self.update(rows, numbers)
        self.index()

    @property
    def dataset(self) -> Any:
        return self.repo.dataset("d")

    def _change(self, change: Any) -> None:
        with self.repo.transaction(message="change") as tx:
            change(tx.dataset("d"))
        self._note(tx)

    def _note(self, tx: Any) -> None:
        self.fresh = any(each.startswith("indexes/") for each in tx.core.staged)
        if tx.commit is not None:
            self.commits.append(tx.commit.digest)

    def batch(self, rows: Any) -> Any:
        values = {"v": [vector for vector, _ in rows], "t": [text for _, text in rows]}
        if not any(values["v"]):  # nulls alone do not say their shape
            values["v"][0] = [0] * DIM
        values["n"] = [None if vector is None else vector[0] for vector, _ in rows]
        return {name: values[name] for name in self.columns}


class ValueMachine(IndexedMachine):
    """Every comparison is looked up, so that what an index leaves out is a fault."""

    columns = {  # noqa: RUF012
        "n": tr.Column("n", "int8", nullable=True),
        "t": tr.Column("t", tr.Text(), nullable=True),
    }

    @rule()
    def index(self) -> None:
        with self.repo.transaction(message="index") as tx:
            for column in self.columns:
                report = tx.create_index("d", column, kind="btree")
                assert report.indexed <= len(self.dataset)
        self._note(tx)

    @invariant()
    def every_answer_is_that_of_a_scan(self) -> None:
        whole = self.dataset
        for asked in (whole, whole.select(rows=slice(0, None, 2))):
            for where in VALUE_CONDITIONS:
                assert asked.find(where).tolist() == asked.find(where, exact=True).tolist()

    def teardown(self) -> None:
        if hasattr(self, "repo"):
            assert not [*fsck(self.repo.context.core, ObjectTotals(), deep=True)]


class SearchMachine(IndexedMachine):
    """Every part of each index is looked into, so that what it misses is a fault."""

    columns = {  # noqa: RUF012
        "v": tr.Column("v", tr.Embedding("float32", DIM), nullable=True),
        "t": tr.Column("t", tr.Text(), nullable=True),
    }

    def made(self) -> Any:
        self.folder = tempfile.TemporaryDirectory()
        return tr.init(Path(self.folder.name) / "r", author="Ada <ada@example.org>")

    @invariant()
    def every_answer_is_that_of_a_search_of_every_row(self) -> None:
        whole = self.dataset
        for asked in (whole, whole.select(rows=slice(0, None, 2))):
            self._nearest(asked)
            self._search(asked)
        if self.fresh:
            assert "does not know" not in whole.search("t", "red", 1).told

    def _nearest(self, asked: Any) -> None:
        for query, k in ((QUERIES, 1), (QUERIES, 4)):
            found = asked.nearest("v", query, k)
            exact = asked.nearest("v", query, k, exact=True)
            assert found.distances.tolist() == exact.distances.tolist()
            assert "by an index" in found.told or "too few rows" in found.told

    def _search(self, asked: Any) -> None:
        for words in ("red", "blue car", "boat tree red"):
            found = asked.search("t", words, 5)
            exact = asked.search("t", words, 5, exact=True)
            assert found.rows.tolist() == exact.rows.tolist()
            assert found.scores.tolist() == exact.scores.tolist()

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


def test_search_by_an_index_never_answers_with_what_was(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lance", reason="these indexes are made by pylance")
    monkeypatch.setattr(indexed_nearest, "EXACT_BYTES", -1)
    monkeypatch.setattr(indexed_nearest, "MOST_SHARE", 1e9)
    monkeypatch.setattr(indexed_nearest, "REFINE", 1)  # no candidate too many
    run_state_machine_as_test(
        SearchMachine, settings=settings(max_examples=examples(1), stateful_step_count=STEPS)
    )


def test_an_index_of_values_never_leaves_out_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexed_values, "LEAST_ROWS", 0)
    monkeypatch.setattr(indexed_values, "MOST_SHARE", 1e9)
    monkeypatch.setattr(indexed_values, "MOST_READ_SHARE", 1e9)
    monkeypatch.setattr(sorted_values, "BLOCK_ROWS", 4)
    run_state_machine_as_test(
        ValueMachine, settings=settings(max_examples=examples(2), stateful_step_count=10)
    )
