"""Comparison of commits over HTTP."""

from __future__ import annotations

import pytest

from tensorrepo.api.access.grants import Action, Grant
from tests.support.builders.served import BASE, NAME, serve_digits
from tests.support.servers.service import RunningService


@pytest.fixture(scope="module")
def changed(service: RunningService) -> RunningService:
    """A third commit: of digits a label differs, the first row is gone and a column came."""
    repo = serve_digits(service)
    with repo.transaction(message="changed") as tx:
        digits = tx.dataset("digits")
        digits.update([1], {"label": 7})
        digits.delete([0])
        tx.save_file("more", b"12345")
    return service


def test_a_commit_is_compared_with_its_first_parent(changed: RunningService) -> None:
    with changed.client() as client:
        found = client.get(f"{BASE}/compare").json()
    told = {one["path"]: one for one in found["items"]}
    assert {path: one["mark"] for path, one in told.items()} == {
        "datasets/digits": "M",
        "files/more": "A",
    }
    assert told["datasets/digits"]["summary"] == "-1 row, 1 row updated"
    assert told["datasets/digits"]["inside"]["rows_removed"] == 1
    assert told["files/more"]["summary"] == "5 bytes"


def test_differences_go_on_where_their_cursor_says(changed: RunningService) -> None:
    asked = {"old": "main~2", "limit": 1, "contents": False}
    with changed.client() as client:
        first = client.get(f"{BASE}/compare", params=asked).json()
        rest = client.get(f"{BASE}/compare", params=asked | {"cursor": first["next"], "limit": 9})
    paths = [one["path"] for one in first["items"] + rest.json()["items"]]
    assert paths == ["datasets/digits", "files/more", "views/threes"]


def test_rows_that_differ_are_told_with_both_values(changed: RunningService) -> None:
    with changed.client() as client:
        asked = {"path": "datasets/digits", "limit": 1}
        first = client.get(f"{BASE}/compare/rows", params=asked).json()
        rest = client.get(f"{BASE}/compare/rows", params=asked | {"start": first["next"]}).json()
    assert (first["updated"], first["deleted"], first["added"]) == (1, 1, 0)
    updated, deleted = first["rows"][0], rest["rows"][0]
    assert (updated["change"], updated["old"], updated["new"]) == (
        "updated",
        {"label": 1},
        {"label": 7},
    )
    assert (deleted["change"], deleted["old_row"], deleted["new"]) == ("deleted", 0, None)
    assert rest["next"] is None


def test_what_did_not_change_has_no_rows_to_tell(changed: RunningService) -> None:
    with changed.client() as client:
        same = client.get(f"{BASE}/compare/rows", params={"path": "datasets/pictures"})
        file = client.get(f"{BASE}/compare/rows", params={"path": "files/more"})
    assert (same.status_code, file.status_code) == (404, 404)


def test_a_reader_of_main_compares_nothing_with_secret(changed: RunningService) -> None:
    token = changed.user("comparer", Grant(NAME, Action.READ, "heads/main"))
    with changed.client() as client:
        secret = client.get(f"{BASE}/commits/secret").json()["digest"]
    with changed.client(token) as client:
        answers = [
            client.get(f"{BASE}/compare{what}", params={"path": "datasets/hidden"} | asked)
            for what in ("", "/rows")
            for asked in (
                {"old": "main", "new": "secret"},
                {"old": secret, "new": "main"},
                {"new": secret},
            )
        ]
    assert {one.status_code for one in answers} == {404}
