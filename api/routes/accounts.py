"""Users and groups, and who asks: for whoever runs the service, and each user's own."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Request, Response
from pydantic import BaseModel, Field, SecretStr

from tensorrepo.api.access.callers import Caller
from tensorrepo.api.access.grants import Grant
from tensorrepo.api.access.people import Group, User
from tensorrepo.api.audit.middleware import note
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.requests import CallerOf, ServiceOf
from tensorrepo.api.routes.pagination import Cursor, Limit, ListPage, keyed_page
from tensorrepo.api.service import Service
from tensorrepo.repo.errors import UnauthenticatedError

router: Final = deferred_router(prefix="/api/v1", tags=["accounts"])
UserName = Annotated[str, Path(max_length=100, description="Name of a user.")]
GroupName = Annotated[str, Path(max_length=100, description="Name of a group.")]


class GrantInfo(BaseModel):
    """One permission."""

    repository: str = Field(max_length=200, examples=["team/photos", "team/*", "*"])
    action: str = Field(
        pattern="^(read|write|mirror|admin)$",
        description="read, write or admin; each includes the others before it. In scopes of tokens "
        "mirror, too: to push refs that else the service alone sets.",
    )
    refs: str = Field(default="*", max_length=1024, examples=["*", "heads/main", "heads/dev/*"])

    @classmethod
    def of(cls, grant: Grant) -> GrantInfo:
        return cls(repository=grant.repository, action=grant.action.word, refs=grant.refs)


class Me(BaseModel):
    """Who asks, and what they may do."""

    name: str
    email: str
    kind: str = Field(description="How they are known: token or session.")
    is_operator: bool = Field(description="Whether they run this service.")
    groups: list[str]
    grants: list[GrantInfo] = Field(description="What the user may do.")
    scope: list[GrantInfo] | None = Field(
        description="What the token allows of that; null: all of it."
    )
    expires_ns: int | None = Field(description="When the token ends, UTC; null: never.")


class UserInfo(BaseModel):
    """An account."""

    name: str
    email: str
    is_operator: bool
    is_disabled: bool
    has_password: bool
    created_ns: int

    @classmethod
    def of(cls, user: User) -> UserInfo:
        return cls(
            name=user.name,
            email=user.email,
            is_operator=user.is_operator,
            is_disabled=user.is_disabled,
            has_password=user.has_password,
            created_ns=user.created_ns,
        )


class NewUser(BaseModel):
    """What makes an account. It may do nothing yet."""

    name: str = Field(max_length=100, examples=["ann"])
    email: str = Field(default="", max_length=320, examples=["ann@example.org"])
    is_operator: bool = False
    password: SecretStr | None = Field(default=None, description="None: no sign-in by password.")


class UserChange(BaseModel):
    """What is not null is changed."""

    email: str | None = Field(default=None, max_length=320)
    is_operator: bool | None = None
    is_disabled: bool | None = None


class PasswordChange(BaseModel):
    """A new password; whoever sets their own tells the old one."""

    password: SecretStr
    old: SecretStr | None = None


class IdentityLink(BaseModel):
    """Whom the provider of sign-in calls so may sign in as the user."""

    subject: str = Field(min_length=1, max_length=255)


class GroupInfo(BaseModel):
    """Some users who may do the same."""

    name: str = Field(max_length=100, examples=["vision"])
    description: str = Field(default="", max_length=2000)
    members: list[str] = Field(default=[])

    @classmethod
    def of(cls, group: Group) -> GroupInfo:
        return cls(name=group.name, description=group.description, members=list(group.members))


class NewGroup(BaseModel):
    """What makes a group."""

    name: str = Field(max_length=100, examples=["vision"])
    description: str = Field(default="", max_length=2000)


@router.get("/me", summary="Who asks, and what they may do")
def get_me(service: ServiceOf, caller: CallerOf) -> Me:
    """The user of the token or session, their groups and grants, and the token's scope."""
    caller.require_known()
    return Me(
        name=caller.name,
        email=caller.email,
        kind=caller.kind,
        is_operator=caller.is_operator,
        groups=service.people.groups_of(caller.name),
        grants=[GrantInfo.of(one) for one in caller.grants],
        scope=None if caller.scope is None else [GrantInfo.of(one) for one in caller.scope],
        expires_ns=caller.expires_ns,
    )


@router.get("/users", summary="All users")
def list_users(
    service: ServiceOf, caller: CallerOf, cursor: Cursor = None, limit: Limit = 100
) -> ListPage[UserInfo]:
    """For whoever runs the service."""
    caller.require_operator()
    seen = ((one.name, UserInfo.of(one)) for one in service.people.users())
    items, following = keyed_page(seen, cursor, limit)
    return ListPage(items=items, next=following)


@router.post("/users", status_code=201, summary="Make an account")
def create_user(request: Request, service: ServiceOf, caller: CallerOf, new: NewUser) -> UserInfo:
    """For whoever runs the service. The account may do nothing until it is granted something."""
    caller.require_operator()
    note(request, "account", f"make user {new.name}")
    service.people.add_user(new.name, email=new.email, is_operator=new.is_operator)
    if new.password is not None:
        service.sign_in.passwords.set(new.name, new.password.get_secret_value())
    return UserInfo.of(service.people.user(new.name))


