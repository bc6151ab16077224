"""JSON values: those given by callers, checked for manifests, and those of foreign files."""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, TypeVar

import msgspec
import numpy as np

from tensorrepo.formats.common.damage import damage
from tensorrepo.repo.errors import InvalidInputError

T = TypeVar("T")
MAX_JSON_NESTING: Final = 64


def as_plain(value: Any) -> Any:
    """`value` with Python's own numbers and texts in place of others that say the same in JSON:
    numpy's, those of an enumeration, and those of classes derived from Python's.
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Enum):
        return as_plain(value.value)
    for kind in (str, int, float):
        if isinstance(value, kind) and type(value) not in (kind, bool):
            return kind(value)
    if isinstance(value, dict):
        return {key: as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    return value


def check_json(value: object, where: str, depth: int = 0) -> None:
    """Whether `value` is JSON (numbers may also be NaN and infinite). Raises InvalidInputError."""
    if depth > MAX_JSON_NESTING:
        raise InvalidInputError(f"{where:.200}: nested deeper than {MAX_JSON_NESTING}")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidInputError(f"{where:.200}: key {key!r:.40} is not text")
            check_text(key, where)
            check_json(item, f"{where}.{key}", depth + 1)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            check_json(item, f"{where}.{index}", depth + 1)
    elif type(value) is int and not -(1 << 63) <= value < 1 << 64:
        bits = value.bit_length()
        raise InvalidInputError(f"{where:.200}: an integer of {bits} bits, at most 64 are kept")
    elif isinstance(value, str):
        check_text(value, where)
    elif value is not None and not isinstance(value, (bool, int, float)):
        raise InvalidInputError(f"{where:.200}: {type(value).__name__} is not JSON")


def decode_json(where: object, text: bytes, kind: type[T], fault: str = "cannot be read") -> T:
    """A foreign file's JSON as a value of that type. Raises InvalidInputError."""
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise damage(where, f"{fault}: {problem}") from problem


def check_text(value: str, where: str) -> None:
    """Whether text can be stored as UTF-8. Raises InvalidInputError."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"{where:.200}: {value!r:.80} has half a surrogate pair, so it is no UTF-8: a name of "
            "a file in another encoding? os.fsencode gives its bytes"
        ) from error
