"""A service in a process of its own, as the cases of bench_api measure it.

    python benchmarks/api_cases/served.py DATA_FOLDER

prints one line of JSON (url, token), then serves until it is told to end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
def served(data: Path) -> Iterator[Server]:
    """A service on loopback until the block ends."""
    command = [sys.executable, str(Path(__file__).resolve()), str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None, "it is a pipe"
            told = json.loads(process.stdout.readline())
            yield Server(told["url"], told["token"], process.pid)
        finally:
            process.terminate()


def main() -> None:
    """Serve from a new folder."""
    settings = make_settings(data=Path(sys.argv[1]), port=0)
    service = open_service(settings, {})
    token = first_token(service.accounts)

    def announce(url: str) -> None:
        print(json.dumps({"url": url, "token": token}), flush=True)

    try:
        run(create_app(service=service), settings, announce)
    finally:
        service.close()


if __name__ == "__main__":
    main()
