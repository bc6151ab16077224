"""Content of one stored object as a check reads it: past every cache, verified, its facts a number.

A claim is what a link says of an object, in one number: bytes in the low 48 bits, then its kind,
then the leaf flag; 0 says nothing. Of a million objects that is what can be kept in memory.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final, NamedTuple

from tensorrepo.repo.changes.gc_marks import PACKED, RawLink, StoredRow
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.hashing.digests import has_digest, streamed_digest
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import (
    HEADER,
    LEAF_FLAG,
    LINK,
    ZSTD_MAGIC,
    Kind,
    ObjectLink,
    decode_header,
    expand,
    leaf_header,
    raw_object,
)
from tensorrepo.repo.objects.store import VERIFY_BYTES, ObjectStore

SIZE_MASK: Final = (1 << 48) - 1
_KIND_AT, _LEAF_AT = 48, 56
CLAIM_MASK: Final = (1 << 57) - 1
_IS_DATA: Final = frozenset(
    kind | 1 << (_LEAF_AT - _KIND_AT) for kind in Kind if not kind.compressible
)


class ObjectContent(NamedTuple):
    """What an object is, as `claim_of` a link to it, and what it links to."""

    claim: int
    links: list[RawLink]
    payload: bytes  # of commits and tree pages

    def link(self, digest: Digest) -> ObjectLink:
        """What a parent says of it."""
        kind = kind_of(self.claim)
        assert kind is not None, "what was read has a kind"
        return ObjectLink(digest, self.claim & SIZE_MASK, kind, bool(self.claim >> _LEAF_AT & 1))


def claim_of(link: ObjectLink) -> int:
    """What a link says."""
    return link.bytes | link.kind << _KIND_AT | int(link.leaf) << _LEAF_AT


def raw_claim(link: RawLink) -> int:
    """The same of a link that was not parsed."""
    _, low, high, kind, flags = link
    return low | high << 32 | kind << _KIND_AT | (flags & LEAF_FLAG) << _LEAF_AT


def kind_of(claim: int) -> Kind | None:
    """The kind that a claim names."""
    number = claim >> _KIND_AT & 0xFF
    return Kind(number) if number else None


def is_data(claim: int) -> bool:
    """Whether that is said to be what is read by ranges and leads to nothing."""
    return claim >> _KIND_AT in _IS_DATA


def is_whole_data(stored: bytes, digest: Digest, claim: int) -> bool:
    """Whether that is all of an object, which is data as `claim` says. False gives no reason."""
    size = claim & SIZE_MASK
    head = leaf_header(Kind(claim >> _KIND_AT & 0xFF), size)
    return (
        len(stored) == size
        and head != b""
        and stored.startswith(head)
        and has_digest(stored, digest)
    )


def in_words(claim: int) -> str:
    """A claim for people."""
    kind = kind_of(claim)
    leads = "that leads to nothing" if claim >> _LEAF_AT & 1 else "that leads on"
    return f"a {kind.label if kind else 'thing'} of {claim & SIZE_MASK:,} bytes {leads}"


def read_incarnation(
    store: ObjectStore, row: StoredRow, *, deep: bool, stored: bytes | None = None
) -> ObjectContent:
    """One key of an object, read past every cache; of large data only the header unless `deep`.

    Args:
        store: where it lies.
        row: the key.
        deep: whether large data is read.
        stored: all bytes under the key, where somebody read them already.

    Raises:
        CorruptError, StorageError: it is not the object of that name.
        NotFoundError: it is not there.
    """
    if row.label != PACKED and row.bytes > VERIFY_BYTES:
        head = bytes(store.backend.read_range(row.key, 0, HEADER.size))
        if head[:4] != ZSTD_MAGIC:
            return _large(store, row, head, deep=deep)
    if stored is None:
        is_packed = row.label == PACKED
        stored = store.packs.read(row.digest) if is_packed else store.backend.read(row.key)
    data = expand(stored, row.digest)
    kind, links, start = raw_object(data, row.digest)
    if links and any(a[0] >= b[0] for a, b in pairwise(links)):
        raise CorruptError("its links are not sorted and unique")
    payload = data[start:] if kind in (Kind.COMMIT, Kind.TREE_PAGE) else b""
    claim = len(data) | kind << _KIND_AT | (not links) << _LEAF_AT
    return ObjectContent(claim, links, payload)


def _large(store: ObjectStore, row: StoredRow, head: bytes, *, deep: bool) -> ObjectContent:
    """Data that may not fit into memory, and metadata that must."""
    try:
        kind, count, start, payload_bytes = decode_header(memoryview(head), row.digest)
    except UnsupportedError as error:  # which a flipped bit of the header looks like
        raise CorruptError(str(error)) from error
    if start + payload_bytes != row.bytes:
        raise CorruptError(
            f"its header promises {start + payload_bytes:,} bytes, found {row.bytes:,}"
        )
    links = list(
        LINK.iter_unpack(
            store.backend.read_range(row.key, HEADER.size, HEADER.size + count * LINK.size)
        )
    )
    if deep or kind.compressible:
        steps = range(0, row.bytes, VERIFY_BYTES)
        parts = (
            store.backend.read_range(row.key, at, min(at + VERIFY_BYTES, row.bytes)) for at in steps
        )
        if (found := streamed_digest(parts)) != row.digest:
            raise CorruptError(f"its {row.bytes:,} bytes have digest {found:.12}")
    payload = b""
    if kind in (Kind.COMMIT, Kind.TREE_PAGE):
        payload = bytes(store.backend.read_range(row.key, start, row.bytes))
    return ObjectContent(
        claim_of(ObjectLink(row.digest, row.bytes, kind, not count)), links, payload
    )
