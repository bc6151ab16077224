"""Assembly of a batch from rows of several pages, and overlay of patched rows.

`collect` puts chosen rows of many decoded pages into the order that was asked for, each copied
once; `overlay` replaces rows by values that were set later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.schema.values import (
    BinaryValues,
    ColumnValues,
    FixedValues,
    RaggedValues,
    offsets_of,
    valid_rows,
)
from tensorrepo.repo.deferred_dataclass import dataclass

ALONE_BYTES = 16 << 10  # fixed rows from here on are copied one by one: no batch of them in between
ALONE_ELEMENTS = 256  # the others too, from here on: faster than one index per element


@dataclass(frozen=True, slots=True, eq=False)
class RowPiece:
    """Rows `rows` of `values`, which become rows `places` of a batch; both int64 ``(n,)``."""

    values: ColumnValues
    rows: Ints
    places: Ints


def collect(pieces: Sequence[RowPiece], rows: int) -> ColumnValues:
    """One batch of `rows` rows of one column, a copy.

    The places of all pieces together are ``[0, rows)``, each once.
    """
    valid = _collect_valid(pieces, rows)
    first = pieces[0].values
    if isinstance(first, FixedValues):
        return FixedValues(_collect_fixed(pieces, first, rows), valid)
    offsets, items = _collect_items(pieces, rows)
    if isinstance(first, BinaryValues):
        return BinaryValues(offsets, items, valid)
    return RaggedValues(offsets, items, first.shape, _collect_dims(pieces, first, rows), valid)


def overlay(values: ColumnValues, places: Ints, patches: ColumnValues) -> ColumnValues:
    """`values` with row ``places[i]`` replaced by row i of `patches`, a copy.

    Places are unique, in any order; rows of `patches` are null where the patch set them to null.
    """
    kept = np.ones(values.rows, np.bool_)
    kept[places] = False
    others = np.flatnonzero(kept)
    pieces = [RowPiece(values, others, others), RowPiece(patches, np.arange(len(places)), places)]
    return collect(pieces, values.rows)


def by_page(pages: Ints) -> list[tuple[int, Ints]]:
    """Each page among `pages`, ascending, and the places that it has there."""
    order = np.argsort(pages, kind="stable")
    each, starts = np.unique(pages[order], return_index=True)
    groups = np.split(order, starts[1:]) if len(pages) else []
    return list(zip(each.tolist(), groups, strict=True))


def repeated(row: ColumnValues, rows: int) -> ColumnValues:
    """`row`, which is a single one, `rows` times: without memory for each where numpy can."""
    valid = None if row.valid is None else np.broadcast_to(row.valid, (rows,))
    if isinstance(row, FixedValues):
        return FixedValues(np.broadcast_to(row.values, (rows, *row.values.shape[1:])), valid)
    if int(row.offsets[0]) != int(row.offsets[1]):
        return row.take(np.zeros(rows, np.int64))
    offsets = np.broadcast_to(row.offsets[:1], (rows + 1,))
    if isinstance(row, BinaryValues):
        return BinaryValues(offsets, row.data, valid)
    dims = None if row.dims is None else np.broadcast_to(row.dims, (rows, row.dims.shape[1]))
    return RaggedValues(offsets, row.elements, row.shape, dims, valid)


def _collect_valid(pieces: Sequence[RowPiece], rows: int) -> Bools | None:
    if all(piece.values.valid is None for piece in pieces):
        return None
    valid = np.ones(rows, np.bool_)
    for piece in pieces:
        valid[piece.places] = valid_rows(piece.values)[piece.rows]
    return valid


def _collect_fixed(pieces: Sequence[RowPiece], first: FixedValues, rows: int) -> NDArray[Any]:
    out = np.empty((rows, *first.values.shape[1:]), first.values.dtype)
    alone = out.nbytes >= ALONE_BYTES * rows
    for piece in pieces:
        assert isinstance(piece.values, FixedValues), "pieces are of one column"
        values = piece.values.values
        if not alone:
            out[piece.places] = values[piece.rows]
            continue
        for place, row in zip(piece.places.tolist(), piece.rows.tolist(), strict=True):
            out[place] = values[row]
    return out


def _collect_items(pieces: Sequence[RowPiece], rows: int) -> tuple[Ints, NDArray[Any]]:
    """Offsets and elements (bytes of a binary column) of the batch."""
    lengths = np.zeros(rows, np.int64)
    starts = []
    for piece in pieces:
        bounds, _ = _items(piece.values)
        starts.append(bounds[piece.rows])
        lengths[piece.places] = bounds[piece.rows + 1] - starts[-1]
    offsets = offsets_of(lengths)
    out = np.empty(int(offsets[-1]), _items(pieces[0].values)[1].dtype)
    alone = len(out) >= ALONE_ELEMENTS * rows
    for piece, begin in zip(pieces, starts, strict=True):
        items, places = _items(piece.values)[1], piece.places
        _copy_items(items, begin, lengths[places], out, offsets[places], alone=alone)
    return offsets, out


def _items(values: ColumnValues) -> tuple[Ints, NDArray[Any]]:
    assert not isinstance(values, FixedValues), "pieces are of one column"
    return values.offsets, values.data if isinstance(values, BinaryValues) else values.elements


def _copy_items(
    items: NDArray[Any], starts: Ints, lengths: Ints, out: NDArray[Any], at: Ints, *, alone: bool
) -> None:
    if alone:
        for start, length, to in zip(starts.tolist(), lengths.tolist(), at.tolist(), strict=True):
            out[to : to + length] = items[start : start + length]
        return
    # One index per element: costs 8 bytes an element, but no Python per row.
    before = offsets_of(lengths)
    steps = np.arange(int(before[-1]))
    shift = np.repeat(at - before[:-1], lengths)
    out[steps + shift] = items[steps + np.repeat(starts - before[:-1], lengths)]


def _collect_dims(
    pieces: Sequence[RowPiece], first: RaggedValues, rows: int
) -> NDArray[np.uint32] | None:
    if first.dims is None:
        return None
    dims = np.zeros((rows, first.dims.shape[1]), np.uint32)
    for piece in pieces:
        assert isinstance(piece.values, RaggedValues), "pieces are of one column"
        assert piece.values.dims is not None, "rows of a column have dims or have none"
        dims[piece.places] = piece.values.dims[piece.rows]
    return dims
