"""The documentation names what there is, and its examples run."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import tensorrepo
from tensorrepo.formats.exchange.formats import FORMATS
from tests.support.architecture.pages import blocks, headings, pages, sections
from tests.support.architecture.sources import ROOT, sources

TUTORIAL = ROOT / "docs/tutorial.md"
CLI_PAGE = ROOT / "docs/reference/cli.md"
HAS_COMMANDS = find_spec("tensorrepo.cli.main") is not None
HAS_SDK = "open" in tensorrepo.__all__
WITH_EXAMPLES = [source.module for source in sources() if ">>> " in source.text]
PAGES_WITH_EXAMPLES = [page for page in pages() if ">>> " in page.read_text("utf-8")]
PYTHON_BLOCKS = {
    f"{page.relative_to(ROOT)}:{block.line}": block.text
    for page in pages()
    for block in blocks(page)
    if block.language == "python" and ">>> " not in block.text
}


def _commands() -> list[str]:
    """Every command of the command line."""
    if not HAS_COMMANDS:
        return []
    return sorted(importlib.import_module("tensorrepo.cli.command_table").COMMANDS)


@pytest.mark.skipif(not HAS_COMMANDS, reason="no command line yet")
def test_every_command_has_its_section_and_every_section_its_command() -> None:
    documented = [
        heading.removeprefix("tensorrepo ")
        for heading in headings(CLI_PAGE)
        if heading.startswith("tensorrepo ")
    ]
    assert sorted(documented) == _commands()


@pytest.mark.parametrize("command", _commands())
def test_every_option_of_a_command_is_named_in_its_section(command: str) -> None:
    loaded: Any = importlib.import_module("tensorrepo.cli.main").load_command(command)
    text = sections(CLI_PAGE)[f"tensorrepo {command}"]
    shared = {"--json", "--repo", "--help"}  # said once, at the top of the page
    missing = [
        option.opts
        for option in loaded.params
        if option.param_type_name == "option" and not shared & set(option.opts)
        if not any(re.search(rf"(?<![\w-]){name}(?![\w-])", text) for name in option.opts)
    ]
    assert missing == []


def test_the_guide_lists_every_foreign_format_with_its_options() -> None:
    page = (ROOT / "docs/guides/foreign-formats.md").read_text("utf-8")
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    shown = {row[1].strip(" `"): (_words(row[3]), _words(row[4])) for row in rows if len(row) == 6}
    expected = {
        known.name: (
            {option.name for option in known.read_options},
            {option.name for option in known.write_options},
        )
        for known in FORMATS
    }
    assert shown == expected


def _words(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


@pytest.mark.parametrize("name", [each for each in tensorrepo.__all__ if each != "__version__"])
def test_every_public_name_says_what_it_is(name: str) -> None:
    assert (getattr(tensorrepo, name).__doc__ or "").strip()


def test_the_reference_shows_every_public_name() -> None:
    page = (ROOT / "docs/reference/sdk.md").read_text("utf-8")
    assert ".. automodule:: tensorrepo\n   :members:" in page
    # Sphinx asks `dir`: names that load on first use are only seen if __dir__ tells of them.
    assert set(tensorrepo.__all__) - set(dir(tensorrepo)) == set()


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_the_examples_in_docstrings_give_what_they_show(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0


@pytest.mark.parametrize("page", PAGES_WITH_EXAMPLES, ids=lambda page: page.name)
def test_the_examples_on_a_page_give_what_they_show(page: Path) -> None:
    assert doctest.testfile(str(page), module_relative=False).failed == 0


@pytest.mark.parametrize("place", PYTHON_BLOCKS)
def test_every_python_block_is_python(place: str) -> None:
    compile(PYTHON_BLOCKS[place], place, "exec")


@pytest.mark.soak  # each command is started; test_guides.py runs the same page with forks
@pytest.mark.skipif(not (HAS_COMMANDS and HAS_SDK), reason="no command line and SDK yet")
def test_the_tutorial_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    names: dict[str, Any] = {}
    for block in blocks(TUTORIAL):
        if block.language == "console":
            lines = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
            script = "\n".join(["set -ex", *lines])
            done = subprocess.run(
                ["bash", "-c", script], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, f"{TUTORIAL}:{block.line}\n{done.stdout}\n{done.stderr}"
        else:
            code = "\n" * (block.line - 1) + block.text
            exec(compile(code, str(TUTORIAL), "exec"), names)


def test_every_guarantee_names_a_test_that_there_is() -> None:
    page = (ROOT / "docs/design/guarantees.md").read_text("utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page)
    missing = [
        f"{path}::{test}"
        for path, test in named
        if not (ROOT / path).exists() or f"def {test}(" not in (ROOT / path).read_text("utf-8")
    ]
    assert named
    assert missing == []


def test_every_defense_of_the_threat_model_names_tests_that_there_are() -> None:
    page = (ROOT / "docs/design/threat-model.md").read_text("utf-8")
    table = page.partition("## Threats")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    named = {row: re.findall(r"`(tests/[\w/]+\.py)`", row) for row in rows if "**" not in row}
    assert len(named) > 40
    assert [row for row, paths in named.items() if not paths] == []
    assert [path for paths in named.values() for path in paths if not (ROOT / path).exists()] == []


def test_every_path_on_the_map_of_the_code_exists() -> None:
    page = (ROOT / "docs/design/code-map.md").read_text("utf-8")
    named = re.findall(r"`((?:repo|formats|query|api|tensorrepo|tests)/[\w./]*)`", page)
    assert [path for path in named if not (ROOT / path).exists()] == []
    assert len(named) > 40
