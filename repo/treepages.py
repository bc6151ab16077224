"""What does one page of a tree look like, and where does a page end?

A tree is a sorted map from paths to entries, cut into pages. Where a page ends depends on the
paths alone, never on the order of edits, so equal maps have equal pages whatever their history.
This module is pure; `trees` walks and rewrites pages in storage.

Source:
    docs/spec/trees.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import Kind


@dataclass(frozen=True, slots=True)
class Entry:
    """What a path names. `storage` is where a model's content lies: a repack changes only it."""

    kind: Kind
    digest: Digest
    storage: Digest | None = None
