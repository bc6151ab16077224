"""How does a change become a commit, whole or not at all?

Heavy work first, then one small atomic step: objects are put as they come, `commit` makes them
durable, and one record of the log makes them the branch. When the branch moved meanwhile the trees
are merged three ways and the record is tried again: kilobytes, never tensors.

Who calls what: `begin` reads the log once and pins it; `Transaction` collects; `commit` runs an
`Attempt`, which composes the tree anew for every head that it meets, on the caller's thread.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from tensorrepo.repo.attempt import (
    Attempt,
    Committed,
    generation_of,
    raise_conflicts,
    tree_of,
)
from tensorrepo.repo.errors import CommitExpired, NotFoundError, UnsupportedError
from tensorrepo.repo.merge import MergeContext, merge_trees
from tensorrepo.repo.names import check_path, check_ref
from tensorrepo.repo.refs import BRANCHES
from tensorrepo.repo.trees import lookup, update
from tensorrepo.repo.writer import ObjectWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType
    from typing import Self

    from tensorrepo.repo.commits import Json
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.log import View
    from tensorrepo.repo.repository import Repository
    from tensorrepo.repo.trees import Entry


@dataclass(slots=True)
class Transaction:
    """One commit in the making. `objects` takes what it needs; `stage` says what it changes."""

    repository: Repository
    branch: str
    pin: View
    base: Digest | None
    unchanged: tuple[str, ...]
    objects: ObjectWriter
    staged: dict[str, Entry | None] = field(default_factory=dict)
    since: dict[str, int] = field(default_factory=dict)
    space: str = BRANCHES

    @property
    def ref(self) -> str:
        return self.space + self.branch

    def entry(self, path: str) -> Entry | None:
        """The entry at `path` as this transaction would commit it."""
        if path in self.staged:
            return self.staged[path]
        return lookup(self.objects, tree_of(self.objects, self.base), path)

    def stage(self, path: str, entry: Entry, *, since: int | None = None) -> None:
        """Set `path` to `entry` in the commit to come.

        Args:
            path: by the path grammar.
            entry: what was put into `objects`, or is reachable at the pin.
            since: the log generation at which its objects were put, when that was before the pin.
        """
        self.staged[check_path(path)] = entry
        if since is not None:
            self.since[path] = since

    def remove(self, path: str) -> None:
        """Leave `path` out of the commit to come."""
        self.staged[check_path(path)] = None

    def commit(
        self,
        message: str,
        *,
        author: str,
        metadata: Mapping[str, Json] | None = None,
        closes_lease: str | None = None,
        clock: Callable[[], int] = time.time_ns,
    ) -> Committed | None:
        """Make the commit, merging onto what others committed meanwhile.

        Returns:
            The commit, or None when nothing would change (then nothing was written).

        Raises:
            ConflictError: others changed the same; `conflicts` says what. Nothing changed.
            CommitOutcomeUnknown: the store did not say; `resolve` finds out.
            CommitExpired: a staged object, or what the change was made on, was collected.
        """
        try:
            base = tree_of(self.objects, self.base)
            mine = update(self.objects, base, self.staged)
        except NotFoundError as error:
            raise CommitExpired(
                f"{self.ref}: {error} What this change was made on was collected since. Stage it "
                "again on the new tip."
            ) from error
        if mine == base:
            return None
        compose = partial(self._compose, mine)
        return Attempt(
            self, compose, message, author, clock(), dict(metadata or {}), closes_lease
        ).run()

    def abort(self) -> None:
        """Forget it. What was stored so far is garbage, and harmless."""
        self.objects.abort()

    def _compose(self, mine: bytes, tip: Digest | None) -> bytes:
        """The staged tree `mine` on top of `tip`: what it changes, when the branch moved."""
        if tip == self.base:
            return mine
        generation = generation_of(self.objects, tip)
        merged = merge_trees(
            self.objects,
            # Not the common ancestor: after an undo or a reset that would be older than the base,
            # and this commit would bring back what was taken away.
            tree_of(self.objects, self.base),
            mine,
            tree_of(self.objects, tip),
            drivers=self.repository.drivers,
            context=MergeContext(True, "fail", (generation + 1, generation)),
            unchanged=self.unchanged,
        )
        raise_conflicts(
            merged.conflicts,
            f"branch {self.branch!r} moved from {self.base or 'nothing':.12} to "
            f"{tip or 'nothing':.12} while committing",
            "Look with `tensorrepo diff`, then stage again on the new tip.",
        )
        return merged.root

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.abort()


def begin(
    repository: Repository,
    branch: str,
    *,
    unchanged: Iterable[str] = (),
    pin: View | None = None,
    base: Digest | None = None,
    space: str = BRANCHES,
) -> Transaction:
    """Pin the log and the branch's commit, and start a transaction on them.

    Args:
        repository: where to commit.
        branch: which branch; one that does not exist yet is made by its first commit.
        unchanged: paths that this change relies on: a commit that finds them changed conflicts.
        pin: the view to work from, instead of the newest.
        base: the commit to work from, instead of the branch's at the pin.
        space: of refs, in which `branch` is a name.
    """
    view = pin or repository.log.refresh()
    if view.state.read_only_reason:
        raise UnsupportedError(f"{repository.url} is read-only here: {view.state.read_only_reason}")
    base = base or view.state.refs.get(check_ref(space + branch))
    writer = ObjectWriter(repository.objects, view.state.graves)
    return Transaction(repository, branch, view, base, tuple(unchanged), writer, space=space)
