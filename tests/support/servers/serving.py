"""`tensorrepo serve` as people run it: a process of its own."""

from __future__ import annotations

import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx

END_SECONDS = 90


@dataclass
class ServeProcess:
    """A running `serve`: its URL, the first token, and its process."""

    url: str
    token: str
    process: subprocess.Popen[str]
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
    data: Path, *options: str, token: str = "", stderr: IO[bytes] | None = None
) -> ServeProcess:
    """Start it on a free port; `token` is one of before, where the folder is not new."""
    command = [sys.executable, "-m", "tensorrepo", "serve", "--json", "--port", "0"]
    environment = {**os.environ, "HOME": str(data), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [*command, "--data", str(data / "data"), *options],
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env=environment,
        cwd=data,
    )
    assert process.stdout is not None
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
        assert running.process.stdout is not None
        running.process.stdout.close()
