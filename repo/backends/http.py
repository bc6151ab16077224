"""How is a repository read that a web server publishes?

Keys are files below the URL. A web server has no listing and no create: what needs either is
refused, and says so.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from tensorrepo.repo.backends.base import Guarantee
from tensorrepo.repo.backends.remote import RemoteReader
from tensorrepo.repo.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tensorrepo.repo.backends.base import StoredKey, Uploads
    from tensorrepo.repo.backends.places import Place
    from tensorrepo.repo.ids import Buffer


class HttpBackend(RemoteReader):
    """Files below an HTTP(S) URL, for reading only."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.guarantee = Guarantee.READ_ONLY

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        self._refuse("create", key, parts)

    def uploads(self) -> Uploads:
        self._refuse("create", "keys")

    def overwrite(self, key: str, parts: Sequence[Buffer]) -> None:
        self._refuse("write", key, parts)

    def delete(self, key: str) -> None:
        self._refuse("delete", key)

    def list(self, prefix: str) -> Iterator[StoredKey]:
        self._refuse("list", prefix)

    def _refuse(self, doing: str, what: str, *_: object) -> NoReturn:
        raise UnsupportedError(
            f"cannot {doing} {what!r} at {self.url}: a web server can only be read, key by key. "
            "Open the repository where it is kept."
        )
