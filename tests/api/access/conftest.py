"""Parts of a service that need no HTTP, on a database of their own and a clock that tests turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tensorrepo.api.access.accounts import Accounts
from tensorrepo.api.access.callers import KnownCallers
from tensorrepo.api.access.passwords import Passwords
from tensorrepo.api.access.sessions import Sessions
from tensorrepo.api.access.tickets import Tickets
from tensorrepo.api.database.connection import Database

SECOND = 10**9


@dataclass
class Clock:
    """Nanoseconds since some time, turned by hand."""

    now: int = 1_000_000 * SECOND

    def __call__(self) -> int:
        return self.now

    def wait(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)


@dataclass(frozen=True)
class Parts:
    """What the tests of this folder work with: two users, and nothing remembered for a second."""

    clock: Clock
    database: Database
    accounts: Accounts
    passwords: Passwords
    sessions: Sessions
    tickets: Tickets


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Parts]:
    database, clock = Database(f"sqlite:///{tmp_path / 'server.db'}"), Clock()
    callers = KnownCallers(timer=lambda: clock.now / SECOND)
    accounts = Accounts(database, callers, clock=clock)
    accounts.add_user("root", is_operator=True)
    accounts.add_user("ann")
    made = (Passwords(database, callers, clock=clock), Sessions(database, callers, clock=clock))
    yield Parts(clock, database, accounts, *made, Tickets(database, clock=clock))
    database.close()
