"""Sampling of rows: what a caller asks for, as a selection with weights.

`rows` and `where` choose rows, `weights` and `balance` say how often they come. Only the columns
that a predicate, a weight or a class needs are read, once, in pieces; what is kept is a bitmap,
weights of 8 bytes a row, or the class of each row in 1 to 4 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.read import StoredDataset, live_rows
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import ColumnLayout
from tensorrepo.formats.dataset.schema.values import ColumnValues, FixedValues
from tensorrepo.formats.dataset.selecting.select_rows import (
    RowBitmap,
    Where,
    choose_rows,
    comparable,
    each_match,
    predicate_of,
    scan,
)
from tensorrepo.formats.dataset.streaming.options import Sampling
from tensorrepo.formats.dataset.streaming.order.items import RowSelection
from tensorrepo.formats.dataset.streaming.order.selection import (
    RowBits,
    Weights,
    balanced_weights,
    bits_of,
    both,
    given_weights,
    spans,
)
from tensorrepo.repo.errors import InvalidInputError

_MOST_CLASSES = 1 << 20  # each is known to Python while classes are counted


def choose(dataset: StoredDataset, sampling: Sampling) -> RowSelection | None:
    """Rows of `dataset` to hand out; None: every row once.

    Where both `rows` and `where` are given, both must name a row. Without `epoch_rows` an epoch
    is as long as weights add up to, and with `balance` as many rows as were chosen.

    Raises:
        InvalidInputError: nothing that names rows, no weights, or both kinds of weights.
        NotFoundError: no such row, row id or column.
    """
    rows, where, epoch_rows = sampling.rows, sampling.where, sampling.epoch_rows
    weights, balance = sampling.weights, sampling.balance
    if isinstance(weights, Mapping):
        balance = _balance(weights, balance)
        weights = None
    _check(weights, balance, epoch_rows)
    chosen, texts = _chosen(dataset, rows, where)
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


def _check(weights: Any, balance: str | None, epoch_rows: int | None) -> None:
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
        return None, [f"all {dataset.rows:,} rows"]
    text = f"{chosen.total:,} of {dataset.rows:,} rows"
    return chosen, [text if where is None else f"{text} where {where!s:.80}"]


def _named_rows(dataset: StoredDataset, rows: Any) -> RowBits:
    if isinstance(rows, str | Mapping | pc.Expression):
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
    predicate = predicate_of(dataset, where)
    if predicate is not None:
        return bits_of(dataset.rows, each_match(dataset, predicate))
    if isinstance(where, RowBitmap):
        return bits_of(dataset.rows, where.numbers())
    return _bits_of_physical(dataset, choose_rows(dataset, where).rows)


def _numbers(rows: range | NDArray[np.bool_]) -> Iterator[Ints]:
    """The numbers of a range, or of what is true in a mask, some at a time."""
    for start, stop in spans(len(rows)):
        if isinstance(rows, range):
            part = rows[start:stop]
            yield np.arange(part.start, part.stop, part.step)
        else:
            yield start + np.flatnonzero(rows[start:stop])


def _bits_of_physical(dataset: StoredDataset, rows: Ints) -> RowBits:
    table = live_rows(dataset)
    return bits_of(dataset.rows, [rows if table is None else table.live(rows)])


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
    storage = column.storage
    if (
        storage.layout is not ColumnLayout.FIXED
        or storage.shape
        or storage.element.kind not in "biuf"
    ):
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
    return weights, f"{len(present):,} classes of {name!r} equally often"


def _classes(
    dataset: StoredDataset, column: Column, chosen: RowBits | None
) -> tuple[NDArray[Any], Ints]:
    """The class of every row, the number beyond the last for rows not chosen; rows of each."""
    storage = column.storage
    scalar = (
        storage.layout is ColumnLayout.FIXED and not storage.shape and storage.element.kind in "biu"
    )
    if not scalar and storage.layout is not ColumnLayout.BINARY:
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
    rows_of_kind = np.bincount(kind, minlength=len(numbers) + 1)[: len(numbers)]
    return kind.astype(np.min_scalar_type(len(numbers))), rows_of_kind


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
