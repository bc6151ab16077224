"""What differs between the trees of two commits, for whoever goes through all of history?

Nearly every tree is one page that its commit embeds, and nearly every commit changes a few of its
entries. Such pages are scanned, not decoded: the items of both are compared as bytes, and only
those that differ become entries. That is a fifth of the time that `trees.differences` takes. The
commit's digest was verified; who checks out what it holds, or runs `fsck`, checks the page as well.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import TYPE_CHECKING

from tensorrepo.repo.ids import DIGEST_BYTES, digest_from_bytes
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.treepages import HEADER, ITEM, STORAGE_FLAG, VERSION, Entry
from tensorrepo.repo.trees import Change, differences

if TYPE_CHECKING:
    from tensorrepo.repo.objects import ObjectSource

_KINDS = {int(kind): kind for kind in Kind}
_KIND_AT, _FLAGS_AT, _DIGEST_AT = 0, 1, 2  # in what `_scanned` keeps of an item
_STORAGE_AT = _DIGEST_AT + DIGEST_BYTES


def tree_changes(objects: ObjectSource, old: bytes, new: bytes) -> tuple[Change, ...]:
    """As `trees.differences`, of two root pages: entries whose storage alone differs, too."""
    before, after = _scanned(old), _scanned(new)
    if before is None or after is None:
        return tuple(differences(objects, old, new))
    paths = {path for path, _ in before.items() ^ after.items()}
    return tuple(
        Change(path, _entry(before.get(path)), _entry(after.get(path))) for path in sorted(paths)
    )


@lru_cache(maxsize=4)
def _scanned(page: bytes) -> dict[str, bytes] | None:
    """Path to kind, flags, digest and storage of each item; None for what only a decoder reads."""
    try:
        version, level, count = HEADER.unpack_from(page)
        if version != VERSION or level:
            return None
        text = page.decode("latin-1")
        found: dict[str, bytes] = {}
        at, path = HEADER.size, ""
        for _ in range(count):
            shared, rest_bytes, kind, flags, _ = ITEM.unpack_from(page, at)
            if kind not in _KINDS or flags & ~STORAGE_FLAG or shared > len(path):
                return None
            rest_at = at + ITEM.size + (DIGEST_BYTES if flags else 0)
            path = path[:shared] + text[rest_at : rest_at + rest_bytes]
            found[path] = page[at + _LENGTHS : rest_at]
            at = rest_at + rest_bytes
    except struct.error:
        return None
    return found if at == len(page) and len(found) == count else None


_LENGTHS = 4  # the two lengths that an item begins with
assert ITEM.size == _LENGTHS + _STORAGE_AT, "docs/spec/trees.md promises 38 bytes before a path"


def _entry(item: bytes | None) -> Entry | None:
    if item is None:
        return None
    digest = digest_from_bytes(item[_DIGEST_AT:_STORAGE_AT])
    storage = digest_from_bytes(item[_STORAGE_AT:]) if item[_FLAGS_AT] else None
    return Entry(_KINDS[item[_KIND_AT]], digest, storage)
