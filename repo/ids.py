"""Content addresses: BLAKE3 digests of objects, as text and as bytes.

In memory and in text a digest is 64 lower-case hex digits; in binary layouts it is 32 bytes. They
are computed in `hashing/digests.py`.

Source:
    docs/spec/objects.md, section "Names".
"""

from __future__ import annotations

import re
from typing import NewType

from tensorrepo.repo.errors import InvalidInputError

Buffer = bytes | bytearray | memoryview
Digest = NewType("Digest", str)

DIGEST_BYTES = 32
SHORT_DIGITS = 8
_DIGITS = re.compile(r"[0-9a-f]{64}")


def byte_view(data: Buffer) -> memoryview:
    """The bytes of a contiguous buffer of any shape; nothing is copied."""
    view = memoryview(data)
    # What has a zero in its shape cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(b"")


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
