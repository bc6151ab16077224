"""Writer of the audit log: events gathered in memory, and written as a block twice a second.

One thread a process writes; processes share one chain, for a block's number can be taken once.
What waits is bounded: what comes beyond that is counted, and the count is an event itself.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from typing import Final

from sqlalchemy import insert, select
from sqlalchemy.exc import IntegrityError

from tensorrepo.api.audit.events import GENESIS, AuditEvent, Block
from tensorrepo.api.database import tables
from tensorrepo.api.database.connection import Database
from tensorrepo.repo.errors import Error

FLUSH_SECONDS: Final = 0.5
MOST_WAITING: Final = 10_000
_BLOCKS_AT_ONCE: Final = 50
_TRIES: Final = 20
_LOGGER = logging.getLogger(__name__)


class AuditLog:
    """The audit log of a service. Thread-safe."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Callable[[], int] = time.time_ns,
        flush_seconds: float = FLUSH_SECONDS,
    ) -> None:
        self._database, self._clock, self._flush_seconds = database, clock, flush_seconds
        self._waiting: dict[Hashable, AuditEvent] = {}
        self._dropped = 0
        self._written: set[str] = set()  # repositories, since they were asked for
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._is_due, self._is_over = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def record(self, event: AuditEvent, key: Hashable | None = None) -> None:
        """Let an event be written within a second; those of one `key` become one event."""
        with self._lock:
            if event.kind == "write" and event.repository:
                self._written.add(event.repository)
            same = None if key is None else self._waiting.get(key)
            if same is not None:
                self._waiting[key] = same.joined(event)
            elif len(self._waiting) >= MOST_WAITING:
                self._dropped += 1
            else:
                self._waiting[object() if key is None else key] = event
            self._start()
        self._is_due.set()

    def take_written(self) -> set[str]:
        """Repositories that were written to since this was asked."""
        with self._lock:
            taken, self._written = self._written, set()
            return taken

    def flush(self) -> None:
        """Write what waits, now. Raises StorageError; then it still waits."""
        with self._writing:
            with self._lock:
                taken, self._waiting = self._waiting, {}
                dropped, self._dropped = self._dropped, 0
            events = list(taken.values())
            if dropped:
                events.append(AuditEvent(self._clock(), "overflow", count=dropped))
            try:
                if events:
                    self._append([event.encode() for event in events])
            except BaseException:
                with self._lock:
                    room = MOST_WAITING - len(self._waiting)
                    kept = dict(list(taken.items())[: max(0, room)])
                    self._waiting = {**kept, **self._waiting}
                    self._dropped += dropped + len(taken) - len(kept)
                raise

    def head(self) -> Block | None:
        """The last block."""
        table = tables.audit_blocks
        with self._database.read() as connection:
            asked = select(table).order_by(table.c.number.desc()).limit(1)
            row = connection.execute(asked).mappings().first()
        return None if row is None else _block(dict(row))

    def blocks(self, after: int = 0) -> Iterator[Block]:
        """Blocks behind number `after`, a few at a time."""
        table = tables.audit_blocks
        while True:
            asked = select(table).where(table.c.number > after).order_by(table.c.number)
            with self._database.read() as connection:
                rows = connection.execute(asked.limit(_BLOCKS_AT_ONCE)).mappings().all()
            for row in rows:
                yield _block(dict(row))
            if len(rows) < _BLOCKS_AT_ONCE:
                return
            after = rows[-1]["number"]

    def close(self) -> None:
        """Write what waits, and end."""
        self._is_over.set()
        self._is_due.set()
        if self._thread is not None:
            self._thread.join()
        try:
            self.flush()
        except Error:
            _LOGGER.exception("events of the audit log are lost: its database does not answer")

    def _append(self, events: list[str]) -> None:
        table = tables.audit_blocks
        for left in reversed(range(_TRIES)):
            try:
                with self._database.write() as connection:
                    asked = select(table.c.number, table.c.hash)
                    last = connection.execute(
                        asked.order_by(table.c.number.desc()).limit(1)
                    ).first()
                    number, previous = (1, GENESIS) if last is None else (last[0] + 1, last[1])
                    block = Block.make(number, self._clock(), previous, events)
                    connection.execute(
                        insert(table).values(
                            number=number,
                            time_ns=block.time_ns,
                            previous=previous,
                            hash=block.hash,
                            events="\n".join(events),
                        )
                    )
            except IntegrityError:  # another process took that number: what follows it is ours
                if not left:
                    raise
            else:
                return

    def _start(self) -> None:
        if self._thread is None and not self._is_over.is_set():
            self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        is_failing = False
        while not self._is_over.is_set():
            self._is_due.wait()
            self._is_over.wait(self._flush_seconds)
            self._is_due.clear()
            try:
                self.flush()
                is_failing = False
            except Exception as error:  # noqa: BLE001  whatever it is, the next second tries again
                self._is_due.set()
                if not is_failing:
                    _LOGGER.warning("the audit log cannot be written, its events wait: %s", error)
                is_failing = True


def _block(row: dict[str, object]) -> Block:
    events = str(row["events"])
    number, time_ns = (int(str(row[key])) for key in ("number", "time_ns"))
    lines = tuple(events.split("\n"))
    return Block(number, time_ns, str(row["previous"]), lines, str(row["hash"]))
