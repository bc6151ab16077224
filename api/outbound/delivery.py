"""Delivery of webhooks: the queue filled from the log, and emptied with signatures and patience.

Each process of the service has one deliverer, a thread of its own. That each event is queued once
and sent by one of them the database sees to: the place in the log up to which a webhook was queued
moves by compare-and-set in the transaction that queues, and a delivery is taken by moving the time
at which it is due. What a process took and did not finish, as it was killed, is due again then: a
receiver may get an event twice, and tells by the delivery's id.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

import msgspec
from sqlalchemy import delete, insert, select, update

from tensorrepo.api.database import tables
from tensorrepo.api.events.occurrences import events_after
from tensorrepo.api.outbound.client import OutboundClient
from tensorrepo.api.outbound.webhooks import (
    Delivery,
    Webhook,
    Webhooks,
    delivery_of,
    delivery_values,
    event_body,
    new_delivery,
    webhook_of,
)
from tensorrepo.api.repositories.directory import Directory
from tensorrepo.repo.errors import Error

SIGNATURE_HEADER: Final = "X-Tensorrepo-Signature"
# Seconds after which a delivery that failed is tried again: the last time a day after the first.
RETRY_SECONDS: Final = (10, 60, 300, 1800, 7200, 21600, 55430)
KEEP_DAYS: Final = 30
_TAKEN_SECONDS: Final = 120  # longer than any attempt
_BATCH: Final = 32
_BATCH_RECORDS: Final = 256
_SENDERS: Final = 4
_IDLE_SECONDS: Final = 1.0
_DAY_NS: Final = 86400 * 10**9
_LOGGER = logging.getLogger(__name__)


def signature(secret: str, body: bytes, now_seconds: int) -> str:
    """``t=SECONDS,v1=HEX``: HMAC-SHA256 over ``SECONDS.BODY``, so that no old one is replayed."""
    signed = b"%d.%b" % (now_seconds, body)
    return f"t={now_seconds},v1={hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()}"


class Deliverer:
    """Queues and sends. `start` begins a thread; tests call `turn`."""

    def __init__(
        self,
        webhooks: Webhooks,
        directory: Directory,
        outbound: OutboundClient,
        *,
        clock: Callable[[], int] = time.time_ns,
        idle_seconds: float = _IDLE_SECONDS,
    ) -> None:
        self._database, self._directory, self._outbound = webhooks.database, directory, outbound
        self._clock, self._idle_seconds = clock, idle_seconds
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._senders = ThreadPoolExecutor(_SENDERS, "webhook")

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="webhooks", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let what is being sent end; what is queued stays for the next start."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._senders.shutdown()

    def turn(self) -> int:
        """Queue what happened, send what is due; gives how many deliveries were tried."""
        for webhook in self._active():
            self._guarded(f"events for webhook {webhook.id}", partial(self._fill, webhook))
        taken = self._take()
        list(self._senders.map(self._send, taken))
        return len(taken)

    def _run(self) -> None:
        while not self._stop.is_set():
            tried = 0
            try:
                tried = self.turn()
            except Error as error:  # the database does not answer: the next turn may
                _LOGGER.warning("webhooks: %s", error)
            except Exception:  # whatever it is, the next turn is taken: nobody starts this again
                _LOGGER.exception("webhooks")
            if not tried:
                self._stop.wait(self._idle_seconds)

    def _guarded(self, what: str, do: Callable[[], Any]) -> None:
        try:
            do()
        except Error as error:
            _LOGGER.warning("%s: %s", what, error)

    def _active(self) -> list[Webhook]:
        table, known = tables.webhooks, tables.repositories
        asked = (
            select(table)
            .join(known, table.c.repository == known.c.name)
            .where(table.c.is_active, known.c.deleted_ns.is_(None))
        )
        with self._database.read() as connection:
            return [webhook_of(row) for row in connection.execute(asked).mappings()]

    def _fill(self, webhook: Webhook) -> None:
        """Queue events behind the webhook's place in the log, a batch of records at a time."""
        served = self._directory.open(webhook.repository)
        newest = served.view.generation
        at = webhook.generation
        while at < newest and not self._stop.is_set():
            stop = min(newest, at + _BATCH_RECORDS)
            made = [
                new_delivery(
                    webhook.id,
                    event.id,
                    event.type,
                    event_body(webhook.repository, event),
                    self._clock(),
                )
                for _, events in events_after(served.core.log, served.core.log.view_at(at), stop)
                for event in events
                if webhook.wants(event.type)
            ]
            if not self._queue(webhook, at, stop, made):
                return  # another process was first
            at = stop

    def _queue(self, webhook: Webhook, at: int, stop: int, made: list[Delivery]) -> bool:
        table = tables.webhooks
        with self._database.write() as connection:
            moved = connection.execute(
                update(table)
                .where(table.c.id == webhook.id, table.c.generation == at)
                .values(generation=stop)
            )
            if not moved.rowcount:
                return False
            if made:
                values = [delivery_values(one) for one in made]
                connection.execute(insert(tables.webhook_deliveries), values)
        return True

    def _take(self) -> list[tuple[Webhook, Delivery]]:
        """Deliveries that are due, and by now this process's to send."""
        table, hooks, now = tables.webhook_deliveries, tables.webhooks, self._clock()
        due = (table.c.state == "pending", table.c.due_ns <= now)
        asked = select(table).where(*due).order_by(table.c.due_ns).limit(_BATCH)
        with self._database.read() as connection:
            found = [delivery_of(row) for row in connection.execute(asked).mappings()]
            ids = {one.webhook for one in found}
            rows = connection.execute(select(hooks).where(hooks.c.id.in_(ids))) if ids else None
            known = {row["id"]: webhook_of(row) for row in rows.mappings()} if rows else {}
        return [
            (known[one.webhook], one)
            for one in found
            if one.webhook in known and self._claim(one, now)
        ]

    def _claim(self, one: Delivery, now: int) -> bool:
        table = tables.webhook_deliveries
        with self._database.write() as connection:
            taken = connection.execute(
                update(table)
                .where(table.c.id == one.id, table.c.due_ns == one.due_ns)
                .where(table.c.state == "pending")
                .values(due_ns=now + _TAKEN_SECONDS * 10**9)
            )
        return bool(taken.rowcount)

    def _send(self, taken: tuple[Webhook, Delivery]) -> None:
        webhook, one = taken
        body = msgspec.json.encode({"delivery": one.id, **one.body})
        headers = {
            "Content-Type": "application/json",
            "X-Tensorrepo-Event": one.type,
            "X-Tensorrepo-Delivery": one.id,
            SIGNATURE_HEADER: signature(webhook.secret, body, self._clock() // 10**9),
        }
        status, error = None, ""
        try:
            answer = self._outbound.request("POST", webhook.url, headers=headers, content=body)
            status = answer.status
        except Error as failure:
            error = str(failure)[:1000]
        self._guarded(f"delivery {one.id}", partial(self._note, one, status, error))

    def _note(self, one: Delivery, status: int | None, error: str) -> None:
        """Write down what became of an attempt, and when the next one is due."""
        table, now = tables.webhook_deliveries, self._clock()
        is_delivered = status is not None and 200 <= status < 300
        is_last = one.attempts >= len(RETRY_SECONDS)
        state = "delivered" if is_delivered else "failed" if is_last else "pending"
        wait = RETRY_SECONDS[min(one.attempts, len(RETRY_SECONDS) - 1)]
        with self._database.write() as connection:
            connection.execute(
                update(table)
                .where(table.c.id == one.id)
                .values(
                    state=state,
                    attempts=one.attempts + 1,
                    status=status,
                    error=error,
                    tried_ns=now,
                    due_ns=now + wait * 10**9,
                )
            )
            old = now - KEEP_DAYS * _DAY_NS
            gone = (table.c.webhook == one.webhook, table.c.created_ns < old)
            connection.execute(delete(table).where(*gone, table.c.state != "pending"))
