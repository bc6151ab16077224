"""F18, F19, F20: SQL shows tables and class names, and its prompt is left and helped as others."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.catalog.sql import tables_of
from tensorrepo.cli.sql import HELP, converse
from tensorrepo.query.sql.duck import DuckSession
from tests.support.effort import sampled_product
from tests.support.processes.shell import Shell, write_pictures
from tests.tensorrepo.conftest import workplace


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    shell = workplace(tmp_path_factory.mktemp("pets"))
    shell("init")
    write_pictures(shell.folder / "pets", ("cat", "dog", "eel"))
    shell("add", "pets", "--dataset", "pets")
    shell("commit", "-m", "pets")
    return shell


def typed(*lines: str) -> list[str]:
    """The queries that the prompt asks when somebody types these lines."""
    asked: list[str] = []
    left: Iterator[str] = iter(lines)

    def read(_: str) -> str:
        line = next(left, None)
        if line is None:
            raise EOFError
        return line

    converse(read, asked.append)
    return asked


@pytest.mark.parametrize("query", ["SHOW TABLES", "show all tables;", "DESCRIBE"])
@pytest.mark.parametrize("how", [(), ("--untrusted",)])
def test_show_tables_answers_what_there_is(pets: Shell, query: str, how: tuple[str, ...]) -> None:
    names = [record["name"] for record in pets.records("sql", query, *how)]
    assert names[0] == "pets"
    assert "catalog.model_version" in names


@pytest.mark.parametrize("how", [(".tables",), ("\\dt;",), ("-",)])
def test_a_word_of_the_prompt_is_a_query_too(
    pets: Shell, how: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pets, "piped", b".tables\n")
    assert pets("sql", *how) == pets("sql", "SHOW TABLES")
    assert "Did you mean .tables" in pets.fails(2, "sql", ".tabels")


def test_show_tables_tells_of_tables_that_the_session_made() -> None:
    repo = tr.init(f"memory://{uuid4()}", author="Ada <ada@example.org>")
    session = DuckSession(tables_of(repo.context, "main"))
    session.query("CREATE TEMP TABLE mine AS SELECT 1 AS a")
    assert "mine" in session.query("SHOW TABLES").arrow()["name"].to_pylist()


def test_describe_shows_columns(pets: Shell) -> None:
    records = pets.records("sql", "DESCRIBE pets")
    types = {each["column_name"]: each["column_type"] for each in records}
    assert types == {"image": "BLOB", "label": "VARCHAR", "file": "VARCHAR"}


def test_a_typing_error_leads_to_the_table(pets: Shell) -> None:
    assert "Did you mean 'pets'?" in pets.fails(3, "sql", "SELECT * FROM petz")


@sampled_product(
    "condition,how",
    ["label = 'cat'", "label IN ('cat')", "label_number = 0", "label LIKE 'c%'"],
    [(), ("--untrusted",)],
    dev=4,
)
def test_a_class_has_its_name_and_its_number(
    pets: Shell, condition: str, how: tuple[str, ...]
) -> None:
    query = f"SELECT DISTINCT label, label_number AS n FROM pets WHERE {condition}"
    assert pets.records("sql", query, *how) == [{"label": "cat", "n": 0}]


def test_a_number_compared_with_a_name_is_told_where_numbers_are(pets: Shell) -> None:
    told = pets.fails(2, "sql", "SELECT * FROM pets WHERE label = 1")
    assert "label_number is their numbers" in told


@pytest.mark.parametrize("condition", ["label = 'eel'", "label_number >= 2", "label IN ('eel')"])
def test_a_condition_on_a_class_skips_pages(condition: str) -> None:
    repo = tr.init(f"memory://{uuid4()}", author="Ada <ada@example.org>")
    rows = 400_000
    with repo.transaction(message="sorted") as tx:
        columns = {"label": tr.ClassLabel(("cat", "dog", "eel")), "n": "int64"}
        draft = tx.create_dataset("sorted", columns=columns)
        draft.append({"label": np.arange(rows) * 3 // rows, "n": np.arange(rows)})
    found = repo.sql(f"SELECT count(*) AS n FROM sorted WHERE {condition}")
    whole = repo.sql("SELECT count(*) AS n FROM sorted WHERE label LIKE 'e%'")
    assert list(found) == list(whole) == [{"n": rows - -(-2 * rows // 3)}]
    assert found.scanned.rows < whole.scanned.rows


@pytest.mark.parametrize(
    ("line", "query"),
    [
        (".tables", "SHOW TABLES"),
        ("\\dt", "SHOW TABLES"),
        ("\\d", "SHOW TABLES"),
        (".schema pets", 'DESCRIBE "pets"'),
        ('\\d "a b";', 'DESCRIBE "a b"'),
    ],
)
def test_words_of_other_prompts_ask(line: str, query: str) -> None:
    assert typed(line) == [query]


@pytest.mark.parametrize("word", ["help", ".help", "\\?", "HELP;"])
def test_help_is_told(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert typed(word) == []
    assert capsys.readouterr().out == f"{HELP}\n"


@pytest.mark.parametrize("word", ["quit", "exit", "quit;", ".quit", ".exit", "\\q"])
def test_the_prompt_is_left(word: str) -> None:
    assert typed(word, "SELECT 1;") == []


def test_an_unknown_word_of_the_prompt_leads_to_a_known_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert typed(".tabels", "SELECT 1;") == ["SELECT 1;"]
    assert "Did you mean .tables or" in capsys.readouterr().err


def test_rows_show_class_names(pets: Shell) -> None:
    assert pets.records("cat", "pets", "--columns", "label", "-n", "1") == [{"label": "cat"}]
    assert "cat/00.png" in pets("cat", "pets", "--columns", "label,file", "-n", "1")
