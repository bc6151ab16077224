"""Building of search indexes: one is made of a column, or brought up to another version of it.

Rows that the index does not know become a new segment. Small segments before it are made anew
together with it, so that there are never more than the logarithm of the rows; and so are segments
most of whose rows are gone. Of the others nothing is read.

Source:
    P. O'Neil et al., The Log-Structured Merge-Tree, 1996.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from math import isqrt
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.metadata.row_ids import runs_of_ids
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    live_rows,
    narrowed,
    row_id_table,
    scan,
)
from tensorrepo.formats.dataset.schema.arrow import to_arrow_array
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.values import FixedValues
from tensorrepo.formats.dataset.searching.text_search import SCAN_BYTES, split_words
from tensorrepo.formats.search_index.kinds import VECTOR_KINDS, IndexRequest
from tensorrepo.formats.search_index.known_rows import KnownRows
from tensorrepo.formats.search_index.lance_segment import Progress, make_segment_files
from tensorrepo.formats.search_index.opened_index import OpenedIndexes
from tensorrepo.formats.search_index.sorted_values import (
    SortKeys,
    make_sorted_segment,
    most_rows,
    sort_keys,
)
from tensorrepo.formats.search_index.stored_index import (
    LENGTHS,
    MOST_ROWS,
    MOST_SEGMENTS,
    IndexSegment,
    StoredIndex,
)
from tensorrepo.formats.search_index.tuning import tuned
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError, NotFoundError
from tensorrepo.repo.objects.envelope import ObjectSink, ObjectSource

TUNED_ROWS: Final = 4096  # at least; of smaller segments all parts are looked into
TRAINED_ROWS: Final = 256  # at least, of which a quantiser learns
BATCH_BYTES: Final = 4 << 20  # of values that are read at once
SUB_VECTOR_NUMBERS: Final = 8  # of a sub-vector, as far as they divide a vector
_HNSW_ROWS: Final = 1 << 20  # of a partition with a graph of its own
_GROWTH: Final = 2  # a segment stays when it has so many times the rows that come behind it
_EMPTY: Final = "empty"  # method of a segment without a value that can be found


class IndexReport(msgspec.Struct, frozen=True):
    """What making an index, or bringing it up to date, did.

    Attributes:
        rows: rows of the dataset, all of which it knows now.
        indexed: rows that were read and indexed because it did not know them.
        again: rows that were read and indexed again, of segments that were joined with others.
        segments: segments that it has.
        bytes: bytes of its files.
        anew: reason why nothing that was there was kept; empty where it was.
    """

    rows: int
    indexed: int
    again: int
    segments: int
    bytes: int
    anew: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class IndexPlan:
    """What is to be done.

    Attributes:
        kept: segments that stay.
        rows: physical rows of the new segment, ascending.
        unknown: how many of them the index does not know.
        anew: reason why nothing is kept.
    """

    kept: tuple[IndexSegment, ...]
    rows: Ints
    unknown: int
    anew: str = ""


def plan_index(
    dataset: StoredDataset, column: Column, request: IndexRequest, before: StoredIndex | None
) -> IndexPlan:
    """Which segments stay, and which rows make a new one."""
    why = "" if before is None else _differs(before, column, request)
    if before is not None and not why:
        try:
            return _plan_increment(
                KnownRows.of(before, dataset, column), _most_rows(request, column)
            )
        except NotFoundError:
            why = f"version {before.dataset:.12} of the dataset, which it knew, is gone"
    every = live_rows(dataset).physical(np.arange(dataset.rows))
    return IndexPlan((), every, len(every), why)


def _differs(before: StoredIndex, column: Column, request: IndexRequest) -> str:
    if before.column_id != column.id:
        return "it was of another column of that name"
    if (before.kind, before.metric) != (request.kind, request.metric):
        return f"it was of kind {before.kind}{before.metric and f' by {before.metric}'}"
    return "its options were others" if before.options != request.options else ""


def _most_rows(request: IndexRequest, column: Column) -> int:
    """How many rows a segment has at most."""
    return most_rows(column) if request.family == "values" else MOST_ROWS


def _plan_increment(known: KnownRows, most: int) -> IndexPlan:
    segments = known.index.segments
    rows = [known.every_row(at) for at in range(len(segments))]
    live = [int(np.count_nonzero(each >= 0)) for each in rows]
    joined = _joined([segment.rows for segment in segments], live, len(known.unknown), most)
    again = [rows[at][rows[at] >= 0] for at in sorted(joined)]
    kept = tuple(each for at, each in enumerate(segments) if at not in joined)
    return IndexPlan(kept, np.sort(np.concatenate([known.unknown, *again])), len(known.unknown))


def _joined(rows: list[int], live: list[int], new: int, most: int = MOST_ROWS) -> set[int]:
    """Numbers of the segments that are made anew: of so many places, of which so many are live.

    One that has half of the `most` rows that a segment may have gains nothing by it.

    ``_joined([1000, 30, 20], [1000, 30, 20], 15)`` is ``{1, 2}``.
    """
    joined = {at for at in range(len(rows)) if live[at] < rows[at] / 2}
    total = new + sum(live[at] for at in joined)
    for at in reversed(range(len(rows))):
        if at in joined:
            continue
        is_large = live[at] >= min(_GROWTH * total, most // 2)
        if not total or (is_large and at < MOST_SEGMENTS - 1):
            break
        joined.add(at)
        total += live[at]
    return joined


# ------------------------------------------------------------------------------ doing it


def build_index(
    objects: ObjectSink,
    indexes: OpenedIndexes,
    dataset: StoredDataset,
    path: str,
    name: str,
    request: IndexRequest,
    before: StoredIndex | None,
    progress: Progress,
) -> tuple[StoredIndex, IndexReport]:
    """Make an index of a column, or bring one up to this version of its dataset.

    Args:
        objects: store of its files.
        indexes: where it is made, and asked for the first time.
        dataset: all rows of the dataset.
        path: path of the dataset.
        name: column that is indexed.
        request: what is wanted.
        before: index that there is; None: none.
        progress: receives how much of a stage is done, of how much, and the stage.

    Raises:
        UnsupportedError: pylance is not installed.
    """
    column = dataset.schema.column(name)
    plan = plan_index(dataset, column, request, before)
    # It is read whole before it is called up to date. One that grows is not: each row added to a
    # large index would read all of it.
    if plan.kept and not len(plan.rows) and (why := _damage(objects, plan.kept)):
        plan = replace(plan_index(dataset, column, request, None), anew=why)
    segments = list(plan.kept)
    most = _most_rows(request, column)
    for low in range(0, len(plan.rows), most):
        rows = plan.rows[low : low + most]
        segments.append(_segment(objects, indexes, dataset, column, request, rows, progress))
    index = StoredIndex(
        path,
        dataset.digest,
        name,
        column.id,
        request.kind,
        request.metric,
        request.options,
        tuple(segments),
    )
    if len(segments) > MOST_SEGMENTS:
        raise InvalidInputError(f"an index of {dataset.rows:,} rows would have too many segments")
    again = len(plan.rows) - plan.unknown
    report = IndexReport(
        dataset.rows, plan.unknown, again, len(segments), index.size_bytes, plan.anew
    )
    return index, report


def _damage(objects: ObjectSource, segments: Iterable[IndexSegment]) -> str:
    """Why the files of segments are not whole; empty where they are."""
    for segment in segments:
        for part in (part for file in segment.files for part in file.parts):
            try:
                objects.get(part)
            except (CorruptError, NotFoundError) as error:
                return f"it is damaged: {error}"
    return ""


def _segment(
    objects: ObjectSink,
    indexes: OpenedIndexes,
    dataset: StoredDataset,
    column: Column,
    request: IndexRequest,
    rows: Ints,
    progress: Progress,
) -> IndexSegment:
    ids = runs_of_ids(row_id_table(dataset).of(rows))
    some = narrowed(dataset, rows)
    if request.family == "words":
        return _segment_of_words(objects, indexes, some, column, ids, progress)
    if request.family == "values":
        return make_sorted_segment(objects, ids, _keys(some, column, progress))
    made = _segment_of_vectors(objects, indexes, some, column, request, ids, progress)
    if not made.files:
        return made
    if made.rows < TUNED_ROWS:
        return made
    progress(0, 0, "tuning")
    (table,) = indexes.readers.tables(objects, indexes.folders, [made], "vectors")
    return tuned(made, table, some, rows, column.name, request.metric)


def _told(stage: str, total: int, progress: Progress, batches: Iterable[Any]) -> Iterator[Any]:
    done = 0
    for batch in batches:
        yield batch
        done += len(batch)
        progress(done, total, stage)


def _keys(some: StoredDataset, column: Column, progress: Progress) -> Iterator[SortKeys]:
    done = 0
    for _, batch in scan(some, [column.name], max_bytes=BATCH_BYTES):
        found = sort_keys(batch[column.name])
        yield found
        done += len(found.present)
        progress(done, some.rows, "reading")


# ------------------------------------------------------------------------------ vectors


def _segment_of_vectors(
    objects: ObjectSink,
    indexes: OpenedIndexes,
    some: StoredDataset,
    column: Column,
    request: IndexRequest,
    ids: Any,
    progress: Progress,
) -> IndexSegment:
    findable = sum(
        len(each) - each.null_count for each in _vectors(some, column.name, request.metric)
    )
    if not findable:
        return IndexSegment(ids, _EMPTY, {}, ())
    method = request.kind if findable >= TRAINED_ROWS else "ivf_flat"
    made, asked = _vector_options(method, request, findable, column.storage.row_shape[0])
    return make_segment_files(
        objects,
        indexes.folders,
        _told("reading", some.rows, progress, _vectors(some, column.name, request.metric)),
        pa.list_(pa.float32(), column.storage.row_shape[0]),
        VECTOR_KINDS[method][0],
        made,
        segment=partial(IndexSegment, ids, method, asked),
        progress=progress,
    )


def _vectors(some: StoredDataset, name: str, metric: str) -> Iterator[pa.Array]:
    """Vectors as float32; null where one is null, has no direction or is not finite."""
    for _, batch in scan(some, [name], max_bytes=BATCH_BYTES):
        values = batch[name]
        assert isinstance(values, FixedValues), "vectors of one length are"
        with np.errstate(over="ignore"):
            numbers = np.ascontiguousarray(values.values.astype(np.float32))
        there = np.isfinite(numbers).all(axis=1)
        if metric == "cosine":
            there &= numbers.any(axis=1)
        if values.valid is not None:
            there &= values.valid
        yield pa.FixedSizeListArray.from_arrays(
            pa.array(numbers.reshape(-1)), numbers.shape[1], mask=pa.array(~there)
        )


def _vector_options(
    method: str, request: IndexRequest, rows: int, dim: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Lance's options for making a segment, and what is kept with it for asking it."""
    given = request.options
    takes = VECTOR_KINDS[method][1]
    usual = max(1, rows // _HNSW_ROWS) if "hnsw" in method else max(1, isqrt(rows))
    partitions = min(int(given.get("partitions", usual)), rows)
    options: dict[str, Any] = {"metric": request.metric, "num_partitions": partitions}
    if "sub_vectors" in takes:
        options["num_sub_vectors"] = int(given.get("sub_vectors", _sub_vectors(dim)))
    if "m" in takes:
        options |= {name: given[name] for name in ("m", "ef_construction") if name in given}
    return options, {"partitions": partitions}


def _sub_vectors(dim: int) -> int:
    """Sub-vectors of at most `SUB_VECTOR_NUMBERS` numbers each, as few as there can be."""
    return next(dim // each for each in range(SUB_VECTOR_NUMBERS, 0, -1) if dim % each == 0)


# ------------------------------------------------------------------------------ words


def _segment_of_words(
    objects: ObjectSink,
    indexes: OpenedIndexes,
    some: StoredDataset,
    column: Column,
    ids: Any,
    progress: Progress,
) -> IndexSegment:
    lengths: list[Ints] = []

    def beside(folder: Path) -> None:
        every = np.concatenate([np.zeros(0, np.int32), *lengths])
        (folder / LENGTHS).write_bytes(every.astype("<i4").tobytes())

    return make_segment_files(
        objects,
        indexes.folders,
        _told("reading", some.rows, progress, _words(some, column, lengths)),
        pa.string(),
        "INVERTED",
        {
            "base_tokenizer": "whitespace",
            "lower_case": False,
            "stem": False,
            "remove_stop_words": False,
            "ascii_folding": False,
            "max_token_length": None,
            "with_position": False,
        },
        beside=beside,
        segment=partial(IndexSegment, ids, "words", {}),
        progress=progress,
    )


def _words(some: StoredDataset, column: Column, lengths: list[Ints]) -> Iterator[pa.Array]:
    """The words of texts with spaces between, so that Lance has no word but ours.

    How many words each has is put into `lengths`; -1 where it is null.
    """
    for _, batch in scan(some, [column.name], max_bytes=SCAN_BYTES):
        texts = to_arrow_array(column.type, batch[column.name])
        flat, bounds = split_words(texts)
        is_word = pc.not_equal(pc.binary_length(flat), 0)
        before = np.concatenate(
            [[0], np.cumsum(is_word.to_numpy(zero_copy_only=False), dtype=np.int64)]
        )
        counts = np.diff(before[bounds])
        valid = texts.is_valid().to_numpy(zero_copy_only=False)
        lengths.append(np.where(valid, counts, -1).astype(np.int32))
        lists = pa.LargeListArray.from_arrays(
            pa.array(before[bounds]), flat.filter(is_word).cast(pa.string())
        )
        joined = pc.binary_join(lists, " ").cast(pa.string())
        yield pc.if_else(pa.array(valid), joined, pa.nulls(len(joined), pa.string()))
