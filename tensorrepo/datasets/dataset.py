"""Dataset and view handles of the SDK: rows of one commit, read when they are asked for.

A view, and a selection (`selection`), is used as a dataset is. What is streamed, and what lineage
tells, is of the dataset that its rows are of: its `whole`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Literal, NoReturn, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from tensorrepo import connect, hints, lazy
from tensorrepo.context import Context
from tensorrepo.datasets.conversions import (
    TorchDataset,
    pandas_frame,
    polars_frame,
    tensors_of,
)
from tensorrepo.datasets.splits import sides_of
from tensorrepo.datasets.sql_edit import row_selection
from tensorrepo.datasets.stream import Stream
from tensorrepo.describe import dataset_table
from tensorrepo.formats.common.arguments import byte_size, check_instance, counted, flag, mapping
from tensorrepo.formats.common.arguments import whole as whole_number
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, open_dataset
from tensorrepo.formats.dataset.schema.nulls import null_policy
from tensorrepo.formats.dataset.schema.schema import Schema
from tensorrepo.formats.dataset.searching.top_rows import checked_k
from tensorrepo.formats.dataset.selecting.row_bits import bits_of
from tensorrepo.formats.dataset.selecting.select_rows import (
    Where,
    choose_rows,
    ids_of_rows,
    rows_of_ids,
)
from tensorrepo.formats.dataset.streaming.collate.batch import OutputForm
from tensorrepo.formats.dataset.streaming.collate.decode import Decodes
from tensorrepo.formats.dataset.streaming.load.peers import CachePeers
from tensorrepo.formats.dataset.streaming.options import (
    EVERY_ROW,
    LOADING,
    RANKS,
    DerivedCache,
    Loading,
    Nulls,
    Ranks,
    Sampling,
    StreamOptions,
    described,
)
from tensorrepo.formats.dataset.streaming.order.items import RowSelection
from tensorrepo.formats.dataset.streaming.order.schedule import Last
from tensorrepo.formats.dataset.streaming.plan.pages import Shuffle
from tensorrepo.formats.dataset.streaming.stream import BatchStream as StoredStream
from tensorrepo.formats.dataset.streaming.stream import stream as open_stream
from tensorrepo.formats.purged import (
    refuse_purged_parts,
    refuse_purged_rows,
    telling_purged,
)
from tensorrepo.formats.views import (
    StoredView,
    ViewDiff,
    diff_views,
    open_rows,
    open_view,
)
from tensorrepo.query.sql.duck import Params
from tensorrepo.query.sql.results import Result
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.cache import DiskCache, PageDiskCache
from tensorrepo.repo.objects.envelope import Kind, ObjectSource
from tensorrepo.repo.tables import RecordTable, Shown
from tensorrepo.runs.run_context import note_streamed, noted

T = TypeVar("T")


class Dataset(Shown):
    """A dataset of one commit: it never changes, and its rows are read when they are asked for.

    ``ds[7]`` is a row, ``ds[10:20]`` and ``ds[[3, 1]]`` are columns of several, ``ds["label"]`` is
    a column, to be indexed likewise; ``ds[["image", "label"]]`` is a `Selection` of columns.
    """

    def __init__(
        self, context: Context, path: str, commit: Digest, stored: StoredDataset | None
    ) -> None:
        """Made by `Repository.dataset`. `stored` is None where it is looked for when needed."""
        self.context, self.path, self.commit = context, path, commit
        self._stored = stored

    @property
    def stored(self) -> StoredDataset:
        """The rows and columns, as the format reads them."""
        assert self._stored is not None, "selections look for theirs"
        return self._stored

    @property
    def whole(self) -> Dataset:
        """The dataset that these rows are of: what `batch.rows` of a stream counts."""
        return self

    @property
    def is_every_row(self) -> bool:
        """Whether these are all rows of the whole, as far as is known without reading."""
        return self.whole is self

    @property
    def asked(self) -> Dataset:
        """The dataset or view that this is a selection of, or of a selection of."""
        return self

    def said(self, *, look: bool = False) -> list[str] | None:  # noqa: ARG002  all rows
        """Conditions over what was asked that these rows fulfil; None: no text says which.

        With `look` rows are looked for where that makes a text, which holds for this version alone.
        """
        return []

    @property
    def selected(self) -> dict[str, Any]:
        """Which rows of the whole these are, in words of lineage, where a text says it."""
        return {}

    @property
    def told(self) -> dict[str, Any]:
        """`selected`, and a digest of the rows that were found, by which they are known again."""
        return {}

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

    @property
    def every_column(self) -> Schema:
        """The columns, with those that are derived from images."""
        return self.stored.schema

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return [*self.schema.names]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), len(self.columns)

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, list) and index and all(isinstance(each, str) for each in index):
            return self.select(columns=index)
        if isinstance(index, str):
            self._unpurged([index])
        return self.stored[index]

    def _unpurged(self, columns: T) -> T:
        """`columns`; raises PurgedError where one is not there as it was purged."""
        names = columns if isinstance(columns, list | tuple) else ()
        if missing := [name for name in names if name not in self.columns]:
            refuse_purged_parts(self.stored_objects, self.path, missing)
        return columns

    @property
    def stored_objects(self) -> ObjectSource:
        """Where the objects of the repository are read."""
        return self.whole.stored.objects

    def __getattr__(self, name: str) -> NoReturn:
        raise hints.no_attribute(self, name, hints.DATASET)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Rows in order, read in large pieces."""
        return iter(self.stored)

    def __contains__(self, value: object) -> NoReturn:
        raise hints.no_membership(value)

    def select(
        self,
        columns: Sequence[str] | None = None,
        *,
        where: Where | None = None,
        rows: Any = None,
    ) -> lazy.Selection:
        """Some rows and columns as a dataset of their own, which nothing is read for yet.

        It streams, is exported, asked by SQL and sliced as any other. A transaction's `create_view`
        keeps it under a name.

        Args:
            columns: names, in the order that is wanted; None: all.
            where: rows that fulfil this; see `find`.
            rows: a slice, ascending row numbers, a mask or row ids; with `where`, rows of both.

        Raises:
            NotFoundError: no such column.
            PurgedError: a column was purged.
            InvalidInputError: rows that do not ascend: a selection keeps the order of its dataset.

        Example:
            ``ds.select(["image", "label"], where="split == 'train'").stream(batch_size=256)``
        """
        return lazy.Selection(self, self._unpurged(columns), where, rows)

    def filter(self, where: Where) -> lazy.Selection:
        """Rows that fulfil a condition, as a dataset: ``ds.filter(tr.col("label") == "cat")``."""
        return self.select(where=where)

    def head(self, n: int = 5) -> lazy.Selection:
        """The first rows, as a dataset; no more is read than it takes to find them."""
        return self.select(rows=slice(0, whole_number("n", n)))

    def split(
        self, shares: Mapping[str, float], *, by: str | None = None, seed: int = 0
    ) -> dict[str, lazy.Selection]:
        """All rows, each in one of several parts by chance.

        The part of a row follows from `seed` and from its value of `by`, or its lasting id, alone:
        it stays when the dataset grows, and rows with the same value are never parted. Null is a
        value like the empty text. In SQL the number that decides is ``split_share(by, seed)``.

        Args:
            shares: name of each part, and its share; they add up to 1.
            by: column of which a value must not come on two sides, such as the patient.
            seed: another one parts rows in another way.

        Example:
            ``train, test = ds.split({"train": 0.8, "test": 0.2}, by="patient").values()``
        """
        return {name: self.filter(side) for name, side in sides_of(self.schema, shares, by, seed)}

    def find(self, where: Where, *, exact: bool = False) -> NDArray[np.int64]:
        """Numbers of the rows that `where` names, ascending: ``ds[ds.find("label == 3")]``.

        `where` is what `DatasetDraft` says; ids and keys that no row has are passed over. Few of
        many rows are looked up in indexes of the columns (`Transaction.create_index`), if the
        commit has them; with `exact` the columns are read, whatever index there is.
        """
        with telling_purged(self.stored_objects, [self.path], [str(where)]):
            return lazy.find_indexed(
                self, row_selection(self.stored, where), exact=flag("exact", exact)
            )

    def row_ids(self, rows: Any = slice(None)) -> list[str]:
        """Lasting ids of some rows, given by number: they stay when rows move, and are valid in
        every version that has the row.
        """
        return ids_of_rows(self.stored, rows)

    def rows_by_id(self, ids: Sequence[str]) -> NDArray[np.int64]:
        """Numbers of the rows that have these ids, in their order; -1 where one is not there.

        Raises:
            PurgedError: one was purged.
        """
        found = rows_of_ids(self.stored, ids)
        if (found < 0).any():
            refuse_purged_rows(self.stored_objects, ids)
        return found

    def changes(
        self, since: str | None = None, *, columns: Sequence[str] | None = None
    ) -> lazy.ChangeFeed:
        """Rows that were inserted, updated (before and after) and deleted since a commit.

        They come commit by commit, each with its commit: who keeps the last one that was worked
        off goes on behind it. Iterate over rows, over `commits()`, or over `batches()` of Arrow;
        only what can differ is read.

        Args:
            since: the commit to begin behind; None: the beginning.
            columns: only these are compared and shown; None: all that both sides have are compared.

        Raises:
            CommitExpired: history ends before `since`.
            InvalidInputError: these are some rows, or a view: only a dataset has changes.

        Example:
            ``for row in ds.changes(since="v1"): print(row.change, row.before, row.after)``
        """
        if self.whole is not self:
            raise InvalidInputError(
                f"{self!r} is some rows of a dataset: ask {self.whole.path} for its changes"
            )
        return lazy.changes_of(self.context, self.path, self.commit, since, columns)

    def nearest(
        self,
        column: str,
        query: ArrayLike,
        k: int = 10,
        *,
        where: Where | None = None,
        columns: Sequence[str] | None = None,
        metric: str = "l2",
        exact: bool = False,
        nprobes: int | None = None,
    ) -> lazy.SearchResult:
        """The `k` rows whose vectors are nearest to a query, the nearest first.

        By the index of the column and metric, if the commit has one (`Transaction.create_index`);
        else every row is compared, page by page. Distances are exact, and equally near rows come in
        the order of the dataset: what an index may do is miss a row. `told` of what is returned
        says how it was found. Nulls, and vectors with NaN, never come.

        Args:
            column: vectors of one length: Embedding, or Tensor of one dimension.
            query: a vector ``(d,)``, or several ``(n, d)``, each of which gets its own `k` rows.
            k: number of rows; fewer where there are not so many.
            where: compare only rows that fulfil this; see `find`.
            columns: columns that are read with the rows; None: all but `column`.
            metric: ``"l2"``, ``"cosine"`` (one minus the cosine) or ``"dot"`` (minus the inner
                product): the distance, which ascends.
            exact: compare every row, whatever index there is.
            nprobes: number of parts of the index that are looked into: more miss less. None: as
                many as it took for 0.95 of the rows when the index was made.

        Raises:
            InvalidInputError: a column of no such vectors, or a query that does not fit it.
            NotFoundError: no such column.
            PurgedError: a column was purged.

        Example:
            ``ds.nearest("embedding", ds[7]["embedding"], k=5, where="label == 'cat'").df()``
        """
        if nprobes is not None:
            whole_number("nprobes", nprobes, 1)
        with telling_purged(self.stored_objects, [self.path], [column, *(columns or ())]):
            searched = self.stored if where is None else self.select(where=where).stored
            return lazy.search_vectors(
                searched,
                self.stored,
                column,
                query,
                k=k,
                columns=columns,
                metric=metric,
                index=self._index(column, metric, exact=exact),
                nprobes=nprobes,
            )

    def hybrid(
        self,
        queries: Mapping[str, str | ArrayLike],
        k: int = 10,
        *,
        where: Where | None = None,
        columns: Sequence[str] | None = None,
        metric: str = "l2",
        exact: bool = False,
    ) -> lazy.SearchResult:
        """The `k` rows that rank best by several columns at once, by words and by vectors.

        Each column ranks rows as `search` or `nearest` does, by its index where there is one, and a
        row scores the sum of ``1 / (60 + rank)``: reciprocal rank fusion, for which distances and
        scores need not be alike.

        Args:
            queries: what is asked of each column: words of one of Text, a vector ``(d,)`` of one of
                vectors.
            k: number of rows.
            where: rank only rows that fulfil this; see `find`.
            columns: columns that are read with the rows; None: all but those asked.
            metric: distance of vectors.
            exact: compare every row, whatever index there is.

        Raises:
            InvalidInputError: no column, or a query that does not fit one.
            NotFoundError: no such column.

        Example:
            ``ds.hybrid({"caption": "red car", "embedding": vector}, k=10).df()``
        """
        if not mapping("queries", queries, "queries"):
            raise InvalidInputError("hybrid ranks by one column at least: queries={'caption': ...}")
        most = max(lazy.FUSED_ROWS, checked_k(k))
        found: dict[str, lazy.SearchResult] = {}
        for column, query in queries.items():
            if isinstance(query, str):
                found[column] = self.search(
                    column, query, most, where=where, columns=[column], exact=exact
                )
            elif np.ndim(query) == 1:
                found[column] = self.nearest(
                    column, query, most, where=where, columns=[column], metric=metric, exact=exact
                )
            else:
                raise InvalidInputError(f"a query of {column!r} is words, or one vector")
        return lazy.fuse(self.stored, found, k=k, columns=columns)

    def _index(self, column: str, metric: str, *, exact: bool) -> lazy.IndexSearch:
        """What finds rows of a column, beside the dataset that these rows are of."""
        self.stored.schema.column(column)  # is there
        if flag("exact", exact):
            return lazy.IndexSearch(None)
        whole = self.whole
        return lazy.index_beside(
            self.context, whole.commit, whole.path, whole.stored, column, metric
        )

    def search(
        self,
        column: str,
        query: str,
        k: int = 10,
        *,
        where: Where | None = None,
        columns: Sequence[str] | None = None,
        exact: bool = False,
    ) -> lazy.SearchResult:
        """The `k` rows whose text fits the words of a query best, by BM25.

        Words are letters, marks, digits and underscores, in lower case. A row comes when it has one
        of them; equally good ones come in the order of the dataset. What BM25 counts, it counts of
        the rows that are searched: with `where`, of those that fulfil it. By the index of the
        column, if the commit has one (`Transaction.create_index`), whose scores are the same; else
        every text is read.

        Args:
            column: column of type Text.
            query: one or several words; each counts once.
            k: number of rows; fewer where not so many fit.
            where: search only rows that fulfil this; see `find`.
            columns: columns that are read with the rows; None: all.
            exact: read every text, whatever index there is.

        Raises:
            InvalidInputError: a column of another type, or a query without words.
            NotFoundError: no such column.
            PurgedError: a column was purged.

        Example:
            ``ds.search("caption", "red car", k=10).df()``
        """
        with telling_purged(self.stored_objects, [self.path], [column, *(columns or ())]):
            searched = self.stored if where is None else self.select(where=where).stored
            index = self._index(column, "", exact=exact)
            return lazy.search_text(
                searched, self.stored, column, query, k=k, columns=columns, index=index
            )

    def query(self, query: str, *, params: Params = None) -> Result:
        """Rows of an SQL query over this dataset, which it calls ``self``; see `Repository.sql`.

        Example:
            ``ds.query("SELECT label, count(*) FROM self GROUP BY 1").df()``
        """
        with telling_purged(self.stored_objects, [self.path], [query]):
            return lazy.sql(self.context, query, ref=self.commit, params=params, this=self.stored)

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
        return self.stored.to_arrow(self._unpurged(columns))

    def to_batches(
        self, columns: Sequence[str] | None = None, *, max_bytes: int | str = "64MB"
    ) -> Iterator[pa.RecordBatch]:
        """All rows as Arrow batches of bounded bytes."""
        return self.stored.to_batches(
            self._unpurged(columns), max_bytes=byte_size("max_bytes", max_bytes)
        )

    def to_numpy(self, columns: Sequence[str] | None = None) -> dict[str, Any]:
        """Columns as arrays; ragged and binary ones as lists."""
        return self.stored.to_numpy(self._unpurged(columns))

    def to_pandas(self, columns: Sequence[str] | None = None) -> Any:
        """All rows as a pandas data frame."""
        return pandas_frame(self.stored, self._unpurged(columns))

    def to_polars(self, columns: Sequence[str] | None = None) -> Any:
        """All rows as a polars data frame."""
        return polars_frame(self.stored, self._unpurged(columns))

    def to_torch(
        self, columns: Sequence[str] | None = None, *, nulls: Nulls = "raise"
    ) -> dict[str, Any]:
        """Columns as torch tensors, where they have one shape and are numbers.

        `nulls` is as for `torch`.
        """
        chosen = self.stored.schema.select(self._unpurged(columns))
        policy = null_policy(chosen, nulls)
        return {name: tensors_of(self.stored, name, policy) for name in chosen.names}

    def torch(
        self, columns: Sequence[str] | None = None, *, nulls: Nulls = "raise"
    ) -> TorchDataset:
        """For torch's own `DataLoader`: rows by number, right with any number of workers.

        Args:
            columns: which; None means all.
            nulls: what stands for null: a number in all columns of numbers, or a value by column.
                A null elsewhere is an error. None, also of a single column, hands None on, for a
                `collate_fn` of your own.
        """
        chosen = self.stored.schema.select(self._unpurged(columns))
        note_streamed(self.whole, (lambda: self.told) if self.whole is not self else None)
        return TorchDataset(self, chosen.names, null_policy(chosen, nulls))

    @hints.named_only(hints.STREAM)
    @described(StreamOptions)
    def stream(  # noqa: PLR0913  the one call by which people set a stream up
        self,
        *,
        batch_size: int,
        columns: Sequence[str] | None = None,
        shuffle: Shuffle = "pages",
        seed: int = 0,
        sampling: Sampling = EVERY_ROW,
        ranks: Ranks = RANKS,
        decode: Decodes = None,
        transform: Callable[[Any], Any] | None = None,
        cache: DerivedCache | Literal["derived"] | None = None,
        output: OutputForm = "numpy",
        pad: float | None = None,
        last: Last = "short",
        nulls: Nulls = None,
        loading: Loading = LOADING,
    ) -> Stream:
        """Batches for training, fetched and verified ahead.

        Example:
            ``ds.stream(batch_size=256, sampling=tr.Sampling(where="label < 5", balance="label"))``
        """
        options = StreamOptions(
            **{name: value for name, value in locals().items() if name != "self"}
        )
        told = self.select(where=options.sampling.where, rows=options.sampling.rows).selected
        return _stream(self.whole, self._resolved(options), told)

    def _resolved(self, options: StreamOptions) -> StreamOptions:
        """`options` as the whole stored dataset and this process have them."""
        self._unpurged(options.columns)
        rank, world_size = self.context.world(options.ranks.rank, options.ranks.world_size)
        ranks = replace(options.ranks, rank=rank, world_size=world_size)
        sampling = options.sampling
        if self.whole is not self:
            options = _of_whole(self, options)
        elif sampling.where is not None:
            chosen = lazy.answered(self, row_selection(self.stored, sampling.where))
            options = replace(options, sampling=replace(sampling, where=chosen))
        return replace(options, ranks=ranks)

    def physical_rows(self, most: int | None = None) -> Ints:
        """Physical rows of these, at most so many: no more is read than it takes to find them."""
        rows = len(self) if most is None else min(most, len(self))
        return live_rows(self.stored).physical(np.arange(rows))

    def __reduce__(self) -> tuple[Any, ...]:
        return dataset_at, (self.context, self.path, self.commit)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Whoever reads Arrow's streams can take a dataset as it is: ``pyarrow.table(ds)``."""
        schema = self.schema.to_arrow()
        reader = pa.RecordBatchReader.from_batches(schema, self.to_batches())
        return reader.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return self.title

    @property
    def title(self) -> str:
        """What it is, in a line."""
        rows = f"{counted(len(self), 'row')} of {', '.join(self.schema.names)}"
        size = counted(self.stored.stored_bytes, "byte")
        return f"<dataset {self.name}: {rows}, {size}, commit {self.commit:.12}>"

    def to_table(self) -> RecordTable:
        """The first rows, with thumbnails: what ``print`` and notebooks show."""
        return dataset_table(self.title[1:-1], self.stored)


