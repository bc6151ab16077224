"""Query results: lazy rows, interruptible by Ctrl-C.

Nothing is read before rows are taken, and what was handed out is not kept. DuckDB works on a thread
of its own, so that Ctrl-C is heard while it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import field
from functools import partial
from itertools import chain, islice
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa

from tensorrepo.formats.common.tensors import import_library
from tensorrepo.query.sql.pushdown import Scanned
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.tables import RecordTable, printable

BATCH_ROWS = 1 << 16
SHOWN_ROWS = 20
NOTHING = pa.schema([])
NEEDS_PANDAS: Final = "df() needs pandas: `pip install pandas`"
NEEDS_POLARS: Final = "pl() needs polars: `pip install polars`"

# What other libraries call it.
_WORDS = {
    "to_pandas": "result.df()",
    "to_df": "result.df()",
    "to_polars": "result.pl()",
    "to_arrow": "result.arrow(), or result.reader() for batches",
    "to_arrow_table": "result.arrow()",
    "to_numpy": "result.numpy()",
    "fetchnumpy": "result.numpy()",
    "fetchall": "list(result), whose items are dicts",
    "fetchone": "next(iter(result))",
    "rows": "for row in result: ..., or list(result)",
}


@dataclass(slots=True, eq=False, repr=False)
class Result:
    """Rows of a query: iterate over them as dicts, or take them as Arrow, pandas or polars.

    They can be taken once, and only while the session that asked is open.
    """

    connection: Any
    relation: Any
    scanned: Scanned
    reworded: Callable[[], AbstractContextManager[None]]
    _reader: pa.RecordBatchReader | None = None
    _ahead: list[pa.RecordBatch] = field(default_factory=list)
    _taken: bool = False

    @property
    def schema(self) -> pa.Schema:
        """Names and Arrow types of the columns."""
        return NOTHING if self.relation is None else self._open().schema

    @property
    def columns(self) -> list[str]:
        return [] if self.relation is None else list(self.relation.columns)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Rows as Arrow batches."""
        if self._taken:
            raise InvalidInputError("these rows were taken already: ask the query again")
        self._taken = True
        return chain(self._ahead, self._rest())

    def reader(self) -> pa.RecordBatchReader:
        """The same, as Arrow hands streams on to others."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def arrow(self) -> pa.Table:
        """All rows as one Arrow table."""
        return pa.Table.from_batches(self.batches(), self.schema)

    def df(self) -> Any:
        """All rows as a pandas data frame."""
        import_library("pandas", NEEDS_PANDAS)  # before the rows are taken
        return _with_integers(self.arrow()).to_pandas()

    def pl(self) -> Any:
        """All rows as a polars data frame."""
        polars = import_library("polars", NEEDS_POLARS)
        self._check_names("a frame of polars holds one of them")
        return polars.from_arrow(self.arrow())

    def numpy(self) -> dict[str, Any]:
        """All rows as a dict of columns, as ``ds[:]`` gives them.

        Numbers, moments and tensors of one shape are arrays, masked ones only where some are null;
        anything else is a list.
        """
        self._check_names("a dict holds one of them")
        table = _with_integers(self.arrow()).combine_chunks()
        return {name: _plain(table.column(name).combine_chunks()) for name in table.column_names}

    def __getattr__(self, name: str) -> NoReturn:
        told = f"Result has no attribute {name!r}"
        raise AttributeError(f"{told}: {_WORDS[name]}" if name in _WORDS else told)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        self._check_names("a dict holds one of them")
        columns = self.columns
        for batch in self.batches():
            yield from (dict(zip(columns, row, strict=True)) for row in rows_of(batch))

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Whoever reads Arrow's streams can take a result as it is."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        if self._taken or self.relation is None:
            return f"<result of {', '.join(self.columns) or 'a statement without rows'}>"
        rows, more = self.head()
        dots = "\n..." if more else ""
        return f"<result of {', '.join(self.columns)}>\n{as_text(self.columns, rows)}{dots}"

    def _repr_html_(self) -> str:
        rows, more = self.head() if not self._taken else ([], False)
        cells = tuple(tuple("" if value is None else value for value in row) for row in rows)
        title = f"result of {', '.join(self.columns) or 'a statement without rows'}"
        below = RecordTable(("... and more",)).html() if more else ""
        names = tuple(name.removeprefix(">") for name in self.columns) if rows else ()
        return RecordTable((title,), names, cells).html() + below

    def head(self, rows: int = SHOWN_ROWS) -> tuple[list[list[Any]], bool]:
        """The first rows, which stay to be taken; and whether there are more."""
        if self.relation is None:
            return [], False
        reader = self._open()
        while sum(batch.num_rows for batch in self._ahead) <= rows:
            batch = self._interruptible(partial(_next, reader))
            if batch is None:
                break
            self._ahead.append(batch)
        first = (batch.slice(0, rows + 1) for batch in self._ahead)
        found = list(islice(map(list, chain.from_iterable(map(rows_of, first))), rows + 1))
        return found[:rows], len(found) > rows

    def _check_names(self, why: str) -> None:
        twice = [name for name, times in Counter(self.columns).items() if times > 1]
        if twice:
            raise InvalidInputError(
                f"several columns are called {twice[0]!r}, and {why}: name them by AS, or take the "
                "rows by arrow(), df() or batches()"
            )

    def _open(self) -> pa.RecordBatchReader:
        if self._reader is None:
            self._reader = self._interruptible(partial(self.relation.to_arrow_reader, BATCH_ROWS))
        return self._reader

    def _rest(self) -> Iterator[pa.RecordBatch]:
        if self.relation is None:
            return
        reader = self._open()
        while (batch := self._interruptible(partial(_next, reader))) is not None:
            yield batch

    def _interruptible(self, work: Callable[[], Any]) -> Any:
        """`work` on another thread: this one hears of Ctrl-C, and stops DuckDB and its scans."""
        with self.reworded(), ThreadPoolExecutor(1, "duckdb") as thread:
            future = thread.submit(work)
            try:
                return future.result()
            except KeyboardInterrupt:
                self.scanned.stop.set()
                self.connection.interrupt()
                raise


def _next(reader: pa.RecordBatchReader) -> pa.RecordBatch | None:
    try:
        return reader.read_next_batch()
    except StopIteration:  # which must not cross a future
        return None


def _plain(values: pa.Array) -> Any:
    """Values of a column: an array where they are numbers or moments of one shape, else a list."""
    shape, flat = [len(values)], values
    while pa.types.is_fixed_size_list(flat.type) and not flat.null_count:
        shape.append(flat.type.list_size)
        flat = flat.flatten()
    kind = flat.type
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    if not is_number and not pa.types.is_timestamp(kind):
        return values.to_pylist()
    if not flat.null_count:
        return flat.to_numpy(zero_copy_only=False).reshape(shape)
    nulls = flat.is_null().to_numpy(zero_copy_only=False)
    zero = pa.scalar(0, pa.int64()).cast(kind)
    known = flat.fill_null(zero).to_numpy(zero_copy_only=False)
    return np.ma.MaskedArray(known.reshape(shape), nulls.reshape(shape))


def rows_of(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    """Values of each row as Python has them; columns may have the same name."""
    return zip(*map(_values, batch.columns), strict=True)


def _values(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    if not _is_huge(column.type):
        return values
    return [None if value is None else int(value) for value in values]


def _is_huge(kind: pa.DataType) -> bool:
    """Whether this is how Arrow gets integers of 128 bits, of which DuckDB makes sums."""
    return bool(pa.types.is_decimal128(kind)) and kind == pa.decimal128(38, 0)


def _with_integers(table: pa.Table) -> pa.Table:
    """The table, whose integers of 128 bits are of 64 where those hold all of a column."""
    for at, column in enumerate(table.columns):
        if _is_huge(column.type):
            with suppress(pa.ArrowInvalid):
                table = table.set_column(at, table.field(at).name, column.cast(pa.int64()))
    return table


def as_text(columns: list[str], rows: list[list[Any]], width: int = 40) -> str:
    """Rows as a table for people, columns side by side."""
    cells = [[_cell(each, width) for each in row] for row in [columns, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(each.ljust(to) for each, to in zip(row, widths, strict=True)) for row in cells
    ]
    return "\n".join(line.rstrip() for line in lines)


def _cell(value: Any, width: int) -> str:
    text = "" if value is None else f"{value}"
    text = printable(text[: width + 1])
    return text if len(text) <= width else text[: width - 1] + "…"
