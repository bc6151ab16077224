"""SQL over datasets: what comes out, what is refused and how."""

from __future__ import annotations

import sys
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

import tensorrepo as tr
from tensorrepo.catalog.sql import tables_of
from tensorrepo.query.sql.duck import DuckSession, DuckSettings, reworded
from tensorrepo.query.sql.pushdown import Scanned, noting

NAMES = ("shirt", "shoe", "hat")


@pytest.fixture(scope="module")
def repo() -> tr.Repository:
    made = tr.init(f"memory://sql-{uuid4()}", author="Ada <ada@example.org>")
    rng = np.random.default_rng(0)
    rows = {
        "image": rng.integers(0, 255, (30, 4, 4)).astype("u1"),
        "label": np.arange(30) % 3,
        "text": [f"row {at}" for at in range(30)],
        "points": [np.arange(2 * (at % 3), dtype="f4").reshape(-1, 2) for at in range(30)],
    }
    with made.transaction("main", message="first") as tx:
        columns = {
            "image": tr.Tensor("uint8", (4, 4)),
            "label": tr.ClassLabel(NAMES),
            "text": tr.Text(),
            "points": tr.Tensor("float32", (None, 2)),
        }
        tx.create_dataset("fashion", columns=columns).append(rows)
        tx.create_dataset("deep/er-name", columns={"a": "int64"}).append({"a": [1, 2]})
    made.create_tag("v1")
    with made.transaction("main", message="second") as tx:
        tx.dataset("fashion").delete(tr.col("label") == 2)
    return made


def test_rows_are_grouped(repo: tr.Repository) -> None:
    found = repo.sql("SELECT label, count(*) AS n FROM fashion GROUP BY label ORDER BY label")
    assert list(found) == [{"label": "shirt", "n": 10}, {"label": "shoe", "n": 10}]


@pytest.mark.parametrize(
    "table",
    ['"fashion@v1"', '"datasets/fashion@v1"', 'datasets."fashion@v1"', '"fashion@main~1"'],
)
def test_a_table_may_name_its_commit(repo: tr.Repository, table: str) -> None:
    assert repo.sql(f"SELECT count(*) AS n FROM {table}").arrow()["n"].to_pylist() == [30]


def test_names_without_a_commit_are_of_the_ref_that_is_given(repo: tr.Repository) -> None:
    assert list(repo.sql("SELECT count(*) AS n FROM fashion", ref="v1")) == [{"n": 30}]


def test_versions_are_joined_by_row_id(repo: tr.Repository) -> None:
    query = """SELECT count(*) AS gone FROM "fashion@v1" AS old
               WHERE row_id NOT IN (SELECT row_id FROM fashion)"""
    assert list(repo.sql(query)) == [{"gone": 10}]


def test_names_in_folders_and_with_dashes_are_quoted(repo: tr.Repository) -> None:
    assert list(repo.sql('SELECT sum(a) AS s FROM "deep/er-name"')) == [{"s": 3}]


def test_hidden_columns_are_there_for_who_names_them(repo: tr.Repository) -> None:
    assert repo.sql("SELECT * FROM fashion").columns == ["image", "label", "text", "points"]
    row = next(iter(repo.sql("SELECT row_id, row_number FROM fashion WHERE text = 'row 4'")))
    assert repo.dataset("fashion").rows_by_id([row["row_id"]]).tolist() == [row["row_number"]]


def test_params_are_values_and_nothing_else(repo: tr.Repository) -> None:
    evil = "row 1' OR 1=1; DROP VIEW fashion; --"
    count = "SELECT count(*) AS n FROM fashion WHERE text = $text"
    assert list(repo.sql(count, params={"text": evil})) == [{"n": 0}]
    assert list(repo.sql("SELECT ? + 1 AS n", params=[41])) == [{"n": 42}]


def test_a_dataset_calls_itself_self(repo: tr.Repository) -> None:
    query = "SELECT count(*) AS n FROM self WHERE label_number = 2"
    found = repo.dataset("fashion", "v1").query(query)
    assert list(found) == [{"n": 10}]


