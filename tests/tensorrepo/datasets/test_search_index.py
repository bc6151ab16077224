"""Search by indexes through the SDK: made, asked, brought up to date, moved, refused."""

from __future__ import annotations

import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo import connect
from tensorrepo.formats.search_index import build, indexed_nearest, segment_files
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.verbs import indexes
from tests.support.effort import sampled

pytest.importorskip("lance", reason="indexes are made by pylance")

pytestmark = pytest.mark.long

ROWS, DIM = 3000, 8
WORDS = ["red", "blue", "green", "car", "boat", "tree", "sea", "naïve", "x_1"]
RNG = np.random.default_rng(3)
VECTORS = RNG.standard_normal((ROWS, DIM)).astype(np.float32)
CHOICE = random.Random(3)
TEXTS = [" ".join(CHOICE.choices(WORDS, k=CHOICE.randrange(60))) for _ in range(ROWS)]


@pytest.fixture(autouse=True)
def _small_data_is_searched_by_indexes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexed_nearest, "EXACT_BYTES", -1)
    monkeypatch.setattr(indexed_nearest, "MOST_SHARE", 1.0)
    monkeypatch.setattr(build, "TUNED_ROWS", 1000)


def photos(repo: Any) -> None:
    columns = {
        "v": tr.Column("v", tr.Embedding("float32", DIM), nullable=True),
        "t": tr.Column("t", tr.Text(), nullable=True),
        "year": "int32",
    }
    with repo.transaction(message="photos") as tx:
        tx.create_dataset("photos", columns=columns).append(
            {
                "v": [None if at % 100 == 7 else row for at, row in enumerate(VECTORS)],
                "t": [None if at % 100 == 8 else text for at, text in enumerate(TEXTS)],
                "year": 1990 + np.arange(ROWS) % 30,
            }
        )


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Photos with an index of both columns; nothing changes them."""
    repo = tr.init(tmp_path_factory.mktemp("indexed") / "r", author="Ada <ada@example.org>")
    photos(repo)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "TUNED_ROWS", 1000)
        with repo.transaction(message="indexes") as tx:
            tx.create_index("photos", "v")
            tx.create_index("photos", "t")
    return repo


@pytest.fixture
def repo(tmp_path: Path) -> Any:
    made = tr.init(tmp_path / "r", author="Ada <ada@example.org>")
    photos(made)
    return made


def index(repo: Any, column: str, **options: Any) -> Any:
    with repo.transaction(message="index") as tx:
        return tx.create_index("photos", column, **options)


def recall(found: Any, exact: Any) -> float:
    return len(np.intersect1d(found.rows, exact.rows)) / len(exact.rows)


def test_nearest_finds_nearly_all_and_tells_exact_distances(indexed: Any) -> None:
    ds, queries = indexed.dataset("photos"), RNG.standard_normal((20, DIM))
    found, exact = ds.nearest("v", queries), ds.nearest("v", queries, exact=True)
    assert "by an index (ivf_pq of 3,000 rows, that finds about" in found.told
    assert "exact: all 3,000 rows compared, no index asked" in exact.told
    same = [
        recall(found.taken(found.queries == at), exact.taken(exact.queries == at))
        for at in range(20)
    ]
    assert np.mean(same) >= 0.9
    distances = dict(zip(exact.row_ids, exact.distances.tolist(), strict=True))
    common = [at for at, each in enumerate(found.row_ids) if each in distances]
    direct = np.linalg.norm(VECTORS[found.rows].astype(np.float64) - queries[found.queries], axis=1)
    assert np.allclose(found.distances, direct, rtol=1e-12)
    assert len(common) > 100


def test_search_gives_the_rows_and_scores_of_exact_search(indexed: Any) -> None:
    ds = indexed.dataset("photos")
    for words in ("red", "red car", "Naïve x_1 tree", "absent", "absent sea"):
        found, exact = ds.search("t", words, 20), ds.search("t", words, 20, exact=True)
        assert "by an index" in found.told
        assert found.rows.tolist() == exact.rows.tolist(), words
        assert found.scores.tolist() == exact.scores.tolist(), words


def test_a_condition_narrows_what_an_index_finds(indexed: Any) -> None:
    ds = indexed.dataset("photos")
    for where in ("year >= 2000", "year == 1999", "year < 0"):
        found = ds.search("t", "red car", where=where)
        exact = ds.search("t", "red car", where=where, exact=True)
        assert found.rows.tolist() == exact.rows.tolist(), where
        assert found.scores.tolist() == exact.scores.tolist(), where
        near = ds.nearest("v", VECTORS[5], where=where, nprobes=1000)
        expected = ds.nearest("v", VECTORS[5], where=where, exact=True)
        assert len(near) == len(expected), where
        assert len(near) == 0 or recall(near, expected) >= 0.9, where


def test_selections_and_views_ask_the_index_of_their_dataset(indexed: Any) -> None:
    some = indexed.dataset("photos").select(["t", "year"], where="year >= 2000")
    found, exact = some.search("t", "red boat"), some.search("t", "red boat", exact=True)
    assert "by an index" in found.told
    assert found.rows.tolist() == exact.rows.tolist()
    assert found.df()["year"].tolist() == exact.df()["year"].tolist()


@pytest.mark.soak
def test_another_distance_than_the_indexs_is_compared(indexed: Any) -> None:
    told = indexed.dataset("photos").nearest("v", VECTORS[5], metric="cosine").told
    assert told.endswith("exact: all 3,000 rows compared, the index is by l2")


def test_hybrid_ranks_by_words_and_vectors(indexed: Any) -> None:
    ds = indexed.dataset("photos")
    found = ds.hybrid({"t": "red car", "v": VECTORS[5]}, k=8)
    words, near = ds.search("t", "red car", 100).rows, ds.nearest("v", VECTORS[5], 100).rows
    scores: dict[int, float] = {}
    for ranked in (words, near):
        for rank, row in enumerate(ranked.tolist()):
            scores[row] = scores.get(row, 0.0) + 1 / (61 + rank)
    best = sorted(scores, key=lambda row: (-scores[row], row))[:8]
    assert found.rows.tolist() == best
    assert np.allclose(found.scores, [scores[row] for row in best])
    assert "by reciprocal rank" in found.told


@pytest.mark.parametrize("query", [{}, {"v": np.zeros((2, DIM))}])
def test_hybrid_refuses_what_it_cannot_rank(indexed: Any, query: Any) -> None:
    with pytest.raises(tr.InvalidInputError):
        indexed.dataset("photos").hybrid(query)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "metric"),
    sampled(
        [("ivf_sq", "dot"), ("ivf_flat", "cosine"), ("hnsw", "l2"), ("ivf_hnsw_pq", "cosine")], 1
    ),
)
def test_every_kind_and_distance_finds_what_is_near(repo: Any, kind: str, metric: str) -> None:
    index(repo, "v", kind=kind, metric=metric)
    ds = repo.dataset("photos")
    found = ds.nearest("v", VECTORS[5:15], metric=metric)
    exact = ds.nearest("v", VECTORS[5:15], metric=metric, exact=True)
    assert "by an index" in found.told
    assert recall(found, exact) >= 0.85


@pytest.mark.soak
@pytest.mark.parametrize("dtype", sampled(["bfloat16", "float16", "float64", "int8"], 1))
def test_vectors_of_any_width_are_indexed(tmp_path: Path, dtype: str) -> None:
    repo = tr.init(tmp_path / "r", author="Ada <ada@example.org>")
    with repo.transaction(message="x") as tx:
        vectors = np.round(VECTORS[:500] * 20)
        draft = tx.create_dataset("photos", columns={"v": tr.Tensor(dtype, (DIM,))})
        kind = draft.stored.schema.column("v").storage.element
        draft.append({"v": vectors.astype(kind)})
        tx.create_index("photos", "v", kind="ivf_flat")
    ds = repo.dataset("photos")
    found = ds.nearest("v", vectors[3], nprobes=1000)
    assert "by an index" in found.told
    assert found.distances.tolist() == ds.nearest("v", vectors[3], exact=True).distances.tolist()


def test_only_rows_that_are_new_or_changed_are_indexed_again(repo: Any) -> None:
    assert index(repo, "t").indexed == ROWS
    with repo.transaction(message="change") as tx:
        draft = tx.dataset("photos").append({"v": VECTORS[:5], "t": ["red"] * 5, "year": [1] * 5})
        draft.update([10, 11], {"t": ["sea", None]}).update([12], {"year": [7]}).delete([13])
    report = index(repo, "t")
    assert (report.rows, report.indexed, report.again, report.segments) == (ROWS + 4, 7, 0, 2)
    assert index(repo, "t").indexed == 0
    assert index(repo, "v").anew == ""


@pytest.mark.soak
def test_a_row_counts_as_the_last_segment_has_it(repo: Any) -> None:
    index(repo, "t")
    with repo.transaction(message="change") as tx:
        tx.dataset("photos").update([3, 4, 5], {"t": ["sea", "", None]})
    assert index(repo, "t").segments == 2
    ds = repo.dataset("photos")
    for words in ("red", "sea car"):
        found, exact = ds.search("t", words, 50), ds.search("t", words, 50, exact=True)
        assert found.rows.tolist() == exact.rows.tolist()
        assert found.scores.tolist() == exact.scores.tolist()


@pytest.mark.soak
def test_an_index_that_is_up_to_date_makes_no_commit(repo: Any) -> None:
    index(repo, "t")
    with repo.transaction(message="again") as tx:
        tx.create_index("photos", "t")
    assert tx.commit is None


@pytest.mark.soak
def test_another_kind_or_option_makes_all_anew(repo: Any) -> None:
    index(repo, "v", kind="ivf_flat")
    assert index(repo, "v").anew == ""  # it stays what it is
    assert index(repo, "v", kind="ivf_sq").anew == "it was of kind ivf_flat by l2"
    assert index(repo, "v", metric="dot", kind="ivf_sq").anew == "it was of kind ivf_sq by l2"
    report = index(repo, "v", kind="ivf_sq", metric="dot", partitions=4)
    assert report.anew == "its options were others"


@pytest.mark.soak
def test_a_column_of_nulls_alone_is_indexed_and_gives_nothing(tmp_path: Path) -> None:
    repo = tr.init(tmp_path / "r", author="Ada <ada@example.org>")
    with repo.transaction(message="x") as tx:
        columns = {
            "v": tr.Column("v", tr.Embedding("float32", DIM), nullable=True),
            "t": tr.Column("t", tr.Text(), nullable=True),
        }
        draft = tx.create_dataset("photos", columns=columns)
        draft.append({"v": [VECTORS[0], *[None] * 9], "t": [None] * 10}).delete([0])
        tx.create_index("photos", "v")
        tx.create_index("photos", "t")
    ds = repo.dataset("photos")
    assert len(ds.nearest("v", VECTORS[0])) == 0
    assert len(ds.search("t", "red")) == 0


@pytest.mark.soak
def test_an_index_is_found_again_when_its_column_is_renamed_back(repo: Any) -> None:
    index(repo, "t")
    with repo.transaction(message="rename") as tx:
        tx.dataset("photos").rename_column("t", "caption")
    assert "no index asked" in repo.dataset("photos").search("caption", "red").told
    with repo.transaction(message="drop") as tx:
        tx.dataset("photos").rename_column("caption", "t").drop_column("t")
        tx.dataset("photos").add_column("t", tr.Text(), default="red")
    assert "the index is of another column" in repo.dataset("photos").search("t", "red").told


def test_a_clone_has_the_index_and_collection_keeps_it(repo: Any, tmp_path: Path) -> None:
    index(repo, "t")
    repo.gc()
    clone = tr.clone(repo.url, str(tmp_path / "clone"))
    found = clone.dataset("photos").search("t", "red car")
    assert "by an index" in found.told
    assert found.rows.tolist() == repo.dataset("photos").search("t", "red car").rows.tolist()


@pytest.mark.soak
def test_both_sides_of_a_merge_may_bring_an_index_up_to_date(repo: Any) -> None:
    index(repo, "t")
    repo.create_branch("dev")
    for branch, word in (("main", "red"), ("dev", "blue")):
        with repo.transaction(branch, message=branch) as tx:
            tx.dataset("photos").append({"v": VECTORS[:9], "t": [word] * 9, "year": [1] * 9})
            tx.create_index("photos", "t")
    repo.merge("dev")
    ds = repo.dataset("photos")
    found, exact = ds.search("t", "red blue", 30), ds.search("t", "red blue", 30, exact=True)
    assert "9 rows that it does not know" in found.told
    assert found.rows.tolist() == exact.rows.tolist()


@pytest.mark.soak
def test_removing_a_dataset_removes_its_indexes(repo: Any) -> None:
    index(repo, "t")
    with repo.transaction(message="gone") as tx:
        tx.remove("datasets/photos")
    assert repo.entries() == {}


def test_what_was_purged_is_in_no_index(repo: Any) -> None:
    with repo.transaction(message="secret") as tx:
        tx.dataset("photos").append({"v": VECTORS[:1], "t": ["topsecret"], "year": [1]})
    index(repo, "t")
    ids = repo.dataset("photos").search("t", "topsecret").row_ids
    repo.purge("photos", rows=ids, reason="asked for")
    entries = {entry.kind: entry for entry in repo.entries().values()}
    assert Kind.SEARCH_INDEX in entries
    ds = repo.dataset("photos")
    assert len(ds.search("t", "topsecret")) == 0
    found, exact = ds.search("t", "red car"), ds.search("t", "red car", exact=True)
    assert found.rows.tolist() == exact.rows.tolist()
    assert index(repo, "t").indexed == ROWS


@pytest.mark.soak
def test_names_that_no_path_may_have_are_ids(tmp_path: Path) -> None:
    repo = tr.init(tmp_path / "r", author="Ada <ada@example.org>")
    with repo.transaction(message="x") as tx:
        columns = {"my text": tr.Text(), "Titre": tr.Text(), "titre": tr.Text()}
        tx.create_dataset("d", columns=columns).append({name: ["red"] for name in columns})
        for name in columns:
            tx.create_index("d", name)
    assert sum(path.startswith("indexes/d/id-") for path in repo.entries()) == 3
    assert "by an index" in repo.dataset("d").search("my text", "red").told


def test_damaged_bytes_of_an_index_end_no_process_but_the_childs(
    repo: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    index(repo, "v", kind="ivf_flat")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    other = tr.open(repo.url, author="Eve <eve@example.org>")
    true = segment_files._pieces

    def damaged(objects: Any, file: Any) -> Any:
        for piece in true(objects, file):
            yield bytes(len(piece)) if file.name.endswith(".idx") else piece

    monkeypatch.setattr(segment_files, "_pieces", damaged)
    with pytest.raises(tr.InvalidInputError, match="search index"):
        other.dataset("photos").nearest("v", VECTORS[0])
    assert len(other.dataset("photos").nearest("v", VECTORS[0], exact=True)) == 10


def test_a_child_that_was_killed_is_followed_by_another(indexed: Any) -> None:
    ds = indexed.dataset("photos")
    expected = ds.search("t", "red car").rows.tolist()
    (opened,) = [
        tables for (_, family, *_), tables in _readers()._open.items() if family == "words"
    ][-1:]
    process = opened[0].batches.func.__self__._process
    signal.pidfd_send_signal(process, signal.SIGKILL)
    with pytest.raises(tr.InvalidInputError, match="ended the process"):
        ds.search("t", "red car")
    assert ds.search("t", "red car").rows.tolist() == expected


def _readers() -> Any:
    machine = connect.Machine(os.environ, Path.home(), Path.cwd())
    return indexes.opened_indexes(machine).readers


def test_without_pylance_the_extra_is_named(repo: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lance", None)
    with pytest.raises(tr.UnsupportedError, match=r"tensorrepo\[lance\]"):
        index(repo, "t")


def test_sql_has_searches_as_tables(indexed: Any) -> None:
    rows = list(
        indexed.sql(
            "SELECT n.row_number, distance, p.year FROM nearest('photos', 'v', $q, 4) n "
            "JOIN photos p USING (row_id) ORDER BY distance",
            params={"q": VECTORS[5].tolist()},
        )
    )
    exact = indexed.dataset("photos").nearest("v", VECTORS[5], 4)
    assert [row["row_number"] for row in rows] == exact.rows.tolist()
    assert [row["distance"] for row in rows] == exact.distances.tolist()
    assert [row["year"] for row in rows] == [1990 + row % 30 for row in exact.rows.tolist()]
    words = "SELECT t, score FROM search('photos@main', 'red car', column := 't', k => 3)"
    with pytest.raises(tr.InvalidInputError, match="each once"):
        list(indexed.sql("SELECT * FROM search('photos', 't', column := 't')"))
    with pytest.raises(tr.InvalidInputError, match="each once"):
        list(indexed.sql(words))


@pytest.mark.soak
def test_sql_searches_take_named_arguments_subqueries_and_conditions(indexed: Any) -> None:
    query = (
        "WITH near AS (FROM nearest('photos', 'v', (SELECT v FROM photos WHERE row_number = 5), "
        "k := 3, where := 'year >= 2000')) SELECT count(*) AS n, min(year) AS y FROM near"
    )
    (row,) = indexed.sql(query)
    assert row["n"] == 3
    assert row["y"] >= 2000
    (row,) = indexed.sql("SELECT max(search.score) AS s FROM search('photos', 't', 'red')")
    assert row["s"] == indexed.dataset("photos").search("t", "red", 1).scores[0]


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("SELECT * FROM nearest('photos', 'v')", "expected nearest"),
        ("SELECT * FROM nearest('photos', 'v', 7)", "list of numbers"),
        ("SELECT * FROM nearest('photos', 'v', [1, 2])", "has the shape"),
        ("SELECT * FROM nearest('photos', 'v', ?, 3)", "by name"),
        ("SELECT * FROM nearest('photos', 'v', [1], frobs := 3)", "takes dataset, column"),
        ("SELECT * FROM search('photos', 't', 7)", "query of search is text"),
        ("SELECT * FROM search('photos', 't', 'x'", "not closed|syntax"),
    ],
)
def test_sql_searches_that_are_wrong_say_so(indexed: Any, query: str, message: str) -> None:
    with pytest.raises(tr.InvalidInputError, match=message):
        list(indexed.sql(query))


def test_others_sql_is_refused_in_words(indexed: Any) -> None:
    with pytest.raises(tr.InvalidInputError, match="of your own queries"):
        list(indexed.sql("FROM search('photos', 't', 'red')", untrusted=tr.QueryLimits()))
