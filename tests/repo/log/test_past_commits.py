from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.history.commits import best_common, is_ancestor, read_commit, touches, walk
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.log_slots import segment_key
from tensorrepo.repo.log.past_commits import LIMIT_BYTES, PastCommits
from tensorrepo.repo.log.reader import Form, RepositoryLog
from tensorrepo.repo.log.segments import Segment, SegmentCommit, changed_filter, encode_segment
from tensorrepo.repo.objects.store import ObjectStore
from tests.support.builders.repositories import commit_files, new_repository, tip_of
from tests.support.faults.backends import CountingBackend

LENGTHS = (4, 16, 64)
COMMITS = 170  # 2 long segments, 2 of 16, 2 of 4, and 2 records in none


def opened(backend: Any, limit_bytes: int = LIMIT_BYTES, report: Any = None) -> RepositoryCore:
    """A repository with short segments, opened by somebody who has read nothing yet."""
    log = RepositoryLog(
        backend,
        backend.read("repo.json"),
        lambda _: (),
        form=Form(segment_lengths=LENGTHS),
        report=report or (lambda _: None),
    )
    log.refresh()
    past = PastCommits(log, limit_bytes)
    objects = ObjectStore(backend, past=past.get)
    plain = open_repository(backend, drivers={})
    return replace(plain, log=log, objects=objects, past=past)


def long_history() -> MemoryBackend:
    backend = MemoryBackend()
    new_repository(backend)
    repository = opened(backend)
    for number in range(COMMITS):
        commit_files(repository, {f"files/{number % 7}": str(number).encode()})
    return backend


BACKEND = long_history()
TIP = tip_of(opened(BACKEND))
assert TIP is not None
HISTORY = list(walk(ObjectStore(BACKEND), [TIP]))


def copy() -> MemoryBackend:
    backend = MemoryBackend()
    for stored in BACKEND.list(""):
        backend.create(stored.key, [BACKEND.read(stored.key)])
    return backend


def walked(repository: RepositoryCore, limit: int | None = None) -> list[Any]:
    return list(islice(walk(repository.objects, [TIP]), limit))


def requests_of(
    repository: RepositoryCore, backend: CountingBackend, limit: int | None = None
) -> int:
    """How many requests a walk takes; what it yields is right."""
    backend.reset()
    assert walked(repository, limit) == HISTORY[:limit]
    return backend.round_trips


def test_a_walk_through_all_history_takes_few_requests() -> None:
    backend = CountingBackend(BACKEND)
    repository = opened(backend)
    assert len(HISTORY) == COMMITS
    # Two for each of 6 segments, and the commits until the first of them pays.
    assert requests_of(repository, backend) <= 12 + 8


def test_a_short_walk_loads_no_segment() -> None:
    backend = CountingBackend(BACKEND)
    assert requests_of(opened(backend), backend, limit=3) <= 4
    assert not [key for _, key in backend.operations if key.startswith("log/segment")]


def test_a_walk_loads_short_segments_first() -> None:
    backend = CountingBackend(BACKEND)
    requests_of(opened(backend), backend, limit=12)
    loaded = [key for verb, key in backend.operations if verb == "read" and "segment" in key]
    assert loaded == [segment_key(168), segment_key(164)]


def test_a_second_walk_reads_nothing() -> None:
    backend = CountingBackend(BACKEND)
    repository = opened(backend)
    walked(repository)
    assert requests_of(repository, backend) == 0


BAD = [None, b"", b"garbage", b"\x28\xb5\x2f\xfdgarbage", encode_segment(Segment(1, (), ()))]


@pytest.mark.parametrize("data", BAD)
def test_without_usable_segments_history_is_read_commit_by_commit(data: bytes | None) -> None:
    backend = copy()
    for stored in list(backend.list("log/segment/")):
        backend.delete(stored.key)
        if data is not None:
            backend.create(stored.key, [data])
    reports: list[str] = []
    counting = CountingBackend(backend)
    repository = opened(counting, report=reports.append)
    assert requests_of(repository, counting) < COMMITS + 20
    assert bool(reports) == (data is not None)


@pytest.mark.parametrize("missing", [4, 16, 64, 128, 144, 160, 164, 168])
def test_one_missing_segment_is_made_up_for(missing: int) -> None:
    backend = CountingBackend(copy())
    backend.inner.delete(segment_key(missing))
    assert requests_of(opened(backend), backend) < COMMITS


def test_a_store_that_lay_on_a_disk_is_read_by_its_long_segments() -> None:
    backend = CountingBackend(copy())
    for stored in list(backend.list("log/segment/")):
        if not stored.key.endswith((segment_key(64)[-4:], segment_key(128)[-4:])):
            backend.inner.delete(stored.key)
    # What comes after the long ones, one by one; two requests for each of those, and two in vain.
    assert requests_of(opened(backend), backend) <= COMMITS - 128 + 4 + 2


