"""Error policy of input rows: rows that do not fit are skipped, or lose the value.

Only when a whole batch is refused are its rows tried in halves, so that good batches cost nothing.
A batch whose columns are wrong is refused all the same: none of its rows would fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal, cast

import pyarrow as pa

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.dataset.schema.coerce import coerce_batch
from tensorrepo.formats.dataset.schema.schema import InputBatch, Schema
from tensorrepo.formats.dataset.schema.values import ColumnValues, concat
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

OnMisfit = Literal["raise", "skip", "null"]
MAX_NOTED = 1000


def parse_on_error(text: str) -> OnMisfit:
    """What to do about rows that do not fit, in a user's words."""
    if text not in ("raise", "skip", "null"):
        raise InvalidInputError(f"on_error is raise, skip or null, got {text!r}")
    return cast("OnMisfit", text)


@dataclass(frozen=True, slots=True)
class Misfit:
    """A row that did not fit, counted in the input. `column` is the one that became null; None: the
    row was passed over.
    """

    row: int
    column: str | None
    reason: str


@dataclass(slots=True)
class Misfits:
    """What was done about rows that did not fit: how many, and the first `MAX_NOTED` of them.

    `rows` counts the input, whatever became of its rows: errors name rows by it.
    """

    on_error: OnMisfit = "raise"
    rows: int = 0
    skipped: int = 0
    nulled: int = 0
    noted: list[Misfit] = field(default_factory=list)

    def __post_init__(self) -> None:
        parse_on_error(self.on_error)

    @property
    def summary(self) -> str:
        """In words; empty when every row fitted."""
        parts = [f"{counted(self.skipped, 'row')} skipped"] if self.skipped else []
        parts += [f"{counted(self.nulled, 'value')} set to null"] if self.nulled else []
        return ", ".join(parts)

    def meet(self, row: int, column: str | None, reason: object) -> None:
        if column is None:
            self.skipped += 1
        else:
            self.nulled += 1
        if len(self.noted) < MAX_NOTED:
            self.noted.append(Misfit(row, column, str(reason)))


def coerce_leniently(schema: Schema, batch: InputBatch, misfits: Misfits) -> list[ColumnValues]:
    """`coerce_batch` for the rows that fit; the others become what `misfits.on_error` says.

    Raises:
        InvalidInputError: the columns themselves do not fit, or `on_error` is "raise".
    """
    first_row = misfits.rows
    try:
        values = coerce_batch(schema, batch, first_row)
    except InvalidInputError:
        if misfits.on_error == "raise":
            raise
    else:
        misfits.rows += values[0].rows
        return values
    misfits.rows += batch_rows(batch)
    nothing = coerce_batch(schema, batch_part(batch, 0, 0), first_row)  # refuses wrong columns
    pieces = _fitting(schema, batch, first_row, misfits)
    return [concat(column) for column in zip(*(pieces or [nothing]), strict=True)]


def _fitting(
    schema: Schema, batch: InputBatch, first_row: int, misfits: Misfits
) -> list[list[ColumnValues]]:
    rows = batch_rows(batch)
    try:
        return [coerce_batch(schema, batch, first_row)]
    except InvalidInputError as error:
        if rows == 1:
            return _mended(schema, batch, first_row, misfits, error)
    half = rows // 2
    return [
        *_fitting(schema, batch_part(batch, 0, half), first_row, misfits),
        *_fitting(schema, batch_part(batch, half, rows), first_row + half, misfits),
    ]


def _mended(
    schema: Schema, row: InputBatch, number: int, misfits: Misfits, error: InvalidInputError
) -> list[list[ColumnValues]]:
    """One row that does not fit: without its bad values, or not at all."""
    columns = _columns(row)
    known = columns.keys() <= set(schema.names)
    tried = {name: _problem(schema, name, columns[name], number) for name in columns if known}
    bad = {name: problem for name, problem in tried.items() if problem}
    nullable = all(schema.column(name).nullable for name in bad)
    if misfits.on_error == "null" and bad and nullable:
        mended = coerce_batch(schema, {**columns, **{name: [None] for name in bad}}, number)
        for name, problem in bad.items():
            misfits.meet(number, name, problem)
        return [mended]
    misfits.meet(number, None, error)
    return []


def _problem(schema: Schema, name: str, values: Any, row: int) -> str:
    """Why a value does not fit its column; empty when it does."""
    try:
        coerce_batch(schema.select([name]), {name: values}, row)
    except InvalidInputError as error:
        return str(error)
    return ""


def batch_rows(batch: InputBatch) -> int:
    """How many rows a batch has."""
    if isinstance(batch, pa.RecordBatch | pa.Table):
        return int(batch.num_rows)
    if isinstance(batch, Mapping):
        lengths = {len(values) for values in batch.values()}
        if len(lengths) != 1:
            raise InvalidInputError(f"columns of a batch have {sorted(lengths)} rows")
        return lengths.pop()
    return len(batch)


def batch_part(batch: InputBatch, start: int, stop: int) -> InputBatch:
    """Rows ``[start, stop)`` of a batch."""
    if isinstance(batch, pa.RecordBatch | pa.Table):
        return batch.slice(start, stop - start)
    if isinstance(batch, Mapping):
        return {name: values[start:stop] for name, values in batch.items()}
    return batch[start:stop]


def _columns(row: InputBatch) -> dict[str, Any]:
    if isinstance(row, pa.RecordBatch | pa.Table):
        return dict(zip(row.schema.names, row.columns, strict=True))
    if isinstance(row, Mapping):
        return dict(row)
    return {name: [value] for name, value in row[0].items()}