def test_variables_of_python_are_no_tables(repo: tr.Repository) -> None:
    import pyarrow as pa

    secret = pa.table({"a": [1]})
    with pytest.raises(tr.NotFoundError, match="no table 'secret'"):
        repo.sql("SELECT * FROM secret")
    assert secret.num_rows == 1


@pytest.mark.parametrize(
    ("query", "error", "match"),
    [
        ("SELECT * FROM fashon", tr.NotFoundError, "no table 'fashon'. Did you mean 'fashion'"),
        ("SELECT * FROM zzzzzz", tr.NotFoundError, "There are deep/er-name, fashion"),
        ('SELECT * FROM "fashion@v9"', tr.NotFoundError, "no branch, tag or commit 'v9'"),
        ("SELECT lable FROM fashion", tr.InvalidInputError, "Candidate bindings.*label"),
        ("SELECT FROM", tr.InvalidInputError, "syntax error"),
        ("SELECT l2([1], [1, 2])", tr.InvalidInputError, "l2 takes two tensors of as many"),
        ("SELECT l2(1, 2)", tr.InvalidInputError, "takes tensors and lists"),
        ("SELECT 'a'::INT", tr.InvalidInputError, "Could not convert"),
    ],
)
def test_errors_say_what_to_do(
    repo: tr.Repository, query: str, error: type[tr.Error], match: str
) -> None:
    with pytest.raises(error, match=match):
        repo.sql(query).arrow()


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("tensor_shape(image)", [4, 4]),
        ("tensor_shape(points)", [1, 2]),
        ("tensor_shape([1, 2, 3])", [3]),
        ("tensor_shape(NULL::FLOAT[2])", None),
        ("l2([1, 2], [4, 6])", 5.0),
        ("l2(image, image)", 0.0),
        ("dot(image, [[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]])", 0.0),
        ("dot([[1, 2], [3, 4]], [[1, 1], [1, 1]])", 10.0),
        ("cosine([1.0, 0.0], [0.0, 2.0])", 0.0),
        ("dot(points, points)", 1.0),
        ("l2([1], NULL::INT[])", None),
        ("element(points, 0, 1)", 1.0),
        ("element([7, 8], 1)", 8),
        ("element([7, 8], 2)", None),
    ],
)
def test_functions_of_tensors(repo: tr.Repository, expression: str, expected: object) -> None:
    found = repo.sql(f"SELECT {expression} AS x FROM fashion WHERE row_number = 1")
    assert list(found) == [{"x": expected}]


def test_elements_are_those_of_the_array(repo: tr.Repository) -> None:
    images = repo.dataset("fashion")["image"][:]
    found = repo.sql("SELECT element(image, 1, 3) AS x, image[2][4] AS y FROM fashion").arrow()
    assert found["x"].to_pylist() == found["y"].to_pylist() == images[:, 1, 3].tolist()


def test_results_come_as_pandas_and_arrow_streams(repo: tr.Repository) -> None:
    import pyarrow as pa

    query = "SELECT label FROM fashion WHERE label = 'shoe'"
    assert repo.sql(query).df()["label"].tolist() == ["shoe"] * 10
    assert pa.table(repo.sql(query)).num_rows == 10
    assert repo.sql(query).reader().read_all().num_rows == 10


def test_sums_of_integers_are_integers(repo: tr.Repository) -> None:
    sums = "SELECT sum(n) AS s FROM (VALUES (1), (2)) AS t(n)"
    (row,) = repo.sql(sums)
    assert [type(value) for value in row.values()] == [int]
    assert (repo.sql(sums).df()["s"] * 0.5).tolist() == [1.5]
    assert repo.sql(sums).numpy()["s"].tolist() == [3]
    large = f"SELECT sum(n) AS s FROM (VALUES ({2**63 - 1}), ({2**63 - 1}), (NULL)) AS t(n)"
    assert [row["s"] for row in repo.sql(large)] == [2**64 - 2]
    assert repo.sql(large).df()["s"].tolist() == repo.sql(large).numpy()["s"] == [2**64 - 2]


