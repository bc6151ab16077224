"""Path trees in storage: lookup, iteration, differences and edits.

Every function costs in proportion to what it looks for or changes: it reads one page per level
and place. Pages are immutable and shared, so equal parts of two trees are equal digests.

Source:
    docs/spec/trees.md.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import field
from itertools import pairwise
from typing import Final, NamedTuple

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.history.tree_pages import (
    HEADER,
    ITEM,
    KINDS,
    MAX_ROOT_BYTES,
    MIN_ITEMS,
    STORAGE_FLAG,
    VERSION,
    Page,
    TreeItem,
    clash,
    decode_page,
    decode_root,
    edited_links,
    encode_page,
    encode_root,
    page_ends,
)
from tensorrepo.repo.history.tree_pages import Entry as Entry  # noqa: PLC0414 - for all others
from tensorrepo.repo.ids import DIGEST_BYTES, Digest
from tensorrepo.repo.names import check_path, folded, path_key
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import EditedLinks, Kind, ObjectLink, ObjectSink, ObjectSource

_FEW_EDITS: Final = 16  # of a page, which are put into their places; to sort it takes longer

FILE_SUMMARY = struct.Struct("<Q")  # bytes of the content

EMPTY_TREE = encode_page(Page(0, ()))


@dataclass(frozen=True, slots=True)
class PathChange:
    """What became of one path: None on a side says that the path is absent there."""

    path: str
    old: Entry | None
    new: Entry | None


def same_content(a: Entry | None, b: Entry | None) -> bool:
    """Whether two entries are the same thing, wherever it is stored."""
    if a is None or b is None:
        return a is b
    return a.kind == b.kind and a.digest == b.digest


def file_entry(link: ObjectLink) -> Entry:
    """The entry of a stored blob; its summary is the size of its content."""
    size_bytes = link.bytes - (link.payload_start or 0)
    return Entry(Kind.BLOB, link.digest, summary=FILE_SUMMARY.pack(size_bytes))


def root_links(root: bytes) -> tuple[Digest, ...]:
    """What an object that embeds the page `root` must link to."""
    return decode_root(root).links()


def lookup(objects: ObjectSource, root: bytes, path: str) -> Entry | None:
    """The entry at exactly `path`."""
    page = decode_root(root)
    low = ""
    while True:
        index = _position(page, folded(path))
        if index == len(page.items):
            return None
        found, entry = page.items[index]
        if page.level == 0:
            return entry if found == path else None
        low = page.items[index - 1][0] if index else low
        page = _read_child(objects, page, index, low)


def nearby(objects: ObjectSource, root: bytes, path: str) -> list[tuple[str, Entry]]:
    """Entries about `path`, nearest first by their place in the order of keys.

    Those of the page that holds it, or would, and of the two beside that under the same parent:
    however many entries there are, no more pages are read than for a path, and two.
    """
    page, low = decode_root(root), ""
    pages = [page]
    while page.level:
        index = min(_position(page, folded(path)), len(page.items) - 1)
        beside = [at for at in (index - 1, index, index + 1) if 0 <= at < len(page.items)]
        if page.level > 1:
            beside = [index]
        lows = [page.items[at - 1][0] if at else low for at in beside]
        pages = [_read_child(objects, page, *one) for one in zip(beside, lows, strict=True)]
        page, low = pages[beside.index(index)], lows[beside.index(index)]
    items = [item for page in pages for item in page.items]
    place = bisect_left(items, folded(path), key=lambda item: folded(item[0]))
    order = sorted(range(len(items)), key=lambda at: abs(4 * (at - place) + 1))
    return [items[at] for at in order]


def iterate(
    objects: ObjectSource, root: bytes, prefix: str = "", *, after: str = ""
) -> Iterator[tuple[str, Entry]]:
    """Entries in key order whose path starts with `prefix` (what is in a folder: ``"name/"``).

    Those up to and with `after` are left out, and the pages of them alone are not read.
    """
    cursor = _Cursor(objects, decode_root(root), prefix, after)
    while (step := cursor.head) is not None:
        if step.level:
            cursor.expand()
            continue
        cursor.skip()
        if step.path.startswith(prefix) and path_key(step.path) > path_key(after):
            yield step.path, step.entry


def diff(
    objects: ObjectSource, old_root: bytes, new_root: bytes, prefix: str = ""
) -> Iterator[PathChange]:
    """Paths starting with `prefix` whose content differs, in key order. Skips equal pages."""
    for change in differences(objects, old_root, new_root, prefix):
        if not same_content(change.old, change.new):
            yield change


def differences(
    objects: ObjectSource, old_root: bytes, new_root: bytes, prefix: str = ""
) -> Iterator[PathChange]:
    """Like `diff`, and also entries of which only the storage differs."""
    if old_root == new_root:
        return
    before, after = decode_root(old_root), decode_root(new_root)
    if not before.level and not after.level:
        yield from _leaf_differences(before, after, prefix)
        return
    old, new = _Cursor(objects, before, prefix), _Cursor(objects, after, prefix)
    while old.head is not None or new.head is not None:
        if old.head is not None and new.head is not None and old.head.equals(new.head):
            old.skip()
            new.skip()
        elif old.head is not None and new.head is not None and old.head.covers(new.head):
            yield from _leaf_differences(old.take_page(), new.take_page(), prefix)
        elif level := max(old.level, new.level):
            for cursor in (old, new):
                if cursor.level == level:
                    cursor.expand()
        else:
            change = _next_change(old, new)
            if change.path.startswith(prefix):
                yield change


def _leaf_differences(older: Page, newer: Page, prefix: str) -> Iterator[PathChange]:
    """The same of two leaf pages for the same paths, by look-up."""
    old, new = dict(older.items), dict(newer.items)
    paths = {
        path
        for path, entry in new.items()
        if (before := old.get(path)) is not entry and before != entry
    }
    paths |= old.keys() - new.keys()
    for path in sorted(paths, key=path_key):
        if path.startswith(prefix):
            yield PathChange(path, old.get(path), new.get(path))


def _next_change(old: _Cursor, new: _Cursor) -> PathChange:
    """Pass over the smaller of two entries that differ, or over both if their paths are equal."""
    heads = [step for step in (old.head, new.head) if step is not None]
    path = min((step.path for step in heads), key=path_key)
    before, after = (
        cursor.skip().entry if cursor.head is not None and cursor.head.path == path else None
        for cursor in (old, new)
    )
    return PathChange(path, before, after)


def update(objects: ObjectSink, root: bytes, changes: Mapping[str, Entry | None]) -> bytes:
    """Root page of the tree with `changes` made; None removes a path, absent ones are fine.

    Nothing is stored unless all of it is fine. Whatever the order of edits, equal trees have
    equal root pages.

    Raises:
        InvalidInputError: a path breaks the grammar, or two paths clash: they (or folders of
            theirs) differ only in case, or one is a folder of the other.
    """
    pages = _Pages(objects, decode_root(root))
    regions = _leaf_regions(pages, changes)
    for region in regions:
        for _, _, reason in _clashes_in(pages, region):
            raise InvalidInputError(f"{reason}; rename or remove one of them")
    level = 0
    while level < pages.root.level:
        edits: dict[str, Entry | None] = {}
        for region in regions:
            edits |= _store(objects, pages, region)
        level += 1
        regions = list(_regions(pages, level, edits))
    items = regions[0].items if regions else list(pages.root.items)
    return _close(objects, pages, level, items)


def clashes(
    objects: ObjectSource, root: bytes, changes: Mapping[str, Entry | None]
) -> list[tuple[str, str, str]]:
    """Pairs of paths for which `update` would refuse `changes`, each with the reason."""
    pages = _Pages(objects, decode_root(root))
    regions = _leaf_regions(pages, changes)
    return [found for region in regions for found in _clashes_in(pages, region)]


# ------------------------------------------------------------------------------- reading


def _position(page: Page, fold: str) -> int:
    """Index of the first item whose folded path is not below `fold`."""
    return bisect_left(page.items, fold, key=lambda item: folded(item[0]))


def _read_child(objects: ObjectSource, page: Page, index: int, low: str) -> Page:
    """The child page `page.items[index]`, checked against what its parent says of it.

    `low` is the last path before the child's first, "" when there is none.
    """
    last, entry = page.items[index]
    where = f"tree page {entry.digest:.12}"
    envelope = objects.get(entry.digest)
    if envelope.kind is not Kind.TREE_PAGE:
        raise CorruptError(f"{where}: expected a tree page, found a {envelope.kind.label}")
    child = decode_page(envelope.payload, where)
    if child.level != page.level - 1:
        raise CorruptError(f"{where}: expected level {page.level - 1}, found {child.level}")
    if child.last != last:
        raise CorruptError(f"{where}: expected to end with {last!r}, found {child.last!r}")
    if low and folded(child.items[0][0]) <= folded(low):
        raise CorruptError(f"{where}: {child.items[0][0]!r} is out of order after {low!r}")
    return child


class _Step(NamedTuple):
    """One item of a walk: an entry (level 0), or a page of level `level - 1` not read yet."""

    level: int
    low: str
    path: str
    entry: Entry
    page: Page
    place: int

    def equals(self, other: _Step) -> bool:
        return self.level == other.level and self.entry == other.entry and self.path == other.path

    def covers(self, other: _Step) -> bool:
        """Whether both are leaf pages, for the very same range of paths."""
        return self.level == other.level == 1 and (self.low, self.path) == (other.low, other.path)


class _Cursor:
    """Walks the part of a tree that may hold `prefix`; pages can be passed over unread."""

    def __init__(self, objects: ObjectSource, root: Page, prefix: str, after: str = "") -> None:
        self._objects = objects
        self._fold = folded(prefix)
        self._first = max(self._fold, folded(after))
        self._ahead: list[_Step] = []  # the next one last
        self._push(root, "")

    @property
    def head(self) -> _Step | None:
        return self._ahead[-1] if self._ahead else None

    @property
    def level(self) -> int:
        """Level of the head; 0 at the end."""
        return self._ahead[-1].level if self._ahead else 0

    def skip(self) -> _Step:
        return self._ahead.pop()

    def expand(self) -> None:
        """Replace the page at the head by what is in it."""
        low = self._ahead[-1].low
        self._push(self.take_page(), low)

    def take_page(self) -> Page:
        """The page at the head, which is passed over."""
        step = self._ahead.pop()
        return _read_child(self._objects, step.page, step.place, step.low)

    def _push(self, page: Page, low: str) -> None:
        steps = []
        for index in range(_position(page, self._first), len(page.items)):
            path, entry = page.items[index]
            beyond = not folded(path).startswith(self._fold)
            if beyond and page.level == 0:
                break
            before = page.items[index - 1][0] if index else low
            steps.append(_Step(page.level, before, path, entry, page, index))
            if beyond:  # the last child that may still hold the prefix
                break
        self._ahead += reversed(steps)


# ------------------------------------------------------------------------------- editing


class _Span(NamedTuple):
    """Where a page of the old tree lies: after `low`, up to and with `last`."""

    low: str
    last: str
    parent: Page | None  # None: it is the root page
    place: int


class _Pages:
    """The old tree of an update; each page is read at most once."""

    def __init__(self, objects: ObjectSource, root: Page) -> None:
        self.root = root
        self._objects = objects
        self._known: dict[Digest, Page] = {}

    def learn(self, digest: Digest, page: Page) -> None:
        self._known[digest] = page

    def child(self, parent: Page, index: int, low: str) -> Page:
        digest = parent.items[index][1].digest
        if digest not in self._known:
            self._known[digest] = _read_child(self._objects, parent, index, low)
        return self._known[digest]

    def load(self, span: _Span) -> Page:
        return self.root if span.parent is None else self.child(span.parent, span.place, span.low)

    def spans(self, level: int, path: str) -> Iterator[_Span]:
        """Pages of `level` in order, from the one that holds, or would hold, `path`."""
        if level == self.root.level:
            yield _Span("", self.root.last, None, 0)
        else:
            yield from self._below(self.root, "", level, folded(path))

    def _below(self, page: Page, low: str, level: int, fold: str) -> Iterator[_Span]:
        first = min(_position(page, fold), len(page.items) - 1)
        for index in range(first, len(page.items)):
            before = page.items[index - 1][0] if index else low
            if page.level == level + 1:
                yield _Span(before, page.items[index][0], page, index)
            else:
                yield from self._below(self.child(page, index, before), before, level, fold)


@dataclass(slots=True)
class _Region:
    """Neighbouring pages of one level that an update replaces, with what takes their place.

    No page before or after a region changes: it starts where a page starts in both trees, and
    ends where one ends in both.
    """

    level: int
    before: str  # the last path before it
    items: list[TreeItem] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)  # of the new pages in `items`
    added: set[str] = field(default_factory=set)
    replaced: list[Page] = field(default_factory=list)
    names: dict[str, Digest] = field(default_factory=dict)  # of those, by their last paths
    following: _Span | None = None


def _leaf_regions(pages: _Pages, changes: Mapping[str, Entry | None]) -> list[_Region]:
    for path, entry in changes.items():
        check_path(path)
        if entry is not None and entry.kind is Kind.TREE_PAGE:
            raise InvalidInputError(f"{path!r}: a tree page cannot be an entry")
    return list(_regions(pages, 0, changes))


def _regions(pages: _Pages, level: int, edits: Mapping[str, Entry | None]) -> Iterator[_Region]:
    pending = deque(sorted(edits.items(), key=lambda edit: path_key(edit[0])))
    while pending:
        yield _region(pages, level, pending)


def _region(pages: _Pages, level: int, pending: deque[tuple[str, Entry | None]]) -> _Region:
    """Take the edits of the next region from `pending` and apply them."""
    region: _Region | None = None
    for span in pages.spans(level, pending[0][0]):
        final = span.last == pages.root.last
        mine = _take(pending, None if final else folded(span.last))
        if region is None:
            region = _Region(level, span.low)
        elif not mine and len(region.items) == (region.ends[-1] if region.ends else 0):
            region.following = span
            break
        if span.parent is not None:
            region.names[span.last] = span.parent.items[span.place][1].digest
        start = region.ends[-1] if region.ends else 0
        is_aligned = len(region.items) == start
        if _apply(region, pages.load(span), mine) or not is_aligned:
            region.ends += page_ends(region.items, level, start)
        else:  # paths alone decide where pages end
            region.ends.append(len(region.items))
    assert region is not None, "every tree has a page"
    if len(region.items) > (region.ends[-1] if region.ends else 0):
        region.ends.append(len(region.items))
    return region


def _take(
    pending: deque[tuple[str, Entry | None]], last_fold: str | None
) -> list[tuple[str, Entry | None]]:
    taken = []
    while pending and (last_fold is None or folded(pending[0][0]) <= last_fold):
        taken.append(pending.popleft())
    return taken


def _apply(region: _Region, page: Page, edits: list[tuple[str, Entry | None]]) -> bool:
    """Add `page`, edited, to the end of `region`; whether it has other paths then."""
    region.replaced.append(page)
    added, removed = len(region.added), False
    if len(edits) > _FEW_EDITS:
        merged = dict(page.items)
        for path, entry in edits:
            if entry is None:
                removed |= merged.pop(path, None) is not None
                continue
            if path not in merged:
                region.added.add(path)
            merged[path] = entry
        region.items += sorted(merged.items(), key=lambda item: path_key(item[0]))
        return removed or len(region.added) > added
    items = list(page.items)
    for path, entry in edits:
        place = bisect_left(items, path_key(path), key=lambda item: path_key(item[0]))
        is_there = place < len(items) and items[place][0] == path
        if entry is None:
            del items[place : place + is_there]
            removed |= is_there
            continue
        if not is_there:
            region.added.add(path)
        items[place : place + is_there] = [(path, entry)]
    region.items += items
    return removed or len(region.added) > added


def _clashes_in(pages: _Pages, region: _Region) -> Iterator[tuple[str, str, str]]:
    """Neighbours that clash: one of them is new, as the old tree had none."""
    if not region.added:
        return
    paths = [path for path, _ in region.items]
    if paths and region.following is not None and paths[-1] in region.added:
        paths.append(pages.load(region.following).items[0][0])
    for first, second in pairwise([region.before, *paths] if region.before else paths):
        if (first in region.added or second in region.added) and (reason := clash(first, second)):
            yield first, second, reason


def _store(objects: ObjectSink, pages: _Pages, region: _Region) -> dict[str, Entry | None]:
    """Store the new pages of `region`; returns what changes in the level above."""
    old = {page.last: page for page in region.replaced}
    edits: dict[str, Entry | None] = dict.fromkeys(old)
    start = 0
    for end in region.ends:
        page = Page(region.level, tuple(region.items[start:end]))
        start = end
        if old.get(page.last) == page:
            del edits[page.last]
        else:
            beside, name = old.get(page.last), region.names.get(page.last)
            encoded, links = encode_page(page), None
            if beside is not None and name is not None:
                links = edited_links(beside, name, page, encoded)
            path, entry = _put(objects, pages, page, encoded, links)
            edits[path] = entry
    return edits


def _put(
    objects: ObjectSink, pages: _Pages, page: Page, encoded: bytes, links: EditedLinks | None = None
) -> TreeItem:
    link = objects.put(Kind.TREE_PAGE, encoded, page.links() if links is None else links)
    pages.learn(link.digest, page)
    return page.last, Entry(Kind.TREE_PAGE, link.digest)


def _close(objects: ObjectSink, pages: _Pages, level: int, items: list[TreeItem]) -> bytes:
    """The root page over all `items` of `level`: of the lowest level that fits into one."""
    while (root := encode_root(Page(level, tuple(items)))) is None:
        ends = page_ends(items, level)
        if not ends or ends[-1] < len(items):
            ends.append(len(items))
        cuts = pairwise([0, *ends])
        made = [Page(level, tuple(items[a:b])) for a, b in cuts]
        items = [_put(objects, pages, page, encode_page(page)) for page in made]
        level += 1
    while level and (lower := _joined(pages, level, items)) is not None:
        level, items, root = level - 1, *lower
    return root


def _joined(pages: _Pages, level: int, refs: list[TreeItem]) -> tuple[list[TreeItem], bytes] | None:
    """All items of the level below `refs` and their root page; None when it cannot hold them."""
    # More than a root page can hold, whatever is in them: only the last may be short.
    if (len(refs) - 1) * MIN_ITEMS * ITEM.size > MAX_ROOT_BYTES:
        return None
    parent = Page(level, tuple(refs))
    joined: list[TreeItem] = []
    for index in range(len(refs)):
        page = pages.child(parent, index, joined[-1][0] if joined else "")
        joined += page.items
        # Most trees are told to be too large by their number of items: none of them is looked at.
        if len(joined) * ITEM.size > MAX_ROOT_BYTES:
            return None
    root = encode_root(Page(level - 1, tuple(joined)))
    return None if root is None else (joined, root)


# ------------------------------------------------------------------------------ raw pages

_LENGTHS: Final = 4  # the two lengths that an item begins with
_KIND_AT, _FLAGS_AT, _SUMMARY_BYTES_AT, _DIGEST_AT = 0, 1, 2, 3  # behind those
_STORAGE_AT: Final = _DIGEST_AT + DIGEST_BYTES
assert ITEM.size == _LENGTHS + _STORAGE_AT, "docs/spec/trees.md promises 39 bytes before a summary"
_MOST_IN_PLACE: Final = 16  # differing items: to look for each takes longer than a scan of many
_KEPT: Final = 4  # pages: a commit's is wanted again as its child's parent


class _Layout(NamedTuple):
    """Where the items of a page lie, in order: each from `starts` on, its path from `rests` on."""

    paths: list[str]
    starts: list[int]
    rests: list[int]


class TreeChanges:
    """Compares trees one after the other, for a walk through all of history; for one thread.

    Nearly every tree is one page that its commit embeds, and nearly every commit changes a few of
    its entries. Such pages are compared as bytes: where the paths stayed the same, only items that
    differ are looked at, at places that are known from the page before; else items are scanned, not
    decoded. The pages are NOT checked: the commit's digest was verified, and whoever checks out
    what it holds, or runs `fsck`, checks them.
    """

    def __init__(self, objects: ObjectSource) -> None:
        self._objects = objects
        self._layouts = LimitedCache[_Layout](_KEPT)

    def between(self, old: bytes, new: bytes) -> tuple[PathChange, ...]:
        """As `differences`, of two root pages: entries whose storage alone differs, too."""
        if old == new:
            return ()
        if len(old) == len(new):
            known = self._layouts.get(old) or self._layouts.get(new)
            changes = None if known is None else _in_place(known, old, new)
            if known is not None and changes is not None:
                self._layouts.put(new, known, 1)
                self._layouts.put(old, known, 1)
                return changes
        before, after = self._layout(old), self._layout(new)
        if before is None or after is None:
            return tuple(differences(self._objects, old, new))
        return _scanned(_items(old, before), _items(new, after))

    def _layout(self, page: bytes) -> _Layout | None:
        known = self._layouts.get(page) or _layout_of(page)
        if known is not None:
            self._layouts.put(page, known, 1)
        return known


def _in_place(layout: _Layout, old: bytes, new: bytes) -> tuple[PathChange, ...] | None:
    """The changes between two pages, one of which has this layout; None unless both have it."""
    # A bit of this number is a bit that differs, the lowest of the first byte that has one.
    differ = int.from_bytes(old, "little") ^ int.from_bytes(new, "little")
    paths, starts, rests = layout
    changes: list[PathChange] = []
    passed = 0
    while differ:
        if len(changes) == _MOST_IN_PLACE:
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
            and before[_SUMMARY_BYTES_AT] == after[_SUMMARY_BYTES_AT]
            and old[rest:end] == new[rest:end]
        )
        if not same_form or before[_KIND_AT] not in KINDS or after[_KIND_AT] not in KINDS:
            return None
        was, now = _entry(before), _entry(after)
        if was != now:  # else their summaries differ, of one content
            changes.append(PathChange(paths[place], was, now))
        differ >>= 8 * (end - passed)
        passed = end
    return tuple(changes)


def _scanned(before: dict[str, bytes], after: dict[str, bytes]) -> tuple[PathChange, ...]:
    paths = sorted({path for path, _ in before.items() ^ after.items()})
    changes = (
        PathChange(path, _entry(before.get(path)), _entry(after.get(path))) for path in paths
    )
    return tuple(change for change in changes if change.old != change.new)


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
            shared, rest_bytes, kind, flags, summary_bytes, _ = ITEM.unpack_from(page, at)
            if kind not in KINDS or flags & ~STORAGE_FLAG or shared > len(path):
                return None
            rest_at = at + ITEM.size + (DIGEST_BYTES if flags else 0) + summary_bytes
            path = path[:shared] + text[rest_at : rest_at + rest_bytes]
            paths.append(path)
            starts.append(at)
            rests.append(rest_at)
            at = rest_at + rest_bytes
    except struct.error:
        return None
    return layout if at == len(page) and len(set(paths)) == count else None


def _items(page: bytes, layout: _Layout) -> dict[str, bytes]:
    """Path to kind, flags, digest, storage and summary of each item."""
    return {
        path: page[start + _LENGTHS : rest]
        for path, start, rest in zip(layout.paths, layout.starts, layout.rests, strict=True)
    }


def _entry(item: bytes | None) -> Entry | None:
    if item is None:
        return None
    digest = Digest(item[_DIGEST_AT:_STORAGE_AT].hex())
    summary_at = len(item) - item[_SUMMARY_BYTES_AT]
    storage = Digest(item[_STORAGE_AT:summary_at].hex()) if item[_FLAGS_AT] else None
    return Entry(KINDS[item[_KIND_AT]], digest, storage, item[summary_at:])
