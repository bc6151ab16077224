"""Directory of served repositories: names and URLs in the database, and those that are open."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from sqlalchemy import (
    ColumnElement,
    Connection,
    RowMapping,
    Table,
    and_,
    delete,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from tensorrepo.api.access.grants import check_repository_name
from tensorrepo.api.database import tables
from tensorrepo.api.database.connection import Database
from tensorrepo.api.repositories.opening import FRESH_SECONDS, ServedRepository, erase, open_served
from tensorrepo.api.settings import Settings
from tensorrepo.api.single_flight import OpenedByKey
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import ConflictError, Error, NotFoundError, StorageError

_LOGGER = logging.getLogger(__name__)
UNDELETE_DAYS: Final = 14
UNDELETE_NS: Final = UNDELETE_DAYS * 86400 * 10**9
# What belongs to a repository by its name, and by what else each row is told from others.
_OF_NAMES: Final[tuple[tuple[Table, tuple[str, ...]], ...]] = (
    (tables.grants, ("user", "refs")),
    (tables.group_grants, ("group", "refs")),
    (tables.live_runs, ("run",)),
    (tables.live_points, ("run", "batch")),
    (tables.audit_anchors, ()),
    (tables.oci_digests, ("key",)),
)


@dataclass(frozen=True, slots=True)
class Listed:
    """One repository of the directory."""

    name: str
    url: str
    description: str
    created_ns: int


@dataclass(frozen=True, slots=True)
class RemovedRepository:
    """One that was deleted, and until when (UTC in ns) it can come back."""

    name: str
    until_ns: int


class Directory:
    """The repositories of a service, each opened when it is first asked for. Thread-safe."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        environment: Mapping[str, str],
        *,
        clock: Callable[[], int] = time.time_ns,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._settings, self._environment = database, settings, environment
        self._clock = clock
        self._timer = timer
        self._open: dict[str, ServedRepository] = {}
        self._fresh_until: dict[str, float] = {}
        # By URL, which a renamed repository keeps, and by the time when it was made: at the URL of
        # one that was erased there may be another one, of which the old one's log knows nothing.
        self._cores = OpenedByKey[tuple[str, int], RepositoryCore]()
        self._lock = threading.Lock()

    def listed(self) -> list[Listed]:
        """Repositories by name."""
        table = tables.repositories
        with self._database.read() as connection:
            rows = connection.execute(
                select(table).where(table.c.deleted_ns.is_(None)).order_by(table.c.name)
            )
            return [_listed(row) for row in rows.mappings()]

    def find(self, name: str) -> Listed:
        """Raises NotFoundError."""
        table = tables.repositories
        with self._database.read() as connection:
            row = connection.execute(
                select(table).where(table.c.name == name, table.c.deleted_ns.is_(None))
            )
            found = row.mappings().first()
        if found is None:
            raise NotFoundError(f"there is no repository {name!r} here")
        return _listed(found)

    def known(self, name: str) -> ServedRepository | None:
        """An open repository that was there a second ago; None: `open` looks, which reads."""
        known = self._open.get(name)
        is_fresh = known is not None and self._timer() < self._fresh_until.get(name, 0.0)
        return known if is_fresh else None

    def open(self, name: str) -> ServedRepository:
        """The repository of that name. Raises NotFoundError."""
        known = self.known(name)
        if known is not None:
            return known
        try:
            listed = self.find(name)
        except NotFoundError:
            self._open.pop(name, None)  # renamed or deleted, by whichever process
            raise
        # Not under the lock: a store that gives no answer holds up those alone who ask for it.
        core = self._cores.get((listed.url, listed.created_ns), partial(self._core_of, listed))
        with self._lock:
            known = self._open.get(name)
            if known is None or known.core is not core:
                known = ServedRepository(name, core)
                self._open[name] = known
            self._fresh_until[name] = self._timer() + FRESH_SECONDS
        return known

    def without_place(self, text: str, name: str) -> str:
        """`text` with the name of a repository in place of where it lies."""
        known = self._open.get(name)
        return text if known is None else text.replace(known.core.backend.url, name)

    def renamed(self, old: str) -> str | None:
        """What a repository is called now that was called `old`; None: none was."""
        table = tables.former_names
        with self._database.read() as connection:
            row = connection.execute(select(table.c.name).where(table.c.old == old)).first()
        return None if row is None else str(row[0])

    def describe(self, name: str, description: str) -> None:
        """Say something else about a repository."""
        self.find(name)
        table = tables.repositories
        with self._database.write() as connection:
            connection.execute(
                update(table).where(table.c.name == name).values(description=description)
            )

    def rename(self, old: str, new: str) -> None:
        """Give a repository another name. The old one leads to it.

        Grants, tokens, and what trainings logged that is not in the repository yet go along.

        Raises:
            NotFoundError: there is none.
            ConflictError: the new name is taken.
        """
        check_repository_name(new)
        self.find(old)
        self._refuse_taken(new)
        table, former = tables.repositories, tables.former_names
        with self._database.write() as connection:
            connection.execute(update(table).where(table.c.name == old).values(name=new))
            connection.execute(delete(former).where(former.c.old.in_([old, new])))
            connection.execute(insert(former).values(old=old, name=new))
            for owned, by in _OF_NAMES:
                _move_rows(connection, owned, by, old, new)
            _rename_scopes(connection, old, new)
        self._forget(old)

    def remove(self, name: str) -> None:
        """Delete a repository: nobody sees it from now on, and for 14 days it can come back."""
        self.find(name)
        self._mark(name, self._clock())
        self._forget(name)

    def removed(self) -> list[RemovedRepository]:
        """Repositories that were deleted and can come back."""
        table = tables.repositories
        asked = select(table).where(table.c.deleted_ns > self._clock() - UNDELETE_NS)
        with self._database.read() as connection:
            rows = connection.execute(asked.order_by(table.c.name)).mappings()
            return [
                RemovedRepository(str(row["name"]), int(row["deleted_ns"]) + UNDELETE_NS)
                for row in rows
            ]

    def undelete(self, name: str) -> Listed:
        """Bring a deleted repository back. Raises NotFoundError after 14 days."""
        if name not in {one.name for one in self.removed()}:
            raise NotFoundError(f"no repository {name!r} was deleted within {UNDELETE_DAYS} days")
        self._mark(name, None)
        return self.find(name)

    def expire(self) -> list[str]:
        """Forget repositories that were deleted more than 14 days ago; gives their names.

        What lies in the service's own storage is erased; what was served from elsewhere stays.
        """
        table = tables.repositories
        asked = select(table).where(table.c.deleted_ns <= self._clock() - UNDELETE_NS)
        with self._database.read() as connection:
            gone = [_listed(row) for row in connection.execute(asked).mappings()]
        return [one.name for one in gone if self._expires(one)]

    def _expires(self, one: Listed) -> bool:
        """Forget a repository; False: its store does not let it be erased, which is logged."""
        table, own = tables.repositories, f"{self._settings.storage_url.rstrip('/')}/"
        try:
            if one.url.startswith(own):
                erase(one.url, environment=self._environment)
        except Error as error:
            _LOGGER.warning("%s, which was deleted, cannot be erased yet: %s", one.name, error)
            return False
        with self._database.write() as connection:
            connection.execute(delete(table).where(table.c.name == one.name))
            for owned, _ in _OF_NAMES:  # whoever is given the name next begins with nothing
                connection.execute(delete(owned).where(owned.c.repository == one.name))
        core = self._cores.drop((one.url, one.created_ns))
        if core is not None:
            core.close()
        return True

    def _mark(self, name: str, deleted_ns: int | None) -> None:
        table = tables.repositories
        with self._database.write() as connection:
            connection.execute(
                update(table).where(table.c.name == name).values(deleted_ns=deleted_ns)
            )

    def _forget(self, name: str) -> None:
        """Open it anew when it is asked for again. Whoever works with it goes on."""
        with self._lock:
            self._open.pop(name, None)
            self._fresh_until.pop(name, None)

    def create(self, name: str, *, description: str = "") -> Listed:
        """Make a repository in the service's storage. Raises ConflictError for a taken name."""
        check_repository_name(name)
        self._refuse_taken(name)
        url = place_of(self._settings.storage_url, name)
        if self._is_used(url):  # by one that was called so before
            url = _beside(url)
        try:
            self._core(url, create=True).close()
        except ConflictError:  # of a process that was killed before it listed what it made
            self._refuse_taken(name)
            url = _beside(url)
            self._core(url, create=True).close()
        return self.add(name, url, description=description)

    def add(self, name: str, url: str, *, description: str = "") -> Listed:
        """Serve the repository that lies at `url`. Raises ConflictError for a taken name."""
        check_repository_name(name)
        self._refuse_taken(name)
        made = Listed(name, url, description, self._clock())
        values = {"name": name, "url": url, "description": description}
        former = tables.former_names
        try:
            with self._database.write() as connection:
                connection.execute(delete(former).where(former.c.old == name))
                made_now = insert(tables.repositories).values(**values, created_ns=made.created_ns)
                connection.execute(made_now)
        except IntegrityError:  # another process was first
            self._refuse_taken(name)
            raise
        return made

    def settle(self, name: str, url: str) -> None:
        """List what settings name: `name` is what lies at `url`.

        One that was renamed or deleted since stays so. One that was elsewhere is at `url` now.

        Raises:
            ConflictError: another was deleted, and keeps the name for a while.
        """
        table = tables.repositories
        with self._database.read() as connection:
            row = connection.execute(select(table).where(table.c.name == name)).mappings().first()
        if row is None:
            new_name = self.renamed(name)
            if new_name is None or self.find(new_name).url != url:
                self.add(name, url)
        elif row["url"] != url:
            if row["deleted_ns"] is not None:
                self._refuse_taken(name)
            _LOGGER.warning(
                "repository %s was at %s, and by the settings is at %s", name, row["url"], url
            )
            with self._database.write() as connection:
                connection.execute(update(table).where(table.c.name == name).values(url=url))

    def opened(self) -> list[RepositoryCore]:
        """Repositories that are open in this process."""
        return self._cores.values()

    def close(self) -> None:
        for core in self._cores.clear():
            core.close()
        with self._lock:
            self._open.clear()

    def _core_of(self, listed: Listed) -> RepositoryCore:
        try:
            return self._core(listed.url)
        except NotFoundError as error:
            name = listed.name
            _LOGGER.error("repository %s cannot be served: %s", name, error)  # noqa: TRY400  no bug
            raise StorageError(
                f"the service has no repository where {name!r} should lie. Whoever runs it finds "
                "the place in its log."
            ) from error

    def _core(self, url: str, *, create: bool = False) -> RepositoryCore:
        return open_served(
            url, data=self._settings.data, environment=self._environment, create=create
        )

    def _is_used(self, url: str) -> bool:
        table = tables.repositories
        with self._database.read() as connection:
            found = connection.execute(select(table.c.name).where(table.c.url == url)).first()
        return found is not None

    def _refuse_taken(self, name: str) -> None:
        table = tables.repositories
        with self._database.read() as connection:
            taken = connection.execute(
                select(table.c.deleted_ns).where(table.c.name == name)
            ).first()
        if taken is not None and taken[0] is not None:
            raise ConflictError(
                f"a repository {name!r} was deleted, and keeps its name for {UNDELETE_DAYS} days; "
                "undelete it, or choose another name"
            )
        if taken is not None:
            raise ConflictError(f"there is a repository {name!r} already; choose another name")


