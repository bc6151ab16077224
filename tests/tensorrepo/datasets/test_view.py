"""Views, as users of the SDK meet them; and datasets changed by SQL."""

from __future__ import annotations

import dataclasses
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tensorrepo as tr
from tensorrepo.datasets import sql_edit
from tensorrepo.formats.views import write_view
from tensorrepo.query.sql.columns import row_shape
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import Kind
from tests.support.effort import sampled

RARE = "SELECT row_id FROM fashion WHERE label = 3"


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    made = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    with made.transaction("main", message="first") as tx:
        columns = {"label": "int64", "x": tr.Tensor("float32", (2,))}
        rows = {"label": np.arange(40) % 5, "x": np.arange(80, dtype="f4").reshape(40, 2)}
        tx.create_dataset("fashion", columns=columns).append(rows)
    return made


def test_a_view_is_made_committed_and_read(repo: tr.Repository) -> None:
    view = repo.view("rare", sql=RARE)
    assert view["label"][:].tolist() == [3] * 8
    assert view[0]["x"].tolist() == [6.0, 7.0]
    assert (view.name, view.sql, view.source.name, len(view)) == ("rare", RARE, "fashion", 8)
    assert repr(repo.view("rare")).startswith("<view rare: 8 rows of fashion at ")


def test_a_view_streams_exactly_its_rows(repo: tr.Repository) -> None:
    view = repo.view("rare", sql=RARE)
    batches = list(view.stream(batch_size=3, columns=["x"], seed=1))
    found = np.concatenate([batch["x"][:, 0] for batch in batches])
    assert sorted(found.tolist()) == (np.arange(3, 40, 5) * 2.0).tolist()
    part = list(view.stream(batch_size=9, sampling=tr.Sampling(rows=slice(0, 2)), shuffle=False))
    assert part[0]["x"][:, 0].tolist() == [6.0, 16.0]


def test_a_view_stays_as_it_was_chosen_until_it_is_refreshed(repo: tr.Repository) -> None:
    before = repo.view("rare", sql=RARE)
    with repo.transaction("main") as tx:
        draft = tx.dataset("fashion")
        draft.update([0, 1], {"label": 3})
        draft.delete([3])
    assert len(repo.view("rare")) == 8
    with repo.transaction("main") as tx:
        tx.refresh_view("rare")
    after = repo.view("rare")
    found = after.diff(before)
    assert (len(after), len(found.added), len(found.removed)) == (9, 2, 1)
    assert len(repo.view("rare", "main~1")) == 8


def test_views_are_tables_too(repo: tr.Repository) -> None:
    repo.view("rare", sql=RARE)
    query = "SELECT count(*) AS n FROM views.rare JOIN fashion USING (row_id)"
    assert list(repo.sql(query)) == [{"n": 8}]
    repo.view("rarer", sql="SELECT row_id FROM rare WHERE x[1] > 50")
    assert repo.view("rarer")["x"][:][:, 0].tolist() == [56.0, 66.0, 76.0]
    assert list(repo.view("rarer").query("SELECT min(x[1]) AS low FROM self")) == [{"low": 56.0}]


def test_views_are_exported_and_pickled(repo: tr.Repository, tmp_path: Path) -> None:
    view = repo.view("rare", sql=RARE)
    tr.export(view, tmp_path / "rare.parquet")
    assert len(tr.read(tmp_path / "rare.parquet").schema.names) == 2
    assert pickle.loads(pickle.dumps(view))["label"][:].tolist() == [3] * 8


def test_a_view_keeps_its_dataset_when_the_branch_goes_on(repo: tr.Repository) -> None:
    repo.view("rare", sql=RARE)
    with repo.transaction("main") as tx:
        tx.remove("datasets/fashion")
    assert len(repo.view("rare").to_arrow()) == 8


def test_two_views_of_one_name_conflict_when_they_merge(repo: tr.Repository) -> None:
    repo.create_branch("side")
    repo.view("rare", sql=RARE)
    repo.view("rare", "side", sql="SELECT row_id FROM fashion WHERE label = 4")
    with pytest.raises(tr.ConflictError):
        repo.merge("side")
    repo.merge("side", strategy="theirs")
    assert repo.view("rare")["label"][0] == 4


