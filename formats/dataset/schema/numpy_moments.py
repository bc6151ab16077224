"""Moments and durations of numpy (datetime64, timedelta64) in the units that columns have."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from tensorrepo.repo.errors import InvalidInputError

# The unit that a column has for each of numpy's: a month of a duration has no fixed length.
_SECONDS: Final = {"h": "s", "m": "s", "s": "s", "ms": "ms", "us": "us", "ns": "ns"}
_UNITS: Final = {
    "M": {"Y": "D", "M": "D", "W": "D", "D": "D", **_SECONDS},
    "m": {"W": "s", "D": "s", **_SECONDS},
}


def whole_units(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Moments or durations of numpy's in units that a column has: days, or seconds and less.

    Raises:
        InvalidInputError: a unit below the nanosecond, or of no fixed length; or further
            away than that unit counts.
    """
    unit = _UNITS[array.dtype.kind].get(np.datetime_data(array.dtype)[0])
    if unit is None:
        raise InvalidInputError(f"holds an array of {array.dtype}, which no column type holds")
    whole = array.astype(f"{array.dtype.kind}8[{unit}]", copy=False)
    # What numpy cannot multiply it wraps around, and Arrow cuts days to 32 bits.
    back = whole if unit != "D" else whole.astype(np.int64).astype(np.int32).astype(whole.dtype)
    far = (back.astype(array.dtype, copy=False) != array) & ~np.isnat(array)
    if far.any():
        raise InvalidInputError(
            f"holds {array[far][0]} as {array.dtype}, further away than a column of "
            f"{whole.dtype} counts"
        )
    return whole
