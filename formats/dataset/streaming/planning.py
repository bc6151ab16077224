"""Plan of a stream: the pages that it reads, made from a dataset and the options of a caller.

Making it reads what it needs to know once: the columns that a predicate, weights or classes are
about, and lengths of rows.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.dataset.columns.types import Layout
from tensorrepo.formats.dataset.read import (
    Dataset,
    column_index,
    dataset_leaves,
    live_rows,
    page_reader,
)
from tensorrepo.formats.dataset.rows.pageread import READ_THREADS
from tensorrepo.formats.dataset.streaming.choosing import choose
from tensorrepo.formats.dataset.streaming.groupedplan import plan_groups
from tensorrepo.formats.dataset.streaming.lengths import page_elements, row_lengths
from tensorrepo.formats.dataset.streaming.ordering.packing import Packing
from tensorrepo.formats.dataset.streaming.ordering.plan import Plan, make_plan
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorrepo.formats.dataset.streaming.options import StreamOptions
    from tensorrepo.formats.dataset.streaming.ordering.items import RowLengths, Selection

_MOST_ITEM_BYTES = 1 << 31
_MOST_BLOCK_ROWS = 1 << 24  # sorted at once: some hundred bytes each


def plan_stream(dataset: Dataset, names: tuple[str, ...], options: StreamOptions) -> Plan:
    """Plan to stream columns of a dataset.

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
    eager = partial(_plan_whole, dataset, by_schema, options)
    if sampling.is_every_row and (options.shuffle is True or options.shuffle == "pages"):
        grouped = plan_groups(
            dataset, by_schema, eager, batch_size=batch_size, window_bytes=options.window_bytes
        )
        if grouped is not None:
            return grouped
    return eager()


def _plan_whole(dataset: Dataset, names: tuple[str, ...], options: StreamOptions) -> Plan:
    """Plan with all runs in view."""
    _read_indexes(dataset, names)
    sampling = options.sampling
    selection = choose(dataset, sampling)
    packing, lengths = _packing(dataset, names, sampling.pack, selection)
    if sampling.bucket is not None:
        lengths = row_lengths(dataset, sampling.bucket)
    return make_plan(
        [(name, column_index(dataset, name)) for name in names],
        far=any(page_reader(dataset, name).is_far for name in names),
        batch_size=options.batch_size,
        window_bytes=options.window_bytes,
        shuffle=options.shuffle,
        deleted=live_rows(dataset),
        selection=selection,
        packing=packing,
        lengths=lengths,
        bucket_steps=0 if sampling.bucket is None else sampling.bucket_steps,
    )


def _read_indexes(dataset: Dataset, names: Sequence[str]) -> None:
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


def _check_packed(dataset: Dataset, names: tuple[str, ...], size: int) -> None:
    ragged = [
        column.name
        for column in dataset.schema.columns
        if column.storage.layout is Layout.RAGGED and column.storage.shape == (None,)
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


def _packing(
    dataset: Dataset, names: tuple[str, ...], size: int | None, selection: Selection | None
) -> tuple[Packing | None, RowLengths | None]:
    if size is None:
        return None, None
    elements = page_elements(dataset, names[0]) if selection is None else None
    if elements is not None:
        return Packing(size, None, elements), None
    lengths = row_lengths(dataset, names[0])
    return Packing(size, lengths.values, np.zeros(0, np.int64)), lengths
