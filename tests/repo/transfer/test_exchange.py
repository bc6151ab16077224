"""Clones, fetches and pushes between repositories of every kind of store."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.errors import (
    CommitOutcomeUnknown,
    ConflictError,
    CorruptError,
    NotFoundError,
    PermissionDenied,
    StorageError,
)
from tensorrepo.repo.objects.envelope import Kind, encode_object
from tensorrepo.repo.objects.incarnations import object_key
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.transfer.exchange import TransferReport, clone, fetch, push
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions
from tests.support.builders.histories import verify
from tests.support.builders.repositories import (
    ADA,
    again,
    commit_files,
    files_at,
    new_repository,
    tip_of,
)
from tests.support.effort import sampled_product
from tests.support.faults.backends import (
    CountingBackend,
    Crash,
    CrashBackend,
    Loss,
    LostReplyBackend,
)
from tests.support.servers.object_stores import Bucket, s3_on_ours
from tests.support.servers.web import web_server

FILES = {"files/a": b"one", "files/deep/b": b"two", "files/large": bytes(5 << 20)}
Make = Callable[[str], Backend]


@pytest.fixture(scope="module")
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    with s3_on_ours(tmp_path_factory.mktemp("s3")) as found:
        yield found


@pytest.fixture
def options(tmp_path: Path) -> TransferOptions:
    return TransferOptions(ADA, tmp_path / "parts")


@pytest.fixture
def pair(options: TransferOptions) -> tuple[RepositoryCore, RepositoryCore]:
    """A repository with two commits, and a clone of it; both in memory."""
    origin, here = new_repository(), new_repository()
    commit_files(origin, {"files/a": b"one"})
    commit_files(origin, {"files/a": b"two"})
    clone(HistorySource.of(origin), here, "origin", options)
    return origin, here


@pytest.mark.parametrize("kinds", [("local", "s3"), ("s3", "local"), ("memory", "local")])
def test_a_clone_has_all_that_the_origin_has_and_pushes_back(
    kinds: tuple[str, str], tmp_path: Path, bucket: Bucket, options: TransferOptions
) -> None:
    def make(kind: str) -> Backend:
        if kind == "s3":
            url = f"{bucket.url}/{tmp_path.name}-{kinds.index(kind)}"
            return open_backend(url, environment=bucket.environment)
        return LocalBackend(tmp_path / "store") if kind == "local" else MemoryBackend()

    origin, here = new_repository(make(kinds[0])), new_repository(make(kinds[1]))
    first = commit_files(origin, FILES)
    refs.create_branch(origin, "dev", first.digest, actor=ADA)
    refs.create_tag(origin, "v1", first.digest, actor=ADA)
    second = commit_files(origin, {"files/a": b"new"})
    branch, report = clone(HistorySource.of(origin), here, "origin", options)
    assert branch == "main"
    assert report.totals.commits == 2
    assert again(here).log.refresh().state.refs == {
        "heads/main": second.digest,
        "remotes/origin/dev": first.digest,
        "remotes/origin/main": second.digest,
        "tags/v1": first.digest,
    }
    assert files_at(again(here), second.digest) == FILES | {"files/a": b"new"}
    verify(here.backend)
    mine = commit_files(here, {"files/large": bytes(6 << 20), "files/deep/b": None})
    push(here, origin, ["main"], options, remote="origin")
    assert files_at(again(origin), tip_of(again(origin))) == files_at(here, mine.digest)
    verify(origin.backend)


def test_a_push_moves_what_is_new_and_nothing_else(options: TransferOptions) -> None:
    counting = CountingBackend(MemoryBackend())
    origin, here = new_repository(counting), new_repository()
    commit_files(origin, {"files/large": bytes(1 << 20)} | {f"files/{n}": b"x" for n in range(99)})
    clone(HistorySource.of(origin), here, "origin", options)
    made = commit_files(here, {"files/new": b"new"})
    counting.reset()
    push(here, origin, ["main"], options, remote="origin")
    assert tip_of(again(origin)) == made.digest
    assert counting.written_bytes < 10_000
    assert counting.count["upload"] <= 4
    verify(origin.backend)


def test_a_push_with_nothing_new_asks_the_log_alone(
    pair: tuple[RepositoryCore, RepositoryCore], options: TransferOptions
) -> None:
    origin, here = pair
    counting = CountingBackend(origin.backend)
    report = push(here, open_repository(counting, drivers={}), ["main"], options, remote="origin")
    assert report.moves == ()
    assert not [key for _, key in counting.operations if key.startswith("objects/")]


def test_a_push_that_is_no_fast_forward_is_refused_and_force_moves_it(
    pair: tuple[RepositoryCore, RepositoryCore], options: TransferOptions
) -> None:
    origin, here = pair
    theirs = commit_files(origin, {"files/a": b"theirs"})
    mine = commit_files(here, {"files/a": b"mine"})
    before = len(list(origin.backend.list("")))
    with pytest.raises(ConflictError, match="would not move forward"):
        push(here, origin, ["main"], options, remote="origin")
    assert len(list(origin.backend.list(""))) == before
    report = push(here, origin, ["main"], options, remote="origin", force=True)
    assert [(move.old, move.new, move.forced) for move in report.moves] == [
        (theirs.digest, mine.digest, True)
    ]
    assert theirs.digest in origin.log.refresh().state.retained
    verify(origin.backend)


def test_a_lease_lets_a_branch_move_only_from_where_it_was_seen(
    pair: tuple[RepositoryCore, RepositoryCore], options: TransferOptions
) -> None:
    origin, here = pair
    mine = commit_files(here, {"files/a": b"mine"})
    commit_files(origin, {"files/a": b"theirs"})
    with pytest.raises(ConflictError, match="somebody else moved it"):
        push(here, origin, ["main"], options, remote="origin", leased=True)
    fetch(HistorySource.of(origin), here, "origin", options)
    push(here, origin, ["main"], options, remote="origin", leased=True)
    assert tip_of(origin) == mine.digest


def test_a_pushed_tag_stays_and_one_of_the_same_name_is_refused(
    pair: tuple[RepositoryCore, RepositoryCore], options: TransferOptions
) -> None:
    origin, here = pair
    tip = tip_of(here)
    assert tip is not None
    refs.create_tag(here, "v1", tip, actor=ADA)
    report = push(here, origin, ["main"], options, tags=True)
    assert [move.ref for move in report.moves] == ["tags/v1"]
    other = commit_files(here, {"files/a": b"later"}).digest
    refs.delete_ref(here, "tags/v1", actor=ADA)
    refs.create_tag(here, "v1", other, actor=ADA)
    with pytest.raises(ConflictError, match="a tag never moves"):
        push(here, origin, ["v1"], options, force=True)
    kept = fetch(HistorySource.of(origin), here, "origin", options).kept
    assert kept == ("v1",)


def test_a_branch_is_deleted_renamed_and_made_by_refspecs(
    pair: tuple[RepositoryCore, RepositoryCore], options: TransferOptions
) -> None:
    origin, here = pair
    push(here, origin, ["main:copy", "main:heads/other"], options, remote="origin")
    push(here, origin, [":copy"], options, remote="origin")
    assert set(origin.log.refresh().state.refs) == {"heads/main", "heads/other"}
    assert "remotes/origin/copy" not in here.log.refresh().state.refs
    refs.delete_ref(origin, "heads/other", actor=ADA)
    fetch(HistorySource.of(origin), here, "origin", options, prune=True)
    assert "remotes/origin/other" not in here.log.refresh().state.refs
    with pytest.raises(NotFoundError, match="no branch or tag 'mian'"):
        push(here, origin, ["mian"], options)


def test_an_object_that_is_damaged_at_the_origin_is_told_and_never_stored(
    tmp_path: Path, options: TransferOptions
) -> None:
    origin, here = new_repository(LocalBackend(tmp_path / "origin")), new_repository()
    content = bytes(range(256)) * 40
    made = commit_files(origin, {"files/a": content})
    (blob,) = [entry for _, entry in origin.entries(made.commit.tree)]
    place = tmp_path / "origin" / object_key(blob.digest)
    damaged = bytearray(place.read_bytes())
    damaged[-1] ^= 1
    place.write_bytes(damaged)
    with pytest.raises(CorruptError, match="damaged there"):
        clone(HistorySource.of(again(origin)), here, "origin", options)
    assert here.backend.size(object_key(blob.digest)) is None
    assert not here.log.refresh().state.refs


def test_of_two_pushes_at_once_one_wins_and_the_other_is_told(
    pair: tuple[RepositoryCore, RepositoryCore], options: TransferOptions
) -> None:
    origin, here = pair
    other = new_repository()
    clone(HistorySource.of(origin), other, "origin", options)
    made = [commit_files(each, {"files/a": b"%d" % n}) for n, each in enumerate((here, other))]
    outcomes: list[TransferReport | ConflictError] = []
    barrier = threading.Barrier(2)

    def run(repository: RepositoryCore) -> None:
        barrier.wait()
        try:
            outcomes.append(push(repository, again(origin), ["main"], options))
        except ConflictError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in (here, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(isinstance(each, ConflictError) for each in outcomes) == [False, True]
    assert tip_of(again(origin)) in {each.digest for each in made}
    verify(origin.backend)


@sampled_product("mode,share", ["before", "after", "twice", "later"], [0.1, 0.5, 0.8, 0.97], dev=6)
def test_a_push_whose_replies_are_lost_is_repeated_and_lands_once(
    share: float, mode: Loss, options: TransferOptions
) -> None:
    here = new_repository()
    made = commit_files(here, FILES)
    recorded = CountingBackend(new_repository().backend)
    push(here, open_repository(recorded, drivers={}), ["main"], options)
    losing = LostReplyBackend(
        new_repository().backend, max(4, int(share * len(recorded.operations))), mode
    )
    with suppress(StorageError, CommitOutcomeUnknown):
        push(here, open_repository(losing, drivers={}), ["main"], options)
    losing.settle()
    verify(losing.inner)
    target = open_repository(losing.inner, drivers={})
    push(here, target, ["main"], options)
    assert [move.update.new for move in refs.reflog(target, "heads/main")] == [made.digest]
    assert files_at(target, made.digest) == FILES
    verify(losing.inner)


def test_a_repository_that_a_web_server_publishes_is_cloned(
    tmp_path: Path, options: TransferOptions
) -> None:
    origin, here = new_repository(LocalBackend(tmp_path / "origin")), new_repository()
    made = commit_files(origin, FILES)
    with web_server(tmp_path / "origin") as server:
        source = open_repository(open_backend(server.url, environment={}), drivers={})
        clone(HistorySource.of(source), here, "origin", options)
        with pytest.raises(PermissionDenied, match="can only be read"):
            push(here, source, ["main:other"], options)
    assert files_at(here, made.digest) == FILES


def test_an_empty_repository_is_cloned_and_filled_later(options: TransferOptions) -> None:
    origin, here = new_repository(), new_repository()
    branch, report = clone(HistorySource.of(origin), here, "origin", options)
    assert (branch, report.moves) == ("main", ())
    made = commit_files(here, FILES)
    push(here, origin, ["main"], options, remote="origin")
    assert tip_of(origin) == made.digest


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9, 0.99])
def test_a_push_that_dies_anywhere_leaves_no_trace_and_goes_on(
    share: float, options: TransferOptions
) -> None:
    here = new_repository()
    made = commit_files(here, FILES)
    recorded = CrashBackend(new_repository().backend, 1 << 30)
    push(here, open_repository(recorded, drivers={}), ["main"], options)
    dying = CrashBackend(new_repository().backend, int(share * len(recorded.operations)))
    with pytest.raises((Crash, CommitOutcomeUnknown)):
        push(here, open_repository(dying, drivers={}), ["main"], options)
    verify(dying.inner)
    target = open_repository(dying.inner, drivers={})
    push(here, target, ["main"], options)
    assert tip_of(target) == made.digest
    assert files_at(target, made.digest) == FILES
    verify(dying.inner)


def test_a_commit_whose_links_lie_is_refused(options: TransferOptions) -> None:
    origin, here = new_repository(), new_repository()
    made = commit_files(origin, {"files/a": b"content"})
    told = origin.objects.get(made.digest)
    lying = [msgspec.structs.replace(link, bytes=link.bytes + 1) for link in told.links]
    writer = ObjectWriter(origin.objects, ())
    false = writer.put_encoded(encode_object(Kind.COMMIT, told.payload, lying))
    writer.flush()
    source = dataclasses.replace(HistorySource.of(origin), refs={"heads/main": false.digest})
    with pytest.raises(CorruptError, match="is not what the objects say"):
        clone(source, here, "origin", options)
    assert not here.log.refresh().state.refs


@pytest.mark.parametrize(("many", "length"), [(400, 1), (140, 500)])
def test_a_repository_with_many_branches_is_pushed_in_one_record(
    options: TransferOptions, many: int, length: int
) -> None:
    here, target = new_repository(), new_repository()
    tip = commit_files(here, FILES).digest
    folder = "/".join(["b" * min(length, 250)] * (length // 250 + 1))
    names = [f"{folder}/{number}" for number in range(many)]
    push(here, target, [f"main:{name}" for name in names], options)
    view = target.log.refresh()
    assert view.generation == 1
    assert view.state.refs == {f"heads/{name}": tip for name in names}
    with pytest.raises(ConflictError, match="cannot exist beside"):
        push(here, target, [f"main:{folder}", *(f"main:new/{name}" for name in names)], options)