def _beside(url: str) -> str:
    return f"{url}.{secrets.token_hex(4)}"


def place_of(storage_url: str, name: str) -> str:
    """Where a repository of that name is made, below the service's own storage."""
    # No repository lies within another one: `team` would have what `team/objects` stores as its
    # own, list it, collect it, and be erased with it. No team is called `_`.
    folder = name if "/" in name else f"_/{name}"
    return f"{storage_url.rstrip('/')}/{folder}"


def _listed(row: RowMapping) -> Listed:
    return Listed(
        str(row["name"]), str(row["url"]), str(row["description"]), int(str(row["created_ns"]))
    )


def _move_rows(
    connection: Connection, table: Table, by: tuple[str, ...], old: str, new: str
) -> None:
    """Let rows about `old` be about `new`, in place of any that are so already."""
    columns = [table.c[name] for name in by]
    moved = select(*columns, table.c.repository).where(_of(table, old))
    for row in connection.execute(moved).all():
        same = [column == value for column, value in zip(columns, row[:-1], strict=True)]
        connection.execute(delete(table).where(and_(_of(table, new), *same)))
    connection.execute(update(table).where(_of(table, old)).values(repository=new))


def _of(table: Table, repository: str) -> ColumnElement[bool]:
    return table.c.repository == repository


def _rename_scopes(connection: Connection, old: str, new: str) -> None:
    """Let tokens that are for a repository alone be for it by its new name."""
    table = tables.tokens
    rows = connection.execute(select(table.c.hash, table.c.scope).where(table.c.scope.is_not(None)))
    for hashed, scope in rows.all():
        if any(at == old for at, _, _ in scope or ()):
            changed = [[new if at == old else at, do, refs] for at, do, refs in scope]
            connection.execute(update(table).where(table.c.hash == hashed).values(scope=changed))
