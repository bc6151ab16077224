"""SQL and views, as somebody types them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorrepo.cli import sql as command
from tensorrepo.cli.sql import converse
from tensorrepo.repo.errors import InvalidInputError
from tests.support.processes.shell import Shell

COUNT = "SELECT count(*) AS n FROM points"


def test_a_query_prints_a_table(full: Shell) -> None:
    assert full("sql", COUNT).split() == ["n", str(_rows(full))]


def _rows(shell: Shell) -> int:
    return len(shell.repository().dataset("points"))


def test_a_query_may_name_a_commit(full: Shell) -> None:
    full("delete", "points", "--row", "0")
    full("commit", "-m", "One less")
    now, before = _rows(full), _rows(full) + 1
    assert full("sql", COUNT, "--format", "csv") == f"n\n{now}\n"
    assert full("sql", COUNT, "--ref", "v1", "--format", "csv") == f"n\n{before}\n"
    assert full("sql", 'SELECT count(*) AS n FROM "points@v1"', "--format", "json") == (
        f'{{"n": {before}}}\n'
    )


@pytest.mark.parametrize("name", ["rows.parquet", "rows.arrow", "rows.csv", "rows.json"])
def test_rows_are_written_in_the_format_of_the_suffix(full: Shell, name: str) -> None:
    full("sql", "SELECT range AS n FROM range(3)", "--to", name)
    found = _READ[name](full.folder / name)
    assert found == [0, 1, 2]
    assert not list(full.folder.glob(".*.part"))


def test_a_file_of_the_user_beside_the_rows_stays(full: Shell) -> None:
    (full.folder / "rows.csv.part").write_text("precious")
    full("sql", "SELECT 1 AS n", "--to", "rows.csv")
    assert (full.folder / "rows.csv.part").read_text() == "precious"
    assert not list(full.folder.glob(".*.part"))


def test_json_has_no_nan(full: Shell) -> None:
    query = "SELECT 'nan'::DOUBLE AS a, ['-inf'::DOUBLE] AS b, 1 AS c, 'ab'::BLOB AS d"
    told = full("sql", query, "--format", "json")
    assert told == '{"a": "NaN", "b": ["-Infinity"], "c": 1, "d": {"bytes": 2, "base64": "YWI="}}\n'


_READ: dict[str, Any] = {
    "rows.parquet": lambda path: pq.read_table(path)["n"].to_pylist(),
    "rows.arrow": lambda path: pa.ipc.open_file(path).read_all()["n"].to_pylist(),
    "rows.csv": lambda path: [int(line) for line in path.read_text().split()[1:]],
    "rows.json": lambda path: [json.loads(line)["n"] for line in path.read_text().splitlines()],
}


def test_parameters_are_values(full: Shell) -> None:
    given = ["--param", "a=3", "--param", "b=it's"]
    told = full("sql", "SELECT $a AS a, $b AS b", *given, "--format", "json")
    assert json.loads(told) == {"a": 3, "b": "it's"}


def test_a_query_is_read_from_standard_input(full: Shell) -> None:
    from typer.testing import CliRunner

    from tensorrepo.cli.main import app

    done = CliRunner().invoke(
        app, ["-C", str(full.folder), "sql", "--format", "csv"], input=COUNT, env=full.variables
    )
    assert done.stdout == f"n\n{_rows(full)}\n"


@pytest.mark.together
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["SELECT * FROM pionts"], 3, "Did you mean 'points'"),
        (["SELECT * FROM"], 2, "syntax error"),
        ([COUNT, "--format", "xml"], 2, "expected one of table, csv"),
        ([COUNT, "--format", "parquet"], 2, "name a file with --to"),
        ([COUNT, "--param", "x"], 2, "expected NAME=VALUE"),
        ([COUNT, "--to", "no/such/folder.csv"], 2, "cannot write"),
        ([COUNT, "--to", "/"], 2, "it is a folder"),
        ([COUNT, "--to", "rows.xlsx"], 2, "expected one that ends in .csv"),
        ([COUNT, "--to", "rows"], 2, "cannot tell the format"),
        ([COUNT, "--memory", "-1"], 2, "--memory"),
        (["SELECT 1 AS a, 2 AS a", "--format", "json"], 2, "several columns are called 'a'"),
    ],
)
def test_what_is_wrong_is_said(full: Shell, words: list[str], code: int, said: str) -> None:
    assert said in full.fails(code, "sql", *words).replace("\n", " ")


def test_columns_of_one_name_are_all_printed(full: Shell) -> None:
    query = "SELECT 1 AS a, 2 AS a"
    assert full("sql", query).split() == ["a", "a", "1", "2"]
    assert full("sql", query, "--format", "csv") == "a,a\n1,2\n"


def test_untrusted_queries_reach_nothing(full: Shell) -> None:
    query = "SELECT * FROM read_text('/etc/hosts')"
    assert "disabled" in full.fails(6, "sql", "--untrusted", query)


def test_views_are_staged_committed_shown_and_refreshed(full: Shell) -> None:
    query = "SELECT row_id FROM points WHERE row_number < 2"
    told = full("view", "create", "first", query)
    assert "views/first: 2 rows of datasets/points, staged" in told
    assert "exists" in full.fails(4, "view", "create", "first", query)
    full("commit", "-m", "A view")
    assert full.json("view", "show", "first")["sql"] == query
    assert [each["rows"] for each in full.records("view", "ls")] == [2]
    assert "2 rows in 1 run" in full("view", "show", "first")
    assert full.json("dataset", "stream", "first")["rows"] == 2
    assert "views/first" in full("ls")
    assert len(full("cat", "first", "--json").splitlines()) == 2
    full("delete", "points", "--row", "0")
    full("commit", "-m", "One less")
    assert "1 row in, 1 row out" in full("view", "refresh", "first")
    full("commit", "-m", "Again")
    assert "1 row in, 1 row out" in full("diff", "HEAD~1", "HEAD")
    full("export", "first", "--format", "parquet", "--to", "first.parquet")
    assert pq.read_table(full.folder / "first.parquet").num_rows == 2


@pytest.mark.soak
def test_a_refresh_is_bounded_as_the_user_says(full: Shell) -> None:
    query = "SELECT row_id FROM points WHERE length(repeat(row_id, 1000000)) > 0"
    full("view", "create", "long", query)
    full("commit", "-m", "A view")
    told = full.fails(2, "view", "refresh", "long", "--memory", "1MiB")
    assert "memory" in told.lower()
    assert "--seconds" in full.fails(2, "view", "refresh", "long", "--seconds", "0")
    assert "0 rows in, 0 rows out" in full("view", "refresh", "long", "--seconds", "60")


def test_columns_and_values_come_from_expressions(full: Shell) -> None:
    full("dataset", "column", "add", "points", "place", "--sql", "row_number * 2")
    full("update", "points", "--sql", "place=place + 1", "--where", "place >= 4")
    full("commit", "-m", "By SQL")
    found = full.repository().dataset("points")["place"][:4].tolist()
    assert found == [0, 2, 5, 7]


def test_decimals_of_expressions_are_floats(full: Shell) -> None:
    full("dataset", "column", "add", "points", "half", "--sql", "row_number * 0.5")
    full("update", "points", "--sql", "half=half + 0.25", "--where", "row_number = 1")
    full("commit", "-m", "By SQL")
    assert full.repository().dataset("points")["half"][:3].tolist() == [0, 0.75, 1]


def test_a_prompt_asks_what_ends_in_a_semicolon_and_goes_on_after_errors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked: list[str] = []
    lines: Iterator[Any] = iter(
        ["SELECT 1;", "SELECT", "2;", "left", KeyboardInterrupt(), "bad;", "SELECT 3;", EOFError()]
    )

    def read(_: str) -> str:
        line = next(lines)
        if isinstance(line, BaseException):
            raise line
        return line

    def ask(query: str) -> None:
        if query == "bad;":
            raise InvalidInputError("SQL: no")
        asked.append(query)

    converse(read, ask)
    assert asked == ["SELECT 1;", "SELECT\n2;", "SELECT 3;"]
    assert "SQL: no" in capsys.readouterr().err


def test_a_prompt_ends_when_somebody_says_so() -> None:
    lines = io.StringIO("quit\nSELECT 1;\n")
    converse(lambda _: lines.readline(), pytest.fail)


def test_sql_needs_no_commit(shell: Shell) -> None:
    assert shell("sql", "SELECT 1 AS a", "--format", "csv") == "a\n1\n"
    assert "no table 'x'" in shell.fails(3, "sql", "SELECT * FROM x")


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Queries that somebody types at the prompt of a terminal."""
    typed: list[str] = []

    def prompt(ask: Callable[[str], None], *_: object) -> None:
        for query in typed:
            ask(query)

    monkeypatch.setattr(command, "prompt", prompt)
    monkeypatch.setattr(command, "_is_terminal", lambda: True)
    return typed


