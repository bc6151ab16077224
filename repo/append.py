"""How does a transaction get into the log, exactly once or not at all?

Source:
    docs/spec/log.md, section "Append".
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tensorrepo.repo.log import Log, View

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorrepo.repo.records import LogEntry, Record
    from tensorrepo.repo.state import Verdict


@dataclass(frozen=True, slots=True)
class Appended:
    """A record that is in the log.

    Attributes:
        view: the repository right after it.
        record: what was appended; None when `decide` wanted nothing.
        verdicts: one for each entry.
        attempts: how often `decide` was called.
    """

    view: View
    record: Record | None
    verdicts: tuple[Verdict, ...]
    attempts: int


def append(
    log: Log,
    decide: Callable[[View], tuple[LogEntry, ...]],
    *,
    deadline_seconds: float = 120.0,
    attempts: int = 100,
    allow_void: bool = False,
    rng: random.Random | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Appended:
    """Append what `decide` returns for the newest view, at most once.

    Args:
        log: where to.
        decide: called anew for every attempt, with the newest view; merges, validates, runs the
            fence and returns the entries (all of them share one record), or raises. Nothing to
            do: an empty tuple. Every object that the entries name must be durable by then.
        deadline_seconds: after which no further attempt is made.
        attempts: how often to lose a race before giving up.
        allow_void: an entry that is void by the fold is appended all the same, and shows in
            `verdicts` (for a server that groups transactions); else it is a ConflictError and
            nothing is written.
        rng: chance for the back-off.
        sleep: waits so many seconds.
        clock: seconds from any start, never going back.

    Raises:
        ConflictError: nothing was written, and nothing will be: the race was lost too often, or
            an entry would be void.
        CommitOutcomeUnknown: the record may be in the log, or may yet land.
        UnsupportedError: the repository needs a newer version to be written.
    """
    raise NotImplementedError


def resolve(
    log: Log, txn: str, generation: int, *, settle: bool
) -> Literal["landed", "lost", "unknown"]:
    """What became of a transaction whose outcome was unknown.

    Args:
        log: of the same repository.
        txn: as CommitOutcomeUnknown named it.
        generation: as CommitOutcomeUnknown named it.
        settle: where its slot is still empty, fill it with a noop, for a definite answer: else
            the answer is "unknown", because a write in flight may still land.

    Returns:
        "landed": it is in the log and applied. "lost": it is not and never will be, or is void.
    """
    raise NotImplementedError
