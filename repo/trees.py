"""Which entry is at this path, and what differs between two trees?

Source:
    docs/spec/trees.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorrepo.repo.treepages import Entry

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import ObjectSink, ObjectSource

__all__ = ["EMPTY_TREE", "Change", "Entry", "diff", "iterate", "lookup", "root_links", "update"]

EMPTY_TREE = bytes([1, 0, 0, 0])


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one path: None on a side says that the path is absent there."""

    path: str
    old: Entry | None
    new: Entry | None


def lookup(objects: ObjectSource, root: bytes, path: str) -> Entry | None:
    raise NotImplementedError


def iterate(objects: ObjectSource, root: bytes, prefix: str = "") -> Iterator[tuple[str, Entry]]:
    """Entries in key order whose path starts with `prefix` (a folder is ``"name/"``)."""
    raise NotImplementedError


def update(objects: ObjectSink, root: bytes, changes: Mapping[str, Entry | None]) -> bytes:
    """Root page of the tree with `changes` made; None removes a path, absent ones are fine.

    Raises:
        InvalidInputError: a path breaks the grammar, or two paths clash: they differ only in
            case, or one is a folder of the other.
    """
    raise NotImplementedError


def diff(objects: ObjectSource, old_root: bytes, new_root: bytes) -> Iterator[Change]:
    """Paths whose kind or digest differ, in key order. Pages that are equal are not read."""
    raise NotImplementedError


def root_links(root: bytes) -> tuple[Digest, ...]:
    """What an object that embeds the page `root` must link to."""
    raise NotImplementedError
