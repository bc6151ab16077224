"""Queue of writers before the next log slot, a ticket lock: fairness, never correctness.

Whoever loses the race for a slot merges anew, so a writer that commits in a loop, and has little to
merge, wins again and again: of 8 writers the slowest commit in 100 took 57 times the median.
Advisory locks let them go one after the other, in the order in which they came: of bytes of a file
for the writers of one machine, of the server for those of a log in PostgreSQL. The slot alone
decides who wins, so a writer that cannot lock, or for whom the queue does not move, goes on
without.

In the file a byte is a ticket. Who comes locks the first byte behind all that are locked, and has
its turn when it can lock all bytes before its own as well. The kernel lets go of what a process
had locked when that ends, so nobody leaves anything behind. The locks belong to an open file (Linux
has such, `F_OFD_SETLK`): one of each thread, and none is lost when another file is closed.

Who has to wait prepares first: objects are written and synced before the turn, not within.

Source:
    docs/spec/log.md, section "Append".
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from struct import Struct
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
_NEXT_POLL_SECONDS: Final = 0.0004  # of who is next: nobody writes while it sleeps
_POLL_SECONDS: Final = 0.001  # of the others, for each that is before them: a turn takes longer
_LONGEST_POLL_SECONDS: Final = 0.04
# struct flock of <fcntl.h>: type, whence, start, length (0: to the end), process (0 for these).
_FLOCK: Final = Struct("@hhqqi")
# The question for locks of any byte, its answer when there are none, and a lock of the first byte.
_ALL: Final = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
_NONE: Final = _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
_FIRST: Final = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)


def turn_of(
    backend: Backend,
    *,
    prepare: Callable[[], None],
    newest: Callable[[], int],
    first: Callable[[], Sequence[str]],
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> AbstractContextManager[None]:
    """Wait for the writers that came before, as far as they get on.

    Args:
        backend: what is written to: a folder, or a log in SQL; elsewhere nobody is waited for.
        prepare: called once if there is somebody to wait for.
        newest: number of the newest record.
        first: the keys that the turn begins by reading.
        sleep: waits so many seconds.
        clock: seconds from any start, never going back.
    """
    if isinstance(backend, SqlLogBackend) and not backend.is_sqlite:
        return _turn_at_server(backend, prepare, newest, first)
    place = queue_of(backend)
    return nullcontext() if place is None else turn(place, prepare, sleep, clock)


@dataclass(frozen=True, slots=True)
class QueueFile:
    """A file to lock, and a path whose time of change tells of a new record."""

    lock: str
    changes: str


def queue_of(backend: Backend) -> QueueFile | None:
    """Where the writers of this machine queue; None: nowhere."""
    if isinstance(backend, SqlLogBackend):
        file = backend.database.removeprefix(SQLITE)
        return QueueFile(f"{file}-queue", f"{file}-wal")
    root = backend.local_root  # joined as text, for a writer that is alone: a Path takes as long
    return None if root is None else QueueFile(f"{root}/{TEMPORARY}/{LOCK_NAME}", f"{root}/log")


@contextmanager
def turn(
    place: QueueFile,
    prepare: Callable[[], None],
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> Iterator[None]:
    """As `turn_of`, of the writers of one machine."""
    file = _opened(place.lock)
    if file is None:
        yield
        return
    try:
        if _is_taken(file):
            prepare()
            _wait(file, place.changes, sleep, clock)
        yield
    finally:
        os.close(file)  # which lets go of what is locked


def _opened(path: str) -> int | None:
    if sys.platform != "linux":
        return None  # nothing there belongs to an open file and can be asked who is before
    with suppress(OSError):  # it cannot be written, and the append will say so
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    return None


def _is_taken(file: int) -> bool:
    """Whether others write or wait; where not, or where nothing can be locked, it is our turn."""
    try:
        if fcntl.fcntl(file, fcntl.F_OFD_GETLK, _ALL) != _NONE:
            return True
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _FIRST)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _wait(
    file: int,
    changes: str,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> None:
    with suppress(OSError):
        ticket = _draw(file)
        seen, moved_at = _last_change(changes), clock()
        while ahead := _ahead(file, ticket):
            if clock() - moved_at >= STUCK_SECONDS:
                if (now := _last_change(changes)) == seen:
                    return
                seen, moved_at = now, clock()
            sleep(_seconds_to_sleep(ahead))


def _seconds_to_sleep(ahead: int) -> float:
    """Until a writer looks again: together, 30 of them look hardly more often than 8."""
    if ahead == 1:
        return _NEXT_POLL_SECONDS
    # Behind a writer that hangs tickets grow without end, as the queue is never empty.
    return min(ahead * _POLL_SECONDS, _LONGEST_POLL_SECONDS)


def _draw(file: int) -> int:
    """Lock the first byte behind all that are locked. Returns which."""
    ticket = 0
    while True:
        while (locked := _first_locked(file, ticket)) is not None:
            ticket = locked.stop
        if _lock(file, ticket, ticket + 1):
            return ticket


def _ahead(file: int, ticket: int) -> int:
    """How many have their turn before, about; with 0, nobody draws an earlier ticket any more."""
    while ticket:
        if (locked := _first_locked(file, 0, ticket)) is not None:
            # Linux names the oldest lock. Were it another, this writer would look more often.
            return ticket - locked.stop + 1
        if _lock(file, 0, ticket):
            return 0
    return 0


def _lock(file: int, start: int, stop: int) -> bool:
    """Lock bytes ``[start, stop)``; whether no other open file had one of them locked."""
    with suppress(BlockingIOError):
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, _flock(start, stop))
        return True
    return False


def _first_locked(file: int, start: int, stop: int = 0) -> range | None:
    """Bytes of ``[start, stop)`` that another open file has locked, with their neighbors.

    With `stop` 0, of all from `start` on. None: there are none.

    Raises:
        OSError: nothing can be locked, or something else has locked the file to its end.
    """
    answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, _flock(start, stop))
    kind, _, first, length, _ = _FLOCK.unpack(answer)
    if kind == fcntl.F_UNLCK:
        return None
    if not length:
        raise OSError(errno.ENOLCK, "no byte is left for a ticket")
    return range(first, first + length)


def _flock(start: int, stop: int) -> bytes:
    return _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, max(stop - start, 0), 0)


def _last_change(path: str) -> int:
    """When what the path names last changed, in ns."""
    with suppress(OSError):
        return os.stat(path).st_mtime_ns
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
