"""Which commits lead to which?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tensorrepo.repo.commits import Commit
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import ObjectSource


def walk(
    objects: ObjectSource, tips: Iterable[Digest], *, hidden: Iterable[Digest] = ()
) -> Iterator[tuple[Digest, Commit]]:
    """Ancestors of `tips`, themselves included, that are no ancestors of `hidden`.

    Children come before parents: by (generation, digest), largest first.
    """
    raise NotImplementedError


def merge_bases(objects: ObjectSource, a: Digest, b: Digest) -> tuple[Digest, ...]:
    """All best common ancestors: common ancestors that no other common ancestor descends from."""
    raise NotImplementedError


def is_ancestor(objects: ObjectSource, ancestor: Digest, descendant: Digest) -> bool:
    raise NotImplementedError


def ahead_behind(objects: ObjectSource, a: Digest, b: Digest) -> tuple[int, int]:
    """How many commits `a` has that `b` lacks, and the other way round."""
    raise NotImplementedError


def touches(objects: ObjectSource, commit: Commit, path: str) -> bool:
    """Whether `path`, or anything beneath it, differs from every parent of `commit`."""
    raise NotImplementedError
