"""Byte flips and truncations: every damaged file of a repository is found by fsck, and comes back.

The small repository has everything that is stored in metadata: trees of several pages, a merge,
updates in an object, a collection, a lease, a checkpoint, a segment, a void slot. Each byte of each
file is flipped in a soak, some of a few files of each kind in CI; files are cut, emptied and
removed, too. The big one is damaged at random. The hint is no truth, and is rebuilt.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pytest

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes import gc_fence
from tensorrepo.repo.changes.fsck import ObjectTotals, check_objects
from tensorrepo.repo.changes.quarantine import QUARANTINE
from tensorrepo.repo.changes.repository import LocalState, open_repository
from tensorrepo.repo.errors import CorruptError, NotFoundError, UnsupportedError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.append import append
from tensorrepo.repo.log.log_check import LogCheck
from tensorrepo.repo.log.log_slots import (
    HINT_KEY,
    IDENTITY_KEY,
    Marker,
    encode_marker,
    slot_key,
)
from tensorrepo.repo.log.records import LogEntry, parse_canonical
from tensorrepo.repo.log.repair import void_slot
from tensorrepo.repo.objects.envelope import ZSTD_MAGIC, expand
from tensorrepo.repo.objects.incarnations import parse_object_key
from tensorrepo.repo.transfer.exchange import clone
from tensorrepo.repo.transfer.mirror import begin_mirror, follow
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions
from tensorrepo.repo.transfer.repair import repair_damage, repair_identity, repair_log
from tests.support.builders.everything import store_everything
from tests.support.builders.histories import copied, verify
from tests.support.builders.repositories import ADA, commit_files, new_repository, tip_of
from tests.support.effort import check_each, sampled, soaking
from tests.support.faults.damage import flipped

FLIPS = 100 if soaking() else 40  # of one round, in as many objects
ROUNDS = range(100 if soaking() else 1)
PLACES = 3  # in each file; all of them in a soak
PARTS = 16 if soaking() else 1  # of all damages, for as many workers as there are
OF_A_KIND = 10_000 if soaking() else 2  # of which some are taken
NAME = Digest("ab" * 32)


class Damage(NamedTuple):
    """What takes the place of the bytes under a key; None removes it."""

    key: str
    how: str
    data: bytes | None


@cache
def whole() -> tuple[MemoryBackend, MemoryBackend]:
    """The small repository, and a mirror of it."""
    backend, mirror = MemoryBackend(), MemoryBackend()
    store_everything(backend)
    made = open_repository(backend, drivers={})
    void = made.log.refresh().generation + 1
    backend.create(slot_key(void), (b"what a strange program wrote",))
    made = open_repository(backend, drivers={})
    void_slot(made.log, void, actor=ADA, time_ns=0, note="a disk died")
    tip = tip_of(made)
    lease = {"id": "stage", "keep": [tip], "expires": None}
    append(made.log, lambda _: (LogEntry("lease", "lease-open", ADA, 0, data=lease),))
    commit_files(made, {"files/late": b"late"})
    begin_mirror(made, mirror)
    follow(made, open_repository(mirror, drivers={}), TransferOptions(ADA, Path("/nonexistent")))
    return backend, mirror


def kind_of(key: str) -> str:
    return key if "/" not in key else key.rsplit("/", 2 if key.startswith("objects/") else 1)[0]


def reads_alike(data: bytes, broken: bytes) -> bool:
    """Whether a compressed object expands to the same: there are bits that zstd never looks at."""
    with suppress(CorruptError):
        return data[:4] == ZSTD_MAGIC and expand(data, NAME) == expand(broken, NAME)
    return False


def damages(backend: Backend) -> Iterator[Damage]:
    """Each file flipped at several places, or at all, cut, emptied, removed."""
    keys: dict[str, list[str]] = {}
    for stored in backend.list(""):
        keys.setdefault(kind_of(stored.key), []).append(stored.key)
    for key in (key for of_kind in keys.values() for key in sampled(of_kind, OF_A_KIND)):
        data = backend.read(key)
        for at in sampled(range(len(data)), PLACES):
            broken = flipped(data, at, 0x10)
            if not reads_alike(data, broken):
                yield Damage(key, f"flipped at {at}", broken)
        yield Damage(key, "cut", data[: len(data) // 2])
        yield Damage(key, "emptied", b"")
        yield Damage(key, "removed", None)


def damaged(backend: Backend, damage: Damage) -> Backend:
    copy = copied(backend)
    if damage.data is None:
        copy.delete(damage.key)
    else:
        copy.overwrite(damage.key, (damage.data,))
    return copy


def faults(backend: Backend, memory: Path | None = None) -> list[str]:
    """What a full check tells, as somebody who has seen the repository; raises what ends it."""
    core = open_repository(backend, drivers={}, local=LocalState(memory=memory))
    check = LogCheck(core.log)
    found = [f"{one.kind}: {one.problem}" for one in check.faults()]
    collects = core.copy is None
    found += [
        f"{one.digest}: {one.problem}"
        for one in check_objects(
            core.objects, check.state, ObjectTotals(), deep=True, collects=collects
        )
    ]
    return found


@pytest.fixture
def memory(tmp_path: Path) -> Path:
    """What a client remembers who has seen all of the small repository."""
    folder = tmp_path / "memory"
    backend, _ = whole()
    open_repository(backend, drivers={}, local=LocalState(memory=folder)).log.refresh()
    return folder


def unneeded(backend: Backend) -> set[str]:
    """Objects that nothing leads to."""
    core = open_repository(backend, drivers={})
    state = core.log.refresh().state
    needed = set(gc_fence.closure(core.objects, state.roots(), state.supersedes))
    keys = [stored.key for stored in backend.list("objects/")]
    return {key for key in keys if (name := parse_object_key(key)) and name[0] not in needed}


def test_a_whole_repository_has_no_faults(memory: Path) -> None:
    backend, mirror = whole()
    assert faults(backend, memory) == []
    assert faults(mirror) == []


def is_open_to(damage: Damage, spare: set[str]) -> bool:
    """Whether a repository is whole with it: without a cache, or what nothing leads to.

    A hint of which a member's name is damaged is one that says less.
    """
    optional = ("log/checkpoint/", "log/segment/")
    is_gone = damage.data is None and (damage.key.startswith(optional) or damage.key in spare)
    return is_gone or damage.key == HINT_KEY


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_is_done_to_a_file_is_found_and_put_right(
    part: int, memory: Path, tmp_path: Path
) -> None:
    backend, mirror = whole()
    spare = unneeded(backend)
    before = contents(backend)

    def check(damage: Damage) -> None:
        broken = damaged(backend, damage)
        if not is_open_to(damage, spare):
            assert told(broken, memory)
        mend(broken, mirror, memory, tmp_path / "parts")
        assert faults(broken, memory) == []
        found = contents(broken)
        if damage.key in spare or is_open_to(damage, spare):
            assert found.items() <= before.items()
        else:
            assert found == before

    check_each(sampled([*islice(damages(backend), part, None, PARTS)], 12), check)


def test_whatever_byte_of_the_marker_of_a_void_slot_is_flipped_is_found_and_comes_back(
    tmp_path: Path,
) -> None:
    backend, mirror = whole()
    (marker,) = (stored.key for stored in backend.list("log/void/"))
    data = backend.read(marker)

    def check(at: int) -> None:
        mask = (0x10, 0x20, 1)[at % 3]
        broken = damaged(backend, Damage(marker, "flipped", flipped(data, at, mask)))
        check = LogCheck(open_repository(broken, drivers={}).log)
        assert marker in {fault.key for fault in check.faults()}
        core = open_repository(broken, drivers={})
        list(repair_log(core, [open_repository(mirror, drivers={})], tmp_path))
        assert broken.read(marker) == data

    check_each(sampled(range(len(data)), 12), check)


def test_a_marker_that_was_said_anew_is_kept_and_a_damaged_one_is_better_than_none(
    tmp_path: Path,
) -> None:
    backend, mirror = map(copied, whole())
    (key,) = (stored.key for stored in backend.list("log/void/"))
    data = backend.read(key)
    told = parse_canonical(data, "marker")
    marker = Marker(told["gen"], told["previous"], told["found"], ADA, 1, "said anew")
    anew = encode_marker(marker)
    backend.overwrite(key, (anew,))
    mirror_of = open_repository(mirror, drivers={})
    list(repair_log(open_repository(backend, drivers={}), [mirror_of], tmp_path))
    assert backend.read(key) == anew
    broken = data.replace(b"a disk died", b"a disc died")
    backend.delete(key)
    mirror.overwrite(key, (broken,))
    list(repair_log(open_repository(backend, drivers={}), [mirror_of], tmp_path))
    assert backend.read(key) == broken


@pytest.mark.parametrize("before", [1, 0])
@pytest.mark.parametrize("data", [b"", b"damaged"])
def test_a_void_slot_and_the_record_before_it_come_back_from_a_mirror(
    before: int, data: bytes, memory: Path, tmp_path: Path
) -> None:
    backend, mirror = whole()
    (marker,) = (stored.key for stored in backend.list("log/void/"))
    void = int(marker.removeprefix("log/void/").removesuffix(".json"))
    broken = damaged(backend, Damage(slot_key(void - before), "overwritten", data))
    mend(broken, mirror, memory, tmp_path / "parts")
    assert faults(broken, memory) == []
    assert contents(broken) == contents(backend)


def told(backend: Backend, memory: Path) -> list[str]:
    """As `faults`; of `repo.json` opening itself tells."""
    try:
        return faults(backend, memory)
    except (CorruptError, NotFoundError, UnsupportedError) as error:
        return [text for text in [str(error)] if IDENTITY_KEY in text]


def mend(backend: Backend, mirror: Backend, memory: Path, parts: Path) -> None:
    """As `fsck --deep --repair --from MIRROR` does."""
    copy = open_repository(mirror, drivers={})
    try:
        core = open_repository(backend, drivers={}, local=LocalState(memory=memory))
        assert core.id == copy.id
    except (AssertionError, CorruptError, NotFoundError, UnsupportedError):
        assert repair_identity(backend, [copy]) == copy.url
        core = open_repository(backend, drivers={}, local=LocalState(memory=memory))
    list(repair_log(core, [copy], parts))
    list(repair_damage(core, [HistorySource.of(copy)], parts, deep=True))


def contents(backend: Backend) -> dict[str, bytes]:
    """All files but the hint, which may lag, and quarantine."""
    keys = [stored.key for stored in backend.list("") if stored.key != HINT_KEY]
    return {key: backend.read(key) for key in keys if not key.startswith(QUARANTINE)}


@cache
def big() -> tuple[MemoryBackend, MemoryBackend]:
    """Many files in many commits, one of them large, and a clone, which has another log."""
    backend, other = MemoryBackend(), MemoryBackend()
    made = new_repository(backend)
    commit_files(made, {f"files/{at:04}": b"content %d" % at * 9 for at in range(200)})
    large = random.Random(0).randbytes(9 << 20)  # more than a check reads at once
    commit_files(made, {"files/large": large, "models/net": large[: 2 << 20]})
    for number in range(20):
        commit_files(made, {f"files/{number * 9:04}": b"changed %d" % number})
    options = TransferOptions(ADA, Path("/nonexistent"))
    clone(HistorySource.of(made), new_repository(other), "origin", options)
    return backend, other


@pytest.mark.soak
@pytest.mark.parametrize("seed", ROUNDS)
def test_random_flips_in_a_big_repository_are_all_found_at_once_and_objects_come_back(
    seed: int, tmp_path: Path
) -> None:
    backend, other = big()
    chance, broken = random.Random(seed), copied(backend)
    objects = [stored.key for stored in backend.list("objects/")]
    for key in chance.sample(objects, FLIPS):
        data = broken.read(key)
        at, mask = chance.randrange(len(data)), 1 << chance.randrange(8)
        broken.overwrite(key, (flipped(data, at, mask),))
        if reads_alike(data, broken.read(key)):
            broken.overwrite(key, (data,))
    hit = {key for key in objects if broken.read(key) != backend.read(key)}
    core = open_repository(broken, drivers={})
    copy = HistorySource.of(open_repository(other, drivers={}))
    state = core.log.refresh().state
    found = {one.digest for one in check_objects(core.objects, state, ObjectTotals(), deep=True)}
    assert found == {key.removeprefix("objects/").replace("/", "") for key in hit}
    list(repair_damage(core, [copy], tmp_path / "parts", deep=True))
    assert contents(broken) == contents(backend)
    assert len(list(broken.list(QUARANTINE))) >= len(hit)
    verify(broken)
