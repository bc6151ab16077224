"""Search results of the SDK: ranked rows of a dataset, with distances or scores.

Rows are found when the question is asked; their columns are read when they are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike, NDArray

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.common.tensors import import_library
from tensorrepo.formats.dataset.metadata.row_ids import format_row_id
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, read_live, row_id_table
from tensorrepo.formats.dataset.schema.arrow import column_array
from tensorrepo.formats.dataset.schema.cells import value_text
from tensorrepo.formats.dataset.schema.convert import present_row
from tensorrepo.formats.dataset.schema.json_values import named_class
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.values import ColumnValues
from tensorrepo.formats.dataset.searching.nearest import nearest_rows
from tensorrepo.formats.dataset.searching.text_search import fitting_texts
from tensorrepo.formats.dataset.searching.top_rows import Ranked
from tensorrepo.formats.dataset.streaming.checks import column_names
from tensorrepo.formats.search_index.indexed_nearest import nearest_by_index
from tensorrepo.formats.search_index.indexed_text import texts_by_index
from tensorrepo.formats.search_index.opened_index import IndexedAnswer
from tensorrepo.query.sql.results import NEEDS_PANDAS, NEEDS_POLARS
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.tables import RecordTable, Shown
from tensorrepo.verbs.indexes import IndexSearch

QUERY, ROW_NUMBER, ROW_ID = "query", "row_number", "row_id"
SHOWN_ROWS = 20
_TYPES = {QUERY: pa.int64(), ROW_NUMBER: pa.int64(), ROW_ID: pa.string()}
SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SearchResult(Shown):
    """Rows that answer a search, the best first; of several queries one after the other.

    Iterate over it for dicts, or take it as Arrow, pandas or polars: `row_number`, `row_id`, the
    distance or score, and columns of the dataset; before them `query`, where several were given.

    Attributes:
        dataset: what was asked.
        rows: int64 ``(n,)``, numbers of rows in it: ``ds[result.rows]``.
        queries: int64 ``(n,)``, number of the query that each row answers.
        values: float64 ``(n,)``, distances or scores.
        measure: ``"distance"``, which ascends, or ``"score"``, which descends.
        columns: columns that are read with the rows.
        several: whether several queries were given.
        told: how it was found, in words.
    """

    dataset: StoredDataset
    rows: Ints
    queries: Ints
    values: NDArray[np.float64]
    measure: str
    columns: tuple[str, ...]
    several: bool
    told: str

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def row_ids(self) -> list[str]:
        """Lasting ids of the rows, in their order."""
        numbers = live_rows(self.dataset).physical(self.rows)
        return [format_row_id(each) for each in row_id_table(self.dataset).of(numbers)]

    @property
    def distances(self) -> NDArray[np.float64]:
        """Of an answer of `Dataset.nearest`: ascending for each query."""
        return self._measured("distance", "scores")

    @property
    def scores(self) -> NDArray[np.float64]:
        """Of an answer of `Dataset.search`: descending."""
        return self._measured("score", "distances")

    def _measured(self, measure: str, other: str) -> NDArray[np.float64]:
        if self.measure != measure:
            raise AttributeError(f"rows found by {self.measure} have no {measure}s: use .{other}")
        return self.values

    def arrow(self) -> pa.Table:
        """All of it as one Arrow table."""
        fields = {
            name: pa.array(values, _TYPES.get(name, pa.float64()))
            for name, values in self._found().items()
        }
        fields |= {column.name: column_array(column, values) for column, values in self._read()}
        return pa.table(fields)

    def records(self) -> Iterator[dict[str, Any]]:
        """Rows as people are shown them: vectors as arrays, classes by their names."""
        found, read = self._found(), self._read()
        for at in range(len(self)):
            yield {name: values[at] for name, values in found.items()} | {
                column.name: named_class(column.type, present_row(column, values, at))
                for column, values in read
            }

    def _found(self) -> dict[str, list[Any]]:
        """What an answer adds to the columns of its rows, of every row."""
        queries = {QUERY: self.queries.tolist()} if self.several else {}
        return queries | {
            ROW_NUMBER: self.rows.tolist(),
            ROW_ID: self.row_ids,
            self.measure: self.values.tolist(),
        }

    def _read(self) -> list[tuple[Column, ColumnValues]]:
        columns = [self.dataset.schema.column(name) for name in self.columns]
        values = read_live(self.dataset, self.columns, self.rows) if columns else []
        return list(zip(columns, values, strict=True))

    def df(self) -> Any:
        """All of it as a pandas data frame."""
        import_library("pandas", NEEDS_PANDAS)
        return self.arrow().to_pandas()

    def pl(self) -> Any:
        """All of it as a polars data frame."""
        return import_library("polars", NEEDS_POLARS).from_arrow(self.arrow())

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """A dict for each row."""
        return iter(self.arrow().to_pylist())

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Whoever reads Arrow's streams can take it as it is."""
        return self.arrow().__arrow_c_stream__(requested_schema)

    def to_table(self) -> RecordTable:
        """The first rows: what ``print`` and notebooks show."""
        few = self.taken(np.arange(min(SHOWN_ROWS, len(self)))).records()
        rows = tuple(
            tuple(value_text(value, SHOWN_CHARACTERS) for value in row.values()) for row in few
        )
        names = tuple(name.removeprefix(">") for name in self.names)
        return RecordTable((self._title,), names, rows, len(self) - len(rows))

    @property
    def names(self) -> list[str]:
        """Names of the columns of an answer."""
        return [*([QUERY] if self.several else []), ROW_NUMBER, ROW_ID, self.measure, *self.columns]

    @property
    def _title(self) -> str:
        return f"{counted(len(self), 'row')} {self.told}"

    def __repr__(self) -> str:
        return f"<{self._title}>"

    def taken(self, places: Ints) -> SearchResult:
        """The rows at these places of the answer."""
        return SearchResult(
            self.dataset, self.rows[places], self.queries[places], self.values[places],
            self.measure, self.columns, self.several, self.told,
        )  # fmt: skip


