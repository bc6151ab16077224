"""A receiver of webhooks on this machine, which answers as it is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Receiver:
    """What came to `url`: headers and bodies. `statuses` are the next answers; then 204."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    received: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    came: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def wait(self, count: int = 1) -> None:
        """Wait until so many more came."""
        for _ in range(count):
            assert self.came.acquire(timeout=60), "nothing came"


@contextmanager
def receiver() -> Iterator[Receiver]:
    made = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = made.statuses.pop(0) if made.statuses else 204
            self.send_response(status)
            if 300 <= status < 400:
                self.send_header("Location", made.url)
            self.send_header("Content-Length", "0")
            self.end_headers()
            made.received.append((dict(self.headers), body))
            made.came.release()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.url = f"http://127.0.0.1:{server.server_port}/hook"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
