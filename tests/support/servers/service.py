"""A service on this machine for tests: the real one, over real HTTP, with real tokens."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx

from tensorrepo.api.access.grants import Grant
from tensorrepo.api.app import create_app
from tensorrepo.api.database.connection import Database
from tensorrepo.api.housekeeping import Caches
from tensorrepo.api.server import first_token, make_server, url_of
from tensorrepo.api.service import Service, open_service
from tensorrepo.api.settings import make_settings

START_SECONDS = 30
DATABASE = "server.db"


@dataclass(frozen=True)
class RunningService:
    """A service at `url`, and the token of its administrator."""

    url: str
    token: str
    service: Service

    def client(self, token: str | None = None) -> httpx.Client:
        """A client that sends a token; with "" none, else the administrator's."""
        sent = self.token if token is None else token
        headers = {"Authorization": f"Bearer {sent}"} if sent else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)

    def user(self, name: str, *grants: Grant, scope: tuple[Grant, ...] | None = None) -> str:
        """A token of a new user who has these grants."""
        self.service.accounts.add_user(name)
        for grant in grants:
            self.service.accounts.grant(name, grant)
        return self.service.accounts.add_token(name, "test", scope=scope)

    def browser(self, user: str) -> httpx.Client:
        """A client that is signed in as a user, by the cookie of a session alone."""
        session = self.service.sessions.begin(user, "127.0.0.1")
        cookies = {"tensorrepo_session": session}
        return httpx.Client(base_url=self.url, cookies=cookies, timeout=60, trust_env=False)

    def audited(self) -> list[dict[str, Any]]:
        """The events of the audit log so far, in their order."""
        self.service.audit.flush()
        blocks = self.service.audit.blocks()
        return [json.loads(event) for block in blocks for event in block.events]


def caches_of(service: Service) -> Caches:
    """What a service keeps of rows."""
    assert service.memory.profiles is not None
    return Caches(service.rendered.cache, service.memory.profiles)


@contextmanager
def running_service(
    data: Path,
    *,
    environment: Mapping[str, str] | None = None,
    **given: object,
) -> Iterator[RunningService]:
    """A service with its own folder, listening on loopback until the block ends.

    `environment` is where it finds credentials of stores.
    """
    settings = make_settings(data=data, port=0, **given)
    if settings.database is None and not (data / DATABASE).exists():
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        (data / DATABASE).write_bytes(_empty_database())
    service = open_service(settings, environment or {})
    token = first_token(service.accounts) or service.accounts.add_token("admin", "again")
    server = make_server(create_app(service=service), settings)
    thread = threading.Thread(target=server.run, name="service")
    thread.start()
    try:
        _wait(server)
        here = settings.model_copy(update={"public_url": None})  # the way past any proxy
        yield RunningService(url_of(server, here), token, service)
    finally:
        server.should_exit = True
        thread.join()
        service.close()


@cache
def _empty_database() -> bytes:
    """A database whose revisions were gone through, which takes as long as all else of a start."""
    with TemporaryDirectory() as kept:
        place = Path(kept, DATABASE)
        Database(f"sqlite:///{place}").close()
        return place.read_bytes()


def _wait(server: object) -> None:
    stop_at = time.monotonic() + START_SECONDS
    while not getattr(server, "started"):  # noqa: B009  uvicorn sets it on its own thread
        assert time.monotonic() < stop_at, "the service does not start"
        time.sleep(0.01)
