"""F3: a dataset that was checked out, edited and added again keeps its rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from pyarrow import csv

import tensorrepo as tr
from tests.first_hour.test_nightly_sync import ROWS, write_people
from tests.support.processes.shell import Shell


def committed(shell: Shell) -> list[str]:
    """Commits people.csv as a dataset; gives the ids of its rows."""
    write_people(shell.folder / "people.csv", ROWS)
    shell("add", "people.csv", "--dataset", "people")
    shell("commit", "-m", "People")
    shell("checkout", "HEAD", "people")
    return shell.repository().dataset("people").row_ids(slice(None))


def edit(shell: Shell) -> None:
    """One cell changes, and one row goes, in the file that was checked out."""
    path = shell.folder / "datasets/people.csv"
    table = csv.read_csv(path)
    names = table.column("name").to_pylist()
    names[3] = "edited"
    place = table.schema.get_field_index("name")
    table = table.set_column(place, "name", pa.array(names))
    csv.write_csv(pa.concat_tables([table.slice(0, 5), table.slice(6)]), path)


VALUES = """id,text,x,flag,when,label
1,"",-0.0,true,2024-01-01 12:00:00,007
2,,nan,,,"a ""b"", c"
3,"x
y",1e-300,false,1969-12-31 23:59:59,é
,n/a,inf,true,2024-01-01 00:00:00,
"""


def test_what_came_from_csv_comes_back_as_csv_and_as_the_same(shell: Shell) -> None:
    (shell.folder / "t.csv").write_text(VALUES)
    shell("add", "t.csv", "--dataset", "t")
    shell("commit", "-m", "T")
    assert "wrote datasets/t.csv (csv, 1 file" in shell("checkout", "HEAD", "t")
    shell("add", "datasets/t.csv", "--dataset", "again", "-o", "text_columns=text,label")
    told = shell("add", "datasets/t.csv")
    assert "datasets/t is unchanged" in told
    shell("commit", "-m", "Again")
    repo = shell.repository()
    kept = [repr(row) for row in repo.dataset("t")]
    assert [repr(row) for row in repo.dataset("again")] == kept


def test_what_no_csv_holds_comes_back_as_parquet_and_says_so(shell: Shell) -> None:
    committed(shell)
    with shell.repository().transaction() as tx:
        values = np.zeros((tx.dataset("people").rows, 2))
        tx.dataset("people").add_column("v", tr.Tensor("float64", (2,)), values)
    shell("checkout", "main", "--update")
    assert "people.parquet (parquet" in shell("checkout", "main", "people")
    done = shell.run("checkout", "main", "people", "--force")
    assert "export people --to PATH --format csv" in " ".join(done.stderr.split())


def test_one_cell_is_one_cell(shell: Shell) -> None:
    before = committed(shell)
    edit(shell)
    shell("add", "datasets/people.csv")
    shell("commit", "-m", "Edited")
    assert "-1 row, 1 row updated" in shell("diff", "HEAD~1", "HEAD")
    after = shell.repository().dataset("people").row_ids(slice(None))
    assert after == [*before[:5], *before[6:]]
    assert "Edited" in shell("blame", "people", "--row", "3")
    assert "Edited" not in shell("blame", "people", "--row", "4")


def test_what_a_colleague_changed_meanwhile_is_merged(shell: Shell) -> None:
    committed(shell)
    shell("switch", "-c", "labels")
    shell("update", "people", "--where", "id == 7", "--set", "name=mended")
    shell("commit", "-m", "A label")
    shell("switch", "main")
    edit(shell)
    shell("add", "datasets/people.csv")
    shell("commit", "-m", "Edited")
    shell("merge", "labels")
    names = {row["id"]: row["name"] for row in shell.repository().dataset("people")}
    assert (names[3], names[7]) == ("edited", "mended")
    assert 5 not in names


def test_the_next_edit_of_the_file_does_not_undo_what_came_meanwhile(shell: Shell) -> None:
    committed(shell)
    shell("update", "people", "--where", "id == 7", "--set", "name=mended")
    shell("commit", "-m", "By hand")
    edit(shell)
    shell("add", "datasets/people.csv")
    shell("commit", "-m", "Edited")
    path = shell.folder / "datasets/people.csv"
    csv.write_csv(csv.read_csv(path).slice(1), path)
    shell("add", "datasets/people.csv")
    shell("commit", "-m", "Cut")
    names = {row["id"]: row["name"] for row in shell.repository().dataset("people")}
    assert (names[3], names[7]) == ("edited", "mended")
    assert {0, 5}.isdisjoint(names)
