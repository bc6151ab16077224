"""Function of rows: batches of one dataset go in, rows of another come out, in order.

    read (one thread at a time) -> call, convert, coerce (several threads) -> in order of the source

What is read ahead is bounded in bytes, what was made of it as well, by what a row made so far. What
the function raises names the row: rows of a batch that fails are tried one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import field
from itertools import chain
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.metadata.row_ids import format_row_id
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    live_rows,
    page_reader,
    row_id_table,
    scan,
)
from tensorrepo.formats.dataset.reading.row_read import read_columns
from tensorrepo.formats.dataset.schema.arrow import column_array
from tensorrepo.formats.dataset.schema.coerce import coerce_batch
from tensorrepo.formats.dataset.schema.schema import Column, InputBatch, Schema
from tensorrepo.formats.dataset.schema.types import Scalar, Text
from tensorrepo.formats.dataset.schema.values import ColumnValues, concat
from tensorrepo.formats.dataset.versions.match import RowRanges
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.threads import OrderedMap

SOURCE_ROW: Final = "source_row"  # id of the source row, as text
SOURCE_PART: Final = "source_part"  # number of the row among those made of one source row
BATCH_BYTES: Final = 16 << 20
AHEAD_BYTES: Final = 128 << 20  # read, or made and not taken yet
_LEAST_ROWS: Final = 64  # of a batch that is made smaller to keep all threads at work
_RUN_ROWS: Final = 256  # rows in a row that are scanned; fewer are read one by one

# Rows in any form that users give, of columns that are known or not, as batches of columns.
Convert: TypeAlias = Callable[[Any, Schema | None], tuple[Schema, Iterable[InputBatch]]]


@dataclass(frozen=True, slots=True)
class RowFunction:
    """A function and how it is called.

    Attributes:
        call: receives a `pyarrow.RecordBatch` and gives as many rows, in any form of rows; with
            `explode` a list of rows for each.
        convert: makes batches of columns of what it gives.
        name: name of the function, for people.
        source: name of what it reads, for people.
        columns: columns of the source that it receives.
        batch_rows: most rows that it receives at once.
        threads: number of calls at once.
        explode: whether a row becomes any number of rows.
    """

    call: Callable[[pa.RecordBatch], Any]
    convert: Convert
    name: str
    source: str
    columns: tuple[str, ...]
    batch_rows: int
    threads: int
    explode: bool = False


class MadeRows(NamedTuple):
    """What was made of physical rows `rows` of the source: all columns, in the order of the schema.

    Without `explode` there is one row for each.
    """

    rows: Ints
    values: list[ColumnValues]


class _Input(NamedTuple):
    """Rows of the source, and what the function made of them where it was called already."""

    rows: Ints
    batch: pa.RecordBatch
    output: tuple[Any] | None = None


@dataclass(slots=True)
class FunctionCalls:
    """The rows of a dataset, given to a function. `schema` of its rows is found with the first."""

    source: StoredDataset
    function: RowFunction
    schema: Schema | None = None
    row_bytes: float = 0.0  # of rows made so far, the most a batch had for each row of the source
    _first: list[_Input] = field(default_factory=list)

    def find_schema(self, rows: RowRanges) -> Schema:
        """The columns that the function gives, by its first rows, which `made` then uses.

        Raises:
            InvalidInputError: it gives no rows.
        """
        assert not self._first, "the columns are found once"
        with closing(self._inputs(rows)) as inputs:
            for given in inputs:
                output = self._called(given)
                self._first.append(_Input(given.rows, given.batch, (output,)))
                if (content := self._content(given, output)) is not None:
                    return self.function.convert(content, None)[0]
        raise InvalidInputError(
            f"{self.function.source} gives {self.function.name} no rows to tell columns by: say "
            "them, types={'name': type}"
        )

    def made(self, schema: Schema, *parts: RowRanges) -> Generator[MadeRows]:
        """What the function makes of physical rows, part after part, each ascending.

        No call receives rows of two parts; calls for the next part are made ahead.

        Args:
            schema: columns of the rows that come out, hidden ones too.
            parts: rows that are not deleted; those of `find_schema`, where that was asked.

        Raises:
            InvalidInputError: rows that do not fit; names row, column, expected and found.
        """
        first, self._first = self._first, []
        skipped = sum(len(each.rows) for each in first)
        yield from (self._made(each, schema) for each in first)
        first_part, *others = parts
        results = OrderedMap[_Input, MadeRows](
            chain(self._inputs(first_part, skipped), *map(self._inputs, others)),
            lambda given: self._made(given, schema),
            threads=self.function.threads,
            bytes_ahead=AHEAD_BYTES,
            size_of=lambda given: int(given.batch.nbytes + len(given.rows) * self.row_bytes),
            name="derive",
        )
        with closing(results):
            yield from results

    # -------------------------------------------------------------------------- reading

    def _inputs(self, rows: RowRanges, skipped: int = 0) -> Generator[_Input]:
        """Batches of no more than `batch_rows` rows, and about `BATCH_BYTES`."""
        left = _behind(rows, skipped)
        names, most = self.function.columns, self._batch_rows(left.rows)
        chosen = self.source.schema.select(names)
        arrow = chosen.to_arrow()
        for numbers, values in self._read(left, names, most):
            for low in range(0, len(numbers), most):
                high = min(len(numbers), low + most)
                arrays = [
                    column_array(column, values[column.name].slice(low, high))
                    for column in chosen.columns
                ]
                batch = pa.RecordBatch.from_arrays(arrays, schema=arrow)
                yield _Input(numbers[low:high], batch)

    def _batch_rows(self, rows: int) -> int:
        """Rows of a batch, so that all threads have as many of them."""
        threads = self.function.threads
        rounds = -(-rows // (self.function.batch_rows * threads))
        even = -(-rows // max(1, rounds * threads))
        return min(self.function.batch_rows, max(_LEAST_ROWS, even))

    def _read(
        self, rows: RowRanges, names: Sequence[str], most: int
    ) -> Iterator[tuple[Ints, Mapping[str, ColumnValues]]]:
        """Long runs of rows page by page, single ones by what they take."""
        single: list[Ints] = []
        for start, stop in zip(rows.start.tolist(), rows.stop.tolist(), strict=True):
            if stop - start < _RUN_ROWS:
                single.append(np.arange(start, stop))
                continue
            yield from self._read_single(single, names, most)
            single = []
            yield from scan(self.source, names, start, stop, max_bytes=BATCH_BYTES)
        yield from self._read_single(single, names, most)

    def _read_single(
        self, single: Sequence[Ints], names: Sequence[str], most: int
    ) -> Iterator[tuple[Ints, Mapping[str, ColumnValues]]]:
        if not single:
            return
        readers = [page_reader(self.source, name) for name in names]
        known = {each.id: each for each in self.source.root.statistics}
        ids = [self.source.schema.column(name).id for name in names]
        raw_bytes = sum(known[each].raw_bytes for each in ids if each in known)
        mean = max(1.0, raw_bytes / max(1, self.source.root.rows))
        step = max(1, min(most, int(BATCH_BYTES / mean)))
        rows = np.concatenate(single)
        for low in range(0, len(rows), step):
            numbers = rows[low : low + step]
            yield numbers, dict(zip(names, read_columns(readers, numbers), strict=True))

    # -------------------------------------------------------------------------- calling

    def _made(self, given: _Input, schema: Schema) -> MadeRows:
        output = self._called(given) if given.output is None else given.output[0]
        content = self._content(given, output)
        if content is None:
            return MadeRows(given.rows, [])
        visible = schema.visible.without_ids()
        pieces = [self._coerced(given, schema, each) for each in self._batches(content, visible)]
        # What is one piece may lie in memory that the function fills again when it is called next.
        values = [
            concat(list(column)) if len(column) > 1 else column[0].copy()
            for column in zip(*pieces, strict=True)
        ]
        count = values[0].rows if values else 0
        if not self.function.explode and count != len(given.rows):
            raise InvalidInputError(
                f"{self.function.name} gave {count} rows for the {len(given.rows)} from "
                f"{self.row_text(int(given.rows[0]))}: one row in is one row out, or explode=True "
                "and a list of rows for each"
            )
        size = sum(column.nbytes for column in values) / max(1, len(given.rows))
        self.row_bytes = max(self.row_bytes, size)
        return MadeRows(given.rows, values)

    def _batches(self, content: Any, schema: Schema) -> Iterator[InputBatch]:
        for batch in self.function.convert(content, schema)[1]:
            yield from batch.to_batches() if isinstance(batch, pa.Table) else [batch]

    def _coerced(self, given: _Input, schema: Schema, batch: InputBatch) -> list[ColumnValues]:
        try:
            return coerce_batch(schema, batch)
        except InvalidInputError as error:
            raise InvalidInputError(
                f"what {self.function.name} made of the {len(given.rows)} rows from "
                f"{self.row_text(int(given.rows[0]))} on does not fit: {error}. Columns are those "
                "of the first rows, or of types={'name': type}"
            ) from error

    def _content(self, given: _Input, output: Any) -> Any:
        """The rows that the function gave; None: none."""
        if not self.function.explode:
            return output
        rows = list(self._exploded(given, output))
        return rows or None

    def _exploded(self, given: _Input, output: Any) -> Iterator[dict[str, Any]]:
        lists = list(output) if isinstance(output, Iterable) else None
        if lists is None or isinstance(output, Mapping | str) or len(lists) != len(given.rows):
            found = type(output).__name__ if lists is None else f"{len(lists)} items"
            raise InvalidInputError(
                f"{self.function.name} gave {found} for the {len(given.rows)} rows from "
                f"{self.row_text(int(given.rows[0]))} on: explode=True takes a list with a list of "
                "rows for each"
            )
        ids = row_id_table(self.source).of(given.rows)
        for row_id, made in zip(ids, lists, strict=True):
            text = format_row_id(row_id)
            for part, row in enumerate(made):
                if not isinstance(row, Mapping) or {SOURCE_ROW, SOURCE_PART} & row.keys():
                    raise InvalidInputError(
                        f"{self.function.name}: a row is a dict of columns, none of them called "
                        f"{SOURCE_ROW!r} or {SOURCE_PART!r}, got {row!r:.120}"
                    )
                yield {SOURCE_ROW: text, SOURCE_PART: part, **row}

    def _called(self, given: _Input) -> Any:
        try:
            return self.function.call(given.batch)
        except StopIteration as error:  # passed on, it would end the loop unseen
            raise RuntimeError(f"{self.function.name} raised StopIteration") from error
        except Exception as error:
            error.add_note(f"{self.function.name} failed on {self._failing(given, type(error))}")
            raise

    def _failing(self, given: _Input, kind: type[Exception]) -> str:
        """The first row that makes the function fail alone; else all of the batch."""
        for place, row in enumerate(given.rows.tolist()):
            try:
                self.function.call(given.batch.slice(place, 1))
            except kind:
                return self.row_text(row)
            except Exception:  # noqa: BLE001, S112  fails otherwise when it gets one row alone
                continue
        first, last = (self.row_text(int(given.rows[at])) for at in (0, -1))
        return f"rows from {first} to {last} together, and on none of them alone"

    def row_text(self, row: int) -> str:
        """A physical row of the source, for people."""
        rows = np.array([row])
        number = int(live_rows(self.source).live(rows)[0])
        row_id = format_row_id(row_id_table(self.source).of(rows)[0])
        return f"row {number} ({row_id}) of {self.function.source}"


def exploded_schema(schema: Schema) -> Schema:
    """The columns of rows that a function explodes, with those that say what each was made of."""
    others = [each for each in schema.columns if each.name not in (SOURCE_ROW, SOURCE_PART)]
    of_source = Column(SOURCE_ROW, Text()), Column(SOURCE_PART, Scalar("int32"))
    return Schema((*of_source, *others))


def _behind(rows: RowRanges, skipped: int) -> RowRanges:
    """The ranges without their first rows."""
    ends = np.cumsum(rows.stop - rows.start)
    at = int(np.searchsorted(ends, skipped, side="right"))
    start = rows.start[at:].copy()
    if len(start):
        start[0] += skipped - (int(ends[at - 1]) if at else 0)
    return RowRanges(start, rows.stop[at:])
