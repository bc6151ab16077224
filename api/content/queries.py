"""SQL of callers: over what they may read, in a process of its own, with limits.

A query sees datasets and views of commits that refs lead to which its caller may read, and the rows
of the catalog that belong to these: both are left out here, before Arrow leaves this process.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pydantic import Field

from tensorrepo.api.content.arrow import stream_bytes
from tensorrepo.api.content.catalogs import Catalogs
from tensorrepo.api.content.commit_content import CommitContent, Record
from tensorrepo.api.content.query_gate import QueryGate
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.common.json import as_plain
from tensorrepo.formats.dataset.external.outside import Nothing
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.json_values import value_json
from tensorrepo.query.sql.duck import Params
from tensorrepo.query.sql.repository_tables import RepositoryTables, row_numbers_query
from tensorrepo.query.sql.results import Result, rows_of
from tensorrepo.query.untrusted.sandbox import QueryLimits, query_sandboxed
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

PAGE_BYTES: Final = 8 << 20  # of Arrow, in one page of JSON
MOST_ROWS: Final = 10_000  # of one page


class ResultColumn(Record):
    """A column of a result."""

    name: str
    type: str = Field(description="Its Arrow type.")


class SqlPage(Record):
    """Some rows of a result, each a list in the order of the columns."""

    commit: str = Field(description="Commit that was asked: name it as `ref` for more pages.")
    columns: list[ResultColumn]
    rows: list[list[Any]]
    next: int | None = Field(
        default=None,
        description="`start` of the page that follows. Its rows are those that follow only where "
        "the query says ORDER BY.",
    )


@dataclass(frozen=True, slots=True)
class SqlQueries:
    """What answers the queries of a service."""

    catalogs: Catalogs
    gate: QueryGate
    limits: QueryLimits

    def page(
        self,
        content: CommitContent,
        query: str,
        params: Params = None,
        *,
        start: int = 0,
        limit: int = 100,
    ) -> SqlPage:
        """Some rows of the result of one SELECT.

        Raises:
            InvalidInputError: it is no single SELECT, it is wrong, or it went beyond a limit.
            NotFoundError: a table that is not there for this caller.
            PermissionDenied: it asks for files, extensions or settings.
            RateLimitedError: too many queries run.
        """
        if start < 0 or not 1 <= limit <= MOST_ROWS:
            raise InvalidInputError(f"start is 0 or more, limit 1 to {MOST_ROWS:,}")
        with self._asked(content, query, params) as result:
            columns = [ResultColumn(name=each.name, type=str(each.type)) for each in result.schema]
            rows, more = _some_rows(result, start, limit)
        return SqlPage(
            commit=content.commit,
            columns=columns,
            rows=rows,
            next=start + len(rows) if more else None,
        )

    def stream(self, content: CommitContent, query: str, params: Params = None) -> Iterator[bytes]:
        """The result as an Arrow stream, made while it is taken. Raises as `page` does."""
        asked = self._asked(content, query, params)
        try:
            batches = asked.result.batches()
            first = next(batches, None)  # what is wrong with a query shows with its first rows
        except BaseException:
            asked.close()
            raise
        return _streamed(asked, first, batches)

    def rows_where(
        self,
        content: CommitContent,
        dataset: StoredDataset,
        condition: str,
        start: int = 0,
        most: int | None = None,
    ) -> Ints:
        """Numbers of the rows of a dataset for which a condition is true, ascending.

        Raises as `page` does.

        Args:
            content: commit that has it.
            dataset: the dataset.
            condition: in SQL.
            start: number of the first row that is looked at.
            most: largest number of rows; None: all, within the limits.
        """
        found = row_numbers_query(dataset, "", condition)
        limit = "" if most is None else f" LIMIT {most}"
        query = f"{found} AND row_number >= {start} ORDER BY row_number{limit}"
        with self._asked(content, query, None, this=dataset) as result:
            parts = [batch.column(0).to_numpy() for batch in result.batches()]
        numbers = np.concatenate([np.zeros(0, np.int64), *parts])
        if len(numbers) and not 0 <= numbers[0] <= numbers[-1] < dataset.rows:
            raise InvalidInputError("this condition is none: it gives rows that are not there")
        return numbers

    def _asked(
        self,
        content: CommitContent,
        query: str,
        params: Params,
        *,
        this: StoredDataset | None = None,
    ) -> _Asked:
        access = content.access
        tables = RepositoryTables(
            access.core,
            content.commit,
            access.resolve,
            lambda: self.catalogs.seen_by(access),
            Nothing(),
            this,
            content.memory.pages,
        )
        caller = access.caller.token_id or access.caller.name
        with ExitStack() as stack:
            stack.enter_context(self.gate.entered(caller))
            result = query_sandboxed(tables, query, self.limits, _plain(params))
            stack.callback(result.connection.interrupt)
            return _Asked(result, stack.pop_all())


@dataclass(frozen=True, slots=True)
class _Asked:
    """A query that runs: its result, and what ends its process and makes room for others."""

    result: Result
    stack: ExitStack

    def __enter__(self) -> Result:
        return self.result

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.stack.close()


def _some_rows(result: Result, start: int, limit: int) -> tuple[list[list[Any]], bool]:
    """Rows ``[start, start + limit)``, fewer where they are large, and whether there are more."""
    rows: list[list[Any]] = []
    passed = size = 0
    for batch in result.batches():
        skipped = min(start - passed, batch.num_rows)
        passed += skipped
        wanted = batch.slice(skipped)
        if wanted.num_rows and (len(rows) == limit or size >= PAGE_BYTES):
            return rows, True
        room = wanted.slice(0, limit - len(rows))
        rows += [list(map(value_json, row)) for row in rows_of(room)]
        size += room.nbytes
        if room.num_rows < wanted.num_rows:
            return rows, True
    return rows, False


def _streamed(
    asked: _Asked, first: pa.RecordBatch | None, rest: Iterator[pa.RecordBatch]
) -> Iterator[bytes]:
    def batches() -> Iterator[pa.RecordBatch]:
        if first is not None:
            yield first
        yield from rest

    with closing(asked):
        yield from stream_bytes(asked.result.schema, batches())


def _plain(params: Params) -> Params:
    if params is None or isinstance(params, dict):
        return None if params is None else {name: as_plain(each) for name, each in params.items()}
    return [as_plain(each) for each in params]