@router.get("/users/{user}", summary="One user")
def get_user(service: ServiceOf, caller: CallerOf, user: UserName) -> UserInfo:
    """For that user, and whoever runs the service."""
    _require_self(caller, user)
    return UserInfo.of(service.people.user(user))


@router.patch("/users/{user}", summary="Change an account")
def change_user(
    request: Request, service: ServiceOf, caller: CallerOf, user: UserName, change: UserChange
) -> UserInfo:
    """For whoever runs the service. Who is disabled is signed out, and their tokens stop."""
    caller.require_operator()
    note(request, "account", f"change user {user}")
    values = change.model_dump()
    return UserInfo.of(service.people.change_user(user, **values))


@router.delete("/users/{user}", status_code=204, summary="Remove an account")
def remove_user(request: Request, service: ServiceOf, caller: CallerOf, user: UserName) -> Response:
    """For whoever runs the service. Its name becomes free, so disabling it is the safer way."""
    caller.require_operator()
    note(request, "account", f"remove user {user}")
    service.people.remove_user(user)
    return Response(status_code=204)


@router.put("/users/{user}/password", status_code=204, summary="Set a password")
def set_password(
    request: Request, service: ServiceOf, caller: CallerOf, user: UserName, change: PasswordChange
) -> Response:
    """For that user, who tells the old one, and whoever runs the service."""
    _require_self(caller, user)
    note(request, "account", f"set password of {user}")
    if user == caller.name and service.people.user(user).has_password:
        _require_old(service, caller, change)
    service.sign_in.passwords.set(user, change.password.get_secret_value())
    return Response(status_code=204)


@router.put("/users/{user}/identity", status_code=204, summary="Link a user to the provider")
def link_identity(
    request: Request, service: ServiceOf, caller: CallerOf, user: UserName, link: IdentityLink
) -> Response:
    """For whoever runs the service: who may sign in as this user by OpenID Connect."""
    caller.require_operator()
    note(request, "account", f"link user {user}")
    service.sign_in.require_openid().link(user, link.subject)
    return Response(status_code=204)


@router.delete("/users/{user}/sessions", status_code=204, summary="Sign a user out everywhere")
def end_sessions(
    request: Request, service: ServiceOf, caller: CallerOf, user: UserName
) -> Response:
    """For that user, and whoever runs the service. Tokens stay."""
    _require_self(caller, user)
    note(request, "sign-out", f"all sessions of {user}")
    service.people.user(user)
    service.sessions.end_all(user)
    return Response(status_code=204)


@router.get("/groups", summary="All groups")
def list_groups(
    service: ServiceOf, caller: CallerOf, cursor: Cursor = None, limit: Limit = 100
) -> ListPage[GroupInfo]:
    """For whoever runs the service."""
    caller.require_operator()
    seen = ((one.name, GroupInfo.of(one)) for one in service.people.groups())
    items, following = keyed_page(seen, cursor, limit)
    return ListPage(items=items, next=following)


@router.post("/groups", status_code=201, summary="Make a group")
def create_group(
    request: Request, service: ServiceOf, caller: CallerOf, new: NewGroup
) -> GroupInfo:
    """For whoever runs the service."""
    caller.require_operator()
    note(request, "account", f"make group {new.name}")
    return GroupInfo.of(service.people.add_group(new.name, description=new.description))


@router.get("/groups/{group}", summary="One group")
def get_group(service: ServiceOf, caller: CallerOf, group: GroupName) -> GroupInfo:
    """For whoever runs the service."""
    caller.require_operator()
    return GroupInfo.of(service.people.group(group))


@router.delete("/groups/{group}", status_code=204, summary="Remove a group")
def remove_group(
    request: Request, service: ServiceOf, caller: CallerOf, group: GroupName
) -> Response:
    """For whoever runs the service. Its grants go with it, its members stay."""
    caller.require_operator()
    note(request, "account", f"remove group {group}")
    service.people.remove_group(group)
    return Response(status_code=204)


@router.put("/groups/{group}/members/{user}", summary="Let a user join a group")
def add_member(
    request: Request, service: ServiceOf, caller: CallerOf, group: GroupName, user: UserName
) -> GroupInfo:
    """For whoever runs the service."""
    caller.require_operator()
    note(request, "grant", f"add {user} to group {group}")
    return GroupInfo.of(service.people.set_members(group, add=[user]))


@router.delete("/groups/{group}/members/{user}", summary="Let a user leave a group")
def remove_member(
    request: Request, service: ServiceOf, caller: CallerOf, group: GroupName, user: UserName
) -> GroupInfo:
    """For whoever runs the service."""
    caller.require_operator()
    note(request, "grant", f"take {user} out of group {group}")
    return GroupInfo.of(service.people.set_members(group, remove=[user]))


def _require_self(caller: Caller, user: str) -> None:
    """Raises PermissionDenied unless a caller asks for themselves, or runs the service."""
    caller.require_known()
    if user == caller.name:
        caller.require_unscoped("look after an account")
    else:
        caller.require_operator()


def _require_old(service: Service, caller: Caller, change: PasswordChange) -> None:
    old = "" if change.old is None else change.old.get_secret_value()
    try:
        service.sign_in.passwords.check(caller.name, old, caller.address)
    except UnauthenticatedError as error:
        raise UnauthenticatedError("the old password is wrong") from error