@pytest.mark.parametrize(("frame", "library"), [("df", "pandas"), ("pl", "polars")])
def test_rows_are_there_still_after_a_frame_whose_library_is_not(
    repo: tr.Repository, monkeypatch: pytest.MonkeyPatch, frame: str, library: str
) -> None:
    result = repo.sql("SELECT 1 AS one")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, library, None)
        with pytest.raises(tr.UnsupportedError, match=f"needs {library}: `pip install {library}`"):
            getattr(result, frame)()
    assert [*result] == [{"one": 1}]


def test_a_result_shows_its_first_rows_and_keeps_them(repo: tr.Repository) -> None:
    found = repo.sql("SELECT range AS x FROM range(1000) ORDER BY x")
    assert repr(found).splitlines()[:3] == ["<result of x>", "x", "0"]
    assert repr(found).endswith("...")
    assert len(list(found)) == 1000


def test_rows_are_taken_once(repo: tr.Repository) -> None:
    found = repo.sql("SELECT 1")
    assert found.arrow().num_rows == 1
    with pytest.raises(tr.InvalidInputError, match="taken already"):
        found.arrow()


def test_results_stream_without_being_kept(repo: tr.Repository) -> None:
    found = repo.sql("SELECT range AS a FROM range(10000000000)")
    assert next(found.batches()).num_rows > 0


