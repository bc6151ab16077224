"""Dataset and view handles of the SDK: rows of one commit, read when they are asked for.

Samples for torch's `DataLoader` are numbers as numpy has them, timestamps as the int64 that they
are stored as, and tensors of types that numpy lacks. Torch has no null: the caller says what
stands for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo import connect
from tensorrepo.catalog.sql import sql
from tensorrepo.context import Context
from tensorrepo.datasets.sql_edit import row_selection
from tensorrepo.datasets.stream import Stream
from tensorrepo.describe import MANY, html_table, value_text
from tensorrepo.formats.common.arguments import check_instance
from tensorrepo.formats.common.dtypes import is_small_float
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset, read_live, resolve_rows
from tensorrepo.formats.dataset.schema.coerce import coerce_column
from tensorrepo.formats.dataset.schema.convert import as_torch, present
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.formats.dataset.schema.values import ColumnValues, FixedValues
from tensorrepo.formats.dataset.selecting.select_rows import (
    Where,
    find_rows,
    ids_of_rows,
    rows_of_ids,
)
from tensorrepo.formats.dataset.streaming.collate.batch import OutputForm
from tensorrepo.formats.dataset.streaming.collate.decode import Images
from tensorrepo.formats.dataset.streaming.collate.error_policy import OnBadRow
from tensorrepo.formats.dataset.streaming.options import (
    GivenWeights,
    Nulls,
    Sampling,
    StreamOptions,
    Workers,
    described,
    options_of,
)
from tensorrepo.formats.dataset.streaming.order.schedule import Last
from tensorrepo.formats.dataset.streaming.plan.pages import Shuffle
from tensorrepo.formats.dataset.streaming.stream import BatchStream as StoredStream
from tensorrepo.formats.dataset.streaming.stream import stream as open_stream
from tensorrepo.formats.views import (
    StoredView,
    ViewDiff,
    diff_views,
    live_numbers,
    open_rows,
    open_view,
)
from tensorrepo.query.sql.duck import Params
from tensorrepo.query.sql.results import Result
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.cache import PageDiskCache
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.runs.run_context import note_streamed, noted

if TYPE_CHECKING:
    import pyarrow as pa


def check_fill(dataset: StoredDataset, fill: Mapping[str, Any]) -> dict[str, Any]:
    """What stands for null, by column, as samples have it. A number fills a whole tensor.

    Raises:
        NotFoundError: no column of that name.
        InvalidInputError: a value that the column could not hold.
    """
    found = {}
    for name, value in fill.items():
        column = dataset.schema.column(name)
        shape = column.storage.shape
        fills_tensor = np.isscalar(value) and bool(shape) and None not in shape
        given = np.full(column.storage.row_shape, value) if fills_tensor else value
        found[name] = None if value is None else _rows(column, coerce_column(column, [given]))[0]
    return found


def read_samples(
    dataset: StoredDataset, names: Sequence[str], rows: Sequence[int], fill: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Some rows, each as a dict of columns.

    Raises:
        InvalidInputError: a value is null, and `fill` does not say what stands for it.
    """
    read = read_live(dataset, names, resolve_rows(rows, dataset.rows))
    columns = {}
    for name, values in zip(names, read, strict=True):
        columns[name] = _rows(dataset.schema.column(name), values)
        if values.valid is None:
            continue
        for at in np.flatnonzero(~values.valid).tolist():
            if name not in fill:
                raise _no_tensor(name, rows[at])
            columns[name][at] = fill[name]
    return [{name: columns[name][at] for name in names} for at in range(len(rows))]


def _rows(column: Column, values: ColumnValues) -> list[Any]:
    if not isinstance(values, FixedValues):
        return list(present(column, values))
    array = values.values.copy()  # torch warns of memory that it may not write to
    return list(as_torch(array) if is_small_float(array.dtype) else array)


