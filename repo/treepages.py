"""What does one page of a tree look like, and where does a page end?

A tree is a sorted map from paths to entries, cut into pages. Where a page ends depends on the
paths alone, never on the order of edits, so equal maps have equal pages whatever their history.
This module is pure; `trees` walks and rewrites pages in storage.

Source:
    docs/spec/trees.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING

from blake3 import blake3

from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.ids import DIGEST_BYTES, Buffer, Digest, digest_bytes, digest_from_bytes
from tensorrepo.repo.names import folded, is_path
from tensorrepo.repo.objects import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

VERSION = 1
HEADER = Struct("<BBH")  # version, level, items
assert HEADER.size == 4, "docs/spec/trees.md promises a 4-byte page header"
# Bytes shared with the path before, bytes of the rest, kind, flags, digest; then the storage's
# digest if there is one, then the rest of the path.
ITEM = Struct("<HHBB32s")
assert ITEM.size == 38, "docs/spec/trees.md promises 38 bytes before an item's path"
STORAGE_FLAG = 1

MIN_ITEMS = 64
MAX_ITEMS = 1024
MAX_LEVEL = 7
MAX_ROOT_BYTES = 16 << 10
# One path in 128 ends a page once it has MIN_ITEMS: 191 on average. An edit rewrites a page per
# level, so pages are small; a page forced shut at MAX_ITEMS is as rare as 1 in 1,800.
_END_MASK = 0x7F
_KINDS = {int(kind): kind for kind in Kind}


@dataclass(frozen=True, slots=True)
class Entry:
    """What a path names. `storage` is where a model's content lies: a repack changes only it."""

    kind: Kind
    digest: Digest
    storage: Digest | None = None


Item = tuple[str, Entry]


@dataclass(frozen=True, slots=True)
class Page:
    """Items in key order. Above level 0 each is a child page, named by the last path in it."""

    level: int
    items: tuple[Item, ...]

    @property
    def last(self) -> str:
        """The greatest path; "" in the empty root page."""
        return self.items[-1][0] if self.items else ""

    def links(self) -> tuple[Digest, ...]:
        """What an object that holds this page must link to."""
        digests = {entry.digest for _, entry in self.items}
        return tuple(sorted(digests | {e.storage for _, e in self.items if e.storage is not None}))


def encode_page(page: Page) -> bytes:
    """The canonical bytes of a page whose items are in order already."""
    out = bytearray(HEADER.pack(VERSION, page.level, len(page.items)))
    previous = ""
    for path, entry in page.items:
        out += _encode_item(previous, path, entry)
        previous = path
    return bytes(out)


def fits_root(items: Sequence[Item]) -> bool:
    """Whether a root page can hold `items`; if it can, it can hold any subset of them."""
    return len(items) * ITEM.size <= MAX_ROOT_BYTES and _encoded_bytes(items) <= MAX_ROOT_BYTES


def exceeds_root(pages: int) -> bool:
    """Whether that many pages hold more than a root page can, whatever is in them."""
    return (pages - 1) * MIN_ITEMS * ITEM.size > MAX_ROOT_BYTES  # only the last may be short


def _encoded_bytes(items: Iterable[Item]) -> int:
    size = HEADER.size
    previous = ""
    for path, entry in items:
        storage_bytes = DIGEST_BYTES if entry.storage is not None else 0
        size += ITEM.size + storage_bytes + len(path) - shared_length(previous, path)
        previous = path
    return size


def shared_length(a: str, b: str) -> int:
    """How many characters `a` and `b` begin with in common."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _encode_item(previous: str, path: str, entry: Entry) -> bytes:
    shared = shared_length(previous, path)
    rest = path[shared:].encode("ascii")
    flags = STORAGE_FLAG if entry.storage is not None else 0
    head = ITEM.pack(shared, len(rest), entry.kind, flags, digest_bytes(entry.digest))
    storage = digest_bytes(entry.storage) if entry.storage is not None else b""
    return head + storage + rest


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
    view = memoryview(payload).cast("B")
    if view.nbytes < HEADER.size:
        raise CorruptError(f"{where}: {view.nbytes} bytes cannot hold a page header")
    version, level, count = HEADER.unpack_from(view)
    if version != VERSION:
        raise UnsupportedError(
            f"{where}: tree page version {version}, this tensorrepo reads {VERSION}. Update it."
        )
    if level > MAX_LEVEL or count > MAX_ITEMS or (level and not count):
        raise CorruptError(f"{where}: impossible header: level {level}, {count} items")
    items = []
    at = HEADER.size
    previous = ""
    for _ in range(count):
        (path, entry), at = _decode_item(view, at, previous, where)
        if (entry.kind is Kind.TREE_PAGE) != (level > 0):
            raise CorruptError(f"{where}: {entry.kind.label} {path!r} at level {level}")
        items.append((path, entry))
        previous = path
    if at != view.nbytes:
        raise CorruptError(f"{where}: {view.nbytes - at} bytes follow the last item")
    return Page(level, tuple(items))


def _decode_item(view: memoryview, at: int, previous: str, where: str) -> tuple[Item, int]:
    if view.nbytes - at < ITEM.size:
        raise CorruptError(f"{where}: cut short at byte {view.nbytes}")
    shared, rest_bytes, kind, flags, raw = ITEM.unpack_from(view, at)
    at += ITEM.size
    storage_bytes = DIGEST_BYTES if flags == STORAGE_FLAG else 0
    end = at + storage_bytes + rest_bytes
    if flags & ~STORAGE_FLAG or shared > len(previous) or end > view.nbytes:
        raise CorruptError(f"{where}: the item after {previous!r} disagrees with its lengths")
    if kind not in _KINDS:
        raise UnsupportedError(f"{where}: kind {kind} is unknown here. Update tensorrepo.")
    rest = bytes(view[at + storage_bytes : end]).decode("ascii", "replace")
    path = previous[:shared] + rest
    _check_step(previous, path, shared, where)
    storage = digest_from_bytes(view[at : at + storage_bytes]) if storage_bytes else None
    return (path, Entry(_KINDS[kind], digest_from_bytes(raw), storage)), end


def _check_step(previous: str, path: str, shared: int, where: str) -> None:
    """Refuse a path that may not follow `previous`, with which it shares `shared` characters."""
    if not is_path(path):
        raise CorruptError(f"{where}: {path!r} is no valid path")
    if not previous:
        return
    if shared < len(previous) and shared < len(path) and previous[shared] == path[shared]:
        raise CorruptError(f"{where}: {path!r} shares more than {shared} bytes with {previous!r}")
    if folded(previous) >= folded(path):
        raise CorruptError(f"{where}: {path!r} is out of order after {previous!r}")
    # Neighbours clash only if one runs out, or if they part in the case of a letter.
    parted = previous[shared : shared + 1]
    if (not parted or parted.swapcase() == path[shared]) and (reason := clash(previous, path)):
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


def page_ends(items: Sequence[Item], level: int, start: int = 0) -> list[int]:
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


def _ends_page(path: str, level: int) -> bool:
    return not blake3(path.encode()).digest()[level] & _END_MASK
