"""Repositories, their refs and their commits."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Query
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from tensorrepo.api.access.callers import Caller
from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.api.content import history
from tensorrepo.api.content.history import CommitRecord
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.requests import AccessOf, CallerOf, ServiceOf
from tensorrepo.api.routes.pagination import Cursor, Limit, ListPage, keyed_page
from tensorrepo.api.service import Service

router: Final = deferred_router(prefix="/api/v1/repositories", tags=["repositories"])
removed_router: Final = deferred_router(tags=["repositories"])
RepositoryPath = Annotated[str, Path(description="Name of a repository: `name` or `team/name`.")]


class RepositoryInfo(BaseModel):
    """A repository, as its caller sees it."""

    name: str
    description: str = ""
    id: str | None = Field(default=None, description="Identity of the repository, for ever.")
    may: str | None = Field(default=None, description="read, write or admin.")


class NewRepository(BaseModel):
    """What makes a repository."""

    name: str = Field(max_length=200, examples=["team/photos"])
    description: str = Field(default="", max_length=2000)


class RepositoryChange(BaseModel):
    """What is to change; null leaves it."""

    name: str | None = Field(default=None, max_length=200, examples=["team/pictures"])
    description: str | None = Field(default=None, max_length=2000)


class RemovedInfo(BaseModel):
    """A repository that was deleted."""

    name: str
    until_ns: int = Field(description="Until when it can come back.")


class RefInfo(BaseModel):
    """A ref and the commit that it names."""

    name: str = Field(examples=["heads/main"])
    commit: str


@router.get("", summary="Repositories that the caller may see")
def list_repositories(
    service: ServiceOf, caller: CallerOf, cursor: Cursor = None, limit: Limit = 100
) -> ListPage[RepositoryInfo]:
    """In the order of their names."""
    caller.require_known()
    seen = (
        (one.name, RepositoryInfo(name=one.name, description=one.description, may=level.word))
        for one in service.directory.listed()
        if (level := caller.level(one.name)) is not None
    )
    items, following = keyed_page(seen, cursor, limit)
    return ListPage(items=items, next=following)


@router.post("", status_code=201, summary="Make a repository")
def create_repository(service: ServiceOf, caller: CallerOf, new: NewRepository) -> RepositoryInfo:
    """Takes the right to administer that name."""
    return make_repository(service, caller, new.name, new.description)


def make_repository(
    service: Service, caller: Caller, name: str, description: str = ""
) -> RepositoryInfo:
    """Make one for a caller who may administer the name."""
    caller.require_known()
    service.require_admin(caller, name)
    made = service.directory.create(name, description=description)
    return RepositoryInfo(name=made.name, description=made.description, may="admin")


@removed_router.get("/api/v1/removed-repositories", summary="Repositories that can come back")
def list_removed(
    service: ServiceOf, caller: CallerOf, cursor: Cursor = None, limit: Limit = 100
) -> ListPage[RemovedInfo]:
    """Those whose names the caller may administer."""
    caller.require_known()
    seen = (
        (one.name, RemovedInfo(name=one.name, until_ns=one.until_ns))
        for one in service.directory.removed()
        if caller.may(Action.ADMIN, one.name, None)
    )
    items, following = keyed_page(seen, cursor, limit)
    return ListPage(items=items, next=following)


@router.get("/{repository:repository}", summary="One repository")
async def get_repository(access: AccessOf) -> RepositoryInfo:
    """Its identity, and what the caller may do with it."""
    level = access.caller.level(access.name)
    assert level is not None, "nobody else passes the gate"
    return RepositoryInfo(name=access.name, id=access.core.id, may=level.word)


@router.patch("/{repository:repository}", summary="Describe or rename a repository")
def change_repository(
    access: AccessOf, service: ServiceOf, change: RepositoryChange
) -> RepositoryInfo:
    """For its admins. The old name leads to the new one; grants and tokens go along."""
    access.require(Action.ADMIN)
    name = access.name
    if change.description is not None:
        service.directory.describe(name, change.description)
    if change.name is not None and change.name != name:
        service.require_admin(access.caller, change.name)
        service.directory.rename(name, change.name)
        name = change.name
    found = service.directory.find(name)
    return RepositoryInfo(
        name=found.name, description=found.description, id=access.core.id, may="admin"
    )


@router.delete("/{repository:repository}", status_code=204, summary="Delete a repository")
def delete_repository(access: AccessOf, service: ServiceOf) -> None:
    """For its admins. Nobody sees it from then on; for 14 days it can come back."""
    access.require(Action.ADMIN)
    service.directory.remove(access.name)


@router.post("/{repository:repository}/-/undelete", summary="Bring a repository back")
def undelete_repository(
    service: ServiceOf, caller: CallerOf, repository: RepositoryPath
) -> RepositoryInfo:
    """For who may administer that name, within 14 days."""
    caller.require_known()
    service.require_admin(caller, repository)
    found = service.directory.undelete(repository)
    return RepositoryInfo(name=found.name, description=found.description, may="admin")


@router.get("/{repository:repository}/-/refs", summary="Refs that the caller may read")
async def list_refs(
    access: AccessOf,
    prefix: Annotated[str, Query(max_length=1024, examples=["heads/"])] = "",
    cursor: Cursor = None,
    limit: Limit = 100,
) -> ListPage[RefInfo]:
    """In the order of their names."""
    await fresh(access)
    refs = access.refs()
    seen = (
        (name, RefInfo(name=name, commit=refs[name]))
        for name in sorted(refs)
        if name.startswith(prefix)
    )
    items, following = keyed_page(seen, cursor, limit)
    return ListPage(items=items, next=following)


@router.get("/{repository:repository}/-/commits/{revision:path}", summary="One commit")
def get_commit(access: AccessOf, service: ServiceOf, revision: str) -> CommitRecord:
    """`revision` is a branch, tag, digest, or any of them with `~n` or `^n` behind it."""
    return history.get_commit(service.at(access, revision))


async def fresh(access: RepositoryAccess) -> None:
    """Let the view of the repository be no older than a second, reading on another thread."""
    if access.served.known_view is None:
        await run_in_threadpool(lambda: access.served.view)
