"""A server that reads a body and answers at once: the most that its kind of server does.

    python benchmarks/api_cases/empty_answers.py

prints one line of JSON (url, token), then serves until it is told to end. The server, the protocol
and the loop are those of the service; nothing of the service stands behind them.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any

import uvicorn

from tensorrepo.api.limits.protocol import BoundedHttpProtocol

ANSWER = b"{" + b" " * 4000 + b"}"
START = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(ANSWER)).encode()),
    ],
}


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """The application."""
    if scope["type"] != "http":
        return
    while (await receive()).get("more_body"):
        pass
    await send(START)
    await send({"type": "http.response.body", "body": ANSWER})


def main() -> None:
    """Serve."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(
            answer, http=BoundedHttpProtocol, lifespan="off", log_config=None, access_log=False
        )
    )
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"

    def tell() -> None:
        while not server.started:
            time.sleep(0.01)
        print(json.dumps({"url": url, "token": "trp_none"}), flush=True)

    threading.Thread(target=tell, daemon=True).start()
    server.run(sockets=[listening])


if __name__ == "__main__":
    main()
