"""Content addresses: BLAKE3 digests of objects and tags of byte ranges.

An object's name is the BLAKE3-256 of all its bytes under a derive-key context of its own, so that
no digest made for another purpose can be passed off as one. In memory and in text a digest is 64
lower-case hex digits; in binary layouts it is 32 bytes.

Source:
    docs/spec/objects.md, section "Names".
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NewType

from blake3 import blake3

from tensorrepo.repo.errors import InvalidInputError

Buffer = bytes | bytearray | memoryview
Digest = NewType("Digest", str)

DIGEST_BYTES = 32
CONTENT_CONTEXT = "tensorrepo content v1"
SHORT_DIGITS = 8
_DIGITS = re.compile(r"[0-9a-f]{64}")
_STEP_BYTES = 32 << 10  # as many chunks as machines hash side by side, twice
_PARALLEL_BYTES = 1 << 20  # below this, starting BLAKE3's threads costs more than they save

# Deriving the key costs a compression; copies of a prepared hasher share it.
_OBJECT = blake3(derive_key_context="tensorrepo object v1")
_OBJECT_PARALLEL = blake3(derive_key_context="tensorrepo object v1", max_threads=blake3.AUTO)
_RECORD = blake3(derive_key_context="tensorrepo record v1")
_STATE = blake3(derive_key_context="tensorrepo state v1")
_CONTENT = blake3(derive_key_context=CONTENT_CONTEXT)


class _Cores:
    """Whether this process may hash on all cores.

    BLAKE3's threads begin with the first large object, and a process that is forked after that
    would wait for them forever: they stayed behind.
    """

    begun = False
    lost = False

    @classmethod
    def after_fork(cls) -> None:
        cls.lost = cls.begun


os.register_at_fork(after_in_child=_Cores.after_fork)


def plain_hasher() -> blake3:
    """BLAKE3 without a key, for large files: on all cores where this process may."""
    _Cores.begun |= not _Cores.lost
    return blake3(max_threads=1 if _Cores.lost else blake3.AUTO)


def object_digest(parts: Sequence[Buffer]) -> Digest:
    """Name of the object whose bytes are `parts`, one after the other."""
    # On average: threads are woken for each part, so for many small ones they take twice as long.
    size = sum([memoryview(part).nbytes for part in parts])
    parallel = size >= _PARALLEL_BYTES * len(parts) > 0
    return streamed_digest(_in_steps(parts) if len(parts) > 1 else parts, parallel=parallel)


def _in_steps(parts: Iterable[Buffer]) -> Iterator[Buffer]:
    """The same bytes in pieces that begin at multiples of _STEP_BYTES.

    BLAKE3 hashes as many chunks side by side as lie in one subtree, and what begins anywhere
    begins with the smallest ones: of pieces of 80 KB that takes a third of all time.
    """
    held = bytearray()
    for part in parts:
        data, start = memoryview(part).cast("B"), 0
        if held:
            start = min(_STEP_BYTES - len(held), len(data))
            held += data[:start]
            if len(held) < _STEP_BYTES:
                continue
            yield held
            held = bytearray()
        stop = len(data) - (len(data) - start) % _STEP_BYTES
        yield data[start:stop]
        held += data[stop:]
    yield held


def has_digest(data: Buffer, digest: Digest) -> bool:
    """Whether that is the name of the object whose bytes are `data`: for many small ones."""
    if len(data) >= _PARALLEL_BYTES:
        return object_digest((data,)) == digest
    return _OBJECT.copy().update(data).hexdigest() == digest


def streamed_digest(parts: Iterable[Buffer], *, parallel: bool = False) -> Digest:
    """The same of parts that come one by one; `parallel` hashes each on all cores."""
    parallel = parallel and not _Cores.lost
    _Cores.begun |= parallel
    hasher = (_OBJECT_PARALLEL if parallel else _OBJECT).copy()
    for part in parts:
        hasher.update(part)
    return Digest(hasher.hexdigest())


def record_digest(record: Buffer) -> Digest:
    """Name by which the next log record chains to this one."""
    return Digest(_RECORD.copy().update(record).hexdigest())


def state_digest(state: Buffer) -> Digest:
    """Name of the canonical fold of the log, as some records carry it."""
    return Digest(_STATE.copy().update(state).hexdigest())


def content_tag(data: Buffer) -> bytes:
    """16-byte truncated BLAKE3 of one stored page or frame: its proof against a hostile store."""
    return _CONTENT.copy().update(data).digest(length=16)


def parse_digest(text: str) -> Digest:
    """`text` as a digest.

    Raises:
        InvalidInputError: not 64 lower-case hex digits.
    """
    if not _DIGITS.fullmatch(text):
        raise InvalidInputError(f"a digest is 64 lower-case hex digits, got {text!r:.80}")
    return Digest(text)


def digest_bytes(digest: Digest) -> bytes:
    return bytes.fromhex(digest)


def digest_from_bytes(raw: Buffer) -> Digest:
    if len(raw) != DIGEST_BYTES:
        raise InvalidInputError(f"a digest has {DIGEST_BYTES} bytes, got {len(raw)}")
    return Digest(bytes(raw).hex())