def _no_tensor(name: str, row: int) -> InvalidInputError:
    return InvalidInputError(
        f"row {row}, column {name!r} is null, and torch puts no null into a batch. Say what stands "
        f"for it: ds.torch(fill={{{name!r}: 0}}); leave the column out: ds.torch(columns=[...]); "
        "or read batches with ds.stream(output='torch'), whose batch.valid tells which values "
        "there are. fill=None hands None to your own collate_fn."
    )


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Dataset:
    """A dataset of one commit: it never changes, and its rows are read when they are asked for.

    ``ds[7]`` is a row, ``ds[10:20]`` and ``ds[[3, 1]]`` are columns of several, ``ds["label"]`` is
    a column, to be indexed likewise.
    """

    context: Context
    path: str
    commit: Digest
    stored: StoredDataset

    @property
    def name(self) -> str:
        return self.path.removeprefix("datasets/")

    @property
    def digest(self) -> Digest:
        """What the dataset is, in whatever commit."""
        return self.stored.digest

    @property
    def schema(self) -> Schema:
        """The columns, but for those that are derived from images (``photo.height``, ...)."""
        return self.stored.schema.visible

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, index: Any) -> Any:
        return self.stored[index]

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Rows in order, read in large pieces."""
        return iter(self.stored)

    def find(self, where: Where) -> NDArray[np.int64]:
        """Numbers of the rows that `where` names, ascending: ``ds[ds.find("label == 3")]``.

        `where` is what `DatasetDraft` says; ids and keys that no row has are passed over.
        """
        return find_rows(self.stored, row_selection(self.stored, where))

    def row_ids(self, rows: Any = slice(None)) -> list[str]:
        """Lasting ids of some rows, given by number: they stay when rows move, and are valid in
        every version that has the row.
        """
        return ids_of_rows(self.stored, rows)

    def rows_by_id(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Numbers of the rows that have these ids, in their order; -1 where one is not there."""
        return rows_of_ids(self.stored, ids)

    def query(self, query: str, *, params: Params = None) -> Result:
        """Rows of an SQL query over this dataset, which it calls ``self``; see `Repository.sql`.

        Example:
            ``ds.query("SELECT label, count(*) FROM self GROUP BY 1").df()``
        """
        return sql(self.context, query, ref=self.commit, params=params, this=self.stored)

    def resolve(self, column: str, rows: Any = slice(None)) -> list[bytes | None]:
        """The bytes that links point at, under the prefixes that the repository was opened with.

        Args:
            column: column of type Link.
            rows: a slice, row numbers or a mask.

        Raises:
            PermissionDenied: a link is under no prefix that was allowed.
            CorruptError: what lies there is not what the link says: size, etag or hash differ.
        """
        return self.stored.resolve(column, rows)

    def to_arrow(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows as one Arrow table."""
        return self.stored.to_arrow(columns)

    def to_batches(
        self, columns: Sequence[str] | None = None, *, max_bytes: int | str = "64MB"
    ) -> Iterator[pa.RecordBatch]:
        """All rows as Arrow batches of bounded bytes."""
        return self.stored.to_batches(columns, max_bytes=connect.parse_size(max_bytes))

    def to_numpy(self, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """Columns as arrays; ragged and binary ones as lists."""
        return self.stored.to_numpy(columns)

    def to_torch(self, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """Columns as torch tensors, where they have one shape and are numbers."""
        return {name: _as_torch(values) for name, values in self.to_numpy(columns).items()}

    def torch(
        self, columns: Sequence[str] | None = None, *, fill: Mapping[str, Any] | None = None
    ) -> TorchDataset:
        """For torch's own `DataLoader`: rows by number, right with any number of workers.

        Args:
            columns: which; None means all.
            fill: what stands for null, by column; a null elsewhere is an error. None hands None on,
                for a `collate_fn` of your own.
        """
        note_streamed(self)
        names = self.schema.names if columns is None else tuple(columns)
        return TorchDataset(self, names, check_fill(self.stored, fill or {}))

    @described(StreamOptions, Sampling)
    def stream(  # noqa: PLR0913, D417  the one call by which people set a stream up
        self,
        *,
        batch_size: int,
        columns: Sequence[str] | None = None,
        shuffle: Shuffle = "pages",
        window: int | str = "512MB",
        rows: Any = None,
        where: Where | None = None,
        weights: GivenWeights | None = None,
        balance: str | None = None,
        epoch_rows: int | None = None,
        pack: int | None = None,
        bucket: str | None = None,
        bucket_steps: int = 64,
        seed: int = 0,
        epoch: int = 0,
        transform: Callable[[Any], Any] | None = None,
        output: OutputForm = "numpy",
        last: Last = "short",
        pad: float | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        replicate: int = 1,
        pin: bool | None = None,
        workers: Workers = "thread",
        nulls: Nulls = None,
        images: Images = None,
        on_error: OnBadRow = "raise",
        cache_dir: str | Path | None = None,
        cache_limit: int | str | None = None,
    ) -> Stream:
        """Batches for training, fetched and verified ahead.

        Args:
            cache_dir: folder of its own in which pages of a remote dataset are kept for the next
                epochs; None: one below XDG_CACHE_HOME, for all streams of this machine.
            cache_limit: how much they may take; None: what ``tensorrepo config cache.limit`` says,
                20 GB if nothing. 0 keeps none. Local datasets are never cached.
        """
        keywords = dict(locals())  # this signature and `StreamOptions` are held equal by a test
        keywords["where"] = None if where is None else row_selection(self.stored, where)
        own_rank, ranks = self.context.world(rank, world_size)
        size = connect.parse_size(window, "window", 1)
        options = options_of(keywords | {"window": size, "rank": own_rank, "world_size": ranks})
        page_cache = connect.page_cache(self.context.machine, cache_dir, cache_limit)
        return _stream(self, options, page_cache)

    def __reduce__(self) -> tuple[Any, ...]:
        return dataset_at, (self.context, self.path, self.commit)

    def __repr__(self) -> str:
        names = ", ".join(self.schema.names)
        size = self.stored.stored_bytes
        return (
            f"<dataset {self.name}: {len(self):,} rows of {names}, {size:,} bytes, "
            f"commit {self.commit:.12}>"
        )

    def _repr_html_(self) -> str:
        """The first rows, for notebooks."""
        names = self.schema.names
        rows = ([value_text(row[name]) for name in names] for row in islice(self, MANY))
        return html_table(repr(self), names, rows)


class TorchDataset:
    """A map-style dataset: what torch's `DataLoader` asks for. Moments are their int64."""

    def __init__(self, dataset: Dataset, columns: tuple[str, ...], fill: dict[str, Any]) -> None:
        self.dataset = dataset
        self.columns = columns
        self.fill = fill

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([int(index)])[0]

    def __getitems__(self, indices: Iterable[int]) -> list[dict[str, Any]]:
        """A whole batch in one read: torch calls this where it is there."""
        return read_samples(self.dataset.stored, self.columns, list(indices), self.fill)


def _as_torch(values: Any) -> Any:
    """An array of numbers as a tensor of its own memory; anything else as it is."""
    numbers = isinstance(values, np.ndarray) and (
        values.dtype.kind in "biufc" or is_small_float(values.dtype)
    )
    if not numbers:
        return values
    writable = values if values.flags.writeable else values.copy()  # torch warns of the others
    return as_torch(writable)


def _stream(dataset: Dataset, options: StreamOptions, page_cache: PageDiskCache | None) -> Stream:
    """A stream, picklable: another process opens the dataset again and asks for the same."""
    if options.workers == "process" and dataset.context.url.startswith("memory:"):
        raise InvalidInputError(
            f"{dataset.context.url} lies in the memory of this process, and workers='process' "
            "would open it in another one: use workers='thread'."
        )
    remake = partial(_stored_stream, dataset, options, page_cache)
    threaded = replace(options, workers="thread")
    of_equal = partial(open_stream, options=threaded, page_cache=page_cache)
    again = partial(_stream, dataset, options, page_cache)
    return Stream(dataset, remake(remake=remake), again, of_equal)


def _stored_stream(
    dataset: Dataset,
    options: StreamOptions,
    page_cache: PageDiskCache | None,
    *,
    remake: Callable[..., StoredStream] | None = None,
    **changes: Any,
) -> StoredStream:
    options = replace(options, **changes)
    return open_stream(dataset.stored, options, remake=remake, page_cache=page_cache)


def dataset_at(context: Context, name: str, ref: str = "main") -> Dataset:
    """See `Repository.dataset`."""
    revision, path, entry = context.entry("datasets", name, ref, Kind.DATASET)
    stored = open_dataset(context.core.objects, entry.digest, context.outside)
    return noted(Dataset(context, path, revision.digest, stored))


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class View(Dataset):
    """Rows of a dataset, used like one: indexed, streamed, asked, exported. Rows count from 0.

    `source` is the whole dataset, `chosen` what is stored of the view.
    """

    source: Dataset
    chosen: StoredView
    identity: Digest

    @property
    def name(self) -> str:
        return self.path.removeprefix("views/")

    @property
    def digest(self) -> Digest:
        """What the view is, in whatever commit."""
        return self.identity

    @property
    def sql(self) -> str:
        """The query that chose the rows."""
        return self.chosen.sql

    def stream(self, *, rows: Any = None, **options: Any) -> Stream:
        """Batches of the rows, for training: see `Dataset.stream`, which takes the same.

        Args:
            rows: which rows of the view: a slice, numbers or a mask; None: all.
            options: options of `Dataset.stream`.
        """
        numbers = live_numbers(self.source.stored, self.chosen)
        chosen = resolve_rows(slice(None) if rows is None else rows, len(numbers))
        return self.source.stream(rows=numbers[np.asarray(chosen, np.int64)], **options)

    def diff(self, older: View) -> ViewDiff:
        """Ids of the rows that this view has and `older` lacks, and the other way round."""
        check_instance("older", older, View, "a view, as repo.view(...) gives it")
        return diff_views(older.chosen, self.chosen)

    def __reduce__(self) -> tuple[Any, ...]:
        return view_at, (self.context, self.path, self.commit)

    def __repr__(self) -> str:
        return (
            f"<view {self.name}: {len(self):,} rows of {self.source.name} at "
            f"{self.source.commit:.12}, {self.sql!r:.80}>"
        )


def view_at(context: Context, name: str, ref: str = "main") -> View:
    """See `Repository.view`."""
    revision, path, entry = context.entry("views", name, ref, Kind.VIEW)
    chosen = open_view(context.core.objects, entry.digest)
    whole, stored = open_rows(context.core.objects, chosen, context.outside)
    source = Dataset(context, chosen.path, chosen.commit, whole)
    return View(context, path, revision.digest, stored, source, chosen, entry.digest)
