"""A repository too simple to be wrong: dicts of files, by commit, by ref.

It knows no objects, no log and no pages. Undo and redo are two stacks for each branch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from tensorrepo.repo.ids import Digest
from tests.support.second_readers.tree import clashing

Files = dict[str, bytes]


class RefusedError(Exception):
    """The model says that this cannot be done."""


@dataclass(frozen=True)
class Made:
    """One commit."""

    files: Files
    parents: tuple[Digest, ...]


@dataclass(frozen=True)
class Step:
    """One move of one ref. `undone_by` is who took it back.

    A rename is two moves, of two refs: `other` is the other ref, `pair` the same number in both.
    """

    old: Digest | None
    new: Digest | None
    actor: str
    undone_by: str = ""
    other: str = ""
    pair: int = 0


@dataclass
class Model:
    """`gone` are commits that a collection took; they may still be in somebody's memory."""

    commits: dict[Digest, Made] = field(default_factory=dict)
    refs: dict[str, Digest] = field(default_factory=dict)
    done: defaultdict[str, list[Step]] = field(default_factory=lambda: defaultdict(list))
    undone: defaultdict[str, list[Step]] = field(default_factory=lambda: defaultdict(list))
    retained: set[Digest] = field(default_factory=set)
    gone: set[Digest] = field(default_factory=set)
    renames: int = 0

    def files(self, commit: Digest | None) -> Files:
        return {} if commit is None else self.commits[commit].files

    def ancestors(self, tips: Iterable[Digest]) -> set[Digest]:
        """`tips` and all that came before them."""
        found: set[Digest] = set()
        pending = list(tips)
        while pending:
            commit = pending.pop()
            if commit not in found:
                found.add(commit)
                pending += self.commits[commit].parents
        return found

    def live(self) -> set[Digest]:
        """What no collection may take."""
        return self.ancestors({*self.refs.values(), *self.retained})

    def merge_bases(self, a: Digest, b: Digest) -> set[Digest]:
        common = self.ancestors([a]) & self.ancestors([b])
        older = {
            commit for other in common for commit in self.ancestors(self.commits[other].parents)
        }
        return common - older

    def can_create(self, ref: str) -> bool:
        """Whether a ref of that name can come into being beside the others."""
        return not any(
            ref == other or other.startswith(ref + "/") or ref.startswith(other + "/")
            for other in self.refs
        )

    def move(self, ref: str, new: Digest | None, actor: str, *, drops: bool = False) -> None:
        """Any move that is no undo and no redo."""
        old = self.refs.get(ref)
        self.done[ref].append(Step(old, new, actor))
        self.undone[ref].clear()
        self.set(ref, new, drops=drops)

    def rename(self, source: str, target: str, actor: str) -> None:
        commit = self.refs[source]
        self.renames += 1
        self.move(target, commit, actor)
        self.move(source, None, actor, drops=True)
        for ref, other in ((source, target), (target, source)):
            self.done[ref][-1] = replace(self.done[ref][-1], other=other, pair=self.renames)

    def set(self, ref: str, new: Digest | None, *, drops: bool) -> None:
        old = self.refs.pop(ref, None)
        if drops and old is not None:
            self.retained.add(old)
        if new is not None:
            self.refs[ref] = new

    def collect(self, *, release: bool) -> None:
        if release:
            self.retained.clear()
        self.gone |= set(self.commits) - self.live()

    def brought_back(self, commit: Digest) -> None:
        """Somebody had a copy of a commit that was gone, and made a ref lead to it."""
        self.gone -= self.ancestors([commit])


def changed(files: Files, changes: Mapping[str, bytes | None]) -> Files:
    """`files` with changes made; None removes."""
    both = {**files, **changes}
    return {path: content for path, content in both.items() if content is not None}


def three_way(base: Files, ours: Files, theirs: Files, strategy: str = "fail") -> Files:
    """Path by path. Raises RefusedError where it cannot be said what is meant."""
    merged: dict[str, bytes | None] = dict(ours)
    for path in {*base, *theirs}:
        before, mine, other = base.get(path), ours.get(path), theirs.get(path)
        if other in (before, mine):
            continue
        if mine != before and strategy == "fail":
            raise RefusedError(path)
        if mine == before or strategy == "theirs":
            merged[path] = other
    files = changed({}, merged)
    if clashing(files):
        raise RefusedError("two paths clash")
    return files


def broken(promised: Collection[str], base: Files, tip: Files) -> bool:
    """Whether a path that was declared unchanged, or one below it, differs."""
    return any(
        base.get(path) != tip.get(path)
        for path in {*base, *tip}
        if any(path == each or path.startswith(each + "/") for each in promised)
    )