def _of_whole(chosen: Dataset, options: StreamOptions) -> StreamOptions:
    """Options of a stream of some rows, as those of a stream of their whole dataset."""
    whole, own, sampling = chosen.whole.stored, chosen.stored, options.sampling
    rows = choose_rows(own, slice(None) if sampling.rows is None else sampling.rows).rows
    if sampling.where is not None:
        condition = lazy.answered(chosen, row_selection(own, sampling.where))
        fitting = choose_rows(own, condition, strict=False).rows
        rows = np.intersect1d(rows, fitting, assume_unique=True)
    weights = sampling.weights
    if weights is not None and not isinstance(weights, str | Mapping):
        given = np.asarray(weights)
        if given.shape != (own.rows,):
            raise InvalidInputError(
                f"weights are one number per row, {own.rows:,} of them; got shape {given.shape}"
            )
        weights = np.zeros(whole.rows, given.dtype)
        weights[live_rows(whole).live(chosen.physical_rows())] = given
    kept = bits_of(whole.rows, [live_rows(whole).live(rows)])  # in an eighth of a byte a row
    return replace(
        options,
        columns=chosen.schema.names if options.columns is None else options.columns,
        sampling=replace(sampling, rows=kept, where=None, weights=weights),
    )


def _stream(dataset: Dataset, options: StreamOptions, told: Mapping[str, Any]) -> Stream:
    """A stream, picklable: another process opens the dataset again and asks for the same."""
    loading = options.loading
    if loading.workers != "thread" and dataset.context.url.startswith("memory:"):
        raise InvalidInputError(
            f"{dataset.context.url} lies in the memory of this process, and workers="
            f"{loading.workers!r} would open it in another one: use workers='thread'."
        )
    machine = dataset.context.machine
    page_cache = connect.page_cache(machine, loading.cache_dir, loading.cache_limit)
    page_cache = None if page_cache is None else page_cache.of(dataset.context.url)
    derived_cache = _derived_cache(dataset, options)
    threaded = replace(options, loading=loading.of_worker)
    caches: dict[str, Any] = {
        "page_cache": page_cache,
        "derived_cache": derived_cache,
        "peers": _peers(dataset, options),
    }
    of_equal = partial(open_stream, options=threaded, **caches)
    remake = partial(_in_process, dataset, options, page_cache, derived_cache)
    stored = open_stream(dataset.stored, options, remake=remake, **caches)
    return Stream(dataset, stored, partial(_stream, dataset, options, told), of_equal, told)


