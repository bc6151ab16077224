"""Tiles read and written: regions and whole rows, from and to exactly the tiles that they touch.

Reading: the caller's `read_tiles` asks the store, in parallel if it can. Tiles that lie close
together come in one request, as long as all requests together fetch no more than 1.3 times the
tiles. Every tile is proved before its elements are copied.

Writing: a row may be larger than memory. It is cut as a view, threads copy and encode one tile
each, and encoded tiles leave as soon as a chunk is full. At any time the budget holds the tiles
being encoded and the chunk being filled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from itertools import pairwise
from math import prod
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_64_intdigest

from tensorrepo.formats.common.buffer_codecs import (
    Codec,
    CodecChoice,
    decode_buffer,
    encode_chosen,
    most_raw_bytes,
)
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.pages.tiles import (
    TILE,
    Axis,
    TilePart,
    grid_of,
    resolve_region,
    tile_slices,
    touched_tiles,
)
from tensorrepo.formats.dataset.schema.types import MAX_DIM, Storage
from tensorrepo.formats.dataset.schema.values import (
    RaggedValues,
    TiledValues,
    offsets_of,
    valid_rows,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.ranges import GAP_BYTES, REQUEST_BYTES

MAX_WASTE = 0.3  # of the bytes of the tiles touched
BATCH_BYTES = 64 << 20  # requested at a time: what is held beside the result


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``[start, stop)`` of the payload of a chunk, by its number."""

    chunk: int
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True, eq=False)
class TileSource:
    """How the tiles of one page are read.

    Attributes:
        read_tiles: reader of the bytes of ranges, in their order. It is called with as many as
            `BATCH_BYTES` hold, and best reads them in parallel. They number chunks as the page's
            tiles do: ``ColumnIndex.tiles[page][chunk]`` is the place in ``ColumnIndex.chunks``.
        chunk_name: name of a chunk for people, by that number.
        check_tags: whether tiles are compared with their tags too: yes where their bytes come from
            a store or a remote, no where they are mapped from a local disk.
    """

    read_tiles: Callable[[Sequence[ByteRange]], Sequence[Buffer]]
    chunk_name: Callable[[int], str] = "chunk number {} of the page".format
    check_tags: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """A tile that is read: where it lies, what proves it, and the array that takes a part of it."""

    span: ByteRange
    checksum: int
    tag: bytes
    codec: int
    row: int
    part: TilePart
    out: NDArray[Any]


def read_region(
    table: TiledValues, row: int, region: object, storage: Storage, source: TileSource
) -> Any:
    """``array[region]`` of one row, from the tiles that it touches.

    `region` is made of integers, slices of any step and an ellipsis, as numpy takes them.

    Returns:
        A new array, a scalar where all dimensions are dropped, or None where the row is null.

    Raises:
        InvalidInputError: a region of another kind, or outside the row.
        CorruptError: a tile is not what its record says.
        UnsupportedError: a codec that this version does not know.
    """
    if table.valid is not None and not table.valid[row]:
        return None
    axes = resolve_region(region, table.row_shape(row))
    parts = _parts(table, row, axes, storage)
    out = np.empty([axis.count for axis in axes], storage.element)
    _read([_wanted(table, row, part, out) for part in parts], storage, source)
    turned = [slice(None, None, -1 if axis.is_reversed else 1) for axis in axes]
    return out[tuple(0 if axes[at].is_dropped else each for at, each in enumerate(turned))]