@pytest.mark.together
@pytest.mark.parametrize(
    ("query", "match"),
    [
        ("SELECT label FROM fashion", "expected a column row_id"),
        ("SELECT 'x' AS row_id FROM fashion", "no row id"),
        ("SELECT NULL AS row_id FROM fashion", "no row id"),
        ("SELECT '0123456789abcdef:0' AS row_id", "names none"),
        ("SELECT '0123456789abcdef:0' AS row_id FROM fashion", "rows of one dataset"),
        ("SELECT row_id FROM", "syntax error"),
    ],
)
def test_queries_that_choose_no_rows_of_a_dataset_are_refused(
    repo: tr.Repository, query: str, match: str
) -> None:
    with pytest.raises(tr.InvalidInputError, match=match):
        repo.view("bad", sql=query)
    assert repo.entries("main", "views/") == {}


def test_a_view_that_is_there_is_refreshed_not_made_again(repo: tr.Repository) -> None:
    repo.view("rare", sql=RARE)
    with pytest.raises(tr.ConflictError, match="refresh_view"):
        repo.view("rare", sql=RARE)
    with pytest.raises(tr.NotFoundError, match="make it first"), repo.transaction("main") as tx:
        tx.refresh_view("nothing")
    with pytest.raises(tr.NotFoundError, match="no views/nothing"):
        repo.view("nothing")


def test_a_column_is_added_by_an_expression(repo: tr.Repository) -> None:
    with repo.transaction("main") as tx:
        draft = tx.dataset("fashion")
        draft.add_column("double", sql="label * 2").add_column(
            "far", "float32", sql="l2(x, [0, 0])"
        )
        draft.delete("label == 0")
        draft.add_column("first", sql="x[1]")
    ds = repo.dataset("fashion")
    assert ds["double"][:].tolist() == (ds["label"][:] * 2).tolist()
    assert np.allclose(ds["far"][:], np.linalg.norm(ds["x"][:], axis=1))
    assert ds["first"][:].tolist() == ds["x"][:][:, 0].tolist()


def test_values_are_set_by_expressions_that_see_what_was_there(repo: tr.Repository) -> None:
    before = repo.dataset("fashion")["label"][:]
    with repo.transaction("main") as tx:
        tx.dataset("fashion").update_sql({"label": "label + 10"}, where="label >= 3")
    after = repo.dataset("fashion")["label"][:]
    assert after.tolist() == np.where(before >= 3, before + 10, before).tolist()


@pytest.fixture
def pictures(tmp_path: Path) -> tr.Repository:
    """Tensors that are large enough to be lists in lists to SQL."""
    made = tr.init(tmp_path / "pictures", author="Ada <ada@example.org>")
    with made.transaction("main", message="first") as tx:
        columns = {"n": "int64", "x": tr.Tensor("uint8", (3, 96, 96))}
        rows = {"n": np.arange(6), "x": np.arange(6 * 3 * 96 * 96).reshape(6, 3, 96, 96) % 251}
        tx.create_dataset("large", columns=columns).append(rows)
    return made


@pytest.mark.parametrize(
    ("sql", "shape"),
    [
        ("x", (3, 96, 96)),
        ("CASE WHEN n >= 2 THEN x END", (3, 96, 96)),
        ("[x[1], x[2]]", (2, 96, 96)),
        ("[[n, n], [1, 2], [3, 4]]", (3, 2)),
        ("CASE WHEN n > 2 THEN x[:2] ELSE x[:1] END", (None, 96, 96)),
        ("CASE WHEN n > 9 THEN [[1.5]] END", (None, None)),
    ],
)
def test_the_shape_of_tensors_is_that_of_the_rows(
    pictures: tr.Repository, sql: str, shape: tuple[int | None, ...]
) -> None:
    with pictures.transaction("main") as tx:
        tx.dataset("large").add_column("y", sql=sql)
    assert pictures.dataset("large").schema.column("y").type.shape == shape


