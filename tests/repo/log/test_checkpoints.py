from __future__ import annotations

from typing import Any

import pytest

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.hashing.digests import state_digest
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.append import append
from tensorrepo.repo.log.checkpoints import write_checkpoint
from tensorrepo.repo.log.log_slots import HINT_KEY, checkpoint_key, ref_page_key
from tensorrepo.repo.log.reader import Form, RepositoryLog
from tensorrepo.repo.log.records import Update, encode_ref_updates
from tensorrepo.repo.log.repair import rewrite_checkpoint
from tensorrepo.repo.log.state import Paging, State, encode_with_pages
from tests.support.builders.log import Bulks, append_many, digest, entry, new_backend, open_log
from tests.support.faults.backends import CountingBackend, Crash, CrashBackend

FORM = Form(paging=Paging(inline_bytes=1000, end_mask=15, min_refs=4, max_refs=64))
BULKS = Bulks()
BRANCHES = 400


def paged_log(backend: Any, **options: Any) -> RepositoryLog:
    return open_log(backend, read_bulk=BULKS, form=FORM, **options)


def many_refs() -> MemoryBackend:
    """200 records, of which the first makes 400 branches and the others move main."""
    backend = new_backend()
    log = paged_log(backend)
    updates = [Update(f"heads/b{number:05d}", None, digest(1)) for number in range(BRANCHES)]
    name = BULKS.put(encode_ref_updates(updates))
    append(log, lambda _: (entry("commit", bulk=name),))
    append_many(log, 199, start=2)
    return backend


BACKEND = many_refs()
TIP = paged_log(BACKEND).refresh()


def copy() -> MemoryBackend:
    backend = new_backend()
    for stored in BACKEND.list("log/"):
        backend.create(stored.key, [BACKEND.read(stored.key)])
    return backend


def page_keys(backend: Any) -> set[str]:
    return {stored.key for stored in backend.list("log/refs/")}


def newest_pages() -> list[str]:
    encoded = encode_with_pages(paged_log(BACKEND).view_at(191).state, FORM.paging)
    return [ref_page_key(page) for page in encoded.pages]


def test_a_reader_finds_in_pages_what_the_log_adds_up_to() -> None:
    assert len(TIP.state.refs) == BRANCHES + 1
    unpaged = copy()
    for stored in [*BACKEND.list("log/refs/"), *BACKEND.list("log/checkpoint/")]:
        unpaged.delete(stored.key)
    unpaged.delete(HINT_KEY)
    assert paged_log(unpaged).refresh() == TIP


def test_a_checkpoint_with_pages_takes_one_more_round_trip() -> None:
    log = paged_log(copy())
    assert log.refresh() == TIP
    assert log.slots.rounds == 3  # the hint; checkpoint and records; pages


def test_a_checkpoint_is_small_and_its_record_names_its_bytes() -> None:
    data = BACKEND.read(checkpoint_key(192))
    assert state_digest(data) == next(paged_log(BACKEND).records(192, 193)).state
    assert len(data) < 5000 < BRANCHES * 70
    assert set(newest_pages()) <= page_keys(BACKEND)


def test_a_checkpoint_after_one_changed_ref_stores_one_page() -> None:
    backend = CountingBackend(new_backend())
    slots = paged_log(backend).slots
    refs = {f"runs/{number:06d}": digest(number) for number in range(20_000)}
    write_checkpoint(slots, 64, encode_with_pages(State(63, refs), FORM.paging), 0)
    changed = State(127, refs | {"runs/001234": digest(1 << 200)})
    backend.reset()
    write_checkpoint(slots, 128, encode_with_pages(changed, FORM.paging), 64)
    written = [key for verb, key in backend.operations if verb in {"upload", "create"}]
    assert [key[:9] for key in written] == ["log/refs/", "log/check"]
    assert backend.count["read"] == 1  # the checkpoint before, to see which pages there are


