"""Xet as Hugging Face's clients upload by it: a token and a URL, then xorbs and shards to that URL.

What is behind the URL takes the token that came with it, and none of a user: see `authentication`.
Clients ask whether chunks are known, and for ways past the service, before they send: all of that
is not there, and that a chunk is known would tell that somebody has it.

Source:
    The Xet protocol specification of Hugging Face, sections "Authentication" and "CAS API".
"""

from __future__ import annotations

from typing import Any, Final

from fastapi import Request, Response
from starlette.responses import JSONResponse

from tensorrepo.api.audit.middleware import note
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.huggingface.reading_routes import REPOSITORY
from tensorrepo.api.huggingface.repositories import HubOf
from tensorrepo.api.huggingface.urls import base_url
from tensorrepo.api.huggingface.xet_format import MAX_BODY_BYTES
from tensorrepo.api.huggingface.xet_uploads import XetEpoch, begin_xet, open_epoch
from tensorrepo.api.limits.bodies import allow_upload
from tensorrepo.api.requests import ServiceOf
from tensorrepo.api.service import Service
from tensorrepo.api.transfer.uploads import require_writer
from tensorrepo.repo.errors import NotFoundError

router: Final = deferred_router(include_in_schema=False)
_CAS: Final = "/cas/{repository:namespace}/{epoch}"


@router.get(REPOSITORY + "/xet-write-token/{rest:path}")
def get_token(request: Request, hub: HubOf) -> Response:
    """Where to upload, and what proves who does."""
    note(request, None)
    require_writer(hub.access)
    hub.service.spool.expire()
    session = begin_xet(hub.service.spool, hub.access)
    url = f"{base_url(request)}/cas/{hub.name.namespace}/{session.epoch}"
    body = {"casUrl": url, "accessToken": session.token, "exp": session.until}
    headers = {
        "X-Xet-Cas-Url": url,
        "X-Xet-Access-Token": session.token,
        "X-Xet-Token-Expiration": str(session.until),
        "Cache-Control": "no-store",
    }
    return JSONResponse(body, headers=headers)


@router.get(_CAS + "/v1/chunks/{space}/{chunk}")
def find_chunk(request: Request, service: ServiceOf, repository: str, epoch: str) -> Response:
    """Which xorbs have a chunk: none that a client did not send, and those it knows itself."""
    note(request, None)
    _epoch_of(request, service, repository, epoch)
    raise NotFoundError("this service tells of no chunks that somebody has: send them")


@router.post(_CAS + "/v1/xorbs/{space}/{xorb}")
async def put_xorb(
    request: Request, service: ServiceOf, repository: str, epoch: str, xorb: str
) -> dict[str, Any]:
    """Chunks that files will be made of."""
    target = _epoch_of(request, service, repository, epoch)
    note(request, "write", f"upload {xorb:.12}", target.ticket.user)
    allow_upload(request, MAX_BODY_BYTES)
    return {"was_inserted": await target.add_xorb(xorb, request.stream())}


@router.post(_CAS + "/v1/shards")
async def put_shard(
    request: Request, service: ServiceOf, repository: str, epoch: str
) -> dict[str, Any]:
    """Of which chunks files are."""
    target = _epoch_of(request, service, repository, epoch)
    note(request, "write", "upload of files", target.ticket.user)
    allow_upload(request, MAX_BODY_BYTES)
    await target.add_shard(request.stream())
    return {"result": 1}


def _epoch_of(request: Request, service: Service, repository: str, epoch: str) -> XetEpoch:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    shown = token.strip() if kind.lower() == "bearer" else ""
    return open_epoch(service.spool, shown, repository, epoch)