@pytest.mark.parametrize("limit_bytes", [0, 2_000, 8_000, 30_000, 60_000])
def test_memory_is_bounded_and_answers_stay_right(limit_bytes: int) -> None:
    backend = CountingBackend(BACKEND)
    repository = opened(backend, limit_bytes)
    first = requests_of(repository, backend)
    repository.objects._recent._items.clear()  # as after very many commits
    assert first < COMMITS * 1.5
    assert requests_of(repository, backend) < COMMITS * 1.5
    past = repository.past
    assert past is not None
    assert past._bytes <= limit_bytes


def test_a_walk_starts_anew_where_older_segments_pushed_out_the_newer() -> None:
    backend = CountingBackend(BACKEND)
    repository = opened(backend, 60_000)
    walked(repository)
    past = repository.past
    assert past is not None
    assert past._dropped
    repository.objects._recent._items.clear()
    assert requests_of(repository, backend) < COMMITS / 2


def test_a_process_that_stays_finds_segments_that_came_since() -> None:
    backend = copy()
    reader = opened(backend)
    walked(reader)
    writer = opened(backend)
    for number in range(60):
        commit_files(writer, {"files/new": str(number).encode()})
    counting = CountingBackend(backend)
    reader.log.slots.backend = reader.objects.backend = counting
    tip = tip_of(reader)
    assert tip is not None
    counting.reset()
    assert len(list(walk(reader.objects, [tip]))) == COMMITS + 60
    assert counting.round_trips < 30


def test_other_questions_about_history_get_the_same_answers() -> None:
    backend = CountingBackend(BACKEND)
    repository = opened(backend)
    first, middle = HISTORY[-1][0], HISTORY[80][0]
    assert TIP is not None
    backend.reset()
    assert is_ancestor(repository.objects, first, TIP)
    assert best_common(repository.objects, [middle], [TIP]) == (middle,)
    assert backend.round_trips < 30


def test_a_forged_commit_in_a_segment_is_never_returned() -> None:
    backend = copy()
    digest = HISTORY[1][0]
    forged = SegmentCommit(1, digest, b"forged", changed_filter(None))
    for gen in (160, 164, 168):
        records = tuple(BACKEND.read(f"log/{at:020d}.json") for at in range(gen - 3, gen + 1))
        data = encode_segment(Segment(gen - 3, records, (forged,)))
        backend.overwrite(segment_key(gen), [data])
    reports: list[str] = []
    assert walked(opened(backend, report=reports.append)) == HISTORY
    assert any("has other bytes" in report for report in reports)


def wide_history() -> tuple[MemoryBackend, list[Digest]]:
    """Commits that change too many paths to list them, in one folder each."""
    backend = MemoryBackend()
    new_repository(backend)
    repository = opened(backend)
    made = []
    for folder in range(16):
        files: dict[str, bytes | None] = {f"f{folder}/{at:03d}": b"x" for at in range(300)}
        made.append(commit_files(repository, files).digest)
    return backend, made


def test_a_filter_spares_a_search_by_path_from_reading_trees() -> None:
    backend, made = wide_history()
    counting = CountingBackend(backend)
    repository = opened(counting)
    found = list(walk(repository.objects, made[-1:]))
    assert all(commit.changed is None for _, commit in found)
    counting.reset()
    loaded = found[6:]  # those that came out of a segment
    touched = [digest for digest, commit in loaded if repository.touches(digest, commit, "f2")]
    plain = ObjectStore(backend)
    assert touched == [digest for digest, commit in loaded if touches(plain, commit, "f2")]
    assert touched == [made[2]]
    assert counting.count["read"] < 12  # of the one commit that may have touched it


shared_history = cache(wide_history)  # for those who write nothing


@pytest.mark.parametrize("path", ["", "f2", "f2/", "f2/007", "f2/999", "f", "g"])
def test_with_filters_as_without_the_same_commits_touch_a_path(path: str) -> None:
    backend, made = shared_history()
    repository = opened(backend)
    found = list(walk(repository.objects, made[-1:]))
    assert [repository.touches(digest, commit, path) for digest, commit in found] == [
        touches(repository.objects, commit, path) for _, commit in found
    ]


def test_a_local_repository_looks_for_no_commits_in_segments(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    repository = new_repository(backend)
    assert repository.past is None
    short = replace(
        repository,
        log=RepositoryLog(
            backend,
            backend.read("repo.json"),
            lambda _: (),
            form=Form(segment_lengths=(2, 4)),
        ),
    )
    made = [commit_files(short, {"a": bytes([at])}).digest for at in range(6)]
    # Short segments spare requests; here there are none, and writing them would cost time.
    assert [stored.key for stored in backend.list("log/segment/")] == [segment_key(4)]
    assert read_commit(short.objects, made[-1]).generation == 6
