"""Trees built from docs/spec/trees.md alone: from the whole map, with no edits and no reading."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from os.path import commonprefix  # of characters, as the spec has it

from blake3 import blake3

from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import Kind, ObjectSink


def key(path: str) -> str:
    return path.lower().replace("/", "\0")


def page(level: int, items: Sequence[tuple[str, Entry]]) -> bytes:
    out = struct.pack("<BBH", 2, level, len(items))
    before = ""
    for path, entry in items:
        shared = len(commonprefix([before, path]))  # noqa: RUF071 - characters are meant
        rest = path[shared:].encode()
        storage = bytes.fromhex(entry.storage) if entry.storage else b""
        counts = (shared, len(rest), entry.kind, bool(storage), len(entry.summary))
        out += struct.pack("<HHBBB", *counts)
        out += bytes.fromhex(entry.digest) + storage + entry.summary + rest
        before = path
    return out


def pages(
    level: int, items: Sequence[tuple[str, Entry]], least: int, most: int, mask: int
) -> Iterable[Sequence[tuple[str, Entry]]]:
    start = 0
    for index, (path, _) in enumerate(items):
        count = index - start + 1
        natural = blake3(path.encode()).digest()[level] & mask == 0
        if (natural and count >= least) or count == most or index == len(items) - 1:
            yield items[start : index + 1]
            start = index + 1


def reference_root(
    objects: ObjectSink,
    entries: Mapping[str, Entry],
    *,
    root_bytes: int = 16384,
    least: int = 64,
    most: int = 1024,
    mask: int = 127,
) -> bytes:
    """Root page of the tree of `entries`."""
    items = sorted(entries.items(), key=lambda item: key(item[0]))
    level = 0
    while len(items) > 1024 or len(page(level, items)) > root_bytes:
        above = []
        for part in pages(level, items, least, most, mask):
            links = {e.digest for _, e in part} | {e.storage for _, e in part if e.storage}
            link = objects.put(Kind.TREE_PAGE, page(level, part), links)
            above.append((part[-1][0], Entry(Kind.TREE_PAGE, link.digest)))
        items = above
        level += 1
    return page(level, items)


def clashing(paths: Iterable[str]) -> bool:
    """Whether any two of `paths` cannot be in one tree, by comparing all of them."""
    return any(_clash(a.split("/"), b.split("/")) for a, b in combinations(sorted(paths), 2))


def _clash(a: list[str], b: list[str]) -> bool:
    if len(a) > len(b):
        a, b = b, a
    low_a, low_b = [s.lower() for s in a], [s.lower() for s in b]
    if low_b[: len(low_a)] == low_a:  # twins, or one a folder of the other
        return True
    folders = zip(a[:-1], b[:-1], strict=False)
    for x, y in folders:
        if x.lower() != y.lower():
            return False
        if x != y:
            return True
    return False
