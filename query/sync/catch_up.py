"""Catalog sync: new commits walked, unused rows swept, and a comparison with a fresh catalog.

What it holds is a function of the repository's state at one record: the log up to there, and what
the refs and retained values of that state lead to. So a catch-up compares two states, the one at
its cursor and the newest. It does not replay the records between: what they made may have been
collected since.

One transaction does all of it. Readers see the state before or the one after, a crash leaves the
one before, and of two processes that catch up at once the second finds nothing left to do.

A commit stays while a ref or a retained value names it, or a commit that stays has it as a parent.
History has no circles, so it is enough to look at what was dropped, and then at the parents of what
went: the cost is that of the garbage, not of the history.

To verify a catalog, another one is made in a temporary file, and both are read in one order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from heapq import heappop, heappush
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from sqlalchemy import Column, Connection, Table, delete, select, update

from tensorrepo.query.catalog import tables
from tensorrepo.query.catalog.database import CatalogDatabase, Cursor, connect, read_cursor
from tensorrepo.query.chunks import chunks
from tensorrepo.query.sync.contents import CONTENTS, Contents
from tensorrepo.query.sync.loader import Loader, TableRows, as_json, delete_where, present
from tensorrepo.query.sync.refs import log_rows, move_refs, move_registry, move_runs
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, InvalidInputError, RepositoryRewound
from tensorrepo.repo.history.commits import Commit, as_known, decode_commit, read_commit
from tensorrepo.repo.history.trees import EMPTY_TREE, PathChange, TreeChanges
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.past_commits import PastCommits
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import Kind, ObjectSource, decode_payload

_GRAPH_COLUMNS = (
    tables.graph.c.digest, tables.node.c.graph, tables.edge.c.graph, tables.node_parameter.c.graph,
)  # fmt: skip

_TENSOR_COLUMNS = (tables.block_tensor.c.block, tables.block_piece.c.block)
_MEMBER_COLUMNS = (tables.block_member.c.block, tables.block_base.c.block)


def sweep(connection: Connection, dropped: Iterable[str], roots: Collection[str]) -> int:
    """Delete what nothing reaches since `dropped` are no roots; gives how many commits went.

    Args:
        connection: in a transaction, all new rows sent.
        dropped: commits that were roots.
        roots: what is a root now.
    """
    pending = {commit for commit in dropped if commit not in roots}
    count = 0
    while pending:
        some = next(chunks(sorted(pending)))
        pending.difference_update(some)
        gone = sorted(set(some) - present(connection, tables.commit_parent.c.parent, some))
        if not gone:
            continue
        gone = sorted(present(connection, tables.commit.c.digest, gone))
        link = tables.commit_parent
        parents = present(connection, link.c.commit, gone, link.c.parent)
        _delete_commits(connection, gone)
        count += len(gone)
        pending |= {parent for parent in parents if parent not in roots}
    return count


def _delete_commits(connection: Connection, gone: list[str]) -> None:
    change = tables.entry_change
    things = present(connection, change.c.commit, gone, change.c.new)
    for column in (tables.commit.c.digest, tables.commit_parent.c.commit, change.c.commit):
        delete_where(connection, column, gone)
    delete_things(connection, things)


def delete_things(connection: Connection, things: Iterable[str]) -> None:
    """Delete the rows of those datasets, models, ... that no change made any more."""
    for some in chunks(things):
        unused = sorted(set(some) - present(connection, tables.entry_change.c.new, some))
        model = tables.model_version
        graphs = present(connection, model.c.digest, unused, model.c.graph)
        part = tables.model_block
        blocks = present(connection, part.c.model, unused, part.c.block)
        for content in CONTENTS.values():
            mine = sorted(present(connection, content.key, unused))
            for column in (content.key, *content.parts):
                delete_where(connection, column, mine)
        _delete_unused(connection, graphs, tables.model_version.c.graph, _GRAPH_COLUMNS)
        _delete_unused(connection, blocks, part.c.block, _TENSOR_COLUMNS)
        _delete_placements(connection, some)


def _delete_placements(connection: Connection, models: list[str]) -> None:
    """Of these models, the placements that no change names any more."""
    place, change = tables.placement, tables.entry_change
    named = (
        select(change.c.commit)
        .where(change.c.new == place.c.model, change.c.storage == place.c.stated)
        .exists()
    )
    of_these = place.c.model.in_(models)
    gone = connection.execute(select(place).where(of_these, ~named)).all()
    connection.execute(delete(place).where(of_these, ~named))
    delete_unused_placements(connection, {row.placement for row in gone})


def delete_unused_placements(connection: Connection, placements: Iterable[str]) -> None:
    """Delete what is known of those placements that no model has any more."""
    part, wanted = tables.placement_block, set(placements)
    blocks = present(connection, part.c.placement, wanted, part.c.block)
    _delete_unused(connection, wanted, tables.placement.c.placement, (part.c.placement,))
    _delete_unused(connection, blocks, part.c.block, _MEMBER_COLUMNS)


def _delete_unused(
    connection: Connection, values: Iterable[str], used: Column[Any], columns: Iterable[Column[Any]]
) -> None:
    wanted = set(values)
    unused = sorted(wanted - present(connection, used, wanted))
    for column in columns:
        delete_where(connection, column, unused)


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
class CatchUpProgress:
    """How far a catch-up is; `records` of how many of the log are read."""

    records: int
    of_records: int
    commits: int
    rows: int


def catch_up(
    repository: RepositoryCore,
    catalog: CatalogDatabase,
    *,
    progress: Callable[[CatchUpProgress], None] | None = None,
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
    if cursor is not None and check_cursor(repository, cursor, view):
        return CaughtUp(view.generation, view.generation)
    with catalog.writing() as connection:
        return fill(repository, connection, progress)


def rebuild(
    repository: RepositoryCore,
    catalog: CatalogDatabase,
    *,
    progress: Callable[[CatchUpProgress], None] | None = None,
) -> CaughtUp:
    """Empty all tables and fill them again. Others see what was there until it is done."""
    with catalog.writing() as connection:
        clear(connection)
        return fill(repository, connection, progress)


def check_cursor(repository: RepositoryCore, cursor: Cursor, view: LogView) -> bool:
    """Whether there is nothing to catch up with; what the catalog saw is in this log.

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
    return cursor.generation >= view.generation


