"""Tree pages: encoding of a page of a path tree, and content-defined page boundaries.

A tree is a sorted map from paths to entries, cut into pages. Where a page ends depends on the
paths alone, never on the order of edits, so equal maps have equal pages whatever their history.
This module is pure; `trees` walks and rewrites pages in storage.

Source:
    docs/spec/trees.md.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import compress
from operator import is_not
from struct import Struct
from typing import Final, NamedTuple

import msgspec
from blake3 import blake3

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.ids import DIGEST_BYTES, Buffer, Digest, digest_bytes
from tensorrepo.repo.names import folded, is_path
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import EditedLinks, Kind

VERSION = 2
HEADER = Struct("<BBH")  # version, level, items
assert HEADER.size == 4, "docs/spec/trees.md promises a 4-byte page header"
# Bytes shared with the path before, bytes of the rest, kind, flags, bytes of the summary, digest;
# then the storage's digest if there is one, then the summary, then the rest of the path.
ITEM = Struct("<HHBBB32s")
assert ITEM.size == 39, "docs/spec/trees.md promises 39 bytes before an item's summary"
STORAGE_FLAG = 1

MIN_ITEMS = 64
MAX_ITEMS = 1024
MAX_LEVEL = 7
MAX_SUMMARY_BYTES = 64
MAX_ROOT_BYTES = 16 << 10
# One path in 128 ends a page once it has MIN_ITEMS: 191 on average. An edit rewrites a page per
# level, so pages are small; a page forced shut at MAX_ITEMS is as rare as 1 in 1,800.
_END_MASK = 0x7F
KINDS = {int(kind): kind for kind in Kind}
_KNOWN_BYTES: Final = 1 << 20  # of pages, whose items take about nine times as much
_REMEMBERED_ENDS: Final = 1 << 13


class Entry(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What a path names. A struct, for pages hold hundreds and a dataclass takes ten times as long.

    Attributes:
        kind: kind of the object.
        digest: digest of the object.
        storage: where a model's content lies; a repack changes only it.
        summary: what listings show without opening the object, at most `MAX_SUMMARY_BYTES`. Only
            who knows the kind can read it; it follows from the content, so equality ignores it.
    """

    kind: Kind
    digest: Digest
    storage: Digest | None = None
    summary: bytes = b""

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entry):
            return NotImplemented
        return (
            self.digest == other.digest
            and self.kind == other.kind
            and self.storage == other.storage
        )

    def __ne__(self, other: object) -> bool:  # a struct's own compares identities
        return not self == other

    def __hash__(self) -> int:
        return hash((self.kind, self.digest, self.storage))


TreeItem = tuple[str, Entry]


@dataclass(frozen=True, slots=True)
class Page:
    """Items in key order. Above level 0 each is a child page, named by the last path in it."""

    level: int
    items: tuple[TreeItem, ...]

    @property
    def last(self) -> str:
        """The greatest path; "" in the empty root page."""
        return self.items[-1][0] if self.items else ""

    def links(self) -> tuple[Digest, ...]:
        """What an object that holds this page must link to."""
        return tuple(sorted(_digests_of(self.items)))


# A commit, its judge and its merge ask for the same few pages again and again; pages are immutable.
_KNOWN: Final = LimitedCache[Page](_KNOWN_BYTES)


class _Laid(NamedTuple):
    """A page and its bytes: item `n` is ``data[bounds[n] : bounds[n + 1]]``."""

    data: bytes
    page: Page
    bounds: list[int]


# The page that was seen last at a place, which its level and its first path name: what follows it
# there differs in a few items, and only those are parsed, or encoded.
_SEEN: Final = LimitedCache[_Laid](_KNOWN_BYTES)


def _note(laid: _Laid) -> None:
    if laid.page.items:
        place = laid.page.level, laid.page.items[0][0]
        _SEEN.drop(place)
        _SEEN.put(place, laid, len(laid.data))


