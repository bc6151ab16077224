"""F16: the names that everybody types are there, or say what they are called here."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import tensorrepo as tr
from tests.support.processes.shell import Shell

COLUMNS = {"n": "int64", "name": tr.Text(), "label": tr.ClassLabel(("cat", "dog"))}


@pytest.fixture
def repo(full: Shell) -> tr.Repository:
    """The workspace's repository, with 40 people beside its points; tag v1 is before them."""
    repository = full.repository()
    numbers = np.arange(40)
    rows = {"n": numbers, "name": [f"p{at}" for at in numbers], "label": numbers % 2}
    with repository.transaction(message="People") as tx:
        tx.create_dataset("people", columns=COLUMNS).append(rows)
    return repository


@pytest.fixture
def people(repo: tr.Repository) -> tr.Dataset:
    return repo.dataset("people")


def test_columns_shape_and_schema(people: tr.Dataset) -> None:
    assert (people.columns, people.shape) == (["n", "name", "label"], (40, 3))
    assert people.schema["label"].type == COLUMNS["label"]
    assert ([*people.schema], len(people.schema)) == (["n", "name", "label"], 3)


def test_head_is_the_first_rows_and_shows_them(people: tr.Dataset) -> None:
    assert (people.head()["n"][:].tolist(), len(people.head(100))) == ([0, 1, 2, 3, 4], 40)
    assert repr(people.head(2)).splitlines()[1:] == [
        "n  name  label",
        "0  p0    cat",
        "1  p1    dog",
    ]


def test_frames_of_pandas_and_polars(people: tr.Dataset) -> None:
    frame = people.head(3).to_pandas()
    assert (frame["n"].tolist(), [*frame.columns]) == ([0, 1, 2], people.columns)
    assert people[["n"]].to_polars().shape == (40, 1)


def test_a_tensor_in_a_frame_is_an_array_in_each_cell(repo: tr.Repository) -> None:
    frame = repo.dataset("points").head(2).to_pandas()
    tensors = {name: frame[name][0] for name in frame if frame[name].dtype == object}
    assert {type(each) for each in tensors.values()} == {np.ndarray}


def test_columns_by_their_names_are_a_dataset(people: tr.Dataset) -> None:
    chosen = people[["label", "n"]]
    assert (chosen.columns, chosen[3]) == (["label", "n"], {"label": 1, "n": 3})
    with pytest.raises(tr.NotFoundError, match=r"no column 'nane'; there are 'n', 'name'"):
        people[["nane"]]


def test_select_and_filter_are_datasets_like_any_other(people: tr.Dataset, tmp_path: Path) -> None:
    dogs = people.select(["name", "n"], where="label == 'dog' and n > 10")
    assert (len(dogs), dogs[0], dogs[:2]["n"].tolist()) == (15, {"name": "p11", "n": 11}, [11, 13])
    assert people.filter(tr.col("name").like("p1%"))["n"][:].tolist() == [1, *range(10, 20)]
    (batch,) = dogs.stream(batch_size=100)
    assert (set(batch), sorted(batch["n"].tolist())) == ({"name", "n"}, [*range(11, 40, 2)])
    assert list(dogs.query("SELECT min(n) AS low FROM self")) == [{"low": 11}]
    tr.export(dogs, tmp_path / "dogs.csv")
    assert (tmp_path / "dogs.csv").read_text().splitlines()[:2] == ['"name","n"', '"p11",11']


def test_a_split_is_kept_as_views(repo: tr.Repository, people: tr.Dataset) -> None:
    parts = people.split({"train": 0.5, "test": 0.5}, by="name", seed=3)
    with repo.transaction() as tx:
        tx.create_view("train", parts["train"])
        tx.create_view("test", parts["test"])
    sides = [repo.view(name)["n"][:].tolist() for name in ("train", "test")]
    assert sorted(sides[0] + sides[1]) == [*range(40)]
    assert repo.view("train").sql == (
        'SELECT row_id FROM "datasets/people" WHERE split_share(name, 3) < 0.5'
    )


