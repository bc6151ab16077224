"""How does the catalog come to tell what the repository holds?

What it holds is a function of the repository's state at one record: the log up to there, and what
the refs and retained values of that state lead to. So a catch-up compares two states, the one at
its cursor and the newest. It does not replay the records between: what they made may have been
collected since.

One transaction does all of it. Readers see the state before or the one after, a crash leaves the
one before, and of two processes that catch up at once the second finds nothing left to do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import update

from tensorrepo.query import tables
from tensorrepo.query.catalog import Cursor, read_cursor
from tensorrepo.query.sync import commits
from tensorrepo.query.sync.contents import Contents
from tensorrepo.query.sync.loader import Loader, chunks, present
from tensorrepo.query.sync.log import log_rows
from tensorrepo.query.sync.refs import move_refs
from tensorrepo.query.sync.registry import move_registry
from tensorrepo.query.sync.runs import move_runs
from tensorrepo.query.sync.sweep import delete_unused_placements, sweep
from tensorrepo.repo.errors import InvalidInputError, RepositoryRewound
from tensorrepo.repo.pastcommits import PastCommits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from sqlalchemy import Connection

    from tensorrepo.query.catalog import Catalog
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.log import View
    from tensorrepo.repo.repository import Repository
    from tensorrepo.repo.state import State

REBUILD: Final = "`tensorrepo catalog rebuild` makes it anew."


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """What a catch-up did: from which record to which, and how much went in and out."""

    start: int
    generation: int
    rows: int = 0
    commits: int = 0
    commits_gone: int = 0


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a catch-up is; `records` of how many of the log are read."""

    records: int
    of_records: int
    commits: int
    rows: int


Told = "Callable[[Progress], None]"


def catch_up(
    repository: Repository,
    catalog: Catalog,
    *,
    progress: Callable[[Progress], None] | None = None,
) -> CaughtUp:
    """Make the catalog tell what the repository holds now. Cheap when nothing happened.

    Args:
        repository: which.
        catalog: with its tables in place.
        progress: is called every so often, from the thread that calls this.

    Raises:
        InvalidInputError: the catalog is of another repository.
        RepositoryRewound: the catalog has seen records that are not in this log.
        StorageError: the database cannot be used.
    """
    view = repository.log.refresh()
    with catalog.reading() as connection:
        cursor = read_cursor(connection)
    if cursor is not None and is_current(repository, cursor, view):
        return CaughtUp(view.generation, view.generation)
    with catalog.writing() as connection:
        return fill(repository, connection, progress)


def rebuild(
    repository: Repository,
    catalog: Catalog,
    *,
    progress: Callable[[Progress], None] | None = None,
) -> CaughtUp:
    """Empty all tables and fill them again. Others see what was there until it is done."""
    with catalog.writing() as connection:
        clear(connection)
        return fill(repository, connection, progress)


def is_current(repository: Repository, cursor: Cursor, view: View) -> bool:
    """Whether there is nothing to catch up with.

    Raises:
        InvalidInputError, RepositoryRewound: the catalog does not fit this repository.
    """
    check_cursor(repository, cursor, view)
    return cursor.generation >= view.generation


def check_cursor(repository: Repository, cursor: Cursor, view: View) -> None:
    """Whether what the catalog saw is in this log.

    Raises:
        InvalidInputError: it is of another repository.
        RepositoryRewound: its record is another one here, or not here.
    """
    check_owner(repository, cursor.repository)
    if cursor.generation > view.generation:
        view = repository.log.refresh()  # another process may have seen more than we had
    known = cursor.generation <= view.generation
    if known and cursor.generation == view.generation:
        known = cursor.digest == view.digest
    elif known:
        known = cursor.digest == repository.log.digest_of(cursor.generation)
    if not known:
        raise RepositoryRewound(
            f"the catalog has seen log record {cursor.generation} with digest "
            f"{cursor.digest:.12}; {repository.url}, now at record {view.generation}, has not. "
            f"An older copy was put in its place, or somebody changed the past: find out who. "
            f"{REBUILD}"
        )


def check_owner(repository: Repository, owner: str | None) -> None:
    """Whether a catalog that tells of repository `owner`, or None: of none yet, is of this one.

    Raises:
        InvalidInputError: it is of another one.
    """
    if owner not in (None, repository.id):
        raise InvalidInputError(
            f"the catalog is of repository {owner}, {repository.url} is {repository.id}. Give "
            "each repository a catalog of its own: {id} in its URL stands for the repository's id."
        )


