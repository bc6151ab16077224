"""Tokens: each user's own, and those of all for whoever runs the service."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import Path, Query, Request, Response
from pydantic import BaseModel, Field

from tensorrepo.api.access.accounts import StoredToken
from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.api.access.tokens import token_id
from tensorrepo.api.audit.middleware import note
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.requests import CallerOf, ServiceOf
from tensorrepo.api.routes.accounts import GrantInfo
from tensorrepo.api.routes.pagination import Cursor, Limit, ListPage, keyed_page

router: Final = deferred_router(prefix="/api/v1/tokens", tags=["accounts"])


class TokenInfo(BaseModel):
    """What is known of a token, without itself. Times are UTC; null: never."""

    id: str
    user: str
    label: str
    scope: list[GrantInfo] | None = Field(description="null: all that the user may do.")
    created_ns: int
    expires_ns: int | None
    used_ns: int | None = Field(description="The last use, exact to a minute.")
    revoked_ns: int | None

    @classmethod
    def of(cls, token: StoredToken) -> TokenInfo:
        return cls(
            id=token.id,
            user=token.user,
            label=token.label,
            scope=None if token.scope is None else [GrantInfo.of(one) for one in token.scope],
            created_ns=token.created_ns,
            expires_ns=token.expires_ns,
            used_ns=token.used_ns,
            revoked_ns=token.revoked_ns,
        )


class NewToken(BaseModel):
    """What makes a token. It allows no more, and lasts no longer, than what it is made with."""

    label: str = Field(default="", max_length=200, examples=["nightly training"])
    scope: list[GrantInfo] | None = Field(
        default=None, max_length=100, description="null: all that its user may do."
    )
    expires_ns: int | None = Field(
        default=None, ge=1, le=(1 << 63) - 1, description="When it ends, UTC; null: never."
    )
    user: str | None = Field(
        default=None, max_length=100, description="Whose; only who runs the service names another."
    )


class MadeToken(BaseModel):
    """A new token: this answer is the only one that has it."""

    id: str
    token: str


@router.get("", summary="Tokens")
def list_tokens(
    service: ServiceOf,
    caller: CallerOf,
    everybody: Annotated[
        bool, Query(description="Those of all users: for whoever runs the service.")
    ] = False,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> ListPage[TokenInfo]:
    """The caller's own; by user, the oldest first. Revoked and expired ones stay listed."""
    caller.require_known()
    if everybody:
        caller.require_operator()
    else:
        caller.require_unscoped("list tokens")
    found = service.accounts.tokens(None if everybody else caller.name)
    seen = ((f"{one.user} {one.created_ns:020} {one.id}", TokenInfo.of(one)) for one in found)
    items, following = keyed_page(sorted(seen, key=lambda each: each[0]), cursor, limit)
    return ListPage(items=items, next=following)


@router.post("", status_code=201, summary="Make a token")
def create_token(
    request: Request, response: Response, service: ServiceOf, caller: CallerOf, new: NewToken
) -> MadeToken:
    """Its scope must lie inside of what the caller may do; a token made by one ends with it."""
    note(request, "token", "make")
    scope = new.scope
    token = service.accounts.add_token_as(
        caller,
        new.label,
        scope=None
        if scope is None
        else tuple(Grant(one.repository, Action[one.action.upper()], one.refs) for one in scope),
        expires_ns=new.expires_ns,
        user=new.user,
    )
    note(request, "token", f"make {token_id(token)}")
    response.headers["Cache-Control"] = "no-store"
    return MadeToken(id=token_id(token), token=token)


@router.delete("/{token}", status_code=204, summary="Revoke a token")
def revoke_token(
    request: Request,
    service: ServiceOf,
    caller: CallerOf,
    token: Annotated[str, Path(max_length=64, description="Its id, or `self`.")],
) -> Response:
    """The caller's own by its id; whoever runs the service revokes anybody's."""
    caller.require_known()
    wanted = caller.token_id if token == "self" and caller.kind == "token" else token  # noqa: S105
    note(request, "token", f"revoke {wanted}")
    if wanted != caller.token_id:
        caller.require_unscoped("revoke others")
    service.accounts.revoke_id(None if caller.is_operator else caller.name, wanted)
    return Response(status_code=204)
