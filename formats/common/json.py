"""JSON of others: plain values of what callers give, and values of foreign files."""

from __future__ import annotations

from enum import Enum
from typing import Any, TypeVar

import msgspec
import numpy as np

from tensorrepo.formats.common.damage import damage
from tensorrepo.repo.typed_decoding import from_json

T = TypeVar("T")


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


def decode_json(where: object, text: bytes, kind: type[T], fault: str = "cannot be read") -> T:
    """A foreign file's JSON as a value of that type. Raises InvalidInputError."""
    try:
        return from_json(text, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as problem:
        raise damage(where, f"{fault}: {problem}") from problem
