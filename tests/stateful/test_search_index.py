"""Search by indexes against a search of every row, while rows come, change, go and come back."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import tensorrepo as tr
from tensorrepo.formats.search_index import indexed_nearest
from tests.support.effort import examples

pytest.importorskip("lance", reason="indexes are made by pylance")

DIM = 2
WORDS = ["red", "blue", "car", "boat", "tree", ""]
VECTORS = st.lists(st.integers(-4, 4), min_size=DIM, max_size=DIM)
TEXTS = st.one_of(st.none(), st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join))
ROWS = st.lists(st.tuples(st.one_of(st.none(), VECTORS), TEXTS), min_size=1, max_size=12)
NUMBERS = st.lists(st.integers(0, 1 << 10), min_size=1, max_size=6)


class SearchMachine(RuleBasedStateMachine):
    """Every part of each index is looked into, so that what it misses is a fault."""

    @initialize(rows=ROWS)
    def begin(self, rows: Any) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.repo = tr.init(Path(self.folder.name) / "r", author="Ada <ada@example.org>")
        columns = {
            "v": tr.Column("v", tr.Embedding("float32", DIM), nullable=True),
            "t": tr.Column("t", tr.Text(), nullable=True),
        }
        with self.repo.transaction(message="begin") as tx:
            tx.create_dataset("d", columns=columns).append(batch(rows))
        self.commits = [tx.commit.digest]
        self.indexed = False

    @rule(rows=ROWS)
    def append(self, rows: Any) -> None:
        self._change(lambda draft: draft.append(batch(rows)))

    @rule(rows=ROWS, numbers=NUMBERS)
    def update(self, rows: Any, numbers: list[int]) -> None:
        def change(draft: Any) -> None:
            chosen = sorted({number % len(draft.stored) for number in numbers})[: len(rows)]
            draft.update(chosen, batch(rows[: len(chosen)]))

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
            for column in ("v", "t"):
                report = tx.create_index("d", column)
                assert report.indexed <= len(self.dataset)
        self._note(tx)
        self.indexed = True

    @precondition(lambda self: self.indexed)
    @rule(query=VECTORS, k=st.integers(1, 8), few=st.booleans())
    def nearest(self, query: list[int], k: int, few: bool) -> None:
        asked = self.dataset.select(rows=slice(0, None, 2)) if few else self.dataset
        found = asked.nearest("v", query, k)
        expected = asked.nearest("v", query, k, exact=True)
        assert found.distances.tolist() == expected.distances.tolist()
        assert "by an index" in found.told or "too few rows" in found.told

    @precondition(lambda self: self.indexed)
    @rule(words=st.lists(st.sampled_from(WORDS[:-1]), min_size=1, max_size=3), few=st.booleans())
    def search(self, words: list[str], few: bool) -> None:
        asked = self.dataset.select(rows=slice(0, None, 2)) if few else self.dataset
        found = asked.search("t", " ".join(words), 5)
        expected = asked.search("t", " ".join(words), 5, exact=True)
        assert found.rows.tolist() == expected.rows.tolist()
        assert found.scores.tolist() == expected.scores.tolist()

    @invariant()
    def an_index_that_was_just_made_knows_every_row(self) -> None:
        if self.indexed and self.fresh:
            found = self.dataset.nearest("v", [0] * DIM, 1)
            assert "does not know" not in found.told

    @property
    def dataset(self) -> Any:
        return self.repo.dataset("d")

    fresh = False

    def _change(self, change: Any) -> None:
        with self.repo.transaction(message="change") as tx:
            change(tx.dataset("d"))
        self._note(tx)

    def _note(self, tx: Any) -> None:
        self.fresh = "indexes/d/v" in tx.core.staged
        if tx.commit is not None:
            self.commits.append(tx.commit.digest)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


def batch(rows: Any) -> Any:
    vectors = [vector for vector, _ in rows]
    if not any(vectors):  # nulls alone do not say their shape
        vectors[0] = [0] * DIM
    return {"v": vectors, "t": [text for _, text in rows]}


def test_search_by_an_index_never_answers_with_what_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexed_nearest, "EXACT_BYTES", -1)
    monkeypatch.setattr(indexed_nearest, "MOST_SHARE", 1e9)
    run_state_machine_as_test(
        SearchMachine, settings=settings(max_examples=examples(6), stateful_step_count=15)
    )
