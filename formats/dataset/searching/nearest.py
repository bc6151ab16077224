"""Exact nearest neighbours: one pass over a column of vectors, or over candidates of an index.

Two numbers decide. BLAS estimates the distance of every row in the element type of the column, with
a bound for what rounding may have done to it. Rows that may be among the best by that bound, few of
them, are computed again in float64, each by itself, and it is these distances that are compared and
told: they are the same whatever the pages, the number of queries and the BLAS.

Source:
    N. J. Higham, Accuracy and Stability of Numerical Algorithms, section 3.1: a sum of n products
    in any order errs by at most ``n u / (1 - n u)`` of the sum of their sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tensorrepo.formats.common.arguments import chosen
from tensorrepo.formats.common.dtypes import Bools, Ints, is_float
from tensorrepo.formats.dataset.read import StoredDataset, page_reader, scan
from tensorrepo.formats.dataset.reading.row_read import read_columns
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import ColumnLayout, Embedding, Storage, Tensor
from tensorrepo.formats.dataset.schema.values import FixedValues
from tensorrepo.formats.dataset.searching.top_rows import Ranked, TopRows, checked_k
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

Floats: TypeAlias = "NDArray[Any]"  # float32 or float64
METRICS = ("l2", "cosine", "dot")
STEP_BYTES = 4 << 20  # of rows in float64, and of estimates, that are worked on at once
QUERIES_AT_ONCE = 256
_FEW = 2  # queries, up to which a product for each beats one for all
# Multiplications below which BLAS starts no threads: waking them for each page takes longer than
# the page, and on a machine that does other work 20 times as long.
_ONE_THREAD = 1 << 18
_PRODUCT_ROWS = 16
# Elements that float32 holds as they are; the others are estimated in float64.
_SMALL: Final = {
    "int8", "int16", "uint8", "uint16", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
    "float32",
}  # fmt: skip
# Squares of lengths between these neither overflow nor lose digits, in float32 and in float64.
_LENGTHS: Final = {4: (1e-30, 1e36), 8: (1e-280, 1e300)}
_UNDERFLOW: Final = {4: 1e-37, 8: 1e-300}  # more than a product may lose that is too small


def nearest_rows(
    dataset: StoredDataset, name: str, queries: ArrayLike, k: int = 10, metric: str = "l2"
) -> list[Ranked]:
    """The `k` rows of a dataset whose vectors are nearest to each query, the nearest first.

    Every row is compared; nulls, and rows whose distance is NaN, never come. Memory is bounded by
    the pages that are read at once, `STEP_BYTES`, and the answer.

    Args:
        dataset: rows that are compared.
        name: column of vectors of one length: Embedding, or Tensor of one dimension ``(d,)``.
        queries: one vector ``(d,)``, or several ``(n, d)``.
        k: number of rows for each query.
        metric: ``"l2"``, ``"cosine"`` or ``"dot"``: distances are the Euclidean one, one minus the
            cosine, and minus the inner product.

    Returns:
        For each query its rows, physical ones; `Ranked.keys` are distances.

    Raises:
        InvalidInputError: a column of no such vectors, or queries that do not fit it.
        NotFoundError: no such column.
    """
    wanted = checked_queries(dataset.schema.column(name), queries, metric)
    best = [TopRows(checked_k(k, len(wanted))) for _ in wanted]
    _offer_every_row(dataset, name, wanted, metric, best)
    return [each.ranked() for each in best]


def nearest_of_candidates(
    dataset: StoredDataset,
    name: str,
    queries: NDArray[np.float64],
    candidates: Sequence[Ints],
    k: int,
    metric: str,
    beside: StoredDataset | None = None,
) -> list[Ranked]:
    """The `k` rows that are nearest to each query among some rows, the nearest first.

    Distances, and the order of equally near rows, are those of `nearest_rows`.

    Args:
        dataset: rows that candidates are of.
        name: column of vectors.
        queries: float64 ``(n, d)``, as `checked_queries` gives them.
        candidates: physical rows for each query, ascending.
        k: number of rows for each query.
        metric: as for `nearest_rows`.
        beside: rows of the same version that are compared with every query, none of which is a
            candidate; None: no more rows.
    """
    storage = dataset.schema.column(name).storage
    best = [TopRows(k) for _ in queries]
    every = candidates[0] if len(candidates) == 1 else np.unique(np.concatenate([*candidates]))
    if len(every):
        (values,) = read_columns([page_reader(dataset, name)], every)
        assert isinstance(values, FixedValues), "vectors of one length are"
        for at, rows in enumerate(candidates):
            some = values if len(rows) == len(every) else values.take(np.searchsorted(every, rows))
            _Search(storage, queries[at : at + 1], metric, best[at:]).offer(some, rows)
    if beside is not None and beside.rows:
        _offer_every_row(beside, name, queries, metric, best)
    return [each.ranked() for each in best]


def _offer_every_row(
    dataset: StoredDataset,
    name: str,
    queries: NDArray[np.float64],
    metric: str,
    best: Sequence[TopRows],
) -> None:
    """Compare every row with each query."""
    storage = dataset.schema.column(name).storage
    at_once = _ONE_THREAD // (_PRODUCT_ROWS * queries.shape[1])
    at_once = min(QUERIES_AT_ONCE, max(1, at_once))
    searches = [
        _Search(storage, queries[low : low + at_once], metric, best[low:])
        for low in range(0, len(queries), at_once)
    ]
    for rows, batch in scan(dataset, [name]):
        values = batch[name]
        assert isinstance(values, FixedValues), "vectors of one length are"
        for search in searches:
            search.offer(values, rows)


def checked_queries(column: Column, queries: ArrayLike, metric: str) -> NDArray[np.float64]:
    """Queries as float64 ``(n, d)``.

    Raises:
        InvalidInputError: says what fits.
    """
    chosen("metric", metric, METRICS)
    check_vectors(column)
    (dim,) = column.storage.row_shape
    try:
        given = np.asarray(queries)
        wanted = given.astype(np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"a query of {column.name!r} is {dim} numbers: {error}") from error
    if given.dtype.kind not in "iuf" and not is_float(given.dtype):
        raise InvalidInputError(f"a query of {column.name!r} is {dim} numbers, got {given.dtype}")
    if wanted.ndim not in (1, 2) or wanted.shape[-1] != dim:
        raise InvalidInputError(
            f"a query of {column.name!r} has the shape ({dim},), several have (n, {dim}); got "
            f"{wanted.shape}"
        )
    wanted = np.ascontiguousarray(wanted.reshape(-1, dim))
    if not np.isfinite(wanted).all():
        raise InvalidInputError(f"a query of {column.name!r} holds NaN or infinity")
    if metric == "cosine" and not wanted.any(axis=1).all():
        raise InvalidInputError("a query of zeros has no direction: metric='cosine' needs one")
    with np.errstate(over="ignore"):
        squares = np.square(wanted).sum(axis=1)
    if not _within(squares, 8, wanted):
        raise InvalidInputError(
            f"a query of {column.name!r} is too long or too short: squares of its numbers leave "
            "the range of float64"
        )
    return wanted


def _within(squares: NDArray[np.float64], item: int, queries: NDArray[np.float64]) -> bool:
    """Whether lengths may be computed with in floats of `item` bytes, that of zeros too."""
    least, most = _LENGTHS[item]
    return bool((((squares > least) & (squares < most)) | ~queries.any(axis=1)).all())


def check_vectors(column: Column) -> None:
    """Raises InvalidInputError for a column whose rows have no distances."""
    storage = column.storage
    is_vector = isinstance(column.type, Embedding | Tensor)
    is_one_length = storage.layout is ColumnLayout.FIXED and len(storage.shape) == 1
    if is_vector and is_one_length and storage.shape[0] and _is_number(storage):
        return
    raise InvalidInputError(
        f"column {column.name!r} is {column.type}: nearest compares vectors of one length, columns "
        "of Embedding(dtype, d) or Tensor(dtype, (d,)) of integers or floats"
    )


def _is_number(storage: Storage) -> bool:
    return storage.element.kind in "iu" or is_float(storage.element)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """What estimates of one element type are worth.

    Attributes:
        work: type that is computed in.
        error: largest error of an estimated product, in parts of the product of both lengths.
        underflow: largest error of one beside that.
        lengths: squares of lengths between which `error` holds.
    """

    work: np.dtype[Any]
    error: float
    underflow: float
    lengths: tuple[float, float]


def _bounds(storage: Storage, queries: NDArray[np.float64]) -> _Bounds:
    dim = queries.shape[1]
    is_small = storage.element.name in _SMALL
    item = 4 if is_small and _within(np.square(queries).sum(axis=1), 4, queries) else 8
    unit = 2.0 ** (-24 if item == 4 else -53)
    # Sums of `dim` products, their few sums, what casts round, and the float64 that is told: 8
    # times what Higham's bound is for one of them is more than all of them together.
    error = 8 * (dim + 8) * unit
    return _Bounds(np.dtype(f"f{item}"), error, dim * _UNDERFLOW[item], _LENGTHS[item])


class _Search:
    """Some queries of one column, asked of rows as they come."""

    def __init__(
        self,
        storage: Storage,
        queries: NDArray[np.float64],
        metric: str,
        best: Sequence[TopRows],
    ) -> None:
        count, dim = queries.shape
        self._queries, self._metric, self._best = queries, metric, best[:count]
        self._bounds = _bounds(storage, queries)
        self._lengths = np.sqrt(np.square(queries).sum(axis=1))
        # Of a direction only; so that a tiny query loses no digits in float32.
        asked = queries / self._lengths[:, None] if metric == "cosine" else queries
        self._asked = (asked * (2 if metric == "l2" else 1)).astype(self._bounds.work)
        self._slack = (self._lengths * self._bounds.error)[:, None].astype(self._bounds.work)
        self._step = max(1, STEP_BYTES // (8 * max(count, dim)))
        self._limit: NDArray[Any] | None = None

    def offer(self, values: FixedValues, rows: Ints) -> None:
        """`rows` are the physical numbers of `values`, ascending."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for low in range(0, len(rows), self._step):
                some = slice(low, low + self._step)
                valid = None if values.valid is None else values.valid[some]
                self._offer(values.values[some], valid, rows[some])

    def _offer(self, vectors: NDArray[Any], valid: Bools | None, rows: Ints) -> None:
        cast = vectors.astype(self._bounds.work, copy=False)
        is_far = self._far(cast)
        if valid is not None:
            is_far |= ~valid
        if is_far.all():
            return
        for at in np.flatnonzero(~is_far.all(axis=1)).tolist():
            near = np.flatnonzero(~is_far[at])
            self._best[at].offer(self._distances(vectors[near], at), rows[near])
        self._limit = self._limits()

    def _far(self, vectors: Floats) -> Bools:
        """Rows that are certainly not among the best: bool ``(queries, rows)``.

        Rows whose estimate is no number, or of which it may be wrong, are not far.
        """
        if self._limit is None:
            return np.zeros((len(self._asked), len(vectors)), np.bool_)
        work, error, (least, most) = self._bounds.work, self._bounds.error, self._bounds.lengths
        squares, dots = np.vecdot(vectors, vectors), self._dots(vectors)
        if self._metric == "l2":
            low = squares * work.type(1 - error) - dots
        elif self._metric == "dot":
            low = -dots - self._slack * np.sqrt(squares)
        else:
            low = work.type(1 - error) - dots / np.sqrt(squares)
        is_far: Bools = (low > self._limit) & (squares < most)
        if self._metric == "cosine":
            is_far &= squares > least
        return is_far

    def _limits(self) -> NDArray[Any] | None:
        """What estimates of rows that may be among the best do not exceed: ``(queries, 1)``.

        None while any row may be.
        """
        limit = np.array([each.bound for each in self._best])
        if not np.isfinite(limit).any():
            return None
        error = self._bounds.error
        if self._metric == "l2":
            limit *= limit
        limit += np.abs(limit) * error + self._bounds.underflow
        if self._metric == "l2":
            # |x - q|^2 is |x|^2 - 2 x.q + |q|^2, which errs by parts of the lengths' squares.
            limit -= self._lengths**2 * (1 - error)
        # Never rounded down.
        above: NDArray[Any] = np.nextafter(limit.astype(self._bounds.work), np.inf)
        return above[:, None]

    def _dots(self, vectors: Floats) -> Floats:
        """Inner products with what is asked, ``(queries, rows)``."""
        if len(self._asked) <= _FEW:
            each_of_few = [np.vecdot(vectors, each) for each in self._asked]
            return each_of_few[0][None] if len(each_of_few) == 1 else np.stack(each_of_few)
        count, dim = self._asked.shape
        step = max(1, _ONE_THREAD // (count * dim))
        whole = len(vectors) // step * step
        pieces = np.matmul(vectors[:whole].reshape(-1, step, dim), self._asked.T)
        rest = vectors[whole:] @ self._asked.T
        return np.ascontiguousarray(np.concatenate([pieces.reshape(-1, count), rest]).T)

    def _distances(self, vectors: NDArray[Any], at: int) -> NDArray[np.float64]:
        """Distances of rows to one query: of each row by itself, in an order that is one."""
        rows, query = vectors.astype(np.float64), self._queries[at]
        # Sums over the last axis of what lies back to back are pairwise, row by row. BLAS's are
        # not the same on every processor, and change with the number of rows.
        found: NDArray[np.float64]
        if self._metric == "l2":
            found = np.sqrt(np.square(rows - query).sum(axis=1))
            return found
        dots = (rows * query).sum(axis=1)
        if self._metric == "dot":
            found = 0.0 - dots
            return found
        lengths = np.sqrt(np.square(rows).sum(axis=1)) * sqrt(float(np.square(query).sum()))
        # Rounding takes the cosine of equal directions above 1.
        found = np.clip(1.0 - dots / lengths, 0.0, 2.0)
        return found