def test_the_prompt_answers_in_the_format_that_is_asked_for(
    full: Shell, at_a_terminal: list[str]
) -> None:
    at_a_terminal += ["SELECT 1 AS a", "SELECT 2 AS b"]
    assert full("sql", "--format", "csv") == "a\n1\nb\n2\n"
    assert full("sql", "--json") == '{"a": 1}\n{"b": 2}\n'


def test_the_prompt_gives_each_query_the_parameters_that_it_names(
    full: Shell, at_a_terminal: list[str]
) -> None:
    at_a_terminal += ["SELECT $a AS a", "SELECT 2 AS b", "SELECT $a + $b AS c"]
    given = ["--param", "a=1", "--param", "b=5"]
    assert full("sql", "--format", "csv", *given) == "a\n1\nb\n2\nc\n6\n"


def test_the_prompt_writes_no_file(full: Shell, at_a_terminal: list[str]) -> None:
    at_a_terminal += ["SELECT 1"]
    assert "--to keeps the rows of one query" in full.fails(2, "sql", "--to", "a.csv")


def test_a_view_has_no_name_of_a_dataset(full: Shell) -> None:
    query = "SELECT row_id FROM points"
    assert "there is a dataset 'points'" in full.fails(4, "view", "create", "points", query)
    full("view", "create", "other", query)


def test_control_characters_are_shown_and_not_obeyed(full: Shell) -> None:
    (full.folder / "bad.csv").write_text('text\n"\x1b[2Jgone\x07"\n"日本　語"\n')
    full("add", "bad.csv", "--dataset", "bad")
    full("commit", "-m", "Bad")
    shown = full("cat", "bad") + full("sql", "SELECT * FROM bad")
    assert "\x1b" not in shown
    assert shown.count("\\x1b[2Jgone\\x07") == 2
    assert shown.count("日本　語") == 2


def test_what_a_terminal_would_obey_is_shown_escaped(full: Shell) -> None:
    full("view", "create", "other", "SELECT row_id FROM points -- \x1b]0;title\x07")
    full("commit", "-m", "A view")
    assert r"-- \x1b]0;title\x07" in full("view", "show", "other")
