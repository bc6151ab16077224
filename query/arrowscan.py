"""What does DuckDB take for a table whose columns and filters it may push down?

Subclasses of `pyarrow.dataset.Dataset`: it asks them for a scanner of some columns of the rows for
which an expression is true, takes the reader of that, and believes it. Other objects that can do
the same are read whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc


class Table(Protocol):
    """What SQL can read."""

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def shown(self) -> Sequence[str]:
        """The columns that ``*`` stands for; others are there for queries that name them."""

    def reader(self, columns: Sequence[str], where: pc.Expression | None) -> pa.RecordBatchReader:
        """Rows of some columns for which `where` is true."""


@dataclass(slots=True)
class Scanned:
    """What queries have read so far, and whether they shall go on.

    `failed` is the error that ended a scan: DuckDB passes on its text alone.
    """

    pages: int = 0
    rows: int = 0
    stop: Event = field(default_factory=Event)
    failed: BaseException | None = None

    def begin(self) -> None:
        """The next query: what stopped or failed the last one is none of its concern."""
        self.stop.clear()
        self.failed = None


class StoppedError(Exception):
    """A scan was told to stop."""


def noting(scanned: Scanned, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """`batches`; what ends them too early is kept for who asked."""
    try:
        yield from batches
    except GeneratorExit:  # nobody wants more rows: nothing failed
        raise
    except BaseException as error:
        scanned.failed = scanned.failed or error
        raise


@cache
def _arrow_dataset_class() -> type:
    import pyarrow.dataset  # a third of a second: loaded by who asks SQL

    class PushedDown(pyarrow.dataset.Dataset):  # type: ignore[misc]  # pyarrow is untyped
        """DuckDB pushes columns and filters into subclasses alone."""

        def __init__(self, table: Any) -> None:
            self._table = table

        @property
        def schema(self) -> pa.Schema:
            return self._table.schema

        def scanner(
            self,
            columns: Sequence[str] | None = None,
            filter: pc.Expression | None = None,  # noqa: A002 - pyarrow's name for it
            **_: Any,
        ) -> _Scanner:
            names = self.schema.names if columns is None else columns
            return _Scanner(lambda: self._table.reader(names, filter))

    return PushedDown


def as_arrow_dataset(table: Any) -> Any:
    """A table with a `schema` and a `reader(columns, where)`, for `duckdb.register`."""
    return _arrow_dataset_class()(table)


@dataclass(frozen=True, slots=True)
class _Scanner:
    """The one method that DuckDB calls of Arrow's scanners."""

    to_reader: Callable[[], pa.RecordBatchReader]
