"""Making of a plan from a dataset and the options of a caller.

Reads what a plan needs to know once: page indexes, the columns that a predicate, weights or classes
are about, in pieces, and lengths of rows. `rows` and `where` choose rows, `weights` and `balance`
say how often they come; what is kept of them is a bitmap, weights of 8 bytes a row, or the class of
each row in 1 to 4 bytes. Of pages that are not compressed only the row tables are read: a few
bytes a row. A table by itself is proved by nothing, so a damaged one may misplace rows; the rows
themselves are proved when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.dtypes import Bools, Ints
from tensorrepo.formats.dataset.pages.page import (
    PAGE_PLAIN,
    TABLE,
    buffer_starts,
    decode_table,
    expected_bytes,
)
from tensorrepo.formats.dataset.pages.tile_io import ByteRange
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    column_index,
    dataset_leaves,
    live_rows,
    page_reader,
)
from tensorrepo.formats.dataset.reading.page_reader import READ_THREADS, PageReader
from tensorrepo.formats.dataset.reading.range_read import fetch
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Storage
from tensorrepo.formats.dataset.schema.values import ColumnValues, FixedValues
from tensorrepo.formats.dataset.selecting.predicate import RowExpression
from tensorrepo.formats.dataset.selecting.row_bits import RowBits, bits_of, both, spans
from tensorrepo.formats.dataset.selecting.select_rows import (
    Where,
    choose_rows,
    comparable,
    condition_rows,
    scan,
)
from tensorrepo.formats.dataset.streaming.options import Sampling, StreamOptions
from tensorrepo.formats.dataset.streaming.order.feedback import Scores
from tensorrepo.formats.dataset.streaming.order.items import (
    EveryRow,
    Packing,
    RowLengths,
    RowSelection,
    Weights,
    balanced_weights,
    given_weights,
    rows_by_kind,
)
from tensorrepo.formats.dataset.streaming.plan.grouped import (
    GroupTable,
    group_parts,
    plan_groups,
)
from tensorrepo.formats.dataset.streaming.plan.packed_groups import (
    GROUPS_TOGETHER,
    GroupPacking,
    by_lengths,
    page_elements,
    told_by_pages,
)
from tensorrepo.formats.dataset.streaming.plan.pages import StreamPlan, make_plan
from tensorrepo.repo.errors import CorruptError, InvalidInputError

_MOST_CLASSES = 1 << 20  # each is known to Python while classes are counted
MOST_LENGTH = (1 << 32) - 1
_TABLES_AT_ONCE_BYTES = 16 << 20


def row_lengths(dataset: StoredDataset, name: str) -> RowLengths:
    """How many elements (or bytes) each live row of a column has; of whole numbers their values.

    Null rows have length 0.

    Raises:
        InvalidInputError: a column whose rows have neither lengths nor are whole numbers; or a
            number that is no length.
    """
    storage = dataset.schema.column(name).storage
    is_number = _holds_single(storage, "iu")
    if not is_number and storage.layout not in (ColumnLayout.RAGGED, ColumnLayout.BINARY):
        raise InvalidInputError(
            f"column {name!r} tells no lengths: its rows are neither of different lengths nor "
            "whole numbers"
        )
    reader = page_reader(dataset, name)
    lengths = np.zeros(reader.index.rows, np.uint32)
    read_bytes = _fill_numbers(reader, lengths) if is_number else _fill_lengths(reader, lengths)
    dead = live_rows(dataset).dead
    return RowLengths(name, np.delete(lengths, dead) if len(dead) else lengths, read_bytes)


_PART_ROWS = 1 << 20


def lengths_in_parts(dataset: StoredDataset, name: str) -> RowLengths:
    """`row_lengths`, with the pages of some rows in view at a time."""
    table = GroupTable(dataset, (name,), name, 0, _PART_ROWS, group_parts(dataset, _PART_ROWS))
    lengths = np.empty(dataset.rows, np.uint32)
    first = read_bytes = 0
    for part in table.each():
        some = row_lengths(part, name)
        lengths[first : first + len(some.values)] = some.values
        first, read_bytes = first + len(some.values), read_bytes + some.read_bytes
    return RowLengths(name, lengths, read_bytes)


def _holds_single(storage: Storage, kinds: str) -> bool:
    """Whether each row is one value of an element type of these kinds."""
    fixed = storage.layout is ColumnLayout.FIXED
    return fixed and not storage.shape and storage.element.kind in kinds


def group_packing(
    dataset: StoredDataset, name: str, size: int, table: GroupTable, selection: RowSelection | None
) -> GroupPacking:
    """How many packed items the groups of a table have."""
    if selection is None:
        told = told_by_pages(size, table.together(GROUPS_TOGETHER), name)
        if told is not None:
            return told
    lengths = lengths_in_parts(dataset, name).values
    return by_lengths(size, lengths, table.each(), name)


def _fill_numbers(reader: PageReader, out: NDArray[np.uint32]) -> int:
    first = 0
    for values in reader.scan(range(reader.index.pages)):
        assert isinstance(values, FixedValues), "the column's storage says so"
        some = values.values
        if some.size and not 0 <= int(some.min()) <= int(some.max()) <= MOST_LENGTH:
            raise InvalidInputError(
                f"lengths are in [0, {MOST_LENGTH}], found {some.min()} to {some.max()}"
            )
        out[first : first + len(some)] = some
        first += len(some)
    return int(reader.index.entries["stored_bytes"].sum())


# ------------------------------------------------------------------------------ row tables


def _fill_lengths(reader: PageReader, out: NDArray[np.uint32]) -> int:
    """Lengths of all physical rows, patched ones last. Returns the bytes read."""
    index = reader.index
    read_bytes = 0
    for pages in _groups(reader):
        tables = _tables(reader, pages)
        for page in pages:
            start, stop = index.first_row[page : page + 2].tolist()
            table = tables.get(page)
            if table is None:
                read_bytes += int(index.entries["stored_bytes"][page])
                out[start:stop] = _lengths(reader.unpatched(page))
            else:
                read_bytes += table.nbytes
                out[start:stop] = _of_table(reader, page, table)
    if index.patches is not None and reader.patches is not None:
        patches = np.zeros(index.patches.pages.rows, np.uint32)
        read_bytes += _fill_lengths(reader.patches, patches)
        out[index.patches.rows] = patches[index.patches.source]
    return read_bytes


def _groups(reader: PageReader) -> Iterator[range]:
    """All pages, so many at a time that their tables stay small."""
    ends = np.cumsum(reader.index.entries["rows"].astype(np.int64)) * 16
    start = 0
    while start < len(ends):
        limit = int(ends[start]) + _TABLES_AT_ONCE_BYTES
        stop = max(start + 1, int(np.searchsorted(ends, limit)))
        yield range(start, stop)
        start = stop


def _tables(reader: PageReader, pages: range) -> dict[int, memoryview]:
    """Row tables of those pages where they can be read by themselves, NOT proved."""
    near, far = {}, {}
    for page in pages:
        if reader.link(page) is None or int(reader.index.entries["codec"][page]) != PAGE_PLAIN:
            continue
        entry = reader.index.entries[page]
        sizes = expected_bytes(entry, reader.storage(page))
        start = int(entry["offset"]) + buffer_starts(sizes)[TABLE]
        chunk, stop = int(reader.index.chunk[page]), start + sizes[TABLE]
        payload = reader.payload(chunk)
        if payload is None:
            far[page] = ByteRange(chunk, start, stop)
        else:
            near[page] = payload[start:stop]
    fetched = fetch(reader.objects, reader.index.chunks, list(far.values()))
    return near | dict(zip(far, fetched, strict=True))


def _of_table(reader: PageReader, page: int, table: memoryview) -> Ints:
    entry, storage = reader.index.entries[page], reader.storage(page)
    try:
        offsets, _ = decode_table(table, int(entry["rows"]), storage, int(entry["min"]))
    except CorruptError:
        return _lengths(reader.unpatched(page))  # proves the page, and says what is wrong
    return np.diff(offsets) // max(1, storage.known_elements)


def _lengths(values: ColumnValues) -> Ints:
    assert not isinstance(values, FixedValues), "the column's storage says so"
    shape = getattr(values, "shape", ())
    elements = int(np.prod([dim for dim in shape if dim is not None], dtype=np.int64))
    return np.diff(values.offsets) // max(1, elements)


_MOST_ITEM_BYTES = 1 << 31
_MOST_BLOCK_ROWS = 1 << 24  # sorted at once: some hundred bytes each


def plan_stream(
    dataset: StoredDataset,
    names: tuple[str, ...],
    options: StreamOptions,
    read: StoredDataset | None = None,
) -> StreamPlan:
    """Plan to stream columns of a dataset; those of `read`, where pictures are read in part.

    Raises:
        InvalidInputError: options that contradict each other or the columns.
        NotFoundError: no such row or column.
    """
    sampling, batch_size = options.sampling, options.batch_size
    if sampling.pack is not None:
        _check_packed(dataset, names, sampling.pack)
    if sampling.bucket is not None and batch_size * sampling.bucket_steps > _MOST_BLOCK_ROWS:
        raise InvalidInputError(
            f"{sampling.bucket_steps} steps of {batch_size:,} rows are sorted in memory at once: "
            f"at most {_MOST_BLOCK_ROWS:,} rows. Use fewer bucket_steps."
        )
    by_schema = tuple(each.name for each in dataset.schema.columns if each.name in names)
    read = read or dataset
    chosen = cache(partial(choose, dataset, sampling))
    eager = partial(_plan_whole, dataset, by_schema, options, read, chosen)
    bucket = sampling.bucket
    by_pages = options.shuffle is True or options.shuffle == "pages"
    if by_pages:
        grouped = plan_groups(
            read,
            by_schema,
            eager,
            batch_size=batch_size,
            window_bytes=sampling.window_bytes,
            choose=chosen,
            lengths=None if bucket is None else partial(lengths_in_parts, dataset, bucket),
            bucket_steps=0 if bucket is None else sampling.bucket_steps,
            echo=sampling.echo,
            pack=_packer(dataset, names, sampling.pack),
        )
        if grouped is not None:
            return grouped
    return eager()


def _plan_whole(
    dataset: StoredDataset,
    names: tuple[str, ...],
    options: StreamOptions,
    read: StoredDataset,
    chosen: Callable[[], RowSelection | None],
) -> StreamPlan:
    """Plan with all runs in view."""
    _read_indexes(read, names)
    sampling, selection = options.sampling, chosen()
    packing, lengths = _packing(dataset, names, sampling.pack, selection)
    if sampling.bucket is not None:
        lengths = row_lengths(dataset, sampling.bucket)
    return make_plan(
        [(name, column_index(read, name)) for name in names],
        far=any(page_reader(read, name).is_far for name in names),
        batch_size=options.batch_size,
        window_bytes=sampling.window_bytes,
        shuffle=options.shuffle,
        deleted=live_rows(dataset),
        selection=selection,
        packing=packing,
        lengths=lengths,
        bucket_steps=0 if sampling.bucket is None else sampling.bucket_steps,
        echo=sampling.echo,
    )


def _read_indexes(dataset: StoredDataset, names: Sequence[str]) -> None:
    """Read side by side what plans are made from, so that a store answers in one round trip."""
    groups: dict[str, str] = {}
    for name in names:
        column = dataset.schema.column(name)
        group = next(group[0] for group in dataset.root.groups if column.id in group)
        groups.setdefault(group, name)  # columns of a group share their page indexes
    if len(groups) + bool(dataset.root.deleted) < 2:
        return
    dataset_leaves(dataset)
    with ThreadPoolExecutor(READ_THREADS, "index") as threads:
        deleted = threads.submit(live_rows, dataset)
        list(threads.map(partial(column_index, dataset), groups.values()))
        deleted.result()


def _check_packed(dataset: StoredDataset, names: tuple[str, ...], size: int) -> None:
    ragged = [
        column.name
        for column in dataset.schema.columns
        if column.storage.layout is ColumnLayout.RAGGED and column.storage.shape == (None,)
    ]
    if len(names) != 1:
        raise InvalidInputError(
            f"pack= cuts one column into items, here are {list(names)}: an item may hold parts of "
            "several rows, so values of other columns cannot come along. Columns that can be "
            f"packed: {ragged}"
        )
    if names[0] not in ragged:
        raise InvalidInputError(
            f"column {names[0]!r} cannot be packed: its rows are not arrays of one dimension of "
            f"any length. Columns that can: {ragged}"
        )
    item_bytes = size * dataset.schema.column(names[0]).storage.element.itemsize
    if item_bytes > _MOST_ITEM_BYTES:
        raise InvalidInputError(
            f"pack={size:,} elements of column {names[0]!r} are {item_bytes:,} bytes an item: at "
            f"most {_MOST_ITEM_BYTES:,}. Pack fewer elements."
        )


def _packer(
    dataset: StoredDataset, names: tuple[str, ...], size: int | None
) -> Callable[[GroupTable, RowSelection | None], GroupPacking] | None:
    return None if size is None else partial(group_packing, dataset, names[0], size)


def _packing(
    dataset: StoredDataset, names: tuple[str, ...], size: int | None, selection: RowSelection | None
) -> tuple[Packing | None, RowLengths | None]:
    if size is None:
        return None, None
    elements = page_elements(dataset, names[0]) if selection is None else None
    if elements is not None:
        return Packing(size, None, elements), None
    lengths = row_lengths(dataset, names[0])
    return Packing(size, lengths.values, np.zeros(0, np.int64)), lengths


# ------------------------------------------------------------------------------ sampling


def choose(dataset: StoredDataset, sampling: Sampling) -> RowSelection | None:
    """Rows of `dataset` to hand out; None: every row once.

    Where both `rows` and `where` are given, both must name a row. Without `epoch_rows` an epoch
    is as long as weights add up to, and with `balance` as many rows as were chosen.

    Raises:
        InvalidInputError: nothing that names rows, no weights, or both kinds of weights.
        NotFoundError: no such row, row id or column.
    """
    weights, balance, epoch_rows = sampling.weights, sampling.balance, sampling.epoch_rows
    if isinstance(weights, Mapping):
        balance, weights = _balance(weights, balance), None
    _check_weights(weights, balance, None if sampling.feedback else epoch_rows)
    chosen, texts = _chosen(dataset, sampling.rows, sampling.where)
    if sampling.feedback is not None:
        rows = EveryRow(dataset.rows) if chosen is None else chosen
        equal = Scores.none(dataset.rows).weights(rows, epoch_rows or rows.total, sampling.feedback)
        texts.append("weighted by reported losses")
        return RowSelection(rows, equal, ", ".join(texts), is_reported=True)
    weighted = None
    if balance is not None:
        weighted, text = _balanced(dataset, balance, chosen, epoch_rows)
        texts.append(text)
    elif weights is not None:
        weighted = given_weights(_given(dataset, weights, chosen), chosen, epoch_rows)
        texts.append(f"weighted by {weights!r}" if isinstance(weights, str) else "weighted")
    if weighted is not None:
        return RowSelection(weighted.positive(), weighted, ", ".join(texts))
    if chosen is None or chosen.total == dataset.rows:
        return None
    return RowSelection(chosen, None, ", ".join(texts))


def _balance(weights: Mapping[str, str], balance: str | None) -> str:
    if len(weights) != 1 or next(iter(weights.values())) != "balanced" or balance is not None:
        raise InvalidInputError(
            f"weights by class are {{'column': 'balanced'}}, for one column; got {weights!r:.80}"
        )
    return next(iter(weights))


def _check_weights(weights: Any, balance: str | None, epoch_rows: int | None) -> None:
    if weights is not None and balance is not None:
        raise InvalidInputError(
            "weights= and balance= both say how often rows come: give one of them"
        )
    if epoch_rows is not None and weights is None and balance is None:
        raise InvalidInputError("epoch_rows= scales weights: give weights= or balance= too")


# ------------------------------------------------------------------------------ rows


def _chosen(
    dataset: StoredDataset, rows: Any, where: Where | None
) -> tuple[RowBits | None, list[str]]:
    """The rows that both name, None: all; and what to tell people."""
    named = None if rows is None else _named_rows(dataset, rows)
    fitting = None if where is None else _fitting_rows(dataset, where)
    chosen = both(named, fitting) if named and fitting else named or fitting
    if chosen is None:
        return None, [f"all {counted(dataset.rows, 'row')}"]
    text = f"{chosen.total:,} of {counted(dataset.rows, 'row')}"
    return chosen, [text if where is None else f"{text} where {where!s:.80}"]


def _named_rows(dataset: StoredDataset, rows: Any) -> RowBits:
    if isinstance(rows, RowBits):
        return rows
    if isinstance(rows, str | Mapping | RowExpression | pc.Expression):
        raise InvalidInputError(
            f"rows are a slice, row numbers, a mask or row ids, got {rows!s:.80}. A predicate is "
            "given as where=."
        )
    if isinstance(rows, slice):
        return bits_of(dataset.rows, _numbers(range(dataset.rows)[rows]))
    mask = np.asarray(rows)
    if mask.dtype == np.bool_ and mask.shape == (dataset.rows,):
        return bits_of(dataset.rows, _numbers(mask))
    try:
        return _bits_of_physical(dataset, choose_rows(dataset, rows).rows)
    except InvalidInputError as error:
        if "given twice" not in str(error):
            raise
        raise InvalidInputError(
            f"{error}. A view holds a row once; with weights= it comes as often as it should."
        ) from error


def _fitting_rows(dataset: StoredDataset, where: Where) -> RowBits:
    if (numbers := condition_rows(dataset, where)) is not None:
        return bits_of(dataset.rows, numbers)
    return _bits_of_physical(dataset, choose_rows(dataset, where).rows)


def _numbers(rows: range | Bools) -> Iterator[Ints]:
    """The numbers of a range, or of what is true in a mask, some at a time."""
    for start, stop in spans(len(rows)):
        if isinstance(rows, range):
            part = rows[start:stop]
            yield np.arange(part.start, part.stop, part.step)
        else:
            yield start + np.flatnonzero(rows[start:stop])


def _bits_of_physical(dataset: StoredDataset, rows: Ints) -> RowBits:
    return bits_of(dataset.rows, [live_rows(dataset).live(rows)])


# ------------------------------------------------------------------------------ weights


def _given(dataset: StoredDataset, weights: Any, chosen: RowBits | None) -> NDArray[Any]:
    """One weight per row, as given or from a column."""
    if isinstance(weights, str):
        return _weight_column(dataset, dataset.schema.column(weights), chosen)
    values = np.asarray(weights)
    if values.shape != (dataset.rows,) or values.dtype.kind not in "biuf":
        raise InvalidInputError(
            f"weights are one number per row, {dataset.rows:,} of them, or the name of a column; "
            f"got {values.dtype} of shape {values.shape}"
        )
    return values


def _weight_column(
    dataset: StoredDataset, column: Column, chosen: RowBits | None
) -> NDArray[np.float64]:
    if not _holds_single(column.storage, "biuf"):
        raise InvalidInputError(f"column {column.name!r} holds no weights: one number per row")
    weights = np.empty(dataset.rows, np.float64)
    for first, values in _column(dataset, column):
        _refuse_nulls(column, first, values, chosen, "weight")
        assert isinstance(values, FixedValues), "the column's storage says so"
        weights[first : first + values.rows] = values.values
    return weights


def _refuse_nulls(
    column: Column, first: int, values: ColumnValues, chosen: RowBits | None, what: str
) -> None:
    if values.valid is None:
        return
    missing = ~values.valid
    if chosen is not None:
        missing &= chosen.counts(first, first + values.rows) > 0
    if missing.any():
        row = first + int(np.flatnonzero(missing)[0])
        raise InvalidInputError(
            f"row {row} of column {column.name!r} is null, so it has no {what}. Leave such rows "
            f"out with where=col({column.name!r}).is_valid()."
        )


def _column(dataset: StoredDataset, column: Column) -> Iterator[tuple[int, ColumnValues]]:
    """Values of a column, in pieces, with the number of the first row of each."""
    first = 0
    for batch in scan(dataset, [column.name]):
        values = batch[column.name]
        yield first, values
        first += values.rows


# ------------------------------------------------------------------------------ classes


def _balanced(
    dataset: StoredDataset, name: str, chosen: RowBits | None, epoch_rows: int | None
) -> tuple[Weights, str]:
    column = dataset.schema.column(name)
    kind, rows_of_kind = _classes(dataset, column, chosen)
    total = int(rows_of_kind.sum())
    if not total:
        raise InvalidInputError(f"no row to balance by column {name!r}")
    present = np.flatnonzero(rows_of_kind)
    # Classes that no chosen row has are left out; the last number stands for "never".
    number = np.full(len(rows_of_kind) + 1, len(present), kind.dtype)
    number[present] = np.arange(len(present))
    weights = balanced_weights(number[kind], rows_of_kind[present], epoch_rows or total)
    return weights, f"{counted(len(present), 'class', 'classes')} of {name!r} equally often"


def _classes(
    dataset: StoredDataset, column: Column, chosen: RowBits | None
) -> tuple[NDArray[Any], Ints]:
    """The class of every row, the number beyond the last for rows not chosen; rows of each."""
    storage = column.storage
    if not _holds_single(storage, "biu") and storage.layout is not ColumnLayout.BINARY:
        raise InvalidInputError(
            f"column {column.name!r} has no classes: whole numbers, bools, labels or text have"
        )
    numbers: dict[Any, int] = {}
    kind = np.zeros(dataset.rows, np.uint32)
    never = np.zeros(dataset.rows if chosen is not None else 0, np.bool_)
    for first, values in _column(dataset, column):
        some = slice(first, first + values.rows)
        if chosen is not None:
            never[some] = chosen.counts(first, some.stop) == 0
        _refuse_nulls(column, first, values, chosen, "class")
        kind[some] = _numbered(column, values, numbers)
    if chosen is not None:
        kind[never] = len(numbers)
    kind = kind.astype(np.min_scalar_type(len(numbers)))
    return kind, rows_by_kind(kind, len(numbers) + 1)[: len(numbers)]


def _numbered(column: Column, values: ColumnValues, number_of: dict[Any, int]) -> Ints:
    """Numbers of the classes of some rows; new classes become known."""
    coded = comparable(column, values).dictionary_encode()
    classes = coded.dictionary.to_pylist()
    numbers = np.array([number_of.setdefault(each, len(number_of)) for each in classes], np.int64)
    if len(number_of) > _MOST_CLASSES:
        raise InvalidInputError(
            f"column {column.name!r} has more than {_MOST_CLASSES:,} classes: too many to balance"
        )
    codes = coded.indices.fill_null(0).to_numpy()
    return numbers[codes] if len(numbers) else np.zeros(len(codes), np.int64)