def test_large_tensors_come_out_of_an_expression_as_they_are(pictures: tr.Repository) -> None:
    with pictures.transaction("main") as tx:
        tx.dataset("large").add_column("y", sql="x")
    ds = pictures.dataset("large")
    assert np.array_equal(ds["y"][:], ds["x"][:])


def test_rows_of_another_shape_than_the_first_say_which_type_to_give() -> None:
    first, later = pa.array([[[1, 2]]]), pa.array([[[1, 2], [3, 4]]])
    inferred = tr.Tensor("int64", row_shape(first))
    with pytest.raises(tr.InvalidInputError, match=r"Tensor\('int64', \(None, 2\)\)"):
        list(sql_edit._as_inferred([first, later], inferred))


def test_lists_in_lists_of_text_are_no_column(repo: tr.Repository) -> None:
    with (
        pytest.raises(tr.UnsupportedError, match="lists in lists of string"),
        repo.transaction("main") as tx,
    ):
        tx.dataset("fashion").add_column("y", sql="[['a'], ['b']]")


@pytest.mark.parametrize("sql", ["nope", "1) FROM self; DROP TABLE x; SELECT (1", "count(*)"])
def test_expressions_that_are_none_are_refused(repo: tr.Repository, sql: str) -> None:
    with pytest.raises(tr.InvalidInputError), repo.transaction("main") as tx:
        tx.dataset("fashion").add_column("y", sql=sql)
    assert "y" not in repo.dataset("fashion").schema


def test_a_column_needs_a_type_or_an_expression(repo: tr.Repository) -> None:
    with (
        pytest.raises(tr.InvalidInputError, match="needs a type"),
        repo.transaction("main") as tx,
    ):
        tx.dataset("fashion").add_column("y")


