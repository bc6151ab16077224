"""Repair from copies: every object and every record comes back as it was."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes.quarantine import QUARANTINE
from tensorrepo.repo.changes.repository import LocalState, RepositoryCore, open_repository
from tensorrepo.repo.errors import CorruptError, RepositoryRewound
from tensorrepo.repo.log.log_slots import slot_key
from tensorrepo.repo.log.records import decode_record
from tensorrepo.repo.objects.incarnations import object_key, parse_object_key
from tensorrepo.repo.transfer.exchange import clone
from tensorrepo.repo.transfer.mirror import begin_mirror, follow
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions
from tensorrepo.repo.transfer.repair import (
    RepairedObject,
    RepairedRecord,
    repair_objects,
    repair_records,
)
from tests.support.builders.histories import copied, verify
from tests.support.builders.log import encode_record
from tests.support.builders.repositories import ADA, commit_files, new_repository
from tests.support.faults.damage import flipped

LARGE = bytes(range(256)) * 20_000


@pytest.fixture(scope="module")
def origin() -> RepositoryCore:
    made = new_repository()
    for number in range(5):
        commit_files(made, {"files/a": b"%d" % number, "files/large": LARGE})
    return made


@pytest.fixture
def options(tmp_path: Path) -> TransferOptions:
    return TransferOptions(ADA, tmp_path / "parts")


def damage(backend: Backend, key: str) -> None:
    data = backend.read(key)
    backend.overwrite(key, (flipped(data, len(data) // 2, 0x10),))


def contents(backend: Backend) -> dict[str, bytes]:
    keys = [stored.key for stored in backend.list("")]
    return {key: backend.read(key) for key in keys if not key.startswith(QUARANTINE)}


def kept(backend: Backend) -> list[bytes]:
    return sorted(backend.read(stored.key) for stored in backend.list(QUARANTINE))


def generations(repaired: Iterable[object]) -> list[int]:
    return sorted(one.generation for one in repaired if isinstance(one, RepairedRecord))


def test_all_objects_come_back_from_a_clone(
    origin: RepositoryCore, options: TransferOptions
) -> None:
    other = new_repository()
    clone(HistorySource.of(origin), other, "origin", options)
    backend = copied(origin.backend)
    before = contents(backend)
    keys = [key for key in before if key.startswith("objects/")]
    for key in keys[::2]:
        damage(backend, key)
    for key in keys[1::2]:
        backend.delete(key)
    here = open_repository(backend, drivers={})
    digests = [parsed[0] for key in keys if (parsed := parse_object_key(key))]
    damaged = sorted(backend.read(key) for key in keys[::2])
    found = list(repair_objects(here, digests, [HistorySource.of(other)], options.parts))
    assert len([one for one in found if isinstance(one, RepairedObject)]) == len(digests)
    assert contents(backend) == before
    assert kept(backend) == damaged
    assert list(options.parts.iterdir()) == []


def test_a_damaged_copy_repairs_nothing(origin: RepositoryCore, options: TransferOptions) -> None:
    worse, backend = copied(origin.backend), copied(origin.backend)
    keys = [key for key in contents(backend) if key.startswith("objects/")]
    for key in keys:
        damage(worse, key)
        backend.delete(key)
    here = open_repository(backend, drivers={})
    digests = [parsed[0] for key in keys if (parsed := parse_object_key(key))]
    copy = HistorySource.of(open_repository(worse, drivers={}))
    assert list(repair_objects(here, digests, [copy], options.parts)) == []
    assert not [key for key in contents(backend) if key.startswith("objects/")]


@pytest.mark.parametrize("broken", [[1], [3], [2, 3], [5], [1, 2, 3, 4, 5]])
def test_records_come_back_from_a_mirror(
    broken: list[int], origin: RepositoryCore, options: TransferOptions
) -> None:
    mirror = MemoryBackend()
    begin_mirror(origin, mirror)
    copy = open_repository(mirror, drivers={})
    follow(origin, copy, options)
    backend = copied(origin.backend)
    before = contents(backend)
    for generation in broken:
        damage(backend, slot_key(generation))
    here = open_repository(backend, drivers={})
    with pytest.raises(CorruptError):
        here.log.refresh()
    damaged = sorted(backend.read(slot_key(generation)) for generation in broken)
    assert generations(repair_records(here, [copy])) == broken
    assert kept(backend) == damaged
    assert contents(backend) == before
    verify(backend)


def test_a_lost_record_comes_back_where_a_later_one_asks_for_it(origin: RepositoryCore) -> None:
    backend = copied(origin.backend)
    backend.delete(slot_key(3))
    assert generations(repair_records(open_repository(backend, drivers={}), [origin])) == [3]


def test_a_log_that_was_cut_short_or_went_another_way_is_left_alone(
    origin: RepositoryCore,
) -> None:
    short, other = copied(origin.backend), copied(origin.backend)
    short.delete(slot_key(5))
    other.delete(slot_key(5))
    commit_files(open_repository(other, drivers={}), {"files/a": b"another way"})
    before = contents(short), contents(other)
    assert list(repair_records(open_repository(short, drivers={}), [origin])) == []
    assert list(repair_records(open_repository(other, drivers={}), [origin])) == []
    assert (contents(short), contents(other)) == before


def test_a_repository_of_another_id_has_no_records_for_this_one(origin: RepositoryCore) -> None:
    backend = copied(origin.backend)
    damage(backend, slot_key(3))
    stranger = new_repository()
    commit_files(stranger, {"files/a": b"0"})
    assert list(repair_records(open_repository(backend, drivers={}), [stranger])) == []


def test_a_record_that_a_segment_has_needs_no_mirror() -> None:
    made = new_repository()
    for number in range(66):
        commit_files(made, {"files/a": b"%d" % number})
    backend = made.backend
    before = contents(backend)
    for generation in (5, 6, 40):
        damage(backend, slot_key(generation))
    here = open_repository(backend, drivers={})
    assert here.log.refresh().generation == 66  # nobody who opens it meets the damage
    assert generations(repair_records(here, [])) == [5, 6, 40]
    assert contents(backend) == before


def test_the_newest_record_comes_back_to_who_remembers_it(
    origin: RepositoryCore, tmp_path: Path
) -> None:
    seen = LocalState(memory=tmp_path)
    backend, copy = copied(origin.backend), open_repository(copied(origin.backend), drivers={})
    newest = backend.read(slot_key(5))
    open_repository(backend, drivers={}, local=seen).log.refresh()
    record = decode_record(newest)
    entry = structs.replace(record.entries[0], actor="Eve <eve@example.org>")
    altered = encode_record(replace(record, entries=(entry,)))  # its tag is right, too
    backend.overwrite(slot_key(5), (altered,))
    stranger = open_repository(backend, drivers={})
    assert generations(repair_records(stranger, [copy])) == []
    here = open_repository(backend, drivers={}, local=seen)
    with pytest.raises(RepositoryRewound):
        here.log.refresh()
    assert generations(repair_records(here, [copy])) == [5]
    assert backend.read(slot_key(5)) == newest
    backend.delete(slot_key(5))  # cut short: who saw more may have it back
    here = open_repository(backend, drivers={}, local=seen)
    assert generations(repair_records(here, [copy])) == [5]


def test_another_incarnation_is_a_copy(origin: RepositoryCore, options: TransferOptions) -> None:
    backend = copied(origin.backend)
    (digest,) = {parsed[0] for stored in backend.list("objects/") if stored.bytes > 1_000_000
                 and (parsed := parse_object_key(stored.key))}  # fmt: skip
    backend.create(object_key(digest, 9), (backend.read(object_key(digest)),))
    damage(backend, object_key(digest))
    here = open_repository(backend, drivers={})
    found = list(repair_objects(here, [digest], [], options.parts))
    assert [one.url for one in found if isinstance(one, RepairedObject)] == [backend.url]
    assert here.objects.stored(digest).payload == LARGE
    (left,) = [stored.key for stored in backend.list("objects/") if digest[2:] in stored.key]
    assert left == object_key(digest, 9)
