"""What differs between the trees of two commits, for whoever goes through all of history?

Nearly every tree is one page that its commit embeds, and nearly every commit changes a few of its
entries. Such pages are compared as bytes. Where the paths stayed the same, all that differs lies
within items whose places are known from the page before: nothing else is looked at. Where they did
not, items are scanned, not decoded. With 20 paths the first takes a thirtieth, and the second a
fourth, of the time that `trees.differences` takes. The commit's digest was verified; who checks out
what it holds, or runs `fsck`, checks the page as well.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from tensorrepo.repo.ids import DIGEST_BYTES, Digest
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.treepages import HEADER, ITEM, STORAGE_FLAG, VERSION, Entry
from tensorrepo.repo.trees import Change, differences

if TYPE_CHECKING:
    from tensorrepo.repo.objects import ObjectSource

_KINDS: Final = {int(kind): kind for kind in Kind}
_LENGTHS: Final = 4  # the two lengths that an item begins with
_KIND_AT, _FLAGS_AT, _DIGEST_AT = 0, 1, 2  # behind those
_STORAGE_AT: Final = _DIGEST_AT + DIGEST_BYTES
assert ITEM.size == _LENGTHS + _STORAGE_AT, "docs/spec/trees.md promises 38 bytes before a path"
_MOST_IN_PLACE: Final = 16  # differing items: to look for each takes longer than a scan of many
_KEPT: Final = 4  # pages: a commit's is wanted again as its child's parent


class _Layout(NamedTuple):
    """Where the items of a page lie, in order: each from `starts` on, its path from `rests` on."""

    paths: list[str]
    starts: list[int]
    rests: list[int]


class TreeChanges:
    """Compares trees, one after the other. Remembers the last ones, so it is for one thread."""

    def __init__(self, objects: ObjectSource) -> None:
        self._objects = objects
        self._layouts: OrderedDict[bytes, _Layout] = OrderedDict()

    def between(self, old: bytes, new: bytes) -> tuple[Change, ...]:
        """As `trees.differences`, of two root pages: entries whose storage alone differs, too."""
        if old == new:
            return ()
        if len(old) == len(new):
            known = self._layouts.get(old) or self._layouts.get(new)
            found = None if known is None else _in_place(known, old, new)
            if known is not None and found is not None:
                self._keep(new, known)
                self._keep(old, known)
                return found
        before, after = self._layout(old), self._layout(new)
        if before is None or after is None:
            return tuple(differences(self._objects, old, new))
        return _scanned(_items(old, before), _items(new, after))

    def _layout(self, page: bytes) -> _Layout | None:
        known = self._layouts.get(page) or _layout_of(page)
        if known is not None:
            self._keep(page, known)
        return known

    def _keep(self, page: bytes, layout: _Layout) -> None:
        if page not in self._layouts:
            self._layouts[page] = layout
            if len(self._layouts) > _KEPT:
                self._layouts.popitem(last=False)


def _in_place(layout: _Layout, old: bytes, new: bytes) -> tuple[Change, ...] | None:
    """The changes between two pages, one of which has this layout; None unless both have it."""
    # A bit of this number is a bit that differs, the lowest of the first byte that has one.
    differ = int.from_bytes(old, "little") ^ int.from_bytes(new, "little")
    paths, starts, rests = layout
    found: list[Change] = []
    passed = 0
    while differ:
        if len(found) == _MOST_IN_PLACE:
            return None
        at = passed + ((differ & -differ).bit_length() - 1) // 8
        place = bisect_right(starts, at) - 1
        if place < 0:
            return None  # the header differs
        start, rest = starts[place], rests[place]
        end = starts[place + 1] if place + 1 < len(starts) else len(new)
        before, after = old[start + _LENGTHS : rest], new[start + _LENGTHS : rest]
        same_form = (
            old[start : start + _LENGTHS] == new[start : start + _LENGTHS]
            and before[_FLAGS_AT] == after[_FLAGS_AT]
            and old[rest:end] == new[rest:end]
        )
        if not same_form or before[_KIND_AT] not in _KINDS or after[_KIND_AT] not in _KINDS:
            return None
        found.append(Change(paths[place], _entry(before), _entry(after)))
        differ >>= 8 * (end - passed)
        passed = end
    return tuple(found)


def _scanned(before: dict[str, bytes], after: dict[str, bytes]) -> tuple[Change, ...]:
    paths = {path for path, _ in before.items() ^ after.items()}
    return tuple(
        Change(path, _entry(before.get(path)), _entry(after.get(path))) for path in sorted(paths)
    )


def _layout_of(page: bytes) -> _Layout | None:
    """Where the items of a page lie; None for what only a decoder reads."""
    layout = _Layout([], [], [])
    paths, starts, rests = layout
    try:
        version, level, count = HEADER.unpack_from(page)
        if version != VERSION or level:
            return None
        text = page.decode("latin-1")
        at, path = HEADER.size, ""
        for _ in range(count):
            shared, rest_bytes, kind, flags, _ = ITEM.unpack_from(page, at)
            if kind not in _KINDS or flags & ~STORAGE_FLAG or shared > len(path):
                return None
            rest_at = at + ITEM.size + (DIGEST_BYTES if flags else 0)
            path = path[:shared] + text[rest_at : rest_at + rest_bytes]
            paths.append(path)
            starts.append(at)
            rests.append(rest_at)
            at = rest_at + rest_bytes
    except struct.error:
        return None
    return layout if at == len(page) and len(set(paths)) == count else None


def _items(page: bytes, layout: _Layout) -> dict[str, bytes]:
    """Path to kind, flags, digest and storage of each item."""
    return {
        path: page[start + _LENGTHS : rest]
        for path, start, rest in zip(layout.paths, layout.starts, layout.rests, strict=True)
    }


def _entry(item: bytes | None) -> Entry | None:
    if item is None:
        return None
    digest = Digest(item[_DIGEST_AT:_STORAGE_AT].hex())
    storage = Digest(item[_STORAGE_AT:].hex()) if item[_FLAGS_AT] else None
    return Entry(_KINDS[item[_KIND_AT]], digest, storage)
