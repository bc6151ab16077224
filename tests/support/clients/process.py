"""A client of elsewhere in a process of its own, driven by a test."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORKER = Path(__file__).with_name("worker.py")
_OURS = ("tensorrepo", "PYTHON", "MLFLOW", "HF_", "HUGGINGFACE")


class ClientError(Exception):
    """What code in a client raised: names of its classes, the nearest first, and its words."""

    def __init__(self, kinds: tuple[str, ...], message: str) -> None:
        super().__init__(f"{kinds[0]}: {message}")
        self.kinds = kinds


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


def run_client(
    python: Path,
    script: str,
    *arguments: str,
    environment: Mapping[str, str],
    cwd: Path,
    seconds: float = 240,
) -> str:
    """Run a script as a user would; gives what it prints. Fails with its errors where it fails.

    Args:
        python: of `environments.client_python`.
        script: Python.
        arguments: of the script.
        environment: variables that it needs; of this process it gets none of our own, nor of the
            clients.
        cwd: folder to run in, which is its home as well.
        seconds: after which it is killed.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    done = subprocess.run(
        [str(python), "-c", script, *arguments],
        cwd=cwd,
        env={**kept, "HOME": str(cwd), **environment},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    assert not done.returncode, f"{done.stdout[-4000:]}\n{done.stderr[-8000:]}"
    return done.stdout