def read_rows(table: TiledValues, rows: Ints, storage: Storage, source: TileSource) -> RaggedValues:
    """Whole rows, in the order asked for; see `read_region`."""
    chosen = rows.tolist()
    shapes = [table.row_shape(row) for row in chosen]
    parts = [
        _parts(table, row, resolve_region(..., shape), storage)
        for row, shape in zip(chosen, shapes, strict=True)
    ]
    counts = [
        prod(shape) if table.valid is None or table.valid[row] else 0
        for row, shape in zip(chosen, shapes, strict=True)
    ]
    offsets = offsets_of(np.array(counts, np.int64))
    elements = np.empty(int(offsets[-1]), storage.element)
    wanted = []
    bounds = pairwise(offsets.tolist())
    for row, shape, (start, stop), mine in zip(chosen, shapes, bounds, parts, strict=True):
        out = elements[start:stop].reshape(shape if stop > start else 0)
        wanted += [_wanted(table, row, part, out) for part in mine]
    _read(wanted, storage, source)
    unknown = [place for place, dim in enumerate(storage.shape) if dim is None]
    dims = table.dims[rows][:, unknown] if storage.stores_dims else None
    valid = None if table.valid is None else table.valid[rows]
    return RaggedValues(offsets, elements, storage.shape, dims, valid)


def _parts(table: TiledValues, row: int, axes: Sequence[Axis], storage: Storage) -> list[TilePart]:
    """What is taken from which tiles, none of which claims more than its bytes can stand for."""
    parts = list(touched_tiles(axes, table.row_shape(row), storage.tile))
    mine = table.tiles[int(table.offsets[row]) : int(table.offsets[row + 1])]
    claims = mine[[part.number for part in parts]] if parts else mine[:0]
    sizes = zip(claims["codec"].tolist(), claims["stored_bytes"].tolist(), strict=True)
    for part, (codec, stored_bytes) in zip(parts, sizes, strict=True):
        raw_bytes = prod(part.shape) * storage.element.itemsize
        if raw_bytes > most_raw_bytes(codec, stored_bytes):
            raise CorruptError(
                f"tile {part.number} of row {row}: {stored_bytes} bytes cannot stand for "
                f"{raw_bytes}"
            )
    return parts


def _wanted(table: TiledValues, row: int, part: TilePart, out: NDArray[Any]) -> _Wanted:
    record = table.tiles[int(table.offsets[row]) + part.number]
    offset, stored_bytes, checksum, tag, chunk, codec, _ = record.tolist()
    span = ByteRange(chunk, offset, offset + stored_bytes)
    return _Wanted(span, checksum, tag, codec, row, part, out)


# ------------------------------------------------------------------------------ reading


def _read(wanted: Sequence[_Wanted], storage: Storage, source: TileSource) -> None:
    covers, of = cover_tiles([each.span for each in wanted])
    inside: list[list[_Wanted]] = [[] for _ in covers]
    for each, place in zip(wanted, of, strict=True):
        inside[place].append(each)
    for start, stop in _batches(covers):
        ranges = covers[start:stop]
        found = [memoryview(data).cast("B") for data in source.read_tiles(ranges)]
        for span, data in zip(ranges, found, strict=True):
            if data.nbytes != span.nbytes:
                raise CorruptError(f"read {data.nbytes} bytes of tiles, expected {span.nbytes}")
        for span, data, some in zip(ranges, found, inside[start:stop], strict=True):
            for each in some:
                stored = data[each.span.start - span.start : each.span.stop - span.start]
                _copy(each, stored, storage, source)


def cover_tiles(spans: Sequence[ByteRange]) -> tuple[list[ByteRange], list[int]]:
    """The ranges to request for these tiles, and for each tile the place of the one that holds it.

    The smallest gaps are bridged first, while they add up to less than `MAX_WASTE` of the tiles.
    """
    order = sorted(range(len(spans)), key=lambda at: (spans[at].chunk, spans[at].start))
    bridged = _bridged([spans[at] for at in order])
    covers: list[ByteRange] = []
    of = [0] * len(spans)
    for at, near in zip(order, bridged, strict=True):
        span = spans[at]
        last = covers[-1] if near else span
        joined = ByteRange(span.chunk, last.start, max(last.stop, span.stop))
        if near and joined.nbytes <= REQUEST_BYTES:
            covers[-1] = joined
        else:
            covers.append(span)
        of[at] = len(covers) - 1
    return covers, of


