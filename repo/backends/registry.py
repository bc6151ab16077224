"""Which backend does a URL mean?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tensorrepo.repo.backends.base import Guarantee
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorrepo.repo.backends.base import Backend

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


def open_backend(
    url: str, options: Mapping[str, str] | None = None, *, environment: Mapping[str, str]
) -> Backend:
    """The store at `url`. Nothing is read yet.

    Args:
        url: a path, ``file://``, ``memory://``.
        options: what this store needs beyond its URL.
        environment: where credentials and endpoints are looked up.

    Raises:
        InvalidInputError: no URL, or options that this store does not know.
        UnsupportedError: no such scheme here.
    """
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else "file"
    if scheme == "file":
        return _open_local(url if match is None else unquote(urlsplit(url).path), options or {})
    if scheme == "memory":
        return MemoryBackend(url)
    raise InvalidInputError(f"{url!r}: unknown scheme")


def _open_local(path: str, options: Mapping[str, str]) -> LocalBackend:
    force = options.get("force") == "true"
    return LocalBackend(Path(path), guarantee=Guarantee.ATOMIC if force else None)
