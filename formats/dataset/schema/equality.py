"""Equality of column values, bit by bit.

NaN equals itself, and 0.0 is not -0.0. A null equals nothing but a null. Where one side is stored
in a narrower form, it is widened first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Bools
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Storage
from tensorrepo.formats.dataset.schema.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    RaggedValues,
    as_ragged,
    valid_rows,
)
from tensorrepo.formats.dataset.schema.widen import convert_values
from tensorrepo.repo.errors import UnsupportedError


def differing(
    old: ColumnValues, new: ColumnValues, old_storage: Storage, new_storage: Storage
) -> Bools:
    """Whether each row of `old` differs from the same row of `new`: bool ``(rows,)``."""
    pair = _alike(old, new, old_storage, new_storage)
    if pair is None:
        return np.ones(old.rows, np.bool_)
    return differing_alike(*pair)


def differing_alike(old: ColumnValues, new: ColumnValues) -> Bools:
    """`differing` of rows that are in one form."""
    changed = _content(old, new)
    if old.valid is None and new.valid is None:
        return changed
    mine, theirs = valid_rows(old), valid_rows(new)
    differs: Bools = (changed & mine & theirs) | (mine != theirs)
    return differs


def _alike(
    old: ColumnValues, new: ColumnValues, old_storage: Storage, new_storage: Storage
) -> tuple[ColumnValues, ColumnValues] | None:
    """Both in one form; None where neither form holds the values of the other."""
    try:
        return in_form_of(old, old_storage, new_storage), in_form_of(new, new_storage, new_storage)
    except UnsupportedError:
        pass
    try:
        return in_form_of(old, old_storage, old_storage), in_form_of(new, new_storage, old_storage)
    except UnsupportedError:
        return None


def in_form_of(values: ColumnValues, storage: Storage, wanted: Storage) -> ColumnValues:
    """Values of a column that is stored as `storage`, in the form that `wanted` has in memory.

    Raises:
        UnsupportedError: that form does not hold all of them.
    """
    form = in_memory_form(storage)
    return convert_values(_as_stored(values, form), form, in_memory_form(wanted))


def in_memory_form(storage: Storage) -> Storage:
    """The form of values that were read: the tiles of a row are one array by then."""
    if storage.layout is not ColumnLayout.TILED:
        return storage
    return replace(storage, layout=ColumnLayout.RAGGED, tile=())


def _as_stored(values: ColumnValues, storage: Storage) -> ColumnValues:
    if storage.layout is ColumnLayout.RAGGED and isinstance(values, FixedValues):
        return as_ragged(values, storage)
    return values


def _content(old: ColumnValues, new: ColumnValues) -> Bools:
    match old, new:
        case FixedValues(), FixedValues():
            return _fixed(old.values, new.values)
        case BinaryValues(), BinaryValues():
            return _items(old, new)
        case RaggedValues(), RaggedValues():
            changed = _items(old, new)
            if old.dims is not None and new.dims is not None:
                changed |= (old.dims != new.dims).any(axis=1)
            return changed
    return np.ones(old.rows, np.bool_)


def _fixed(old: NDArray[Any], new: NDArray[Any]) -> Bools:
    row_bytes = old.nbytes // max(1, len(old))
    if not row_bytes or not len(old):
        return np.zeros(len(old), np.bool_)
    word = next(size for size in (8, 4, 2, 1) if not row_bytes % size)
    one, two = (
        np.ascontiguousarray(each).reshape(-1).view(f"u{word}").reshape(len(old), -1)
        for each in (old, new)
    )
    unequal: Bools = one != two
    if unequal.shape[1] == 1:
        return unequal[:, 0]
    changed: Bools = np.logical_or.reduce(unequal, axis=1)
    return changed


def _items(old: BinaryValues | RaggedValues, new: BinaryValues | RaggedValues) -> Bools:
    """Rows that are not as long, or of which some bytes differ."""
    lengths = np.diff(old.offsets)
    changed: Bools = lengths != np.diff(new.offsets)
    if changed.any():
        same = np.flatnonzero(~changed)
        changed[same] = _items_alike(old.take(same), new.take(same))
        return changed
    return _items_alike(old, new)


def _items_alike(old: BinaryValues | RaggedValues, new: BinaryValues | RaggedValues) -> Bools:
    """The same for rows of the same lengths."""
    one, two = _bytes_of(old), _bytes_of(new)
    lengths = np.diff(old.offsets)
    changed = np.zeros(old.rows, np.bool_)
    filled = np.flatnonzero(lengths)
    if len(filled):
        size = len(one) // int(lengths.sum())
        starts = (old.offsets[filled] - old.offsets[0]) * size
        changed[filled] = np.logical_or.reduceat(one != two, starts)
    return changed


def _bytes_of(values: BinaryValues | RaggedValues) -> NDArray[np.uint8]:
    items = values.data if isinstance(values, BinaryValues) else values.elements
    used = items[values.offsets[0] : values.offsets[-1]]
    return np.ascontiguousarray(used).view(np.uint8)
