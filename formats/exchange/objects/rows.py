"""Iterables of rows: lists, iterators and generators of mappings.

Without a schema the first 1,000 rows decide the columns, or fewer when they are large; each later
row is checked, and named where it does not fit. With one, rows go on as they are, in batches of
bounded bytes; an iterable of batches or of tables is taken too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import Any

from tensorrepo.formats.common.damage import damage
from tensorrepo.formats.dataset.schema.schema import InputBatch, Schema
from tensorrepo.formats.exchange.base import BATCH_BYTES, ImportOrigin, OpenedSource, grouped
from tensorrepo.formats.exchange.column_choice import ColumnChoice
from tensorrepo.formats.exchange.objects.columns import (
    read_columns,
    told_row,
    with_image_files,
)
from tensorrepo.formats.exchange.objects.frames import is_frame, read_frame, read_frames
from tensorrepo.formats.exchange.tables.samples import (
    FIRST_SAMPLES,
    kept_value,
    read_samples,
    size_of,
)
from tensorrepo.repo.errors import InvalidInputError

_ROW_BYTES = 64  # what a row costs beside its values


def is_rows(given: object) -> bool:
    """Whether an object can be walked for rows."""
    walked = isinstance(given, Iterable) and not isinstance(
        given, str | bytes | bytearray | Mapping
    )
    return walked and not hasattr(given, "__array__") and not isinstance(given, set | frozenset)


def read_rows(
    given: Iterable[Any],
    *,
    choice: ColumnChoice,
    schema: Schema | None = None,
    damaged: bool = False,
) -> OpenedSource:
    """Rows that are mappings, or tables that come one after the other.

    Args:
        given: the rows, which are walked once.
        choice: columns that are wanted, and their types.
        schema: the columns, when they are known.
        damaged: pass over rows that do not fit the first ones.

    Raises:
        InvalidInputError: no rows to tell columns by, rows that are no mappings, or columns
            without a type; names all of them.
    """
    items = iter(given)
    origin = ImportOrigin(type(given).__name__, "rows", 0, 0)
    try:
        first = next(items, None)
    except Exception as problem:
        raise damage(f"{origin.path}, row 0", f"{type(problem).__name__}: {problem}") from problem
    if schema is not None:
        if first is None:
            return OpenedSource(schema, 0, iter(()), origin)
        lasts = isinstance(given, list | tuple)
        batches = _known(schema, chain([first], items), choice, lasts=lasts)
        return OpenedSource(schema, None, batches, origin)
    if first is None:
        raise InvalidInputError(
            f"{origin.path} holds no rows, so its columns are not known. Give them without data: "
            "create_dataset(name, columns={...})"
        )
    if is_frame(first):
        return read_frames(first, items, choice=choice)
    if not isinstance(first, Mapping) and not hasattr(first, "_fields"):
        raise _refused(0, first)
    rows = given if isinstance(given, list | tuple) else chain([first], items)
    return read_samples(rows, choice=choice, damaged=damaged, unit="row", what=origin.path)


def _known(
    schema: Schema, items: Iterator[Any], choice: ColumnChoice, *, lasts: bool
) -> Iterator[InputBatch]:
    """Batches of rows, or of batches; what lasts stays as it is when the next item is drawn."""
    seen: list[Any] = []
    keep = _as_it_is if lasts else kept_value
    if _are_rows(schema, items, seen, keep):
        rows = ((row, _size(row)) for row in map(keep, chain(seen, items)))
        yield from with_image_files(schema, grouped(rows))
        return
    for number, item in enumerate(chain(seen, items)):
        if is_frame(item):
            yield from read_frame(item, choice=choice, schema=schema).batches
        elif isinstance(item, Mapping):
            yield from read_columns(item, choice=choice, schema=schema).batches
        elif isinstance(item, list | tuple):
            yield from with_image_files(schema, iter([item]))
        else:
            raise _refused(number, item)


def _as_it_is(item: Any) -> Any:
    return item


def _are_rows(
    schema: Schema, items: Iterator[Any], seen: list[Any], keep: Callable[[Any], Any]
) -> bool:
    """Whether items are rows, and not batches: the first that can tell decides; `seen` gets them.

    Where all are empty they are rows: as batches they would be nothing.
    """
    size_bytes = 0
    for item in islice(items, FIRST_SAMPLES):
        seen.append(item)
        if not isinstance(item, Mapping):
            return False
        if (decided := told_row(schema, item)) is not None:
            return decided
        if (size_bytes := size_bytes + _size(item)) > BATCH_BYTES:
            break
        seen[-1] = keep(item)
    return all(_is_nothing(value) for row in seen for value in row.values())


def _is_nothing(value: Any) -> bool:
    return value is None or (isinstance(value, list) and not value)


def _size(row: Any) -> int:
    return _ROW_BYTES + (sum(map(size_of, row.values())) if isinstance(row, Mapping) else 0)


def _refused(number: int, item: Any) -> InvalidInputError:
    return InvalidInputError(
        f"row {number}: expected a mapping of columns, found {type(item).__name__} {item!r:.40}"
    )
