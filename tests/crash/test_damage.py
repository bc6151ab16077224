"""Whatever byte of a repository is damaged, readers say so or still give the right answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import pytest

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes.repository import open_repository
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.checkpoints import HINT_INTERVAL
from tensorrepo.repo.log.log_slots import HINT_KEY, checkpoint_key, slot_key
from tensorrepo.repo.log.records import STATE_INTERVAL
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.incarnations import parse_object_key
from tensorrepo.repo.objects.store import ObjectStore
from tests.support.builders.everything import HEAD, store_everything
from tests.support.builders.histories import copied, verify
from tests.support.builders.repositories import files_at
from tests.support.effort import sampled
from tests.support.faults.damage import FLIPS, flipped, places

WHOLE = MemoryBackend()
store_everything(WHOLE)
KEYS = [stored.key for stored in WHOLE.list("")]
OBJECTS = [key for key in KEYS if key.startswith("objects/")]
KINDS = [
    Kind.BLOB, Kind.TREE_PAGE, Kind.COMMIT, Kind.REF_UPDATES, Kind.GRAVES, Kind.GC_LIST
]  # fmt: skip
CACHES = [HINT_KEY, checkpoint_key(STATE_INTERVAL)]
NOTICED = (CorruptError, UnsupportedError)


def digest_of(key: str) -> Digest:
    parsed = parse_object_key(key)
    assert parsed is not None
    return parsed[0]


def kind_of(key: str) -> Kind:
    return ObjectStore(WHOLE).describe(digest_of(key)).kind


def test_there_is_something_of_everything_to_damage() -> None:
    assert {kind_of(key) for key in OBJECTS} == set(KINDS)
    assert any("." in key for key in OBJECTS)  # a label
    assert set(CACHES) <= set(KEYS)
    assert HEAD % HINT_INTERVAL != 0


def differs(backend: Backend, read: Callable[[Backend], object], truth: object) -> bool:
    """Whether a reader gets something wrong, without being told."""
    try:
        return read(backend) != truth
    except NOTICED:
        return False


def unnoticed(key: str, read: Callable[[Backend], object], damages: Iterable[bytes]) -> list[bytes]:
    """Those damages of `key` with which `read` gives another answer than without."""
    backend = copied(WHOLE)
    truth = read(backend)
    found = []
    for damaged in damages:
        backend.overwrite(key, (damaged,))
        if differs(backend, read, truth):
            found.append(damaged)
    return found


def flips(key: str, masks: Sequence[int] = FLIPS) -> Iterable[bytes]:
    data = WHOLE.read(key)
    return (flipped(data, at, mask) for at in places(len(data)) for mask in masks)


def read_object(key: str, backend: Backend) -> object:
    envelope = ObjectStore(backend).get(digest_of(key))
    return envelope.kind, envelope.links, bytes(envelope.payload)


def describe_object(key: str, backend: Backend) -> object:
    return ObjectStore(backend).describe(digest_of(key))


def read_refs(backend: Backend) -> object:
    return dict(open_repository(backend, drivers={}).log.refresh().state.refs)


def read_chain(backend: Backend) -> object:
    log = open_repository(backend, drivers={}).log
    return list(log.records(1, log.refresh().generation + 1))


@pytest.mark.parametrize("read", [read_object, describe_object])
@pytest.mark.parametrize("kind", KINDS, ids=[kind.label for kind in KINDS])
def test_no_flipped_byte_of_an_object_goes_unnoticed(
    kind: Kind, read: Callable[[str, Backend], object]
) -> None:
    keys = sampled([key for key in OBJECTS if kind_of(key) is kind], 2)
    assert keys
    assert [key for key in keys if unnoticed(key, partial(read, key), flips(key))] == []


@pytest.mark.parametrize("gen", [STATE_INTERVAL, STATE_INTERVAL + 1, HEAD])
def test_no_flipped_byte_of_a_record_that_is_folded_goes_unnoticed(gen: int) -> None:
    assert unnoticed(slot_key(gen), read_refs, flips(slot_key(gen))) == []


@pytest.mark.parametrize("gen", [1, 6, STATE_INTERVAL - 1])
def test_no_flipped_byte_of_an_older_record_goes_unnoticed_by_who_reads_it(gen: int) -> None:
    assert unnoticed(slot_key(gen), read_chain, flips(slot_key(gen), (0x01,))) == []


@pytest.mark.parametrize("key", CACHES)
def test_a_damaged_cache_beside_the_log_changes_no_answer(key: str) -> None:
    backend = copied(WHOLE)
    truth = read_refs(backend)
    wrong = []
    for damaged in flips(key, (0xFF,)):
        backend.overwrite(key, (damaged,))
        if read_refs(backend) != truth:
            wrong.append(damaged)
    assert wrong == []


def read_everything(backend: Backend) -> object:
    verify(backend)
    repository = open_repository(backend, drivers={})
    state = repository.log.refresh().state
    named = ("heads/main", "heads/dev", "tags/v1")
    return state, [files_at(repository, state.refs.get(ref)) for ref in named]


def other_bytes(key: str) -> bytes:
    """What lies under another key of the same folder: well-formed, and in the wrong place."""
    folder = key.rpartition("/")[0][:7]
    others = [other for other in KEYS if other.startswith(folder) and other != key]
    return WHOLE.read(others[len(others) // 2]) if others else b""


DAMAGES: dict[str, Callable[[str], bytes]] = {
    "empty": lambda _: b"",
    "one byte short": lambda key: WHOLE.read(key)[:-1],
    "one byte long": lambda key: WHOLE.read(key) + b"\0",
    "zeros": lambda key: bytes(len(WHOLE.read(key))),
    "a flip": lambda key: flipped(WHOLE.read(key), len(WHOLE.read(key)) // 2, 0x10),
    "another key's": other_bytes,
}


@pytest.mark.parametrize("damage", sampled([*DAMAGES.values()], 3))
def test_who_reads_everything_is_told_of_any_damaged_key(damage: Callable[[str], bytes]) -> None:
    others = [key for key in KEYS if key not in OBJECTS][::7]
    keys = sampled(OBJECTS + others, 8)
    wrong = [key for key in keys if unnoticed(key, read_everything, [damage(key)])]
    assert wrong == []
