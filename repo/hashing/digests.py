"""Names of objects, records and states, and tags of parts of them: BLAKE3 of their bytes.

An object's name is the BLAKE3-256 of all its bytes under a derive-key context of its own, so that
no digest made for another purpose can be passed off as one.

Source:
    docs/spec/objects.md, section "Names".
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from blake3 import blake3

from tensorrepo.repo.hashing.hasher import BEST
from tensorrepo.repo.ids import Buffer, Digest

_CONTENT_CONTEXT = "tensorrepo content v1"
_OBJECT_CONTEXT = "tensorrepo object v1"
_TAG_BYTES = 16
_LARGE_BYTES = 32 << 10  # below this, a copied hasher of the blake3 package is sooner called
_PARALLEL_BYTES = 1 << 20  # below this, starting BLAKE3's threads costs more than they save

# Deriving the key costs a compression; copies of a prepared hasher share it.
_OBJECT = blake3(derive_key_context=_OBJECT_CONTEXT)
_OBJECT_PARALLEL = blake3(derive_key_context=_OBJECT_CONTEXT, max_threads=blake3.AUTO)
_RECORD = blake3(derive_key_context="tensorrepo record v1")
_STATE = blake3(derive_key_context="tensorrepo state v1")
_CONTENT = blake3(derive_key_context=_CONTENT_CONTEXT)


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
    if size >= _PARALLEL_BYTES * len(parts) > 0:
        return streamed_digest(parts, parallel=True)
    return Digest(BEST.joined(_OBJECT_CONTEXT, parts).hex())


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
    if len(data) < _LARGE_BYTES:
        return _CONTENT.copy().update(data).digest(length=_TAG_BYTES)
    return content_tags((data,))[0]


def content_tags(parts: Sequence[Buffer]) -> list[bytes]:
    """As `content_tag`, of each."""
    return [digest[:_TAG_BYTES] for digest in BEST.digests(_CONTENT_CONTEXT, parts)]
