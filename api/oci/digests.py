"""Digests that clients were told, and a commit that has what each is of, in the service's database.

Whoever pins a digest was told it by this service. So it is found after any number of commits, where
a search behind refs ends after some. A place is where to look first, never who may look.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from typing import Final

from sqlalchemy import delete, insert, select
from sqlalchemy.exc import IntegrityError

from tensorrepo.api.database import tables
from tensorrepo.api.database.connection import Database
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import StorageError
from tensorrepo.repo.ids import Digest

_LOGGER = logging.getLogger(__name__)
_AT_ONCE: Final = 500  # rows of one statement


@dataclass(frozen=True, slots=True)
class ToldDigests:
    """Digests of one model of a repository."""

    database: Database
    repository: str
    model: str

    def place(self, digest: str) -> Digest | None:
        """A commit that had it; None: nobody was told of it. It may be gone."""
        table = tables.oci_digests
        asked = select(table.c.commit).where(
            table.c.repository == self.repository, table.c.key == self._key(digest)
        )
        try:
            with self.database.read() as connection:
                found = connection.execute(asked).scalar()
        except StorageError:  # it is looked for behind the refs
            return None
        return None if found is None else Digest(str(found))

    def remember(self, digests: Iterable[str], commit: Digest) -> None:
        """Note that a commit has what these are of. What cannot be noted is not."""
        table, keys = tables.oci_digests, [self._key(digest) for digest in digests]
        told = {"repository": self.repository, "commit": commit}
        try:
            with self.database.write() as connection:
                for some in _batches(keys):
                    mine = table.c.repository == self.repository
                    connection.execute(delete(table).where(mine, table.c.key.in_(some)))
                    connection.execute(insert(table), [{"key": key, **told} for key in some])
        except (IntegrityError, StorageError) as error:  # another process notes the same
            _LOGGER.debug("digests of %s: %s", self.repository, error)

    def _key(self, digest: str) -> str:
        return hashlib.sha256(f"{self.model}\0{digest}".encode()).hexdigest()


def _batches(keys: list[str]) -> Iterable[list[str]]:
    return (keys[at : at + _AT_ONCE] for at in range(0, len(keys), _AT_ONCE))
