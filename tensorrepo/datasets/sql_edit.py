"""SQL over one dataset: conditions that choose its rows, expressions that give them values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from tensorrepo.formats.common.arguments import mapping, text
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.read import StoredDataset, live_rows
from tensorrepo.formats.dataset.schema.arrow_types import infer_type
from tensorrepo.formats.dataset.schema.types import ColumnType, Scalar, Tensor
from tensorrepo.formats.dataset.selecting.row_bits import bits_of
from tensorrepo.formats.dataset.selecting.select_rows import (
    Where,
    choose_rows,
    condition_rows,
    find_rows,
    is_condition,
)
from tensorrepo.formats.dataset.selecting.sql_condition import read_condition
from tensorrepo.formats.purged import refuse_purged_words
from tensorrepo.query.sql.columns import is_nested, row_shape
from tensorrepo.query.sql.duck import DuckSession
from tensorrepo.query.sql.names import quoted
from tensorrepo.query.sql.pushdown import DatasetTable, Scanned, ScannedTable
from tensorrepo.query.sql.repository_tables import SELF, row_numbers_query
from tensorrepo.query.sql.results import Result
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError


@dataclass(frozen=True, slots=True)
class _Self:
    """The one table that an expression sees."""

    dataset: StoredDataset

    def find(self, path: tuple[str, ...], scanned: Scanned) -> ScannedTable | None:
        return DatasetTable(self.dataset, scanned) if path == (SELF,) else None

    def begin(self) -> None:
        """Its one table does not change."""

    def known(self) -> Iterable[str]:
        return (SELF,)


def expression_values(
    dataset: StoredDataset, sql: str, given: ColumnType | None = None
) -> tuple[ColumnType, Iterator[pa.Array]]:
    """What an expression gives for every row: the type of it, and the values in order.

    The type is the `given` one, else that of SQL. Large tensors are lists in lists to SQL, which
    does not say their shapes: the first rows do, and one of another shape is refused later.

    Raises:
        InvalidInputError: what DuckDB says about it.
        UnsupportedError: no column holds such values.
    """
    found = _one(dataset, f"SELECT (\n{text('sql', sql)}\n) AS value FROM {SELF}")  # noqa: S608
    values = (_floats(batch.column(0)) for batch in found.batches())
    kind = _kept(found.schema.field(0).type)
    if given is not None:
        return given, values
    if not is_nested(kind):
        return infer_type(kind, sql), values
    first = list(_until_one_is_told(values))
    rows = pa.chunked_array(first, kind).combine_chunks() if first else pa.array([], kind)
    inferred = Tensor(_element(kind, sql), row_shape(rows))
    return inferred, _as_inferred(chain(first, values), inferred)


def _until_one_is_told(values: Iterator[pa.Array]) -> Iterator[pa.Array]:
    """Rows up to and with the first that are not all null."""
    for some in values:
        yield some
        if some.null_count < len(some):
            return


def _element(kind: pa.DataType, sql: str) -> str:
    while pa.types.is_nested(kind) and kind.num_fields == 1:
        kind = kind.field(0).type
    found = infer_type(_kept(kind), sql)
    if not isinstance(found, Scalar):
        raise UnsupportedError(
            f"the expression {sql!r:.200} gives lists in lists of {kind}, which no column holds: "
            "those of numbers are tensors"
        )
    return found.dtype


def _as_inferred(values: Iterable[pa.Array], inferred: Tensor) -> Iterator[pa.Array]:
    """The values, while their shape is the one that was inferred."""
    for some in values:
        shape = inferred.shape if some.null_count == len(some) else row_shape(some)
        if any(one not in (None, other) for one, other in zip(inferred.shape, shape, strict=True)):
            raise InvalidInputError(
                f"the first rows have the shape {_shown(inferred.shape)}, and others "
                f"{_shown(shape)}: give the column a type, with None for what differs, such as "
                f"Tensor({inferred.dtype!r}, {(None, *inferred.shape[1:])})"
            )
        yield some


def _shown(shape: tuple[int | None, ...]) -> str:
    return f"({', '.join('any' if each is None else str(each) for each in shape)})"


def row_selection(dataset: StoredDataset, where: Where, most: int | None = None) -> Where:
    """`where`, with a condition as text read, and answered by DuckDB where no expression says it.

    DuckDB is asked for the first `most` rows; None: for all.

    Raises:
        InvalidInputError: SQL that is wrong.
    """
    if not is_condition(where):
        return where
    refuse_purged_words(dataset.objects, str(where))
    condition = read_condition(str(where), dataset.schema)
    if condition.expression is not None:
        return condition
    session = DuckSession(_Self(dataset))
    _require_bools(session, condition.sql)
    few = "" if most is None else f" LIMIT {most}"
    query = row_numbers_query(dataset, "", condition.sql) + few
    rows = session.query(query, single=True)
    numbers = (batch.column(0).to_numpy() for batch in rows.batches())
    return replace(condition, rows=bits_of(dataset.rows, numbers))


def _require_bools(session: DuckSession, condition: str) -> None:
    """Raise InvalidInputError for what is no condition: SQL takes any number but 0 for true."""
    asked = f"SELECT (\n{condition}\n) AS value FROM {SELF} LIMIT 0"  # noqa: S608
    kind = session.query(asked, single=True).arrow().schema.field(0).type
    if not (pa.types.is_boolean(kind) or pa.types.is_null(kind)):
        raise InvalidInputError(
            f"condition {condition!r:.200}: expected true or false for each row, found {kind}. "
            "Compare it with something, as in `x > 3`"
        )


def fitting_rows(dataset: StoredDataset, where: Where, most: int | None = None) -> Ints:
    """Physical rows that `where` names, ascending: the first `most`; None: all.

    No more is read than it takes to find them.
    """
    condition = row_selection(dataset, where, most)
    numbers = condition_rows(dataset, condition)
    if numbers is None:
        return choose_rows(dataset, condition, strict=False).rows[:most]
    found, count = [np.zeros(0, np.int64)], 0
    for some in numbers:
        found.append(some)
        count += len(some)
        if most is not None and count >= most:
            break
    return live_rows(dataset).physical(np.concatenate(found)[:most])


def expression_updates(
    dataset: StoredDataset, values: Mapping[str, str], where: Where | None
) -> tuple[np.ndarray[Any, Any], dict[str, pa.ChunkedArray]]:
    """Numbers of the rows that `where` names, ascending, and what expressions give for each."""
    columns = "".join(
        f", (\n{text('an expression', sql)}\n) AS {quoted(text('the name of a column', name))}"
        for name, sql in mapping("values", values, "expressions").items()
    )
    condition = read_condition(str(where), dataset.schema) if is_condition(where) else None
    session = DuckSession(_Self(dataset))
    if condition is not None and condition.expression is None:
        _require_bools(session, condition.sql)
    query = row_numbers_query(dataset, columns, None if condition is None else condition.sql)
    answer = session.query(query, single=True).arrow()
    if condition is None and where is not None:
        named = np.isin(answer.column(0).to_numpy(), find_rows(dataset, where))
        answer = answer.filter(pa.array(named))
    return answer.column(0).to_numpy(), dict(
        zip(values, map(_floats, answer.columns[1:]), strict=True)
    )


def _kept(arrow_type: pa.DataType) -> pa.DataType:
    """Numbers such as 1.5 are decimals to SQL, and floats to us."""
    return pa.float64() if pa.types.is_decimal(arrow_type) else arrow_type


def _floats(values: Any) -> Any:
    kept = _kept(values.type)
    return values if kept == values.type else values.cast(kept)


def _one(dataset: StoredDataset, query: str) -> Result:
    """The rows of one statement: an expression must not end it and begin another."""
    return DuckSession(_Self(dataset)).query(query, single=True)
