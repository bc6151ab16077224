"""Files that are made of rows when somebody asks for them, and whose bytes stay the same.

A dataset has no files: its Parquet is written once for each (digest of the dataset, writer), cut
into pieces that lie in a cache of bounded size. What the files are called, their sizes and SHA-256
lie there as well. Pieces that had to go are made again, and must be what they were: bytes of two
renderings are never mixed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import field
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import BoundedSemaphore
from typing import Final

import msgspec

from tensorrepo.api.huggingface.leftovers import remove_older
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.exchange.tables.huggingface_parquet import (
    plan_shards,
    write_shard,
    writer_name,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.objects.cache import DiskCache, LimitedCache
from tensorrepo.repo.typed_decoding import from_json

CACHE_BYTES: Final = 20 << 30
PIECE_BYTES: Final = 4 << 20
WRITTEN_AT_ONCE: Final = 2
_KEPT_LISTS: Final = 256
_KEPT_SECONDS: Final = 86400  # after which whoever wrote there is believed dead


class RenderedFile(msgspec.Struct, frozen=True):
    """A file that was made of rows ``[start, stop)``; its bytes are named by `sha256`."""

    path: str
    size_bytes: int
    sha256: str
    start: int
    stop: int
    number: int


@dataclass(frozen=True, slots=True)
class RenderedFiles:
    """Rendered files of all datasets of a service. Thread-safe.

    Attributes:
        cache: pieces of files, and lists of them, shared by all processes.
        folder: where files are written before they are cut.
        writing: held by whoever writes one, which takes memory and cores.
    """

    cache: DiskCache
    folder: Path
    writing: BoundedSemaphore = field(default_factory=lambda: BoundedSemaphore(WRITTEN_AT_ONCE))
    _lists: LimitedCache[tuple[RenderedFile, ...]] = field(
        default_factory=lambda: LimitedCache(_KEPT_LISTS)
    )

    def files(self, dataset: StoredDataset) -> tuple[RenderedFile, ...]:
        """All files of a dataset; the first call writes them.

        Raises:
            InvalidInputError: a column that the format has no type for.
        """
        key = _list_name(dataset)
        return self._lists.get_or_load(key, lambda: (self._listed(dataset, key), 1))

    def pieces(
        self, dataset: StoredDataset, file: RenderedFile, start: int, stop: int
    ) -> Iterator[memoryview]:
        """Bytes ``[start, stop)`` of a file.

        Raises:
            CorruptError: it was made again, and is another file now.
        """
        for number in range(start // PIECE_BYTES, -(-stop // PIECE_BYTES)):
            at = number * PIECE_BYTES
            piece = self.cache.get(_piece_name(dataset, file.number, number))
            if piece is None:
                yield from self._made_again(dataset, file, max(start, at), stop)
                return
            yield piece[max(start - at, 0) : stop - at]

    def _listed(self, dataset: StoredDataset, key: str) -> tuple[RenderedFile, ...]:
        known = self.cache.get(key)
        if known is not None:
            # The cache proves its bytes; a list in a form of another version is made anew.
            with suppress(msgspec.MsgspecError):
                return from_json(known, tuple[RenderedFile, ...])
        shards = plan_shards(dataset.rows, dataset.stored_bytes)
        with self._room() as room:
            files = tuple(
                self._write(dataset, number, rows, len(shards), room / "shard.parquet")
                for number, rows in enumerate(shards)
            )
        self.cache.put(key, (msgspec.json.encode(files),))
        return files

    def _made_again(
        self, dataset: StoredDataset, file: RenderedFile, start: int, stop: int
    ) -> Iterator[memoryview]:
        with self._room() as room:
            path = room / "shard.parquet"
            count = len(plan_shards(dataset.rows, dataset.stored_bytes))
            made = self._write(dataset, file.number, range(file.start, file.stop), count, path)
            if made.sha256 != file.sha256:
                raise CorruptError(
                    f"{file.path} of dataset {dataset.digest:.12} was made again, and came out "
                    f"otherwise: SHA-256 {made.sha256:.12}, expected {file.sha256:.12}"
                )
            with path.open("rb") as written:
                written.seek(start)
                while start < stop:
                    piece = written.read(min(PIECE_BYTES, stop - start))
                    start += len(piece)
                    yield memoryview(piece)

    def _write(
        self, dataset: StoredDataset, number: int, rows: range, count: int, path: Path
    ) -> RenderedFile:
        """Write a file to `path`, and remember its pieces."""
        path.unlink(missing_ok=True)
        with self.writing:
            write_shard(dataset, rows, path)
        hasher, size = hashlib.sha256(), 0
        with path.open("rb") as written:
            while piece := written.read(PIECE_BYTES):
                self.cache.put(_piece_name(dataset, number, size // PIECE_BYTES), (piece,))
                hasher.update(piece)
                size += len(piece)
        name = f"data/train-{number:05d}-of-{count:05d}.parquet"
        return RenderedFile(name, size, hasher.hexdigest(), rows.start, rows.stop, number)

    @contextmanager
    def _room(self) -> Iterator[Path]:
        self.folder.mkdir(parents=True, exist_ok=True)
        remove_older(self.folder.iterdir(), time.time() - _KEPT_SECONDS)
        with TemporaryDirectory(dir=self.folder, prefix="rendering-") as room:
            yield Path(room)


# Names begin with the dataset's digest: whoever drops an object from caches finds them.
def _list_name(dataset: StoredDataset) -> str:
    return f"{dataset.digest}.parquet-{writer_name()}"


def _piece_name(dataset: StoredDataset, file: int, piece: int) -> str:
    return f"{_list_name(dataset)}-{file}-{piece}"
