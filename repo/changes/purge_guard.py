"""Guard against purged content: what was erased comes back under no new digest.

The digests of what was purged are refused by the store (`ObjectStore.refuse_purged`). A writer who
began before, or a clone that still has the data, may put the same rows into a new object: so what
each kind of entry holds is looked at, by who knows the kind, before a ref leads to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, runtime_checkable

from msgspec.structs import replace

from tensorrepo.repo.errors import NotFoundError, PurgedError
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.history.merge_trees import Drivers, MergeDriver
from tensorrepo.repo.history.trees import EMPTY_TREE, Entry, diff
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import ObjectSource

Standing = Callable[[Digest], Digest]  # what stands for an object, or will by the same record


@runtime_checkable
class KnowsPurged(MergeDriver, Protocol):
    """A merge driver that can tell whether an entry holds what was purged."""

    def held_purged(
        self, objects: ObjectSource, path: str, entry: Entry, state: State
    ) -> str | None:
        """What an entry holds that `state` says was purged, in words; None: nothing."""


def refuse_held(
    objects: ObjectSource,
    drivers: Drivers,
    state: State,
    before: bytes,
    after: bytes,
    what: str,
    standing: Standing = lambda digest: digest,
) -> None:
    """Raise where a tree brings what was purged, beside another tree.

    What a tree names is looked at as what `standing` says.

    Raises:
        PurgedError: names the entry, and what it holds.
    """
    if not state.purged_rows and not state.purged_columns:
        return
    for path, entry in _brought(objects, before, after):
        driver = drivers.get(entry.kind)
        if not isinstance(driver, KnowsPurged):
            continue
        living = replace(entry, digest=standing(entry.digest))
        if (held := driver.held_purged(objects, path, living, state)) is not None:
            raise PurgedError(
                f"{what}: {path} holds {held}, which the log purged (`tensorrepo purge --list`). "
                "Nothing was changed. Read what is there now, and make the change on that; a clone "
                "that still has it is purged by the same command."
            )


def refuse_received(
    objects: ObjectSource,
    drivers: Drivers,
    state: State,
    commits: Iterable[Digest],
    what: str,
    standing: Standing = lambda digest: digest,
) -> None:
    """Raise where one of `commits` brings what was purged, beside its first parent."""
    if not state.purged_rows and not state.purged_columns:
        return
    for digest in commits:
        commit = read_commit(objects, digest)
        try:
            before = read_commit(objects, commit.parents[0]).tree if commit.parents else EMPTY_TREE
        except NotFoundError:
            before = EMPTY_TREE
        told = f"{what}, commit {digest:.12}"
        refuse_held(objects, drivers, state, before, commit.tree, told, standing)


def _brought(objects: ObjectSource, before: bytes, after: bytes) -> Iterator[tuple[str, Entry]]:
    for change in diff(objects, before, after):
        if change.new is not None:
            yield change.path, change.new
