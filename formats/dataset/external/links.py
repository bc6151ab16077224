"""Linked values: the bytes that a link points at, checked against its hash and size.

Source:
    docs/spec/foreign.md, section "Links".
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from blake3 import blake3

from tensorrepo.formats.dataset.external.outside import Outside, Stat, hide_secrets
from tensorrepo.formats.dataset.schema.types import LinkValue
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.threads import ordered_map

LINK_BYTES = 1 << 30  # of one value: whoever wrote the link may have pointed it at anything
LINK_THREADS = 16


def read_link(outside: Outside, link: LinkValue, *, most_bytes: int = LINK_BYTES) -> bytes:
    """The bytes that `link` points at, proved as far as it says what they were.

    Its hash proves the bytes; without one its etag and size do; a link that has none of them proves
    nothing. A range above `most_bytes` is refused before it is read.

    Raises:
        PermissionDenied: it is under no prefix that `outside` allows.
        NotFoundError: nothing is there any more.
        CorruptError: something else is there; says expected and found.
        UnsupportedError: an unknown kind of hash, or too many bytes.
    """
    expected = _expected(outside, link)
    stop = link.stop
    if stop is None:
        stop = (expected or outside.stat(link.url)).size
    if stop - link.start > most_bytes:
        raise UnsupportedError(
            f"{hide_secrets(link.url)}: the link has {stop - link.start} bytes, at most "
            f"{most_bytes} are read at once. Read it by ranges of its own."
        )
    if link.start > stop:
        raise CorruptError(
            f"{hide_secrets(link.url)}: the link begins at byte {link.start}, found {stop} bytes"
        )
    data = bytes(outside.read(link.url, link.start, stop, expected))
    if link.hash is not None:
        _check_hash(link, link.hash, data)
    return data


def read_links(outside: Outside, links: Iterable[LinkValue | None]) -> Iterator[bytes | None]:
    """The bytes of many links in their order, read in parallel; None where there is no link.

    At most `LINK_THREADS` values are held beside the one that was given out last.
    """
    return ordered_map(
        links,
        lambda link: None if link is None else read_link(outside, link),
        threads=LINK_THREADS,
        ahead=LINK_THREADS,
        name="links",
    )


def _expected(outside: Outside, link: LinkValue) -> Stat | None:
    """The version that must be read; None where only a hash tells."""
    etag = None if link.hash is not None else link.etag
    if link.size is not None and etag is not None:
        return Stat(link.size, etag)
    if link.size is None and etag is None:
        return None
    found = outside.stat(link.url)
    if link.size not in (None, found.size):
        raise _changed(link, f"expected {link.size} bytes, found {found.size}")
    if etag not in (None, found.etag):
        raise _changed(link, f"expected version {etag}, found {found.etag}")
    return found


def _check_hash(link: LinkValue, expected: str, data: bytes) -> None:
    kind, _, _ = expected.partition(":")
    if kind == "blake3":
        found = f"blake3:{blake3(data).hexdigest()}"
    elif kind == "sha256":
        found = f"sha256:{hashlib.sha256(data).hexdigest()}"
    else:
        raise UnsupportedError(
            f"{hide_secrets(link.url)}: the link has a hash of kind {kind!r:.20}; known are "
            "blake3 and sha256. Update tensorrepo."
        )
    if found != expected.lower():
        raise _changed(link, f"expected {expected:.24}, found {found:.24}")


def _changed(link: LinkValue, what: str) -> CorruptError:
    return CorruptError(
        f"{hide_secrets(link.url)} has changed since it was linked: {what}. Put the old one back, "
        "or link the new one."
    )