def encode_page(page: Page) -> bytes:
    """The canonical bytes of a page whose items are in order, and valid, already.

    What it returns need not be parsed by `decode_page`: that is the same page.
    """
    items = page.items
    seen = _SEEN.get((page.level, items[0][0])) if items else None
    head, tail = (0, 0) if seen is None else _equal_ends(seen.page.items, items)
    pieces = [] if seen is None else [seen.data[HEADER.size : seen.bounds[head]]]
    bounds = [HEADER.size] if seen is None else seen.bounds[: head + 1]
    at, previous = bounds[-1], items[head - 1][0].encode("ascii") if head else b""
    for path, entry in items[head : len(items) - tail]:
        raw = path.encode("ascii")
        shared = _shared_bytes(previous, raw)
        summary, storage = entry.summary, entry.storage
        if storage is None:
            flags, behind = 0, summary
        else:
            flags, behind = STORAGE_FLAG, digest_bytes(storage) + summary
        digest = digest_bytes(entry.digest)
        rest = raw[shared:]
        pieces += (
            ITEM.pack(shared, len(rest), entry.kind, flags, len(summary), digest), behind, rest
        )  # fmt: skip
        at += ITEM.size + len(behind) + len(rest)
        bounds.append(at)
        previous = raw
    if seen is not None and tail:
        first = len(seen.page.items) - tail
        pieces.append(seen.data[seen.bounds[first] :])
        bounds += [at + bound - seen.bounds[first] for bound in seen.bounds[first + 1 :]]
    encoded = HEADER.pack(VERSION, page.level, len(items)) + b"".join(pieces)
    _KNOWN.put(encoded, page, len(encoded))
    _note(_Laid(encoded, page, bounds))
    return encoded


def _equal_ends(old: Sequence[TreeItem], new: Sequence[TreeItem]) -> tuple[int, int]:
    """Items at the beginning and at the end whose bytes are those of the other page.

    The very same entries: equality leaves out the summary. Of those at the end one less than are
    equal, for the first one's bytes depend on the path before it.
    """
    most = min(len(old), len(new))
    head = _equal_start(old, new, most)
    tail = _equal_start(old[::-1], new[::-1], most - head)
    return head, max(tail - 1, 0)


def _equal_start(old: Sequence[TreeItem], new: Sequence[TreeItem], most: int) -> int:
    """How many items both begin with that have the same bytes, up to `most`."""
    for place in compress(range(most), map(is_not, old, new)):  # nearly all are the same tuples
        if old[place][1] is not new[place][1] or old[place][0] != new[place][0]:
            return place
    return most


def edited_links(old: Page, name: Digest, new: Page, encoded: bytes) -> EditedLinks:
    """What `new` links to, whose bytes are `encoded`, beside the page `name`, which is `old`."""
    head, tail = _equal_ends(old.items, new.items)
    was = _digests_of(old.items[head : len(old.items) - tail])
    now = _digests_of(new.items[head : len(new.items) - tail])
    gone = was - now
    # Unless another path names it, too, which is nearly always told by bytes that are not there.
    if any(digest_bytes(digest) in encoded for digest in gone):
        gone -= _digests_of(new.items[:head] + new.items[len(new.items) - tail :])
    return EditedLinks(name, sorted(gone), sorted(now - was), new.links)


def _digests_of(items: Iterable[TreeItem]) -> set[Digest]:
    found = {entry.digest for _, entry in items}
    return found | {entry.storage for _, entry in items if entry.storage is not None}


def encode_root(page: Page) -> bytes | None:
    """The bytes of a page that a commit embeds; None when it is too large for that.

    Leaving out items never makes a page larger, so if a level fits, the one above it does too.
    """
    least_bytes = len(page.items) * ITEM.size
    if least_bytes <= MAX_ROOT_BYTES:
        entries = (entry for _, entry in page.items)
        least_bytes += sum(len(e.summary) + DIGEST_BYTES * (e.storage is not None) for e in entries)
    if least_bytes > MAX_ROOT_BYTES:
        return None
    encoded = encode_page(page)
    return encoded if len(encoded) <= MAX_ROOT_BYTES else None


def shared_length(a: str, b: str) -> int:
    """How many characters two ASCII texts begin with in common."""
    return _shared_bytes(a.encode("ascii"), b.encode("ascii"))


def _shared_bytes(a: bytes, b: bytes) -> int:
    length = min(len(a), len(b))
    # The highest bit that differs stands in the first byte that does.
    differing = int.from_bytes(a[:length], "big") ^ int.from_bytes(b[:length], "big")
    return length - (differing.bit_length() + 7) // 8


