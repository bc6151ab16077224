"""A served repository as a remote one: its values, by key.

Source:
    docs/spec/service.md.
"""

from __future__ import annotations

from typing import Annotated, Any, Final
from urllib.parse import quote

from fastapi import Header, Query, Request, Response
from pydantic import BaseModel, Field
from starlette.responses import RedirectResponse

from tensorrepo.api.audit.middleware import note
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.requests import AccessOf, CallerOf, ServiceOf
from tensorrepo.api.routes.byte_ranges import ByteRangeResponse, byte_range
from tensorrepo.api.routes.pagination import (
    Cursor,
    Limit,
    ListPage,
    decode_cursor,
    encode_cursor,
)
from tensorrepo.api.routes.repositories import (
    RepositoryInfo,
    RepositoryPath,
    make_repository,
)
from tensorrepo.api.service import Service
from tensorrepo.api.transfer.addresses import sign_objects
from tensorrepo.api.transfer.reading import identity_of, log_tail, open_key, some_keys
from tensorrepo.api.transfer.stored_values import SIGNED_SECONDS, StoredValue, signed_address
from tensorrepo.api.transfer.ways import open_reached, visible_state
from tensorrepo.repo.backends.base import SignsRequests
from tensorrepo.repo.backends.service_format import (
    ACCESS_HEADER,
    API_HEADER,
    CALLER_HEADER,
    COMPOSES_HEADER,
    DIRECT_HEADER,
    MOST_ADDRESSES,
    parse_way,
)
from tensorrepo.repo.history.composing import MOST_COMPOSED_PATHS
from tensorrepo.repo.log.log_slots import MAX_GENERATION

router: Final = deferred_router(tags=["remote repositories"])
_BASE: Final = "/api/v1/repositories/{repository:repository}/-"
_BYTES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"content": {"application/octet-stream": {}}},
    206: {"description": "Range"},
}
LONGEST_RANGE: Final = 200
STORE_PATH: Final = _BASE + "/store/{key:path}"
RangeHeader = Annotated[str | None, Header(alias="Range", max_length=LONGEST_RANGE)]


class KeyInfo(BaseModel):
    """A value of the store."""

    key: str
    bytes: int
    modified_seconds: float | None = Field(description="By the store's clock.")


class WantedObjects(BaseModel):
    """Objects that are to be read."""

    keys: list[Annotated[str, Field(max_length=520)]] = Field(
        min_length=1,
        max_length=MOST_ADDRESSES,
        description="Below `store/`: `objects/...`, or `reach/` and a way.",
    )


class ObjectAddresses(BaseModel):
    """Where objects may be read."""

    seconds: int = Field(description="How long the addresses are good.")
    addresses: dict[str, str] = Field(description="By key; what has none is asked for here.")


class StateInfo(BaseModel):
    """A state of the log."""

    generation: int
    digest: str
    state: str = Field(description="Canonical JSON, see the specification of the log.")


class LogTailInfo(BaseModel):
    """Records behind one of them."""

    digest: str | None = Field(description="Name of the record that these are behind.")
    records: list[str] | None = Field(description="Null: they are too many, read them by key.")


@router.get("/{repository:repository}/repo.json", summary="What `tensorrepo clone URL` asks first")
async def discover(access: AccessOf, service: ServiceOf, request: Request) -> Response:
    """Identity of the repository; a header says where its API is."""
    prefix = request.scope.get("root_path", "")
    api = f"{prefix}{_BASE.replace('{repository:repository}', access.name)}"
    headers = {API_HEADER: api, ACCESS_HEADER: "all" if access.reads_all else "part"}
    headers[CALLER_HEADER] = quote(access.caller.author, safe=" <>@+")
    if access.reads_all:
        headers[COMPOSES_HEADER] = str(MOST_COMPOSED_PATHS)
    direct = service.settings.presigned_bytes
    if direct is not None and isinstance(access.core.objects.backend, SignsRequests):
        headers[DIRECT_HEADER] = str(direct)
    return Response(identity_of(access), headers=headers, media_type="application/json")


