"""Incarnations of an object: keys and labels that collections leave behind.

A key is `objects/<2>/<62>` or, for digests that were condemned once, `objects/<2>/<62>.<label>`:
the label is the generation of the newest condemnation that the writer knew of. A collector deletes
exact keys only, so a deletion that comes late can never hit what was stored after it was decided.

Source:
    docs/spec/objects.md, section "Keys and labels".
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import groupby, pairwise
from operator import itemgetter
from struct import Struct

from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import Digest, digest_bytes

GRAVE = Struct("<8sI")  # first 8 bytes of a condemned digest, label
assert GRAVE.size == 12, "docs/spec/objects.md promises 12-byte graves"
_PREFIX_BYTES = 8
_KEY = re.compile(r"(?:objects/)?([0-9a-f]{2})/([0-9a-f]{62})(?:\.([1-9][0-9]*))?")


def object_key(digest: Digest, label: int = 0) -> str:
    """Where one incarnation of an object lies."""
    suffix = f".{label}" if label else ""
    return f"objects/{digest[:2]}/{digest[2:]}{suffix}"


def parse_object_key(key: str) -> tuple[Digest, int] | None:
    """Digest and label of a key, None when it is none of ours."""
    parsed = _KEY.fullmatch(key)
    return (Digest(parsed[1] + parsed[2]), int(parsed[3] or 0)) if parsed else None


def encode_graves(condemned: Iterable[Digest], label: int) -> bytes:
    """Payload of graves: the table of a condemnation at generation `label`."""
    prefixes = sorted({digest_bytes(digest)[:_PREFIX_BYTES] for digest in condemned})
    return b"".join(GRAVE.pack(prefix, label) for prefix in prefixes)


def merge_graves(tables: Sequence[GraveTable]) -> bytes:
    """Payload of graves with all that `tables` bury, each prefix under its newest label."""
    rows = merge(*(table.rows() for table in tables))
    newest = (list(group)[-1] for _, group in groupby(rows, key=itemgetter(0)))
    return b"".join(GRAVE.pack(prefix, label) for prefix, label in newest)


def encode_key_list(keys: Iterable[str]) -> bytes:
    """Payload of a gc list: keys that anyone may delete, at any time, any number of times."""
    return "".join(f"{key}\n" for key in sorted(keys)).encode("ascii")


def decode_key_list(payload: memoryview) -> Iterator[str]:
    """Keys of a gc list.

    Raises:
        CorruptError: one of them is no key of an object. Nothing else is ever deleted.
    """
    for line in bytes(payload).splitlines():
        key = line.decode("ascii", "replace")
        if parse_object_key(key) is None:
            raise CorruptError(f"a list of condemned objects names {key!r:.100}, which is none")
        yield key


class GraveTable:
    """Condemned digests with their labels. A false positive costs one needless copy."""

    def __init__(self, payload: memoryview) -> None:
        if payload.nbytes % GRAVE.size:
            raise CorruptError(f"a grave table of {payload.nbytes} bytes is no multiple of 12")
        self._payload = payload
        self._count = payload.nbytes // GRAVE.size
        prefixes = (prefix for prefix, _ in GRAVE.iter_unpack(payload))
        if any(a >= b for a, b in pairwise(prefixes)):
            raise CorruptError("a grave table is not sorted and unique")

    def label(self, digest: Digest) -> int:
        """The label under which `digest` is buried here, 0 when it is not."""
        prefix = digest_bytes(digest)[:_PREFIX_BYTES]
        place = bisect_left(range(self._count), prefix, key=self._prefix)
        if place == self._count or self._prefix(place) != prefix:
            return 0
        _, label = GRAVE.unpack_from(self._payload, place * GRAVE.size)
        return int(label)

    def __len__(self) -> int:
        return self._count

    def rows(self) -> Iterator[tuple[bytes, int]]:
        """Prefixes of digests with their labels, ascending."""
        return GRAVE.iter_unpack(self._payload)

    def _prefix(self, place: int) -> bytes:
        start = place * GRAVE.size
        return bytes(self._payload[start : start + _PREFIX_BYTES])
