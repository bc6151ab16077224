"""Large files are written in aligned pieces: in C and in Python, with identical results."""

from __future__ import annotations

import os
import resource
import signal
import socket
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tensorrepo.repo.backends import disk
from tensorrepo.repo.backends.disk import Disk, _storing
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.ids import byte_view

PIECE = 1000
SIZES = [(), (0,), (100, 0, 2701, 3996, 64, 1), (1,) * 2500, (PIECE,), (5 * PIECE, 3)]
Write = Callable[[int, list[memoryview]], None]


def in_c(fd: int, parts: list[memoryview]) -> None:
    _storing.write(fd, list(parts), PIECE)


def in_python(fd: int, parts: list[memoryview]) -> None:
    disk._write(fd, parts)


@pytest.fixture(params=[in_python, in_c])
def write(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Write:
    if request.param is in_c and _storing is None:
        pytest.skip("no compiler when this was installed")
    monkeypatch.setattr(disk, "_WRITE_BYTES", PIECE)
    found: Write = request.param
    return found


def parts_of(sizes: tuple[int, ...]) -> list[memoryview]:
    return [memoryview(bytes([at % 251]) * size) for at, size in enumerate(sizes)]


@pytest.mark.parametrize("sizes", SIZES, ids=len)
def test_parts_are_written_one_after_the_other(
    tmp_path: Path, write: Write, sizes: tuple[int, ...]
) -> None:
    parts = parts_of(sizes)
    with (tmp_path / "file").open("wb") as file:
        write(file.fileno(), parts)
    assert (tmp_path / "file").read_bytes() == b"".join(parts)


@pytest.mark.parametrize("sizes", [(100, 0, 2701, 3996, 64, 1), (1,) * 2500], ids=len)
def test_each_call_ends_at_a_multiple_of_the_piece(write: Write, sizes: tuple[int, ...]) -> None:
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # a message each
    with reader, writer:
        write(writer.fileno(), parts_of(sizes))
        writer.close()
        found = [len(data) for data in iter(lambda: reader.recv(1 << 16), b"")]
    size = sum(sizes)
    assert found == [PIECE] * (size // PIECE) + [size % PIECE] * bool(size % PIECE)


def test_what_was_taken_in_part_is_written_on(write: Write) -> None:
    parts = parts_of((3 << 20, 1 << 20, 7))
    reader, writer = os.pipe2(0)
    found = bytearray()

    def read() -> None:
        while data := os.read(reader, 4321):
            found.extend(data)

    reading = threading.Thread(target=read)
    reading.start()
    write(writer, parts)
    os.close(writer)
    reading.join()
    os.close(reader)
    assert found == b"".join(parts)


def test_a_full_disk_is_told_as_the_system_tells_it(tmp_path: Path, write: Write) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5 * PIECE + 10, hard))
    try:
        with (
            (tmp_path / "file").open("wb") as file,
            pytest.raises(OSError, match="File too large"),
        ):
            write(file.fileno(), parts_of((4 * PIECE, 4 * PIECE)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert (tmp_path / "file").stat().st_size == 5 * PIECE + 10


@pytest.mark.skipif(_storing is None, reason="no compiler when this was installed")
def test_an_interrupt_ends_a_write_between_two_pieces() -> None:
    reader, writer = socket.socketpair()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def read() -> None:
        seen = 0
        while data := reader.recv(1 << 20):
            seen += len(data)
            if seen > 32 << 20:  # of 4 GiB
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
                seen = -(1 << 60)

    before = signal.signal(signal.SIGUSR1, interrupt)
    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    try:
        with writer, pytest.raises(KeyboardInterrupt):
            _storing.write(writer.fileno(), [byte_view(bytes(1 << 20))] * 4096, 256 << 10)
    finally:
        signal.signal(signal.SIGUSR1, before)
        reading.join()
        reader.close()


@pytest.mark.parametrize("size", [256 << 10, (256 << 10) + 1, 3 << 20])
def test_a_store_writes_the_same_either_way(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    for name, link in (("c", os.link), ("python", partial(os.link))):
        root = tmp_path / name
        root.mkdir()
        backend = LocalBackend(root, disk=Disk(root, link=link))
        backend.create("objects/01/a", (data[:100_000], data[100_000:]))
        assert backend.read("objects/01/a") == data