def test_tables_of_the_catalog_are_joined_with_data(
    repo: tr.Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    query = """SELECT c.name, v.rows, (SELECT max(label) FROM fashion) AS most
               FROM catalog.dataset_version AS v JOIN catalog.dataset_column AS c
               ON c.dataset = v.digest WHERE c.name = 'label'"""
    again = tr.open(repo.url)
    assert list(again.sql(query)) == [{"name": "label", "rows": 40, "most": 4}]
    with pytest.raises(tr.NotFoundError, match=r"catalog\.commit"):
        again.sql("SELECT * FROM catalog.comit")


# ------------------------------------------------------------------------------ who wrote the query


@pytest.mark.parametrize(
    "query",
    sampled(  # tests/query/untrusted asks more
        [
            "COPY (SELECT 1) TO '{0}'; SELECT row_id FROM fashion",
            "SELECT row_id FROM fashion; SELECT row_id FROM fashion",
            "SET threads = 1",
            "SELECT row_id FROM fashion WHERE (SELECT count(*) FROM read_text('{0}')) > 0",
        ],
        2,
    ),
)
def test_a_query_that_came_with_the_repository_reaches_for_nothing_outside(
    repo: tr.Repository, tmp_path: Path, query: str
) -> None:
    target = tmp_path / "written"
    _came(repo, query.format(target))
    with (
        pytest.raises((tr.InvalidInputError, tr.PermissionDenied)),
        repo.transaction("main") as tx,
    ):
        tx.refresh_view("rare")
    assert not target.exists()


def _came(repo: tr.Repository, query: str) -> None:
    """A view with this query, as somebody else may have committed it."""
    stored = dataclasses.replace(repo.view("rare", sql=RARE).chosen, sql=query)
    with repo.transaction("main") as tx:
        link = write_view(tx.core.objects, stored)
        tx.core.stage("views/rare", Entry(Kind.VIEW, link.digest))


ENDLESS = "levenshtein(repeat('ab', 400000), repeat('ba', 400000))"


def test_a_query_that_came_with_the_repository_takes_no_longer_than_it_may(
    repo: tr.Repository,
) -> None:
    _came(repo, f"SELECT row_id FROM fashion WHERE label > {ENDLESS}")
    with (
        pytest.raises(tr.InvalidInputError, match=r"longer than 0\.5 s"),
        repo.transaction("main") as tx,
    ):
        tx.refresh_view("rare", limits=tr.QueryLimits(seconds=0.5))


def test_a_query_that_came_with_the_repository_takes_no_more_memory_than_it_may(
    repo: tr.Repository,
) -> None:
    _came(repo, "SELECT row_id FROM fashion WHERE length(repeat(row_id, 20000000)) > 0")
    with (
        pytest.raises(tr.InvalidInputError, match=r"[Mm]emory"),
        repo.transaction("main") as tx,
    ):
        tx.refresh_view("rare", limits=tr.QueryLimits(memory_bytes=64 << 20))


@pytest.mark.soak
def test_ids_that_are_given_again_and_again_are_kept_once(
    repo: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorrepo.verbs.views.KEPT_IDS", 100)
    repo.view("rare", sql="SELECT row_id FROM fashion, range(1000) WHERE label = 3")
    with repo.transaction("main") as tx:
        tx.refresh_view("rare")
    assert len(repo.view("rare")) == 8


@pytest.mark.soak
def test_more_ids_than_there_are_rows_are_refused_when_they_come(
    repo: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tensorrepo.verbs.views.KEPT_IDS", 100)
    many = "SELECT printf('%016x:%d', range, 0) AS row_id FROM range(1000000), fashion LIMIT 300000"
    with pytest.raises(tr.InvalidInputError, match="rows of one dataset"):
        repo.view("rare", sql=many)


@pytest.mark.parametrize("limits", [None, 5, {"seconds": 1}])
def test_limits_of_a_refresh_are_limits(repo: tr.Repository, limits: object) -> None:
    repo.view("rare", sql=RARE)
    with (
        pytest.raises(tr.InvalidInputError, match=r"limits is tr\.QueryLimits"),
        repo.transaction("main") as tx,
    ):
        tx.refresh_view("rare", limits=limits)  # type: ignore[arg-type]


@pytest.mark.soak
def test_an_interrupt_ends_a_query_that_came_with_the_repository(repo: tr.Repository) -> None:
    _came(repo, f"SELECT row_id FROM fashion WHERE label > {ENDLESS}")
    command = [sys.executable, "-c", REFRESH, repo.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as refresh:
        assert refresh.stdout is not None
        assert refresh.stdout.readline() == b"asks\n"
        time.sleep(1)
        refresh.send_signal(signal.SIGINT)
        _, said = refresh.communicate(timeout=60)
    assert b"KeyboardInterrupt" in said


REFRESH = """
import signal, sys
import tensorrepo as tr
signal.signal(signal.SIGINT, signal.default_int_handler)
with tr.open(sys.argv[1], author="Ada <ada@example.org>").transaction("main") as tx:
    print("asks", flush=True)
    tx.refresh_view("rare")
"""


def test_a_view_is_of_the_version_that_was_asked(repo: tr.Repository) -> None:
    repo.create_tag("old")
    with repo.transaction("main") as tx:
        tx.dataset("fashion").update([0], {"label": 99})
    query = """SELECT new.row_id FROM "fashion@old" AS old JOIN fashion AS new USING (row_id)
               WHERE new.label = 99"""
    assert repo.view("changed", sql=query)["label"][:].tolist() == [99]


def test_a_view_whose_version_cannot_be_told_is_refused(repo: tr.Repository) -> None:
    repo.create_tag("one")
    with repo.transaction("main") as tx:
        tx.dataset("fashion").update([0], {"label": 99})
    repo.create_tag("two")
    with repo.transaction("main") as tx:
        tx.dataset("fashion").update([0], {"label": 100})
    query = 'SELECT a.row_id FROM "fashion@one" AS a JOIN "fashion@two" AS b USING (row_id)'
    with pytest.raises(tr.InvalidInputError, match=r"all of datasets/fashion@.*Name one"):
        repo.view("which", sql=query)
