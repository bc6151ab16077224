"""Unfinished objects: files of which a transfer that was cut off goes on by range.

A part is a file named after its object that holds its first bytes, in order. Whoever fetches the
object next hashes what is there and asks for the rest. Nothing believes a part: it becomes an
object when all of it has the object's digest, and is begun anew when it has not.

What came is written at once, from a store that gives a range while it comes: a kill loses what is
on its way. Of other stores ranges are fetched a few at a time, so that latency does not decide the
rate, and of no more than 4 MiB together.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tensorrepo.repo.backends.base import PART_PREFIX
from tensorrepo.repo.backends.disk import explain
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.hashing.digests import streamed_digest
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.objects.envelope import HEADER, ObjectLink, decode_header
from tensorrepo.repo.threads import ordered_map

STEP_BYTES: Final = 1 << 20
STEPS_AHEAD: Final = 4
WHOLE_BYTES: Final = 256 << 10  # smaller objects are fetched at once: 16 of them are in flight
_HASH_BYTES: Final = 8 << 20

ReadRange = Callable[[Digest, int, int], Buffer]
ReadStream = Callable[[Digest, int, int], Iterator[Buffer]]


def in_steps(read: ReadRange, digest: Digest, start: int, stop: int) -> Iterator[Buffer]:
    """A range of an object in ranges of 1 MiB, in order, the next ones read ahead."""
    steps = range(start, stop, STEP_BYTES)
    yield from ordered_map(
        steps,
        lambda at: read(digest, at, min(at + STEP_BYTES, stop)),
        threads=STEPS_AHEAD,
        ahead=STEPS_AHEAD,
        name="part",
    )


def fetch_part(
    folder: Path,
    link: ObjectLink,
    read: ReadStream,
    advance: Callable[[int], None],
    kept: Callable[[int], None] = lambda _: None,
) -> str:
    """Fetch an object into a file of `folder`, going on where an earlier call was cut off.

    Args:
        folder: where unfinished objects lie; it is made.
        link: what is known of the object.
        read: gives a range of its bytes, in order.
        advance: told of the bytes that came.
        kept: told of the bytes that were there.

    Returns:
        Name of the file, all of which has the digest of the object.

    Raises:
        CorruptError: the bytes that came are another object's. Nothing is left of them.
    """
    with _opened(folder, link.digest) as (name, fd):
        for _ in range(2):
            begun = _fill(fd, link, read, advance, kept)
            problem = _problem(fd, link)
            if problem is None:
                return name
            _cut(fd, 0, folder / name)
            if not begun:  # else what an earlier call had left may be to blame
                break
        with suppress(OSError):
            os.unlink(folder / name)
        raise CorruptError(problem)


@contextmanager
def _opened(folder: Path, digest: Digest) -> Iterator[tuple[str, int]]:
    """The part of an object, locked; one of its own where somebody else is at it."""
    name = PART_PREFIX + digest
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fd = os.open(folder / name, flags, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            name = f"{name}-{secrets.token_hex(8)}"
            fd = os.open(folder / name, flags | os.O_EXCL, 0o666)
    except OSError as error:
        raise explain(error, "write", folder / name) from error
    try:
        yield name, fd
    except OSError as error:
        raise explain(error, "write", folder / name) from error
    finally:
        os.close(fd)


def _fill(
    fd: int,
    link: ObjectLink,
    read: ReadStream,
    advance: Callable[[int], None],
    kept: Callable[[int], None],
) -> int:
    """Fetch what is missing behind the bytes that are there; gives how many these were."""
    have = os.fstat(fd).st_size
    if have > link.bytes:
        have = 0
        os.ftruncate(fd, 0)
    kept(have)
    os.lseek(fd, have, os.SEEK_SET)
    for data in read(link.digest, have, link.bytes) if have < link.bytes else ():
        view = memoryview(data)
        while view.nbytes:
            view = view[os.write(fd, view) :]
        advance(memoryview(data).nbytes)
    return have


def _problem(fd: int, link: ObjectLink) -> str | None:
    """Why a file is not the object that `link` tells of; None if it is."""
    steps = range(0, os.fstat(fd).st_size, _HASH_BYTES)
    found = streamed_digest(os.pread(fd, _HASH_BYTES, start) for start in steps)
    if found != link.digest:
        return (
            f"{link.kind.label} {link.digest:.12}: the {link.bytes:,} bytes that came have digest "
            f"{found:.12}"
        )
    head = memoryview(os.pread(fd, HEADER.size, 0))
    kind, links, start, payload_bytes = decode_header(head, link.digest)
    if (kind, links == 0, start + payload_bytes) != (link.kind, link.leaf, link.bytes):
        return f"{link.kind.label} {link.digest:.12} is not what the objects say that link to it"
    return None


def _cut(fd: int, size_bytes: int, path: Path) -> None:
    try:
        os.ftruncate(fd, size_bytes)
    except OSError as error:
        raise explain(error, "write", path) from error
