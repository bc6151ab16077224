"""Data frames and Arrow streams as rows: pandas, polars, pyarrow, DuckDB, whoever speaks Arrow.

Arrow's PyCapsule interface (``__arrow_c_stream__``) is all that is asked of a table, so none of
these libraries is imported. pandas alone is read column by column: its columns of Python objects
may hold pictures and arrays, of which Arrow knows nothing.

An index of pandas that has a name is a column, one without is none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from tensorrepo.formats.common.damage import damage, refusals, sentence
from tensorrepo.formats.dataset.schema.schema import InputBatch, Schema
from tensorrepo.formats.exchange.base import ImportOrigin, OpenedSource
from tensorrepo.formats.exchange.child_main import ARROW_ERRORS, TableFile, marked, number_lists
from tensorrepo.formats.exchange.column_choice import ColumnChoice, typed
from tensorrepo.formats.exchange.objects.columns import (
    is_of,
    is_of_objects,
    read_columns,
    with_image_files,
)
from tensorrepo.formats.exchange.tables.files import (
    adapt,
    naming_file,
    table_batches,
    unnamed_index,
)
from tensorrepo.repo.errors import InvalidInputError

_REFUSED: tuple[type[Exception], ...] = (*ARROW_ERRORS, TypeError, RuntimeError)


def is_frame(given: object) -> bool:
    """Whether an object is a table of some library."""
    return hasattr(given, "__arrow_c_stream__") or is_of(given, "pandas", "DataFrame")


def read_frame(given: Any, *, choice: ColumnChoice, schema: Schema | None = None) -> OpenedSource:
    """A table as rows. A stream, such as a reader of record batches, is read once.

    Args:
        given: has ``__arrow_c_stream__``, or is a data frame of pandas.
        choice: columns that are wanted, and their types.
        schema: the columns, when they are known: values are then converted to their types.

    Raises:
        InvalidInputError: a single column, or two of one name.
        UnsupportedError: columns that no column type holds; names all of them.
    """
    what = type(given).__name__
    if is_of(given, "pandas", "DataFrame"):
        return read_columns(_series(given), choice=choice, schema=schema, what=what)
    if is_of(given, "polars", "DataFrame") and any(map(is_of_objects, given.get_columns())):
        series = {name: given[name] for name in given.columns}
        return read_columns(series, choice=choice, schema=schema, what=what)
    table = _opened(given, what)
    size = int(getattr(given, "nbytes", 0) or 0)
    origin = ImportOrigin(what, "arrow", 0, size)
    if schema is not None:
        names = choice.of(table.schema.names, _unasked(table.schema, schema))
        known = with_image_files(schema, _selected(table, names, what))
        return OpenedSource(schema, table.rows, known, origin)
    where = Path(what)
    with naming_file(where):
        adapted = adapt(table.schema, choice)
    found = OpenedSource(
        schema=Schema(tuple(item.column for item in adapted)),
        rows=table.rows,
        batches=table_batches({where: table}, adapted),
        origin=origin,
    )
    source = typed(found, choice.types)
    return OpenedSource(
        source.schema, source.rows, with_image_files(source.schema, source.batches), origin
    )


def read_frames(first: Any, others: Iterator[Any], *, choice: ColumnChoice) -> OpenedSource:
    """Tables that come one after the other, as the parts of a file that is read in steps do.

    The first one decides the columns.
    """
    begun = read_frame(first, choice=choice)

    def batches() -> Iterator[InputBatch]:
        for number, frame in enumerate(others, 1):
            if not is_frame(frame):
                kind = type(frame).__name__
                raise InvalidInputError(f"item {number}: expected a table as before, found {kind}")
            yield from read_frame(frame, choice=choice, schema=begun.schema).batches

    return OpenedSource(begun.schema, None, chain(begun.batches, batches()), begun.origin)


def _series(frame: Any) -> dict[str, Any]:
    """The columns of a data frame of pandas, levels of its index with a name before them."""
    levels = [
        (name, frame.index.get_level_values(at))
        for at, name in enumerate(frame.index.names)
        if name is not None
    ]
    columns = [(name, frame.iloc[:, at]) for at, name in enumerate(frame.columns)]
    named = [(str(name), values) for name, values in [*levels, *columns]]
    if len(dict(named)) < len(named):
        names = [name for name, _ in named]
        twice = next(name for name in names if names.count(name) > 1)
        raise damage("DataFrame", f"has two columns called {twice!r}")
    return dict(named)


def _opened(given: Any, what: str) -> TableFile:
    if isinstance(given, pa.RecordBatch):
        given = pa.Table.from_batches([given])
    if isinstance(given, pa.Table):
        return _in_memory(given)
    try:
        reader = pa.RecordBatchReader.from_stream(given)
    except _REFUSED as problem:
        kind = "is no table: give a column a name, as in {'x': column}"
        lacks_columns = "struct" in str(problem)
        raise damage(what, kind if lacks_columns else sentence(problem)) from problem
    if is_of(given, "polars", "DataFrame"):
        return _in_memory(reader.read_all())  # which shares its memory
    # Not len(given): of a relation that is a query of its own.
    return TableFile(reader.schema, None, lambda: iter(reader))


def _in_memory(table: pa.Table) -> TableFile:
    """A table that can be looked at first: whether numbers in lists are null."""
    schema = marked(table.schema, number_lists(table.schema), table.to_batches)
    return TableFile(schema, table.num_rows, lambda: iter(table.to_batches()))


def _unasked(found: pa.Schema, schema: Schema) -> list[str]:
    return [name for name in unnamed_index(found) if name not in schema]


def _selected(table: TableFile, names: list[str], what: str) -> Iterator[InputBatch]:
    """Batches of the chosen columns, whose offsets have been looked at: Arrow trusts them."""
    with refusals(what, "table", *ARROW_ERRORS):
        for batch in table.batches():
            chosen = batch.select(names)
            chosen.validate(full=True)
            yield chosen
