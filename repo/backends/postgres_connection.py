"""Connection to a PostgreSQL server: statements by libpq's own calls, several in one round trip.

A commit asks three times, and each time a cursor of psycopg takes more of the processor than all
that is done with the answer. Here values go as they are, answers come as they are, and what is
asked often is prepared, which spares the server from planning it anew. Waiting is psycopg's, so
that Ctrl-C cancels.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from struct import Struct
from typing import Any, Final, TypeAlias

Rows: TypeAlias = list[tuple[Any, ...]]
# A statement with ``?`` for each of its values.
Question: TypeAlias = tuple[str, Sequence[object]]

_PREPARED_FROM: Final = 3  # times that a statement was asked: many come once
_MOST_COUNTED: Final = 64  # statements: some have a form for each number of values
_TEXT: Final = 0
_BINARY: Final = 1
_DONE: Final = {1, 2}  # PGRES_COMMAND_OK, PGRES_TUPLES_OK
_PIPELINE_SYNC: Final = 10  # PGRES_PIPELINE_SYNC
_DOUBLE: Final = Struct(">d")
# What binary answers hold, by the numbers of their types in `pg_type.dat` of PostgreSQL.
_READERS: Final[dict[int, Callable[[bytes], object]]] = {
    16: lambda data: data == b"\1",  # bool
    20: lambda data: int.from_bytes(data, "big", signed=True),  # int8
    23: lambda data: int.from_bytes(data, "big", signed=True),  # int4
    25: bytes.decode,  # text
    701: lambda data: _DOUBLE.unpack(data)[0],  # float8
}


class ServerConnection:
    """A connection, for one thread at a time. What it raises is psycopg's.

    Each round trip commits by itself, unless a transaction was begun.
    """

    def __init__(self, url: str, settings: str) -> None:
        """Connect to the server at `url`, and ask it the statements `settings`.

        Raises:
            ImportError: there is no psycopg.
        """
        import psycopg
        from psycopg import errors, generators

        # A standby lags behind: to it, a log would seem to have been rewound.
        self.driver = psycopg.connect(
            url, autocommit=True, connect_timeout=10, target_session_attrs="read-write",
            application_name="tensorrepo log",
        )  # fmt: skip
        self._error_of = errors.error_from_result
        self._send, self._execute = generators.send, generators.execute
        self._fetch = generators.fetch_many
        self._libpq: Any = self.driver.pgconn
        self._asked: dict[str, int] = {}
        self._names: dict[str, bytes] = {}
        try:
            self.driver.execute(settings, prepare=False)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of the server."""
        self.driver.close()

    def ask(self, text: str, values: Sequence[object] = ()) -> Rows:
        """The rows of one statement."""
        self._prepare(text)
        self._put(text, values)
        return self._rows(self._answer())

    def ask_together(self, questions: Sequence[Question]) -> list[Rows]:
        """The rows of several statements, sent together; behind one that fails none is done.

        The server does one after the other: each sees what was committed when it begins.
        """
        for text, _ in questions:
            self._prepare(text)
        self._libpq.enter_pipeline_mode()
        for text, values in questions:
            self._put(text, values)
        self._libpq.pipeline_sync()
        results = self.driver.wait(self._answers())
        self._libpq.exit_pipeline_mode()
        return [self._rows(result) for result in results]

    def _put(self, text: str, values: Sequence[object]) -> None:
        """Give a statement to libpq, to be sent."""
        given: list[bytes] = []
        formats: list[int] = []
        for value in values:
            if isinstance(value, bytes):
                given.append(value)
                formats.append(_BINARY)
            else:
                given.append(str(value).encode())
                formats.append(_TEXT)
        name = self._names.get(text)
        if name is not None:
            self._libpq.send_query_prepared(name, given, formats, _BINARY)
        else:
            self._libpq.send_query_params(_numbered(text), given, None, formats, _BINARY)

    def _prepare(self, text: str) -> None:
        """Have the server prepare a statement that is asked often."""
        if text in self._names:
            return
        times = self._asked.get(text, 0) + 1
        if times < _PREPARED_FROM:
            if len(self._asked) < _MOST_COUNTED:
                self._asked[text] = times
            return
        name = b"tensorrepo_%d" % len(self._names)
        self._libpq.send_prepare(name, _numbered(text))
        self._rows(self._answer())
        self._names[text] = name

    def _answer(self) -> Any:
        return self.driver.wait(self._execute(self._libpq))[-1]

    def _answers(self) -> Generator[Any, Any, list[Any]]:
        """The results of a pipeline, for psycopg to wait for."""
        yield from self._send(self._libpq)
        results: list[Any] = []
        while True:
            found = yield from self._fetch(self._libpq)
            if found and found[-1].status == _PIPELINE_SYNC:
                return results
            results += found

    def _rows(self, result: Any) -> Rows:
        if result.status not in _DONE:
            raise self._error_of(result)
        if not result.ntuples:
            return []
        value, rows = result.get_value, range(result.ntuples)
        columns: list[list[Any]] = []
        for at in range(result.nfields):
            read = _READERS.get(result.ftype(at))
            column = [value(row, at) for row in rows]
            if read is not None:  # bytes are what they are
                column = [None if data is None else read(data) for data in column]
            columns.append(column)
        return list(zip(*columns, strict=True))


def _numbered(text: str) -> bytes:
    """A statement with ``$1``, ``$2`` for its values."""
    first, *others = text.split("?")
    return "".join([first, *(f"${at}{part}" for at, part in enumerate(others, 1))]).encode()
