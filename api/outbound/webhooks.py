"""Webhooks: who is told of a repository's events, and the log of what was delivered.

Rows of the service's database, so that all processes share the work and a restart loses none of
it. `delivery` fills the queue from the log and empties it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from sqlalchemy import RowMapping, delete, insert, select, update

from tensorrepo.api.access.gate import RepositoryAccess
from tensorrepo.api.access.grants import Action
from tensorrepo.api.database import tables
from tensorrepo.api.database.connection import Database
from tensorrepo.api.events.occurrences import Event
from tensorrepo.api.outbound.client import OutboundClient
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError

EVERY: Final = "*"
MAX_WEBHOOKS: Final = 50
PING: Final = "ping"


@dataclass(frozen=True, slots=True)
class Webhook:
    """One receiver. `generation` is the log record up to which all was queued for it."""

    id: str
    repository: str
    url: str
    events: tuple[str, ...]
    is_active: bool
    created_by: str
    created_ns: int
    generation: int
    secret: str

    def wants(self, type_: str) -> bool:
        return any(
            type_.startswith(one[:-1]) if one.endswith("*") else type_ == one for one in self.events
        )


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event for one receiver, and what became of it."""

    id: str
    webhook: str
    event: str
    type: str
    body: Mapping[str, Any]
    state: str
    attempts: int
    created_ns: int
    due_ns: int
    tried_ns: int | None
    status: int | None
    error: str