def decode_page(payload: Buffer, where: str) -> Page:
    """Parse one page and check all of it: whatever decodes encodes to the same bytes again.

    Args:
        payload: exactly the bytes of a page.
        where: which page this is, for messages.

    Raises:
        CorruptError: cut short, out of order, clashing or invalid paths, a form that
            `encode_page` does not make.
        UnsupportedError: a version or a kind that this tensorrepo does not know.
    """
    data = bytes(payload)
    page = _KNOWN.get(data)
    if page is None:
        page = _parse(data, where)
        _KNOWN.put(data, page, len(data))
    return page


def _parse(data: bytes, where: str) -> Page:
    if len(data) < HEADER.size:
        raise CorruptError(f"{where}: {len(data)} bytes cannot hold a page header")
    version, level, count = HEADER.unpack_from(data)
    if version != VERSION:
        raise UnsupportedError(
            f"{where}: tree page version {version}, this tensorrepo reads {VERSION}. Update it."
        )
    if level > MAX_LEVEL or count > MAX_ITEMS or (level and not count):
        raise CorruptError(f"{where}: impossible header: level {level}, {count} items")
    items, bounds = _decode_beside(data, level, count, where) or _decode_items(data, count, where)
    if bounds[-1] != len(data):
        raise CorruptError(f"{where}: {len(data) - bounds[-1]} bytes follow the last item")
    for path, entry in items:
        if (entry.kind is Kind.TREE_PAGE) != (level > 0):
            raise CorruptError(f"{where}: {entry.kind.label} {path!r} at level {level}")
        if entry.summary and level:
            raise CorruptError(f"{where}: a page has no summary, {path!r} at level {level} has")
    page = Page(level, tuple(items))
    _note(_Laid(data, page, bounds))
    return page


def _decode_beside(
    data: bytes, level: int, count: int, where: str
) -> tuple[list[TreeItem], list[int]] | None:
    """As `_decode_items` of all items, where the page seen last at that place has most of them.

    None: it has not, or what stands between its items does not fit.
    """
    seen = _SEEN.get((level, _first_path(data)))
    if seen is None:
        return None
    old, bounds, known = seen.data, seen.bounds, seen.page.items
    begin = HEADER.size
    head = bisect_right(bounds, begin + _shared_bytes(old[begin:], data[begin:])) - 1
    same = _shared_bytes(old[: bounds[head] - 1 : -1], data[: bounds[head] - 1 : -1])
    tail = bisect_left(bounds, len(old) - same, head)
    between = count - head - (len(known) - tail)
    if between < 0:
        return None
    items, ends = _decode_items(data, between, where, known[:head], bounds[: head + 1])
    if ends[-1] + len(old) - bounds[tail] != len(data):
        return None
    if tail < len(known):
        shared, before = ITEM.unpack_from(old, bounds[tail])[0], known[tail - 1][0] if tail else ""
        last = items[-1][0] if items else ""
        if last[:shared] != before[:shared]:
            return None
        _check_step(last, known[tail][0], shared, where)
    shift = ends[-1] - bounds[tail]
    return [*items, *known[tail:]], [*ends, *(bound + shift for bound in bounds[tail + 1 :])]


def _first_path(data: bytes) -> str:
    """The first path of a page, unchecked; "" where there is none."""
    at = HEADER.size
    if len(data) - at < ITEM.size:
        return ""
    _, rest_bytes, _, flags, summary_bytes, _ = ITEM.unpack_from(data, at)
    at += ITEM.size + (DIGEST_BYTES if flags == STORAGE_FLAG else 0) + summary_bytes
    return data[at : at + rest_bytes].decode("latin-1")


