"""`tensorrepo serve` as people run it: a process of its own, which is forked."""

from __future__ import annotations

import json
import os
import signal
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from tests.support.processes.forked_command import ForkedProcess, forked_command

END_SECONDS = 90


@dataclass
class ServeProcess:
    """A running `serve`: its URL, the first token, and its process."""

    url: str
    token: str
    process: ForkedProcess
    tls: ssl.SSLContext | None = None

    def client(self) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.token}"}
        verify = self.tls if self.tls is not None else True
        return httpx.Client(
            base_url=self.url, headers=headers, timeout=60, trust_env=False, verify=verify
        )

    def end(self, sent: signal.Signals = signal.SIGTERM) -> int:
        """Tell it to end, and wait; gives its status."""
        self.process.send_signal(sent)
        return self.process.wait(END_SECONDS)


def start_serve(
    data: Path, *options: str, token: str = "", stderr: Path | None = None
) -> ServeProcess:
    """Start it on a free port; `token` is one of before, where the folder is not new."""
    words = ["serve", "--json", "--port", "0", "--data", str(data / "data"), *options]
    environment = {**os.environ, "HOME": str(data)}
    process = forked_command(words, data, environment, stderr=stderr or Path(os.devnull))
    told = json.loads(process.stdout.readline())
    return ServeProcess(told["url"], told["token"] or token, process)


@contextmanager
def serving(data: Path, *options: str) -> Iterator[ServeProcess]:
    """`serve` until the block ends."""
    running = start_serve(data, *options)
    try:
        yield running
    finally:
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(END_SECONDS)
        running.process.stdout.close()
