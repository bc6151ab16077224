"""History, trees, entries and files over HTTP."""

from __future__ import annotations

import pytest

from tensorrepo.api.access.grants import Action, Grant
from tests.support.builders.served import BASE, NAME, serve_digits
from tests.support.servers.service import RunningService


@pytest.fixture(scope="module")
def digits(service: RunningService) -> RunningService:
    serve_digits(service)
    return service


def test_history_goes_on_where_its_cursor_says(digits: RunningService) -> None:
    with digits.client() as client:
        first = client.get(f"{BASE}/history", params={"limit": 1}).json()
        second = client.get(f"{BASE}/history", params={"limit": 1, "cursor": first["next"]}).json()
    assert [one["message"] for one in first["items"] + second["items"]] == ["threes", "digits"]
    assert second["next"] is None
    assert first["items"][0]["refs"] == ["heads/main"]


@pytest.mark.parametrize(
    ("asked", "messages"),
    [
        ({"path": "views"}, ["threes"]),
        ({"path": "datasets/digits"}, ["digits"]),
        ({"author": "ANN@"}, ["threes", "digits"]),
        ({"author": "bob"}, []),
        ({"message": "THREE"}, ["threes"]),
    ],
)
def test_history_is_of_what_was_asked(
    asked: dict[str, str], messages: list[str], digits: RunningService
) -> None:
    with digits.client() as client:
        found = client.get(f"{BASE}/history", params=asked).json()
    assert [one["message"] for one in found["items"]] == messages


def test_a_tree_tells_what_each_entry_holds(digits: RunningService) -> None:
    with digits.client() as client:
        found = client.get(f"{BASE}/tree", params={"limit": 2}).json()
        rest = client.get(f"{BASE}/tree", params={"cursor": found["next"]}).json()
    told = {one["path"]: one for one in found["items"] + rest["items"]}
    assert list(told) == [
        "datasets/digits",
        "datasets/pictures",
        "files/notes.html",
        "views/threes",
    ]
    assert (told["datasets/digits"]["rows"], told["datasets/digits"]["columns"]) == (1797, 2)
    assert told["files/notes.html"]["bytes"] == 25_000
    assert told["views/threes"]["of"] == "datasets/digits"


def test_folders_are_told_once(digits: RunningService) -> None:
    with digits.client() as client:
        found = client.get(f"{BASE}/tree", params={"folders": True}).json()
        below = client.get(f"{BASE}/tree", params={"folders": True, "prefix": "views/"}).json()
    assert [one["path"] for one in found["items"]] == ["datasets/", "files/", "views/"]
    assert [one["path"] for one in below["items"]] == ["views/threes"]


def test_a_file_comes_byte_for_byte_and_no_browser_shows_it(digits: RunningService) -> None:
    with digits.client() as client:
        whole = client.get(f"{BASE}/files/notes.html")
        part = client.get(f"{BASE}/files/notes.html", headers={"Range": "bytes=8-12"})
        tail = client.get(f"{BASE}/files/notes.html", headers={"Range": "bytes=-9"})
        head = client.head(f"{BASE}/files/notes.html")
        again = client.get(
            f"{BASE}/files/notes.html", headers={"If-None-Match": whole.headers["etag"]}
        )
        changed = client.get(
            f"{BASE}/files/notes.html", headers={"Range": "bytes=0-3", "If-Range": '"other"'}
        )
        beyond = client.get(f"{BASE}/files/notes.html", headers={"Range": "bytes=25000-"})
    assert whole.content == b"<script>alert(1)</script>" * 1000
    assert whole.headers["content-type"] == "application/octet-stream"
    assert whole.headers["content-disposition"].startswith('attachment; filename="notes.html"')
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in whole.headers["content-security-policy"]
    assert (part.status_code, part.content) == (206, b"alert")
    assert part.headers["content-range"] == "bytes 8-12/25000"
    assert tail.content == b"</script>"
    assert (head.headers["content-length"], head.content) == ("25000", b"")
    assert (again.status_code, again.content) == (304, b"")
    assert (changed.status_code, len(changed.content)) == (200, 25_000)
    assert (beyond.status_code, beyond.headers["content-range"]) == (416, "bytes */25000")


@pytest.mark.parametrize(
    "path",
    [
        "files/../../etc/passwd", "files/..%2f..%2fetc%2fpasswd", "files/%2e%2e/x",
        "files/notes.html%00", "entries/datasets/../secret", "entries//etc/passwd",
        "files/C:%5Cwindows", "entries/con", "files/a%0d%0aSet-Cookie:x",
    ],
)  # fmt: skip
def test_no_path_leads_out_of_a_repository(path: str, digits: RunningService) -> None:
    with digits.client() as client:
        answer = client.get(f"{BASE}/{path}")
    assert answer.status_code in {400, 404}
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_reader_of_main_finds_nothing_of_secret(digits: RunningService) -> None:
    with digits.client() as client:
        commit = client.get(f"{BASE}/history", params={"ref": "secret"}).json()["items"][0]
    token = digits.user("reader", Grant(NAME, Action.READ, "heads/main"))
    with digits.client(token) as client:
        answers = [
            client.get(f"{BASE}/{what}", params={"ref": ref})
            for what in ("history", "tree", "entries/datasets/hidden", "datasets/hidden")
            for ref in ("secret", "heads/secret", commit["digest"], commit["digest"][:12])
        ]
        main = client.get(f"{BASE}/history").json()
        near = client.get(f"{BASE}/tree", params={"ref": "secre"})
    assert {one.status_code for one in answers} == {404}
    assert [one["refs"] for one in main["items"]] == [["heads/main"], []]
    assert "secret" not in near.text
