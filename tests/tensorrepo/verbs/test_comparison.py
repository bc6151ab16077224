"""Rows that differ are shown by the command line and by the SDK."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tensorrepo import ClassLabel, Image, Tensor
from tensorrepo.formats.dataset.schema.schema import Bytes, Column, ColumnType, Scalar, Text
from tensorrepo.query.compare.contents import cell_text
from tests.support.processes.shell import Shell


@pytest.fixture
def changed(shell: Shell) -> Shell:
    """Tag v1: five rows; main: row 1 has another label, row 3 is deleted, a row is appended."""
    columns = {"id": "int64", "label": ClassLabel(("cat", "dog")), "image": Image()}
    rows = [{"id": at, "label": 0, "image": b"\x89PNG" + bytes(at)} for at in range(5)]
    repo = shell.repository()
    with repo.transaction("main", "First") as tx:
        tx.create_dataset("pets", columns=columns).append(rows)
    repo.create_tag("v1", "main")
    with repo.transaction("main", "Second") as tx:
        pets = tx.dataset("pets")
        pets.update([1], {"label": "dog"})
        pets.delete([3])
        pets.append([{"id": 9, "label": 1, "image": b"\xff\xd8\xff"}])
    return shell


def _lines(text: str) -> list[str]:
    """The lines of rows, their ids left out."""
    lines = [line.split() for line in text.splitlines() if line.startswith("    ")]
    return [" ".join(word for word in words if ":" not in word[16:17]) for words in lines]


def test_rows_are_shown_cell_by_cell(changed: Shell) -> None:
    told = changed("diff", "v1", "main", "--rows")
    assert told.startswith("M datasets/pets (+1 row, -1 row, 1 row updated)")
    assert _lines(told) == [
        "~ label: 'cat' -> 'dog'",
        "- id=3 label='cat' image=<png 7 B>",
        "+ id=9 label='dog' image=<jpeg 3 B>",
    ]


@pytest.mark.parametrize("limit", [1, 2])
def test_what_is_not_shown_is_counted(changed: Shell, limit: int) -> None:
    lines = _lines(changed("diff", "v1", "main", "--rows", "--limit", str(limit)))
    assert len(lines) == limit + 1
    assert lines[-1] == f"... and {3 - limit} more: 1 updated, 1 deleted, 1 added in all"


def test_as_many_rows_as_the_limit_need_no_last_line(changed: Shell) -> None:
    assert len(_lines(changed("diff", "v1", "main", "--rows", "--limit", "3"))) == 3


def test_programs_get_a_document_a_row(changed: Shell) -> None:
    told = changed("diff", "v1", "main", "--rows", "--json")
    updated, deleted, added = (json.loads(line) for line in told.splitlines())
    assert (updated["changed"], updated["old"], updated["new"]) == (
        ["label"],
        {"label": "cat"},
        {"label": "dog"},
    )
    assert (deleted["change"], deleted["old_row"], deleted["new_row"]) == ("deleted", 3, None)
    assert (added["new"]["id"], added["old"], added["path"]) == (9, None, "datasets/pets")


def test_rows_that_are_staged_are_shown(shell: Shell) -> None:
    shell("add", "points.npz", "--dataset", "points")
    shell("commit", "-m", "First")
    shell("add", "points.npz", "--dataset", "points", "--append")
    lines = _lines(shell("diff", "--rows", "--limit", "1"))
    assert lines[0].startswith("+ ")
    assert "added in all" in lines[1]


def test_a_dataset_that_came_or_went_shows_all_of_its_rows(changed: Shell) -> None:
    repo = changed.repository()
    with repo.transaction("main", "Third") as tx:
        tx.remove("datasets/pets")
    assert len(_lines(changed("diff", "v1", "main", "--rows"))) == 5
    (gone,) = repo.diff("v1", "main").datasets.values()
    assert (gone.counts().deleted, gone.counts().added) == (5, 0)
    (come,) = repo.diff("main", "v1").datasets.values()
    assert come.counts().added == 5


def test_a_key_matches_rows_that_were_written_anew(changed: Shell) -> None:
    repo = changed.repository()
    now = repo.dataset("pets").to_arrow()
    with repo.transaction("main", "Third") as tx:
        tx.remove("datasets/pets")
    columns = {"id": "int64", "label": ClassLabel(("cat", "dog")), "image": Image()}
    with repo.transaction("main", "Fourth") as tx:
        tx.create_dataset("pets", columns=columns).append(now)
    assert _lines(changed("diff", "main~2", "main", "--key", "id")) == []
    lines = _lines(changed("diff", "v1", "main", "--key", "id", "--columns", "label"))
    assert lines == ["~ label: 'cat' -> 'dog'", "- label='cat'", "+ label='dog'"]


@pytest.fixture
def several(changed: Shell) -> Shell:
    """Tag v1, and main in which three datasets changed; datasets/b has no id, datasets/z has."""
    repo = changed.repository()
    with repo.transaction("main", "Third") as tx:
        tx.create_dataset("b", columns={"other": "float32"}).append({"other": [1.0]})
        tx.create_dataset("z", columns={"id": "int64"}).append({"id": [5]})
    return changed


def test_a_dataset_without_the_key_is_named_and_the_others_are_compared(several: Shell) -> None:
    first, second, *others = several("diff", "v1", "main", "--key", "id").splitlines()
    assert first.startswith("A datasets/b")
    assert second == "    not compared: no column 'id'; there are 'other'"
    assert others[0].startswith("M datasets/pets")
    assert others[-1].endswith("id=5")


def test_programs_get_the_datasets_that_have_the_key(several: Shell) -> None:
    done = several.run("diff", "v1", "main", "--key", "id", "--json")
    paths = {json.loads(line)["path"] for line in done.stdout.splitlines()}
    assert paths == {"datasets/pets", "datasets/z"}
    assert "datasets/b is not compared: no column 'id'" in done.stderr


def test_a_key_that_no_dataset_has_names_them_all(several: Shell) -> None:
    told = several.fails(3, "diff", "v1", "main", "--key", "nothing")
    for path in ("datasets/b", "datasets/pets", "datasets/z"):
        assert f"{path}: no column 'nothing'" in told


def test_a_column_that_cannot_be_a_key_names_its_dataset(several: Shell) -> None:
    told = several.fails(2, "diff", "v1", "main", "--key", "other", "--", "datasets/b")
    assert "datasets/b: column 'other' cannot be a key" in told


def test_the_sdk_gives_arrow(changed: Shell) -> None:
    found = changed.repository().diff("v1", "main").datasets["datasets/pets"]
    table = found.to_arrow()
    assert table["change"].to_pylist() == ["updated", "deleted", "added"]
    assert table.schema.field("new").type.field("label").type == pa.int64()
    assert [batch.num_rows for batch in found.rows(["label"])] == [1, 1, 1]
    assert found.to_arrow(key="id").num_rows == 3
    assert [facts.name for facts in found.statistics] == ["id", "label", "image"]
    assert found.counts().columns == {"label": 1}


def test_the_counts_are_a_part_of_the_document(changed: Shell) -> None:
    (change,) = json.loads(changed("diff", "v1", "main", "--json"))["changes"]
    inside = change["inside"]
    assert (inside["rows_added"], inside["rows_removed"], inside["rows_updated"]) == (1, 1, 1)
    assert {"mark", "path", "kind", "old", "new", "summary", "details", "inside"} == change.keys()


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Scalar("int64"), np.int64(7), "7"),
        (Scalar("int64"), None, "null"),
        (Text(), "a b", "'a b'"),
        (Bytes(), bytes(12345), "<12,345 B>"),
        (Image("jpeg"), bytes(1234), "<jpeg 1,234 B>"),
        (Image(), b"\x89PNG", "<png 4 B>"),
        (ClassLabel(("cat", "dog")), np.int64(1), "'dog'"),
        (Tensor("int8", (2, 3)), np.arange(6, dtype="i1").reshape(2, 3), "int8[2, 3] 0 1 2 3 ..."),
    ],
)
def test_a_cell_is_short(kind: ColumnType, value: Any, text: str) -> None:
    assert cell_text(Column("c", kind), value) == text
