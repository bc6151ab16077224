"""BM25 by an index: it tells which texts have a word, scores are those of exact search.

How rare words are and how long texts are is counted of the rows that are searched, as without an
index: of those that the index knows by their places and lengths, of the others by reading them. How
often a word stands in a text follows from what the index scores it, and from its length; the best
texts by that are read, counted and scored as `text_search` does.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.read import StoredDataset, page_reader
from tensorrepo.formats.dataset.reading.row_read import read_columns
from tensorrepo.formats.dataset.schema.arrow import to_arrow_array
from tensorrepo.formats.dataset.searching.text_search import (
    K1,
    B,
    WordStatistics,
    bm25_scores,
    count_words,
    counted_texts,
    words_of,
)
from tensorrepo.formats.dataset.searching.top_rows import TopRows, checked_k
from tensorrepo.formats.exchange.child_main import TableFile
from tensorrepo.formats.search_index.lance_segment import places_having
from tensorrepo.formats.search_index.opened_index import IndexedAnswer, IndexScope, OpenedIndex
from tensorrepo.repo.deferred_dataclass import dataclass

READ_ROWS: Final = 64  # beside twice as many as are wanted, whose texts are read and counted


def texts_by_index(
    opened: OpenedIndex, searched: StoredDataset, name: str, query: str, k: int
) -> IndexedAnswer:
    """Rows whose text fits the words of a query best, found by an index.

    Args:
        opened: an index of the words of the column.
        searched: rows that may come, of the version that the index is asked about.
        name: column of text.
        query: words.
        k: number of rows.
    """
    words, best = words_of(query), TopRows(checked_k(k))
    scope = IndexScope.of(opened, searched)
    statistics = WordStatistics(np.zeros(len(words), np.int64))
    for _ in () if scope.beside is None else counted_texts(scope.beside, name, words, statistics):
        pass  # counted: it is scored when all rows are
    with opened.indexes.readers.asking():
        tables = opened.indexes.tables(opened.known, "words")
        hits = [_hits(opened, scope, at, table, words) for at, table in tables.items()]
    sums = opened.text_sums(scope)
    statistics.rows += sums.texts
    statistics.words += sums.words
    for each in hits:
        statistics.having += np.bincount(each.words, minlength=len(words))
    rows = _best_rows(hits, statistics, 2 * k + READ_ROWS)
    if len(rows):
        dataset = opened.known.dataset
        (values,) = read_columns([page_reader(dataset, name)], rows)
        texts = to_arrow_array(dataset.schema.column(name).type, values)
        found, _ = count_words(texts, rows, words)
        best.offer(-bm25_scores(found, statistics), found.rows)
    for found in () if scope.beside is None else counted_texts(scope.beside, name, words):
        best.offer(-bm25_scores(found, statistics), found.rows)
    told = f"by an index ({counted(scope.indexed, 'row')}), scores exact{scope.told_beside}"
    return IndexedAnswer([best.ranked()], told)


@dataclass(frozen=True, slots=True, eq=False)
class _Hits:
    """Words of the query that stand in texts of a segment, in rows in scope; all ``(n,)``.

    Attributes:
        words: number of the word.
        rows: physical row.
        lengths: words of the text.
        times: how often the word stands there, as far as scores tell.
    """

    words: NDArray[np.int32]
    rows: Ints
    lengths: Ints
    times: NDArray[np.float64]


def _hits(
    opened: OpenedIndex, scope: IndexScope, at: int, table: TableFile, words: list[str]
) -> _Hits:
    known = opened.known
    found = places_having(table, words)
    rows = known.rows(at, found.places)
    lengths = opened.indexes.lengths(known, at)
    of_texts = lengths[found.places]
    times = _times(found.queries, found.values, of_texts, lengths, len(words))
    inside = (scope.fresh.live(rows) >= 0) & (of_texts > 0)
    return _Hits(found.queries[inside], rows[inside], of_texts[inside], times[inside])


def _times(
    words: NDArray[np.int32],
    scores: NDArray[np.float32],
    lengths: Ints,
    every_length: Ints,
    word_count: int,
) -> NDArray[np.float64]:
    """How often words stand in texts: BM25 solved for it.

    The segment scored with its own counts.
    """
    there = every_length[every_length > 0]  # Lance counts no empty texts
    having = np.bincount(words, minlength=word_count)
    weights = np.log(1 + (len(there) - having + 0.5) / (having + 0.5)) * (K1 + 1)
    mean = max(1.0, float(there.sum(dtype=np.int64))) / max(1, len(there))
    share = np.minimum(scores / weights[words], 0.999)
    times: NDArray[np.float64] = np.round(share / (1 - share) * _norms(lengths, mean))
    return np.maximum(1.0, times)


def _norms(lengths: Ints, mean: float) -> NDArray[np.float64]:
    return np.asarray(K1 * (1 - B + B * lengths / mean), np.float64)


def _best_rows(hits: list[_Hits], statistics: WordStatistics, most: int) -> Ints:
    """Physical rows, ascending, that have the best scores as far as is known."""
    if not sum(len(each.rows) for each in hits):
        return np.zeros(0, np.int64)
    words, rows, lengths, times = (
        np.concatenate([getattr(each, name) for each in hits])
        for name in ("words", "rows", "lengths", "times")
    )
    weights = np.log(1 + (statistics.rows - statistics.having + 0.5) / (statistics.having + 0.5))
    norms = _norms(lengths, statistics.words / statistics.rows)
    scores = weights[words] * times * (K1 + 1) / (times + norms)
    unique, of = np.unique(rows, return_inverse=True)
    totals = np.bincount(of, scores)
    return np.sort(unique[np.lexsort((unique, -totals))[:most]])
