"""A served repository as a remote one: objects up, and the append.

Source:
    docs/spec/service.md.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Annotated, Any, Final

import msgspec
from fastapi import Path, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.housekeeping import UPLOADS
from tensorrepo.api.limits.bodies import allow_upload
from tensorrepo.api.requests import AccessOf, ServiceOf
from tensorrepo.api.service import Service
from tensorrepo.api.transfer.appending import appender_of
from tensorrepo.api.transfer.client_entries import encode_entries
from tensorrepo.api.transfer.direct_uploads import DirectUpload
from tensorrepo.api.transfer.judging import Appending, LandedEntries, appending_of, as_it_is
from tensorrepo.api.transfer.offered_objects import check_objects
from tensorrepo.api.transfer.possession import Receipts
from tensorrepo.api.transfer.quotas import CountedRoom, require_room
from tensorrepo.api.transfer.uploads import PartialUpload, require_writer, store_objects
from tensorrepo.repo.backends.service_format import (
    MAX_MESSAGE_BYTES,
    MEDIA_TYPE,
    Landed,
    decode_message,
)
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, TooLargeError
from tensorrepo.repo.ids import Digest

router: Final = deferred_router(tags=["remote repositories"])
_BASE: Final = "/api/v1/repositories/{repository:repository}/-"
_MESSAGE: Final[dict[str, Any]] = {
    "requestBody": {"required": True, "content": {MEDIA_TYPE: {"schema": {"format": "binary"}}}}
}
DigestPath = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="Name of an object.")]
MOST_OBJECT_BYTES: Final = 1 << 48
APPEND_PATH: Final = _BASE + "/append"
_SMALL_BYTES: Final = 256 << 10  # of a message that the appender checks by the way


class StoredObjects(BaseModel):
    """Objects that are durable now; nothing leads to them yet."""

    objects: int
    receipts: dict[str, str] = Field(description="Of each, for callers who may read some refs.")


class UploadState(BaseModel):
    """How far an upload came."""

    received: int = Field(description="Bytes; go on behind them.")
    stored: bool = Field(description="Whether the object is there, and need not be sent.")
    receipt: str | None = Field(
        default=None, description="Of an object that is stored, for callers of some refs."
    )


class WantedAddress(BaseModel):
    """What is to be put."""

    bytes: int = Field(ge=1, le=MOST_OBJECT_BYTES, description="As it is stored.")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$", description="Of all of these.")


class UploadPlace(BaseModel):
    """An address that is good for these headers alone."""

    name: str = Field(description="What the service is told when it is there.")
    url: str
    headers: dict[str, str]


class PutObject(BaseModel):
    """What was put."""

    bytes: int = Field(ge=1, le=MOST_OBJECT_BYTES)
    name: str = Field(pattern=r"^[0-9a-f]{32}$", description="The one that came with the address.")


class LandedAppend(BaseModel):
    """Where entries landed."""

    generation: int
    entries: list[dict[str, Any]]
    records: list[str]
    objects: dict[str, str] = Field(description="Stored forms by key, in base64, to save reads.")


@router.post(_BASE + "/objects", summary="Store small objects", openapi_extra=_MESSAGE)
async def put_objects(access: AccessOf, service: ServiceOf, request: Request) -> StoredObjects:
    """A message with objects. Each is verified; what no commit needs is collected some day."""
    require_writer(access)
    body = await _body(request)
    return await run_in_threadpool(_store, access, service, body)


def _store(access: RepositoryAccess, service: Service, body: bytearray) -> StoredObjects:
    _, objects = decode_message(body)
    checked = check_objects(objects)
    _require_room(access, service, objects)
    store_objects(access, checked)
    receipts = {digest: _receipt(access, service, digest) for digest, _ in objects}
    told = {str(digest): receipt for digest, receipt in receipts.items() if receipt is not None}
    return StoredObjects(objects=len(objects), receipts=told)


def _require_room(
    access: RepositoryAccess, service: Service, objects: list[tuple[Digest, memoryview]]
) -> None:
    if objects:  # else it may be what makes room
        size = sum(data.nbytes for _, data in objects)
        require_room(access, size, service.settings.repository_bytes)


def _receipt(access: RepositoryAccess, service: Service, digest: Digest) -> str | None:
    """What the caller shows when he builds upon an object that he brought, if he must."""
    return None if access.reads_all else Receipts.of(service.database).give(access, digest)


@router.get(_BASE + "/uploads/{digest}", summary="How far an upload came")
def get_upload(
    access: AccessOf,
    service: ServiceOf,
    digest: DigestPath,
    size: Annotated[int, Query(alias="bytes", ge=1, le=MOST_OBJECT_BYTES)],
) -> UploadState:
    """Of the caller's own upload of a large object."""
    require_writer(access)
    upload = PartialUpload(access, Digest(digest), size, service.settings.data / UPLOADS)
    return UploadState(received=upload.received, stored=upload.is_stored)


