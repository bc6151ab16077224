"""Search, as somebody types it."""

from __future__ import annotations

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.formats.search_index.stored_index import open_index
from tensorrepo.repo.objects.incarnations import object_key
from tests.support.processes.shell import Shell

VECTORS = np.array([[0, 0], [1, 0], [0, 3], [5, 5]], np.float32)
CAPTIONS = ["a red car", "a blue car", "a tree", "the sea"]


@pytest.fixture
def photos(shell: Shell) -> Shell:
    """A workspace with a dataset of four rows, a view of two of them, and a file."""
    repo = shell.repository()
    columns = {"v": tr.Embedding("float32", 2), "caption": tr.Text()}
    with repo.transaction("main", message="photos") as tx:
        draft = tx.create_dataset("photos", columns=columns)
        draft.append({"v": VECTORS, "caption": CAPTIONS})
        tx.save_file("notes.txt", b"x")
    with repo.transaction("main", message="view") as tx:
        tx.create_view("cars", repo.dataset("photos").filter("caption like '%car'"))
    return shell


def test_words_are_found_and_how_is_said(photos: Shell) -> None:
    done = photos.run("search", "photos", "caption", "--text", "red car", "--columns", "caption")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["row_number", "0", "1"]
    assert "a red car" in done.stdout
    assert "exact: all 4 rows compared, no index asked" in done.stderr


def test_rows_near_a_row_come_without_it(photos: Shell) -> None:
    found = photos.records("search", "photos", "v", "--like", "0", "-k", "2")
    assert [row["row_number"] for row in found] == [1, 2]
    assert [row["distance"] for row in found] == [1.0, 3.0]
    by_id = photos.repository().dataset("photos").row_ids([0])[0]
    again = photos.records("search", "photos", "v", "--like", by_id, "-k", "2")
    assert again == found
    assert "v" not in found[0]


def test_a_file_has_the_vector_or_several(photos: Shell) -> None:
    np.save(photos.folder / "q.npy", np.array([0, 2.9]))
    (row,) = photos.records("search", "photos", "v", "--vector", "q.npy", "--k", "1")
    assert (row["caption"], row["row_number"]) == ("a tree", 2)
    np.save(photos.folder / "several.npy", VECTORS[[3, 1]])
    words = ("--vector", "several.npy", "-k", "1", "--distance", "l2")
    found = photos.records("search", "photos", "v", *words)
    assert [(row["query"], row["row_number"]) for row in found] == [(0, 3), (1, 1)]


def test_conditions_metrics_refs_and_views_are_as_elsewhere(photos: Shell) -> None:
    words = ("v", "--like", "3", "--distance", "cosine", "--where", "caption != 'a tree'")
    assert [row["row_number"] for row in photos.records("search", "main:photos", *words)] == [1]
    cars = photos.records("search", "views/cars", "caption", "--text", "a")
    assert [row["caption"] for row in cars] == ["a red car", "a blue car"]


@pytest.mark.together
@pytest.mark.parametrize(
    ("code", "words", "told"),
    [
        (2, ("photos", "v"), "one of --text, --vector and --like"),
        (2, ("photos", "v", "--like", "0", "--text", "a"), "one of --text"),
        (2, ("photos", "v", "--distance", "dot", "--text", "a"), "--distance is of vectors"),
        (2, ("photos", "v", "--like", "0", "--distance", "x"), "metric is 'l2'"),
        (2, ("photos", "v", "--vector", "missing.npy"), "no array of numpy can be read"),
        (2, ("photos", "v", "--vector", "points.npz"), "no array of numpy can be read"),
        (3, ("photos", "v", "--like", "4"), "no row 4: datasets/photos has 4 rows"),
        (3, ("photos", "v", "--like", "0123456789abcdef:9"), "no row of this id"),
        (2, ("photos", "caption", "--like", "0"), "no vector in column 'caption'"),
        (2, ("photos", "v", "--text", "a"), "looks for words in columns of Text"),
        (3, ("photos", "w", "--text", "a"), "'w'"),
        (2, ("files/notes.txt", "v", "--text", "a"), "which has no rows"),
    ],
)
def test_what_cannot_be_searched_is_refused(
    photos: Shell, code: int, words: tuple[str, ...], told: str
) -> None:
    assert told in " ".join(photos.fails(code, "search", *words).split())


