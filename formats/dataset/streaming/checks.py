"""Is an option of a stream what it has to be, and how is that said if not?

Each check names the option as the user wrote it, what was expected, and what was found. Whole
numbers of numpy count as such, and come out as Python's; True is no number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from operator import index
from typing import Any

import numpy as np

from tensorrepo.repo.errors import InvalidInputError

MOST = (1 << 62) - 1  # leaves room for sums of two in int64
MOST_WORD = (1 << 64) - 1


def whole(name: str, value: Any, least: int = 0, most: int = MOST) -> int:
    """A whole number in ``[least, most]``.

    Raises:
        InvalidInputError: it is another one, or none.
    """
    try:
        found = None if isinstance(value, bool | np.bool_) else index(value)
    except TypeError:
        found = None
    if found is None or not least <= found <= most:
        beyond = "" if most == MOST else f" and at most {_power(most)}"
        raise wrong(name, f"a whole number, at least {least}{beyond}", value)
    return found


def word(name: str, value: Any) -> int:
    """A whole number of 64 bits, such as a seed."""
    return whole(name, value, 0, MOST_WORD)


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
    found = value.item() if isinstance(value, np.generic) else value
    good = isinstance(found, int | float) and not isinstance(found, bool)
    if not good or not math.isfinite(found) or found <= 0:
        raise wrong(f"each number of {name}", "above 0 and finite", value)
    return float(found)


def truth(name: str, value: Any) -> None:
    """True or False."""
    if not isinstance(value, bool | np.bool_):
        raise wrong(name, "True or False", value)


def function(name: str, value: Any) -> None:
    """Something that can be called, or None."""
    if value is not None and not callable(value):
        raise wrong(name, "a function", value)


def column_names(value: Any) -> tuple[str, ...] | None:
    """Names of columns, of which there is at least one; None for all columns."""
    if value is None:
        return None
    if isinstance(value, str):
        raise InvalidInputError(f"columns is a list of names: give columns=[{value!r}]")
    names = tuple(value) if isinstance(value, Iterable) else (value,)
    if not all(isinstance(each, str) for each in names):
        raise wrong("columns", "a list of names", value)
    if not names:
        raise InvalidInputError("columns is a list of at least one name; None means all columns")
    return names


def range_of(name: str, value: Any, most: float = math.inf) -> None:
    """Two numbers above 0, the least and the most."""
    try:
        low, high = (float(each) for each in value)
    except (TypeError, ValueError):
        low, high = 0.0, 0.0
    if not 0 < low <= high <= most or not math.isfinite(high):
        raise wrong(name, f"(least, most) of what is above 0{_up_to(most)}", value)


def _up_to(most: float) -> str:
    return f" and at most {most:g}" if math.isfinite(most) else ""


def padding(value: Any, columns: Iterable[tuple[str, np.dtype[Any]]]) -> None:
    """A number that fills up ragged columns of these names and element types."""
    found = value.item() if isinstance(value, np.generic) else value
    if not isinstance(found, bool | int | float):
        raise wrong("pad", "a number", value)
    for name, element in columns:
        if not _holds(element, found):
            raise InvalidInputError(
                f"pad={value!r:.80} fills up column {name!r}, which is of {element} and cannot "
                "hold it. Use another number, or stream the columns apart."
            )


def _holds(element: np.dtype[Any], value: float) -> bool:
    if element.kind == "b":
        return value in (0, 1)
    if element.kind in "iu":
        known = np.iinfo(element)
        whole_number = math.isfinite(value) and value == int(value)
        return whole_number and known.min <= value <= known.max
    if not math.isfinite(value):
        return True
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.array(value).astype(element).astype(np.float64)))


def wrong(name: str, expected: str, value: Any) -> InvalidInputError:
    """The error of an option that is something else."""
    return InvalidInputError(f"{name} is {expected}, got {value!r:.80}")


def _power(number: int) -> str:
    exponent = number.bit_length()
    return f"2^{exponent} - 1" if number == (1 << exponent) - 1 and exponent > 20 else f"{number:,}"
