"""Commands that change rows and columns of a dataset."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tensorrepo.connect import Machine
from tensorrepo.datasets.draft import DatasetDraft
from tensorrepo.formats.dataset.schema.schema import (
    ClassLabel,
    Column,
    Json,
    Scalar,
    Tensor,
    Text,
    Timestamp,
)
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.workspace.change import change_dataset, parse_type, parse_value
from tensorrepo.workspace.session import open_session
from tests.support.processes.shell import Shell

CSV = "id,city,score\n1,Ulm,0.5\n2,,0.7\n3,Bern,0.1\n"


@pytest.fixture
def users(shell: Shell) -> Shell:
    (shell.folder / "users.csv").write_text(CSV)
    shell("add", "users.csv", "--dataset", "users")
    shell("commit", "-m", "Users")
    return shell


def _rows(shell: Shell) -> list[dict[str, object]]:
    shell("commit", "-m", "Changed")
    return shell.repository().dataset("users").to_arrow().to_pylist()


def test_update_stages_other_values(users: Shell) -> None:
    told = users("update", "users", "--where", "city is null or id = 3", "--set", "city=Rom")
    assert "staged datasets/users (2 of 3 rows)" in told
    assert "update" in json.dumps(users.json("status"))
    assert [row["city"] for row in _rows(users)] == ["Ulm", "Rom", "Rom"]


def test_changes_build_on_what_is_staged(users: Shell) -> None:
    users("update", "users", "--row", "0", "--row", "2", "--set", "city=Rom", "--set", "score=1")
    users("delete", "users", "--where", "city == 'Rom' and id == 1")
    assert _rows(users) == [
        {"id": 2, "city": None, "score": 0.7},
        {"id": 3, "city": "Rom", "score": 1.0},
    ]


def test_what_changes_nothing_stages_nothing(users: Shell) -> None:
    assert "unchanged" in users("update", "users", "--row", "0", "--set", "city=Ulm")
    assert users.json("delete", "users", "--where", "id > 7") == {
        "path": "datasets/users",
        "rows_before": 3,
        "rows": 3,
        "changed": False,
        "chosen": 0,
    }
    assert users.json("status")["staged"] == []


def test_cat_shows_rows_as_they_are_staged(users: Shell) -> None:
    users("update", "users", "--row", "0", "--set", "city=Rom")
    assert "Rom" in users("cat", "users", "--staged")
    assert "Rom" not in users("cat", "users")


@pytest.mark.parametrize(
    "words", [("cat", "more"), ("cat", "HEAD:datasets/more"), ("show", "HEAD:more")]
)
def test_what_is_staged_alone_says_so_and_how_to_see_it(
    users: Shell, words: tuple[str, ...]
) -> None:
    users("add", "users.csv", "--dataset", "more")
    told = users.fails(3, *words)
    assert "datasets/more is staged, and in no commit yet: `tensorrepo cat" in told
    assert "Ulm" in users("cat", "more", "--staged")


def test_a_first_dataset_that_is_staged_says_so_too(shell: Shell) -> None:
    shell("add", "points.npz", "--dataset", "points")
    assert "datasets/points is staged" in shell.fails(3, "cat", "points")


def test_what_is_staged_is_no_part_of_other_commits(full: Shell) -> None:
    full("add", "points.npz", "--dataset", "more")
    assert "no entry 'more' in v1" in full.fails(3, "cat", "v1:more")


def test_a_condition_that_no_row_meets_is_told(users: Shell) -> None:
    assert "no row is meant" in users("update", "users", "--where", "id > 7", "--set", "city=Ulm")


def test_rows_are_deleted_by_id(users: Shell) -> None:
    row_id = users.repository().dataset("users").row_ids([1])[0]
    assert "2 rows, 3 before" in users("delete", "users", "--row", row_id)
    assert [row["id"] for row in _rows(users)] == [1, 3]


def test_columns_come_and_go(users: Shell) -> None:
    np.save(users.folder / "vectors.npy", np.arange(6, dtype="f4").reshape(3, 2))
    users("dataset", "column", "add", "users", "checked", "bool", "--default", "false")
    users("dataset", "column", "add", "users", "note", "text")
    users("dataset", "column", "add", "users", "vector", "--values", "vectors.npy")
    users("dataset", "column", "rename", "users", "city", "town")
    users("dataset", "column", "widen", "users", "id", "--nullable")
    users("dataset", "column", "drop", "users", "score")
    assert _rows(users)[1] == {
        "id": 2, "town": None, "checked": False, "note": None, "vector": [2.0, 3.0],
    }  # fmt: skip


def test_columns_of_a_csv_are_required_where_told(users: Shell) -> None:
    users("add", "users.csv", "--dataset", "strict", "-o", "required=id,score")
    told = users.fails(2, "add", "users.csv", "--dataset", "stricter", "-o", "required=*")
    assert "row 1, column 'city'" in told
    users("commit", "-m", "Strict")
    columns = users.repository().dataset("strict").schema.columns
    assert [column.nullable for column in columns] == [False, True, False]


def test_properties_are_set_and_taken_away(users: Shell) -> None:
    told = users("dataset", "set", "users", "licence=CC0", 'key=["id"]', "year=2026", "note=a = b")
    assert told == "staged datasets/users (3 rows)\n"
    users("commit", "-m", "Notes")
    users("dataset", "set", "users", "year=null")
    users("commit", "-m", "Less")
    assert users.repository().dataset("users").stored.root.properties == {
        "licence": "CC0",
        "key": ["id"],
        "note": "a = b",
    }
    assert '  key = ["id"]\n' in users("show", "HEAD:users")


@pytest.mark.parametrize("text", ["licence", "=CC0"])
def test_a_property_without_name_or_value_is_refused(users: Shell, text: str) -> None:
    assert "expected KEY=VALUE" in users.fails(2, "dataset", "set", "users", text)


def test_properties_that_are_set_already_stage_nothing(users: Shell) -> None:
    users("dataset", "set", "users", "licence=CC0")
    assert "unchanged" in users("dataset", "set", "users", "licence=CC0")


@pytest.mark.parametrize(
    "words",
    [
        ("update", "users", "--where", "id > 1", "--set", "city=Rom"),
        ("delete", "users", "--where", "id > 1"),
        ("dataset", "column", "add", "users", "checked", "bool", "--default", "false"),
        ("dataset", "compact", "users", "--everything"),
    ],
)
def test_a_terminal_gets_a_bar_of_rows(users: Shell, words: tuple[str, ...]) -> None:
    users.environment = {"FORCE_COLOR": "1"}
    done = users.run(*words)
    assert done.exit_code == 0
    assert "changing users" in done.stderr


def test_progress_counts_rows_looked_at_and_then_rows_changed(users: Shell) -> None:
    told: list[tuple[int, int]] = []

    def verb(draft: DatasetDraft, rows: Any) -> None:
        draft.update(rows, {"city": "Rom"})

    session = open_session(Machine(users.variables, users.home, users.folder))
    change_dataset(session, "users", verb, "x", "id > 1", lambda *given: told.append(given))
    assert told == [(3, 3), (2, 2)]


def test_compact_frees_what_was_deleted(users: Shell) -> None:
    users("delete", "users", "--row", "1")
    assert users.json("dataset", "compact", "users", "--target", "1MiB", "--everything")["changed"]
    assert [row["id"] for row in _rows(users)] == [1, 3]


@pytest.mark.together
@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("delete", "users"), 2, "--where EXPR, or --row N"),
        (("delete", "users", "--where", "city == )"), 2, "character 9"),
        (("delete", "users", "--where", "town == 'x'"), 2, "'city'"),
        (("delete", "users", "--row", "9"), 3, "no row 9"),
        (("delete", "users", "--row", "1", "--row", "0123456789abcdef:1"), 2, "either numbers"),
        (("delete", "nobody", "--row", "1"), 3, "datasets/users"),
        (("update", "users", "--row", "1", "--set", "city"), 2, "COLUMN=VALUE"),
        (("update", "users", "--row", "1", "--set", "id=x"), 2, "column 'id'"),
        (("update", "users", "--row", "1", "--set", "town=x"), 3, "'city'"),
        (("dataset", "column", "turn", "users", "id"), 2, "add, widen, drop, rename"),
        (("dataset", "column", "add", "users", "x"), 2, "needs a type"),
        (("dataset", "column", "add", "users", "id", "int8"), 4, "already"),
        (("dataset", "column", "add", "users", "x", "intt"), 2, "intt"),
        (("dataset", "column", "drop", "users", "id", "--nullable"), 2, "takes no --nullable"),
        (("dataset", "column", "rename", "users", "id"), 2, "new name"),
        (("dataset", "column", "widen", "users", "id", "int8"), 2, "int8"),
    ],
)
def test_what_cannot_be_done_is_refused_and_stages_nothing(
    users: Shell, arguments: tuple[str, ...], code: int, told: str
) -> None:
    assert told in users.fails(code, *arguments)
    assert users.json("status")["staged"] == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("int64", Scalar("int64")),
        ("text", Text()),
        ("float32[768]", Tensor("float32", (768,))),
        ("uint8[?, ?,3]", Tensor("uint8", (None, None, 3))),
        ('{"type": "class_label", "names": ["a"]}', ClassLabel(("a",))),
    ],
)
def test_types_are_typed_short_or_as_json(text: str, kind: object) -> None:
    assert parse_type(text) == kind


@pytest.mark.parametrize("text", ["", "float32[x]", '{"type": 3}', "{", "flout[1]"])
def test_what_is_no_type_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError):
        parse_type(text)


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (Text(), "01234", "01234"), (Text(), "'null'", "null"), (Text(), "null", None),
        (Json(), '{"a": [1]}', {"a": [1]}), (Tensor("int8", (2,)), "[1, 2]", [1, 2]),
        (Scalar("bool"), "true", True), (Scalar("float32"), "-1.5", -1.5),
        (ClassLabel(("cat",)), "cat", "cat"),
    ],
)  # fmt: skip
def test_a_value_is_read_as_what_its_column_holds(
    kind: object, text: str, expected: object
) -> None:
    assert parse_value(Column("c", kind), text) == expected  # type: ignore[arg-type]  # any type


def test_a_moment_is_read_as_one() -> None:
    found = parse_value(Column("c", Timestamp()), "2026-01-31 12:00")
    assert str(found) == "2026-01-31 12:00:00"
