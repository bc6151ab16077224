"""Queue of the writers of one machine before the next log slot: fairness, never correctness.

Whoever loses the race for a slot merges anew, so a writer that commits in a loop, and has little to
merge, wins again and again: of 8 writers the slowest commit in 100 took 57 times the median.
An advisory lock lets them go one after the other. The slot alone decides who wins, so a writer that
cannot take the lock, or for whom the queue does not move, goes on without.

Source:
    docs/spec/log.md, section "Append".
"""

from __future__ import annotations

import fcntl
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from tensorrepo.repo.backends.local import TEMPORARY

LOCK_NAME: Final = "append-queue"
STUCK_SECONDS: Final = 0.5  # without a new record: whoever has the lock merges for long, or hangs
_LONGEST_POLL_SECONDS: Final = 0.04
_SHORTEST_POLL_SECONDS: Final = 0.005  # dozens wait without keeping a core busy
_AGE_SECONDS: Final = 0.1  # waited so long, a writer looks twice as often as a new one


@contextmanager
def turn(
    root: Path | None,
    *,
    rng: random.Random,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> Iterator[None]:
    """Wait for the writers of this machine that came before, as far as they get on.

    Args:
        root: folder of the repository; None where it is no folder: nobody is waited for.
        rng: chance for when to look again.
        sleep: waits so many seconds.
        clock: seconds from any start, never going back.
    """
    lock = None if root is None else _opened(root)
    if lock is None or root is None:
        yield
        return
    try:
        _wait(lock, root, rng, sleep, clock)
        yield
    finally:
        os.close(lock)  # which lets go of it


def _opened(root: Path) -> int | None:
    with suppress(OSError):  # it cannot be written, and the append will say so
        return os.open(root / TEMPORARY / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    return None


def _wait(
    lock: int,
    root: Path,
    rng: random.Random,
    sleep: Callable[[float], None],
    clock: Callable[[], float],
) -> None:
    began = moved_at = clock()
    seen = _last_change(root)
    while clock() - moved_at < STUCK_SECONDS:
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        # Who has waited for long looks more often, and so is rarely passed by who came later.
        age = (clock() - began) / _AGE_SECONDS
        sleep(rng.uniform(0, max(_SHORTEST_POLL_SECONDS, _LONGEST_POLL_SECONDS / (1 + age))))
        if (now := _last_change(root)) != seen:
            seen, moved_at = now, clock()


def _last_change(root: Path) -> int:
    """When the folder of the log last got a record, in ns."""
    with suppress(OSError):
        return (root / "log").stat().st_mtime_ns
    return 0
