"""Search index reader of the importers' child process: makes Lance's indexes, and asks them.

Run as a script by `child_main`, which says why. A made index is a folder of Lance's without the
rows that it was made of: nothing but places of rows, and distances or scores, comes out of it.
"""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import pyarrow as pa

COLUMN = "value"
VECTORS = pa.schema([("query", pa.int32()), ("place", pa.uint64()), ("distance", pa.float32())])
WORDS = pa.schema([("word", pa.int32()), ("place", pa.uint64()), ("score", pa.float32())])
MADE = pa.schema([("stage", pa.string()), ("done", pa.int64()), ("total", pa.int64())])
SIGN_OF_LIFE_SECONDS = 1.0
_MANIFESTS = "_versions"
_Answer = Callable[..., Iterator[pa.RecordBatch]]


def open_index(
    path: str, refusal: type[Exception], kind: str, **options: Any
) -> tuple[pa.Schema, None, _Answer]:
    """What answers questions: its answers' schema, no number of rows, and itself.

    Args:
        path: the folder of an index; to make one, a stream of Arrow with its rows.
        refusal: what is raised where the folder refers to other places, or has rows.
        kind: "vectors" or "words" to be asked, "make" to be made.
        options: bytes of memory for what is read of it; to make one, see `_make`.
    """
    lance = _library(refusal)
    if kind == "make":
        return MADE, None, partial(_make, lance, path, **options)
    opened = _opened(lance, path, refusal, **options)
    if kind == "vectors":
        return VECTORS, None, partial(_nearest, opened)
    return WORDS, None, partial(_having, opened)


def _library(refusal: type[Exception]) -> Any:
    try:
        import lance
    except ImportError as problem:
        raise refusal(
            "search indexes need pylance, which is not installed: `pip install tensorrepo[lance]`",
            "UnsupportedError",
        ) from problem
    return lance


def _opened(lance: Any, path: str, refusal: type[Exception], cache_bytes: int) -> Any:
    opened = lance.dataset(
        path, index_cache_size_bytes=cache_bytes, metadata_cache_size_bytes=64 << 20
    )
    if opened.base_paths():
        raise refusal("refers to places outside of it")
    for fragment in opened.get_fragments():
        for file in fragment.data_files():
            if os.path.exists(os.path.join(path, "data", file.path)):
                raise refusal("holds rows, where an index holds none")
    return opened


def _nearest(
    opened: Any, vectors: str, dim: int, k: int, nprobes: int, ef: int | None
) -> Iterator[pa.RecordBatch]:
    """Places that may be nearest to each of some vectors: base64 of little-endian float32."""
    raw = base64.b64decode(vectors)
    numbers = pa.Array.from_buffers(pa.float32(), len(raw) // 4, [None, pa.py_buffer(raw)])
    for query in range(len(numbers) // dim):
        asked = {"column": COLUMN, "q": numbers.slice(query * dim, dim), "k": k}
        asked |= {"nprobes": nprobes} | ({} if ef is None else {"ef": ef})
        found = _scan(opened, nearest=asked, columns=["_distance"])
        yield _batch(VECTORS, query, found["_rowid"], found["_distance"])


def _having(opened: Any, words: list[str]) -> Iterator[pa.RecordBatch]:
    """Places of all texts that have each of some words, and what the word scores in each."""
    from lance.query import MatchQuery

    for number, word in enumerate(words):
        found = _scan(opened, full_text_query=MatchQuery(word, COLUMN), columns=["_score"])
        yield _batch(WORDS, number, found["_rowid"], found["_score"])


def _scan(opened: Any, **asked: Any) -> pa.Table:
    """Rows that an index knows: `fast_search` leaves out those that would be read themselves."""
    scanner = opened.scanner(
        with_row_id=True, fast_search=True, disable_scoring_autoprojection=True, **asked
    )
    return scanner.to_table()


def _batch(schema: pa.Schema, number: int, *columns: pa.ChunkedArray) -> pa.RecordBatch:
    arrays = [pa.concat_arrays(column.chunks) for column in columns if column.num_chunks]
    if not arrays:
        return pa.record_batch([pa.array([], field.type) for field in schema], schema=schema)
    numbers = pa.array([number], pa.int32()).take(pa.nulls(len(arrays[0]), pa.int8()).fill_null(0))
    return pa.record_batch([numbers, *arrays], schema=schema)


def _make(
    lance: Any, path: str, folder: str, index: str, options: dict[str, Any]
) -> Iterator[pa.RecordBatch]:
    """Make an index of the rows of a stream; gives signs of life until it is there.

    Args:
        lance: the library.
        path: a stream of Arrow with one column, `COLUMN`.
        folder: new folder of the index.
        index: what Lance calls it: "IVF_PQ", ..., "INVERTED".
        options: Lance's, with names of Lance's.
    """
    told: SimpleQueue[Any] = SimpleQueue()

    def work() -> None:
        try:
            _make_all(lance, path, folder, index, options, told.put)
            told.put(None)
        except BaseException as problem:  # noqa: BLE001 - raised by the thread that answers
            told.put(problem)

    Thread(target=work, daemon=True).start()
    last = ("", 0, 0)
    while True:
        try:
            found = told.get(timeout=SIGN_OF_LIFE_SECONDS)
        except Empty:
            found = last
        if found is None:
            return
        if isinstance(found, BaseException):
            raise found
        last = found
        yield pa.record_batch([pa.array([each]) for each in found], schema=MADE)


def _make_all(
    lance: Any,
    path: str,
    folder: str,
    index: str,
    options: dict[str, Any],
    tell: Callable[[tuple[str, int, int]], None],
) -> None:
    def on_progress(progress: Any) -> None:
        tell((str(progress.stage), int(progress.completed or 0), int(progress.total or 0)))

    with pa.memory_map(path) as source:
        reader = pa.ipc.open_stream(source)
        # One file, so that the place of a row is its number.
        one_file = {"max_rows_per_file": 1 << 31, "max_bytes_per_file": 1 << 50}
        made = lance.write_dataset(reader, folder, **one_file)
    create = made.create_scalar_index if index == "INVERTED" else made.create_index
    create(COLUMN, index, progress_callback=on_progress, **options)
    for name in os.listdir(folder):
        if name not in (_MANIFESTS, "_indices"):
            shutil.rmtree(os.path.join(folder, name))  # the rows too
    manifests = os.path.join(folder, _MANIFESTS)
    names = os.listdir(manifests)
    newest = min(name for name in names if name.endswith(".manifest"))  # they count down
    for name in names:
        if name != newest:
            os.unlink(os.path.join(manifests, name))