def check_owner(repository: RepositoryCore, owner: str | None) -> None:
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


def erase(connection: Connection) -> None:
    """Empty all tables, so that nothing of them is left in the free pages of a SQLite file."""
    if connection.dialect.name == tables.SQLITE:
        connection.exec_driver_sql("PRAGMA secure_delete = ON")
    clear(connection)


def fill(
    repository: RepositoryCore,
    connection: Connection,
    progress: Callable[[CatchUpProgress], None] | None = None,
) -> CaughtUp:
    """Do the work, in a transaction that holds the lock."""
    view = repository.log.refresh()
    cursor = read_cursor(connection)
    if cursor is not None and check_cursor(repository, cursor, view):
        return CaughtUp(cursor.generation, cursor.generation)
    if cursor is not None and cursor.shallow != view.state.shallow:
        clear(connection)  # commits have other parents now, and other changes with them
        cursor = None
    base = repository.log.view_at(0 if cursor is None else cursor.generation)
    if cursor is not None and base.state.purges.keys() != view.state.purges.keys():
        erase(connection)  # rows of what was purged, under digests that others have as well
        cursor, base = None, repository.log.view_at(0)
    return _Filling(repository, connection, base, view, progress).run(cursor)


MOST_AHEAD: Final = 1024


@dataclass(frozen=True, slots=True)
class NewCommit:
    """A commit, and what it changed against its first parent."""

    digest: Digest
    commit: Commit
    changes: tuple[PathChange, ...]


