"""Table server of the parent: scans that an untrusted query may begin.

Tables, as DuckDB over there asks for them: it begins scans, and takes their rows batch by batch.
What it says is checked first, as it may be hostile. DuckDB keeps a scan until the query ends, also
when LIMIT has all of its rows, so scans that wait the longest are given up where many are open.
Only queries that read very many tables in turns ask for more of those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from tensorrepo.query.sql.pushdown import DatasetTable, Scanned, ScannedTable
from tensorrepo.query.untrusted.pipe import packed
from tensorrepo.query.untrusted.protocol import Next, ScanRequest, filter_in, misbehaved
from tensorrepo.repo.errors import InvalidInputError

MOST_COLUMNS: Final = 64  # that are being read: each may have threads, and some megabytes ahead
LEAST_SCANS: Final = 4  # that stay open, however wide
CATALOG_COLUMNS: Final = 8  # what a table of the catalog counts as: it holds a connection


@dataclass(slots=True)
class _Scan:
    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]
    columns: int


@dataclass(slots=True)
class Serving:
    """The scans of one query, those that were asked last at the end."""

    tables: Sequence[ScannedTable]
    scanned: Scanned
    _scans: dict[int, _Scan] = field(default_factory=dict)
    _given_up: set[int] = field(default_factory=set)
    _newest: int = -1

    def begin(self, asked: ScanRequest, body: bytes) -> None:
        """Begin a scan; nothing is read yet. Raises InvalidInputError for what nobody can mean."""
        self._end(asked.ended)
        if asked.scan <= self._newest:
            raise misbehaved(f"it began scan {asked.scan} after {self._newest}")
        if asked.table >= len(self.tables):
            raise misbehaved(f"it asked for table {asked.table} of {len(self.tables)}")
        table = self.tables[asked.table]
        unknown = [name for name in asked.columns if name not in table.schema.names]
        if unknown or len(set(asked.columns)) < len(asked.columns):
            raise misbehaved(f"it asked for the columns {asked.columns!r:.200}")
        try:
            where = filter_in(body) if body else None
        except InvalidInputError as error:
            raise misbehaved(f"it sent a filter that cannot be read: {error}") from error
        self._newest = asked.scan
        columns = len(asked.columns) if isinstance(table, DatasetTable) else CATALOG_COLUMNS
        self._make_room(columns)
        try:
            reader = table.reader(asked.columns, where)
        except pa.ArrowException as error:
            raise misbehaved(f"it sent a filter that fits no rows: {error!s:.200}") from error
        self._scans[asked.scan] = _Scan(reader.schema, iter(reader), columns)

    def next(self, asked: Next) -> tuple[dict[str, Any], pa.Buffer | bytes]:
        """The next rows of a scan as a frame, one without a body at its end.

        An error is kept in `scanned` for the caller, and the process is told that there was one.
        """
        self._end(asked.ended)
        if asked.scan in self._given_up:
            self._note(InvalidInputError(_TOO_MANY))
            return {"failed": True}, b""
        scan = self._scans.pop(asked.scan, None)
        if scan is None:
            raise misbehaved(f"it asked for rows of scan {asked.scan}, which is none")
        self._scans[asked.scan] = scan  # at the end
        try:
            batch = next(scan.batches, None)
        except Exception as error:  # noqa: BLE001 - the process is told, and the caller gets it
            self._note(error)
            return {"failed": True}, b""
        return {}, b"" if batch is None else packed([batch], scan.schema)

    def close(self) -> None:
        """Give up all scans."""
        self._scans.clear()

    def _end(self, scans: list[int]) -> None:
        for number in scans:
            self._scans.pop(number, None)
            self._given_up.discard(number)

    def _make_room(self, columns: int) -> None:
        held = columns + sum(scan.columns for scan in self._scans.values())
        while len(self._scans) >= LEAST_SCANS and held > MOST_COLUMNS:
            oldest = next(iter(self._scans))
            held -= self._scans.pop(oldest).columns
            self._given_up.add(oldest)

    def _note(self, error: Exception) -> None:
        if isinstance(error, pa.ArrowException):
            error = InvalidInputError(f"SQL: the rows cannot be read: {error!s:.500}")
        self.scanned.failed = self.scanned.failed or error


_TOO_MANY: Final = (
    f"the untrusted query reads more than {MOST_COLUMNS} columns of tables in turns, which is not "
    "taken: name fewer columns or tables, or ask several queries"
)