def _bridged(spans: Sequence[ByteRange]) -> list[bool]:
    """Which of the sorted `spans` may be requested together with what comes before it."""
    gaps: list[int] = []
    stop = 0
    for before, span in pairwise(spans):
        stop = max(stop, before.stop) if gaps else before.stop
        if span.chunk != before.chunk:
            gaps.append(GAP_BYTES)
            stop = 0
        else:
            gaps.append(max(0, span.start - stop))
    room = int(MAX_WASTE * sum(span.nbytes for span in spans))
    near = [False] * len(spans)
    for at in sorted(range(len(gaps)), key=gaps.__getitem__):
        room -= gaps[at]
        if gaps[at] >= GAP_BYTES or room < 0:
            break
        near[at + 1] = True
    return near


def _batches(covers: Sequence[ByteRange]) -> Iterator[tuple[int, int]]:
    """Bounds of runs of ranges that hold up to `BATCH_BYTES`, at least one range."""
    start = 0
    size = 0
    for at, span in enumerate(covers):
        if at > start and size + span.nbytes > BATCH_BYTES:
            yield start, at
            start, size = at, 0
        size += span.nbytes
    if covers:
        yield start, len(covers)


def _copy(wanted: _Wanted, stored: memoryview, storage: Storage, source: TileSource) -> None:
    """Prove and decode one tile, and copy what is wanted of it."""
    part = wanted.part
    name = f"tile {part.number} of row {wanted.row} of the page"
    if (found := xxh3_64_intdigest(stored)) != wanted.checksum:
        raise CorruptError(
            f"{name}, byte {wanted.span.start} of {source.chunk_name(wanted.span.chunk)}, has "
            f"checksum {found:016x}, expected {wanted.checksum:016x}"
        )
    if source.check_tags and (tag := content_tag(stored)) != wanted.tag:
        raise CorruptError(
            f"{name}, byte {wanted.span.start} of {source.chunk_name(wanted.span.chunk)}, has "
            f"tag {tag.hex()}, expected {wanted.tag.hex()}"
        )
    element = storage.element
    raw_bytes = prod(part.shape) * element.itemsize
    raw = decode_buffer(wanted.codec, stored, raw_bytes, element.itemsize)
    wanted.out[part.target] = np.frombuffer(raw, element).reshape(part.shape)[part.source]


TileLocation = TypeVar("TileLocation")

TILE_CHUNK_BYTES = 64 << 20
TILE_BUDGET_BYTES = 128 << 20