@pytest.mark.parametrize("before", [b"", b"[]", b'{"refs":{}}', b'{"refs":[1]}', None])
def test_without_the_checkpoint_before_all_pages_are_stored(before: bytes | None) -> None:
    backend = new_backend()
    if before is not None:
        backend.create(checkpoint_key(64), [before])
    encoded = encode_with_pages(TIP.state, FORM.paging)
    write_checkpoint(paged_log(backend).slots, 128, encoded, 64)
    assert page_keys(backend) == {ref_page_key(page) for page in encoded.pages}


def shared_page() -> str:
    """A page that no record after the first has changed: all checkpoints name it."""
    return newest_pages()[0]


@pytest.mark.parametrize("data", [None, b"", b"{}", b"garbage"])
@pytest.mark.parametrize("hinted", [True, False])
def test_with_a_bad_page_the_log_is_folded_from_its_start(data: bytes | None, hinted: bool) -> None:
    backend = copy()
    backend.delete(shared_page())
    if data is not None:
        backend.create(shared_page(), [data])
    if not hinted:
        backend.delete(HINT_KEY)
    reports: list[str] = []
    assert paged_log(backend, report=reports.append).refresh() == TIP
    assert any("ref page" in report for report in reports)


def own_page(gen: int) -> str:
    """The page that only checkpoint `gen` names: main is in it, and moves all the time."""
    older = encode_with_pages(paged_log(BACKEND).view_at(gen - 1).state, FORM.paging)
    newer = encode_with_pages(TIP.state, FORM.paging)
    (name,) = older.pages.keys() - newer.pages.keys()
    return ref_page_key(name)


def test_with_a_bad_page_of_the_newest_checkpoint_an_older_one_is_used() -> None:
    backend = CountingBackend(copy())
    backend.inner.delete(own_page(192))
    reports: list[str] = []
    assert paged_log(backend, report=reports.append).refresh() == TIP
    assert any("checkpoint 192" in report for report in reports)
    assert ("read", own_page(128)) in backend.operations


@pytest.mark.parametrize("survived", range(5))
def test_a_crash_between_pages_and_checkpoint_leaves_only_garbage(survived: int) -> None:
    backend = copy()
    log = paged_log(backend)
    append_many(log, 55, start=201)  # the next one brings a checkpoint
    known = log.refresh_tip().checkpoint
    changed = log.refresh().state
    pages = page_keys(backend)
    dying = CrashBackend(backend, survived, late=True)
    with pytest.raises(Crash):
        write_checkpoint(
            paged_log(dying).slots, 256, encode_with_pages(changed, FORM.paging), known
        )
    assert backend.size(checkpoint_key(256)) is None or page_keys(backend) > pages
    assert paged_log(backend).refresh() == log.refresh()
    append_many(paged_log(backend), 70, start=256)
    assert backend.size(checkpoint_key(320)) is not None
    reports: list[str] = []
    assert paged_log(backend, report=reports.append).refresh() == log.refresh()
    assert reports == []


@pytest.mark.parametrize("data", [None, b"garbage"])
def test_bad_pages_and_checkpoints_can_be_written_anew(data: bytes | None) -> None:
    backend = copy()
    for key in (shared_page(), checkpoint_key(192)):
        backend.delete(key)
        if data is not None:
            backend.create(key, [data])
    assert rewrite_checkpoint(paged_log(backend, report=lambda _: None)) == 192
    reports: list[str] = []
    assert paged_log(backend, report=reports.append).refresh() == TIP
    assert reports == []
    assert backend.read(shared_page()) == BACKEND.read(shared_page())


def test_a_log_without_a_checkpoint_has_none_to_write_anew() -> None:
    assert rewrite_checkpoint(open_log(new_backend())) is None


def names(backend: Any) -> list[Digest]:
    return sorted(key.rpartition("/")[2] for key in page_keys(backend))  # type: ignore[misc]


def test_pages_are_stored_under_their_digests() -> None:
    assert [state_digest(BACKEND.read(f"log/refs/{name}")) for name in names(BACKEND)] == names(
        BACKEND
    )
