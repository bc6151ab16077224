"""What was given to `append`: one batch, many batches, or single rows?

A batch maps columns to many values, a row maps columns to one value each. Which of them a mapping
is, the types of the columns tell: the value of a scalar column is a number in a row, and a list
or array of numbers in a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from tensorrepo.formats.dataset.columns.types import Layout
from tensorrepo.formats.exchange import registry
from tensorrepo.formats.exchange.base import BATCH_BYTES, Reading
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tensorrepo.formats.dataset.columns.schema import Column, InputBatch, Schema

_ROW_BYTES = 64  # what a row costs beside its values


def batches_of(schema: Schema, given: object) -> Iterable[InputBatch]:
    """What a user appends, as batches of bounded bytes.

    Args:
        schema: of the dataset.
        given: a mapping of columns, a list of row mappings, Arrow, a `Reading`, a dataset of
            torch or of Hugging Face, or an iterable of batches or of row mappings.

    Raises:
        InvalidInputError: none of these.
    """
    if isinstance(given, Reading):
        return given.batches
    if registry.reads_object(given):
        return registry.read_object(given, schema=schema).batches
    if isinstance(given, Mapping):
        return (
            [{name: [value] for name, value in given.items()}] if is_row(schema, given) else [given]
        )
    if hasattr(given, "schema"):  # an Arrow table or batch
        return [cast("InputBatch", given)]
    if not hasattr(given, "__iter__") or isinstance(given, (str, bytes)):
        raise _refused(given)
    return _from_iterable(schema, cast("Iterable[Any]", given))


def is_row(schema: Schema, given: Mapping[str, Any]) -> bool:
    """Whether a mapping is one row, and not a batch of columns."""
    for column in schema.columns:
        value = given.get(column.name)
        if value is not None and (told := _is_one(column, value)) is not None:
            return told
    return False


def _is_one(column: Column, value: Any) -> bool | None:
    """Whether `value` is one value of the column; None where it cannot be told."""
    storage = column.storage
    if storage.layout is Layout.BINARY:
        return isinstance(value, (str, bytes, bytearray, memoryview, np.ndarray, Mapping))
    if storage.layout is Layout.FIXED:
        return bool(np.ndim(value) == len(storage.shape))
    shapes = {np.ndim(item) for item in value} if isinstance(value, (list, tuple)) else set()
    return isinstance(value, np.ndarray) if not shapes else shapes != {len(storage.shape)}


def _from_iterable(schema: Schema, given: Iterable[Any]) -> Iterator[InputBatch]:
    items = iter(given)
    first = next(items, None)
    if first is None:
        return
    everything = chain([first], items)
    if isinstance(first, Mapping) and is_row(schema, first):
        yield from _grouped(everything)
        return
    for item in everything:
        if not isinstance(item, (Mapping, list, tuple)) and not hasattr(item, "schema"):
            raise _refused(item)
        yield item


def _refused(given: object) -> InvalidInputError:
    return InvalidInputError(
        f"cannot append {type(given).__name__}: expected a mapping of columns, an iterable of "
        "rows, Arrow, or what tensorrepo.read opened"
    )


def _grouped(rows: Iterable[Mapping[str, Any]]) -> Iterator[InputBatch]:
    """Rows in lists of about `BATCH_BYTES`."""
    group: list[Mapping[str, Any]] = []
    size = 0
    for row in rows:
        group.append(row)
        size += _ROW_BYTES + sum(map(_bytes_of, row.values())) if isinstance(row, Mapping) else 0
        if size >= BATCH_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _bytes_of(value: Any) -> int:
    if isinstance(value, (str, bytes, bytearray)):
        return len(value)
    return int(getattr(value, "nbytes", 8 * len(value) if hasattr(value, "__len__") else 8))
