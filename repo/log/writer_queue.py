"""Queue of writers before the next log slot: fairness, never correctness.

Whoever loses the race for a slot merges anew, so a writer that commits in a loop, and has little to
merge, wins again and again: of 8 writers the slowest commit in 100 took 57 times the median.
An advisory lock lets them go one after the other: of a file for the writers of one machine, of the
server for those of a log in PostgreSQL. The slot alone decides who wins, so a writer that cannot
take the lock, or for whom the queue does not move, goes on without.

Who has to wait prepares meanwhile: objects are written and synced before the turn, not within.

Source:
    docs/spec/log.md, section "Append".
"""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.disk import TEMPORARY
from tensorrepo.repo.backends.sql_connections import SQLITE, WriterTurn
from tensorrepo.repo.backends.sql_log import SqlLogBackend
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import PermissionDenied, StorageError

LOCK_NAME: Final = "append-queue"
# Without a new record, at a server up to twice that: who has the lock merges for long, or hangs.
STUCK_SECONDS: Final = 0.5
_LONGEST_POLL_SECONDS: Final = 0.04
_SHORTEST_POLL_SECONDS: Final = 0.005  # dozens wait without keeping a core busy
_AGE_SECONDS: Final = 0.1  # waited so long, a writer looks twice as often as a new one


def turn_of(
    backend: Backend,
    *,
    prepare: Callable[[], None],
    newest: Callable[[], int],
    first: Callable[[], Sequence[str]],
    rng: random.Random,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> AbstractContextManager[None]:
    """Wait for the writers that came before, as far as they get on.

    Args:
        backend: what is written to: a folder, or a log in SQL; elsewhere nobody is waited for.
        prepare: called once if there is somebody to wait for.
        newest: number of the newest record.
        first: the keys that the turn begins by reading.
        rng: chance for when to look again.
        sleep: waits so many seconds.
        clock: seconds from any start, never going back.
    """
    if isinstance(backend, SqlLogBackend) and not backend.is_sqlite:
        return _turn_at_server(backend, prepare, newest, first)
    place = queue_of(backend)
    return nullcontext() if place is None else turn(place, prepare, rng, sleep, clock)


@dataclass(frozen=True, slots=True)
class QueueFile:
    """A file to lock, and a path whose time of change tells of a new record."""

    lock: Path
    changes: Path


def queue_of(backend: Backend) -> QueueFile | None:
    """Where the writers of this machine queue; None: nowhere."""
    if isinstance(backend, SqlLogBackend):
        file = backend.database.removeprefix(SQLITE)
        return QueueFile(Path(f"{file}-queue"), Path(f"{file}-wal"))
    root = backend.local_root
    return None if root is None else QueueFile(root / TEMPORARY / LOCK_NAME, root / "log")


@contextmanager
def turn(
    place: QueueFile,
    prepare: Callable[[], None],
    rng: random.Random,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> Iterator[None]:
    """As `turn_of`, of the writers of one machine."""
    lock = _opened(place.lock)
    if lock is None:
        yield
        return
    try:
        if not _is_taken(lock):
            prepare()
            _wait(lock, place.changes, rng, sleep, clock)
        yield
    finally:
        os.close(lock)  # which lets go of it


def _opened(path: Path) -> int | None:
    with suppress(OSError):  # it cannot be written, and the append will say so
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    return None


def _is_taken(lock: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def _wait(
    lock: int,
    changes: Path,
    rng: random.Random,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> None:
    began = moved_at = clock()
    seen = _last_change(changes)
    while clock() - moved_at < STUCK_SECONDS and not _is_taken(lock):
        # Who has waited for long looks more often, and so is rarely passed by who came later.
        age = (clock() - began) / _AGE_SECONDS
        sleep(rng.uniform(0, max(_SHORTEST_POLL_SECONDS, _LONGEST_POLL_SECONDS / (1 + age))))
        if (now := _last_change(changes)) != seen:
            seen, moved_at = now, clock()


def _last_change(path: Path) -> int:
    """When what the path names last changed, in ns."""
    with suppress(OSError):
        return path.stat().st_mtime_ns
    return 0


@contextmanager
def _turn_at_server(
    backend: SqlLogBackend,
    prepare: Callable[[], None],
    newest: Callable[[], int],
    first: Callable[[], Sequence[str]],
) -> Iterator[None]:
    """As `turn_of`, of the writers on all machines. The server gives turns in order."""
    with backend.turn(first) as turn:
        with suppress(StorageError, PermissionDenied):  # the append will say what is wrong
            if turn.is_contended or not turn.take(0):
                prepare()
                _wait_at_server(turn, newest)
        yield


def _wait_at_server(turn: WriterTurn, newest: Callable[[], int]) -> None:
    # Whose turn comes in time asks for nothing meanwhile: the log is read in the turn anyway.
    seen = None
    while not turn.take(STUCK_SECONDS):
        if (now := newest()) == seen:
            return
        seen = now
