"""Checks of stream options that are more than numbers: lists, names, ranges, padding.

Said as `arguments` says it: the option as the caller wrote it, what was expected, what was found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, get_args

import numpy as np

from tensorrepo.formats.common.arguments import chosen, whole, wrong
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import ColumnLayout
from tensorrepo.repo.errors import InvalidInputError


def numbers(name: str, values: Any) -> tuple[float, ...]:
    """One number above 0 for each of some things, in their order."""
    return tuple(_above_zero(name, each) for each in _listed(name, values))


def whole_numbers(name: str, values: Any) -> tuple[int, ...]:
    """One whole number, at least 1, for each of some things, in their order."""
    return tuple(whole(f"each number of {name}", each, 1) for each in _listed(name, values))


def _listed(name: str, values: Any) -> Iterable[Any]:
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise wrong(name, "a list of numbers, one for each source,", values)
    return values


def _above_zero(name: str, value: Any) -> float:
    number = value.item() if isinstance(value, np.generic) else value
    good = isinstance(number, int | float) and not isinstance(number, bool)
    if not good or not math.isfinite(number) or number <= 0:
        raise wrong(f"each number of {name}", "above 0 and finite", value)
    return float(number)


def one_of(kind: Any) -> Callable[[str, Any], Any]:
    """Check for one of the values of a `Literal`."""
    return partial(chosen, among=get_args(kind))


def function(name: str, value: Any) -> Any:
    """Something that can be called, or None."""
    if value is not None and not callable(value):
        raise wrong(name, "a function", value)
    return value


def column_names(name: str, value: Any) -> tuple[str, ...]:
    """Names of columns, of which there is at least one."""
    if isinstance(value, str):
        raise InvalidInputError(f"{name} is a list of names: give {name}=[{value!r}]")
    names = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(each, str) for each in names):
        raise wrong(name, "a list of names", value)
    if not names:
        raise InvalidInputError(f"{name} is a list of at least one name; None means all columns")
    return names


def range_of(name: str, value: Any, most: float = math.inf) -> None:
    """Two numbers above 0, the least and the most."""
    try:
        low, high = (float(each) for each in value)
    except (TypeError, ValueError):
        low, high = 0.0, 0.0
    if not 0 < low <= high <= most or not math.isfinite(high):
        beyond = f" and at most {most:g}" if math.isfinite(most) else ""
        raise wrong(name, f"(least, most) of what is above 0{beyond}", value)


def padding(value: Any, columns: Iterable[Column]) -> None:
    """A number that fills up the ragged ones of these columns."""
    number = value.item() if isinstance(value, np.generic) else value
    if not isinstance(number, bool | int | float):
        raise wrong("pad", "a number", value)
    for column in columns:
        element = column.storage.element
        if column.storage.layout is ColumnLayout.RAGGED and not _holds(element, number):
            raise InvalidInputError(
                f"pad={value!r:.80} fills up column {column.name!r}, which is of {element} and "
                "cannot hold it. Use another number, or stream the columns apart."
            )


def _holds(element: np.dtype[Any], value: float) -> bool:
    if element.kind == "b":
        return value in (0, 1)
    if element.kind in "iu":
        limits = np.iinfo(element)
        whole_number = math.isfinite(value) and value == int(value)
        return whole_number and limits.min <= value <= limits.max
    if not math.isfinite(value):
        return True
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.array(value).astype(element).astype(np.float64)))
