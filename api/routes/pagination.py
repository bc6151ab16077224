"""Pages of lists: cursors that say where the next page begins."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Final, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field

from tensorrepo.repo.errors import InvalidInputError

ItemT = TypeVar("ItemT")
MAX_ITEMS: Final = 1000
_MOST_DIGITS: Final = 18
_NO_CURSOR: Final = (
    "this cursor is none of ours: take `next` of the page before, or begin without one"
)

Cursor = Annotated[
    str | None, Query(max_length=4096, description="`next` of the page before; none: the first.")
]
Limit = Annotated[int, Query(ge=1, le=MAX_ITEMS, description="Items of a page, at most.")]


class ListPage(BaseModel, Generic[ItemT]):
    """A part of a list. `next` is the cursor of the page that follows; null after the last."""

    items: list[ItemT]
    next: str | None = Field(default=None, description="Cursor of the next page.")


def encode_cursor(key: str) -> str:
    """A cursor behind the item of that key: opaque to clients."""
    return base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")


def decode_cursor(cursor: str | None) -> str | None:
    """The key that a cursor stands behind. Raises InvalidInputError for what is none."""
    if cursor is None:
        return None
    try:
        return base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True).decode()
    except (ValueError, UnicodeDecodeError) as error:
        raise InvalidInputError(_NO_CURSOR) from error


def keyed_page(
    keyed: Iterable[tuple[str, ItemT]], cursor: str | None, limit: int
) -> tuple[list[ItemT], str | None]:
    """A page of items in the order of their keys, and the cursor of the next one.

    `keyed` is in ascending order of keys; what stands up to the cursor is passed over.
    """
    after = decode_cursor(cursor)
    behind = (one for one in keyed if after is None or one[0] > after)
    found = list(islice(behind, limit + 1))
    more = len(found) > limit
    return [item for _, item in found[:limit]], encode_cursor(found[limit - 1][0]) if more else None


def number_behind(cursor: str | None) -> int:
    """The number that a cursor stands behind, 0 without one. Raises InvalidInputError."""
    key = decode_cursor(cursor)
    if key is None:
        return 0
    if not (key.isascii() and key.isdecimal() and len(key) <= _MOST_DIGITS):
        raise InvalidInputError(_NO_CURSOR)
    return int(key)
