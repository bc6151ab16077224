"""Which keys may a store be asked for, and how long are these parts?"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tensorrepo.repo.errors import InvalidInputError, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tensorrepo.repo.ids import Buffer

MAX_KEY_BYTES = 512
_SEGMENT = r"(?!\.\.?(?:/|\Z))[A-Za-z0-9._-]{1,255}"
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")


def check_key(key: str) -> str:
    """`key` itself when every store can hold it and it names nothing outside the root.

    Raises:
        InvalidInputError: not segments of ``[A-Za-z0-9._-]`` joined by "/", or one is "." or "..".
    """
    if len(key) > MAX_KEY_BYTES or not _KEY.fullmatch(key):
        raise InvalidInputError(
            f"{key!r:.200} is no storage key: segments of A-Z a-z 0-9 . _ - joined by '/', "
            f"none of them '.' or '..', at most {MAX_KEY_BYTES} bytes"
        )
    return key


def check_prefix(prefix: str) -> str:
    """`prefix` itself when it is "" or a key with "/" behind it."""
    if prefix:
        if not prefix.endswith("/"):
            raise InvalidInputError(f"a listing's prefix ends in '/', got {prefix!r:.200}")
        check_key(prefix[:-1])
    return prefix


def byte_views(parts: Sequence[Buffer]) -> list[memoryview]:
    """The parts that hold anything, as flat bytes; nothing is copied."""
    return [view for view in (memoryview(part).cast("B") for part in parts) if view.nbytes]


def check_length(where: str, start: int, stop: int, found_bytes: int) -> None:
    """Refuse an answer that is not exactly bytes ``[start, stop)``.

    Raises:
        StorageError: the value ends before `stop`.
        InvalidInputError: no range at all.
    """
    if not 0 <= start <= stop:
        raise InvalidInputError(f"{where}: a range needs 0 <= start <= stop, got [{start}, {stop})")
    if found_bytes != stop - start:
        raise StorageError(
            f"{where}: asked for bytes [{start}, {stop}), the store gave {found_bytes} "
            f"instead of {stop - start}: the value is cut short. Run `tensorrepo doctor`."
        )