def search_vectors(
    searched: StoredDataset,
    asked: StoredDataset,
    column: str,
    queries: ArrayLike,
    *,
    k: int,
    columns: Sequence[str] | None,
    metric: str,
    index: IndexSearch,
    nprobes: int | None = None,
) -> SearchResult:
    """See `Dataset.nearest`. `searched` are rows of `asked`, which answers count."""
    names = _shown(asked, columns, {column}, "distance")
    answer = None
    if index.opened is not None:
        answer = nearest_by_index(index.opened, searched, column, queries, k, metric, nprobes)
        index = replace(index, why="too few rows for an index to pay")
    if answer is None:
        exact = nearest_rows(searched, column, queries, k, metric)
        answer = IndexedAnswer(exact, _exactness(searched, index.why))
    told = f"nearest in {column!r} by {metric}, {answer.told}"
    return _result(asked, answer.ranked, "distance", names, told, several=np.ndim(queries) == 2)


def search_text(
    searched: StoredDataset,
    asked: StoredDataset,
    column: str,
    query: str,
    *,
    k: int,
    columns: Sequence[str] | None,
    index: IndexSearch,
) -> SearchResult:
    """See `Dataset.search`. `searched` are rows of `asked`, which answers count."""
    names = _shown(asked, columns, set(), "score")
    if index.opened is not None:
        answer = texts_by_index(index.opened, searched, column, query, k)
    else:
        exact = fitting_texts(searched, column, query, k)
        answer = IndexedAnswer([exact], _exactness(searched, index.why))
    told = f"that fit {query!r:.80} in {column!r} by BM25, {answer.told}"
    # What is told is a score: the larger, the better.
    ranked = [Ranked(each.rows, 0.0 - each.keys) for each in answer.ranked]
    return _result(asked, ranked, "score", names, told, several=False)


FUSED_ROWS: Final = 100  # at least, of each ranking
RANK_CONSTANT: Final = 60  # of reciprocal rank fusion, as its authors have it


def fuse(
    asked: StoredDataset,
    found: Mapping[str, SearchResult],
    *,
    k: int,
    columns: Sequence[str] | None,
) -> SearchResult:
    """One ranking of several, by reciprocal rank: see `Dataset.hybrid`.

    A row scores the sum of ``1 / (60 + rank)`` over the rankings that it is in.

    Source:
        G. Cormack, C. Clarke, S. Buettcher, Reciprocal Rank Fusion outperforms Condorcet and
        individual Rank Learning Methods, 2009.
    """
    names = _shown(asked, columns, set(found) if columns is None else set(), "score")
    rows = np.concatenate([each.rows for each in found.values()])
    shares = [1.0 / (RANK_CONSTANT + 1 + np.arange(len(each.rows))) for each in found.values()]
    unique, of = np.unique(rows, return_inverse=True)
    scores = np.bincount(of, np.concatenate(shares), len(unique)).astype(np.float64)
    best = np.lexsort((unique, -scores))[:k]
    told = "by reciprocal rank of rows " + " and ".join(each.told for each in found.values())
    queries = np.zeros(len(best), np.int64)
    return SearchResult(asked, unique[best], queries, scores[best], "score", names, False, told)


def _exactness(searched: StoredDataset, why: str) -> str:
    return f"exact: all {counted(searched.rows, 'row')} compared, {why}"


def _shown(
    asked: StoredDataset, columns: Sequence[str] | None, left_out: set[str], measure: str
) -> tuple[str, ...]:
    """Names of the columns that are read with the rows.

    Raises:
        InvalidInputError: one is called as what an answer adds.
        NotFoundError: one is not there.
    """
    if columns is None:
        names = tuple(name for name in asked.schema.visible.names if name not in left_out)
    else:
        names = tuple(column_names("columns", columns))
    for name in names:
        asked.schema.column(name)  # is there
        if name.lower() in (QUERY, ROW_NUMBER, ROW_ID, measure):
            raise InvalidInputError(
                f"column {name!r} is called as a column of the answer is. Name others with "
                f"--columns, in Python columns=[...]; ds[{name!r}][result.rows] reads it there"
            )
    return names


def _result(
    asked: StoredDataset,
    ranked: Sequence[Ranked],
    measure: str,
    columns: tuple[str, ...],
    told: str,
    *,
    several: bool,
) -> SearchResult:
    rows = np.concatenate([np.zeros(0, np.int64), *(each.rows for each in ranked)])
    queries = np.repeat(np.arange(len(ranked)), [len(each.rows) for each in ranked])
    values = np.concatenate([np.zeros(0), *(each.keys for each in ranked)])
    numbers = live_rows(asked).live(rows)
    return SearchResult(asked, numbers, queries, values, measure, columns, several, told)
