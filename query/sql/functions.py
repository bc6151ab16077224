"""SQL functions: l2, dot, cosine, tensor_shape and element of tensors, split_share of keys.

``l2``, ``dot`` and ``cosine`` of two tensors of as many elements each, over all of their elements,
whatever their shape; ``tensor_shape(t)``; and ``element(t, i, j, ...)``, which counts from 0 as
Python does, where ``t[i + 1][j + 1]`` is SQL's way to say it.

``split_share(key, seed)`` is a number in ``[0, 1)``, even over keys and seeds: by MD5 of both as
text, so that it is the same for ever and everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.dataset.schema.arrow_forms import is_list
from tensorrepo.repo.errors import InvalidInputError

MOST_INDEXES = 6
SPLIT_SHARE = "split_share"
NAMES = frozenset({"cosine", "dot", "element", "l2", SPLIT_SHARE, "tensor_shape"})
# 53 bits, which a double holds: the share is below 1, whatever the key.
_SPLIT_SHARE = """CREATE TEMP MACRO split_share(key, seed) AS
(md5_number_upper(concat(CAST(seed AS VARCHAR), ':', CAST(key AS VARCHAR))) >> 11)
/ 9007199254740992.0::DOUBLE"""


def add_function(connection: Any, name: str) -> None:
    """Make one of `NAMES` known to a connection of DuckDB."""
    if name in _MEASURES:
        _add(connection, name, partial(_measured, name, _MEASURES[name]), "DOUBLE")
    elif name == "tensor_shape":
        _add(connection, name, tensor_shapes, "BIGINT[]")
    elif name == SPLIT_SHARE:
        connection.execute(_SPLIT_SHARE)
    else:
        _add_element(connection)


def _add_element(connection: Any) -> None:
    forms = []
    for count in range(1, MOST_INDEXES + 1):
        indexes = [f"i{at}" for at in range(count)]
        forms.append(
            f"(t, {', '.join(indexes)}) AS t{''.join(f'[{each} + 1]' for each in indexes)}"
        )
    connection.execute(f"CREATE TEMP MACRO element {', '.join(forms)}")


def _add(connection: Any, name: str, function: Callable[..., pa.Array], returns: str) -> None:
    # DuckDB evaluates the annotations of what it is given, and finds none on a lambda.
    connection.create_function(
        name,
        lambda *given: function(*given),  # noqa: PLW0108
        None,
        returns,
        type="arrow",
        null_handling="special",
    )


def tensor_shapes(tensors: pa.ChunkedArray) -> pa.Array:
    """The shape of every tensor; null where it is null."""
    array = _one(tensors)
    valid = array.is_valid()
    kept = array.filter(valid)
    if pa.types.is_struct(array.type):
        shapes: Any = _rows(kept.field("shape"))
    else:
        dims = _dims(kept)
        shapes = np.stack(dims, axis=1) if dims else np.zeros((len(kept), 0))
    lists = [each.tolist() for each in shapes.astype(np.int64)]
    return _spread(pa.array(lists, pa.list_(pa.int64())), valid)


def _dims(tensors: pa.Array) -> list[NDArray[np.int64]]:
    """Every dimension of all tensors, none of which is null."""
    dims: list[NDArray[np.int64]] = []
    owner = np.arange(len(tensors))  # the row that each list of this depth stands in
    while is_list(tensors.type) or pa.types.is_fixed_size_list(tensors.type):
        if not is_list(tensors.type):
            dims.append(np.full(len(dims[0]) if dims else len(tensors), tensors.type.list_size))
            if _has_lists(tensors.type):
                owner = np.repeat(owner, tensors.type.list_size)
            tensors = tensors.flatten()
            continue
        lengths = pc.fill_null(pc.list_value_length(tensors), 0)
        found = lengths.to_numpy(zero_copy_only=False)
        dim = np.zeros(len(dims[0]) if dims else len(tensors), np.int64)
        dim[owner] = found
        if not np.array_equal(dim[owner], found):
            raise InvalidInputError("tensor_shape takes tensors, got lists of different lengths")
        dims.append(dim)
        owner, tensors = np.repeat(owner, found), tensors.flatten()
    return dims


def _has_lists(kind: pa.DataType) -> bool:
    """Whether there are lists of any length in lists of one."""
    while pa.types.is_fixed_size_list(kind):
        kind = kind.value_type
    return is_list(kind)


def _measured(name: str, measure: Callable[[_Pairs], NDArray[Any]], one: Any, two: Any) -> pa.Array:
    left, right = _one(one), _one(two)
    valid = pc.and_(left.is_valid(), right.is_valid())
    pairs = _Pairs(name, left.filter(valid), right.filter(valid))
    return _spread(pa.array(measure(pairs), pa.float64()), valid)


class _Pairs:
    """Two tensors in every row, of as many elements."""

    def __init__(self, name: str, one: pa.Array, two: pa.Array) -> None:
        self.one, rows = _elements(name, one)
        self.two, others = _elements(name, two)
        if self.one.ndim != self.two.ndim:
            self.one, rows = _flat(self.one, rows)
            self.two, others = _flat(self.two, others)
        self._count = len(one)
        self._rows = rows
        if self.one.shape != self.two.shape or not np.array_equal(rows, others):
            raise InvalidInputError(
                f"{name} takes two tensors of as many elements, got {one.type} and {two.type} "
                "that differ in some row"
            )

    def sums(self, numbers: NDArray[Any]) -> NDArray[Any]:
        """Of the elements of each row."""
        if numbers.ndim > 1:
            sums: NDArray[Any] = numbers.sum(axis=1)
            return sums
        found: NDArray[Any] = np.bincount(self._rows, numbers, self._count)
        return found


def _elements(name: str, tensors: pa.Array) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """All elements: ``(rows, n)`` where rows are of one shape; else flat, with the row of each."""
    array = tensors.field("data") if pa.types.is_struct(tensors.type) else tensors
    if not (pa.types.is_fixed_size_list(array.type) or is_list(array.type)):
        raise InvalidInputError(f"{name} takes tensors and lists of numbers, got {array.type}")
    rows, is_fixed = np.arange(len(array)), True
    while pa.types.is_fixed_size_list(array.type) or is_list(array.type):
        if is_list(array.type):
            rows = np.repeat(rows, pc.list_value_length(array).to_numpy(zero_copy_only=False))
            is_fixed = False
        elif not is_fixed:
            rows = np.repeat(rows, array.type.list_size)
        array = array.flatten()
    numbers = array.cast(pa.float64()).to_numpy(zero_copy_only=False)
    if is_fixed:
        return numbers.reshape(len(tensors), -1 if len(tensors) else 0), rows
    return numbers, rows


def _flat(numbers: NDArray[Any], rows: NDArray[np.int64]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Rows of one shape as other rows are: flat, with the row of each element."""
    if numbers.ndim == 1:
        return numbers, rows
    return numbers.reshape(-1), np.repeat(rows, numbers.shape[1])