class Walk:
    """The commits that lead to some tips and are not known yet, children first.

    To ask the database about each commit would cost more than to read it: the walk goes some steps
    ahead, asks about all of them at once, and drops what was known already.

    Args:
        objects: where they are stored.
        known: gives those of some digests that the catalog has.
        shallow: commits whose parents the repository does not have.
        past: commits that need not be read one by one; also where objects are near, as a file
            for each takes ten times as long as a place in a segment.
    """

    def __init__(
        self,
        objects: ObjectSource,
        known: Callable[[Iterable[Digest]], set[str]],
        shallow: frozenset[Digest],
        past: PastCommits | None = None,
    ) -> None:
        self._known = known
        self._shallow = shallow
        self._objects = objects
        self._past = past
        self._trees = TreeChanges(objects)
        self._heap: list[tuple[int, Digest]] = []
        self._waiting: dict[Digest, Commit] = {}

    def new(self, tips: Iterable[Digest]) -> Iterator[NewCommit]:
        """All of them, each once; children come before their parents."""
        wanted = set(tips)
        for digest in sorted(wanted - self._known(wanted)):
            self._push(digest)
        steps = 1
        while self._waiting:
            ahead = [self._next() for _ in range(steps) if self._waiting]
            known = self._known([*(digest for digest, _, _ in ahead), *self._waiting])
            for one in self._waiting.keys() & known:
                del self._waiting[one]
            for digest, commit, before in ahead:
                if digest not in known:
                    yield NewCommit(digest, commit, self._changes(commit, before))
            steps = max(min(2 * steps, MOST_AHEAD), len(self._waiting))

    def _next(self) -> tuple[Digest, Commit, bytes]:
        """The waiting commit of the largest generation, whose parents wait now; and their tree."""
        while (digest := heappop(self._heap)[1]) not in self._waiting:
            pass  # was found to be known
        commit = self._waiting.pop(digest)
        # Those that the repository has; all are read now, so that none is read again for its tree.
        parents = () if digest in self._shallow else commit.parents
        trees = [(self._waiting.get(parent) or self._push(parent)).tree for parent in parents]
        return digest, commit, trees[0] if trees else EMPTY_TREE

    def _push(self, digest: Digest) -> Commit:
        commit = self._waiting[digest] = self._read(digest)
        heappush(self._heap, (-commit.generation, digest))
        return commit

    def _read(self, digest: Digest) -> Commit:
        data = None if self._past is None else self._past.get(digest)
        if data is not None:
            with suppress(Error):  # who reads the object itself says what is wrong with it
                kind, payload = decode_payload(data)
                if kind is Kind.COMMIT:
                    return as_known(self._objects, digest, decode_commit(payload))
        return read_commit(self._objects, digest)

    def _changes(self, commit: Commit, before: bytes) -> tuple[PathChange, ...]:
        changes = self._trees.between(before, commit.tree)
        if commit.changed is None:
            return changes
        # A checkpoint, or a registered version, holds its own entries alone: it did not remove all
        # others of the commit that it stands beside. What a commit says that it changed tells so.
        own = set(commit.changed)
        return tuple(one for one in changes if one.new is not None or one.path in own)


def _commit_rows(new: NewCommit) -> TableRows:
    commit = new.commit
    told = (commit.generation, commit.author, commit.message, commit.time_ns)
    yield tables.commit, (new.digest, *told, as_json(dict(commit.metadata)))
    for place, parent in enumerate(commit.parents):
        yield tables.commit_parent, (new.digest, place, parent)
    for change in new.changes:
        old, now = change.old, change.new
        either = now or old
        assert either is not None, "a change has a side"
        digests = (None if old is None else old.digest, None if now is None else now.digest)
        storage = None if now is None else now.storage
        row = (new.digest, change.path, either.kind.label, *digests, storage)
        yield tables.entry_change, row


