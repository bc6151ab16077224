"""Which rows say what the log says?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorrepo.query import tables
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.fold import Folding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.query.sync.loader import Rows
    from tensorrepo.repo.log import Log, View
    from tensorrepo.repo.records import LogEntry, Record, Update
    from tensorrepo.repo.state import Verdict


def log_rows(log: Log, base: View, stop: int) -> Iterator[Rows]:
    """For each record from the one after `base` up to `stop`, excluded, its rows."""
    folding = Folding(base.state)  # one for all: copying the state for each would cost its refs
    for record in log.records(base.generation + 1, stop):
        verdicts = folding.add(record, log.read_bulk)
        yield _record_rows(log, record, verdicts)


def _record_rows(log: Log, record: Record, verdicts: tuple[Verdict, ...]) -> Rows:
    for place, (entry, verdict) in enumerate(zip(record.entries, verdicts, strict=True)):
        yield (
            tables.log_record,
            (
                record.gen,
                place,
                entry.txn,
                entry.kind,
                entry.actor,
                entry.time_ns,
                entry.note,
                verdict.applied,
                verdict.reason,
            ),
        )
        for update in _updates(log, entry) if verdict.applied else ():
            row = (record.gen, place, update.ref, update.old, update.new)
            yield tables.ref_update, row


def _updates(log: Log, entry: LogEntry) -> tuple[Update, ...]:
    if entry.bulk is None:
        return entry.updates
    try:
        return entry.updates + log.read_bulk(entry.bulk)
    except InvalidInputError:
        return entry.updates  # none is void: it cannot have applied
