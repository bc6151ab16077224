"""Pages of settings: one's tokens, and the audit log for whoever runs the service."""

from __future__ import annotations

import time
from typing import Annotated, Final

from fastapi import Form, Query
from starlette.responses import Response

from tensorrepo.api.access.accounts import StoredToken
from tensorrepo.api.access.grants import EVERY, Action, Grant
from tensorrepo.api.access.tokens import token_id
from tensorrepo.api.audit.events import AuditEvent
from tensorrepo.api.audit.middleware import note
from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.pages.door import PageOf
from tensorrepo.api.pages.rendering import WebPage
from tensorrepo.repo.errors import Error, InvalidInputError
from tensorrepo.repo.typed_decoding import from_json

router: Final = deferred_router(prefix="/settings", include_in_schema=False)
_DAY_NS: Final = 24 * 3600 * 10**9
_LIFETIMES: Final = {
    "7": "a week",
    "30": "30 days",
    "90": "90 days",
    "365": "a year",
    "": "for ever",
}
_BLOCKS: Final = 200  # of the audit log, each of a second
_EVENTS: Final = 500


@router.get("/tokens")
def tokens(page: PageOf) -> Response:
    """The caller's tokens, and the form that makes one."""
    return _tokens(page)


@router.post("/tokens")
def make_token(
    page: PageOf,
    label: Annotated[str, Form(max_length=200)] = "",
    days: Annotated[str, Form(max_length=4)] = "90",
    repository: Annotated[str, Form(max_length=200)] = "",
    action: Annotated[str, Form(max_length=10)] = "read",
    refs: Annotated[str, Form(max_length=1024)] = EVERY,
) -> Response:
    """Make one; this answer is the only one that shows it."""
    note(page.request, "token", "make")
    try:
        made = page.service.accounts.add_token_as(
            page.caller,
            label,
            scope=_scope(repository.strip(), action, refs.strip() or EVERY),
            expires_ns=_end(days),
            user=None,
        )
    except Error as error:
        return _tokens(page, fault=str(error))
    note(page.request, "token", f"make {token_id(made)}")
    return _tokens(page, made=made)


@router.post("/tokens/{token}/revoke")
def revoke_token(page: PageOf, token: str) -> Response:
    """Make one of the caller's tokens worthless."""
    page.caller.require_unscoped("revoke others")
    note(page.request, "token", f"revoke {token:.64}")
    page.service.accounts.revoke_id(page.caller.name, token)
    return page.redirect(page.href("settings/tokens"))


@router.get("/audit")
def audit(
    page: PageOf,
    before: Annotated[int | None, Query(ge=1, le=1 << 62)] = None,
    q: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """What was done and refused, the newest first."""
    page.caller.require_operator()
    log = page.service.audit
    log.flush()
    head = log.head()
    end = head.number + 1 if head is not None else 1
    stop = end if before is None else min(before, end)
    start = max(stop - 1 - _BLOCKS, 0)
    events: list[AuditEvent] = []
    for block in log.blocks(start):
        if block.number >= stop:
            break
        events += [from_json(one, AuditEvent) for one in block.events]
    wanted = q.strip().lower()
    shown = [one for one in reversed(events) if wanted in one.encode().lower()]
    return page.render(
        "audit.html",
        events=shown[:_EVENTS],
        q=q.strip(),
        following=start + 1 if start else None,
        head=head,
    )


def _tokens(page: WebPage, *, made: str = "", fault: str = "") -> Response:
    page.caller.require_unscoped("list tokens")
    found = page.service.accounts.tokens(page.caller.name)
    now = time.time_ns()
    live = [one for one in found if _is_live(one, now)]
    return page.render(
        "tokens.html",
        tokens=sorted(live, key=lambda one: -one.created_ns),
        ended=len(found) - len(live),
        made=made,
        fault=fault,
        lifetimes=_LIFETIMES,
    )


def _is_live(token: StoredToken, now_ns: int) -> bool:
    return token.revoked_ns is None and (token.expires_ns is None or token.expires_ns > now_ns)


def _scope(repository: str, action: str, refs: str) -> tuple[Grant, ...] | None:
    """What a token is for; None: all that its user may do."""
    if not repository:
        return None
    if action.upper() not in Action.__members__:
        raise InvalidInputError(f"a token is for read, write or admin, not for {action!r}")
    return (Grant(repository, Action[action.upper()], refs),)


def _end(days: str) -> int | None:
    if days not in _LIFETIMES:
        raise InvalidInputError(f"a token lasts {', '.join(_LIFETIMES.values())}, not {days!r}")
    return time.time_ns() + int(days) * _DAY_NS if days else None
