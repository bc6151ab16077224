"""Rules of stored JSON: which values of a caller, or of a file, can be kept and read again."""

from __future__ import annotations

import math
from typing import Final

import msgspec

from tensorrepo.repo.errors import InvalidInputError, UnsupportedError
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.typed_decoding import from_json

MAX_JSON_NESTING: Final = 64
_INT64: Final = range(-(1 << 63), 1 << 64)  # as signed or unsigned
_PLAIN: Final = (bool, int, float, str)


class _Versioned(msgspec.Struct):
    version: int = 0


def refuse_newer(data: Buffer, known: int, where: str) -> None:
    """Look at the member `version` of a file of JSON before anything else of it is read.

    Raises:
        UnsupportedError: it is above `known`. What is no such file is for its parser to refuse.
    """
    try:
        version = from_json(data, _Versioned).version
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return
    if version > known:
        raise UnsupportedError(
            f"{where}: version {version}, this tensorrepo reads {known}. Update."
        )


def check_json(
    value: object, where: str, levels: int = MAX_JSON_NESTING, *, exact: bool = False
) -> None:
    """Whether `value` is JSON (numbers may also be NaN and infinite).

    Args:
        value: null, booleans, numbers of 64 bits, text, lists and dicts.
        where: name of the value in messages.
        levels: how deep lists and dicts may nest, the outermost counted.
        exact: numbers must be finite, and no value of a subclass, so that what is stored means the
            same in every language.

    Raises:
        InvalidInputError: something else.
    """
    _check(value, where, 0, levels, exact=exact)


def _check(value: object, where: str, depth: int, levels: int, *, exact: bool) -> None:
    if isinstance(value, (dict, list, tuple)):
        if depth == levels:
            raise InvalidInputError(f"{where:.200}: nested deeper than {levels}")
        for name in value if isinstance(value, dict) else ():
            _check_name(name, where, exact=exact)
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for name, item in items:
            _check(item, f"{where}.{name}", depth + 1, levels, exact=exact)
    elif isinstance(value, str) and (type(value) is str or not exact):
        check_text(value, where)
    elif type(value) is int and value not in _INT64:
        bits = value.bit_length()
        raise InvalidInputError(f"{where:.200}: an integer of {bits} bits, at most 64 are kept")
    elif exact and type(value) is float and not math.isfinite(value):
        raise InvalidInputError(f"{where:.200}: {value} is a number that JSON does not have")
    elif value is not None and not (
        type(value) in _PLAIN or (isinstance(value, _PLAIN) and not exact)
    ):
        raise InvalidInputError(f"{where:.200}: {type(value).__name__} is not JSON")


def _check_name(name: object, where: str, *, exact: bool) -> None:
    if not isinstance(name, str) or (exact and type(name) is not str):
        raise InvalidInputError(f"{where:.200}: key {name!r:.40} is not text")
    check_text(name, where)


def check_text(value: str, where: str) -> None:
    """Whether text can be stored as UTF-8. Raises InvalidInputError."""
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"{where:.200}: {value!r:.80} has half a surrogate pair, so it is no UTF-8: a name of "
            "a file in another encoding? os.fsencode gives its bytes"
        ) from error
