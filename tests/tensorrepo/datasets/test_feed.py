"""The change feed of a dataset: its steps lead from one version to the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorrepo as tr

ANN = "Ann <ann@example.org>"


def rows_of(repo: tr.Repository, ref: str = "main") -> dict[str, Any]:
    """Rows of a dataset by their ids."""
    ds = repo.dataset("t", ref=ref)
    return dict(zip(ds.row_ids(), ds, strict=True))


def replayed(feed: Any, rows: dict[str, Any]) -> dict[str, Any]:
    """What the rows become by the changes of a feed, each of which fits what was there."""
    rows = dict(rows)
    for row in feed:
        assert rows.get(row.row_id) == row.before
        if row.after is None:
            del rows[row.row_id]
        else:
            rows[row.row_id] = row.after
    return rows


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    made = tr.init(tmp_path / "store", author=ANN)
    with made.transaction(message="made") as tx:
        tx.create_dataset("t", {"x": np.arange(10), "y": [f"{at}" for at in range(10)]})
    made.create_tag("v1")
    with made.transaction(message="changed") as tx:
        tx.dataset("t").update("x == 3", {"y": "three"}).delete("x == 7")
    with made.transaction(message="elsewhere") as tx:
        tx.save_file("notes.txt", b"n")
    with made.transaction(message="more") as tx:
        tx.dataset("t").append({"x": [10], "y": ["ten"]})
    return made


def test_rows_come_with_both_sides_and_the_commit_of_each(repo: tr.Repository) -> None:
    feed = repo.dataset("t").changes(since="v1")
    by_message = {each.digest: each.commit.message for each in repo.log()}
    found = [(by_message[row.commit], row.change, row.before, row.after) for row in feed]
    assert found == [
        ("changed", "updated", {"x": 3, "y": "3"}, {"x": 3, "y": "three"}),
        ("changed", "deleted", {"x": 7, "y": "7"}, None),
        ("more", "inserted", None, {"x": 10, "y": "ten"}),
    ]
    assert [row.changed for row in feed] == [("y",), (), ()]


def test_the_beginning_is_all_rows_of_the_first_commit(repo: tr.Repository) -> None:
    feed = repo.dataset("t").changes()
    assert [step.commit.message for step in feed.commits()] == ["made", "changed", "more"]
    assert replayed(feed, {}) == rows_of(repo)
    assert "changed" in str(feed.to_table())


def test_it_goes_on_behind_the_commit_that_was_worked_off(repo: tr.Repository) -> None:
    first = next(repo.dataset("t").changes(since="v1").commits())
    rest = list(repo.dataset("t").changes(since=first.digest))
    assert [row.change for row in rest] == ["inserted"]
    assert list(repo.dataset("t").changes(since=rest[-1].commit)) == []


def test_batches_are_arrow_with_the_commit(repo: tr.Repository) -> None:
    batches = list(repo.dataset("t").changes(since="v1", columns=["y"]).batches())
    table = pa.Table.from_batches(batches)
    assert table.column_names[:3] == ["commit", "change", "row_id"]
    assert table["change"].to_pylist() == ["updated", "deleted", "inserted"]
    assert table["new"].to_pylist() == [{"y": "three"}, None, {"y": "ten"}]


def test_a_merge_is_a_step_of_what_it_brought(repo: tr.Repository) -> None:
    repo.create_branch("side", "v1")
    with repo.transaction("side", message="side") as tx:
        tx.dataset("t").append({"x": [77], "y": ["side"]})
    repo.merge("side")
    steps = list(repo.dataset("t").changes(since="v1").commits())
    assert [each.commit.message for each in steps] == ["changed", "more", "Merge side into main"]
    assert [row.after for row in steps[-1].rows()] == [{"x": 77, "y": "side"}]


def test_a_commit_beside_the_way_is_taken_back_first(repo: tr.Repository) -> None:
    left = repo.resolve("main").digest
    before = rows_of(repo)
    repo.undo()
    with repo.transaction(message="other") as tx:
        tx.dataset("t").append({"x": [99], "y": ["other"]})
    feed = repo.dataset("t").changes(since=left)
    assert [row.change for row in feed] == ["deleted", "inserted"]
    assert replayed(feed, before) == rows_of(repo)


def test_a_dataset_that_went_and_came_again_changes_all_its_rows(repo: tr.Repository) -> None:
    with repo.transaction() as tx:
        tx.remove("datasets/t")
    with repo.transaction() as tx:
        tx.create_dataset("t", {"z": [1]})
    feed = repo.dataset("t").changes(since="v1")
    assert [row.change for row in feed].count("deleted") == 11
    assert replayed(feed, rows_of(repo, "v1")) == rows_of(repo)


def test_compaction_is_no_change_of_rows(repo: tr.Repository) -> None:
    before = repo.resolve("main").digest
    with repo.transaction() as tx:
        tx.dataset("t").compact(everything=True)
    (step,) = repo.dataset("t").changes(since=before).commits()
    assert list(step.rows()) == []


def test_history_that_was_given_up_is_told(repo: tr.Repository) -> None:
    repo.expire("main", "1")
    with pytest.raises(tr.CommitExpired, match="Begin anew"):
        repo.dataset("t").changes(since="v1")
    assert replayed(repo.dataset("t").changes(), {}) == rows_of(repo)


def test_some_rows_of_a_dataset_have_no_feed(repo: tr.Repository) -> None:
    with pytest.raises(tr.InvalidInputError, match="ask datasets/t"):
        repo.dataset("t").filter("x == 1").changes()


_EDITS = st.lists(
    st.tuples(st.sampled_from(["append", "update", "delete", "compact"]), st.integers(0, 9)),
    min_size=1,
    max_size=4,
)


@given(st.lists(_EDITS, min_size=1, max_size=4), st.integers(0, 4))
def test_the_steps_of_any_history_lead_to_its_end(
    commits: list[list[tuple[str, int]]], start: int
) -> None:
    repo = tr.init(f"memory://{uuid4()}", author=ANN)
    with repo.transaction() as tx:
        tx.create_dataset("t", {"x": np.arange(5), "y": np.zeros(5, "i8")})
    points = [repo.resolve("main").digest]
    for number, edits in enumerate(commits):
        with repo.transaction() as tx:
            draft = tx.dataset("t")
            for edit, value in edits:
                if edit == "append":
                    draft.append({"x": [value], "y": [number]})
                elif edit == "update":
                    draft.update(f"x == {value}", {"y": number + 1})
                elif edit == "delete":
                    draft.delete(f"x == {value}")
                else:
                    draft.compact(everything=True)
        points.append(repo.resolve("main").digest)
    since = points[min(start, len(points) - 1)]
    feed = repo.dataset("t").changes(since=since)
    assert replayed(feed, rows_of(repo, since)) == rows_of(repo)
