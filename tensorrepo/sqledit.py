"""Which values does an SQL expression give the rows of a dataset that is being changed?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tensorrepo.formats.dataset.columns.arrow_types import infer_type
from tensorrepo.query.duck import Session
from tensorrepo.query.pushdown import DatasetTable
from tensorrepo.query.sqlnames import quoted
from tensorrepo.sql import SELF

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tensorrepo.formats.dataset.columns.types import ColumnType
    from tensorrepo.formats.dataset.read import Dataset
    from tensorrepo.query.arrowscan import Scanned, Table
    from tensorrepo.query.results import Result


@dataclass(frozen=True, slots=True)
class _Self:
    """The one table that an expression sees."""

    dataset: Dataset

    def find(self, path: tuple[str, ...], scanned: Scanned) -> Table | None:
        return DatasetTable(self.dataset, scanned) if path == (SELF,) else None

    def begin(self) -> None:
        """Its one table does not change."""

    def known(self) -> Iterable[str]:
        return (SELF,)


def expression_values(
    dataset: Dataset, sql: str, given: ColumnType | None = None
) -> tuple[ColumnType, Iterator[pa.Array]]:
    """What an expression gives for every row: the type of it, and the values in order.

    The type is the `given` one. SQL does not say the shapes of large tensors: without it those
    raise UnsupportedError.

    Raises:
        InvalidInputError: what DuckDB says about it.
    """
    found = _one(dataset, f"SELECT (\n{sql}\n) AS value FROM {SELF}")  # noqa: S608
    values = (_floats(batch.column(0)) for batch in found.batches())
    if given is not None:
        return given, values
    return infer_type(_kept(found.schema.field(0).type), sql), values


def expression_updates(
    dataset: Dataset, values: Mapping[str, str], where: str | None
) -> tuple[np.ndarray[Any, Any], dict[str, pa.ChunkedArray]]:
    """Numbers of the rows for which `where` is true, and what expressions give for each of them."""
    chosen = [f"(\n{sql}\n) AS {quoted(name)}" for name, sql in values.items()]
    query = f"SELECT row_number, {', '.join(chosen)} FROM {SELF}"  # noqa: S608
    if where is not None:
        query += f" WHERE (\n{where}\n)"
    found = _one(dataset, query).arrow()
    columns = dict(zip(values, map(_floats, found.columns[1:]), strict=True))
    return found.column(0).to_numpy(), columns


def _kept(arrow_type: pa.DataType) -> pa.DataType:
    """Numbers such as 1.5 are decimals to SQL, and floats to us."""
    return pa.float64() if pa.types.is_decimal(arrow_type) else arrow_type


def _floats(values: Any) -> Any:
    kept = _kept(values.type)
    return values if kept == values.type else values.cast(kept)


def _one(dataset: Dataset, query: str) -> Result:
    """The rows of one statement: an expression must not end it and begin another."""
    session = Session(_Self(dataset))
    return session.query(query, single=True)
