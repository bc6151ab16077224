"""A client of elsewhere in a process of its own, driven by a test."""

from __future__ import annotations

import json
import subprocess
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("worker.py")


@dataclass(frozen=True)
class ClientError(Exception):
    """What code in a client raised: names of its classes, the nearest first, and its words."""

    kinds: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        return f"{self.kinds[0]}: {self.message}"


@dataclass(frozen=True)
class ClientProcess:
    """An interpreter with a client's library."""

    process: subprocess.Popen[str]

    def run(self, code: str, **values: Any) -> Any:
        """What `code`, the body of a function, returns there; `values` are JSON that it knows."""
        known = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        assert self.process.stdin is not None, "it is a pipe"
        assert self.process.stdout is not None, "it is a pipe"
        self.process.stdin.write(json.dumps(known + textwrap.dedent(code)) + "\n")
        self.process.stdin.flush()
        told = json.loads(self.process.stdout.readline())
        if "raised" in told:
            raise ClientError(tuple(told["raised"]), told["message"])
        return told["returned"]


@contextmanager
def client_process(python: Path, environment: Mapping[str, str]) -> Iterator[ClientProcess]:
    """A client that has these variables, and no others but the path."""
    process = subprocess.Popen(
        [str(python), str(WORKER)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", **environment},
    )
    try:
        yield ClientProcess(process)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None, "it is a pipe"
            pipe.close()
