"""The guides that tell a story run as they are written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.architecture.pages import blocks
from tests.support.architecture.sources import ROOT
from tests.support.processes.prepared import prepared_commands

GUIDES = [
    "../tutorial",
    "changing-datasets",
    "checkpointing",
    "lineage",
    "runs",
    "model-files",
    "models",
    "python-data",
    "registry",
    "sampling",
    "sql",
]


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with prepared_commands(tmp_path_factory.mktemp("bin") / "b") as folder:
        yield folder


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_runs_from_top_to_bottom(
    name: str, tmp_path: Path, commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / f"docs/guides/{name}.md"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TENSORREPO_AUTHOR", "Ada <ada@example.org>")
    # A fork that is ready for each command: another test proves that the installed one starts.
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{Path(sys.executable).parent}", os.pathsep)
    names: dict[str, Any] = {}
    for block in blocks(page):
        if block.language == "console":
            script = "\n".join(line[2:] for line in block.text.splitlines() if line[:2] == "$ ")
            done = subprocess.run(
                ["bash", "-exc", script], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{page}:{block.line}\n{done.stdout}\n{done.stderr}"
        elif block.language == "python":
            code = "\n" * (block.line - 1) + block.text
            exec(compile(code, str(page), "exec"), names)


def test_the_installed_command_starts(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "tensorrepo"
    done = subprocess.run([command, "version"], cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout
