"""URLs of stores: their schemes, slips of the pen, and folders of this machine.

A folder is opened here, without the clients of remote stores, which take longer to load than all
that opens a local repository.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tensorrepo.repo.backends.base import Guarantee
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.errors import InvalidInputError

# scheme: kind of store
SCHEMES = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gs", "gcs"), "gs"),
    **dict.fromkeys(("az", "azure", "adl", "abfs", "abfss"), "az"),
    **dict.fromkeys(("http", "https"), "http"),
}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)(?:://|::)")
_SLIP = re.compile(rf"(file|memory|{'|'.join(SCHEMES)}):(?!//|:)")  # s3:/bucket is no folder
_FORCE = "force"


def scheme_of(url: str) -> str:
    """The scheme of a store's URL, in small letters; "file" for a path. InvalidInputError: none."""
    if not url.strip() or "\0" in url:
        raise InvalidInputError(
            f"{url!r} is no URL: expected a folder, or such as s3://bucket/name"
        )
    if slip := _SLIP.match(url):
        raise InvalidInputError(f"{url!r}: a URL needs two slashes, as in {slip[1]}://name")
    match = _SCHEME.match(url)
    return match[1].lower() if match else "file"


def open_folder(url: str, options: Mapping[str, str] | None = None) -> LocalBackend | None:
    """The store at `url` where that is a folder of this machine, there or not; else None.

    Raises:
        InvalidInputError: no usable URL, a file, or options that a folder does not know.
    """
    if scheme_of(url) != "file" or "::" in url:
        return None
    given = dict(options or {})
    guarantee = Guarantee.ATOMIC if pop_force(given) else None
    refuse_options(url, given)
    path = _file_path(url) if _SCHEME.match(url) else url
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


def pop_force(options: dict[str, str]) -> bool:
    """Whether options trust a file system with several writers; that one is taken out."""
    return str(options.pop(_FORCE, "false")).lower() in {"true", "1", "yes"}


def refuse_options(url: str, options: Mapping[str, str]) -> None:
    """Raises InvalidInputError where options are left that nobody knows."""
    if options:
        raise InvalidInputError(f"{url}: unknown storage options {', '.join(sorted(options))}")
