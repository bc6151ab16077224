"""What comes of two trees that grew out of one?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tensorrepo.repo.objects import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import ObjectSink
    from tensorrepo.repo.trees import Change, Entry


@dataclass(frozen=True, slots=True)
class Conflict:
    """One path that cannot be merged by itself, and why."""

    path: str
    kind: Kind | None
    base: Digest | None
    ours: Digest | None
    theirs: Digest | None
    reason: str


@dataclass(frozen=True, slots=True)
class MergeContext:
    """How a merge was asked for.

    `automatic` says that nobody looks (a rebase of a transaction); `strategy` is "fail", "ours",
    "theirs" or one that only the drivers know; `generations` are those of ours' and theirs'
    commits.
    """

    automatic: bool
    strategy: str
    generations: tuple[int, int]


class MergeDriver(Protocol):
    """Joins two versions of one entry whose kind it understands."""

    def merge(
        self,
        objects: ObjectSink,
        path: str,
        base: Entry | None,
        ours: Entry,
        theirs: Entry,
        context: MergeContext,
    ) -> Entry | Conflict: ...


Drivers = Mapping[Kind, MergeDriver]


@dataclass(frozen=True, slots=True)
class Merged:
    """The outcome: `changes` lead from ours to `root`, which is valid only without conflicts."""

    root: bytes
    changes: tuple[Change, ...]
    conflicts: tuple[Conflict, ...]


def merge_trees(
    objects: ObjectSink,
    base: bytes,
    ours: bytes,
    theirs: bytes,
    *,
    drivers: Drivers,
    context: MergeContext,
    unchanged: Iterable[str] = (),
) -> Merged:
    raise NotImplementedError


def merge_base_tree(
    objects: ObjectSink, ours: Digest, theirs: Digest, *, drivers: Drivers
) -> bytes:
    """Root page of the merge base; several bases are merged first."""
    raise NotImplementedError


def pick_sides(
    objects: ObjectSink, commit: Digest, *, revert: bool, mainline: int | None = None
) -> tuple[bytes, bytes]:
    """`base` and `theirs` with which `merge_trees` cherry-picks, or reverts, `commit`.

    `mainline` says which parent (from 1) the change is counted from; merges need it.
    """
    raise NotImplementedError
