"""Rows as an Arrow stream: of some columns, where a condition holds, images made smaller.

Bytes are made as they are taken, some rows at a time; what can be wrong with a request is found
before the first of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tensorrepo.api.content.cells import MOST_SIDE_PIXELS, mean_bytes, shrunk
from tensorrepo.api.content.commit_content import CommitContent
from tensorrepo.api.content.rows import PAGE_BYTES, AskCondition, chosen_columns, plain_condition
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.read import StoredDataset, read_live
from tensorrepo.formats.dataset.schema.arrow import column_array
from tensorrepo.formats.dataset.schema.cells import has_pictures
from tensorrepo.formats.dataset.schema.convert import present_row
from tensorrepo.formats.dataset.schema.schema import Column, Image, Schema
from tensorrepo.formats.dataset.schema.values import ColumnValues
from tensorrepo.formats.dataset.selecting.select_rows import condition_rows
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NoSuchRowError

MOST_TAKEN: Final = 100_000  # row numbers of one request
SEARCH_SECONDS: Final = 60.0  # without a row that meets a condition
_BATCH_ROWS: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class ArrowRequest:
    """Which rows are asked for, and how.

    Attributes:
        columns: names of columns, in this order; none: all that a user gave.
        where: SQL condition that rows meet; "" is none.
        start: number of the first row that is looked at.
        stop: number of the row before which to stop; None: the end.
        take: numbers of rows, in this order; none: those of the range.
        resize: pictures come as PNGs that fit a square of so many pixels; None: as they are stored.
    """

    columns: tuple[str, ...] = ()
    where: str = ""
    start: int = 0
    stop: int | None = None
    take: tuple[int, ...] = ()
    resize: int | None = None

    def __post_init__(self) -> None:
        if self.start < 0 or (self.stop is not None and self.stop < self.start):
            raise InvalidInputError(
                f"rows [{self.start}, {self.stop}): expected 0 <= start <= stop"
            )
        if self.take and (self.where or self.start or self.stop is not None):
            raise InvalidInputError("`take` names the rows: give nothing else that chooses some")
        if len(self.take) > MOST_TAKEN:
            raise InvalidInputError(f"`take` names at most {MOST_TAKEN:,} rows: ask several times")
        if self.resize is not None and not 1 <= self.resize <= MOST_SIDE_PIXELS:
            raise InvalidInputError(f"resize is 1 to {MOST_SIDE_PIXELS:,} pixels")


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """Rows that are read as they are taken."""

    schema: pa.Schema
    batches: Iterator[pa.RecordBatch]

    def stream(self) -> Iterator[bytes]:
        """Arrow's stream format, piece by piece."""
        return stream_bytes(self.schema, self.batches)


def read_arrow(
    content: CommitContent,
    path: str,
    request: ArrowRequest,
    *,
    ask: AskCondition | None = None,
    timer: Callable[[], float] = time.monotonic,
) -> ArrowRows:
    """Rows of a dataset or a view; `ask` and `timer` are as for `read_rows`.

    Raises:
        NotFoundError: no such entry or column.
        NoSuchRowError: a row of `take` that is not there.
        InvalidInputError: a condition that does not fit the columns.
    """
    dataset = content.dataset(path)
    stored = chosen_columns(dataset, request.columns)
    given = [_given(column, request.resize) for column in stored]
    numbers = _numbers(dataset, request, ask, timer)
    batches = _batches(dataset, stored, given, numbers, request.resize)
    return ArrowRows(Schema(tuple(given)).to_arrow(), batches)


def stream_bytes(schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> Iterator[bytes]:
    """Batches in Arrow's stream format, as pieces of bytes."""
    pieces = _Pieces()
    with pa.ipc.new_stream(pa.PythonFile(pieces, "w"), schema) as writer:
        yield from pieces.drain()
        for batch in batches:
            writer.write_batch(batch)
            yield from pieces.drain()
    yield from pieces.drain()


class _Pieces:
    """A file that holds what was written until it is taken."""

    closed = False

    def __init__(self) -> None:
        self._held: list[bytes] = []

    def write(self, data: Any) -> int:
        self._held.append(bytes(data))
        return len(self._held[-1])

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """What is held stays until it is taken."""

    def drain(self) -> Iterator[bytes]:
        held, self._held = self._held, []
        if held:
            yield b"".join(held)


def _given(column: Column, resize: int | None) -> Column:
    """A column as it is sent."""
    if resize is None or not has_pictures(column.type):
        return column
    return replace(column, type=Image("png"), nullable=True, arrow=None, default=None)


def _numbers(
    dataset: StoredDataset,
    request: ArrowRequest,
    ask: AskCondition | None,
    timer: Callable[[], float],
) -> Iterator[range | Ints]:
    """Numbers of the rows, some at a time."""
    if request.take:
        beyond = next((row for row in request.take if not 0 <= row < dataset.rows), None)
        if beyond is not None:
            raise NoSuchRowError(f"no row {beyond}: there are {dataset.rows:,}, counted from 0")
        return iter([np.array(request.take, np.int64)])
    stop = dataset.rows if request.stop is None else min(request.stop, dataset.rows)
    if not request.where:
        return iter([range(min(request.start, stop), stop)])
    condition = plain_condition(dataset, request.where, ask)
    if condition.expression is None and ask is not None:
        return _before(iter([ask(dataset, condition.sql, request.start, None)]), stop)
    found = condition_rows(dataset, condition, start=request.start)
    assert found is not None, "it is a condition"
    return _before(_in_time(found, timer), stop)


def _in_time(found: Iterator[Ints], timer: Callable[[], float]) -> Iterator[Ints]:
    """What a search finds, while it finds something now and then."""
    until = timer() + SEARCH_SECONDS
    for numbers in found:
        yield numbers
        if len(numbers):
            until = timer() + SEARCH_SECONDS
        elif timer() > until:
            raise InvalidInputError(
                f"no row was found for {SEARCH_SECONDS:g} s: ask for a range of rows, by start and "
                "stop, and go on behind it"
            )


def _before(found: Iterator[Ints], stop: int) -> Iterator[Ints]:
    for numbers in found:
        yield numbers[: np.searchsorted(numbers, stop)]
        if len(numbers) and numbers[-1] >= stop:
            return


def _batches(
    dataset: StoredDataset,
    stored: Sequence[Column],
    given: Sequence[Column],
    numbers: Iterator[range | Ints],
    resize: int | None,
) -> Iterator[pa.RecordBatch]:
    names, schema = [column.name for column in stored], Schema(tuple(given)).to_arrow()
    row_bytes = sum(mean_bytes(dataset, column) for column in stored)
    step = max(1, min(_BATCH_ROWS, int(PAGE_BYTES / max(row_bytes, 1.0))))
    for some in numbers:
        for at in range(0, len(some), step):
            read = read_live(dataset, names, some[at : at + step])
            arrays = [
                column_array(column, values)
                if sent is column
                else _pictures(column, values, resize)
                for column, sent, values in zip(stored, given, read, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _pictures(column: Column, values: ColumnValues, resize: int | None) -> pa.Array:
    """Pictures made smaller; null where one cannot be decoded."""
    assert resize is not None, "else columns are sent as they are"
    sent = _given(column, resize)
    rows = (present_row(column, values, at) for at in range(values.rows))
    small = [None if value is None else shrunk(column, value, resize) for value in rows]
    kind = sent.arrow_type
    storage = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    array = pa.array(small, storage)
    return pa.ExtensionArray.from_storage(kind, array) if storage is not kind else array
