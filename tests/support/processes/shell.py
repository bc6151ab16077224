"""The command line as a test types it: in this process, which is fast, or in one of its own."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from typer import main as typer_main
from typer import testing

from tensorrepo.cli.main import app
from tensorrepo.repository import Repository
from tensorrepo.sdk import open_repository
from tests.support.processes.forked import FORKED
from tests.support.processes.forked_command import ForkedProcess, forked_command
from tests.support.processes.prepared import finish_command

# A parser keeps nothing of what it parsed, and making one takes as long as a command.
testing._get_command = functools.cache(typer_main.get_command)

ADA = "Ada <ada@example.org>"


@dataclass
class Shell:
    """Somebody who works in `folder`; `home` holds what a client remembers."""

    folder: Path
    home: Path
    author: str = ADA
    environment: Mapping[str, str] = field(default_factory=dict)
    piped: bytes = b""  # what its commands read from standard input

    @property
    def variables(self) -> dict[str, str]:
        """What a command of this shell finds in its environment."""
        return {
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(self.home / "state"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
            "XDG_CONFIG_HOME": str(self.home / "config"),
            "TENSORREPO_AUTHOR": self.author,
            "COLUMNS": "100",
            **self.environment,
        }

    def run(self, *words: str) -> Any:
        """A command in this process: its exit code, output and errors."""
        place = [] if "TENSORREPO_DIR" in self.environment else ["-C", str(self.folder)]
        return testing.CliRunner().invoke(
            app, [*place, *words], env=self.variables, input=self.piped
        )

    def __call__(self, *words: str) -> str:
        """A command that must succeed; gives what it printed."""
        done = self.run(*words)
        assert done.exit_code == 0, f"{words}: {done.exit_code}\n{done.output}\n{done.exception!r}"
        return str(done.stdout)

    def fails(self, exit_code: int, *words: str) -> str:
        """A command that must end with `exit_code`; gives what it said on standard error."""
        done = self.run(*words)
        assert done.exit_code == exit_code, f"{words}: {done.exit_code}\n{done.output}"
        assert "Traceback" not in done.output
        return str(done.stderr)

    def json_of_failure(self, exit_code: int, *words: str) -> Any:
        """The one record that a command answers with --json that must end with `exit_code`."""
        done = self.run(*words, "--json")
        assert done.exit_code == exit_code, f"{words}: {done.exit_code}\n{done.output}"
        (line,) = done.stdout.splitlines()
        return json.loads(line)

    def error(self, exit_code: int, *words: str) -> Any:
        """What a command that must end with `exit_code` says with --json that went wrong."""
        line = self.fails(exit_code, *words, "--json").splitlines()[-1]
        return json.loads(line)["error"]

    def json(self, *words: str) -> Any:
        """The one record that a command answers with --json."""
        (record,) = self.records(*words)
        return record

    def records(self, *words: str) -> list[Any]:
        """The records that a command answers with --json."""
        return [json.loads(line) for line in self(*words, "--json").splitlines()]

    def start(self, *words: str, code: str = "", session: bool = False) -> ForkedProcess:
        """A command in a process of its own; `code` runs before it, as Python. It is forked."""
        environment = {**os.environ, **self.variables}
        return forked_command(words, self.folder, environment, code=code, session=session)

    def finish(self, *words: str, code: str = "") -> tuple[int, str, str]:
        """The same, waited for: exit code, output, errors. It is forked, which takes no start."""
        with TemporaryDirectory() as kept:
            files = [Path(kept, name) for name in ("out", "errors")]
            process = FORKED.Process(
                target=finish_command,
                args=(files, words, self.folder, {**os.environ, **self.variables}, code),
            )
            process.start()
            process.join(120)
            assert process.exitcode is not None, "it did not end"
            out, errors = (file.read_text() for file in files)
            return process.exitcode, out, errors

    def repository(self) -> Repository:
        """The repository of a workspace that was made without a URL."""
        return open_repository(self.folder / ".tensorrepo/store", author=self.author)

    def snapshot(self) -> tuple[int, dict[str, tuple[int, bytes]]]:
        """What a failed command must not change: the log, and every file of the workspace."""
        state = self.folder / ".tensorrepo"
        kept = ("workspace.json", "staged.json", "tracked.json")
        files = [path for path in self.folder.rglob("*") if path.is_file()]
        mine = [path for path in files if state not in path.parents or path.name in kept]
        log = [path for path in files if path.parent.name == "log"]
        return len(log), {
            str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in sorted(mine)
        }


def write_points(path: Path, rows: int = 20, *, seed: int = 0) -> dict[str, Any]:
    """A small npz file: points in the plane and their labels; gives the arrays."""
    rng = np.random.default_rng(seed)
    arrays = {
        "point": rng.normal(size=(rows, 2)).astype("float32"),
        "label": rng.integers(0, 3, rows),
    }
    np.savez(path, **arrays)
    return arrays


def write_pictures(folder: Path, classes: tuple[str, ...] = ("cat", "dog"), each: int = 3) -> None:
    """PNG files in a folder for each class."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for name in classes:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for at in range(each):
            pixels = rng.integers(0, 256, (4, 5, 3), np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{at:02}.png")
