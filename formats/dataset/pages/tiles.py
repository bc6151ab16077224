"""Tile tables: how a row is cut into tiles, and which tiles a region touches.

A tile is a block of one row that is stored, proved and read by itself. The page of a tiled column
is a table: of each row its shape and its tiles, of each tile where its bytes lie in the chunks that
belong to the page. Everything here is arithmetic.

Source:
    docs/spec/dataset.md, section "Tiles".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from operator import index as as_index
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from tensorrepo.formats.common.buffer_codecs import Codec
from tensorrepo.formats.dataset.pages.page import (
    PAGE_ENTRY,
    PAGE_TILES,
    EncodedPage,
    assemble_page,
    decode_validity,
    split_page,
)
from tensorrepo.formats.dataset.schema.types import Storage
from tensorrepo.formats.dataset.schema.values import TiledValues, valid_rows
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.hashing.digests import content_tag

# Where one tile lies and what proves it; in memory as on disk.
TILE = np.dtype(
    [
        ("offset", "<u8"),  # in the chunk's payload
        ("stored_bytes", "<u8"),
        ("checksum", "<u8"),  # xxh3_64 of the stored bytes
        ("tag", "V16"),  # their truncated BLAKE3
        ("chunk", "<u4"),  # place among the chunks of the page's tiles
        ("codec", "u1"),
        ("reserved", "V3"),
    ]
)
assert TILE.itemsize == 48, "docs/spec/dataset.md promises 48-byte tile records"
_MAX = (1 << 64) - 1


def grid_of(shape: Sequence[int], tile: Sequence[int]) -> tuple[int, ...]:
    """How many tiles a row has along each dimension."""
    return tuple(-(-dim // size) for dim, size in zip(shape, tile, strict=True))


def tile_slices(shape: Sequence[int], tile: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """The part of a row that each of its tiles holds, row-major over the grid."""
    along = [
        [slice(start, min(start + size, dim)) for start in range(0, dim, size)]
        for dim, size in zip(shape, tile, strict=True)
    ]
    return product(*along)


# ------------------------------------------------------------------------------ regions


@dataclass(frozen=True, slots=True)
class Axis:
    """What is wanted of one dimension: elements ``start + i * step`` for i in ``[0, count)``.

    They are handed out in reverse when `is_reversed`, and the dimension is dropped from the result
    when `is_dropped`.
    """

    start: int
    count: int
    step: int = 1
    is_reversed: bool = False
    is_dropped: bool = False


@dataclass(frozen=True, slots=True)
class TilePart:
    """What a region takes from one tile.

    `number` is the tile's place in its row, `shape` the tile's own, `source` the elements taken
    from it and `target` where they lie in the region, reversed axes not yet turned.
    """

    number: int
    shape: tuple[int, ...]
    source: tuple[slice, ...]
    target: tuple[slice, ...]


def resolve_region(region: object, shape: Sequence[int]) -> tuple[Axis, ...]:
    """A region of a row, as numpy reads it: integers, slices of any step, and an ellipsis.

    Returns:
        One axis per dimension.

    Raises:
        InvalidInputError: anything else (arrays, masks, None), too many, or outside the row.
    """
    items = list(region) if isinstance(region, tuple) else [region]
    ellipses = [at for at, item in enumerate(items) if item is Ellipsis]
    missing = len(shape) - (len(items) - len(ellipses))
    if missing < 0 or len(ellipses) > 1:
        raise InvalidInputError(f"region {region!r:.80} has too many parts for shape {shape}")
    at = ellipses[0] if ellipses else len(items)
    items[at : at + len(ellipses)] = [slice(None)] * missing
    return tuple(
        _axis(item, dim, place) for place, (item, dim) in enumerate(zip(items, shape, strict=True))
    )


def _axis(item: object, dim: int, place: int) -> Axis:
    if isinstance(item, slice):
        try:
            found = range(*item.indices(dim))
        except (TypeError, ValueError) as error:
            raise InvalidInputError(f"region, dimension {place}: {error}") from error
        if found.step > 0:
            return Axis(found.start, len(found), found.step)
        start = found[-1] if found else 0
        return Axis(start, len(found), -found.step, is_reversed=True)
    try:
        number = as_index(item) if isinstance(item, SupportsIndex) else None
    except TypeError:  # an array of more than one number, or of bools
        number = None
    if number is None or isinstance(item, bool):
        raise InvalidInputError(
            f"region, dimension {place}: expected an integer or a slice, found "
            f"{type(item).__name__}; read the rows first to index them with arrays"
        )
    if not -dim <= number < dim:
        raise InvalidInputError(f"region, dimension {place}: {number} is outside of {dim} elements")
    return Axis(number % dim, 1, is_dropped=True)


def touched_tiles(
    axes: Sequence[Axis], shape: Sequence[int], tile: Sequence[int]
) -> Iterator[TilePart]:
    """The tiles of a row that hold elements of a region, row-major; no others."""
    grid = grid_of(shape, tile)
    along = [_cuts(*each) for each in zip(axes, shape, tile, strict=True)]
    steps = [prod(grid[place + 1 :]) for place in range(len(grid))]
    for cuts in product(*along):
        number = sum(cut[0] * step for cut, step in zip(cuts, steps, strict=True))
        yield TilePart(
            number,
            tuple(cut[1] for cut in cuts),
            tuple(cut[2] for cut in cuts),
            tuple(cut[3] for cut in cuts),
        )


def _cuts(axis: Axis, dim: int, size: int) -> list[tuple[int, int, slice, slice]]:
    """Along one dimension: tiles, how long each is, what is taken from it, where that lands."""
    if not axis.count:
        return []
    last = axis.start + (axis.count - 1) * axis.step
    numbers = np.arange(axis.start // size, last // size + 1)
    # The first wanted element at or behind the start of each tile, and of the next one.
    bounds = -((axis.start - np.append(numbers, numbers[-1] + 1) * size) // axis.step)
    bounds = np.clip(bounds, 0, axis.count)
    found = []
    for number, low, high in zip(
        numbers.tolist(), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True
    ):
        if low < high:
            first = axis.start + low * axis.step - number * size
            source = slice(first, first + (high - low - 1) * axis.step + 1, axis.step)
            found.append((number, min(size, dim - number * size), source, slice(low, high)))
    return found


# ------------------------------------------------------------------------------ tables


def number_chunks(values: TiledValues) -> tuple[TiledValues, list[int]]:
    """The same rows, with the chunks of their tiles numbered from 0, and which chunks those are.

    A table names chunks by their place among those that its tiles use.
    """
    kept = values.copy()
    used, places = np.unique(kept.tiles["chunk"], return_inverse=True)
    kept.tiles["chunk"] = places
    return kept, used.tolist()


def encode_tile_table(values: TiledValues, storage: Storage) -> EncodedPage:
    """The page of a tiled column: all rows of one fragment, at least one.

    `values.tiles` number chunks as the page does (see `number_chunks`).
    """
    offsets = values.offsets - values.offsets[0]
    tiles = values.tiles[values.offsets[0] : values.offsets[-1]]
    valid = valid_rows(values)
    nulls = values.rows - int(np.count_nonzero(valid))
    validity = np.packbits(valid, bitorder="little") if nulls else np.empty(0, np.uint8)
    ends, dims = offsets[1:].astype("<u8"), values.dims.astype("<u4").reshape(-1)
    table = np.concatenate([ends.view(np.uint8), dims.view(np.uint8)])
    buffers = [validity, table, tiles.astype(TILE).view(np.uint8), np.empty(0, np.uint8)]
    data = assemble_page(buffers, [Codec.NONE] * 4, [1, 4, 8, 4])
    entry = np.zeros((), PAGE_ENTRY)
    entry["rows"], entry["nulls"], entry["codec"] = values.rows, nulls, PAGE_TILES
    entry["stored_bytes"] = data.nbytes
    # What planners weigh is what rows take in memory, not their table.
    entry["raw_bytes"] = data.nbytes + decoded_bytes(values, storage)
    entry["checksum"] = xxh3_64_intdigest(data.data)
    largest = max((prod(shape) for shape in values.dims.tolist()), default=0)
    entry["min"], entry["max"] = len(tiles), min(_MAX, largest * storage.element.itemsize)
    return EncodedPage(data, entry, content_tag(data.data))


def decode_tile_table(
    page: memoryview, entry: NDArray[Any], storage: Storage, tile_chunks: int
) -> TiledValues:
    """Decode the verified page of a tiled column.

    `tile_chunks` is the number of chunks that the page's tiles lie in.

    Raises:
        CorruptError: the table contradicts itself, the entry or the column.
        UnsupportedError: a codec that this version does not know.
    """
    rows, nulls, rank = int(entry["rows"]), int(entry["nulls"]), len(storage.shape)
    tiles = int(entry["min"])
    if entry["codec"] != PAGE_TILES:
        raise CorruptError(f"page of a tiled column has form {entry['codec']}, not {PAGE_TILES}")
    expected = (-(-rows // 8) if nulls else 0, rows * (8 + 4 * rank), tiles * TILE.itemsize, 0)
    bits, table, records, _ = split_page(page, expected)
    ends = np.frombuffer(table[: 8 * rows], "<i8")
    offsets = np.zeros(rows + 1, np.int64)
    offsets[1:] = ends
    dims = np.frombuffer(table[8 * rows :], "<u4").reshape(rows, rank)
    valid = decode_validity(bits, rows, nulls)
    found = TiledValues(offsets, np.frombuffer(records, TILE), dims, valid)
    _check_rows(found, storage)
    _check_tiles(found.tiles, tile_chunks)
    raw_bytes = page.nbytes + decoded_bytes(found, storage)
    if entry["raw_bytes"] != raw_bytes:
        raise CorruptError(f"page entry promises {entry['raw_bytes']} bytes, its rows {raw_bytes}")
    return found


def decoded_bytes(values: TiledValues, storage: Storage) -> int:
    """Bytes of all rows in memory."""
    return sum(map(prod, values.dims.tolist())) * storage.element.itemsize


def _check_rows(values: TiledValues, storage: Storage) -> None:
    offsets, dims = values.offsets, values.dims
    inside = bool(((offsets >= 0) & (offsets <= len(values.tiles))).all())
    if not inside or (np.diff(offsets) < 0).any() or offsets[-1] != len(values.tiles):
        raise CorruptError(f"tile table: ends must rise to {len(values.tiles)}")
    there = valid_rows(values)
    if dims[~there].any():
        raise CorruptError("tile table: a null row has dimensions")
    for place, known in enumerate(storage.shape):
        if known is not None and (dims[there, place] != known).any():
            raise CorruptError(f"tile table: dimension {place} of a row is not {known}")
    # In floats a product cannot wrap to a right one: above 2^53 no page holds that many.
    counts = np.ceil(dims / np.array(storage.tile, np.float64)).prod(axis=1)
    if (counts * there != np.diff(offsets)).any():
        raise CorruptError("tile table: rows have other tiles than their dimensions need")


def _check_tiles(tiles: NDArray[Any], tile_chunks: int) -> None:
    if not len(tiles):
        return
    if int(tiles["chunk"].max()) >= tile_chunks:
        raise CorruptError(f"tile table: a tile lies in none of the page's {tile_chunks} chunks")
    longest = np.uint64(1 << 62)
    if (tiles["offset"] > longest).any() or (tiles["stored_bytes"] > longest).any():
        raise CorruptError("tile table: a tile lies beyond any chunk")
    if np.ascontiguousarray(tiles["reserved"]).view(np.uint8).any():
        raise CorruptError("tile table: reserved fields of a tile are set")
