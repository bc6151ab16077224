"""How do arrays become tiles in chunks, within a budget?

A row may be larger than memory: it is cut as a view, threads copy and encode one tile each, and
encoded tiles leave as soon as a chunk is full. At any time the budget holds the tiles being encoded
and the chunk being filled.
"""

from __future__ import annotations

from collections import deque
from math import prod
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from xxhash import xxh3_64_intdigest

from tensorrepo.formats.codecs.buffers import Codec
from tensorrepo.formats.codecs.choice import CodecChoice, encode_chosen
from tensorrepo.formats.dataset.columns.types import MAX_DIM
from tensorrepo.formats.dataset.columns.values import (
    RaggedValues,
    TiledValues,
    offsets_of,
    valid_rows,
)
from tensorrepo.formats.dataset.pages.tiles import TILE, grid_of, tile_slices
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import content_tag

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from concurrent.futures import Executor, Future

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.columns.types import Storage

Place = TypeVar("Place")

TILE_CHUNK_BYTES = 64 << 20
TILE_BUDGET_BYTES = 128 << 20


class TileStore(Generic[Place]):
    """Cuts the rows of one tiled column, and stores their tiles in chunks. Not thread-safe.

    Attributes:
        places: what `store_chunk` gave for each chunk so far. Tiles name chunks by their place in
            this list.
    """

    def __init__(
        self,
        storage: Storage,
        store_chunk: Callable[[Sequence[memoryview]], Place],
        *,
        encoders: Executor,
        codec: CodecChoice = Codec.NONE,
        budget_bytes: int = TILE_BUDGET_BYTES,
    ) -> None:
        """Store through `store_chunk`.

        Args:
            storage: the stored form of the column.
            store_chunk: takes the parts of a chunk's payload, tiles back to back, at most
                `TILE_CHUNK_BYTES` unless one tile is larger; called in the order of chunks. What it
                still holds when it returns counts against the caller's memory.
            encoders: threads that copy, compress and hash tiles.
            codec: tried on every tile; kept where it saves a quarter.
            budget_bytes: bound of the memory used here, beside one tile.
        """
        self.places: list[Place] = []
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