def _decode_items(
    data: bytes,
    count: int,
    where: str,
    known: Sequence[TreeItem] = (),
    starts: Sequence[int] = (HEADER.size,),
) -> tuple[list[TreeItem], list[int]]:
    """`count` items behind those that are known, and where each of all of them begins and ends.

    Every commit decodes its root page, so this loop is tight.
    """
    text = data.decode("latin-1")  # whatever is not ASCII is then refused as a path
    items, bounds = list(known), list(starts)
    at, previous = bounds[-1], known[-1][0] if known else ""
    fold_before = folded(previous)
    for _ in range(count):
        if len(data) - at < ITEM.size:
            raise CorruptError(f"{where}: cut short at byte {len(data)}")
        shared, rest_bytes, kind, flags, summary_bytes, raw = ITEM.unpack_from(data, at)
        at += ITEM.size
        summary_at = at + DIGEST_BYTES if flags == STORAGE_FLAG else at
        rest_at = summary_at + summary_bytes
        end = rest_at + rest_bytes
        if (
            flags & ~STORAGE_FLAG
            or summary_bytes > MAX_SUMMARY_BYTES
            or shared > len(previous)
            or end > len(data)
        ):
            raise CorruptError(f"{where}: the item after {previous!r} disagrees with its lengths")
        if kind not in KINDS:
            raise UnsupportedError(f"{where}: kind {kind} is unknown here. Update tensorrepo.")
        path = previous[:shared] + text[rest_at:end]
        fold = folded(path)
        # Neighbours clash only where one runs out, or where they part in the case of a letter.
        old, new = previous[shared : shared + 1], path[shared : shared + 1]
        if fold <= fold_before or not old or old.lower() == new.lower() or not is_path(path):
            _check_step(previous, path, shared, where)
        storage = Digest(data[at:summary_at].hex()) if summary_at > at else None
        summary = data[summary_at:rest_at]
        items.append((path, Entry(KINDS[kind], Digest(raw.hex()), storage, summary)))
        bounds.append(end)
        at, previous, fold_before = end, path, fold
    return items, bounds


def _check_step(previous: str, path: str, shared: int, where: str) -> None:
    """Refuse a path that may not follow `previous`, with which it shares `shared` characters."""
    if not is_path(path):
        raise CorruptError(f"{where}: {path!r} is no valid path")
    if not previous:
        return
    if shared_length(previous, path) > shared:
        raise CorruptError(f"{where}: {path!r} shares more than {shared} bytes with {previous!r}")
    if folded(previous) >= folded(path):
        raise CorruptError(f"{where}: {path!r} is out of order after {previous!r}")
    if reason := clash(previous, path):
        raise CorruptError(f"{where}: {reason}")


def decode_root(root: Buffer, where: str = "tree") -> Page:
    """Parse the page that a commit embeds."""
    if len(root) > MAX_ROOT_BYTES:
        raise CorruptError(f"{where}: root page of {len(root)} bytes, at most {MAX_ROOT_BYTES}")
    return decode_page(root, where)


def clash(first: str, second: str) -> str | None:
    """Why two paths, neighbours in key order, cannot be in one tree; None when they can.

    Folders and files that differ only in case cannot both be written out on every file system,
    and nothing is both a file and a folder. In a sorted tree without clashes it is enough to
    look at neighbours: "/" sorts first, so whatever clashes with a path stands next to it.
    """
    before, after = folded(first), folded(second)
    if before == after:
        return f"{first!r} and {second!r} differ only in case"
    if after.startswith(before + "\0"):
        return f"{first!r} cannot be an entry and a folder, of {second!r}"
    folder = before.rfind("\0", 0, shared_length(before, after))
    if folder >= 0 and first[:folder] != second[:folder]:
        return f"the folders of {first!r} and {second!r} differ only in case"
    return None


def page_ends(items: Sequence[TreeItem], level: int, start: int = 0) -> list[int]:
    """Where the complete pages in ``items[start:]`` end; what follows the last is unfinished.

    A page ends after a path when the low 7 bits of byte `level` of BLAKE3(path) are 0 and it has
    at least `MIN_ITEMS`, or when it has `MAX_ITEMS`. Each level looks at a byte of its own, as
    all paths above a level end a page of that level.
    """
    ends = []
    for index in range(start, len(items)):
        count = index + 1 - start
        if count == MAX_ITEMS or (count >= MIN_ITEMS and _ends_page(items[index][0], level)):
            start = index + 1
            ends.append(start)
    return ends


@lru_cache(_REMEMBERED_ENDS)
def _ends_page(path: str, level: int) -> bool:
    return not blake3(path.encode()).digest()[level] & _END_MASK
