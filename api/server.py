"""The HTTP server of the service: listening, the first token, and an orderly end.

Graceful: after SIGTERM or Ctrl-C nothing new is taken, and what was begun is finished.
"""

from __future__ import annotations

import gc
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import uvicorn
from fastapi import FastAPI

from tensorrepo.api.access.accounts import Accounts
from tensorrepo.api.limits.protocol import (
    BoundedHttpProtocol,
    allow_descriptors,
    most_connections,
)
from tensorrepo.api.service import Service
from tensorrepo.api.settings import Settings
from tensorrepo.formats.common.damage import refusals
from tensorrepo.repo.errors import InvalidInputError, NotFoundError

FIRST_USER: Final = "admin"
BACKLOG: Final = 2048  # connections that wait to be taken
_ENDS: Final = (signal.SIGINT, signal.SIGTERM)


class _Server(uvicorn.Server):
    """A server for which a signal is the orderly end of its process, and no failure."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let signals end the server; they are not raised again when it has ended."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.signal(one, self.handle_exit) for one in _ENDS}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End event streams before what is under way is waited for: they would never end."""
        service = getattr(getattr(self.config.app, "state", None), "service", None)
        if service is not None:
            service.events.close()
            service.live_events.close()
        await super().shutdown(sockets)


def freeze_what_stays(app: FastAPI) -> None:
    """Take what was loaded from the garbage collector, once all of it is; for a thread of its own.

    It has some 200,000 objects to walk else, now and then, for 0.1 to 0.2 s in which nobody is
    answered. For a process that does nothing but serve.
    """
    app.state.is_prepared.wait()
    gc.freeze()


def first_token(accounts: Accounts) -> str | None:
    """A token of the first user, who runs the service; None where there are users already."""
    if accounts.has_users():
        return None
    accounts.add_user(FIRST_USER, is_operator=True)
    return accounts.add_token(FIRST_USER, "made at the first start")


def first_code(service: Service) -> str | None:
    """A code that signs the first user in once; None where that user runs the service no longer.

    Whoever starts the service can read its database: the code gives them nothing that they lack.
    """
    try:
        user = service.people.user(FIRST_USER)
    except NotFoundError:
        return None
    able = user.is_operator and not user.is_disabled
    return service.sign_in.make_code(FIRST_USER) if able else None


def check_listening(settings: Settings) -> None:
    """Raises InvalidInputError where tokens would pass a network that anybody may read."""
    if (settings.tls_certificate is None) != (settings.tls_key is None):
        raise InvalidInputError("TLS needs both, --tls-certificate and --tls-key")
    is_safe = settings.tls_certificate is not None or settings.behind_proxy or settings.insecure
    if not (is_safe or _is_loopback(settings.host)):
        raise InvalidInputError(
            f"{settings.host} is reached by others, and without TLS tokens would pass in plain "
            "text. Give --tls-certificate and --tls-key, or put a proxy with TLS in front and say "
            "--behind-proxy; --insecure goes on without."
        )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_readable(file: Path | None) -> None:
    """See that a file of TLS can be read: what loads it does not say which one cannot."""
    if file is not None:
        with refusals(file, "file of TLS"), file.open("rb"):
            pass


def make_server(app: FastAPI, settings: Settings) -> uvicorn.Server:
    """A server of one process, which does not listen yet."""
    check_listening(settings)
    for file in (settings.tls_certificate, settings.tls_key):
        _check_readable(file)
    return _Server(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            http=BoundedHttpProtocol,
            proxy_headers=False,  # `Forwarding` does it, prefixes included
            ssl_certfile=settings.tls_certificate,
            ssl_keyfile=settings.tls_key,
            limit_concurrency=most_connections(settings.max_connections),
            timeout_graceful_shutdown=settings.shutdown_seconds,
            server_header=False,
            log_config=None,
            access_log=False,
        )
    )


def listening_socket(settings: Settings) -> socket.socket:
    """A socket that listens where the settings say.

    Raises:
        InvalidInputError: another program has the port, or the address is none of this machine.
    """
    try:
        addresses = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)
        family, _, _, _, address = addresses[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        why = error.strerror or str(error)
        raise InvalidInputError(
            f"cannot listen at {settings.host} port {settings.port}: {why}. Another server may "
            "run there: end it, or give another port by --port (0 takes any that is free)."
        ) from error


def run(app: FastAPI, settings: Settings, announce: Callable[[str], None]) -> None:
    """Serve until this process is told to end; `announce` gets the URL as soon as it answers."""
    allow_descriptors(settings.max_connections)
    server = make_server(app, settings)
    listening = listening_socket(settings)

    def tell() -> None:
        while not server.started and not server.should_exit:
            time.sleep(0.01)
        if server.started:
            announce(url_of(server, settings))

    freezer = threading.Thread(target=freeze_what_stays, args=(app,), name="freeze", daemon=True)
    freezer.start()
    teller = threading.Thread(target=tell, name="announce", daemon=True)
    teller.start()
    server.run(sockets=[listening])
    server.should_exit = True
    teller.join()


def url_of(server: uvicorn.Server, settings: Settings) -> str:
    """Where a started server listens."""
    return address_of(settings, server.servers[0].sockets[0].getsockname()[1])


def address_of(settings: Settings, port: int) -> str:
    """URL of a service that listens on that port."""
    if settings.public_url is not None:
        return settings.public_url
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "http" if settings.tls_certificate is None else "https"
    return f"{scheme}://{host}:{port}{settings.path_prefix}"
