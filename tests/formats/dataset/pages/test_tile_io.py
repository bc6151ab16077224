"""Regions of tiled rows equal numpy's, touch only their tiles, and are proved."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import basic_indices
from numpy.typing import NDArray

from tensorrepo.formats.common.buffer_codecs import AUTO, CODEC_NAMES, Codec, CodecChoice
from tensorrepo.formats.common.dtypes import CODES, element_dtype
from tensorrepo.formats.dataset.pages import tile_io
from tensorrepo.formats.dataset.pages.tile_io import (
    ByteRange,
    TileSource,
    TileStore,
    cover_tiles,
    read_region,
    read_rows,
    tiled_rows,
)
from tensorrepo.formats.dataset.pages.tiles import (
    decode_tile_table,
    encode_tile_table,
    number_chunks,
)
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Storage
from tensorrepo.formats.dataset.schema.values import TiledValues
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tests.support.builders.datasets import equal
from tests.support.faults.damage import places

CUBE = Storage(ColumnLayout.TILED, "uint16", (None, None, None), (16, 16, 16))


class Chunks:
    """Chunks in memory, and what was asked of them."""

    def __init__(self, storage: Storage, pool: ThreadPoolExecutor, **options: Any) -> None:
        self.storage = storage
        self.payloads: list[bytes] = []
        self.requests: list[ByteRange] = []
        self.store = TileStore(storage, self._keep, encoders=pool, **options)

    def _keep(self, parts: Sequence[memoryview]) -> int:
        self.payloads.append(b"".join(parts))
        return len(self.payloads) - 1

    def add(self, rows: list[NDArray[Any] | None]) -> TiledValues:
        """The rows as a reader of their page sees them."""
        found = self.store.add(rows)
        self.store.flush()
        numbered, used = number_chunks(found)
        assert used == self.store.places == list(range(len(self.payloads)))
        page = encode_tile_table(numbered, self.storage)
        return decode_tile_table(page.data.data, page.entry, self.storage, len(used))

    def read(self, ranges: Sequence[ByteRange]) -> list[bytes]:
        self.requests += ranges
        return [self.payloads[each.chunk][each.start : each.stop] for each in ranges]

    @property
    def source(self) -> TileSource:
        return TileSource(self.read)

    def region(self, table: TiledValues, row: int, region: object) -> Any:
        return read_region(table, row, region, self.storage, self.source)


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as threads:
        yield threads


def _array(shape: tuple[int, ...], dtype: str, seed: int) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    element = element_dtype(dtype)
    if element.kind == "b":
        return rng.random(shape) < 0.5
    return np.frombuffer(rng.bytes(prod(shape) * element.itemsize), element).reshape(shape)


@st.composite
def columns(draw: st.DrawFn) -> tuple[Storage, list[NDArray[Any] | None]]:
    """A tiled column and a few rows of it."""
    rank = draw(st.integers(1, 3))
    known = [draw(st.none() | st.integers(0, 7)) for _ in range(rank)]
    tile = tuple(draw(st.integers(1, 4)) for _ in range(rank))
    dtype = draw(st.sampled_from(sorted(CODES)))
    rows: list[NDArray[Any] | None] = []
    for seed in range(draw(st.integers(1, 3))):
        shape = tuple(draw(st.integers(0, 7)) if dim is None else dim for dim in known)
        rows.append(None if draw(st.integers(0, 4)) == 0 else _array(shape, dtype, seed))
    return Storage(ColumnLayout.TILED, dtype, tuple(known), tile), rows


@given(column=columns(), choice=st.sampled_from(list(CODEC_NAMES.values())), data=st.data())
def test_a_region_is_what_numpy_says(
    pool: ThreadPoolExecutor,
    column: tuple[Storage, list[NDArray[Any] | None]],
    choice: CodecChoice,
    data: st.DataObject,
) -> None:
    storage, rows = column
    budget = data.draw(st.sampled_from([2, 64, 1 << 20]))
    chunks = Chunks(storage, pool, codec=choice, budget_bytes=budget)
    table = chunks.add(rows)
    for at, row in enumerate(rows):
        region = ... if row is None else data.draw(basic_indices(row.shape))
        expected = None if row is None else row[region]
        assert equal(chunks.region(table, at, region), expected)


@given(column=columns(), seed=st.integers(0, 99))
def test_whole_rows_come_back_in_any_order(
    pool: ThreadPoolExecutor, column: tuple[Storage, list[NDArray[Any] | None]], seed: int
) -> None:
    storage, rows = column
    chunks = Chunks(storage, pool)
    table = chunks.add(rows)
    order = np.random.default_rng(seed).integers(0, len(rows), 4)
    found = tiled_rows(read_rows(table, order, storage, chunks.source))
    expected = [rows[at] for at in order.tolist()]
    assert all(equal(one, two) for one, two in zip(found, expected, strict=True))
    again, taken = Chunks(storage, pool).add(found), table.take(order)
    assert again.dims.tolist() == taken.dims.tolist()
    assert again.tiles["tag"].tobytes() == taken.tiles["tag"].tobytes()


def test_rows_of_another_byte_order_or_memory_order_are_stored_alike(
    pool: ThreadPoolExecutor,
) -> None:
    row = _array((20, 30, 17), "uint16", 1)
    forms = [row, row.astype(">u2"), np.asfortranarray(row), np.repeat(row, 2, axis=1)[:, ::2]]
    chunks = Chunks(CUBE, pool)
    table = chunks.add(list(forms))
    per_row = table.tiles["checksum"].reshape(4, -1)
    assert (per_row == per_row[0]).all()


@pytest.mark.parametrize(
    "row",
    [
        np.zeros((4, 4), np.uint16),
        np.zeros((4, 4, 4), np.int16),
        np.zeros((4, 4, 4), np.uint32),
        np.zeros((2, 4, 4, 4), np.uint16),
    ],
    ids=lambda row: f"{row.dtype} {row.shape}",
)
def test_a_row_that_does_not_fit_is_refused(pool: ThreadPoolExecutor, row: NDArray[Any]) -> None:
    with pytest.raises(InvalidInputError, match="expected a row of uint16"):
        Chunks(CUBE, pool).add([row])


# ------------------------------------------------------------------------------ bytes


def test_a_row_larger_than_the_budget_streams_through(
    pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    shape, budget = (128, 256, 512), 4 << 20
    row = np.memmap(tmp_path / "row", np.uint16, "w+", shape=shape)
    row[:] = np.arange(512, dtype=np.uint16)
    sizes: list[int] = []

    def measure(parts: Sequence[memoryview]) -> int:
        sizes.append(sum(part.nbytes for part in parts))
        return len(sizes) - 1

    storage = Storage(ColumnLayout.TILED, "uint16", shape, (32, 64, 64))
    store = TileStore(storage, measure, encoders=pool, budget_bytes=budget)
    tracemalloc.start()
    table = store.add([row])
    store.flush()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(sizes) == row.nbytes == int(table.tiles["stored_bytes"].sum()) == 8 * budget
    assert max(sizes) <= budget // 2
    assert peak < 1.5 * budget


def test_a_region_fetches_its_tiles_and_little_more(pool: ThreadPoolExecutor) -> None:
    row = np.random.default_rng(2).integers(0, 900, (80, 90, 100), dtype=np.uint16)
    chunks = Chunks(CUBE, pool, codec=AUTO, budget_bytes=1 << 20)
    table = chunks.add([row])
    region = (slice(20, 70, 3), 40, slice(5, 60))
    assert equal(chunks.region(table, 0, region), row[region])
    touched = table.tiles["stored_bytes"].reshape(5, 6, 7)[1:5, 2, 0:4].sum()
    fetched = sum(each.nbytes for each in chunks.requests)
    assert touched <= fetched <= 1.3 * touched
    assert len(chunks.requests) <= 4


def test_a_whole_row_comes_in_few_requests(pool: ThreadPoolExecutor) -> None:
    row = _array((64, 64, 64), "uint16", 4)
    chunks = Chunks(CUBE, pool)
    table = chunks.add([row])
    assert equal(chunks.region(table, 0, ...), row)
    assert [(each.start, each.stop) for each in chunks.requests] == [(0, row.nbytes)]


def test_tiles_are_asked_for_in_batches(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tile_io, "BATCH_BYTES", 20_000)
    monkeypatch.setattr(tile_io, "REQUEST_BYTES", 9_000)
    row = _array((64, 64, 64), "uint16", 5)
    chunks = Chunks(CUBE, pool)
    table = chunks.add([row])
    calls: list[int] = []

    def read(ranges: Sequence[ByteRange]) -> list[bytes]:
        calls.append(sum(each.nbytes for each in ranges))
        return chunks.read(ranges)

    assert equal(read_region(table, 0, ..., CUBE, TileSource(read)), row)
    assert len(calls) > 20
    assert max(calls) <= 20_000


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 400_000), st.integers(0, 9000)), max_size=40
    )
)
def test_ranges_cover_their_tiles_with_little_waste(tiles: list[tuple[int, int, int]]) -> None:
    starts: dict[int, int] = {}
    spans = []
    for chunk, gap, size in tiles:
        start = starts.get(chunk, 0) + gap // 10
        spans.append(ByteRange(chunk, start, start + size))
        starts[chunk] = start + size
    covers, of = cover_tiles(spans)
    for span, at in zip(spans, of, strict=True):
        assert covers[at].chunk == span.chunk
        assert covers[at].start <= span.start <= span.stop <= covers[at].stop
    assert sum(each.nbytes for each in covers) <= 1.3 * sum(each.nbytes for each in spans)


# ------------------------------------------------------------------------------ damage


@pytest.mark.parametrize("choice", CODEC_NAMES.values())
def test_no_flipped_byte_of_a_tile_goes_unnoticed(
    pool: ThreadPoolExecutor, choice: CodecChoice
) -> None:
    storage = Storage(ColumnLayout.TILED, "int32", (9,), (4,))
    chunks = Chunks(storage, pool, codec=choice)
    table = chunks.add([np.arange(9, dtype=np.int32)])
    whole = chunks.payloads[0]
    for at in places(len(whole)):
        chunks.payloads[0] = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with pytest.raises(CorruptError, match="tile"):
            chunks.region(table, 0, ...)


def test_a_tile_forged_to_its_checksum_is_told_by_its_tag(pool: ThreadPoolExecutor) -> None:
    storage = Storage(ColumnLayout.TILED, "int32", (9,), (4,))
    chunks = Chunks(storage, pool)
    table = chunks.add([np.arange(9, dtype=np.int32)])
    tiles = table.tiles.copy()
    tiles["tag"][1] = np.void(bytes(16))
    forged = type(table)(table.offsets, tiles, table.dims)
    with pytest.raises(CorruptError, match=r"tile 1 of row 0 of the page, byte .* has tag"):
        chunks.region(forged, 0, ...)
    assert chunks.region(forged, 0, slice(4)).tolist() == [0, 1, 2, 3]
    near = TileSource(chunks.read, check_tags=False)
    assert read_region(forged, 0, ..., storage, near).tolist() == list(range(9))


def test_a_short_answer_is_corrupt(pool: ThreadPoolExecutor) -> None:
    chunks = Chunks(CUBE, pool)
    table = chunks.add([_array((20, 20, 20), "uint16", 6)])
    chunks.payloads[0] = chunks.payloads[0][:-1]
    with pytest.raises(CorruptError, match="expected"):
        chunks.region(table, 0, ...)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD, Codec.BITPACK])
def test_a_tile_that_claims_too_much_is_refused_before_anything_is_read(
    pool: ThreadPoolExecutor, codec: Codec
) -> None:
    side = 1 << 20
    storage = Storage(ColumnLayout.TILED, "uint8", (None, None), (side, side))
    chunks = Chunks(storage, pool)
    table = chunks.add([np.zeros((5, 5), np.uint8)])
    dims = np.array([[side, side]], np.uint32)
    tiles = table.tiles.copy()
    tiles["codec"] = codec
    bomb = type(table)(table.offsets, tiles, dims)
    with pytest.raises(CorruptError, match=f"25 bytes cannot stand for {side * side}"):
        chunks.region(bomb, 0, ...)
    with pytest.raises(CorruptError, match=f"25 bytes cannot stand for {side * side}"):
        read_rows(bomb, np.array([0]), storage, chunks.source)
    assert chunks.requests == []


def test_a_chunk_is_no_larger_than_it_may_be(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tile_io, "TILE_CHUNK_BYTES", 20_000)
    row = _array((64, 64, 64), "uint16", 7)
    chunks = Chunks(CUBE, pool)
    table = chunks.add([row, None, row])
    assert max(len(payload) for payload in chunks.payloads) <= 20_000
    assert equal(chunks.region(table, 2, ...), row)
    assert chunks.region(table, 1, ...) is None
