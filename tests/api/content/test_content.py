"""Functions over content, where HTTP would hide what they do: places, proofs, memory, damage."""

from __future__ import annotations

from pathlib import Path

import pytest

import tensorrepo as tr
from tensorrepo.api.content import history
from tensorrepo.api.content.commit_content import CommitContent
from tensorrepo.api.content.files import open_file
from tensorrepo.api.content.history import list_history
from tensorrepo.api.content.rows import RowRequest, read_rows
from tensorrepo.api.content.trees import list_tree
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.objects import blob_bytes
from tests.support.servers.service import RunningService


@pytest.fixture
def made(service: RunningService, request: pytest.FixtureRequest) -> tr.Repository:
    name = f"content/{request.node.name[:40].strip('[]')}"
    service.service.directory.create(name)
    return tr.open(service.service.directory.find(name).url, author="Ann <ann@example.org>")


def content_of(service: RunningService, repo: tr.Repository, ref: str = "main") -> CommitContent:
    running = service.service
    name = next(one.name for one in running.directory.listed() if repo.url.endswith(one.name))
    return running.at(running.enter(running.accounts.caller(service.token), name), ref)


def test_a_history_goes_on_in_a_process_that_remembers_no_place(
    service: RunningService, made: tr.Repository
) -> None:
    for number in range(4):
        with made.transaction(message=f"{number}") as tx:
            tx.save_file("x", b"%d" % number)
    made.create_branch("side", "main~2")
    with made.transaction("side", message="side") as tx:
        tx.save_file("y", b"y")
    made.merge("side", message="merged")
    content = content_of(service, made)
    whole = [one.message for one in list_history(content).commits]
    parts, after = [], None
    while True:
        page = list_history(content, after=after, limit=1)
        parts += [one.message for one in page.commits]
        content.memory.places.clear()
        if (after := page.after) is None:
            break
    assert parts == whole
    assert len(whole) == 6


def test_a_search_of_history_looks_at_so_many_commits_and_says_where_to_go_on(
    service: RunningService, made: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        with made.transaction(message=f"{number}") as tx:
            tx.save_file("x", b"%d" % number)
    monkeypatch.setattr(history, "LOOKED_AT", 2)
    content = content_of(service, made)
    first = list_history(content, history.HistoryFilter(message="0"))
    second = list_history(content, history.HistoryFilter(message="0"), after=first.after)
    assert ([*first.commits], [one.message for one in second.commits]) == ([], ["0"])


def test_a_place_that_is_none_is_refused(service: RunningService, made: tr.Repository) -> None:
    with made.transaction(message="one") as tx:
        tx.save_file("x", b"1")
    with pytest.raises(InvalidInputError):
        list_history(content_of(service, made), after="1:../../x")


def test_a_listing_goes_on_behind_a_folder(service: RunningService, made: tr.Repository) -> None:
    with made.transaction(message="one") as tx:
        for name in ("a/1", "a/2", "a-b", "b/1", "b/c/1"):
            tx.save_file(name, b"x")
    content = content_of(service, made)
    paths, after = [], None
    while True:
        page = list_tree(content, "files/", folders=True, after=after, limit=1)
        paths += [one.path for one in page.entries]
        if (after := page.after) is None:
            break
    assert paths == ["files/a/", "files/a-b", "files/b/"]


def test_a_large_file_is_proved_once_and_then_read_in_pieces(
    service: RunningService, made: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(range(256)) * 20_000
    with made.transaction(message="one") as tx:
        tx.save_file("large", data)
    monkeypatch.setattr(blob_bytes, "WHOLE_BYTES", 1000)
    file = open_file(content_of(service, made), "files/large")
    assert b"".join(bytes(piece) for piece in file.pieces()) == data
    assert (
        b"".join(bytes(piece) for piece in file.pieces(1_048_500, 1_048_600))
        == (data[1_048_500:1_048_600])
    )


def test_a_damaged_file_gives_no_byte(
    service: RunningService, made: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    with made.transaction(message="one") as tx:
        tx.save_file("large", b"whole" * 300_000)
    monkeypatch.setattr(blob_bytes, "WHOLE_BYTES", 1000)
    file = open_file(content_of(service, made), "files/large")
    stored = next(
        path for path in Path(made.url).rglob("*")
        if path.is_file() and path.stat().st_size > 1_000_000
    )  # fmt: skip
    damaged = bytearray(stored.read_bytes())
    damaged[-1] ^= 1
    stored.chmod(0o600)
    stored.write_bytes(damaged)
    with pytest.raises(CorruptError):
        next(file.pieces())


def test_a_search_that_takes_long_ends_with_a_page_that_says_where_to_go_on(
    service: RunningService, made: tr.Repository
) -> None:
    with made.transaction(message="one") as tx:
        draft = tx.create_dataset("numbers", columns={"x": "int64", "words": tr.Text()})
        for last in (200, 200, 200, 100):  # bounds of a page do not tell whether it has 100
            draft.append({"x": [0, 200] * 499 + [0, last], "words": ["a" * 10_000] * 1000})
    content = content_of(service, made)
    clock = iter(range(0, 10_000, 100))
    found, start, pages = [], 0, 0
    while start is not None:
        asked = RowRequest(start=start, where="x = 100 AND words >= 'a'")
        page = read_rows(content, "datasets/numbers", asked, timer=lambda: float(next(clock)))
        found += [one.row for one in page.items]
        start, pages = page.next, pages + 1
    assert found == [3999]
    assert 1 < pages < 10
