"""Possession of objects: what a caller who may read some refs may build upon.

Whoever names a digest in a commit of his own could read it from then on. So each object of such a
commit was brought by him (in the same message, or before, which a receipt of the service says), or
can be read by him anyway, which a way proved. A receipt is a keyed hash: nothing is remembered.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.database.connection import Database
from tensorrepo.api.database.secret_keys import secret_key
from tensorrepo.api.transfer.offered_objects import Offered
from tensorrepo.api.transfer.ways import Ways
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.ids import Digest

_KEY: Final = "upload-receipts"
_DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class Receipts:
    """Gives and checks receipts, by a key that only the service has."""

    key: bytes

    @classmethod
    def of(cls, database: Database) -> Receipts:
        return cls(secret_key(database, _KEY))

    def give(self, access: RepositoryAccess, digest: Digest) -> str:
        """Says that the caller brought all bytes of an object to a repository."""
        told = f"{access.core.id} {access.caller.name} {digest}"
        return hmac.new(self.key, told.encode(), hashlib.sha256).hexdigest()[:_DIGITS]

    def holds(self, access: RepositoryAccess, digest: Digest, receipt: str) -> bool:
        return hmac.compare_digest(self.give(access, digest).encode(), receipt.encode())


@dataclass(frozen=True, slots=True)
class Possession:
    """What a caller brought with an append, and what may be read by him."""

    access: RepositoryAccess
    offered: Offered
    receipts: Mapping[Digest, str]
    checker: Receipts

    def has(self, digest: Digest) -> bool:
        """Whether the caller may build upon an object."""
        if digest in self.offered:
            return True
        receipt = self.receipts.get(digest)
        if receipt is not None and self.checker.holds(self.access, digest, receipt):
            return True
        return self.access.served.kept(Ways).is_proved(self.access, digest)
