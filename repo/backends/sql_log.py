"""SQL log backend: keys below `log/` in PostgreSQL or SQLite, all others in a store.

A database commits a small record faster than an object store does. One table holds the logs of any
number of repositories; its primary key gives what the log stands on, a create with one winner. The
log is the same, byte for byte; only where its keys lie differs.

A read is repeated once on a new connection. A create is not: whether it happened is for the caller
to find out (`append`), but for what the server says that it refused.

Source:
    docs/spec/log.md, section "Log in SQL".
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, TypeVar

import msgspec

from tensorrepo.repo.backends.base import (
    Backend,
    CommonBackend,
    ReadsSmallFiles,
    StoredKey,
    StreamsRanges,
    Uploads,
    check_key,
    check_length,
    check_prefix,
)
from tensorrepo.repo.backends.postgres_connection import Question
from tensorrepo.repo.backends.sql_connections import SqlConnections, WriterTurn, shown
from tensorrepo.repo.errors import (
    CorruptError,
    Error,
    NotFoundError,
    RepositoryRewound,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.hashing.digests import record_digest
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.typed_decoding import from_json

T = TypeVar("T")

LOG_PREFIX: Final = "log/"
IDENTITY_KEY: Final = "repo.json"  # its bytes say that a log of this repository is here
VERSION_KEY: Final = "version"  # its bytes say of what version the rows of a repository are
VERSION: Final = b"1"
MARK_KEY: Final = "sql-log.json"
RESTORED: Final = (
    "the database of its log was restored from an older backup, without records that have been "
    "there. What they made is gone, and objects of older commits may have been collected since. It "
    "is read-only until `tensorrepo fsck --repair` has found every object of every ref."
)
_CHECKPOINTS: Final = "log/checkpoint/"
_SLOT: Final = re.compile(r"log/[0-9]{20}\.json")
_AFTER_SLOTS: Final = "log/:"  # ":" is the character behind "9"
_TABLE: Final = "tensorrepo_log"
_ROW: Final = f"SELECT key, value FROM {_TABLE} WHERE repository = ? AND key BETWEEN ? AND ?"  # noqa: S608
_PAGE: Final = 1000
_MARK_SECONDS: Final = 10.0  # a writer marks its records so often, besides its first and its last
_SHAPE: Final = (
    "CREATE TABLE IF NOT EXISTS tensorrepo_log (repository TEXT NOT NULL, key {text} NOT NULL, "
    "value {blob} NOT NULL, written DOUBLE PRECISION NOT NULL, PRIMARY KEY (repository, key))"
)


class LogMark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`sql-log.json` in the store: a record that the log has had, so that it must have it still."""

    generation: int
    digest: str
    version: Literal[1] = 1


