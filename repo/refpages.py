"""How are a hundred thousand refs written down when one of them has changed?

Refs that take more than 4 MiB are cut into pages, and a state holds the digests of the pages. Where
a page ends depends on the names of the refs alone, never on the order of updates: equal refs have
equal pages, and a changed ref changes the page it is in. This module is pure; `checkpoints` reads
and writes the pages.

Source:
    docs/spec/log.md, section "Ref pages".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec
from blake3 import blake3

from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import state_digest
from tensorrepo.repo.records import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tensorrepo.repo.ids import Buffer, Digest

# What is encoded here was sorted before, and can hold nothing but text.
_ENCODER = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Paging:
    """When refs are cut, and where. Only tests use another than `FORMAT`: all readers must agree.

    Attributes:
        inline_bytes: refs of up to so many bytes are one JSON object in the state.
        end_mask: a ref ends a page where these bits of its hash are 0.
        min_refs: a page has at least so many refs, but for the last.
        max_refs: and at most so many.
    """

    inline_bytes: int = 4 << 20
    end_mask: int = 0x1FF  # one ref in 512 ends a page, so 640 on average: 60 KB
    min_refs: int = 128
    max_refs: int = 4096


FORMAT: Final = Paging()


def cut_refs(refs: Mapping[str, Digest], paging: Paging = FORMAT) -> dict[Digest, bytes] | None:
    """The pages of `refs` by their digests, in order; None when they belong into the state."""
    # A character takes at most 6 bytes, a digest and its punctuation 70. Most repositories have
    # few refs, and are spared the encoding.
    longest = max((len(ref) for ref in refs), default=0) * 6 + 70
    if len(refs) * longest + 2 <= paging.inline_bytes:
        return None
    pages = [_ENCODER.encode(page) for page in _cut(refs, paging)]
    # As one object they would share a pair of brackets, with commas between.
    if sum(map(len, pages)) - len(pages) + 1 <= paging.inline_bytes:
        return None
    return {state_digest(page): page for page in pages}


def join_refs(pages: Iterable[Buffer], where: str) -> dict[str, object]:
    """What `pages` map refs to. That these are digests, and that the pages were cut where they
    should be, is for the caller to check.

    Raises:
        CorruptError: a page is none; the message starts with `where`.
    """
    refs: dict[str, object] = {}
    for page in pages:
        raw = parse_json(page, where)
        if not isinstance(raw, dict):
            raise CorruptError(f"{where}: a ref page maps refs to digests")
        refs.update(raw)
    return refs


def _cut(refs: Mapping[str, Digest], paging: Paging) -> Iterator[dict[str, Digest]]:
    names = sorted(refs)
    start = 0
    while start < len(names):
        stop = _page_stop(names, start, paging)
        yield {ref: refs[ref] for ref in names[start:stop]}
        start = stop


def _page_stop(names: Sequence[str], start: int, paging: Paging) -> int:
    last = min(start + paging.max_refs, len(names))
    for index in range(start + paging.min_refs - 1, last):
        if _ends_page(names[index], paging.end_mask):
            return index + 1
    return last


def _ends_page(ref: str, mask: int) -> bool:
    return not int.from_bytes(blake3(ref.encode()).digest()[:2], "little") & mask
