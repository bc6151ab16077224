"""Typed decoding of msgpack, JSON and plain values, from any thread.

msgspec prepares what it knows of a type when something is decoded as that type first. Of two
threads that do it at once, one may find the other's work half done, and the process dies. So types
are prepared here one at a time, before anything is decoded.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any, Final, TypeVar

import msgspec

from tensorrepo.repo.ids import Buffer

T = TypeVar("T")

_PREPARING: Final = Lock()
_MSGPACK: Final[dict[Any, msgspec.msgpack.Decoder[Any]]] = {}
_JSON: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}


def from_msgpack(data: Buffer, kind: type[T]) -> T:
    """What msgpack holds. Raises msgspec.DecodeError, also for what is no `kind`."""
    value: T = _decoded(_of_msgpack(kind).decode, data)
    return value


def from_json(data: Buffer | str, kind: type[T]) -> T:
    """What JSON holds. Raises msgspec.DecodeError, also for what is no `kind`."""
    decoder = _JSON.get(kind)
    if decoder is None:
        with _PREPARING:
            decoder = _JSON.setdefault(kind, msgspec.json.Decoder(kind))
    value: T = _decoded(decoder.decode, data)
    return value


def _decoded(decode: Callable[[Any], T], data: Buffer | str) -> T:
    try:
        return decode(data)
    except UnicodeDecodeError as error:  # msgspec has no error of its own for it, nor for depth
        raise msgspec.DecodeError(f"a text is not UTF-8: {error}") from error
    except RecursionError as error:
        raise msgspec.DecodeError(f"it nests too deep: {error}") from error


def from_plain(value: Any, kind: type[T]) -> T:
    """Plain values as `kind`. Raises msgspec.ValidationError."""
    _of_msgpack(kind)
    return msgspec.convert(value, kind)


def _of_msgpack(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    decoder = _MSGPACK.get(kind)
    if decoder is None:
        with _PREPARING:
            decoder = _MSGPACK.setdefault(kind, msgspec.msgpack.Decoder(kind))
    return decoder
