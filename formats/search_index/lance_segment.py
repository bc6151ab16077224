"""Segments made by Lance, and asked: in the importers' child process, for indexes are files.

An index may have come with somebody else's repository, so that its bytes are foreign as those of an
imported file are. Whether one did is not asked: all are read in a child, which tells places of rows
and nothing else. What it tells is checked, and rows are looked up by it, never taken from it.
"""

from __future__ import annotations

import base64
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.exchange.child import open_files
from tensorrepo.formats.exchange.child_main import TableFile
from tensorrepo.formats.exchange.child_search import COLUMN
from tensorrepo.formats.search_index.segment_files import IndexFolders, files_below, store_files
from tensorrepo.formats.search_index.stored_index import IndexFile, IndexSegment
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, Error, UnsupportedError
from tensorrepo.repo.objects.envelope import ObjectSink, ObjectSource

Progress = Callable[[int, int, str], None]
CHILD_BYTES: Final = 1 << 30  # that a child takes beside what it reads of an index
MAKING_BYTES: Final = 4 << 30  # that a child may take to make one
MOST_CHILDREN: Final = 4
_STREAM: Final = "rows.arrow"
_FOLDER: Final = "index"


def make_segment_files(
    objects: ObjectSink,
    folders: IndexFolders,
    batches: Iterable[pa.Array],
    kind: pa.DataType,
    index: str,
    options: Mapping[str, Any],
    *,
    beside: Callable[[Path], None] = lambda _folder: None,
    segment: Callable[[tuple[IndexFile, ...]], IndexSegment],
    progress: Progress,
) -> IndexSegment:
    """Have Lance make an index of some values, and store its files.

    Args:
        objects: store of the files.
        folders: where it is made, and stays.
        batches: the values in the order of their places, as arrays of `kind`; read once.
        kind: type of the values.
        index: Lance's name of it: "IVF_PQ", ..., "INVERTED".
        options: Lance's options.
        beside: writes further files into the folder, when the values were read.
        segment: makes a segment of its files.
        progress: receives how much of a stage is done, of how much, and the stage.

    Raises:
        UnsupportedError: pylance is not installed.
    """
    if find_spec("lance") is None:  # before all rows are read
        raise UnsupportedError(
            "search indexes need pylance, which is not installed: `pip install tensorrepo[lance]`"
        )
    with folders.made() as work:
        source, folder = work / _STREAM, work / _FOLDER
        schema = pa.schema([pa.field(COLUMN, kind)])
        with pa.OSFile(str(source), "wb") as file, pa.ipc.new_stream(file, schema) as stream:
            for values in batches:
                stream.write_batch(pa.record_batch([values], schema=schema))
        asked = {"folder": str(folder), "index": index, "options": dict(options)}
        table = open_files("search", [source], memory_bytes=MAKING_BYTES, kind="make")[source]
        for told in table.batches(**asked):
            stage, done, total = (column[-1].as_py() for column in told.columns)
            progress(done, total, stage.replace("_", " "))
        source.unlink()
        beside(folder)
        made = segment(store_files(objects, folder, files_below(folder)))
        folders.keep(folder, made.name)
    return made


@dataclass(frozen=True, slots=True, eq=False)
class FoundPlaces:
    """What a segment answers.

    Attributes:
        queries: int32 ``(n,)``: number of the query, or of the word.
        places: int64 ``(n,)``: places of rows in the segment.
        values: float32 ``(n,)``: distances or scores, as the library estimates them.
    """

    queries: NDArray[np.int32]
    places: Ints
    values: NDArray[np.float32]


def nearest_places(
    table: TableFile, vectors: NDArray[np.float32], k: int, nprobes: int, ef: int | None = None
) -> FoundPlaces:
    """Places of vectors that may be nearest to each of `vectors`, ``(n, d)``."""
    raw = base64.b64encode(vectors.astype("<f4").tobytes()).decode()
    return _found(table, vectors=raw, dim=vectors.shape[1], k=k, nprobes=nprobes, ef=ef)


def places_having(table: TableFile, words: Sequence[str]) -> FoundPlaces:
    """Places of all texts that have each of `words`."""
    return _found(table, words=list(words))


def _found(table: TableFile, **asked: Any) -> FoundPlaces:
    batches = [batch for batch in table.batches(**asked) if batch.num_rows]
    columns = []
    for at, kind in enumerate((np.int32, np.int64, np.float32)):
        arrays = [batch.column(at) for batch in batches]
        if any(array.null_count for array in arrays):
            raise CorruptError("a search index answers with nulls")
        parts = [array.to_numpy(zero_copy_only=False).astype(kind) for array in arrays]
        columns.append(np.concatenate([np.zeros(0, kind), *parts]))
    return FoundPlaces(*columns)


class SegmentReaders:
    """Children that have the segments of an index open, those used last.

    Safe to share between threads.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[object, ...], tuple[TableFile, ...]] = OrderedDict()
        self._lock = Lock()

    def tables(
        self,
        objects: ObjectSource,
        folders: IndexFolders,
        segments: Sequence[IndexSegment],
        family: str,
    ) -> tuple[TableFile, ...]:
        """What answers for each of some segments with files, "vectors" or "words"."""
        paths = [folders.folder(objects, segment) for segment in segments]
        # A process that was forked has the sockets of children that answer another one.
        key = (os.getpid(), family, *map(str, paths))
        with self._lock:
            found = self._open.get(key)
            if found is None:
                found = _open(paths, family, sum(segment.size_bytes for segment in segments))
                self._open[key] = found
                while len(self._open) > MOST_CHILDREN:
                    self._open.popitem(last=False)
            self._open.move_to_end(key)
        return found

    @contextmanager
    def asking(self) -> Iterator[None]:
        """While children are asked: when one fails, all end, and the next question starts anew.

        A child that was killed, or took too much memory, answers nothing any more.
        """
        try:
            yield
        except Error:
            with self._lock:
                self._open.clear()
            raise


def _open(paths: Sequence[Path], family: str, size_bytes: int) -> tuple[TableFile, ...]:
    # What is decoded of an index takes more than its files do.
    cache_bytes = 2 * size_bytes + (64 << 20)
    memory_bytes = CHILD_BYTES + 2 * cache_bytes
    opened = open_files(
        "search", paths, memory_bytes=memory_bytes, kind=family, cache_bytes=cache_bytes
    )
    return tuple(opened[path] for path in paths)
