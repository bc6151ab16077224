"""The guides that tell a story run as they are written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.architecture.pages import blocks
from tests.support.architecture.sources import ROOT
from tests.support.processes.prepared import prepared_commands

pytestmark = pytest.mark.long

# Those in a soak are of commands that others show, or whose own tests show them.
GUIDES = [
    "../tutorial",
    pytest.param("benchmarking", marks=pytest.mark.soak),  # emulates a training
    pytest.param("changing-datasets", marks=pytest.mark.soak),
    pytest.param("deriving", marks=pytest.mark.soak),
    pytest.param("dql", marks=pytest.mark.soak),
    "checkpointing",
    pytest.param("files", marks=pytest.mark.soak),
    pytest.param("git", marks=pytest.mark.soak),
    pytest.param("importing", marks=pytest.mark.soak),
    pytest.param("input", marks=pytest.mark.soak),
    pytest.param("lineage", marks=pytest.mark.soak),
    pytest.param("many-machines", marks=pytest.mark.soak),
    pytest.param("runs", marks=pytest.mark.soak),
    pytest.param("model-files", marks=pytest.mark.soak),
    pytest.param("models", marks=pytest.mark.soak),
    pytest.param("python-data", marks=pytest.mark.soak),
    pytest.param("registry", marks=pytest.mark.soak),
    pytest.param("sampling", marks=pytest.mark.soak),
    pytest.param("searching", marks=pytest.mark.soak),
    pytest.param("seeing", marks=pytest.mark.soak),
    pytest.param("selecting", marks=pytest.mark.soak),
    "sharing",
    pytest.param("sql", marks=pytest.mark.soak),
    pytest.param("trainers", marks=pytest.mark.soak),  # imports Lightning and transformers
    pytest.param("trust", marks=pytest.mark.soak),
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
    _prepare(tmp_path, commands, monkeypatch)
    run_blocks(page)


def test_the_quick_start_runs_behind_its_own_install_line(
    tmp_path: Path, commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F13: as pasted. The line itself is read, not run: the packaging tests install."""
    page = ROOT / "README.md"
    start = next(block for block in blocks(page) if "$ pip install" in block.text)
    install, *others = start.text.splitlines()
    extras = re.fullmatch(r"\$ pip install -e '\.\[([a-z0-9,]+)\]'", install)
    assert extras is not None
    assert others == ["$ mkdir work && cd work"]
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(extras[1].split(",")) <= set(known["optional-dependencies"])
    _prepare(tmp_path, commands, monkeypatch)
    names = run_blocks(page, behind=start.line)
    assert names["repo"].lineage("models/classifier").ancestors().paths == [
        "runs/exp1",
        "datasets/digits",
        "pictures",
    ]
    loaded = names["repo"].model("classifier").load(output="torch")
    held = names["module"].state_dict()
    assert all((loaded[name] == held[name]).all() for name in held)


def _prepare(folder: Path, commands: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new user in `folder`, whose commands are forks that are ready."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("TENSORREPO_AUTHOR", "Ada <ada@example.org>")
    # Another test proves that the installed command starts.
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{Path(sys.executable).parent}", os.pathsep)


def run_blocks(page: Path, behind: int = 0) -> dict[str, Any]:
    """Run the shell and Python blocks of a page, in order, behind some line; gives the names."""
    names: dict[str, Any] = {}
    for block in blocks(page):
        if block.line <= behind:
            continue
        if block.language == "console":
            script = "\n".join(line[2:] for line in block.text.splitlines() if line[:2] == "$ ")
            done = subprocess.run(
                ["bash", "-exc", script], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{page}:{block.line}\n{done.stdout}\n{done.stderr}"
        elif block.language == "python":
            code = "\n" * (block.line - 1) + block.text
            exec(compile(code, str(page), "exec"), names)
    return names


def test_the_installed_command_starts(tmp_path: Path) -> None:
    command = Path(sys.executable).parent / "tensorrepo"
    done = subprocess.run([command, "version"], cwd=tmp_path, capture_output=True, check=True)
    assert done.stdout
