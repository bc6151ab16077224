"""Byte-exact files: tensors stored as tensors, the other bytes beside them.

It is made once from its parts when it is stored, and compared with the file, or with its SHA-256.
Of a file that was proved when it arrived, what lies in it as it was stored need not be made: that
the file is still the same is seen by a checksum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from hashlib import sha256
from pathlib import Path
from typing import IO, Final

import numpy as np
from xxhash import xxh3_128_digest

from tensorrepo.formats.common.damage import refusals
from tensorrepo.formats.model.layout.manifest import Original
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.formats.model.write.model_source import (
    FileStretch,
    OriginalFile,
    content_of,
)
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import Buffer, digest_bytes
from tensorrepo.repo.objects.envelope import Kind, ObjectSink

TensorChunks = Callable[[str], Iterator[memoryview]]
# Bytes of a tensor that was stored as it lies in a file from a place on; 0: it may be another one.
LiesAt = Callable[[str, Path, int], int]
_LITERAL_BYTES: Final = 8 << 20  # of a long stretch of a file that is compared at a time


def store_original(
    objects: ObjectSink,
    original: OriginalFile,
    chunks: TensorChunks,
    pool: Executor,
    lies_at: LiesAt = lambda _name, _path, _start: 0,
) -> Original:
    """What gives a file back, after it was made once and compared with the file, byte for byte.

    Where the file's SHA-256 was proved before, what was made has to have it, and the file is not
    read again; or, with a checksum, the file has to have that still, and is what is compared with.

    Args:
        objects: where to store.
        original: the file.
        chunks: gives the bytes of a tensor as it was stored.
        pool: threads.
        lies_at: says which tensors need no comparison with a file that was proved.

    Raises:
        InvalidInputError: what was stored differs from the file.
    """
    if original.sha256 is not None and original.checksum is not None:
        return _store_proved(objects, original, chunks, pool, lies_at)
    size, checksum = 0, sha256()
    literals: list[Buffer] = []
    with refusals(original.path, "file"), original.path.open("rb") as file:
        for part in original.parts:
            for chunk in _chunks(original, part, chunks):
                if original.sha256 is None:
                    # Hashing is the slowest part: it runs beside reading the file and comparing.
                    hashed = pool.submit(checksum.update, chunk)
                    same = _reads(file, chunk)
                    hashed.result()
                    if not same:
                        raise _differs(original, size)
                else:
                    checksum.update(chunk)  # `chunks` reads the next ones meanwhile
                size += len(chunk)
                if not isinstance(part, str) and len(chunk):
                    literals.append(chunk)
        if original.sha256 is None and file.read(1):
            raise _differs(original, size)
    if original.sha256 not in {None, checksum.digest()}:
        raise _differs(original, size)
    return _stored(objects, original, literals, size, checksum.digest())


def _store_proved(
    objects: ObjectSink,
    original: OriginalFile,
    chunks: TensorChunks,
    pool: Executor,
    lies_at: LiesAt,
) -> Original:
    """The same of a file with a checksum."""
    assert original.sha256 is not None, "the checksum was noted when it was proved"
    at = 0
    literals: list[Buffer] = []
    file = memoryview(content_of(original.path))
    checksum = pool.submit(xxh3_128_digest, file)
    for part in original.parts:
        if isinstance(part, str) and (size := lies_at(part, original.path, at)):
            at += size
            continue
        for chunk in _chunks(original, part, chunks):
            if not _equal(file[at : at + len(chunk)], chunk):
                raise _differs(original, at)
            at += len(chunk)
            if not isinstance(part, str) and len(chunk):
                literals.append(chunk)
    if at != len(file) or checksum.result() != original.checksum:
        raise _differs(original, at)
    return _stored(objects, original, literals, at, original.sha256)


def _stored(
    objects: ObjectSink, original: OriginalFile, literals: list[Buffer], size: int, digest: bytes
) -> Original:
    parts, others = _counted(original.parts), tuple(sorted(original.others))
    blob = digest_bytes(objects.put(Kind.BLOB, literals).digest) if literals else None
    return Original(original.name, original.format, blob, parts, others, size, digest)


def _chunks(
    original: OriginalFile, part: bytes | FileStretch | str, chunks: TensorChunks
) -> Iterator[Buffer]:
    if isinstance(part, str):
        yield from chunks(part)
    elif isinstance(part, bytes):
        yield part
    else:
        mapped = memoryview(content_of(original.path))
        for start in range(part.start, part.stop, _LITERAL_BYTES):
            yield mapped[start : min(start + _LITERAL_BYTES, part.stop)]


def _counted(parts: Iterable[bytes | FileStretch | str]) -> tuple[int | str, ...]:
    """Parts as the manifest has them: runs of literal bytes as their length."""
    counted: list[int | str] = []
    for part in parts:
        if isinstance(part, str):
            counted.append(part)
            continue
        if counted and isinstance(counted[-1], int):
            counted[-1] += len(part)
        elif len(part):
            counted.append(len(part))
    return tuple(counted)


def _reads(file: IO[bytes], expected: Buffer) -> bool:
    """Whether the file goes on with these bytes."""
    found = np.empty(len(expected), np.uint8)
    if file.readinto(found.data) != len(expected):  # type: ignore[attr-defined]  # a buffered file has it
        return False
    return _equal(found.data, expected)


def _equal(one: Buffer, other: Buffer) -> bool:
    # numpy compares whole words; Python compares memoryviews item by item.
    return np.array_equal(np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8))


def _differs(original: OriginalFile, at: int) -> InvalidInputError:
    return InvalidInputError(
        f"{original.path}: what was stored differs from the file near byte {at}. It changed while "
        "it was read: add it again."
    )


def whole_original(
    model: StoredModel, format_name: str, *, beside: str | None = None
) -> str | None:
    """The file of that format that holds all of the model's tensors, if it came from one.

    `beside` is the format of files that belong to it and hold some of them.
    """
    main = [one.name for one in model.originals.values() if one.format == format_name]
    rest = {one.format for one in model.originals.values()} - {format_name, beside}
    if len(main) != 1 or rest:
        return None
    held = {part for one in model.originals.values() for part in (*one.parts, *one.others)}
    return main[0] if held.issuperset(model.tensors) else None
