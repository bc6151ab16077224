"""Read delimited text and pass over the rows that do not fit, telling which and why.

Arrow stops at the first cell that does not convert. So every cell comes as text here and is
converted by column; only where that fails, value by value. Slower than `csv`, and only used when
damaged rows shall be skipped.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tensorrepo.formats.damage import damage
from tensorrepo.formats.exchange.base import Damage


class RowsOfOtherWidth:
    """Told by Arrow of rows that have too many cells or too few; keeps their numbers."""

    def __init__(self, path: Path, met: Damage, *, header: bool) -> None:
        self._path, self._met = path, met
        self._before = 2 if header else 1  # Arrow counts from 1, and the header too
        self.numbers: list[int] = []

    def __call__(self, row: Any) -> str:
        number = row.number - self._before
        if number not in self.numbers[-1:]:
            insort(self.numbers, number)
            problem = f"has {row.actual_columns} cells, expected {row.expected_columns}"
            self._met.meet(self._path, number, damage(f"{self._path}, row {number}", problem))
        return "skip"

    def number(self, kept: int) -> int:
        """The number in the file of a row that is the `kept`-th of the rows that were kept."""
        number = kept
        while (passed := bisect_right(self.numbers, number)) != number - kept:
            number = kept + passed
        return number


def skip_misfits(
    path: Path,
    batches: Iterable[pa.RecordBatch],
    types: Mapping[str, pa.DataType],
    passed: RowsOfOtherWidth,
    met: Damage,
) -> Iterator[pa.RecordBatch]:
    """Batches of text, converted to `types`; rows with a cell that does not convert left out."""
    first = 0
    for batch in batches:
        arrays, fits = [], pa.array([True] * batch.num_rows)
        for name, kind in types.items():
            array = _converted(batch.column(name), kind)
            wrong = pc.and_(pc.is_null(array), pc.is_valid(batch.column(name)))
            for at in pc.indices_nonzero(wrong).to_pylist():
                where = f"{path}, row {passed.number(first + at)}, column {name!r}"
                problem = damage(where, f"{batch.column(name)[at].as_py()!r:.80} is no {kind}")
                if fits[at].as_py():
                    met.meet(path, passed.number(first + at), problem)
            fits = pc.and_not(fits, wrong)
            arrays.append(array)
        first += batch.num_rows
        yield pa.RecordBatch.from_arrays(arrays, names=list(types)).filter(fits)


def _converted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Texts as values of a type; null where that fails."""
    if pa.types.is_string(kind):
        return array
    trimmed = pc.utf8_trim_whitespace(array)
    try:
        return trimmed.cast(kind)
    except pa.ArrowException:
        return pa.concat_arrays([_one(trimmed.slice(at, 1), kind) for at in range(len(trimmed))])


def _one(value: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return value.cast(kind)
    except pa.ArrowException:
        return pa.nulls(1, kind)
