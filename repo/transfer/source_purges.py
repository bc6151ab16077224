"""Purges of a source, as a receiver's log says them: lists of rows joined, names in blocks.

A record of the log has 64 KiB, and what a transfer ends with needs one: the twins of all that it
brought are said at once. So lists of erased rows are joined until one record names them, and names
of erased columns go ahead in records of their own.

Source:
    docs/spec/log.md, section "Purges"; docs/design/298-erased-names-go-ahead.md.
"""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import merge
from itertools import groupby
from typing import Any, Final

from tensorrepo.repo.changes.purge import MOST_NAMES_BYTES, PURGE
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.log.records import LogEntry, Update, canonical_json
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import EnvelopeReader

MOST_LISTED: Final = 200  # lists of erased rows that a purge names, beside much else
MOST_NAMED_BYTES: Final = 2 << 10  # of names of erased columns that it says beside all of that
_ROW_RUN: Final = struct.Struct("<QII")  # fragment, first row, rows


@dataclass(frozen=True, slots=True)
class SourcePurges:
    """What was purged at the source of a transfer.

    Attributes:
        origin: id of the source.
        state: state that says what was purged there.
        actor: who receives, for the log.
    """

    origin: str
    state: State
    actor: str

    def unnamed(self, here: State) -> dict[str, dict[str, str]]:
        """Columns that were erased there, by path, as far as the receiver's state has them not."""
        columns = {
            path: dict(each.items() - here.purged_columns.get(path, {}).items())
            for path, each in self.state.purged_columns.items()
        }
        return {path: each for path, each in columns.items() if each}

    def ahead(self, here: State) -> LogEntry | None:
        """Names for a record before the one that erases; None where that has room for the rest.

        Names alone erase nothing: commits that bring such a column are refused from then on.
        """
        columns = self.unnamed(here)
        if len(canonical_json(columns)) <= MOST_NAMED_BYTES:
            return None
        # A purge without an update is void: this one is of a digest that no object has.
        nothing = self.update(Digest(secrets.token_hex(32)), None)
        return self.entry(_first_names(columns), updates=(nothing,))

    def update(self, old: Digest, twin: Digest | None) -> Update:
        """What says that an object was erased there."""
        return Update(f"{PURGE}:{self.origin}", old, twin)

    def entry(
        self,
        columns: Mapping[str, Mapping[str, str]],
        rows: Sequence[Digest] = (),
        **updates: Any,
    ) -> LogEntry:
        """An entry with `updates`, or the digest of more of them as `bulk`."""
        txn, note = secrets.token_hex(16), f"purged in {self.origin}"
        data = {"columns": columns, "rows": rows}
        return LogEntry(txn, PURGE, self.actor, time.time_ns(), note, data=data, **updates)

    def joined(self, objects: EnvelopeReader, lists: Sequence[Digest]) -> Iterator[bytes]:
        """The lists of erased rows; of more than a record names several are one."""
        together = -(-len(lists) // MOST_LISTED)
        for at in range(0, len(lists), max(together, 1)):
            payloads = [objects.get(each).payload for each in lists[at:][:together]]
            yield bytes(payloads[0]) if len(payloads) == 1 else _joined_runs(payloads)


def _first_names(columns: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """As many of some columns as one record names."""
    found: dict[str, dict[str, str]] = {}
    room = MOST_NAMES_BYTES
    for path in sorted(columns):
        for column, name in sorted(columns[path].items()):
            room -= len(canonical_json({path: {column: name}}))
            if found and room < 0:
                return found
            found.setdefault(path, {})[column] = name
    return found


def _joined_runs(lists: Iterable[Buffer]) -> bytes:
    """One list of erased rows for several, each of them sorted; see `docs/spec/log.md`."""
    joined = bytearray()
    try:
        for run, _ in groupby(merge(*map(_ROW_RUN.iter_unpack, lists))):
            joined += _ROW_RUN.pack(*run)
    except struct.error as error:
        raise CorruptError(f"a list of erased rows is none: {error}") from error
    return bytes(joined)