def _l2(pairs: _Pairs) -> NDArray[Any]:
    found: NDArray[Any] = np.sqrt(pairs.sums((pairs.one - pairs.two) ** 2))
    return found


def _dot(pairs: _Pairs) -> NDArray[Any]:
    return pairs.sums(pairs.one * pairs.two)


def _cosine(pairs: _Pairs) -> NDArray[Any]:
    norms = np.sqrt(pairs.sums(pairs.one**2) * pairs.sums(pairs.two**2))
    with np.errstate(invalid="ignore", divide="ignore"):  # of a tensor of zeros it is NaN
        found: NDArray[Any] = _dot(pairs) / norms
    return found


_MEASURES = {"l2": _l2, "dot": _dot, "cosine": _cosine}


def _one(array: pa.ChunkedArray | pa.Array) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


def _rows(lists: pa.Array) -> NDArray[Any]:
    flat: NDArray[Any] = lists.flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(lists), -1 if len(lists) else 0)


def _spread(found: pa.Array, valid: pa.Array) -> pa.Array:
    """Values of the valid rows, with nulls between them."""
    flags = valid.to_numpy(zero_copy_only=False)
    if flags.all():
        return found
    places = np.cumsum(flags) - 1
    return found.take(pa.array(places, mask=~flags))
