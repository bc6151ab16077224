"""A service in processes of its own, forked, for tests that kill them.

Each serves until it is told to end, after one line of JSON that says where, and the token of Ada,
who administers everything.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.api.app import create_app
from tensorrepo.api.server import run
from tensorrepo.api.service import open_service
from tensorrepo.api.settings import make_settings
from tests.support.architecture.sources import ROOT
from tests.support.processes.forked_command import ForkedProcess

NAME = "team/photos"
_TOKEN = "token"


@dataclass
class ServiceProcess:
    """A service over `data`; several may serve the same folder."""

    data: Path
    port: int = 0
    url: str = ""
    token: str = field(default="", repr=False)
    process: ForkedProcess | None = None

    def start(self) -> ServiceProcess:
        """Begin to serve, on the port of before."""
        environment = {name: os.environ[name] for name in os.environ if name != "TENSORREPO_TOKEN"}
        self.process = ForkedProcess(
            main,
            str(self.data),
            str(self.port),
            folder=ROOT,
            environment=environment,
            stderr=Path(os.devnull),
        )
        told = json.loads(self.process.stdout.readline())
        self.url, self.token = told["url"], told["token"]
        self.port = int(self.url.rpartition(":")[2])
        return self

    def kill(self) -> None:
        """End it as a power cut does, but for what the disk holds."""
        assert self.process is not None, "it was started"
        self.process.kill()
        self._end()

    def stop(self) -> None:
        """End it in order."""
        assert self.process is not None, "it was started"
        self.process.terminate()
        self._end()

    def _end(self) -> None:
        assert self.process is not None, "it was started"
        self.process.wait()
        self.process.stdout.close()

    def create(self) -> Path:
        """Make the repository; gives the folder of its store."""
        headers = {"Authorization": f"Bearer {self.token}"}
        answer = httpx.post(
            f"{self.url}/api/v1/repositories", json={"name": NAME}, headers=headers, timeout=60
        )
        answer.raise_for_status()
        return self.data / "repositories" / NAME

    @property
    def repository(self) -> str:
        return f"{self.url}/{NAME}"


def main(data: str, port: str) -> None:
    settings = make_settings(data=Path(data), port=int(port))
    service = open_service(settings, {})
    kept = Path(data) / _TOKEN
    if not kept.exists():
        service.accounts.add_user("ada", email="ada@example.org")
        service.accounts.grant("ada", Grant("*", Action.ADMIN))
        kept.write_text(service.accounts.add_token("ada", "test"))
    token = kept.read_text()

    def announce(url: str) -> None:
        sys.stdout.write(json.dumps({"url": url, "token": token}) + "\n")
        sys.stdout.flush()

    try:
        run(create_app(service=service), settings, announce)
    finally:
        service.close()