@router.put(
    "/{repository:repository}/repo.json",
    status_code=201,
    summary="What `tensorrepo init URL` asks",
)
def make(service: ServiceOf, caller: CallerOf, repository: RepositoryPath) -> RepositoryInfo:
    """Make a repository of that name. Takes the right to administer it."""
    return make_repository(service, caller, repository)


@router.get(_BASE + "/state", summary="Refs and state of the repository")
def read_state(access: AccessOf) -> StateInfo:
    """As far as the caller may see it: for clients that may not read the log."""
    view, state = visible_state(access)
    return StateInfo(generation=view.generation, digest=view.digest, state=state.decode())


@router.api_route(
    _BASE + "/store/reach/{way:path}",
    methods=["GET", "HEAD"],
    summary="An object, by the way that leads to it",
    response_class=Response,
    responses=_BYTES,
)
def read_reached(
    access: AccessOf, service: ServiceOf, request: Request, way: str, asked: RangeHeader = None
) -> Response:
    """From a commit that a readable ref leads to, by digests each of which links to the next."""
    in_part = asked is not None or request.method == "HEAD"
    value = open_reached(access, parse_way(way), in_part=in_part)
    return answer_value(value, service, request, asked)


@router.api_route(
    STORE_PATH,
    methods=["GET", "HEAD"],
    summary="A stored value",
    response_class=Response,
    responses=_BYTES,
)
def read_key(
    access: AccessOf, service: ServiceOf, request: Request, key: str, asked: RangeHeader = None
) -> Response:
    """As it lies in the store: clients verify it. Takes the right to read all refs."""
    in_part = asked is not None or request.method == "HEAD"
    value = open_key(access, key, in_part=in_part)
    return answer_value(value, service, request, asked)


@router.post(_BASE + "/addresses", summary="Where large objects may be read")
def make_addresses(
    access: AccessOf, service: ServiceOf, request: Request, wanted: WantedObjects
) -> ObjectAddresses:
    """In the store itself, for 15 minutes, by any range. Those that are left out have none."""
    signed = sign_objects(access, wanted.keys, service.settings.presigned_bytes)
    detail = f"by addresses of the store, {signed.size_bytes} bytes" if signed.urls else ""
    base = STORE_PATH.replace("{repository:repository}", access.name)
    paths = (base.replace("{key:path}", key) for key in signed.urls)
    note(request, "download" if signed.urls else None, detail, paths=paths)
    return ObjectAddresses(seconds=SIGNED_SECONDS, addresses=dict(signed.urls))


def answer_value(
    value: StoredValue, service: Service, request: Request, asked: str | None
) -> Response:
    """A stored value, or the part of it that is asked for; or where the store itself gives it."""
    is_range = asked is not None and byte_range(asked, value.size_bytes) is not None
    least = service.settings.presigned_bytes
    signed = signed_address(value, least, asked if is_range else None)
    if signed is not None and request.method == "GET":
        note(request, "download", f"by an address of the store, {value.size_bytes} bytes")
        return RedirectResponse(signed, 307, {"Cache-Control": "no-store"})
    headers = {"Cache-Control": "private", "Content-Disposition": "attachment"}
    return ByteRangeResponse(value, method=request.method, asked=asked, headers=headers)


@router.get(_BASE + "/log", summary="Newest records of the log")
def read_log_tail(
    access: AccessOf,
    after: Annotated[int, Query(ge=0, le=MAX_GENERATION, description="Number of a record.")],
) -> LogTailInfo:
    """Those behind a record that the client has. Takes the right to read all refs."""
    found = log_tail(access, after)
    if found is None:
        return LogTailInfo(digest=None, records=None)
    return LogTailInfo(digest=found[0], records=[record.decode() for record in found[1]])


@router.get(_BASE + "/store", summary="Keys of stored values")
def list_store(
    access: AccessOf,
    prefix: Annotated[str, Query(max_length=512, examples=["objects/ab/"])],
    cursor: Cursor = None,
    limit: Limit = 1000,
) -> ListPage[KeyInfo]:
    """In ascending order, below one folder."""
    found, following = some_keys(access, prefix, decode_cursor(cursor), limit)
    items = [
        KeyInfo(key=one.key, bytes=one.bytes, modified_seconds=one.modified_seconds)
        for one in found
    ]
    return ListPage(items=items, next=None if following is None else encode_cursor(following))
