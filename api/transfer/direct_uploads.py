"""Uploads straight to the store: large objects that do not pass the service on their way.

A client gets an address that is good for one new key below ``incoming/``, one length and one
checksum, and for 15 minutes; never for the key of an object: nothing ties a store's checksum to our
digest, and garbage under somebody's key would be taken by the next writer. When the client says
that it is there, the service reads all of it as an upload of that caller, which becomes an object
when its bytes have its digest.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections.abc import AsyncIterator
from typing import Final

from starlette.concurrency import run_in_threadpool

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.database.connection import Database
from tensorrepo.api.database.secret_keys import secret_key
from tensorrepo.api.housekeeping import INCOMING
from tensorrepo.api.transfer.stored_values import SIGNED_SECONDS, RemoteValue
from tensorrepo.api.transfer.uploads import PartialUpload, require_writer
from tensorrepo.repo.backends.base import Backend, SignsRequests
from tensorrepo.repo.backends.service_format import PIECE_BYTES
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError

_KEY: Final = "direct-uploads"
_NAME: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class UploadAddress:
    """Where a client puts an object, with which headers; `name` is what it tells the service."""

    name: str
    url: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class DirectUpload:
    """One object of one caller on its way past the service."""

    upload: PartialUpload
    key: bytes

    @classmethod
    def of(cls, upload: PartialUpload, database: Database) -> DirectUpload:
        return cls(upload, secret_key(database, _KEY))

    def address(self, sha256: bytes) -> UploadAddress | None:
        """Where the object may be put; None: this store gives no such addresses.

        Args:
            sha256: checksum of all of its stored bytes, which the store compares.
        """
        require_writer(self._access)
        backend = self._backend
        if not isinstance(backend, SignsRequests):
            return None
        headers = {
            "Content-Length": str(self.upload.total),
            "x-amz-checksum-sha256": base64.b64encode(sha256).decode(),
        }
        name = secrets.token_hex(16)
        url = backend.signed_url(self._place(name), SIGNED_SECONDS, method="PUT", headers=headers)
        return None if url is None else UploadAddress(name, url, headers)

    async def adopt(self, name: str) -> None:
        """Verify what was put there, and make it an object; it is gone from ``incoming/`` then.

        Raises:
            NotFoundError: this caller was given no such address, or nothing was put there.
            InvalidInputError: the bytes are not that object.
        """
        require_writer(self._access)
        if not _NAME.fullmatch(name):
            raise InvalidInputError("the name of an upload is the one that came with its address")
        place, total = self._place(name), self.upload.total
        size = await run_in_threadpool(self._backend.size, place)
        if size is None:
            raise NotFoundError(f"nothing was put at the address of upload {name:.8}")
        try:
            if size != total:
                raise InvalidInputError(f"{size:,} bytes came, and {total:,} were promised")
            for offset in range(0, total, PIECE_BYTES):
                stop = min(offset + PIECE_BYTES, total)
                await self.upload.receive(offset, self._pieces(place, offset, stop))
        finally:
            await run_in_threadpool(self._backend.delete, place)

    async def _pieces(self, place: str, start: int, stop: int) -> AsyncIterator[bytes]:
        value = RemoteValue(self._backend, place, self.upload.total)
        async for piece in value.pieces(start, stop):
            yield bytes(piece)

    def _place(self, name: str) -> str:
        # Told by a key that only the service has: nobody adopts what another one put there.
        who = self._access.caller.name
        told = f"{self._access.core.id} {who} {self.upload.digest} {self.upload.total} {name}"
        return f"{INCOMING}{hmac.new(self.key, told.encode(), hashlib.sha256).hexdigest()}/{name}"

    @property
    def _access(self) -> RepositoryAccess:
        return self.upload.access

    @property
    def _backend(self) -> Backend:
        return self._access.core.objects.backend
