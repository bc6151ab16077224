"""F24, F19: `cat` shows the columns and rows that are asked for, whole, and reads nothing else."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorrepo as tr
from tensorrepo.cli import output
from tensorrepo.formats.dataset.read import StoredDataset, read_live
from tensorrepo.formats.dataset.schema.values import ColumnValues
from tensorrepo.formats.dataset.selecting.select_rows import condition_rows
from tensorrepo.verbs import preview
from tensorrepo.verbs.preview import PreviewRequest
from tests.support.processes.shell import Shell
from tests.tensorrepo.conftest import workplace

LONG = "a sentence that goes on and on " * 5
MOMENT = "2024-01-01T00:00:00.000000001"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Shell:
    shell = workplace(tmp_path_factory.mktemp("table"))
    shell("init")
    moments = np.array([MOMENT] * 40, "M8[ns]")
    columns = {
        "n": pa.array(range(40)),
        "big": pa.array([2**64 - 1] * 40, pa.uint64()),
        "at": pa.array(moments),
        "text": pa.array([LONG, None] * 20),
        "two": pa.array(["first\nsecond"] * 40),
    }
    pq.write_table(pa.table(columns), shell.folder / "t.parquet")
    shell("add", "t.parquet", "--dataset", "t")
    shell("commit", "-m", "t")
    return shell


@pytest.fixture
def on_terminal(table: Shell, monkeypatch: pytest.MonkeyPatch) -> Shell:
    """The same shell at a terminal, without a pager, whose output nothing here would see."""
    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setattr(table, "environment", {"PAGER": "cat"})
    return table


def test_columns_and_rows_are_chosen(table: Shell) -> None:
    records = table.records("cat", "t", "--columns", "big,n", "--where", "n % 2 = 0 and n > 3")
    assert [list(each) for each in records] == [["big", "n"]] * 10
    assert [each["n"] for each in records] == list(range(4, 24, 2))


def test_rows_are_limited_and_passed_over_among_those_that_match(table: Shell) -> None:
    words = ("--where", "n >= 30", "--start", "2", "-n", "3", "--columns", "n")
    assert [each["n"] for each in table.records("cat", "t", *words)] == [32, 33, 34]
    assert [line.split()[0] for line in table("cat", "t", *words).splitlines()[1:]] == [
        "32", "33", "34",
    ]  # fmt: skip


@pytest.mark.parametrize("how", [("cat", "t", "-n", "2"), ("sql", "SELECT * FROM t LIMIT 2")])
def test_a_pipe_gets_whole_values(table: Shell, how: tuple[str, ...]) -> None:
    told = table(*how)
    assert LONG.rstrip() in told
    assert str(2**64 - 1) in told
    assert "first\\nsecond" in told
    assert " null " in told.splitlines()[2]


def test_moments_are_whole(table: Shell) -> None:
    assert MOMENT in table("cat", "t", "-n", "1")
    assert table.json("sql", 'SELECT "at" FROM t LIMIT 1') == {"at": MOMENT}


@pytest.mark.parametrize("how", [("cat", "t", "-n", "2"), ("sql", "SELECT * FROM t LIMIT 2")])
def test_rows_wider_than_the_terminal_stand_one_value_a_line(
    on_terminal: Shell, how: tuple[str, ...]
) -> None:
    lines = on_terminal(*how).splitlines()
    assert lines.count("") == 1
    assert any(line.split() == ["big", str(2**64 - 1)] for line in lines)
    assert max(map(len, lines)) <= 100


def test_rows_that_fit_are_a_table_on_a_terminal(on_terminal: Shell) -> None:
    assert on_terminal("cat", "t", "-n", "1", "--columns", "n").split() == ["row", "n", "0", "0"]


def test_one_value_a_line_is_whole(on_terminal: Shell) -> None:
    assert LONG.rstrip() in on_terminal("cat", "t", "-n", "1", "--vertical")


def test_only_these_rows_and_columns_are_read(
    table: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[list[str], list[int]]] = []

    def noted(dataset: StoredDataset, names: list[str], rows: Any) -> list[ColumnValues]:
        asked.append((names, rows.tolist()))
        return read_live(dataset, names, rows)

    monkeypatch.setattr(preview, "read_live", noted)
    table("cat", "t", "--columns", "n", "--start", "7", "-n", "2")
    assert asked == [(["n"], [7, 8])]


def test_a_condition_is_looked_for_until_there_are_rows_enough() -> None:
    repo = tr.init(f"memory://{uuid4()}", author="Ada <ada@example.org>")
    rows = 500_000
    with repo.transaction(message="many") as tx:
        tx.create_dataset("many", columns={"n": "int64"}).append({"n": np.arange(rows)})
    stored = repo.dataset("many").stored
    looked: list[int] = []
    found = condition_rows(stored, "n >= 3", looked.append)
    assert found is not None
    assert next(found)[0] == 3
    assert not looked or looked[-1] < rows
    shown = preview.preview_rows(stored, PreviewRequest(rows=2, where="n >= 3"))
    assert [number for number, _ in shown.records] == [3, 4]


def test_a_column_that_is_not_there_leads_to_one_that_is(table: Shell) -> None:
    assert "Did you mean 'text'?" in table.fails(3, "cat", "t", "--columns", "txt")