def clear(connection: Connection) -> None:
    """Empty all tables."""
    for table in tables.METADATA.tables.values():
        connection.execute(table.delete())


def fill(
    repository: Repository,
    connection: Connection,
    progress: Callable[[Progress], None] | None = None,
) -> CaughtUp:
    """Do the work, in a transaction that holds the lock."""
    view = repository.log.refresh()
    cursor = read_cursor(connection)
    if cursor is not None and is_current(repository, cursor, view):
        return CaughtUp(cursor.generation, cursor.generation)
    if cursor is not None and cursor.shallow != view.state.shallow:
        clear(connection)  # commits have other parents now, and other changes with them
        cursor = None
    base = repository.log.view_at(0 if cursor is None else cursor.generation)
    return _Filling(repository, connection, base, view, progress).run(cursor)


class _Filling:
    """One catch-up, from the state `base` to the state `view`."""

    def __init__(
        self,
        repository: Repository,
        connection: Connection,
        base: View,
        view: View,
        progress: Callable[[Progress], None] | None,
    ) -> None:
        self.repository, self.connection = repository, connection
        self.base, self.view = base, view
        self._progress = progress
        self._records = self._commits = 0
        self.loader = Loader(connection, self._told)
        self.contents = Contents(repository.objects, view.state, self.loader)

    def run(self, cursor: Cursor | None) -> CaughtUp:
        self._read_log()
        orphaned = self._add_commits()
        self.contents.flush()
        self._supersede()
        old, new = self.base.state.refs, self.view.state.refs
        move_refs(self.repository.objects, self.loader, old, new)
        self.loader.flush()
        move_registry(self.repository, self.loader, self.base, self.view)
        move_runs(self.repository, self.loader, old, new)
        gone = sweep(self.connection, orphaned, _roots(self.view.state))
        self._move_cursor(cursor)
        return CaughtUp(
            self.base.generation, self.view.generation, self.loader.rows, self._commits, gone
        )

    def _told(self, rows: int) -> None:
        if self._progress is not None:
            total = self.view.generation - self.base.generation
            self._progress(Progress(self._records, total, self._commits, rows))

    def _read_log(self) -> None:
        for rows in log_rows(self.repository.log, self.base, self.view.generation + 1):
            self.loader.add(rows)
            self._records += 1

    def _add_commits(self) -> set[Digest]:
        """Add what the new roots lead to; gives the old ones that may lead nowhere now."""
        before, now = _roots(self.base.state), _roots(self.view.state)
        dropped = before - now
        objects, shallow = self.repository.objects, self.view.state.shallow
        past = self.repository.past or PastCommits(self.repository.log)
        walk = commits.Walk(objects, self._known, shallow, past)
        for new in walk.new(now - before):
            self._commits += 1
            dropped.difference_update(new.commit.parents)  # its child is here, and stays
            self.loader.add(commits.rows_of(new))
            self.contents.add(change.new for change in new.changes if change.new is not None)
        return dropped

    def _known(self, digests: Iterable[Digest]) -> set[str]:
        if not self.base.generation:
            return set()
        return present(self.connection, tables.commit.c.digest, digests)

    def _supersede(self) -> None:
        """Point at the placements that took the place of others since."""
        place, state = tables.placement, self.view.state
        newer = state.supersedes.keys() - self.base.state.supersedes.keys()
        for some in chunks(sorted(present(self.connection, place.c.placement, newer))):
            moved = {digest: state.resolve(digest) for digest in some}
            self.contents.place_all(moved.values())
            for old, new in moved.items():
                change = update(place).where(place.c.placement == old).values(placement=new)
                self.connection.execute(change)
            delete_unused_placements(self.connection, moved)

    def _move_cursor(self, cursor: Cursor | None) -> None:
        view, table = self.view, tables.cursor
        row = {
            "repository": self.repository.id,
            "generation": view.generation,
            "digest": view.digest,
            "shallow": json.dumps(sorted(view.state.shallow)),
        }
        if cursor is None:
            self.connection.execute(table.insert().values(id=1, **row))
            return
        moved = self.connection.execute(
            update(table)
            .where(table.c.generation == cursor.generation, table.c.digest == cursor.digest)
            .values(**row)
        )
        assert moved.rowcount == 1, "the cursor is locked"


def _roots(state: State) -> set[Digest]:
    """The commits from which everything in the catalog is reached."""
    return {*state.refs.values(), *state.retained}
