"""How is a value written down so that both databases hold it alike?"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from tensorrepo.query.tables import FINITE, MINUS_INFINITY, NAN, PLUS_INFINITY

# One for all: to make an encoder takes longer than to write what most commits and models say.
_JSON: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def as_json(value: object) -> str:
    """JSON with sorted names and no white space; NaN and infinities as JavaScript writes them."""
    return _JSON.encode(value)


def number(value: float) -> tuple[float | None, str]:
    """(value, kind) of a number that may be none: see `tables`."""
    real = float(value)
    if math.isnan(real):
        return None, NAN
    if math.isinf(real):
        return None, PLUS_INFINITY if real > 0 else MINUS_INFINITY
    return real, FINITE


def bounded(value: Any) -> float | None:
    """`value` as a real number; None where it is none, or infinite."""
    return None if value is None else number(value)[0]
