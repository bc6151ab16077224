"""A row comes back from its tiles, any part of it, and lying tables do not get through."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices

from tensorrepo.formats.dataset.pages.page import PAGE_COMPRESSED, PAGE_TILES, verify_page
from tensorrepo.formats.dataset.pages.tiles import (
    TILE,
    decode_tile_table,
    encode_tile_table,
    grid_of,
    number_chunks,
    resolve_region,
    tile_slices,
    touched_tiles,
)
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Storage
from tensorrepo.formats.dataset.schema.values import TiledValues, concat_tiled, offsets_of
from tensorrepo.repo.errors import CorruptError, Error, InvalidInputError
from tensorrepo.repo.hashing.digests import content_tag

STORAGE = Storage(ColumnLayout.TILED, "int16", (None, 5), (2, 3))
SHAPES = st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], Any]:
    """A shape, a tile, and a region of it."""
    shape = draw(SHAPES)
    tile = tuple(draw(st.integers(1, 5)) for _ in shape)
    return shape, tile, draw(basic_indices(shape, allow_ellipsis=True))


def _table() -> TiledValues:
    """Three rows, the second one null."""
    tiles = np.zeros(8, TILE)
    tiles["offset"], tiles["stored_bytes"] = np.arange(8) * 100, 12
    tiles["chunk"] = [0, 0, 0, 0, 1, 1, 1, 1]
    dims = np.array([[3, 5], [0, 0], [4, 5]], np.uint32)
    return TiledValues(np.array([0, 4, 4, 8]), tiles, dims, np.array([True, False, True]))


# ------------------------------------------------------------------------------ regions


@given(cuts())
def test_a_region_is_put_together_from_parts_of_tiles(
    cut: tuple[tuple[int, ...], tuple[int, ...], Any],
) -> None:
    shape, tile, region = cut
    array = np.arange(prod(shape)).reshape(shape)
    tiles = [array[part] for part in tile_slices(shape, tile)]
    axes = resolve_region(region, shape)
    out = np.full([axis.count for axis in axes], -1)
    for part in touched_tiles(axes, shape, tile):
        assert tiles[part.number].shape == part.shape
        out[part.target] = tiles[part.number][part.source]
    turned = tuple(
        0 if axis.is_dropped else slice(None, None, -1 if axis.is_reversed else 1) for axis in axes
    )
    np.testing.assert_array_equal(out[turned], array[region])


@given(cuts())
def test_only_tiles_with_wanted_elements_are_touched(
    cut: tuple[tuple[int, ...], tuple[int, ...], Any],
) -> None:
    shape, tile, region = cut
    number = np.zeros(shape, np.int64)
    for at, part in enumerate(tile_slices(shape, tile)):
        number[part] = at
    touched = [part.number for part in touched_tiles(resolve_region(region, shape), shape, tile)]
    assert touched == np.unique(number[region]).tolist()


@given(SHAPES, st.data())
def test_a_row_has_as_many_tiles_as_its_grid(shape: tuple[int, ...], data: st.DataObject) -> None:
    tile = tuple(data.draw(st.integers(1, 5)) for _ in shape)
    assert len(list(tile_slices(shape, tile))) == prod(grid_of(shape, tile))


@pytest.mark.parametrize(
    "region",
    [
        None,
        (None, 1),
        [1, 2],
        np.array([0, 1]),
        True,
        np.True_,
        np.array([True, False]),
        1.0,
        "1",
        (0, 0, 0),
        (..., ...),
        (..., 0, 0, 0),
        4,
        -5,
        (slice(None), 6),
        slice(0, 1, 0),
        slice("a", None),
    ],
    ids=repr,
)
def test_what_is_no_region_is_refused(region: object) -> None:
    with pytest.raises(InvalidInputError, match="region"):
        resolve_region(region, (4, 6))


def test_a_region_of_a_huge_row_costs_what_it_touches() -> None:
    shape = (1 << 32) - 1, (1 << 32) - 1
    axes = resolve_region((slice(1 << 31, (1 << 31) + 3), -1), shape)
    parts = list(touched_tiles(axes, shape, (1 << 16, 1 << 16)))
    assert [part.number for part in parts] == [(1 << 15) * (1 << 16) + (1 << 16) - 1]


# ------------------------------------------------------------------------------ tables


def test_a_table_comes_back() -> None:
    values = _table()
    page = encode_tile_table(values, STORAGE)
    verify_page(page.data.data, page.entry)
    assert page.tag == content_tag(page.data.data)
    found = decode_tile_table(page.data.data, page.entry, STORAGE, 2)
    assert found.offsets.tolist() == [0, 4, 4, 8]
    assert found.tiles.tobytes() == values.tiles.tobytes()
    assert [found.row_shape(at) for at in range(3)] == [(3, 5), (0, 0), (4, 5)]
    assert found.valid is not None
    assert found.valid.tolist() == [True, False, True]


def test_an_entry_says_what_its_table_holds() -> None:
    entry = encode_tile_table(_table(), STORAGE).entry
    found = [int(entry[name]) for name in ("rows", "nulls", "codec", "min", "max")]
    assert found == [3, 1, PAGE_TILES, 8, 4 * 5 * 2]
    assert entry["stored_bytes"] == 64 + 64 + 64 + 8 * 48
    assert entry["raw_bytes"] == entry["stored_bytes"] + (646 - 576)


@pytest.mark.parametrize("bounds", [(0, 3), (1, 3), (0, 1), (1, 2)])
def test_a_part_of_a_table_is_a_table(bounds: tuple[int, int]) -> None:
    some = _table().slice(*bounds)
    page = encode_tile_table(some, STORAGE)
    found = decode_tile_table(page.data.data, page.entry, STORAGE, 2)
    assert found.rows == some.rows
    assert found.dims.tolist() == some.dims.tolist()
    assert found.tiles.tobytes() == some.copy().tiles.tobytes()


def test_rows_are_taken_and_joined_with_their_tiles() -> None:
    values = _table()
    taken = values.take(np.array([2, 1]))
    assert taken.tiles["offset"].tolist() == [400, 500, 600, 700]
    assert taken.offsets.tolist() == [0, 4, 4]
    joined = concat_tiled([values.slice(2, 3), values.slice(0, 2)])
    assert joined.tiles["offset"].tolist() == [400, 500, 600, 700, 0, 100, 200, 300]
    assert joined.valid is not None
    assert joined.valid.tolist() == [True, True, False]
    assert joined.nbytes == values.nbytes == 8 * (12 + 48) + 3 * 16


def test_chunks_are_numbered_among_those_that_are_used() -> None:
    values = _table()
    values.tiles["chunk"] = [7, 7, 9, 9, 7, 3, 3, 3]
    numbered, used = number_chunks(values.slice(1, 3))
    assert used == [3, 7]
    assert numbered.tiles["chunk"].tolist() == [1, 0, 0, 0]
    assert values.tiles["chunk"].tolist() == [7, 7, 9, 9, 7, 3, 3, 3]


def _ends(values: TiledValues, at: int, end: int) -> TiledValues:
    offsets = values.offsets.copy()
    offsets[at] = end
    return TiledValues(offsets, values.tiles, values.dims, values.valid)


def _dim(values: TiledValues, row: int, place: int, dim: int) -> TiledValues:
    values.dims[row, place] = dim
    return values


def _tile(values: TiledValues, name: str, value: Any) -> TiledValues:
    values.tiles[name][3] = value
    return values


LIES: dict[str, Any] = {
    "ends that fall": lambda values: _ends(values, 2, 3),
    "an end below zero": lambda values: _ends(values, 1, -1),
    "an end beyond the tiles": lambda values: _ends(values, 1, 9),
    "fewer tiles than dimensions need": lambda values: _ends(_ends(values, 1, 3), 2, 3),
    "another known dimension": lambda values: _dim(values, 0, 1, 6),
    "another unknown dimension": lambda values: _dim(values, 0, 0, 5),
    "dimensions whose product wraps": lambda values: _dim(values, 0, 0, 0xFFFFFFFF),
    "dimensions of a null row": lambda values: _dim(values, 1, 0, 1),
    "an offset beyond any chunk": lambda values: _tile(values, "offset", (1 << 64) - 8),
    "a tile without end": lambda values: _tile(values, "stored_bytes", (1 << 63) + 1),
    "a chunk that there is not": lambda values: _tile(values, "chunk", 2),
    "a reserved field": lambda values: _tile(values, "reserved", np.void(b"\0\0\1")),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lying_table_is_corrupt(lie: str) -> None:
    page = encode_tile_table(LIES[lie](_table()), STORAGE)
    with pytest.raises(CorruptError, match="tile table"):
        decode_tile_table(page.data.data, page.entry, STORAGE, 2)


@pytest.mark.parametrize(
    "change",
    [
        {"min": 1 << 60},
        {"min": 7},
        {"rows": 4},
        {"nulls": 2},
        {"raw_bytes": 64},
        {"codec": PAGE_COMPRESSED},
    ],
    ids=str,
)
def test_an_entry_that_disagrees_with_its_table_is_corrupt(change: dict[str, int]) -> None:
    page = encode_tile_table(_table(), STORAGE)
    for name, value in change.items():
        page.entry[name] = value
    with pytest.raises(CorruptError):
        decode_tile_table(page.data.data, page.entry, STORAGE, 2)


@given(data=st.data())
def test_a_hostile_table_gives_rows_or_an_error_of_ours(data: st.DataObject) -> None:
    page = encode_tile_table(_table(), STORAGE)
    for at in data.draw(st.lists(st.integers(0, page.data.nbytes - 1), min_size=1, max_size=4)):
        page.data[at] = data.draw(st.integers(0, 255))
    try:
        found = decode_tile_table(page.data.data, page.entry, STORAGE, 2)
    except Error:
        return
    counts = [prod(grid_of(found.row_shape(at), STORAGE.tile)) for at in range(3)]
    assert found.offsets.tolist() == offsets_of(np.array(counts)).tolist()
