"""Watching a ref: every new commit once, in order, on a store and behind a service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import tensorrepo as tr
from tensorrepo.repo.errors import StorageError
from tensorrepo.repo.history.commits import Commit, read_commit
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import ObjectSource
from tensorrepo.verbs import watching
from tensorrepo.verbs.watching import watch
from tests.support.servers.service import running_service

ANN = "Ann <ann@example.org>"


def commit(repo: tr.Repository, message: str, branch: str = "main", file: str = "n.txt") -> None:
    with repo.transaction(branch, message=message) as tx:
        tx.save_file(file, message.encode())


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    made = tr.init(tmp_path / "store", author=ANN)
    commit(made, "first")
    return made


class Script:
    """A clock and a sleep, which does the next thing instead of waiting."""

    def __init__(self, *acts: Callable[[], object]) -> None:
        self.acts, self.now = iter(acts), 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        next(self.acts, lambda: None)()

    def watch(self, repo: tr.Repository, ref: str = "main", **options: Any) -> list[str]:
        """Messages of the commits until nothing came for a minute."""
        found = watch(
            repo.context.core,
            ref,
            options.pop("since", None),
            timeout_seconds=60,
            sleep=self.sleep,
            clock=lambda: self.now,
            **options,
        )
        return [each.commit.message for each in found]


def _several(repo: tr.Repository, *messages: str) -> Callable[[], object]:
    return lambda: [commit(repo, each) for each in messages]


def test_commits_come_in_order_each_once(repo: tr.Repository) -> None:
    script = Script(_several(repo, "a"), lambda: None, _several(repo, "b", "c"))
    assert script.watch(repo) == ["a", "b", "c"]


def test_of_several_the_newest_alone_where_that_is_asked(repo: tr.Repository) -> None:
    script = Script(_several(repo, "a"), _several(repo, "b", "c"))
    assert script.watch(repo, newest=True) == ["a", "c"]


def test_it_goes_on_behind_a_commit(repo: tr.Repository) -> None:
    start = repo.resolve("main").digest
    _several(repo, "a", "b")()
    assert Script().watch(repo, since=start) == ["a", "b"]
    found = repo.watch("main", since=start, timeout="1s")
    new = next(found)
    assert (new.before, new.digest) == (start, repo.resolve("main~1").digest)
    assert "a" in str(new)


def test_only_commits_that_changed_an_entry(repo: tr.Repository) -> None:
    script = Script(
        _several(repo, "a"),
        lambda: commit(repo, "other", file="m.txt"),
        _several(repo, "b"),
    )
    assert script.watch(repo, path="files/n.txt") == ["a", "b"]


def test_a_branch_that_is_set_back_tells_its_tip(repo: tr.Repository) -> None:
    script = Script(_several(repo, "a"), repo.undo, _several(repo, "b"))
    assert script.watch(repo) == ["a", "first", "b"]


def test_a_branch_that_goes_and_comes_again_is_waited_for(repo: tr.Repository) -> None:
    repo.create_branch("side")
    script = Script(
        lambda: repo.delete_branch("side"),
        lambda: None,
        lambda: repo.create_branch("side"),
        lambda: commit(repo, "a", "side"),
    )
    assert script.watch(repo, "side") == ["a"]


def test_commits_of_a_merge_come_as_the_merge(repo: tr.Repository) -> None:
    repo.create_branch("side")
    commit(repo, "on the side", "side", "m.txt")
    commit(repo, "a")
    script = Script(lambda: repo.merge("side"))
    assert script.watch(repo) == ["Merge side into main"]


def test_a_store_that_does_not_answer_is_asked_again(
    repo: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = type(repo.context.core.log)
    asked, refresh = iter(range(1000)), log.refresh
    start = repo.resolve("main").digest
    commit(repo, "a")

    def failing(self: Any) -> Any:
        if next(asked) in {1, 2}:  # the first asks where the branch is
            raise StorageError("no answer", transient=True)
        return refresh(self)

    monkeypatch.setattr(log, "refresh", failing)
    assert Script(lambda: None, lambda: None, _several(repo, "b")).watch(repo, since=start) == [
        "a",
        "b",
    ]
    assert next(asked) > 3


def test_commits_that_cannot_be_read_for_a_moment_come_later_and_none_twice(
    repo: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = iter([True, False])  # whether the first commit of a look can be read, then the second

    def read(objects: ObjectSource, digest: Digest) -> Commit:
        if not next(asked, True):
            raise StorageError("no answer", transient=True)
        return read_commit(objects, digest)

    monkeypatch.setattr(watching, "read_commit", read)
    assert Script(_several(repo, "a", "b", "c")).watch(repo) == ["a", "b", "c"]


def test_a_ref_that_is_not_there_is_named(repo: tr.Repository) -> None:
    with pytest.raises(tr.NotFoundError, match="Did you mean main"):
        repo.watch("mian")


def test_behind_a_service_events_wake_the_watcher(tmp_path: Path) -> None:
    with running_service(tmp_path) as service:
        with service.client() as client:
            client.post("/api/v1/repositories", json={"name": "team/r"})
        url, options = f"{service.url}/team/r", {"token": service.token}
        repo = tr.open(url, storage_options=options, author=ANN)
        commit(repo, "first")
        watched = tr.open(url, storage_options=options)
        waits: list[float] = []

        def commit_soon() -> Iterator[None]:
            for message in ("a", "b"):
                timer = threading.Timer(0.3, commit, (repo, message))
                timer.start()
                yield
                timer.join()

        # Without events it would look once an hour.
        found = watch(watched.context.core, "main", None, poll_seconds=3600, sleep=waits.append)
        messages = []
        for _ in commit_soon():
            messages += [each.commit.message for each in islice(found, 1)]
        assert messages == ["a", "b"]
        assert waits == []
        found.close()  # type: ignore[attr-defined]  # a generator, which ends its stream


def test_events_that_break_off_are_asked_for_again(
    repo: tr.Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []

    def events(_self: Any, ref: str, _silence: float) -> Iterator[None]:
        told.append(ref)
        if len(told) == 2:
            raise StorageError("down", transient=True)
        yield

    monkeypatch.setattr(type(repo.context.core.backend), "events", events, raising=False)
    script = Script(_several(repo, "a"), lambda: None, _several(repo, "b"))
    assert script.watch(repo) == ["a", "b"]
    assert set(told) == {"heads/main"}