class SqlLogBackend(CommonBackend):
    """A store whose keys below `log/` are in a SQL database.

    Args:
        store: holds all other keys.
        database: ``postgresql://...`` or ``sqlite:///path``.
        repository: id of the repository: tells its rows from those of others.
    """

    def __init__(self, store: Backend, database: str, repository: str) -> None:
        self.store = store
        self.database = database
        self.repository = repository
        self.url = store.url
        self.guarantee = store.guarantee
        self.local_root: Path | None = None  # a call that failed may yet land in the database
        self._sql = SqlConnections(database, f"the log of {store.url}", _TABLE)
        self._newest: tuple[str, bytes] = ("", b"")  # slot, of those that went by here
        self._marked = ""
        self._mark_due: float | None = None  # None: nothing was appended by this handle
        if isinstance(store, StreamsRanges):
            self.stream_range = store.stream_range  # of objects, which are in the store
        if isinstance(store, ReadsSmallFiles):
            self.small_files = store.small_files  # of objects, too
        self._marking = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return SqlLogBackend, (self.store, self.database, self.repository)

    @property
    def place(self) -> str:
        """Where the log is, for people: without user, password and options."""
        return shown(self.database)

    @property
    def is_sqlite(self) -> bool:
        return self._sql.is_sqlite

    def turn(self, first: Callable[[], Sequence[str]] = tuple) -> WriterTurn:
        """A place in the queue of this log's writers, on all machines; of PostgreSQL only.

        `first` gives the keys that will be read first in it, some slots in a row.
        """
        lock = int(record_digest(self.repository.encode())[:15], 16)
        return self._sql.turn(lock, lambda: self._first_question(first()))

    def _first_question(self, keys: Sequence[str]) -> Question | None:
        return self._question_for_row(keys) if _are_in_a_row(keys) else None

    def _question_for_row(self, keys: Sequence[str]) -> Question:
        return _ROW, (self.repository, keys[0], keys[-1])

    def prepare(self, identity: bytes) -> None:
        """Make the table, if need be, and room for the log of this repository."""
        if not self._has_table():  # who may not create tables may use one that is there
            text, blob = ("TEXT", "BLOB") if self.is_sqlite else ('TEXT COLLATE "C"', "BYTEA")
            try:
                self._sql.ask(_SHAPE.format(text=text, blob=blob))
            except StorageError:
                if not self._has_table():  # else another `init` was faster
                    raise
        self._insert(IDENTITY_KEY, identity)
        self._insert(VERSION_KEY, VERSION)

    def _has_table(self) -> bool:
        try:
            self._again(lambda: self._sql.ask(f"SELECT 1 FROM {_TABLE} LIMIT 1"))  # noqa: S608
        except NotFoundError:
            return False
        return True

    def forget(self) -> None:
        """Take the room back that was made for a repository that did not come to be."""
        query = f"DELETE FROM {_TABLE} WHERE repository = ?"  # noqa: S608
        self._sql.ask(query, (self.repository,), writes=True)

    def open_log(self, identity: bytes, keys: Iterable[str]) -> dict[str, bytes | None]:
        """Values of `keys`, once it is certain that this database has the log.

        Raises:
            NotFoundError: it has no log of this repository: it is another database.
            UnsupportedError: a newer tensorrepo made its rows.
        """
        found = self.read_many([IDENTITY_KEY, VERSION_KEY, *keys])
        if (version := found.pop(VERSION_KEY)) not in {VERSION, None}:
            raise UnsupportedError(
                f"the log of {self.url} in {self.place} has version {version!r:.20}, this "
                f"tensorrepo knows {VERSION!r}. Update tensorrepo."
            )
        if found.pop(IDENTITY_KEY) != identity:
            raise NotFoundError(
                f"the database {self.place} has no log of repository {self.repository} "
                f"({self.url}): it is another database, or was restored from before that. Set "
                "TENSORREPO_LOG, or `tensorrepo config --global log.url`, to the right one."
            )
        return found

    def is_restored(self) -> bool:
        """Whether the database was restored from a backup older than what the store has seen.

        The store knows a record of the log: it is marked there before an object is deleted, with
        each checkpoint, and by writers every few seconds. A log that has not that record was put
        back to before it.
        """
        try:
            mark = self._mark()
        except CorruptError:
            return True  # what it said is not known
        return mark is not None and self._lacks(mark)

    def accept_restored(self) -> None:
        """Let the log be what it is: mark its newest record, whatever was marked before."""
        with self._marking:
            query = f"SELECT max(key) FROM {_TABLE} WHERE repository = ? AND key < ?"  # noqa: S608
            rows = self._again(lambda: self._sql.ask(query, (self.repository, _AFTER_SLOTS)))
            newest = str(rows[0][0])
            if _SLOT.fullmatch(newest):
                self._newest = (newest, self.read(newest))
                self._write_mark()
            else:
                self.store.delete(MARK_KEY)

    def read_many(self, keys: Iterable[str]) -> dict[str, bytes | None]:
        """Values of keys of the log by one query; None for the absent."""
        wanted = [*keys]
        found: dict[str, bytes | None] = dict.fromkeys(wanted)
        if _are_in_a_row(wanted):
            return self.read_slots(wanted)
        for start in range(0, len(wanted), _PAGE // 2):
            part = [check_key(key) for key in wanted[start : start + _PAGE // 2]]
            marks = ",".join("?" * len(part))
            query = f"SELECT key, value FROM {_TABLE} WHERE repository = ? AND key IN ({marks})"  # noqa: S608
            rows = self._again(lambda q=query, p=part: self._sql.ask(q, (self.repository, *p)))  # type: ignore[misc]  # mypy takes no defaults in lambdas
            found |= {key: bytes(value) for key, value in rows}
        return self._seen(found)

    def read_slots(self, keys: Sequence[str]) -> dict[str, bytes | None]:
        """As `read_many`, of slots in a row."""
        question = self._question_for_row(keys)
        rows = self._again(lambda: self._sql.ask(*question))
        found: dict[str, bytes | None] = dict.fromkeys(keys)
        if rows:
            newest = max(rows)
            if newest[0] > self._newest[0]:
                self._newest = newest
            found.update(rows)
        return found

    def holds(self, key: str) -> bool:
        """Whether `key` is one of those in the database."""
        return key.startswith(LOG_PREFIX)

    def read(self, key: str) -> bytes:
        if not self.holds(key):
            return self.store.read(key)
        value = self.read_many([key])[key]
        if value is None:
            raise self.no_key(key)
        return value

    def read_range(self, key: str, start: int, stop: int) -> Buffer:
        if not self.holds(key):
            return self.store.read_range(key, start, stop)
        view = memoryview(self.read(key))[start:stop]
        check_length(f"{self.url}/{key}", start, stop, view.nbytes)
        return view

    def size(self, key: str) -> int | None:
        if not self.holds(key):
            return self.store.size(key)
        query = f"SELECT length(value) FROM {_TABLE} WHERE repository = ? AND key = ?"  # noqa: S608
        rows = self._again(lambda: self._sql.ask(query, (self.repository, check_key(key))))
        return rows[0][0] if rows else None

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        if not self.holds(key):
            return self.store.create(key, parts)
        value = b"".join(parts)
        created = self._insert(check_key(key), value)
        if created and (key.startswith(_CHECKPOINTS) or self._is_mark_due(key, value)):
            with suppress(Error):  # it is not needed now, as before a deletion
                self._advance_mark()
        return created

    def uploads(self) -> Uploads:
        return _Uploads(self)

    def overwrite(self, key: str, parts: Sequence[Buffer]) -> None:
        if not self.holds(key):
            self.store.overwrite(key, parts)
            return
        self._sql.ask(
            f"INSERT INTO {_TABLE} VALUES (?, ?, ?, ?) ON CONFLICT (repository, key) "  # noqa: S608
            "DO UPDATE SET value = excluded.value, written = excluded.written",
            (self.repository, check_key(key), b"".join(parts), time.time()),
            writes=True,
        )

    def delete(self, key: str) -> None:
        if not self.holds(key):
            self._advance_mark()
            self.store.delete(key)
            return
        query = f"DELETE FROM {_TABLE} WHERE repository = ? AND key = ?"  # noqa: S608
        self._sql.ask(query, (self.repository, check_key(key)), writes=True)

    def list(self, prefix: str) -> Iterator[StoredKey]:
        if check_prefix(prefix).startswith(LOG_PREFIX):
            return self._listed(prefix)
        if prefix:
            return self.store.list(prefix)
        return self._all()

    def close(self) -> None:
        if self._mark_due is not None:
            with suppress(Error):
                self._advance_mark()
        self._sql.close()
        self.store.close()

    def _all(self) -> Iterator[StoredKey]:
        """Keys of both, in order: what the store has below `log/` is not the log."""
        waiting = True
        for stored in self.store.list(""):
            if waiting and stored.key > LOG_PREFIX:
                waiting = False
                yield from self._listed(LOG_PREFIX)
            if not self.holds(stored.key):
                yield stored
        if waiting:
            yield from self._listed(LOG_PREFIX)

    def _listed(self, prefix: str) -> Iterator[StoredKey]:
        after, end = prefix, prefix[:-1] + chr(ord("/") + 1)
        query = (
            f"SELECT key, length(value), written FROM {_TABLE} WHERE repository = ? "  # noqa: S608
            f"AND key > ? AND key < ? ORDER BY key LIMIT {_PAGE}"
        )
        while True:
            rows = self._again(lambda at=after: self._sql.ask(query, (self.repository, at, end)))  # type: ignore[misc]  # mypy takes no defaults in lambdas
            yield from (StoredKey(*row) for row in rows)
            if len(rows) < _PAGE:
                return
            after = rows[-1][0]

    def _insert(self, key: str, value: bytes) -> bool:
        """Create `key`. What is visible here is durable: each statement commits, and syncs."""
        rows = self._sql.ask(
            f"INSERT INTO {_TABLE} VALUES (?, ?, ?, ?) "  # noqa: S608
            "ON CONFLICT (repository, key) DO NOTHING RETURNING key",
            (self.repository, key, value, time.time()),
            writes=True,
        )
        if rows and key > self._newest[0] and _SLOT.fullmatch(key):
            self._newest = (key, value)
        return bool(rows)

    def _seen(self, found: dict[str, bytes | None]) -> dict[str, bytes | None]:
        """Note the newest slot that went by."""
        for key, value in found.items():
            if value and key > self._newest[0] and _SLOT.fullmatch(key):
                self._newest = (key, value)
        return found

    def _mark(self) -> LogMark | None:
        try:
            return from_json(self.store.read(MARK_KEY), LogMark)
        except NotFoundError:
            return None
        except (ValueError, RecursionError) as error:
            raise CorruptError(
                f"{self.url}/{MARK_KEY} is damaged: {error}. `tensorrepo fsck --repair` writes it "
                "anew, when every object of every ref is there."
            ) from error

    def _is_mark_due(self, key: str, value: bytes) -> bool:
        """Whether this slot, which was created here, is to be marked now."""
        if not _SLOT.fullmatch(key):
            return False
        if key > self._newest[0]:
            self._newest = (key, value)
        now = time.monotonic()
        if self._mark_due is not None and now < self._mark_due:
            return False
        self._mark_due = now + _MARK_SECONDS
        return True

    def _lacks(self, mark: LogMark) -> bool:
        key = f"{LOG_PREFIX}{mark.generation:020}.json"
        value = self.read_many([key])[key]
        return value is None or record_digest(value) != mark.digest

    def _advance_mark(self) -> None:
        """Mark the newest record that went by here: what is deleted next was condemned by then.

        Raises:
            RepositoryRewound: the log has not the record that is marked.
        """
        with self._marking:
            newest = self._newest[0]
            if newest == self._marked:
                return
            mark = self._mark()
            if mark is not None and self._lacks(mark):
                raise RepositoryRewound(f"{self.url}: {RESTORED}")
            if mark is None or mark.generation < _generation(newest):
                self._write_mark()
            self._marked = newest

    def _write_mark(self) -> None:
        newest, value = self._newest
        mark = LogMark(_generation(newest), record_digest(value))
        self.store.overwrite(MARK_KEY, (msgspec.json.encode(mark) + b"\n",))

    def _again(self, ask: Callable[[], T]) -> T:
        """Ask once more where the connection was lost; only what may be asked twice."""
        try:
            return ask()
        except StorageError as error:
            if not error.transient:
                raise
        return ask()


def is_near(backend: Backend) -> bool:
    """Whether objects lie on a disk of this machine, wherever the log is."""
    store = backend.store if isinstance(backend, SqlLogBackend) else backend
    return store.local_root is not None


def _are_in_a_row(keys: Sequence[str]) -> bool:
    """Whether these are some slots, each behind the one before: nothing else lies between them."""
    if len(keys) < 3 or not (_SLOT.fullmatch(keys[0]) and _SLOT.fullmatch(keys[-1])):
        return False
    return _generation(keys[-1]) - _generation(keys[0]) == len(keys) - 1 and keys == sorted(keys)


def _generation(slot: str) -> int:
    return int(slot[len(LOG_PREFIX) : -len(".json")])


class _Uploads(Uploads):
    """Creates of which those of the log are made at once."""

    def __init__(self, backend: SqlLogBackend) -> None:
        self._backend = backend
        self._others = backend.store.uploads()
        self._lock = threading.Lock()
        self._created: dict[str, bool] = {}
        self._aborted = False

    def create(self, key: str, parts: Sequence[Buffer]) -> None:
        if not self._backend.holds(key):
            self._others.create(key, parts)
            return
        if self._aborted:
            raise StorageError(f"{self._backend.url}: this upload was aborted")
        created = self._backend.create(key, parts)
        with self._lock:
            self._created[key] = self._created.get(key, False) or created

    def finish(self) -> dict[str, bool]:
        found = self._others.finish()
        with self._lock:
            created, self._created = self._created, {}
        return found | created

    def abort(self) -> None:
        self._aborted = True
        self._others.abort()
