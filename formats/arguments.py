"""Is an argument what it has to be, and how is that said if not?

Each check names the argument as the user wrote it, what was expected, and what was found. Whole
numbers of numpy count as such, and come out as Python's; True is no number.
"""

from __future__ import annotations

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


def wrong(name: str, expected: str, value: Any) -> InvalidInputError:
    """The error of an argument that is something else."""
    return InvalidInputError(f"{name} is {expected}, got {value!r:.80}")


def _power(number: int) -> str:
    exponent = number.bit_length()
    return f"2^{exponent} - 1" if number == (1 << exponent) - 1 and exponent > 20 else f"{number:,}"
