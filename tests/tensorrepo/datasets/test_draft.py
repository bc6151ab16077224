"""Changing a dataset in a transaction, through the SDK."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tensorrepo as tr
from tensorrepo.formats.dataset.read import column_index

COLUMNS = {
    "name": tr.Text(),
    "label": tr.ClassLabel(("cat", "dog")),
    "point": tr.Tensor("f4", (2,)),
}


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    made = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    with made.transaction(message="ten rows") as tx:
        tx.create_dataset("pets", columns=COLUMNS).append(
            {
                "name": [f"n{at}" for at in range(10)],
                "label": np.arange(10) % 2,
                "point": np.zeros((10, 2), "f4"),
            }
        )
    return made


def _rows(repo: tr.Repository, *columns: str) -> list[Any]:
    rows = repo.dataset("pets").to_arrow(columns).to_pylist()
    return [tuple(row.values()) if len(columns) > 1 else row[columns[0]] for row in rows]


def test_verbs_are_chained_and_commit_once(repo: tr.Repository) -> None:
    with repo.transaction(message="all of it") as tx:
        pets = tx.dataset("pets")
        pets.delete("name == 'n0'").update(tr.col("label") == 1, {"name": "dog"})
        pets.rename_column("name", "called").add_column("age", "int8", default=3)
        pets.upsert([{"called": "n2", "age": 7}], key="called").widen_column("age", "int32")
        pets.drop_column("point").set_properties(source="shelter").compact("1MB")
        assert len(pets) == pets.rows == 9
        assert pets.schema.names == ("called", "label", "age")
    rows = repo.dataset("pets").to_arrow().to_pylist()
    assert rows[0] == {"called": "dog", "label": 1, "age": 3}
    assert rows[1] == {"called": "n2", "label": 0, "age": 7}
    assert len(repo.log()) == 2
    assert repo.dataset("pets").stored.root.properties == {"source": "shelter"}


@pytest.mark.parametrize(("size", "pages"), [(800, 10), ("8KiB", 1), (None, 1)])
def test_rows_are_appended_in_pages_of_a_size(
    repo: tr.Repository, size: int | str | None, pages: int
) -> None:
    with repo.transaction() as tx:
        draft = tx.create_dataset("numbers", columns={"n": "int64"})
        draft.append({"n": np.arange(1000)}, page_bytes=size)
    assert column_index(repo.dataset("numbers").stored, "n").pages == pages


@pytest.mark.parametrize("size", [0, -1, "many"])
def test_a_page_size_that_is_none_is_refused(repo: tr.Repository, size: int | str) -> None:
    with repo.transaction() as tx, pytest.raises(tr.InvalidInputError):
        tx.dataset("pets").append([{"name": "a", "label": 0, "point": [0, 0]}], page_bytes=size)


def test_older_versions_stay_what_they_were(repo: tr.Repository) -> None:
    before = repo.dataset("pets")
    with repo.transaction() as tx:
        tx.dataset("pets").delete(slice(None)).drop_column("label")
    assert len(repo.dataset("pets")) == 0
    assert before["name"][3] == "n3"
    assert repo.dataset("pets", "main~1")["label"][9] == 1


def test_nothing_is_committed_from_a_change_that_fails(repo: tr.Repository) -> None:
    head = repo.branches()["main"]
    with pytest.raises(tr.InvalidInputError, match="column 'label'"), repo.transaction() as tx:
        tx.dataset("pets").delete([0, 1]).update(slice(None), {"label": 9})
    assert repo.branches()["main"] == head
    assert len(repo.dataset("pets")) == 10


def test_a_verb_that_fails_leaves_what_came_before_it(repo: tr.Repository) -> None:
    with repo.transaction() as tx:
        pets = tx.dataset("pets").delete([0])
        with pytest.raises(tr.InvalidInputError):
            pets.append([{"name": 3, "label": "cat", "point": [0, 0]}])
        assert len(pets) == 9
    assert len(repo.dataset("pets")) == 9


def test_an_interrupted_function_leaves_the_old_version(repo: tr.Repository) -> None:
    def interrupted(_: pa.RecordBatch) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), repo.transaction() as tx:
        tx.dataset("pets").add_column("x", "int8", interrupted)
    assert "x" not in repo.dataset("pets").schema


def test_a_change_that_changes_nothing_makes_no_commit(repo: tr.Repository) -> None:
    with repo.transaction() as tx:
        tx.dataset("pets").update("name == 'n3'", {"label": "dog"}).delete("name == 'nobody'")
    assert tx.commit is None


def test_embeddings_are_computed_from_other_columns(repo: tr.Repository) -> None:
    def embed(batch: pa.RecordBatch) -> Any:
        return np.stack([np.full(4, len(name), "f4") for name in batch["name"].to_pylist()])

    with repo.transaction() as tx:
        tx.dataset("pets").add_column("e", tr.Embedding("float32", 4), embed, columns=["name"])
    assert repo.dataset("pets")["e"][:].shape == (10, 4)


def test_rows_are_found_by_predicate_and_by_id(repo: tr.Repository) -> None:
    pets = repo.dataset("pets")
    assert pets.find("label == 'dog' and name != 'n1'").tolist() == [3, 5, 7, 9]
    ids = pets.row_ids([3, 9])
    with repo.transaction() as tx:
        tx.dataset("pets").delete(range(3)).compact("1MB")
    now = repo.dataset("pets")
    assert now.rows_by_id(ids).tolist() == [0, 6]
    assert now["name"][now.rows_by_id(ids)] == ["n3", "n9"]
    assert now.rows_by_id(pets.row_ids([0])).tolist() == [-1]


SQL_CONDITION = "label = 'dog' and (row_number % 4 = 1 or length(name) > 5)"


def test_conditions_that_no_expression_says_are_answered_by_sql(repo: tr.Repository) -> None:
    pets = repo.dataset("pets")
    assert pets.find(SQL_CONDITION).tolist() == [1, 5, 9]
    (batch,) = pets.stream(batch_size=9, sampling=tr.Sampling(where=SQL_CONDITION))
    assert sorted(batch.rows) == [1, 5, 9]
    with repo.transaction(message="by SQL") as tx:
        draft = tx.dataset("pets").update(SQL_CONDITION, {"name": ["a", "b", "c"]})
        draft.delete("name in ('b', 'n0') or point[1] > 1")
        draft.update_sql({"name": "name || '!'"}, where="label == 'cat' and `name` <> \"n2\"")
        draft.update_sql({"name": "upper(name)"}, where=tr.col("name") == "a")
    assert _rows(repo, "name") == ["A", "n2", "n3", "n4!", "n6!", "n7", "n8!", "c"]


@pytest.mark.parametrize(
    "condition", ["length(name)", "1", "select 1", "length(name) - 2", "'true'"]
)
def test_what_is_neither_true_nor_false_is_no_condition(
    repo: tr.Repository, condition: str
) -> None:
    with repo.transaction() as tx:
        draft = tx.dataset("pets")
        for change in (
            lambda: draft.delete(condition),
            lambda: draft.update_sql({"label": "label"}, condition),
            lambda: len(repo.dataset("pets").filter(condition)),
        ):
            with pytest.raises(tr.InvalidInputError, match="expected true or false for each row"):
                change()
        assert draft.rows == 10


def test_a_column_called_row_number_is_no_number_of_rows(repo: tr.Repository) -> None:
    with repo.transaction(message="a name that is taken") as tx:
        draft = tx.dataset("pets").add_column("Row_Number", "int8", default=3)
        with pytest.raises(tr.UnsupportedError, match="rename the column"):
            draft.delete("length(name) > 1")


def test_rows_that_do_not_fit_are_passed_over_and_told_of(repo: tr.Repository) -> None:
    good, bad = (
        {"name": "x", "label": "cat", "point": [1, 2]},
        {"name": 7, "label": 0, "point": [1, 2]},
    )
    with repo.transaction() as tx:
        pets = tx.dataset("pets").append([good, bad, good], on_error="skip")
        assert (pets.misfits.skipped, len(pets)) == (1, 12)


def test_appends_of_others_are_kept_beside_ones_own(repo: tr.Repository) -> None:
    row = {"name": ["new"], "label": [0], "point": np.zeros((1, 2), "f4")}
    with repo.transaction() as mine:
        mine.dataset("pets").append(row)
        with repo.transaction() as theirs:
            theirs.dataset("pets").append(row)
    assert _rows(repo, "name")[8:] == ["n8", "n9", "new", "new"]