class Webhooks:
    """Webhooks of all repositories. Thread-safe."""

    def __init__(
        self,
        database: Database,
        outbound: OutboundClient,
        *,
        clock: Callable[[], int] = time.time_ns,
    ) -> None:
        self.database, self._outbound, self._clock = database, outbound, clock

    def listed(self, access: RepositoryAccess) -> list[Webhook]:
        """Webhooks of a repository, the oldest first."""
        access.require(Action.ADMIN)
        table = tables.webhooks
        with self.database.read() as connection:
            asked = select(table).where(table.c.repository == access.name)
            rows = connection.execute(asked.order_by(table.c.created_ns, table.c.id)).mappings()
            return [webhook_of(row) for row in rows]

    def find(self, access: RepositoryAccess, webhook: str) -> Webhook:
        """Raises NotFoundError."""
        access.require(Action.ADMIN)
        table = tables.webhooks
        with self.database.read() as connection:
            asked = select(table).where(table.c.id == webhook, table.c.repository == access.name)
            row = connection.execute(asked).mappings().first()
        if row is None:
            raise NotFoundError(f"{access.name} has no webhook {webhook!r:.40}")
        return webhook_of(row)

    def add(
        self,
        access: RepositoryAccess,
        url: str,
        *,
        events: Iterable[str] = (EVERY,),
        secret: str | None = None,
    ) -> Webhook:
        """Tell `url` of what happens from now on.

        Args:
            access: an admin's.
            url: where to.
            events: types of events, or beginnings of types with ``*``.
            secret: what deliveries are signed with; None makes one.

        Raises:
            InvalidInputError, PermissionDenied: the service does not ask such a URL.
        """
        access.require(Action.ADMIN)
        self._outbound.check(url)
        if len(self.listed(access)) >= MAX_WEBHOOKS:
            raise InvalidInputError(f"{access.name} has {MAX_WEBHOOKS} webhooks: remove one first")
        made = Webhook(
            secrets.token_hex(8),
            access.name,
            url,
            tuple(events),
            is_active=True,
            created_by=access.caller.name,
            created_ns=self._clock(),
            generation=access.core.log.refresh().generation,
            secret=secret or f"whs_{secrets.token_urlsafe(32)}",
        )
        with self.database.write() as connection:
            values = {name: getattr(made, name) for name in tables.webhooks.c.keys()}  # noqa: SIM118
            connection.execute(insert(tables.webhooks).values(values | {"events": [*made.events]}))
        return made

    def change(
        self,
        access: RepositoryAccess,
        webhook: str,
        *,
        url: str | None = None,
        events: Iterable[str] | None = None,
        is_active: bool | None = None,
    ) -> Webhook:
        """Change what is not None. One that becomes active is told of what happens from then on."""
        found = self.find(access, webhook)
        changed: dict[str, object] = {}
        if url is not None:
            self._outbound.check(url)
            changed["url"] = url
        if events is not None:
            changed["events"] = [*events]
        if is_active is not None:
            changed["is_active"] = is_active
            if is_active and not found.is_active:
                changed["generation"] = access.core.log.refresh().generation
        if changed:
            table = tables.webhooks
            with self.database.write() as connection:
                connection.execute(update(table).where(table.c.id == webhook).values(changed))
        return self.find(access, webhook)

    def remove(self, access: RepositoryAccess, webhook: str) -> None:
        """Forget a webhook and its deliveries."""
        self.find(access, webhook)
        table, held = tables.webhooks, tables.webhook_deliveries
        with self.database.write() as connection:
            connection.execute(delete(held).where(held.c.webhook == webhook))
            connection.execute(delete(table).where(table.c.id == webhook))

    def deliveries(
        self, access: RepositoryAccess, webhook: str, *, before: str | None, limit: int
    ) -> list[tuple[str, Delivery]]:
        """Deliveries with their keys, the newest first; those behind the key `before`."""
        self.find(access, webhook)
        table = tables.webhook_deliveries
        asked = select(table).where(table.c.webhook == webhook)
        if before is not None:
            when, _, last = before.partition("/")
            if not when.isdigit():
                raise InvalidInputError("this cursor is none of ours: begin without one")
            at = int(when)
            asked = asked.where(
                (table.c.created_ns < at) | ((table.c.created_ns == at) & (table.c.id < last))
            )
        asked = asked.order_by(table.c.created_ns.desc(), table.c.id.desc()).limit(limit)
        with self.database.read() as connection:
            found = [delivery_of(row) for row in connection.execute(asked).mappings()]
        return [(f"{one.created_ns}/{one.id}", one) for one in found]

    def redeliver(self, access: RepositoryAccess, webhook: str, delivery: str) -> Delivery:
        """Send an event once more: a delivery of its own."""
        self.find(access, webhook)
        table = tables.webhook_deliveries
        with self.database.read() as connection:
            asked = select(table).where(table.c.id == delivery, table.c.webhook == webhook)
            row = connection.execute(asked).mappings().first()
        if row is None:
            raise NotFoundError(f"webhook {webhook} has no delivery {delivery!r:.40}")
        old = delivery_of(row)
        return self._queue(webhook, old.event, old.type, old.body)

    def ping(self, access: RepositoryAccess, webhook: str) -> Delivery:
        """Send an event that means nothing, to see whether it arrives."""
        found = self.find(access, webhook)
        body = {"type": PING, "repository": found.repository, "webhook": webhook}
        return self._queue(webhook, "", PING, body)

    def _queue(self, webhook: str, event: str, type_: str, body: Mapping[str, Any]) -> Delivery:
        made = new_delivery(webhook, event, type_, body, self._clock())
        with self.database.write() as connection:
            connection.execute(insert(tables.webhook_deliveries).values(delivery_values(made)))
        return made


def new_delivery(
    webhook: str, event: str, type_: str, body: Mapping[str, Any], now_ns: int
) -> Delivery:
    """One that was not tried yet, due at once."""
    return Delivery(
        secrets.token_hex(12), webhook, event, type_, body, "pending", 0, now_ns, now_ns,
        None, None, "",
    )  # fmt: skip


def event_body(repository: str, event: Event) -> dict[str, Any]:
    """What a receiver gets."""
    return {"repository": repository, **event.to_json()}


def delivery_values(one: Delivery) -> dict[str, Any]:
    return {name: getattr(one, name) for name in Delivery.__slots__}


def webhook_of(row: RowMapping) -> Webhook:
    return Webhook(**{**row, "events": tuple(row["events"])})


def delivery_of(row: RowMapping) -> Delivery:
    return Delivery(**{name: row[name] for name in Delivery.__slots__})
