"""The failing backends fail as they say: tests of the log and of commits rely on it."""

from __future__ import annotations

import pytest

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.errors import StorageError
from tests.support.faults.backends import CountingBackend, Crash, CrashBackend, LostReplyBackend


def write_three(backend: CrashBackend | LostReplyBackend) -> None:
    with backend.uploads() as uploads:
        uploads.create("objects/a", (b"a",))
        uploads.create("objects/b", (b"b",))
        uploads.finish()
    backend.create("log/1", (b"1",))


def keys(inner: MemoryBackend) -> list[str]:
    return [stored.key for stored in inner.list("")]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("die_after", "left"),
    [
        (0, []),
        (1, ["objects/a"]),
        (2, ["objects/a", "objects/b"]),
        (3, ["objects/a", "objects/b"]),
        (4, ["log/1", "objects/a", "objects/b"]),
    ],
)
def test_a_crash_leaves_what_was_done_before(die_after: int, left: list[str], late: bool) -> None:
    inner = MemoryBackend()
    backend = CrashBackend(inner, die_after, late=late)
    with pytest.raises(Crash):
        write_three(backend)
    assert keys(inner) == left
    with pytest.raises(Crash):
        backend.read("log/1")


@pytest.mark.parametrize(
    ("mode", "at_once", "after_the_next"),
    [("before", None, None), ("after", b"1", b"1"), ("later", None, b"1")],
)
def test_a_lost_reply_is_an_error_whatever_happened(
    mode: str, at_once: bytes | None, after_the_next: bytes | None
) -> None:
    inner = MemoryBackend()
    backend = LostReplyBackend(inner, 1, mode)  # type: ignore[arg-type]  # one of its literals
    with pytest.raises(StorageError) as caught:
        backend.create("log/1", (b"1",))
    assert caught.value.transient
    assert (inner.read("log/1") if inner.size("log/1") else None) == at_once
    assert backend.size("log/0") is None
    assert (inner.read("log/1") if inner.size("log/1") else None) == after_the_next


def test_a_create_that_lands_late_does_not_overwrite() -> None:
    inner = MemoryBackend()
    backend = LostReplyBackend(inner, 1, "later")
    with pytest.raises(StorageError):
        backend.create("log/1", (b"mine",))
    assert backend.create("log/1", (b"theirs",))
    assert inner.read("log/1") == b"theirs"


def test_a_create_that_was_sent_twice_seems_to_have_lost_to_somebody() -> None:
    inner = MemoryBackend()
    assert LostReplyBackend(inner, 1, "twice").create("log/1", (b"mine",)) is False
    assert inner.read("log/1") == b"mine"


def test_round_trips_and_bytes_are_counted() -> None:
    backend = CountingBackend(MemoryBackend())
    with backend.uploads() as uploads:
        uploads.create("objects/a", (b"abc", b"d"))
        uploads.finish()
    backend.read("objects/a")
    backend.read_into("objects/a", 1, memoryview(bytearray(2)))
    assert (backend.round_trips, backend.written_bytes, backend.read_bytes) == (3, 4, 6)
