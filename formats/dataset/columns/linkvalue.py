"""Where does a value lie that stays where it is?

One value of a `Link` column: a URL, perhaps a byte range of it, and what proves that it is still
the same. Nothing is opened here.

Source:
    docs/spec/dataset.md, section "Column types".
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tensorrepo.repo.errors import InvalidInputError

MAX_URL_BYTES = 1 << 16
_MAX_INT = (1 << 63) - 1
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class LinkValue(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Bytes ``[start, stop)`` of what lies at `url`; `stop` None: to its end.

    Attributes:
        size: bytes of the whole object at `url`, not of the range.
        etag: what its server called that version, as it came, quotes included.
        hash: of the bytes in the range, ``<algorithm>:<hex>``.
    """

    url: str
    start: int = 0
    stop: int | None = None
    size: int | None = None
    etag: str | None = None
    hash: str | None = None

    def __post_init__(self) -> None:
        for name in ("url", "etag", "hash"):
            _check_text(name, getattr(self, name), optional=name != "url")
        for name in ("start", "stop", "size"):
            _check_count(name, getattr(self, name), optional=name != "start")
        if self.stop is not None and self.stop < self.start:
            raise InvalidInputError(f"a link needs start <= stop, got [{self.start}, {self.stop})")


def as_link(given: Any) -> LinkValue:
    """A link given as such, as a mapping of its fields, as its JSON, or as a bare URL.

    Raises:
        InvalidInputError: none of these.
    """
    if isinstance(given, LinkValue):
        return given
    try:
        if isinstance(given, str) and not given.startswith("{"):
            return LinkValue(given)
        if isinstance(given, str):
            return decode_link(given.encode())
        return msgspec.convert(given, LinkValue)
    except (ValueError, InvalidInputError) as error:
        raise InvalidInputError(f"not a link: {error}") from error


def encode_link(link: LinkValue) -> bytes:
    """Compact JSON, fields in the order of the class, those that have their default left out."""
    return msgspec.json.encode(link)


def decode_link(encoded: bytes | memoryview) -> LinkValue:
    """The link that `encode_link` wrote.

    Raises:
        ValueError: not the JSON of a link.
    """
    return msgspec.json.decode(encoded, type=LinkValue)


def _check_text(name: str, text: object, *, optional: bool) -> None:
    if text is None and optional:
        return
    if not isinstance(text, str) or not text:
        raise InvalidInputError(f"a link's {name} is text, got {text!r:.80}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"a link's {name} is not valid unicode: {text!r:.80}") from error
    if size > MAX_URL_BYTES or _CONTROL.search(text):
        raise InvalidInputError(
            f"a link's {name} has at most {MAX_URL_BYTES} bytes and no control characters, "
            f"got {text!r:.80}"
        )


def _check_count(name: str, count: object, *, optional: bool) -> None:
    if count is None and optional:
        return
    if type(count) is not int or not 0 <= count <= _MAX_INT:
        raise InvalidInputError(f"a link's {name} is in [0, 2^63), got {count!r:.80}")
