"""Is a value that somebody gave JSON, so that it may stand in a manifest?"""

from __future__ import annotations

from typing import Final

from tensorrepo.repo.errors import InvalidInputError

MAX_JSON_NESTING: Final = 64


def check_json(value: object, where: str, depth: int = 0) -> None:
    """Whether `value` is JSON (numbers may also be NaN and infinite).

    Raises:
        InvalidInputError: it is not; says where.
    """
    if depth > MAX_JSON_NESTING:
        raise InvalidInputError(f"{where:.200}: nested deeper than {MAX_JSON_NESTING}")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidInputError(f"{where:.200}: key {key!r:.40} is not text")
            check_json(item, f"{where}.{key}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            check_json(item, f"{where}.{index}", depth + 1)
    elif type(value) is int and not -(1 << 63) <= value < 1 << 64:
        bits = value.bit_length()
        raise InvalidInputError(f"{where:.200}: an integer of {bits} bits, at most 64 are kept")
    elif value is not None and not isinstance(value, (bool, int, float, str)):
        raise InvalidInputError(f"{where:.200}: {type(value).__name__} is not JSON")
