"""git-lfs as Hugging Face's clients upload by it: addresses, bytes, and whether they are there.

Source:
    The batch API of git-lfs, and the transfer `multipart` of huggingface_hub.
"""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import quote

import msgspec
from fastapi import Query, Request, Response
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

from tensorrepo.api.audit.middleware import note
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.huggingface.commits import uploads_needed
from tensorrepo.api.huggingface.repositories import HubOf, HubRepository
from tensorrepo.api.huggingface.upload_spool import UploadTicket
from tensorrepo.api.huggingface.urls import base_url
from tensorrepo.api.limits.bodies import allow_upload
from tensorrepo.api.requests import ServiceOf
from tensorrepo.api.transfer.uploads import require_writer
from tensorrepo.repo.errors import Error, InvalidInputError, NotFoundError, UnsupportedError
from tensorrepo.repo.typed_decoding import from_json

router: Final = deferred_router(include_in_schema=False)
_MEDIA_TYPE: Final = "application/vnd.git-lfs+json"
_MODEL: Final = "/{repository:namespace}/{name:namespace}.git"
_DATASET: Final = "/datasets/{repository:namespace}/{name:namespace}.git"
_Ticket = Annotated[str, Query(max_length=4096)]


class LfsObject(BaseModel):
    """A file by its SHA-256."""

    oid: str = Field(max_length=64)
    size: int = Field(ge=0)


class LfsBatch(BaseModel):
    """Files that a client wants to send."""

    operation: str = "upload"
    transfers: list[str] = ["basic"]
    objects: list[LfsObject] = Field(max_length=1000)
    hash_algo: str = "sha256"


class SentPart(msgspec.Struct, rename="camel"):
    """A part that was sent, counted from 1, and the ETag that was answered."""

    part_number: int
    etag: str


class SentParts(msgspec.Struct):
    """All parts of a file."""

    oid: str
    parts: list[SentPart] = []


@router.post(_MODEL + "/info/lfs/objects/batch")
@router.post(_DATASET + "/info/lfs/objects/batch")
def get_addresses(request: Request, hub: HubOf, batch: LfsBatch) -> Response:
    """Where to send files; nothing for those that this caller sent already."""
    note(request, None)
    require_writer(hub.access)
    if batch.operation != "upload" or batch.hash_algo != "sha256":
        raise UnsupportedError(
            f"operation {batch.operation!r:.40} with {batch.hash_algo!r:.40}: this takes uploads "
            "by sha256; files are downloaded from /resolve/"
        )
    hub.service.spool.expire()
    needed = uploads_needed(hub, {one.oid: one.size for one in batch.objects})
    parts = "multipart" in batch.transfers and any(
        hub.service.spool.cuts(one.size) for one in batch.objects
    )
    objects = [
        _object(request, hub, one, parts=parts) if needed[one.oid] else _known(one)
        for one in batch.objects
    ]
    body = {"transfer": "multipart" if parts else "basic", "objects": objects}
    return JSONResponse(body, media_type=_MEDIA_TYPE)


@router.put(_MODEL + "/lfs")
@router.put(_DATASET + "/lfs")
async def put_bytes(
    request: Request, service: ServiceOf, repository: str, ticket: _Ticket = ""
) -> Response:
    """The whole of a file, or a part of it."""
    checked = service.spool.check(ticket, repository, "whole", "part")
    _audit(request, checked)
    most = checked.size_bytes if checked.use == "whole" else checked.part_bytes
    allow_upload(request, most)
    etag = await service.spool.receive(checked, request.stream())
    return Response(headers={"ETag": f'"{etag}"'})


@router.post(_MODEL + "/lfs")
@router.post(_DATASET + "/lfs")
async def complete(
    request: Request, service: ServiceOf, repository: str, ticket: _Ticket = ""
) -> Response:
    """All parts of a file came."""
    checked = service.spool.check(ticket, repository, "complete")
    _audit(request, checked)
    try:
        sent = from_json(await request.body(), SentParts)
    except msgspec.MsgspecError as error:
        raise InvalidInputError(f"expected the file's oid and its parts: {error}") from error
    etags = {one.part_number: one.etag.strip('"') for one in sent.parts}
    await run_in_threadpool(service.spool.complete, checked, sent.oid, etags)
    return JSONResponse({}, media_type=_MEDIA_TYPE)


@router.post(_MODEL + "/info/lfs/verify")
@router.post(_DATASET + "/info/lfs/verify")
def verify(request: Request, hub: HubOf, one: LfsObject) -> dict[str, Any]:
    """Whether a file came, and is what it should be."""
    note(request, None)
    require_writer(hub.access)
    found = hub.service.spool.find(hub.access, one.oid)
    if found is None or found.stat().st_size != one.size:
        raise NotFoundError(f"no file {one.oid:.12} of {one.size:,} bytes came: send it again")
    return {}


def _object(request: Request, hub: HubRepository, one: LfsObject, *, parts: bool) -> dict[str, Any]:
    spool = hub.service.spool
    try:
        tickets = spool.tickets(hub.access, one.oid, one.size, parts=parts and spool.cuts(one.size))
    except Error as error:
        return {**_known(one), "error": {"code": 422, "message": str(error)}}
    folder = "datasets/" if hub.name.space == "datasets" else ""
    above = f"{base_url(request)}/{folder}{hub.id}.git"
    address = f"{above}/lfs?ticket="
    header = {str(number): address + quote(part) for number, part in enumerate(tickets.parts, 1)}
    if tickets.parts:
        header["chunk_size"] = str(tickets.part_bytes)
    upload = {"href": address + quote(tickets.last), "header": header}
    return {
        **_known(one),
        "actions": {"upload": upload, "verify": {"href": f"{above}/info/lfs/verify"}},
    }


def _known(one: LfsObject) -> dict[str, Any]:
    return {"oid": one.oid, "size": one.size}


def _audit(request: Request, ticket: UploadTicket) -> None:
    note(request, "write", f"upload {ticket.sha256:.12}", ticket.user)