class _Filling:
    """One catch-up, from the state `base` to the state `view`."""

    def __init__(
        self,
        repository: RepositoryCore,
        connection: Connection,
        base: LogView,
        view: LogView,
        progress: Callable[[CatchUpProgress], None] | None,
    ) -> None:
        self.repository, self.connection = repository, connection
        self.base, self.view = base, view
        self._progress = progress
        self._records = self._commits = 0
        self.loader = Loader(connection, self._told)
        self.contents = Contents(repository.objects, view.state, self.loader)

    def run(self, cursor: Cursor | None) -> CaughtUp:
        for rows in log_rows(self.repository.log, self.base, self.view.generation + 1):
            self.loader.add(rows)
            self._records += 1
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
            self._progress(CatchUpProgress(self._records, total, self._commits, rows))

    def _add_commits(self) -> set[Digest]:
        """Add what the new roots lead to; gives the old ones that may lead nowhere now."""
        before, now = _roots(self.base.state), _roots(self.view.state)
        dropped = before - now
        objects, shallow = self.repository.objects, self.view.state.shallow
        past = self.repository.past or PastCommits(self.repository.log)
        walk = Walk(objects, self._known, shallow, past)
        for new in walk.new(now - before):
            self._commits += 1
            dropped.difference_update(new.commit.parents)  # its child is here, and stays
            self.loader.add(_commit_rows(new))
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
            self.contents.loader.flush()  # blocks that the new ones share with the old are used
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


_FETCHED: Final = 1000  # rows at a time
MOST_SHOWN: Final = 3  # of each table


@dataclass(frozen=True, slots=True)
class Difference:
    """How a table differs: rows that are too many, rows that are missing, some of each."""

    table: str
    extra: int
    missing: int
    examples: tuple[str, ...]


def differences(repository: RepositoryCore, catalog: CatalogDatabase) -> Iterator[Difference]:
    """The tables in which the catalog is not what it should be."""
    with TemporaryDirectory() as folder:
        fresh = CatalogDatabase(connect(f"sqlite:///{Path(folder) / 'fresh.db'}"))
        try:
            tables.METADATA.create_all(fresh.engine)
            catch_up(repository, fresh)
            with catalog.reading() as mine, fresh.reading() as right:
                yield from compare(mine, right)
        finally:
            fresh.dispose()


def compare(mine: Connection, right: Connection) -> Iterator[Difference]:
    """The tables whose rows differ between two catalogs."""
    for table in tables.METADATA.tables.values():
        found = _compare_table(table, mine, right)
        if found.extra or found.missing:
            yield found


def _compare_table(table: Table, mine: Connection, right: Connection) -> Difference:
    """Merge both sides, each in the order of its key."""
    sides = [_rows(connection, table) for connection in (mine, right)]
    heads = [next(side, None) for side in sides]
    counts = [0, 0]
    examples: list[str] = []
    while any(heads):
        one, two = heads
        if one == two:
            heads = [next(side, None) for side in sides]
            continue
        # The one that comes first has no twin; of two with one key, both are wrong by themselves.
        first = 0 if two is None or (one is not None and one[0] <= two[0]) else 1
        counts[first] += 1
        if len(examples) < MOST_SHOWN:
            examples.append(f"{'extra' if first == 0 else 'missing'} {heads[first]!s:.300}")
        heads[first] = next(sides[first], None)
    return Difference(table.name, counts[0], counts[1], tuple(examples))


def _rows(connection: Connection, table: Table) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """(key, row) of all rows in the order of the key; text by its code points in both databases."""
    keys = list(table.primary_key.columns)
    places = [list(table.columns).index(key) for key in keys]
    query = select(table).order_by(*keys).execution_options(yield_per=_FETCHED)
    for row in connection.execute(query):
        yield tuple(row[place] for place in places), tuple(row)
