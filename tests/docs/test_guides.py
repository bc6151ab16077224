"""The guides that tell a story run as they are written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import blocks
from tests.support.sources import ROOT

GUIDES = ["changing-datasets", "checkpointing", "model-files", "models", "sampling"]


@pytest.mark.parametrize("name", GUIDES)
def test_a_guide_runs_from_top_to_bottom(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = ROOT / f"docs/guides/{name}.md"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TENSORREPO_AUTHOR", "Ada <ada@example.org>")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
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