class TileStore(Generic[TileLocation]):
    """Cuts the rows of one tiled column, and stores their tiles in chunks. Not thread-safe.

    `store_chunk` takes the parts of a chunk's payload, tiles back to back, at most
    `TILE_CHUNK_BYTES` unless one tile is larger, in the order of chunks. What it gave for each
    stands in `places`: tiles name chunks by their place in this list. `budget_bytes` bounds the
    memory used here, beside one tile; what `store_chunk` still holds is the caller's.
    """

    def __init__(
        self,
        storage: Storage,
        store_chunk: Callable[[Sequence[memoryview]], TileLocation],
        *,
        encoders: Executor,
        codec: CodecChoice = Codec.NONE,
        budget_bytes: int = TILE_BUDGET_BYTES,
    ) -> None:
        self.places: list[TileLocation] = []
        self._storage = storage
        self._store_chunk = store_chunk
        self._encoders = encoders
        self._codec = codec
        self._chunk_bytes = min(TILE_CHUNK_BYTES, budget_bytes // 2)
        self._most_waiting_bytes = budget_bytes // 2
        self._waiting_bytes = 0
        self._waiting: deque[tuple[Future[tuple[memoryview, NDArray[Any]]], int]] = deque()
        self._open: list[memoryview] = []
        self._open_bytes = 0

    def add(self, rows: Iterable[NDArray[Any] | None]) -> TiledValues:
        """Take in rows, None where one is null; nothing refers to them afterwards.

        Each may be a `numpy.memmap`: it is read tile by tile. Tiles of the last chunk are stored
        with the next `flush`.

        Raises:
            InvalidInputError: a row of another element type or shape than the column's.
        """
        records: list[NDArray[Any]] = []
        shapes: list[tuple[int, ...]] = []
        valid: list[bool] = []
        for row in rows:
            shape = (0,) * len(self._storage.shape) if row is None else self._checked(row)
            if row is not None:
                for part in tile_slices(shape, self._storage.tile):
                    records += self._submit(row[part])
            shapes.append(shape)
            valid.append(row is not None)
        while self._waiting:
            records.append(self._settle())
        counts = [prod(grid_of(shape, self._storage.tile)) for shape in shapes]
        return TiledValues(
            offsets_of(np.array(counts, np.int64)),
            np.array(records, TILE),
            np.array(shapes, np.uint32).reshape(len(shapes), len(self._storage.shape)),
            None if all(valid) else np.array(valid, np.bool_),
        )

    def flush(self) -> None:
        """Store the chunk that is open, if any: after this, `places` knows every tile's chunk."""
        if self._open:
            self.places.append(self._store_chunk(self._open))
            self._open = []
            self._open_bytes = 0

    def _checked(self, row: NDArray[Any]) -> tuple[int, ...]:
        storage = self._storage
        fits = len(row.shape) == len(storage.shape) and all(
            known in (None, dim) and dim <= MAX_DIM
            for known, dim in zip(storage.shape, row.shape, strict=True)
        )
        if not fits or row.dtype.newbyteorder("<") != storage.element:
            raise InvalidInputError(
                f"expected a row of {storage.dtype} with shape {storage.shape}, "
                f"found {row.dtype} with shape {row.shape}"
            )
        return row.shape

    def _submit(self, tile: NDArray[Any]) -> list[NDArray[Any]]:
        """Begin to encode one more tile; the records of those that had to leave for it."""
        settled = []
        while self._waiting and self._waiting_bytes + tile.nbytes > self._most_waiting_bytes:
            settled.append(self._settle())
        encoded = self._encoders.submit(_encode, tile, self._storage.element, self._codec)
        self._waiting.append((encoded, tile.nbytes))
        self._waiting_bytes += tile.nbytes
        return settled

    def _settle(self) -> NDArray[Any]:
        """Place the tile that has waited longest."""
        encoded, raw_bytes = self._waiting.popleft()
        self._waiting_bytes -= raw_bytes
        data, record = encoded.result()
        if self._open_bytes + data.nbytes > self._chunk_bytes:
            self.flush()
        record["offset"], record["chunk"] = self._open_bytes, len(self.places)
        self._open.append(data)
        self._open_bytes += data.nbytes
        return record


def tiled_rows(values: RaggedValues) -> list[NDArray[Any] | None]:
    """Rows that lie in memory, as `TileStore.add` takes them: views, None where null."""
    valid = valid_rows(values).tolist()
    return [values.row(at) if there else None for at, there in enumerate(valid)]


def _encode(
    tile: NDArray[Any], element: np.dtype[Any], choice: CodecChoice
) -> tuple[memoryview, NDArray[Any]]:
    """A tile's stored bytes, and its record without a place."""
    # A copy, always: the caller's memory is not ours to keep.
    raw = np.array(tile, element, order="C").reshape(-1).view(np.uint8)
    codec, stored = encode_chosen(choice, raw.data, element.itemsize)
    data = memoryview(stored)
    record = np.zeros((), TILE)
    record["stored_bytes"], record["codec"] = data.nbytes, codec
    record["checksum"] = xxh3_64_intdigest(data)
    record["tag"] = np.void(content_tag(data))
    return data, record
