"""Search through datasets, selections and views, as somebody asks for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tensorrepo as tr

ROWS = 600
NAMES = ["red", "blue", "green"]


def vectors(count: int) -> Any:
    return np.random.default_rng(7).random((count, 6), np.float32)


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> tr.Repository:
    made = tr.init(tmp_path_factory.mktemp("store") / "store", author="Ada <ada@example.org>")
    columns = {
        "n": "int64",
        "kind": tr.ClassLabel(NAMES),
        "v": tr.Embedding("float32", 6),
        "caption": tr.Text(),
    }
    numbers = np.arange(ROWS)
    with made.transaction("main", message="first") as tx:
        tx.create_dataset("photos", columns=columns).append(
            {
                "n": numbers,
                "kind": numbers % 3,
                "v": vectors(ROWS),
                "caption": [f"a {NAMES[at % 3]} car no {at}" for at in numbers.tolist()],
            }
        )
    with made.transaction("main", message="changes") as tx:
        draft = tx.dataset("photos")
        draft.delete("n between 20 and 29")
        draft.update({"n": [7]}, {"v": np.full((1, 6), 9, np.float32), "caption": ["a boat"]})
    return made


@pytest.fixture(scope="module")
def ds(repo: tr.Repository) -> tr.Dataset:
    return repo.dataset("photos")


def test_rows_near_a_vector_come_with_their_columns(ds: tr.Dataset) -> None:
    found = ds.nearest("v", vectors(ROWS)[100], 3)
    assert found.rows[0] == 90
    assert found.distances[0] == 0.0
    assert (np.diff(found.distances) > 0).all()
    table = found.arrow()
    assert table.column_names == ["row_number", "row_id", "distance", "n", "kind", "caption"]
    assert table["n"].to_pylist() == ds["n"][found.rows].tolist()
    assert table["row_id"].to_pylist() == found.row_ids == ds.row_ids(found.rows)
    assert next(row["caption"] for row in found) == "a blue car no 100"
    assert pa.table(found).equals(table)
    assert found.df()["n"].tolist() == found.pl()["n"].to_list()


def test_deleted_rows_never_come_and_updated_ones_as_they_are_now(ds: tr.Dataset) -> None:
    every = ds.nearest("v", vectors(ROWS)[7], ROWS, columns=["n"])
    numbers = every.arrow()["n"].to_pylist()
    assert len(numbers) == ROWS - 10
    assert not set(numbers) & set(range(20, 30))
    assert numbers[-1] == 7  # which was nearest before it was updated
    assert ds.nearest("v", np.full(6, 9.0), 1, columns=["n"]).arrow()["n"].to_pylist() == [7]


def test_conditions_say_which_rows_are_compared(ds: tr.Dataset) -> None:
    found = ds.nearest("v", vectors(ROWS)[100], 5, where="kind == 'red' and n % 2 = 0")
    numbers = ds["n"][found.rows]
    assert (numbers % 6 == 0).all()
    expected = ds.filter("kind == 'red' and n % 2 = 0").nearest("v", vectors(ROWS)[100], 5)
    assert found.row_ids == expected.row_ids
    assert found.distances.tolist() == expected.distances.tolist()


def test_selections_and_views_are_searched_as_datasets_are(repo: tr.Repository) -> None:
    with repo.transaction("views", message="view") as tx:
        tx.create_view("reds", repo.dataset("photos").filter("kind == 'red'"))
    view = repo.view("reds", "views")
    found = view.nearest("v", vectors(ROWS)[100], 4)
    assert (view["n"][found.rows] % 3 == 0).all()
    some = repo.dataset("photos").select(["n", "v"], rows=slice(0, 10))
    assert some.nearest("v", vectors(ROWS)[3], 1).arrow()["n"].to_pylist() == [3]
    assert some.nearest("v", vectors(ROWS)[3], 100).arrow().num_rows == 10


def test_several_queries_are_told_apart(ds: tr.Dataset) -> None:
    found = ds.nearest("v", vectors(ROWS)[[3, 100, 3]], 2)
    assert found.queries.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.arrow()["query"].to_pylist() == [0, 0, 1, 1, 2, 2]
    assert found.rows[[0, 2, 4]].tolist() == [3, 90, 3]
    assert "query" not in ds.nearest("v", vectors(ROWS)[3], 2).arrow().column_names


def test_words_are_found(ds: tr.Dataset) -> None:
    found = ds.search("caption", "Boat", 5)
    assert found.arrow()["n"].to_pylist() == [7]
    assert found.scores[0] > 0
    many = ds.search("caption", "red car", 4, columns=["caption"])
    assert len(many) == 4
    assert all("red" in row["caption"] for row in many)
    assert many.arrow().column_names == ["row_number", "row_id", "score", "caption"]
    some = ds.search("caption", "car", 1000, where="kind == 'blue'")
    assert len(some) == len(ds.filter("kind == 'blue'")) - 1  # one is a boat


def test_an_answer_says_that_it_is_exact(ds: tr.Dataset) -> None:
    found = ds.nearest("v", vectors(ROWS)[3], 2, columns=["n"])
    told = "2 rows nearest in 'v' by l2, exact: all 590 rows compared, no index asked"
    assert repr(found) == f"<{told}>"
    assert str(found).splitlines()[0] == told
    assert "exact: all 590 rows" in found._repr_html_()
    assert "... and 30 more" in str(ds.search("caption", "car", 50))


def test_an_answer_without_rows_has_the_same_columns(ds: tr.Dataset) -> None:
    found, some = ds.search("caption", "absent"), ds.search("caption", "car", 2)
    assert len(found) == 0
    assert found.arrow().schema == some.arrow().schema
    assert list(found) == list(found.records()) == []
    assert str(found).splitlines()[0].startswith("0 rows that fit 'absent' in 'caption' by BM25")
    assert ds.nearest("v", np.zeros((0, 6))).arrow().num_rows == 0
    assert ds.nearest("v", np.zeros(6), where="n < 0").rows.tolist() == []


def test_records_are_as_people_are_shown_them(ds: tr.Dataset) -> None:
    (record,) = ds.nearest("v", vectors(ROWS)[100], 1, columns=["v", "kind"]).records()
    assert (record["row_number"], record["distance"], record["kind"]) == (90, 0.0, "blue")
    assert record["v"].tolist() == vectors(ROWS)[100].tolist()


def test_what_was_measured_has_its_name(ds: tr.Dataset) -> None:
    with pytest.raises(AttributeError, match=r"use \.scores"):
        _ = ds.search("caption", "car").distances
    with pytest.raises(AttributeError, match=r"use \.distances"):
        _ = ds.nearest("v", np.zeros(6)).scores


def test_columns_that_are_not_there_are_refused(ds: tr.Dataset) -> None:
    with pytest.raises(tr.NotFoundError):
        ds.nearest("v", np.zeros(6), columns=["m"])
    with pytest.raises(tr.NotFoundError):
        ds.search("captions", "car")


def test_a_column_called_as_the_distance_is_left_out(tmp_path: Any) -> None:
    repo = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    with repo.transaction() as tx:
        columns = {"distance": "int64", "v": tr.Embedding("float32", 2)}
        tx.create_dataset("d", columns=columns).append(
            {"distance": [1, 2], "v": np.eye(2, dtype=np.float32)}
        )
    ds = repo.dataset("d")
    with pytest.raises(tr.InvalidInputError, match="Name others with --columns"):
        ds.nearest("v", [1.0, 0.0])
    assert ds.nearest("v", [1.0, 0.0], columns=["v"]).rows.tolist() == [0, 1]
