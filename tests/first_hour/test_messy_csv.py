"""F29: a CSV column that turns to text says which line did it; a name there twice is mended."""

from __future__ import annotations

import pytest

from tests.support.processes.shell import Shell

ROWS = 290_000


def notes_of(shell: Shell, *words: str) -> str:
    """What `add` notes, in one line."""
    done = shell.run("add", *words)
    assert done.exit_code == 0, done.output
    return " ".join(done.stderr.split())


def test_the_line_that_makes_a_column_text_is_named(shell: Shell) -> None:
    lines = [f"{at},{at}" for at in range(ROWS)]
    lines[-1] = "n/a,7"
    (shell.folder / "t.csv").write_text("\n".join(["id,x", *lines, ""]))
    told = notes_of(shell, "t.csv", "--dataset", "t")
    assert f"column 'id' is text because of line {ROWS + 1} of" in told
    assert "null_values=n/a" in told
    assert "is text" not in notes_of(shell, "t.csv", "--dataset", "u", "-o", "null_values=n/a")


@pytest.mark.parametrize("options", [[], ["-o", "damaged=skip"]])
def test_a_name_that_is_there_twice_gets_a_number(shell: Shell, options: list[str]) -> None:
    rows = "id,x,id,id_2\n1,a,10,100\n2,b,20,200\n"
    (shell.folder / "t.csv").write_text(rows)
    told = notes_of(shell, "t.csv", "--dataset", "t", *options)
    assert "column 3 is called 'id' as one before it: it is 'id_3' here" in told
    shell("commit", "-m", "T")
    assert dict(shell.repository().dataset("t")[1]) == {"id": 2, "x": "b", "id_3": 20, "id_2": 200}


def test_rows_behind_such_a_header_are_named_by_their_line(shell: Shell) -> None:
    (shell.folder / "t.csv").write_text('id,id\n1,2\n"3\n",4\n5,6,7\n8,9\n')
    assert "line 5" in shell.fails(2, "add", "t.csv", "--dataset", "t")
    told = notes_of(shell, "t.csv", "--dataset", "t", "-o", "damaged=skip")
    assert "row 2: has 3 cells, expected 2" in told
    shell("commit", "-m", "T")
    assert shell.repository().dataset("t")["id_2"][:].tolist() == [2, 4, 9]
