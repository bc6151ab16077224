"""Canonical msgpack: equal values have equal bytes, and only those are accepted.

As msgpack with the members of every map sorted and every number in its shortest form. Whatever
does not encode to the same bytes again is refused, so there is one encoding of each value.

Source:
    docs/spec/model.md, section "Canonical msgpack".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, TypeVar

import msgspec

from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.typed_decoding import from_msgpack

T = TypeVar("T", bound=msgspec.Struct)
VERSION = 2
_ENCODER = msgspec.msgpack.Encoder(order="sorted")
_BROKEN = (msgspec.MsgspecError, UnicodeError, RecursionError, OverflowError)


class _Head(msgspec.Struct):
    version: int


def encode_canonical(value: msgspec.Struct, what: str) -> bytes:
    """The bytes of `value`.

    Raises:
        InvalidInputError: it holds what cannot be stored: an integer above 64 bits, half a
            surrogate pair, nesting without end.
    """
    try:
        return _ENCODER.encode(value)
    except (*_BROKEN, TypeError) as error:
        raise InvalidInputError(f"{what}: {error}") from error


def decode_canonical(
    payload: Buffer,
    kind: type[T],
    what: str,
    check: Callable[[T], None],
    *,
    version: int = VERSION,
) -> T:
    """Parse what `encode_canonical` wrote.

    Args:
        payload: exactly the encoded bytes.
        kind: what they hold.
        what: how messages call it.
        check: raises InvalidInputError when the parts do not fit together.
        version: version of the format that is read.

    Raises:
        UnsupportedError: a newer version of the format.
        CorruptError: anything else that is not its one encoding.
    """
    try:
        found = from_msgpack(payload, _Head).version
        if found != version:
            raise UnsupportedError(
                f"{what}: version {found}, this tensorrepo reads {version}. "
                + ("Update it." if found > version else "Add the model again: it is an old one.")
            )
        value = from_msgpack(payload, kind)
        check(value)
        same = _ENCODER.encode(value) == bytes(payload)
    except (*_BROKEN, InvalidInputError) as error:
        raise CorruptError(f"{what}: not well-formed: {error}") from error
    if not same:
        raise CorruptError(f"{what}: its bytes are not the canonical ones for what they say")
    return value


def check_sorted(what: str, keys: Iterable[Any]) -> None:
    """Whether keys of things called `what` ascend, each there once. Raises InvalidInputError."""
    for before, after in pairwise(keys):
        if before >= after:
            raise InvalidInputError(f"{what} {after!r:.80} is out of order or twice there")
