"""Grants: who may do what with a repository, for its admins; and with many, by patterns."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from fastapi import Query, Request, Response
from pydantic import BaseModel, Field

from tensorrepo.api.access.callers import Caller
from tensorrepo.api.access.grants import EVERY, Action, Grant
from tensorrepo.api.access.people import HeldGrant
from tensorrepo.api.audit.middleware import note
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.requests import AccessOf, CallerOf, ServiceOf
from tensorrepo.api.routes.accounts import GrantInfo
from tensorrepo.api.routes.pagination import Cursor, Limit, ListPage, keyed_page
from tensorrepo.repo.errors import PermissionDenied

router: Final = deferred_router(prefix="/api/v1", tags=["accounts"])
Kind = Literal["user", "group"]
KindOf = Annotated[Kind, Query(description="Whether `holder` is a user or a group.")]
HolderOf = Annotated[str, Query(max_length=100, description="Name of a user or group.")]
RefsOf = Annotated[str, Query(max_length=1024, description="Refs that the grant is about.")]


class HeldGrantInfo(GrantInfo):
    """A grant, and who holds it."""

    kind: Kind = "user"
    holder: str = Field(max_length=100)

    @classmethod
    def of_held(cls, held: HeldGrant) -> HeldGrantInfo:
        one = held.grant
        return cls(
            kind=held.kind,
            holder=held.holder,
            repository=one.repository,
            action=one.action.word,
            refs=one.refs,
        )


class RepositoryGrant(BaseModel):
    """What somebody may do with one repository."""

    kind: Kind = "user"
    holder: str = Field(max_length=100, examples=["ann"])
    action: Literal["read", "write", "admin"]
    refs: str = Field(default=EVERY, max_length=1024, examples=["*", "heads/dev/*"])


@router.get("/repositories/{repository:repository}/-/grants", summary="Grants of a repository")
def list_repository_grants(
    service: ServiceOf, access: AccessOf, cursor: Cursor = None, limit: Limit = 100
) -> ListPage[HeldGrantInfo]:
    """For its admins: all that are about it, those by patterns included."""
    access.require(Action.ADMIN)
    return _page(service.people.held_grants(access.name), cursor, limit)


@router.put("/repositories/{repository:repository}/-/grants", summary="Grant something")
def set_repository_grant(
    request: Request, service: ServiceOf, access: AccessOf, new: RepositoryGrant
) -> HeldGrantInfo:
    """For its admins. What the holder was granted for the same refs is replaced."""
    access.require(Action.ADMIN)
    grant = Grant(access.name, Action[new.action.upper()], new.refs)
    note(request, "grant", _told(new.kind, new.holder, grant))
    service.people.grant(new.kind, new.holder, grant)
    return HeldGrantInfo.of_held(HeldGrant(new.kind, new.holder, grant))


@router.delete(
    "/repositories/{repository:repository}/-/grants", status_code=204, summary="Take a grant back"
)
def remove_repository_grant(
    request: Request,
    service: ServiceOf,
    access: AccessOf,
    holder: HolderOf,
    kind: KindOf = "user",
    refs: RefsOf = EVERY,
) -> Response:
    """For its admins."""
    access.require(Action.ADMIN)
    note(request, "grant", f"none of {refs} of {access.name} to {kind} {holder}")
    service.people.ungrant(kind, holder, access.name, refs)
    return Response(status_code=204)


@router.get("/grants", summary="All grants")
def list_grants(
    service: ServiceOf, caller: CallerOf, cursor: Cursor = None, limit: Limit = 100
) -> ListPage[HeldGrantInfo]:
    """For whoever runs the service."""
    caller.require_operator()
    return _page(service.people.held_grants(), cursor, limit)


@router.put("/grants", summary="Grant something, by a pattern")
def set_grant(
    request: Request, service: ServiceOf, caller: CallerOf, new: HeldGrantInfo
) -> HeldGrantInfo:
    """For who may administer all that the pattern is about: `team/*`, or `*`."""
    grant = Grant(new.repository, Action[new.action.upper()], new.refs)
    _require_admin(caller, new.repository)
    note(request, "grant", _told(new.kind, new.holder, grant))
    service.people.grant(new.kind, new.holder, grant)
    return new


@router.delete("/grants", status_code=204, summary="Take back a grant by a pattern")
def remove_grant(
    request: Request,
    service: ServiceOf,
    caller: CallerOf,
    holder: HolderOf,
    repository: Annotated[str, Query(max_length=200, description="A repository, or a pattern.")],
    kind: KindOf = "user",
    refs: RefsOf = EVERY,
) -> Response:
    """For who may administer all that the pattern is about."""
    _require_admin(caller, repository)
    note(request, "grant", f"none of {refs} of {repository} to {kind} {holder}")
    service.people.ungrant(kind, holder, repository, refs)
    return Response(status_code=204)


def _require_admin(caller: Caller, repository: str) -> None:
    caller.require_known()
    if not caller.may_give(Grant(repository, Action.ADMIN)):
        raise PermissionDenied(
            f"{caller.name} may not administer all of {repository!r:.120}. Ask whoever runs this "
            "service."
        )


def _page(held: list[HeldGrant], cursor: str | None, limit: int) -> ListPage[HeldGrantInfo]:
    keyed = sorted(
        ((f"{one.kind} {one.holder} {one.grant.repository} {one.grant.refs}", one) for one in held),
        key=lambda each: each[0],
    )
    items, following = keyed_page(keyed, cursor, limit)
    return ListPage(items=[HeldGrantInfo.of_held(one) for one in items], next=following)


def _told(kind: str, holder: str, grant: Grant) -> str:
    return f"{grant.action.word} {grant.refs} of {grant.repository} to {kind} {holder}"
