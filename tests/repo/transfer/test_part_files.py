"""Unfinished objects go on where they were cut off."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tensorrepo.repo.backends.base import PART_PREFIX
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.changes.repository import RepositoryCore, open_repository
from tensorrepo.repo.errors import CorruptError, StorageError
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, encode_object
from tensorrepo.repo.transfer.exchange import clone
from tensorrepo.repo.transfer.part_files import STEP_BYTES, STEPS_AHEAD, fetch_part, in_steps
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions
from tests.support.builders.histories import verify
from tests.support.builders.repositories import ADA, commit_files, files_at, new_repository, tip_of
from tests.support.faults.backends import CountingBackend

CONTENT = random.Random(0).randbytes(9 * STEP_BYTES)
ENCODED = encode_object(Kind.BLOB, CONTENT)
WHOLE = b"".join(ENCODED.parts)
LINK: ObjectLink = ENCODED.link
PIECE_BYTES = 100_000


class Sender:
    """Gives ranges of the object, counts their bytes, and breaks off after some of them."""

    def __init__(self, whole: bytes = WHOLE, most: int = 1 << 30) -> None:
        self.whole, self.most, self.sent = whole, most, 0

    def read(self, _: Digest, start: int, stop: int) -> bytes:
        if self.sent + stop - start > self.most:
            raise StorageError("the link broke", transient=True)
        self.sent += stop - start
        return self.whole[start:stop]

    def __call__(self, digest: Digest, start: int, stop: int) -> Iterator[Buffer]:
        return in_steps(self.read, digest, start, stop)

    def streamed(self, digest: Digest, start: int, stop: int) -> Iterator[Buffer]:
        """As a store that gives a range while it comes."""
        for at in range(start, stop, PIECE_BYTES):
            yield self.read(digest, at, min(at + PIECE_BYTES, stop))


def ignore(_: int) -> None:
    """Nobody looks at the progress."""


def test_a_transfer_that_is_cut_off_fetches_at_most_4_mib_of_an_object_twice(
    tmp_path: Path,
) -> None:
    first = Sender(most=6 * STEP_BYTES)
    with pytest.raises(StorageError, match="the link broke"):
        fetch_part(tmp_path, LINK, first, ignore)
    second = Sender()
    name = fetch_part(tmp_path, LINK, second, ignore)
    assert (tmp_path / name).read_bytes() == WHOLE
    assert first.sent + second.sent - LINK.bytes <= STEPS_AHEAD * STEP_BYTES


def test_of_what_comes_as_a_stream_nothing_is_fetched_twice(tmp_path: Path) -> None:
    first = Sender(most=6 * STEP_BYTES)
    with pytest.raises(StorageError, match="the link broke"):
        fetch_part(tmp_path, LINK, first.streamed, ignore)
    second = Sender()
    name = fetch_part(tmp_path, LINK, second.streamed, ignore)
    assert (tmp_path / name).read_bytes() == WHOLE
    assert first.sent + second.sent == LINK.bytes


def test_a_part_that_was_damaged_meanwhile_is_fetched_anew(tmp_path: Path) -> None:
    (tmp_path / f"{PART_PREFIX}{LINK.digest}").write_bytes(bytes(3 * STEP_BYTES))
    sender = Sender()
    name = fetch_part(tmp_path, LINK, sender, ignore)
    assert (tmp_path / name).read_bytes() == WHOLE


@pytest.mark.parametrize("left", [WHOLE + b"more", WHOLE])
def test_a_part_that_is_whole_or_too_long_is_not_believed_but_checked(
    left: bytes, tmp_path: Path
) -> None:
    (tmp_path / f"{PART_PREFIX}{LINK.digest}").write_bytes(left)
    name = fetch_part(tmp_path, LINK, Sender(), ignore)
    assert (tmp_path / name).read_bytes() == WHOLE


def test_other_bytes_than_the_digest_says_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match="have digest"):
        fetch_part(tmp_path, LINK, Sender(bytes(LINK.bytes)), ignore)
    assert list(tmp_path.iterdir()) == []


def test_what_a_parent_says_of_an_object_must_be_true(tmp_path: Path) -> None:
    claimed = ObjectLink(LINK.digest, LINK.bytes, Kind.PACK, leaf=True)
    with pytest.raises(CorruptError, match="is not what the objects say"):
        fetch_part(tmp_path, claimed, Sender(), ignore)


def test_two_who_fetch_one_object_do_not_disturb_each_other(tmp_path: Path) -> None:
    names = []

    def second(digest: Digest, start: int, stop: int) -> bytes:
        if not names:
            names.append("")
            names[0] = fetch_part(tmp_path, LINK, Sender(), ignore)
        return Sender()(digest, start, stop)

    first = fetch_part(tmp_path, LINK, second, ignore)
    assert first != names[0]
    assert (tmp_path / first).read_bytes() == (tmp_path / names[0]).read_bytes() == WHOLE


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_clone_goes_on_with_the_part_of_a_large_object(kind: str, tmp_path: Path) -> None:
    origin = new_repository(CountingBackend(MemoryBackend()))
    commit_files(origin, {"files/large": CONTENT})
    backend = LocalBackend(tmp_path / "store") if kind == "local" else MemoryBackend()
    parts = backend.part_folder if isinstance(backend, LocalBackend) else tmp_path / "parts"
    here = new_repository(backend)
    digest = object_of(origin)
    parts.mkdir(parents=True, exist_ok=True)
    (parts / f"{PART_PREFIX}{digest}").write_bytes(WHOLE[: 7 * STEP_BYTES])
    counting = origin.backend
    assert isinstance(counting, CountingBackend)
    counting.reset()
    source = open_repository(counting, drivers={})
    clone(HistorySource.of(source), here, "origin", TransferOptions(ADA, tmp_path / "parts"))
    assert counting.read_bytes < 3 * STEP_BYTES
    assert files_at(here, tip_of(here)) == {"files/large": CONTENT}
    assert [path for path in parts.iterdir() if path.name.startswith(PART_PREFIX)] == []
    verify(backend)


def object_of(repository: RepositoryCore) -> Digest:
    tip = tip_of(repository)
    assert tip is not None
    ((_, entry),) = repository.entries(read_commit(repository.objects, tip).tree)
    return entry.digest
