"""A service in a process of its own, as the cases of bench_api measure it.

    python benchmarks/api_cases/served.py DATA_FOLDER SETTINGS

prints one line of JSON (url, token), then serves until it is told to end. SETTINGS is JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tensorrepo.api.app import create_app
from tensorrepo.api.server import first_token, run
from tensorrepo.api.service import open_service
from tensorrepo.api.settings import make_settings


@dataclass(frozen=True)
class Server:
    """A running service: where, its administrator's token, its process."""

    url: str
    token: str
    pid: int

    @property
    def port(self) -> int:
        port = urlsplit(self.url).port
        assert port is not None, "the service has one of its own"
        return port

    def administrator(self) -> httpx.Client:
        """A client with the administrator's token."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=600)

    def cpu_seconds(self) -> float:
        """Time of the processor that it took so far: says more than a clock on a busy machine."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def anonymous_mib(self) -> int:
        """Memory of its own: maps of files do not count."""
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Anonymous:"):
                return int(line.split()[1]) >> 10
        raise AssertionError("every kernel tells it")

    @contextmanager
    def watching_memory(self) -> Iterator[Peak]:
        """The most that `anonymous_mib` was within the block, asked 20 times a second."""
        peak, is_over = Peak(self.anonymous_mib()), threading.Event()

        def watch() -> None:
            while not is_over.wait(0.05):
                peak.mib = max(peak.mib, self.anonymous_mib())

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield peak
        finally:
            is_over.set()
            thread.join()


@dataclass(slots=True)
class Peak:
    """The most that was seen."""

    mib: int = field(default=0)


@contextmanager
def served(
    data: Path, environment: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[Server]:
    """A service on loopback until the block ends.

    Args:
        data: its folder.
        environment: of stores, such as AWS_ENDPOINT_URL.
        settings: what else `Settings` has.
    """
    command = [sys.executable, str(Path(__file__).resolve()), str(data), json.dumps(settings)]
    with _running(command, os.environ | dict(environment or {})) as server:
        yield server


@contextmanager
def answering() -> Iterator[Server]:
    """A server that does nothing but answer, see `empty_answers.py`, until the block ends."""
    script = Path(__file__).resolve().with_name("empty_answers.py")
    with _running([sys.executable, str(script)], os.environ) as server:
        yield server


@contextmanager
def _running(command: list[str], environment: Mapping[str, str]) -> Iterator[Server]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None, "it is a pipe"
            told = json.loads(process.stdout.readline())
            yield Server(told["url"], told["token"], process.pid)
        finally:
            process.terminate()


def main() -> None:
    """Serve from a new folder."""
    settings = make_settings(data=Path(sys.argv[1]), port=0, **json.loads(sys.argv[2]))
    service = open_service(settings, os.environ)
    token = first_token(service.accounts)

    def announce(url: str) -> None:
        print(json.dumps({"url": url, "token": token}), flush=True)

    try:
        run(create_app(service=service), settings, announce)
    finally:
        service.close()


if __name__ == "__main__":
    main()
