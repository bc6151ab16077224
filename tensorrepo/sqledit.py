"""Which values does an SQL expression give the rows of a dataset that is being changed?"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tensorrepo.formats.dataset.columns.arrow_types import infer_type
from tensorrepo.formats.dataset.columns.types import Scalar, Tensor
from tensorrepo.given import mapping, text
from tensorrepo.query.duck import Session
from tensorrepo.query.pushdown import DatasetTable
from tensorrepo.query.sqlcolumns import is_nested, row_shape
from tensorrepo.query.sqlnames import quoted
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError
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


def expression_updates(
    dataset: Dataset, values: Mapping[str, str], where: str | None
) -> tuple[np.ndarray[Any, Any], dict[str, pa.ChunkedArray]]:
    """Numbers of the rows for which `where` is true, and what expressions give for each of them."""
    chosen = [
        f"(\n{text('an expression', sql)}\n) AS {quoted(text('the name of a column', name))}"
        for name, sql in mapping("values", values, "expressions").items()
    ]
    query = f"SELECT row_number, {', '.join(chosen)} FROM {SELF}"  # noqa: S608
    if where is not None:
        query += f" WHERE (\n{text('where', where)}\n)"
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
