"""Which backend does a URL mean?"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from tensorrepo.repo.backends.base import Guarantee
from tensorrepo.repo.backends.cloud import CloudBackend
from tensorrepo.repo.backends.fsspec_backend import FsspecBackend
from tensorrepo.repo.backends.http import HttpBackend
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.backends.places import SCHEMES, find_place
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorrepo.repo.backends.base import Backend

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(?:://|::)")
_SLIP = re.compile(rf"(file|memory|{'|'.join(SCHEMES)}):(?!//|:)")  # s3:/bucket is no folder
_FORCE = "force"


def open_backend(
    url: str, options: Mapping[str, str] | None = None, *, environment: Mapping[str, str]
) -> Backend:
    """The store at `url`. Nothing is read yet, so it need not exist.

    Args:
        url: a path, ``file://``, ``memory://``, ``s3://``, ``gs://``, ``az://``, ``abfs://``,
            ``http(s)://``, or whatever fsspec knows.
        options: what the store needs beyond its URL, by obstore's or fsspec's names.
            ``force=true`` trusts a network or unknown file system with several writers.
        environment: where credentials and endpoints are looked up.

    Raises:
        InvalidInputError: no usable URL, or options that this store does not know.
        UnsupportedError: nothing here knows the scheme, or what it needs is not installed.
    """
    if not url.strip() or "\0" in url:
        raise InvalidInputError(
            f"{url!r} is no URL: expected a folder, or such as s3://bucket/name"
        )
    if slip := _SLIP.match(url):
        raise InvalidInputError(f"{url!r}: a URL needs two slashes, as in {slip[1]}://name")
    given = dict(options or {})
    match = _SCHEME.match(url)
    scheme = match[1].lower() if match else "file"
    if scheme == "file" and "::" not in url:
        return _open_local(url, url if match is None else _file_path(url), given)
    if scheme == "memory":
        _refuse_options(url, given)
        return MemoryBackend(url)
    if scheme in SCHEMES:
        place = find_place(url, given, environment)
        return HttpBackend(place) if place.kind == "http" else CloudBackend(place)
    guarantee = Guarantee.ATOMIC if _forced(given) else Guarantee.SINGLE_WRITER
    return FsspecBackend(url, given, guarantee=guarantee)


def _open_local(url: str, path: str, options: dict[str, str]) -> LocalBackend:
    guarantee = Guarantee.ATOMIC if _forced(options) else None
    _refuse_options(url, options)
    if os.path.exists(path) and not os.path.isdir(path):
        raise InvalidInputError(f"{url} is a file; a repository is a folder. Name a folder.")
    return LocalBackend(Path(path), guarantee=guarantee)


def _file_path(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in {"", "localhost"}:
        raise InvalidInputError(
            f"{url}: a file URL has three slashes and names a folder of this machine: "
            f"file:///{parts.netloc}{parts.path}"
        )
    return unquote(parts.path)


def _forced(options: dict[str, str]) -> bool:
    return str(options.pop(_FORCE, "false")).lower() in {"true", "1", "yes"}


def _refuse_options(url: str, options: Mapping[str, str]) -> None:
    if options:
        raise InvalidInputError(f"{url}: unknown storage options {', '.join(sorted(options))}")
