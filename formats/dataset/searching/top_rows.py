"""Top-k selection: the k best rows of each query, merged as rows come.

Ties go to the row that stands first in the dataset, so that the answer is one, however the rows
were cut into pieces.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import whole
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

ANSWER_ROWS = 1 << 22  # 64 MiB of keys and numbers
_MERGED_AT_ONCE = 256  # candidates that are kept waiting while k is large


@dataclass(frozen=True, slots=True, eq=False)
class Ranked:
    """Rows that answer one query, the best first.

    Attributes:
        rows: int64 ``(m,)`` with ``m <= k``, physical rows.
        keys: float64 ``(m,)``, ascending: what they were ordered by.
    """

    rows: Ints
    keys: NDArray[np.float64]


class TopRows:
    """The `k` rows with the smallest keys, of all that were offered.

    Rows whose key is NaN are never among them. Memory is that of 2 k rows, and of those offered at
    once.
    """

    def __init__(self, k: int) -> None:
        self._k = k
        self._keys, self._rows = np.zeros(0), np.zeros(0, np.int64)
        self._waiting: list[tuple[NDArray[np.float64], Ints]] = []
        self._count = 0
        self.bound = np.inf

    def offer(self, keys: NDArray[np.float64], rows: Ints) -> None:
        """Take part with these keys; `bound` falls to the k-th smallest so far, or stays above."""
        self._waiting.append((keys, rows))
        self._count += len(rows)
        if self._count >= min(self._k, _MERGED_AT_ONCE) or self._count >= self._k // 4:
            self._merge()

    def ranked(self) -> Ranked:
        """The best of all that were offered."""
        self._merge()
        return Ranked(self._rows, self._keys)

    def _merge(self) -> None:
        keys = np.concatenate([self._keys, *(each for each, _ in self._waiting)])
        rows = np.concatenate([self._rows, *(each for _, each in self._waiting)])
        there = ~np.isnan(keys)
        keys, rows = keys[there], rows[there]
        order = np.lexsort((rows, keys))[: self._k]
        self._keys, self._rows = keys[order], rows[order]
        self._waiting, self._count = [], 0
        if len(order) == self._k:
            self.bound = float(self._keys[-1])


def checked_k(k: object, queries: int = 1) -> int:
    """How many rows are wanted for each query.

    Raises:
        InvalidInputError: no whole number above 0, or more rows than are ranked at once.
    """
    found = whole("k", k, 1)
    if found * queries > ANSWER_ROWS:
        raise InvalidInputError(
            f"k={found:,} for {queries:,} queries is {found * queries:,} rows, and at most "
            f"{ANSWER_ROWS:,} are ranked at once: ask for fewer, or in several calls"
        )
    return found
