"""Write lock of the catalog, with words for those who wait.

One process writes at a time, in SQLite and in PostgreSQL. Others wait for it, up to a limit; after
a second they say for whom, and at the limit they give up and say what to do.
"""

from __future__ import annotations

import logging
import os
import platform
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Connection, text
from sqlalchemy.exc import OperationalError

from tensorrepo.repo.errors import StorageError

WAIT_SECONDS: Final = 600  # for another process that is catching up
TELL_SECONDS: Final = 1.0  # so long nobody is told that a command waits
_PAUSE_SECONDS: Final = 0.02
_LOCK: Final = 0x74727063  # what our writers agree on in one PostgreSQL database
_WAL_WRITER: Final = "120"  # the byte of a -shm file that who writes in SQLite's log has locked
_LOGGER: Final = logging.getLogger(__name__)
_HOLDERS: Final = text(
    "SELECT pid, usename, application_name, client_addr, "
    "extract(epoch FROM clock_timestamp() - xact_start) AS seconds "
    "FROM pg_locks JOIN pg_stat_activity USING (pid) "
    "WHERE locktype = 'advisory' AND granted AND classid = 0 AND objid = :lock AND objsubid = 1 "
    "AND pg_locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)


def ask_sqlite(where: str, file: Path | None, ask: Callable[[], object]) -> None:
    """Ask SQLite again while another process has its file.

    Args:
        where: the catalog, as people know it.
        file: SQLite's file; None: it is in memory.
        ask: raises what SQLite raises where the file is locked.

    Raises:
        StorageError: the other one went on for too long.
    """
    wait = _Wait(where)
    while True:
        try:
            ask()
        except (OperationalError, sqlite3.OperationalError) as error:
            if not _is_busy(error):
                raise
            wait.look(lambda: _of_file(file), error)
        else:
            return
        time.sleep(_PAUSE_SECONDS)


def lock_postgresql(where: str, connection: Connection) -> None:
    """Let no other process write to this catalog in PostgreSQL until the transaction ends.

    Who waits stands in the server's queue from when the user was told: first come, first served.

    Raises:
        StorageError: another one went on for too long.
    """
    wait = _Wait(where)
    seconds = min(TELL_SECONDS, WAIT_SECONDS)
    while (error := _lock_within(connection, seconds)) is not None:
        wait.look(lambda: _of_server(connection), error)
        seconds = max(WAIT_SECONDS - wait.seconds, _PAUSE_SECONDS)
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{WAIT_SECONDS * 1000:.0f}ms'")


def name_session(parameters: dict[str, Any]) -> None:
    """Tell a PostgreSQL server who we are, unless the URL says it: others see it when they wait."""
    name = f"tensorrepo, process {os.getpid()} of {platform.node()}"
    parameters.setdefault("fallback_application_name", name)


def bound_waits(driver: Any) -> None:
    """Let nothing wait for ever on a connection to PostgreSQL: tables that change are locked."""
    driver.execute(f"SET lock_timeout = {WAIT_SECONDS * 1000:.0f}")
    driver.commit()


@dataclass(slots=True)
class _Wait:
    """One wait: since when, and whether it was told."""

    where: str
    began: float = 0.0
    is_told: bool = False

    def __post_init__(self) -> None:
        self.began = time.monotonic()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def look(self, who: Callable[[], str], error: Exception) -> None:
        """Say so when it has taken long, and raise when it has taken too long."""
        if self.seconds >= WAIT_SECONDS:
            raise StorageError(
                f"the catalog {self.where}: gave up after waiting {self.seconds:.0f} s for "
                f"{who()}, which writes to it. Try again when that is done, or end that process: "
                "the catalog is only a cache, and stays as it was before."
            ) from error
        if self.seconds >= TELL_SECONDS and not self.is_told:
            self.is_told = True
            _LOGGER.warning(
                "waiting for %s, which writes to the catalog %s: up to %d s, or until Ctrl-C",
                who(), self.where, WAIT_SECONDS,
            )  # fmt: skip


def _lock_within(connection: Connection, seconds: float) -> OperationalError | None:
    """Try to lock; the error of a lock that another one held all the time."""
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{max(1, round(seconds * 1000))}ms'")
    try:
        with connection.begin_nested():
            # Not the cursor's row: before the first catch-up there is none, nor a table to lock.
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != "55P03":  # lock_not_available
            raise
        return error
    return None


def _of_server(connection: Connection) -> str:
    """Who has the lock, as the server knows it; what others do may be hidden from this user."""
    found = connection.execute(_HOLDERS, {"lock": _LOCK}).first()
    if found is None:
        return "another process"
    parts = [f"another process ({found.application_name or 'without a name'}"]
    parts.append(f"user {found.usename}" if found.usename else "")
    parts.append(f"at {found.client_addr}" if found.client_addr else "")
    parts.append(f"process {found.pid} of the server")
    parts.append(f"for {found.seconds:.0f} s already" if found.seconds is not None else "")
    return ", ".join(filter(None, parts)) + ")"


def _of_file(file: Path | None) -> str:
    """Which process of this machine writes to a SQLite file, where the system says it."""
    if file is None:
        return "another process"
    try:
        inode = file.with_name(f"{file.name}-shm").stat().st_ino
        lines = [line.split() for line in Path("/proc/locks").read_text("ascii").splitlines()]
    except OSError:  # no Linux, or the file is new
        return "another process"
    for line in lines:
        if (
            "WRITE" in line
            and "->" not in line
            and line[-2:-1] == [_WAL_WRITER]
            and line[-3].endswith(f":{inode}")
        ):
            return f"another process ({line[-4]} of this machine)"
    return "another process"


def _is_busy(error: OperationalError | sqlite3.OperationalError) -> bool:
    cause = error.orig if isinstance(error, OperationalError) else error
    return getattr(cause, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY  # of its kinds any
