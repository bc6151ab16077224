"""F3: a dataset that was checked out, edited and added again keeps its rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

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
    path = shell.folder / "datasets/people.parquet"
    table = pq.read_table(path)
    names = table.column("name").to_pylist()
    names[3] = "edited"
    place = table.schema.get_field_index("name")
    table = table.set_column(place, "name", pa.array(names, pa.large_string()))
    pq.write_table(pa.concat_tables([table.slice(0, 5), table.slice(6)]), path)


def test_one_cell_is_one_cell(shell: Shell) -> None:
    before = committed(shell)
    edit(shell)
    shell("add", "datasets/people.parquet")
    shell("commit", "-m", "Edited")
    assert "-1 rows, 1 rows updated" in shell("diff", "HEAD~1", "HEAD")
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
    shell("add", "datasets/people.parquet")
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
    shell("add", "datasets/people.parquet")
    shell("commit", "-m", "Edited")
    path = shell.folder / "datasets/people.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    shell("add", "datasets/people.parquet")
    shell("commit", "-m", "Cut")
    names = {row["id"]: row["name"] for row in shell.repository().dataset("people")}
    assert (names[3], names[7]) == ("edited", "mended")
    assert {0, 5}.isdisjoint(names)