def _in_process(
    dataset: Dataset,
    options: StreamOptions,
    page_cache: PageDiskCache | None,
    derived_cache: DiskCache | None,
    output: OutputForm,
) -> StoredStream:
    """The same stream in another process, which makes batches for that of `options`."""
    return open_stream(
        dataset.stored,
        options.in_process(output),
        page_cache=page_cache,
        derived_cache=derived_cache,
        peers=_peers(dataset, options),
    )


def _peers(dataset: Dataset, options: StreamOptions) -> CachePeers | None:
    """Servers that are asked for pages before the store, if there are any."""
    urls, context = options.loading.cache_peers, dataset.context
    if not urls:
        return None
    copy = context.core.copy
    repository = context.core.id if copy is None else copy.origin
    opened = partial(connect.open_peer, context.machine, repository=repository)
    return CachePeers({url: partial(opened, url) for url in urls})


def _derived_cache(dataset: Dataset, options: StreamOptions) -> DiskCache | None:
    """Where rows that the transform makes are kept, if that was asked for."""
    asked = options.derived
    if asked is None:
        return None
    cache = connect.derived_cache(dataset.context.machine, asked.folder, asked.limit)
    return None if cache is None else cache.of(dataset.context.url)


def dataset_at(context: Context, name: str, ref: str = "main") -> Dataset:
    """See `Repository.dataset`."""
    revision, path, entry = context.entry("datasets", name, ref, Kind.DATASET)
    stored = open_dataset(context.core.objects, entry.digest, context.outside)
    return noted(Dataset(context, path, revision.digest, stored))


