"""The property "key" promises unique values that are not null: what would break it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensorrepo as tr
from tensorrepo.formats.dataset import unique_key
from tensorrepo.repo.errors import ConflictError, InvalidInputError
from tensorrepo.repository import Repository
from tests.support.processes.shell import Shell

COLUMNS = tr.Schema([tr.Column("id", "int64"), tr.Column("name", tr.Text(), nullable=True)])


@pytest.fixture
def people(request: pytest.FixtureRequest) -> Repository:
    """300 people in two appends, whose key is their id."""
    repository = tr.init(f"memory://keys-{request.node.name}", author="Ada <ada@example.org>")
    with repository.transaction(message="People") as tx:
        draft = tx.create_dataset("people", columns=COLUMNS)
        for first in (0, 200):
            ids = range(first, min(300, first + 200))
            draft.append({"id": list(ids), "name": [f"n{each}" for each in ids]})
        draft.set_properties(key="id")
    return repository


def refused(repository: Repository, told: str, change: object) -> None:
    with pytest.raises(InvalidInputError, match=told), repository.transaction(message="x") as tx:
        change(tx.dataset("people"))  # type: ignore[operator]


def test_rows_with_a_key_that_is_there_are_not_appended(people: Repository) -> None:
    refused(
        people,
        r"id=7 is in rows 7 and 301.*--upsert id",
        lambda draft: draft.append({"id": [300, 7], "name": ["a", "b"]}),
    )
    refused(
        people,
        "id=400 is in rows 300 and 302",
        lambda draft: draft.append({"id": [400, 401, 400], "name": ["a", "b", "c"]}),
    )
    with people.transaction(message="New ones") as tx:
        tx.dataset("people").append({"id": [300, -5], "name": ["a", "b"]})
    assert len(people.dataset("people")) == 302


def test_a_key_is_not_set_to_one_that_is_there(people: Repository) -> None:
    refused(people, "id=9", lambda draft: draft.update(tr.col("id") == 8, {"id": 9}))
    refused(
        people, "id=0 is in rows 100 and 200", lambda draft: draft.update_sql({"id": "id % 100"})
    )
    with people.transaction(message="Others") as tx:
        draft = tx.dataset("people")
        draft.update_sql({"id": "1000 - id"})
        draft.update(tr.col("id") == 1000, {"id": 5000})
        draft.delete(tr.col("id") == 999).append({"id": [999], "name": ["again"]})
    assert len(people.dataset("people")) == 300


def test_a_promise_that_is_broken_already_is_not_made(people: Repository) -> None:
    with people.transaction(message="No promise") as tx:
        tx.dataset("people").set_properties(key=None).append(
            {"id": [1, 2, 3, 4], "name": [None] * 4}
        )
    refused(
        people,
        r"id=1 is in rows 1 and 300, id=2 is in .*, id=3 is in .*, and 1 more",
        lambda draft: draft.set_properties(key="id"),
    )
    refused(people, "name is null in row 300", lambda draft: draft.set_properties(key=["name"]))
    refused(people, "expected names of columns", lambda draft: draft.set_properties(key="nme"))
    refused(people, "expected names of columns", lambda draft: draft.set_properties(key=7))
    with people.transaction(message="Both") as tx:
        tx.dataset("people").delete(tr.col("name").is_null()).set_properties(key="id, name")
    refused(
        people,
        r"id=1, name='n1' is in rows",
        lambda draft: draft.append({"id": [1], "name": ["n1"]}),
    )
    with people.transaction(message="Another pair") as tx:
        tx.dataset("people").append({"id": [1], "name": ["n2"]})


def test_a_merge_does_not_bring_the_same_key_twice(people: Repository) -> None:
    people.create_branch("side")
    for branch, name in (("main", "Ada"), ("side", "Bob")):
        with people.transaction(branch, message=name) as tx:
            tx.dataset("people").append({"id": [700], "name": [name]})
    with pytest.raises(ConflictError) as caught:
        people.merge("side", "main")
    assert "id=700 is in rows 300 and 301" in str(caught.value.conflicts[0])


def test_a_column_of_the_key_may_be_renamed_but_not_dropped(people: Repository) -> None:
    with people.transaction(message="Another name") as tx:
        tx.dataset("people").rename_column("id", "number")
    assert people.dataset("people").stored.root.properties["key"] == "number"
    refused(people, "key=null", lambda draft: draft.drop_column("number"))


def test_all_passes_over_many_keys_find_the_same(
    people: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unique_key, "BUDGET_BYTES", 300)
    many = list(range(300, 400))
    refused(
        people,
        "id=5 is in rows 5 and 400",
        lambda draft: draft.append({"id": [*many, 5], "name": [None] * 101}),
    )
    refused(
        people, "id=377", lambda draft: draft.append({"id": [*many, 377], "name": [None] * 101})
    )
    with people.transaction(message="Many") as tx:
        tx.dataset("people").append({"id": many, "name": [None] * 100})


def test_an_append_of_later_keys_reads_none_of_the_others(
    people: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[int, int]] = []
    scan = unique_key.scan

    def watched(dataset, names, start, stop):  # type: ignore[no-untyped-def]
        read.append((start, stop))
        return scan(dataset, names, start, stop)

    monkeypatch.setattr(unique_key, "scan", watched)
    with people.transaction(message="Later") as tx:
        tx.dataset("people").append({"id": [300, 301], "name": ["a", "b"]})
    assert all(start >= 200 for start, _ in read)


def test_the_shell_refuses_as_well(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,x\n1,a\n2,b\n")
    shell("add", str(tmp_path / "a.csv"), "--dataset", "a")
    shell("dataset", "set", "a", "key=id")
    shell("commit", "-m", "A")
    before = shell.snapshot()
    (tmp_path / "a.csv").write_text("id,x\n3,c\n2,d\n")
    told = shell.fails(2, "add", str(tmp_path / "a.csv"), "--dataset", "a", "--append")
    assert "id=2 is in rows 1 and 3" in told
    told = shell.fails(2, "update", "a", "--where", "id == 1", "--set", "id=2")
    assert "id=2" in told
    assert shell.snapshot() == before
    shell("add", str(tmp_path / "a.csv"), "--dataset", "a", "--upsert", "id")
    (tmp_path / "b.csv").write_text("id,x\n2,z\n5,z\n")
    told = shell.fails(2, "add", str(tmp_path / "b.csv"), "--dataset", "a", "--sync", "--key", "x")
    assert "x='z'" in told
