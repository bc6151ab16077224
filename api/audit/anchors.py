"""Anchors: the head of the audit log, written into repositories' logs now and then.

Who can change the service's database could make the whole chain anew. A repository's log is chained
itself, lies elsewhere and is copied by every clone, so that such a chain contradicts it.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

from sqlalchemy import delete, insert, select

from tensorrepo.api.audit.events import Block
from tensorrepo.api.audit.writer import AuditLog
from tensorrepo.api.database import tables
from tensorrepo.api.database.connection import Database
from tensorrepo.api.repositories.directory import Directory
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.errors import Error
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry

ACTOR: Final = "tensorrepo service <service@users.invalid>"
_TICK_SECONDS: Final = 10.0
_SECOND_NS: Final = 10**9
_NOTE = re.compile(r"audit block ([0-9]{1,18}) ([0-9a-f]{64})")
_TXN: Final = "audit-"
_LOGGER = logging.getLogger(__name__)


class Anchors:
    """Writes the head of a service's audit log into the logs of repositories that were written to.

    Processes share the work: each repository's turn is taken in the database.
    """

    def __init__(
        self,
        audit: AuditLog,
        database: Database,
        directory: Directory,
        *,
        every_seconds: int,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self._audit, self._database, self._directory = audit, database, directory
        self._every_ns, self._clock = every_seconds * _SECOND_NS, clock
        self._due: set[str] = set()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="audit anchors", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    def write_due(self) -> list[str]:
        """Anchor in the repositories whose time has come; gives their names."""
        self._due |= self._audit.take_written()
        return [name for name in sorted(self._due) if self._is_written(name)]

    def _is_written(self, name: str) -> bool:
        head = self._audit.head()
        if head is None or not self._take(name, head.number):
            return False
        self._due.discard(name)
        try:
            write_anchor(self._directory.open(name).core, head, self._clock())
        except Error as error:
            _LOGGER.warning("the log of %s cannot be told the audit log's head: %s", name, error)
            self._due.add(name)  # when its turn comes again
            return False
        return True

    def _take(self, name: str, block: int) -> bool:
        table, now = tables.audit_anchors, self._clock()
        with self._database.write() as connection:
            row = connection.execute(select(table).where(table.c.repository == name)).first()
            if row is not None and row.time_ns + self._every_ns > now:
                return False
            connection.execute(delete(table).where(table.c.repository == name))
            connection.execute(insert(table).values(repository=name, block=block, time_ns=now))
        return True

    def _run(self) -> None:
        while not self._is_over.wait(_TICK_SECONDS):
            try:
                self.write_due()
            except Exception as error:  # noqa: BLE001  whatever it is, the next tick tries again
                _LOGGER.warning("the audit log's head was not written down: %s", error)


def write_anchor(core: RepositoryCore, head: Block, time_ns: int) -> None:
    """Let a repository's log say what the audit log's head is; no state depends on that."""
    note = f"audit block {head.number} {head.hash}"
    entry = LogEntry(_TXN + secrets.token_hex(12), "noop", ACTOR, time_ns, note)

    def decide(view: LogView) -> tuple[LogEntry, ...]:  # noqa: ARG001  whatever the view is
        return (entry,)

    core.append(decide)


def anchors_of(core: RepositoryCore) -> Iterator[tuple[int, str]]:
    """Number and hash of the blocks that a repository's log names."""
    view = core.log.refresh()
    for record in core.log.records(1, view.generation + 1):
        for entry in record.entries:
            told = _NOTE.fullmatch(entry.note)
            if entry.kind == "noop" and entry.txn.startswith(_TXN) and told is not None:
                yield int(told[1]), told[2]
