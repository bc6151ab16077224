"""F2: a nightly sync stores what changed, and what people changed meanwhile stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorrepo as tr
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.envelope import Kind
from tests.support.processes.shell import Shell, write_pictures

ROWS = [(at, f"n{at}", f"{at:03d}", at / 7) for at in range(300)]


def write_people(path: Path, rows: list[tuple[int, str, str, float]]) -> None:
    lines = [",".join(map(str, row)) for row in rows]
    path.write_text("\n".join(["id,name,code,x", *lines, ""]))


def stored_bytes(shell: Shell) -> int:
    objects = shell.folder / ".tensorrepo/store/objects"
    return sum(path.stat().st_size for path in objects.rglob("*") if path.is_file())


@pytest.fixture
def people(shell: Shell) -> Shell:
    """A dataset that people.csv was added as, with one commit."""
    write_people(shell.folder / "people.csv", ROWS)
    shell("add", "people.csv", "--dataset", "people", "-o", "text_columns=code")
    shell("commit", "-m", "People")
    return shell


def add(shell: Shell, *flags: str) -> str:
    return shell("add", "people.csv", "--dataset", "people", *flags)


def names(shell: Shell) -> list[str]:
    return [row["name"] for row in shell.repository().dataset("people")]


@pytest.mark.parametrize("mode", ["--sync", "--mirror", "--replace"])
def test_a_source_that_did_not_change_stores_nothing(people: Shell, mode: str) -> None:
    before = stored_bytes(people)
    assert "unchanged" in add(people, mode)
    assert stored_bytes(people) == before
    assert not people.json("status")["staged"]


def test_what_people_changed_meanwhile_stays(people: Shell) -> None:
    people("update", "people", "--where", "id == 7", "--set", "name=Ada")
    people("commit", "-m", "A name mended by hand")
    rows = [*ROWS, (300, "new", "300", 0.5)]
    for night in range(2):
        rows[9] = (9, f"night {night}", "009", 9 / 7)
        write_people(people.folder / "people.csv", rows)
        add(people, "--sync")
        people("commit", "-m", f"Night {night}")
        assert (names(people)[7], names(people)[9]) == ("Ada", f"night {night}")
    assert len(names(people)) == 301
    added = people("blame", "people", "--row", "3")
    assert "Night" not in added


def test_a_cell_that_both_changed_is_a_conflict_that_either_side_may_win(people: Shell) -> None:
    people("update", "people", "--where", "id == 7", "--set", "name=Ada")
    people("commit", "-m", "A name mended by hand")
    write_people(people.folder / "people.csv", [*ROWS[:7], (7, "Eve", "007", 1.0), *ROWS[8:]])
    before = people.snapshot()
    told = people.fails(4, "add", "people.csv", "--dataset", "people", "--sync")
    assert all(word in told for word in ("name", "n7", "Ada", "Eve", "--theirs-source"))
    assert people.snapshot() == before
    add(people, "--sync", "--ours")
    people("commit", "-m", "Ours")
    assert names(people)[7] == "Ada"
    write_people(people.folder / "people.csv", [*ROWS[:7], (7, "Eva", "007", 1.0), *ROWS[8:]])
    add(people, "--sync", "--theirs-source")
    people("commit", "-m", "Theirs")
    assert names(people)[7] == "Eva"


def test_mirror_makes_the_rows_those_of_the_source(people: Shell) -> None:
    people("update", "people", "--where", "id == 7", "--set", "name=Ada")
    people("commit", "-m", "A name mended by hand")
    add(people, "--mirror")
    people("commit", "-m", "As the source")
    assert names(people) == [row[1] for row in ROWS]


def test_replace_takes_the_columns_as_well_and_rows_keep_their_ids(people: Shell) -> None:
    before = people.repository().dataset("people").row_ids(slice(None))
    lines = [f"{at},{name}" for at, name, _, _ in ROWS[:200]]
    (people.folder / "people.csv").write_text("\n".join(["id,name", *lines]))
    add(people, "--replace")
    people("commit", "-m", "Fewer")
    dataset = people.repository().dataset("people")
    assert dataset.schema.names == ("id", "name")
    assert dataset.row_ids(slice(None)) == before[:200]


def test_the_key_of_a_dataset_matches_rows_in_any_order(people: Shell) -> None:
    before = people.repository().dataset("people").row_ids(slice(None))
    people("dataset", "set", "people", "key=id")
    people("commit", "-m", "A key")
    write_people(people.folder / "people.csv", [(299, "last", "299", 0.0), *ROWS[:-1][::-1]])
    add(people, "--sync")
    people("commit", "-m", "Turned round")
    assert names(people) == [*(row[1] for row in ROWS[:-1]), "last"]
    assert people.repository().dataset("people").row_ids(slice(None)) == before
    write_people(people.folder / "people.csv", [*ROWS, ROWS[5]])
    assert "id=5" in people.fails(2, "add", "people.csv", "--dataset", "people", "--sync")


@pytest.mark.soak
def test_pictures_are_matched_by_their_files(shell: Shell) -> None:
    folder = shell.folder / "photos"
    write_pictures(folder, ("cat", "dog"), each=4)
    shell("add", "photos", "--dataset", "photos")
    shell("commit", "-m", "Photos")
    before = stored_bytes(shell)
    assert "unchanged" in shell("add", "photos", "--dataset", "photos", "--sync")
    assert stored_bytes(shell) == before
    shell("update", "photos", "--row", "0", "--set", "label=dog")
    shell("commit", "-m", "That is a dog")
    write_pictures(folder, ("bird",), each=1)
    next((folder / "dog").iterdir()).unlink()
    shell("add", "photos", "--dataset", "photos", "--sync")
    shell("commit", "-m", "A bird came, a dog went")
    photos = shell.repository().dataset("photos")
    labels = [photos.schema.column("label").type.names[row["label"]] for row in photos]
    assert sorted(labels) == ["bird", "cat", "cat", "cat", *["dog"] * 4]
    assert "+1 row" in shell("diff", "HEAD~1", "HEAD")
    assert "-1 row" in shell("diff", "HEAD~1", "HEAD")


def test_python_syncs_alike(people: Shell) -> None:
    repository = people.repository()
    write_people(people.folder / "people.csv", [*ROWS[:7], (7, "Eve", "007", 1.0), *ROWS[8:]])
    with repository.transaction(message="Tonight") as tx:
        draft = tx.dataset("people")
        draft.sync(tr.read(people.folder / "people.csv", text_columns="code"), key="id")
        assert draft.synced is not None
        assert draft.synced.report.updated == 1
    assert names(people)[7] == "Eve"
    with repository.transaction(message="Nothing") as tx:
        tx.dataset("people").sync(tr.read(people.folder / "people.csv", text_columns="code"))
        assert not tx.dataset("people").synced


def test_what_python_made_of_a_file_is_synced_with_it_as_what_add_made(shell: Shell) -> None:
    path = shell.folder / "people.csv"
    write_people(path, ROWS)
    repository = shell.repository()
    with repository.transaction(message="People") as tx:
        tx.create_dataset("people", path, columns={"code": tr.Text()})
    with repository.transaction(message="A name mended by hand") as tx:
        tx.dataset("people").update("id == 7", {"name": "Ada"})
    write_people(path, [*ROWS[:9], (9, "night", "009", 9 / 7), *ROWS[10:]])
    with repository.transaction(message="Tonight") as tx:
        draft = tx.dataset("people").sync(path)
        assert draft.synced is not None
        assert draft.synced.report.updated == 1
    assert (names(shell)[7], names(shell)[9]) == ("Ada", "night")


def test_floats_that_the_source_rounds_are_told_where_rows_change_by_it(shell: Shell) -> None:
    numbers = {"id": np.arange(100), "x": np.arange(100) / 7}
    flags = ("add", "night.parquet", "--dataset", "night")
    pq.write_table(pa.table(numbers), shell.folder / "night.parquet")
    shell(*flags)
    shell("commit", "-m", "Night 1")
    narrow = numbers | {"x": numbers["x"].astype(np.float32)}
    pq.write_table(pa.table(narrow), shell.folder / "night.parquet")
    told = " ".join(shell.run(*flags, "--sync").stderr.split())
    assert "columns 'x' have floats of fewer bits in the source than here" in told
    shell("commit", "-m", "Night 2")
    pq.write_table(pa.table(numbers), shell.folder / "night.parquet")
    assert "fewer bits" not in shell.run(*flags, "--sync").stderr


def test_a_source_without_rows_deletes_nothing(people: Shell) -> None:
    (people.folder / "people.csv").write_text("id,name,code,x\n")
    for mode in ("--sync", "--mirror", "--replace"):
        told = people.fails(2, "add", "people.csv", "--dataset", "people", mode)
        assert "no rows" in told
    assert not people.json("status")["staged"]
    assert len(names(people)) == len(ROWS)


def test_what_the_source_was_is_kept_once_however_often_it_is_synced(people: Shell) -> None:
    for night in range(3):
        write_people(people.folder / "people.csv", [*ROWS, (300 + night, "new", "9", 0.5)])
        add(people, "--mirror")
        people("commit", "-m", f"Night {night}")
    objects = people.repository().context.core.objects
    root = people.repository().dataset("people").digest
    (state,) = [link for link in objects.get(root).links if link.kind is Kind.DATASET]
    assert [link.kind for link in objects.get(state.digest).links].count(Kind.DATASET) == 0


def test_rows_that_a_sync_passes_over_are_not_deleted(people: Shell) -> None:
    lines = [",".join(map(str, row)) for row in ROWS]
    lines[7] = "7,n7,007,seven"  # which is no number
    lines[9] = "9,night,009,0.5"
    (people.folder / "people.csv").write_text("\n".join(["id,name,code,x", *lines[:-1]]))
    told = people.fails(
        2, "add", "people.csv", "--dataset", "people", "--sync", "--on-error", "skip"
    )
    assert "--key" in told
    assert len(names(people)) == 300
    for mode in ("--sync", "--mirror"):
        done = people.run(
            "add", "people.csv", "--dataset", "people", mode, "--key", "id", "--on-error", "skip"
        )
        assert "2 rows that the source did not show stay" in done.stderr
    people("commit", "-m", "Some")
    assert (names(people)[7], names(people)[9], names(people)[299]) == ("n7", "night", "n299")
    write_people(people.folder / "people.csv", ROWS[:-1])
    add(people, "--sync", "--key", "id")
    people("commit", "-m", "All")
    assert len(names(people)) == 299


def test_a_damaged_picture_is_not_taken_for_one_that_went(shell: Shell) -> None:
    folder = shell.folder / "photos"
    write_pictures(folder, ("cat", "dog"), each=4)
    shell("add", "photos", "--dataset", "photos")
    shell("commit", "-m", "Photos")
    (folder / "cat" / "01.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    flags = ("--dataset", "photos", "--sync", "--on-error", "skip")
    added = shell.json("add", "photos", *flags)
    assert added["deleted"] == 0
    assert len(shell.repository().dataset("photos")) == 8


def test_flags_that_say_nothing_are_refused(people: Shell) -> None:
    for flags in (
        ["--append", "--key", "id"],
        ["--mirror", "--ours"],
        ["--sync", "--ours", "--theirs-source"],
    ):
        people.fails(2, "add", "people.csv", "--dataset", "people", *flags)


def test_python_names_what_is_wrong(people: Shell) -> None:
    source = tr.read(people.folder / "people.csv")
    with people.repository().transaction(message="Wrong") as tx:
        draft = tx.dataset("people")
        with pytest.raises(InvalidInputError, match="source is a path, a URL, or what"):
            draft.sync({"id": [1]})  # type: ignore[arg-type]
        with pytest.raises(InvalidInputError, match=r"prefer is 'ours' or 'theirs'"):
            draft.sync(source, prefer="mine")  # type: ignore[arg-type]
