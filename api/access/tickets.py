"""Tickets: secrets that are good once and not for long, with what they stand for."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import delete, insert, select

from tensorrepo.api.access.tokens import token_hash
from tensorrepo.api.database import tables
from tensorrepo.api.database.connection import Database

_SECOND_NS: Final = 10**9


class Tickets:
    """Tickets of a service. Thread-safe; taken once among all its processes."""

    def __init__(self, database: Database, *, clock: Callable[[], int] = time.time_ns) -> None:
        self._database, self._clock = database, clock

    def make(self, purpose: str, data: dict[str, str], *, seconds: int) -> str:
        """A new ticket, told this once."""
        ticket, now = secrets.token_urlsafe(32), self._clock()
        table = tables.tickets
        with self._database.write() as connection:
            connection.execute(delete(table).where(table.c.expires_ns <= now))
            connection.execute(
                insert(table).values(
                    hash=token_hash(ticket),
                    purpose=purpose,
                    data=data,
                    expires_ns=now + seconds * _SECOND_NS,
                )
            )
        return ticket

    def take(self, purpose: str, ticket: str) -> dict[str, str] | None:
        """What a ticket stands for, which is worthless from now on; None: it is none."""
        table, hashed = tables.tickets, token_hash(ticket)
        is_it = (table.c.hash == hashed) & (table.c.purpose == purpose)
        with self._database.write() as connection:
            row = connection.execute(select(table).where(is_it)).mappings().first()
            taken = connection.execute(delete(table).where(is_it))
        if row is None or not taken.rowcount or row["expires_ns"] <= self._clock():
            return None
        data: dict[str, Any] = row["data"]
        return data