class RowsOfDataset(Dataset):
    """Some rows of a dataset, used like one: indexed, streamed, asked, exported. They count from 0.

    A stream of them is one of the `whole`: its `batch.rows` are numbers there.
    """

    source: Dataset

    @property
    def whole(self) -> Dataset:
        return self.source.whole

    @cached_property
    def told(self) -> dict[str, Any]:
        if self.is_every_row:
            return self.selected
        whole = self.whole.stored
        bits = bits_of(whole.rows, [live_rows(whole).live(self.physical_rows())])
        return self.selected | {"selection": RowSelection(bits, None, "").digest}

    def diff(self, older: RowsOfDataset) -> ViewDiff:
        """Ids of the rows that these have and `older` lacks, and the other way round."""
        check_instance("older", older, RowsOfDataset, "a view or a selection of rows")
        return diff_views(older.as_view(), self.as_view())

    def as_view(self) -> StoredView:
        """What is kept of them under a name.

        The query of a selection gives its rows again, of what the dataset has then. It is empty
        where no text says which rows these are: such a view is not asked again.
        """
        raise NotImplementedError


class View(RowsOfDataset):
    """Rows of a dataset that were kept, used like one.

    `source` is the whole dataset, `chosen` what is stored of the view.
    """

    def __init__(
        self,
        context: Context,
        path: str,
        commit: Digest,
        stored: StoredDataset,
        source: Dataset,
        chosen: StoredView,
        identity: Digest,
    ) -> None:
        """Made by `Repository.view`."""
        super().__init__(context, path, commit, stored)
        self.source, self.chosen, self.identity = source, chosen, identity

    @property
    def name(self) -> str:
        return self.path.removeprefix("views/")

    @property
    def digest(self) -> Digest:
        """What the view is, in whatever commit."""
        return self.identity

    @property
    def sql(self) -> str:
        """The query that chose the rows; empty where they were given one by one."""
        return self.chosen.sql

    @property
    def selected(self) -> dict[str, Any]:
        return {"view": self.path, "view_digest": self.identity}

    def as_view(self) -> StoredView:
        return self.chosen

    def __reduce__(self) -> tuple[Any, ...]:
        return view_at, (self.context, self.path, self.commit)

    @property
    def title(self) -> str:
        return (
            f"<view {self.name}: {counted(len(self), 'row')} of {self.source.name} at "
            f"{self.source.commit:.12}, {self.sql!r:.80}>"
        )


def view_at(context: Context, name: str, ref: str = "main") -> View:
    """See `Repository.view`."""
    revision, path, entry = context.entry("views", name, ref, Kind.VIEW)
    chosen = open_view(context.core.objects, entry.digest)
    whole, stored = open_rows(context.core.objects, chosen, context.outside)
    source = Dataset(context, chosen.path, chosen.commit, whole)
    return View(context, path, revision.digest, stored, source, chosen, entry.digest)
