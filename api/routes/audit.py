"""The audit log, as JSON lines, for whoever runs the service."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Annotated, Final

from fastapi import Query, Request
from fastapi.responses import StreamingResponse

from tensorrepo.api.audit.middleware import note
from tensorrepo.api.audit.writer import AuditLog
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.requests import CallerOf, ServiceOf

router: Final = deferred_router(prefix="/api/v1/audit", tags=["service"])
MEDIA_TYPE: Final = "application/x-ndjson"


@router.get(
    "",
    summary="The audit log",
    response_class=StreamingResponse,
    responses={200: {"content": {MEDIA_TYPE: {}}, "description": "An event a line."}},
)
def get_audit(
    request: Request,
    service: ServiceOf,
    caller: CallerOf,
    after: Annotated[
        int, Query(ge=0, le=1 << 62, description="Behind this block; 0: from the beginning.")
    ] = 0,
    blocks: Annotated[
        int | None, Query(ge=1, le=1 << 31, description="So many blocks, each of a second.")
    ] = None,
) -> StreamingResponse:
    """Events in their order, each with the block that it stands in, and that one's hash.

    `tensorrepo audit verify FILE` follows the chain of what was saved.
    """
    caller.require_operator()
    note(request, "download", f"audit log after block {after}")
    service.audit.flush()
    return StreamingResponse(_lines(service.audit, after, blocks), media_type=MEDIA_TYPE)


def _lines(audit: AuditLog, after: int, blocks: int | None) -> Iterator[bytes]:
    for block in islice(audit.blocks(after), blocks):
        yield "".join(f"{line}\n" for line in block.lines()).encode()
