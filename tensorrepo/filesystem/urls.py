"""URLs of files in repositories, as fsspec takes them.

    tensorrepo://host/team/photos@main/datasets/pets.parquet      through a service
    tensorrepo:///data/store@v1/files/notes.txt                   a folder of this machine
    tensorrepo://@main/datasets/pets.parquet::s3://bucket/team    a repository at any URL

A commit stands behind ``@``: a branch, a tag or a digest, whose ``/`` is written ``%2F``. With
``@`` alone, or in the last form without it, it is ``main``.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Final
from urllib.parse import unquote

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

PROTOCOL: Final = "tensorrepo"
DEFAULT_REF: Final = "main"
_SCHEME: Final = f"{PROTOCOL}://"
_PORT: Final = re.compile(r":\d{1,5}$")


@dataclass(frozen=True, slots=True)
class FileUrl:
    """What a URL names.

    Attributes:
        repository: URL of the repository; None: it is told elsewhere.
        ref: which commit; None: it is told elsewhere, or `DEFAULT_REF`.
        path: path of the file in the commit, ``""`` for all of them.
    """

    repository: str | None
    ref: str | None
    path: str


def parse_url(url: str) -> FileUrl:
    """What `url` names; without the scheme it is a path alone.

    Raises:
        InvalidInputError: it has a place, and no ``@`` behind it.
    """
    if not url.startswith(_SCHEME):
        return _in_commit(url)
    place, at, rest = url.removeprefix(_SCHEME).partition("@")
    if not place:
        return _in_commit(f"@{rest}" if at else "")
    if not at:
        if not place.startswith("/") and "." not in place.partition("/")[0].partition(":")[0]:
            # `tensorrepo://datasets/pets.parquet::s3://bucket/team`: the place is chained.
            return _in_commit(place)
        raise InvalidInputError(
            f"{url!r:.300}: where the repository ends is not told. Write @ and a branch, tag or "
            "digest behind it: tensorrepo://host/team/photos@main/datasets/pets.parquet"
        )
    ref, _, path = rest.partition("/")
    return FileUrl(_repository(place.rstrip("/")), unquote(ref) or DEFAULT_REF, path.strip("/"))


def _in_commit(text: str) -> FileUrl:
    """``@REF/path``, or a path alone."""
    if not text.startswith("@"):
        return FileUrl(None, None, text.strip("/"))
    ref, _, path = text[1:].partition("/")
    return FileUrl(None, unquote(ref) or DEFAULT_REF, path.strip("/"))


def _repository(place: str) -> str:
    """A folder, or the URL of a service: by HTTPS, but on this machine."""
    if place.startswith("/"):
        return place
    host = _PORT.sub("", place.partition("/")[0]).strip("[]")
    return f"{'http' if _is_this_machine(host) else 'https'}://{place}"


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
