"""`blame`, and what `merge` tells of datasets that two people changed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorrepo as tr
from tests.support.processes.shell import Shell

ADA, BOB = "Ada <ada@example.org>", "Bob <bob@example.org>"


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    """datasets/people on main, with three rows."""
    opened = tr.init(tmp_path / "store", author=ADA)
    with opened.transaction(message="Start") as tx:
        draft = tx.create_dataset("people", {"name": tr.Text(), "age": "int64"})
        draft.append({"name": ["ann", "bea", "cyd"], "age": [30, 31, 32]})
    return opened


def test_blame_names_commit_and_author_of_every_value(repo: tr.Repository) -> None:
    with repo.transaction(message="A birthday") as tx:
        tx.dataset("people").update("name == 'bea'", {"age": 32})
    found = repo.blame("people", key={"name": "bea"})
    assert (found.row, found.added.subject) == (1, "Start")
    assert found["age"].origin.subject == "A birthday"
    assert found["age"].value == 32
    assert found["name"].origin.commit.author == ADA
    assert repo.blame("people", row=1).to_json() == found.to_json()
    assert repo.blame("people", row_id=found.row_id, columns=["age"]).cells == found.cells[1:]


def test_a_row_that_was_deleted_is_blamed_by_its_id(repo: tr.Repository) -> None:
    row_id = repo.blame("people", row=2).row_id
    with repo.transaction(message="Cyd left") as tx:
        tx.dataset("people").delete("name == 'cyd'")
    found = repo.blame("people", row_id=row_id)
    assert found.row is None
    assert found.deleted is not None
    assert found.deleted.subject == "Cyd left"
    assert found["name"].value == "cyd"


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({}, "exactly one"),
        ({"row": 1, "row_id": "0123456789abcdef:1"}, "exactly one"),
        ({"key": {"age": 30, "name": "bea"}}, "no row has key"),
        ({"row_id": "0123456789abcdef:1"}, "no version up to"),
        ({"row": 3}, "no row 3"),
    ],
)
def test_a_row_that_is_not_named_is_refused(
    repo: tr.Repository, named: dict[str, object], message: str
) -> None:
    with pytest.raises(tr.Error, match=message):
        repo.blame("people", **named)  # type: ignore[arg-type]  # wrong on purpose


def test_two_transactions_that_change_other_rows_both_land(repo: tr.Repository) -> None:
    with repo.transaction(message="Late") as late:
        late.dataset("people").update("name == 'ann'", {"age": 50}).add_column(
            "city", tr.Text(), default="here"
        )
        with repo.transaction(message="Early") as early:
            early.dataset("people").delete("name == 'bea'").append({"name": ["dan"], "age": [1]})
    rows = [dict(row) for row in repo.dataset("people")]
    assert [(row["name"], int(row["age"]), row["city"]) for row in rows] == [
        ("ann", 50, "here"),
        ("cyd", 32, "here"),
        ("dan", 1, "here"),
    ]
    assert repo.blame("people", row=2)["city"].origin.subject == "Late"
    assert repo.blame("people", row=2)["name"].origin.subject == "Early"


def test_two_transactions_that_change_one_cell_conflict_in_it(repo: tr.Repository) -> None:
    with pytest.raises(tr.ConflictError, match="50 in ours, 40 in theirs, 30 before") as error:
        _change_twice(repo)
    (conflict,) = error.value.conflicts
    assert conflict.details[0]["column"] == "age"
    assert repo.dataset("people")[0]["age"] == 40


def _change_twice(repo: tr.Repository) -> None:
    with repo.transaction(message="Late") as late:
        late.dataset("people").update("name == 'ann'", {"age": 50})
        with repo.transaction(message="Early") as early:
            early.dataset("people").update("name == 'ann'", {"age": 40})


def test_picking_a_change_twice_takes_it_once(full: Shell) -> None:
    full("switch", "-c", "side")
    full("add", "points.npz", "--dataset", "points", "--append")
    full("update", "points", "--row", "1", "--set", "label=5")
    full("commit", "-m", "More")
    full("switch", "main")
    full("update", "points", "--row", "2", "--set", "label=6")
    full("commit", "-m", "Mine")
    full("cherry-pick", "side")
    full.fails(1, "cherry-pick", "side")
    full("merge", "side")
    assert full.json("blame", "points", "--row", "39")["row"] == 39
    assert full.json("blame", "points", "--row", "2")["cells"][1]["message"] == "Mine"
    full.fails(3, "blame", "points", "--row", "40")


def test_the_command_shows_a_line_for_each_value(full: Shell) -> None:
    bob = Shell(full.folder, full.home, author=BOB)
    bob("update", "points", "--row", "3", "--set", "label=9")
    bob("commit", "-m", "Label by hand")
    shown = full("blame", "points", "--row", "3")
    (label,) = [line for line in shown.splitlines() if line.startswith("label")]
    assert label.split()[1] == "9"
    assert "Bob" in label
    assert "Label by hand" in label
    told = full.json("blame", "points", "--row", "3", "--columns", "label")
    assert [cell["column"] for cell in told["cells"]] == ["label"]
    assert told["cells"][0]["value"] == 9
    assert full.json("blame", "points", "--row", told["row_id"])["row"] == 3
    assert full.json("blame", "points", "--where", "label=9")["row"] == 3


def _two_branches(full: Shell, other: str) -> None:
    """Label 9 for row 3 on main; on branch side label `other` for it, and 7 for row 4."""
    full("branch", "side")
    full("update", "points", "--row", "3", "--set", "label=9")
    full("commit", "-m", "Mine")
    full("switch", "side")
    full("update", "points", "--row", "3", "--set", f"label={other}")
    full("update", "points", "--row", "4", "--set", "label=7")
    full("commit", "-m", "Theirs")
    full("switch", "main")


def test_a_merge_that_conflicts_names_the_cells(full: Shell) -> None:
    _two_branches(full, "8")
    told = full.fails(4, "merge", "side")
    assert "column 'label': 9 in ours, 8 in theirs" in told
    (conflict,) = full.error(4, "merge", "side")["conflicts"]
    (detail,) = conflict["details"]
    assert (conflict["path"], detail["what"], detail["column"]) == (
        "datasets/points",
        "cell",
        "label",
    )
    assert (detail["ours"], detail["theirs"]) == ("9", "8")


@pytest.mark.parametrize("verb", ["revert", "cherry-pick"])
def test_so_does_a_commit_that_cannot_be_picked(full: Shell, verb: str) -> None:
    _two_branches(full, "8")
    full("update", "points", "--row", "3", "--set", "label=10")
    full("commit", "-m", "Again")
    commit = "HEAD~1" if verb == "revert" else "side"
    assert "column 'label'" in full.fails(4, verb, commit)
    (conflict,) = full.error(4, verb, commit)["conflicts"]
    assert conflict["details"][0]["ours"] == "10"


@pytest.mark.parametrize(("strategy", "label"), [("ours", 9), ("theirs", 8)])
def test_a_strategy_decides_the_cells_and_keeps_the_rest(
    full: Shell, strategy: str, label: int
) -> None:
    _two_branches(full, "8")
    full("merge", "side", "--strategy", strategy)
    assert full.json("blame", "points", "--row", "3")["cells"][1]["value"] == label
    assert full.json("blame", "points", "--row", "4")["cells"][1]["message"] == "Theirs"


def test_the_same_change_on_both_sides_is_no_conflict(full: Shell) -> None:
    _two_branches(full, "9")
    full("merge", "side")
    assert full.json("blame", "points", "--row", "4")["cells"][1]["value"] == 7


def test_reverting_a_deletion_brings_the_rows_back_under_later_appends(full: Shell) -> None:
    full("delete", "points", "--row", "3", "--row", "5")
    full("commit", "-m", "Too much")
    full("add", "points.npz", "--dataset", "points", "--append")
    full("commit", "-m", "More")
    full("revert", "HEAD~1")
    found = full.json("blame", "points", "--row", "3")
    assert found["added"]["message"].startswith('Revert "Too much"')
    assert full.json("blame", "points", "--row", "39")["row"] == 39


def test_cells_of_rows_that_lie_in_files_merge_under_the_prefixes_that_are_allowed(
    tmp_path: Path,
) -> None:
    pq.write_table(pa.table({"n": range(6), "label": [0] * 6}), tmp_path / "rows.parquet")
    tr.init(tmp_path / "store", author=ADA)
    repo = tr.open(tmp_path / "store", author=ADA, outside=[tmp_path])
    with repo.transaction(message="Start") as tx:
        tx.adopt("rows", tmp_path / "rows.parquet")
    with repo.transaction(message="Late") as late:
        late.dataset("rows").update([1], {"label": 1})
        with repo.transaction(message="Early") as early:
            early.dataset("rows").update([2], {"label": 2}).delete([5])
    assert repo.dataset("rows")["label"][:].tolist() == [0, 1, 2, 0, 0]
    assert repo.blame("rows", row=2)["label"].origin.subject == "Early"