def test_errors_of_a_scan_come_as_they_are(
    repo: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise tr.CorruptError("column 'label', page 0: damaged")

    monkeypatch.setattr("tensorrepo.query.sql.pushdown.scan", broken)
    with pytest.raises(tr.CorruptError, match="page 0: damaged"):
        repo.sql("SELECT sum(label_number) FROM fashion").arrow()


def test_files_beside_the_repository_can_be_joined(repo: tr.Repository, tmp_path: Path) -> None:
    (tmp_path / "names.csv").write_text("label,name\nshirt,short\nshoe,long\n")
    query = f"SELECT name, count(*) AS n FROM fashion JOIN '{tmp_path}/names.csv' USING (label)"
    assert sorted(repo.sql(f"{query} GROUP BY name").arrow()["n"].to_pylist()) == [10, 10]


def test_names_that_differ_in_case_alone_are_refused(repo: tr.Repository) -> None:
    repo.create_tag("V1", "main")
    with pytest.raises(tr.InvalidInputError, match="does not tell"):
        repo.sql('SELECT * FROM "fashion@v1" JOIN "fashion@V1" USING (text)')


def test_columns_that_differ_in_case_alone_are_refused() -> None:
    made = tr.init("memory://sql-case", author="Ada <ada@example.org>")
    with made.transaction("main", message="first") as tx:
        tx.create_dataset("t", columns={"A": "int64", "a": "int64"}).append({"A": [1], "a": [2]})
        tx.create_dataset("ids", columns={"ROW_ID": "int64"}).append({"ROW_ID": [7]})
    with pytest.raises(tr.InvalidInputError, match="does not tell column 'A' of t from 'a'"):
        made.sql("SELECT a FROM t")
    assert list(made.sql("SELECT * FROM ids")) == [{"ROW_ID": 7}]


def test_columns_of_one_name_are_kept_apart(repo: tr.Repository) -> None:
    query = "SELECT 1 AS a, 2 AS a"
    assert "1  2" in repr(repo.sql(query))
    assert [column.to_pylist() for column in repo.sql(query).arrow().columns] == [[1], [2]]
    with pytest.raises(tr.InvalidInputError, match="several columns are called 'a'"):
        list(repo.sql(query))


def test_what_is_shown_commands_no_terminal(repo: tr.Repository) -> None:
    assert "\\x1b[31mred\\n" in repr(repo.sql("SELECT chr(27) || '[31mred' || chr(10) AS x"))


def test_nothing_asked_gives_nothing(repo: tr.Repository) -> None:
    assert repo.sql("").head() == ([], False)


def test_errors_of_the_catalog_come_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSORREPO_CATALOG", "mysql://host/catalog")
    made = tr.init("memory://sql-catalog", author="Ada <ada@example.org>")
    with pytest.raises(tr.InvalidInputError, match=r"^a catalog cannot be in mysql"):
        made.sql("SELECT * FROM catalog.ref").arrow()


# ------------------------------------------------------------------------------ sessions


def test_a_query_that_was_stopped_does_not_stop_the_next(repo: tr.Repository) -> None:
    session = DuckSession(tables_of(repo.context, "main"))
    session.scanned.stop.set()  # as Ctrl-C does
    session.scanned.failed = tr.CorruptError("of the last query")
    assert len(session.query("SELECT * FROM fashion").arrow()) == 20
    with pytest.raises(tr.InvalidInputError, match="Could not convert"):
        session.query("SELECT 'a'::INT").arrow()


def test_rows_that_nobody_takes_fail_nothing() -> None:
    scanned = Scanned()
    batches = noting(scanned, iter([pa.record_batch({"a": [1]})] * 2))
    next(batches)
    batches.close()  # type: ignore[attr-defined]
    assert scanned.failed is None


def test_what_is_spilt_is_for_its_owner_and_goes_with_the_connection() -> None:
    connection = DuckSettings(memory="64MB").connect()
    folder = Path(connection.execute("SELECT current_setting('temp_directory')").fetchall()[0][0])
    assert folder.stat().st_mode & 0o777 == 0o700
    del connection
    assert not folder.exists()


def test_a_name_with_a_dot_is_not_that_of_a_space() -> None:
    repo = tr.init("memory://dots", author="Ada <ada@example.org>")
    with repo.transaction("main") as tx:
        tx.create_dataset("t", columns={"a": "int64"}).append({"a": [1, 2]})
        tx.create_dataset("datasets.t", columns={"a": "int64"}).append({"a": [1, 2, 3]})
    query = 'SELECT (SELECT count(*) FROM datasets.t) a, (SELECT count(*) FROM "datasets.t") b'
    assert list(repo.sql(query)) == [{"a": 2, "b": 3}]


# ------------------------------------------------------------------------------ large tensors


@pytest.fixture(scope="module")
def large() -> tr.Repository:
    made = tr.init("memory://large", author="Ada <ada@example.org>")
    rng = np.random.default_rng(0)
    columns = {"a": tr.Tensor("uint8", (512, 512, 3)), "b": tr.Tensor("float32", (4, 96, 96))}
    rows = {
        "a": rng.integers(0, 255, (2, 512, 512, 3), dtype="u1"),
        "b": rng.random((2, 4, 96, 96), dtype="f4"),
    }
    with made.transaction("main") as tx:
        tx.create_dataset("images", columns=columns).append(rows)
    return made


def test_one_large_image_takes_little_memory(large: tr.Repository) -> None:
    found = large.sql("SELECT a FROM images LIMIT 1", memory="256MB").arrow()["a"][0].as_py()
    assert np.array_equal(np.array(found, "u1"), large.dataset("images")["a"][0])


def test_functions_take_large_tensors(large: tr.Repository) -> None:
    query = """SELECT tensor_shape(a) AS a, tensor_shape(b) AS b, element(b, 3, 4, 5) AS x,
               l2(b, b) AS none FROM images WHERE row_number = 1"""
    at = float(large.dataset("images")["b"][1][3, 4, 5])
    expected = {"a": [512, 512, 3], "b": [4, 96, 96], "x": at, "none": 0.0}
    assert list(large.sql(query)) == [expected]


def test_large_tensors_are_values_of_columns(large: tr.Repository) -> None:
    with large.transaction("main") as tx:
        tx.dataset("images").add_column("c", tr.Tensor("float32", (4, 96, 96)), sql="b")
    changed = large.dataset("images")
    assert np.array_equal(changed["c"][:], changed["b"][:])


def test_an_error_that_was_reworded_already_says_once_that_it_is_of_sql() -> None:
    said = str(reworded("InvalidInputError", "SQL: one SELECT is taken", tuple))
    assert said == "SQL: one SELECT is taken"
