"""BM25 over a column of text: one pass, or two where more fits than is kept.

The first pass counts: rows, words, and how often each word of the query stands in each row that has
one. What a word weighs is known only when all rows were counted. Rows that fit are kept meanwhile,
as numbers; where they take more than `KEPT_BYTES` they are dropped, and the column is read again.

A word is a run of letters, marks, digits and underscores in lower case, as Unicode has them.

Source:
    S. Robertson, H. Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009; the
    weight of a word is Lucene's, which is never negative.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.arguments import text
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.read import StoredDataset, scan
from tensorrepo.formats.dataset.schema.arrow import to_arrow_array
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import Text
from tensorrepo.formats.dataset.searching.top_rows import Ranked, TopRows, checked_k
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError

K1, B = 1.2, 0.75
KEPT_BYTES = 64 << 20  # of counts of rows that fit
SCAN_BYTES = 4 << 20  # of text that is cut into words at once
MOST_WORDS = 1024
_BETWEEN_WORDS = r"[^\pL\pM\pN_]+"


@dataclass(frozen=True, slots=True, eq=False)
class CountedTexts:
    """Rows that have a word of the query.

    Attributes:
        rows: int64 ``(n,)``, physical rows, ascending.
        lengths: int64 ``(n,)``, words of each.
        times: int32 ``(n, words of the query)``, how often each stands in each row.
    """

    rows: Ints
    lengths: Ints
    times: NDArray[np.int32]

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.lengths.nbytes + self.times.nbytes


@dataclass(slots=True)
class WordStatistics:
    """What was counted of all rows that are not null."""

    having: Ints  # rows that have each word of the query
    rows: int = 0
    words: int = 0


def fitting_texts(dataset: StoredDataset, name: str, query: str, k: int = 10) -> Ranked:
    """The `k` rows whose text fits the words of a query best, the best first.

    Rows without any of the words never come, nor nulls. What is counted for BM25 is counted of the
    rows of `dataset`. Memory is bounded by the pages read at once, `KEPT_BYTES`, and the answer.

    Returns:
        Physical rows; `Ranked.keys` are minus the scores.

    Raises:
        InvalidInputError: a column of another type than Text, or a query without a word.
        NotFoundError: no such column.
    """
    check_text(dataset.schema.column(name))
    words, best = words_of(query), TopRows(checked_k(k))
    statistics = WordStatistics(np.zeros(len(words), np.int64))
    kept: list[CountedTexts] | None = []
    kept_bytes = 0
    for counted in counted_texts(dataset, name, words, statistics):
        kept_bytes += counted.nbytes
        if kept is not None and kept_bytes <= KEPT_BYTES:
            kept.append(counted)
        else:
            kept = None
    found = iter(kept) if kept is not None else counted_texts(dataset, name, words)
    for counted in found:
        best.offer(-bm25_scores(counted, statistics), counted.rows)
    return best.ranked()


def check_text(column: Column) -> None:
    """Raises InvalidInputError for a column that words are not looked for in."""
    if not isinstance(column.type, Text):
        raise InvalidInputError(
            f"column {column.name!r} is {column.type}: search looks for words in columns of Text; "
            "nearest compares vectors"
        )


def words_of(query: str) -> list[str]:
    """The words of a query, each once, in its order.

    Raises:
        InvalidInputError: none, or too many.
    """
    flat, _ = split_words(pa.array([text("a query", query)], pa.string()))
    words = list(dict.fromkeys(word for word in flat.to_pylist() if word))
    if not words or len(words) > MOST_WORDS:
        raise InvalidInputError(
            f"a query has 1 to {MOST_WORDS:,} words, of letters, digits and underscores; "
            f"{query!r:.80} has {len(words):,}"
        )
    return words


def split_words(texts: pa.Array) -> tuple[pa.Array, Ints]:
    """All words, empty ones between them; and where those of each text begin and end."""
    lists = pc.split_pattern_regex(pc.utf8_lower(texts), pattern=_BETWEEN_WORDS)
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return lists.flatten(), np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


def counted_texts(
    dataset: StoredDataset, name: str, words: list[str], statistics: WordStatistics | None = None
) -> Iterator[CountedTexts]:
    """Counts of the rows that have one of `words`; those of all rows go to `statistics`."""
    kind = dataset.schema.column(name).type
    step = max(1, SCAN_BYTES // (4 * len(words)))
    for rows, batch in scan(dataset, [name], max_bytes=SCAN_BYTES):
        texts = to_arrow_array(kind, batch[name])
        for low in range(0, len(rows), step):
            some = texts.slice(low, step)
            try:
                counted, word_count = count_words(some, rows[low : low + step], words)
            except pa.ArrowInvalid as error:
                raise CorruptError(f"column {name!r}: text that is no UTF-8: {error}") from error
            if statistics is not None:
                statistics.rows += len(some) - some.null_count
                statistics.words += word_count
                statistics.having += np.count_nonzero(counted.times, axis=0)
            if len(counted.rows):
                yield counted


def count_words(texts: pa.Array, rows: Ints, words: list[str]) -> tuple[CountedTexts, int]:
    """Of some texts those that have one of `words`; and how many words all of them have."""
    flat, bounds = split_words(texts)
    is_word = pc.not_equal(pc.binary_length(flat), 0).to_numpy(zero_copy_only=False)
    before = np.concatenate([[0], np.cumsum(is_word, dtype=np.int64)])
    lengths = np.diff(before[bounds])
    asked = pc.index_in(flat, value_set=pa.array(words, flat.type))
    places = np.flatnonzero(asked.is_valid().to_numpy(zero_copy_only=False))
    which = pc.drop_null(asked).to_numpy(zero_copy_only=False)
    owners = np.searchsorted(bounds, places, side="right") - 1
    fitting, at = np.unique(owners, return_inverse=True)
    times = np.zeros((len(fitting), len(words)), np.int32)
    np.add.at(times, (at, which), 1)
    return CountedTexts(rows[fitting], lengths[fitting], times), int(lengths.sum())


def bm25_scores(counted: CountedTexts, statistics: WordStatistics) -> NDArray[np.float64]:
    """BM25 of every row: the sum over words, in the order of the query."""
    having = statistics.having
    weights = np.log(1 + (statistics.rows - having + 0.5) / (having + 0.5))
    mean = statistics.words / statistics.rows
    norms = K1 * (1 - B + B * counted.lengths / mean)
    scores = np.zeros(len(counted.rows))
    for which, weight in enumerate(weights.tolist()):
        times = counted.times[:, which]
        scores += weight * times * (K1 + 1) / (times + norms)
    return scores
