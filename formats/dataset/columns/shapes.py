"""How do rows of one shape become rows that each have a shape of their own, and back?

Fixed values are one array with a row in each line; ragged values (tiled columns have those too)
are elements and a table. A null row is zeros in the one and empty in the other.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.dataset.columns.values import (
    FixedValues,
    RaggedValues,
    offsets_of,
    valid_rows,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.columns.types import Storage


def row_shapes(values: RaggedValues) -> NDArray[np.uint32]:
    """The shape of every row, ``(rows, rank)``; of null rows zeros where dimensions are unknown."""
    unknown = [at for at, dim in enumerate(values.shape) if dim is None]
    known = [dim or 0 for dim in values.shape]
    shapes = np.tile(np.array(known, np.uint32), (values.rows, 1))
    if values.dims is not None:
        shapes[:, unknown] = values.dims
    elif unknown:
        each = prod(dim for dim in values.shape if dim is not None)
        shapes[:, unknown] = (np.diff(values.offsets) // each)[:, None]
    return shapes


def as_fixed(values: RaggedValues) -> FixedValues:
    """Rows whose dimensions are all known, as one array; a view where no row is null."""
    shape = tuple(dim or 0 for dim in values.shape)
    elements = values.elements[values.offsets[0] : values.offsets[-1]]
    if values.valid is None or not prod(shape):
        return FixedValues(elements.reshape(values.rows, *shape), values.valid)
    array = np.zeros((values.rows, *shape), elements.dtype)
    array[values.valid] = elements.reshape(-1, *shape)
    return FixedValues(array, values.valid)


def as_ragged(values: FixedValues, storage: Storage) -> RaggedValues:
    """The rows as those of a ragged or tiled column, whose shape theirs fits."""
    shape = values.values.shape[1:]
    valid = valid_rows(values)
    kept = values.values if values.valid is None else values.values[valid]
    dims = None
    if storage.stores_dims:
        mine = [dim for dim, known in zip(shape, storage.shape, strict=True) if known is None]
        dims = np.where(valid[:, None], np.array(mine, np.uint32), np.uint32(0))
    offsets = offsets_of(valid * prod(shape))
    return RaggedValues(offsets, kept.reshape(-1), storage.shape, dims, values.valid)