@router.post(_BASE + "/uploads/{digest}/address", summary="Where a large object may be put")
def make_address(
    access: AccessOf, service: ServiceOf, digest: DigestPath, wanted: WantedAddress
) -> UploadPlace:
    """In the store itself, for 15 minutes. 404 where this store gives no addresses."""
    require_writer(access)
    require_room(access, wanted.bytes, service.settings.repository_bytes)
    upload = _direct(access, service, digest, wanted.bytes)
    found = None
    if service.settings.presigned_bytes is not None:
        found = upload.address(bytes.fromhex(wanted.sha256))
    if found is None:
        raise NotFoundError("the store of this repository gives no addresses: send it in pieces")
    return UploadPlace(name=found.name, url=found.url, headers=found.headers)


@router.post(_BASE + "/uploads/{digest}/incoming", summary="Take in what was put there")
async def adopt_upload(
    access: AccessOf, service: ServiceOf, digest: DigestPath, put: PutObject
) -> UploadState:
    """Verified, and durable, when answered; then it is gone from where it was put."""
    upload = _direct(access, service, digest, put.bytes)
    await upload.adopt(put.name)
    receipt = await run_in_threadpool(_receipt, access, service, Digest(digest))
    return UploadState(received=put.bytes, stored=True, receipt=receipt)


def _direct(access: RepositoryAccess, service: Service, digest: str, size: int) -> DirectUpload:
    upload = PartialUpload(access, Digest(digest), size, service.settings.data / UPLOADS)
    return DirectUpload.of(upload, service.database)


@router.put(_BASE + "/uploads/{digest}/{size}/{offset}", summary="Send a piece of an object")
async def put_piece(
    access: AccessOf,
    service: ServiceOf,
    request: Request,
    digest: DigestPath,
    size: Annotated[int, Path(ge=1, le=MOST_OBJECT_BYTES, description="Bytes of all of it.")],
    offset: Annotated[int, Path(ge=0, le=MOST_OBJECT_BYTES, description="Where this begins.")],
) -> UploadState:
    """The last piece is answered when the object was verified, and is durable."""
    upload = PartialUpload(access, Digest(digest), size, service.settings.data / UPLOADS)
    require_writer(access)
    room = CountedRoom()
    if offset == 0:
        quota = service.settings.repository_bytes
        room = await run_in_threadpool(require_room, access, size, quota)
    try:
        received = await upload.receive(offset, _pieces(request))
    except InvalidInputError:
        if not upload.received:
            await run_in_threadpool(room.give_back)
        raise
    stored = received == size
    receipt = None
    if stored:
        receipt = await run_in_threadpool(_receipt, access, service, upload.digest)
    return UploadState(received=received, stored=stored, receipt=receipt)


async def _pieces(request: Request) -> AsyncIterator[bytes]:
    allow_upload(request, MOST_OBJECT_BYTES)
    async for piece in request.stream():
        if piece:
            yield piece


@router.post(
    APPEND_PATH,
    summary="Append to the log",
    openapi_extra=_MESSAGE,
    response_model=LandedAppend,
)
async def append_entries(access: AccessOf, service: ServiceOf, request: Request) -> Response:
    """A message with the entries of one transaction, and small objects that they need.

    Durable when answered. Sent again, it lands once: the transaction's name says so.
    """
    require_writer(access)
    body = await _body(request)
    check = partial(_appending, access, service, body)
    # A thread of its own costs more than to check what is small. With a quota the store is listed.
    if len(body) > _SMALL_BYTES or service.settings.repository_bytes is not None:
        appending = await run_in_threadpool(check)
        check = partial(as_it_is, appending)
    landed = await appender_of(access.served).append(check)
    return Response(_encoded(landed), media_type="application/json")


def _appending(access: RepositoryAccess, service: Service, body: bytearray) -> Appending:
    head, objects = decode_message(body)
    checked = check_objects(objects)
    _require_room(access, service, objects)
    return appending_of(
        access, head.entries, head.generation, checked, merges=head.merges,
        receipts={Digest(name): receipt for name, receipt in head.receipts.items()},
        checker=Receipts.of(service.database), commit=head.commit,
    )  # fmt: skip


def _encoded(landed: LandedEntries) -> bytes:
    entries = msgspec.Raw(encode_entries(landed.entries))
    records = tuple(record.decode() for record in landed.records)
    return msgspec.json.encode(Landed(landed.generation, entries, records, dict(landed.objects)))


async def _body(request: Request) -> bytearray:
    allow_upload(request, MAX_MESSAGE_BYTES)
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_MESSAGE_BYTES:
            raise TooLargeError(f"a message has at most {MAX_MESSAGE_BYTES:,} bytes: send several")
    return body