def test_a_pickle_in_a_file_is_not_opened(photos: Shell) -> None:
    np.save(photos.folder / "q.npy", np.array([{}], object), allow_pickle=True)
    told = photos.fails(2, "search", "photos", "v", "--vector", "q.npy")
    assert "no array of numpy can be read" in told


def test_two_columns_rank_together(photos: Shell) -> None:
    found = photos.records("search", "photos", "caption,v", "--text", "red car", "--like", "3")
    assert next(iter(found))["row_number"] in (0, 1)
    assert 3 not in [row["row_number"] for row in found]
    done = photos.run("search", "photos", "v,caption", "--text", "sea", "--like", "0")
    assert "by reciprocal rank" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("caption,v", "--text", "red"), "two columns"),
        (("caption,v", "--like", "0"), "two columns"),
        (("caption,caption", "--text", "red", "--like", "0"), "one column of text and one"),
        (("caption", "--text", "red", "--like", "0"), "one of --text, --vector and --like"),
    ],
)
def test_columns_and_what_is_looked_for_must_fit(
    photos: Shell, words: tuple[str, ...], message: str
) -> None:
    assert message in photos.fails(2, "search", "photos", *words)


def test_an_index_is_made_listed_used_and_goes_with_its_dataset(photos: Shell) -> None:
    pytest.importorskip("lance")
    out = photos("index", "create", "photos", "caption")
    assert "staged indexes/photos/caption (4 rows indexed of 4" in out
    photos("commit", "-m", "index")
    assert "up to date (4 rows)" in photos("index", "create", "photos", "caption")
    (row,) = photos.records("index", "ls")
    assert (row["path"], row["index"], row["rows"]) == ("indexes/photos/caption", "text", 4)
    told = photos.run("search", "photos", "caption", "--text", "red car").stderr
    assert "by an index (4 rows), scores exact" in told
    told = photos.run("search", "photos", "caption", "--text", "red car", "--exact").stderr
    assert "no index asked" in told
    assert "search index" in photos("show", "HEAD:indexes/photos/caption")
    photos("mv", "photos", "pictures")
    photos("commit", "-m", "moved")
    assert [row["path"] for row in photos.records("index", "ls")] == ["indexes/pictures/caption"]
    photos("rm", "pictures")
    photos("commit", "-m", "gone")
    assert photos.records("index", "ls") == []


@pytest.mark.parametrize(
    ("exit_code", "words", "message"),
    [
        (3, ("photos", "nope"), "no column 'nope'"),
        (2, ("photos", "caption", "--kind", "hnsw"), "nearest compares vectors"),
        (2, ("photos", "v", "--kind", "tree"), "ivf_pq"),
        (2, ("photos", "v", "--build-option", "partitions"), "NAME=N"),
        (2, ("photos", "v", "--build-option", "m=4"), "takes partitions, sub_vectors"),
    ],
)
def test_an_index_that_cannot_be_made_says_why(
    photos: Shell, exit_code: int, words: tuple[str, ...], message: str
) -> None:
    assert message in " ".join(photos.fails(exit_code, "index", "create", *words).split())


@pytest.mark.soak
def test_a_damaged_index_is_passed_over_with_a_warning_and_made_again(shell: Shell) -> None:
    years = np.arange(70_000) % 120
    with shell.repository().transaction("main", message="years") as tx:
        tx.create_dataset("photos", {"year": years})
        tx.create_index("photos", "year")
    query = ("sql", "select count(*) as n from photos where year = 5")
    repo = shell.repository()
    entry = repo.context.core.entry(repo.resolve("main").commit.tree, "indexes/photos/year.values")
    assert entry is not None
    (segment,) = open_index(repo.context.core.objects, entry.digest).segments
    store = shell.folder / ".tensorrepo/store"
    file = store / object_key(segment.files[0].parts[0])
    file.chmod(0o600)
    flipped = bytearray(file.read_bytes())
    flipped[len(flipped) // 2] ^= 1
    file.write_bytes(flipped)
    code, found, errors = shell.finish(*query)
    assert (code, found.split()) == (0, ["n", str((years == 5).sum())])
    assert errors.startswith("warning: no index of datasets/photos was asked")
    assert len(errors.splitlines()) == 1  # no line of code
    told = shell.run("index", "create", "photos", "year").stdout
    assert told.startswith("indexes/photos/year.values was made anew, as it is damaged: ")
    assert shell.finish(*query)[2] == ""
    assert "is up to date" in shell.run("index", "create", "photos", "year").stdout
