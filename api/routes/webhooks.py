"""Webhooks of a repository: for its admins."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import Path, Response
from pydantic import BaseModel, Field

from tensorrepo.api.deferred_routes import deferred_router
from tensorrepo.api.outbound.webhooks import EVERY, Delivery, Webhook
from tensorrepo.api.requests import AccessOf, ServiceOf
from tensorrepo.api.routes.pagination import (
    Cursor,
    Limit,
    ListPage,
    decode_cursor,
    encode_cursor,
    keyed_page,
)

router: Final = deferred_router(
    prefix="/api/v1/repositories/{repository:repository}/-/webhooks", tags=["webhooks"]
)

EventTypes = Annotated[
    list[Annotated[str, Field(pattern=r"^([a-z]+(\.[a-z]+)?\*?|[a-z]+\.\*|\*)$", max_length=100)]],
    Field(
        min_length=1,
        max_length=50,
        description="Types of events, or beginnings of types with `*`.",
        examples=[["branch.*", "version.registered"]],
    ),
]
Url = Annotated[str, Field(max_length=2048, examples=["https://example.org/hook"])]
WebhookId = Annotated[str, Path(pattern=r"^[0-9a-f]{16}$")]
DeliveryId = Annotated[str, Path(pattern=r"^[0-9a-f]{24}$")]


class NewWebhook(BaseModel):
    """Whom to tell of what."""

    url: Url
    events: EventTypes = [EVERY]
    secret: Annotated[str, Field(min_length=16, max_length=200)] | None = Field(
        default=None, description="What deliveries are signed with; none: the service makes one."
    )


class WebhookChange(BaseModel):
    """What is to change; null leaves it."""

    url: Url | None = None
    events: EventTypes | None = None
    active: bool | None = None


class WebhookInfo(BaseModel):
    """A webhook."""

    id: str
    url: str
    events: list[str]
    active: bool
    created_by: str
    created_ns: int
    secret: str | None = Field(default=None, description="Told once, when the webhook is made.")

    @classmethod
    def of(cls, one: Webhook, *, with_secret: bool = False) -> WebhookInfo:
        return cls(
            id=one.id,
            url=one.url,
            events=list(one.events),
            active=one.is_active,
            created_by=one.created_by,
            created_ns=one.created_ns,
            secret=one.secret if with_secret else None,
        )


class DeliveryInfo(BaseModel):
    """One event for one receiver, and what became of it."""

    id: str
    event: str = Field(description="Id of the event; empty for a ping.")
    type: str
    state: str = Field(examples=["pending", "delivered", "failed"])
    attempts: int
    created_ns: int
    due_ns: int | None = Field(description="When it is tried again.")
    tried_ns: int | None
    status: int | None = Field(description="What the receiver answered last.")
    error: str
    body: dict[str, Any]

    @classmethod
    def of(cls, one: Delivery) -> DeliveryInfo:
        return cls(
            id=one.id,
            event=one.event,
            type=one.type,
            state=one.state,
            attempts=one.attempts,
            created_ns=one.created_ns,
            due_ns=one.due_ns if one.state == "pending" else None,
            tried_ns=one.tried_ns,
            status=one.status,
            error=one.error,
            body=dict(one.body),
        )


@router.get("", summary="Webhooks")
def list_webhooks(
    access: AccessOf, service: ServiceOf, cursor: Cursor = None, limit: Limit = 100
) -> ListPage[WebhookInfo]:
    """The oldest first."""
    every = service.webhooks.listed(access)
    keyed = ((f"{one.created_ns:020d}/{one.id}", WebhookInfo.of(one)) for one in every)
    items, following = keyed_page(keyed, cursor, limit)
    return ListPage(items=items, next=following)


@router.post("", status_code=201, summary="Add a webhook")
def add_webhook(
    access: AccessOf, service: ServiceOf, new: NewWebhook, response: Response
) -> WebhookInfo:
    """Its secret is in this answer alone."""
    response.headers["Cache-Control"] = "no-store"
    made = service.webhooks.add(access, new.url, events=new.events, secret=new.secret)
    return WebhookInfo.of(made, with_secret=True)


@router.get("/{webhook}", summary="One webhook")
def get_webhook(access: AccessOf, service: ServiceOf, webhook: WebhookId) -> WebhookInfo:
    """Without its secret."""
    return WebhookInfo.of(service.webhooks.find(access, webhook))


@router.patch("/{webhook}", summary="Change a webhook")
def change_webhook(
    access: AccessOf, service: ServiceOf, webhook: WebhookId, change: WebhookChange
) -> WebhookInfo:
    """One that becomes active is told of what happens from then on."""
    changed = service.webhooks.change(
        access, webhook, url=change.url, events=change.events, is_active=change.active
    )
    return WebhookInfo.of(changed)


@router.delete("/{webhook}", status_code=204, summary="Remove a webhook")
def remove_webhook(access: AccessOf, service: ServiceOf, webhook: WebhookId) -> None:
    """Its deliveries go, too."""
    service.webhooks.remove(access, webhook)


@router.post("/{webhook}/ping", status_code=202, summary="Send a ping")
def ping_webhook(access: AccessOf, service: ServiceOf, webhook: WebhookId) -> DeliveryInfo:
    """To see whether it arrives."""
    return DeliveryInfo.of(service.webhooks.ping(access, webhook))


@router.get("/{webhook}/deliveries", summary="What was delivered")
def list_deliveries(
    access: AccessOf,
    service: ServiceOf,
    webhook: WebhookId,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> ListPage[DeliveryInfo]:
    """The newest first; what is over is kept for 30 days."""
    before = decode_cursor(cursor)
    found = service.webhooks.deliveries(access, webhook, before=before, limit=limit + 1)
    more = len(found) > limit
    items = [DeliveryInfo.of(one) for _, one in found[:limit]]
    return ListPage(items=items, next=encode_cursor(found[limit - 1][0]) if more else None)


@router.post(
    "/{webhook}/deliveries/{delivery}/redeliver", status_code=202, summary="Deliver once more"
)
def redeliver(
    access: AccessOf, service: ServiceOf, webhook: WebhookId, delivery: DeliveryId
) -> DeliveryInfo:
    """As a delivery of its own."""
    return DeliveryInfo.of(service.webhooks.redeliver(access, webhook, delivery))
