"""A web server on this machine, as people have them: whole files, no ranges, no listing of ours."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


@dataclass
class WebServer:
    """Files of `root` at `url`, for whom `login` ("user:password") says, if it is set.

    `cut` names files that end in the middle of what was promised, `endless` those without a length.
    `requests` are the paths that were asked for, with their queries.
    """

    root: Path
    url: str = ""
    login: str = ""
    cut: set[str] = field(default_factory=set)
    endless: set[str] = field(default_factory=set)
    requests: list[str] = field(default_factory=list)

    def with_login(self, login: str) -> str:
        """The URL, with a user and password in it."""
        return self.url.replace("//", f"//{login}@")


@contextmanager
def web_server(root: Path) -> Iterator[WebServer]:
    served = WebServer(root)

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(root))  # type: ignore[arg-type]

        def do_GET(self) -> None:
            served.requests.append(self.path)
            name = self.path.partition("?")[0].lstrip("/")
            wanted = f"Basic {base64.b64encode(served.login.encode()).decode()}"
            if served.login and self.headers.get("Authorization") != wanted:
                self.send_error(401)
            elif name in served.cut | served.endless:
                data = (root / name).read_bytes()
                self.send_response(200)
                if name in served.cut:
                    self.send_header("Content-Length", str(2 * len(data)))
                self.end_headers()
                self.wfile.write(data)
                self.close_connection = True
            else:
                super().do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