def test_what_there_is_in_a_repository(repo: tr.Repository) -> None:
    assert ([*repo.datasets()], [*repo.models()], [*repo.views()]) == (
        ["people", "points"], ["net"], [],
    )  # fmt: skip
    assert len(repo.datasets()["people"]) == 40
    assert repr(repo.datasets()) == "<2 datasets: people, points>"
    with pytest.raises(tr.NotFoundError, match=r"no datasets/peple.*Did you mean people"):
        repo.datasets()["peple"]


def test_an_empty_repository_has_none(tmp_path: Path) -> None:
    made = tr.init(tmp_path / "store")
    assert [*made.datasets(), *made.models(), *made.views()] == []


def test_a_repository_at_a_tag(repo: tr.Repository) -> None:
    old = repo.at("v1")
    assert ([*old.datasets()], [*old.models()]) == (["points"], ["net"])
    assert len(old.dataset("points")) == len(repo.dataset("points"))
    assert old.file("notes.txt") == b"line one\n"
    assert [*pickle.loads(pickle.dumps(old)).entries()] == [
        "datasets/points", "files/notes.txt", "models/net",
    ]  # fmt: skip
    with pytest.raises(tr.NotFoundError, match="people"):
        old.sql("SELECT * FROM people")
    with pytest.raises(AttributeError, match="a commit stays as it is"):
        old.transaction  # noqa: B018


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("num_rows", "len"),
        ("to_dict", "to_arrow"),
        ("train_test_split", "ds.split"),
        ("map", "ds.stream"),
        ("colums", "Did you mean columns"),
    ],
)
def test_a_word_of_another_library_says_what_it_is_called_here(
    word: str, told: str, people: tr.Dataset
) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{word}'.*{told}"):
        getattr(people, word)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("name", r"Columns: 'name' in ds\.columns; rows: len\(ds\.find"),
        ({"n": 1}, r"Columns: value in ds\.columns"),
    ],
)
def test_membership_in_a_dataset_reads_no_rows_and_says_what_to_ask(
    value: object, told: str, people: tr.Dataset
) -> None:
    with pytest.raises(TypeError, match=told):
        value in people.head(3)  # noqa: B015  what is asked


@pytest.mark.together
@pytest.mark.parametrize(
    ("handle", "word", "told"),
    [
        ("repo", "commit", "repo.transaction"),
        ("repo", "clone", "tr.clone"),
        ("repo", "versions", "repo.log"),
        ("model", "tensors", "model.keys"),
        ("model", "tensr", "Did you mean tensor"),
        ("result", "to_pandas", "result.df"),
    ],
)
def test_other_handles_know_other_words_too(
    repo: tr.Repository, handle: str, word: str, told: str
) -> None:
    handles = {"repo": repo, "model": repo.model("net"), "result": repo.sql("SELECT 1")}
    with pytest.raises(AttributeError, match=rf"no attribute '{word}'.*{told}"):
        getattr(handles[handle], word)


def test_a_diff_of_one_commit_is_against_main(repo: tr.Repository) -> None:
    assert [*repo.diff("v1").datasets] == ["datasets/people"]


def test_a_ref_of_a_repository_without_commits_says_so() -> None:
    with pytest.raises(tr.NotFoundError, match=r"no commit yet.*tensorrepo commit"):
        tr.init("memory://").resolve("main")


def test_a_run_given_as_a_model_or_half_of_a_ref_says_what_there_is() -> None:
    repo = tr.init("memory://runs-only", author="Ada <ada@example.org>")
    with repo.checkpointer("exp") as checkpointer:
        checkpointer.save(1, {"w": np.zeros(2, np.float32)})
    call = re.escape(
        "runs/exp/1 is a ref, not the name of a model: `repo.model('state', ref='runs/exp/1')`"
    )
    with pytest.raises(tr.NotFoundError, match=call):
        repo.model("runs/exp/1")
    repo.model("state", ref="runs/exp/1")
    for ref in ("runs/exp", "main"):
        with pytest.raises(tr.NotFoundError, match=rf"no branch.* '{ref}'.* runs/exp/1.*"):
            repo.entries(ref)
    with repo.transaction(message="People") as tx:
        tx.create_dataset("people", columns=COLUMNS)
    with pytest.raises(tr.NotFoundError, match=call):
        repo.model("runs/exp/1")
    with pytest.raises(tr.NotFoundError, match="Did you mean runs/exp/1"):
        repo.entries("runs/exp/2")
