"""Imports point down, and what a layer must not know it does not name."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.support.architecture import rules
from tests.support.architecture.sources import LAYERS, ROOT, Source, project, sources

RULES = [
    rules.upward_imports,
    rules.relative_imports,
    rules.bare_layer_imports,
    rules.late_imports,
    rules.environment_reads,
    rules.prints,
    rules.code_from_data,
    rules.storage_in_pure_modules,
    rules.too_long,
    rules.code_in_init,
]

# (rule, file, text that breaks it): every rule is shown to be able to fail.
BREAKS = [
    (rules.upward_imports, "repo/x.py", "from tensorrepo.formats import dtypes"),
    (rules.upward_imports, "repo/x.py", "import tensorrepo"),
    (rules.upward_imports, "formats/x.py", "from tensorrepo import open"),
    (rules.upward_imports, "query/x.py", "from tensorrepo.migrations import env"),
    (
        rules.upward_imports,
        "repo/x.py",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import tensorrepo.api.app",
    ),
    (rules.relative_imports, "repo/x.py", "from . import ids"),
    (rules.bare_layer_imports, "formats/x.py", "from repo import ids"),
    (rules.late_imports, "repo/x.py", "def f():\n    from tensorrepo.repo import ids"),
    (rules.late_imports, "repo/x.py", "import importlib\nimportlib.import_module('os')"),
    (rules.environment_reads, "repo/x.py", "import os\nos.environ.get('HOME')"),
    (rules.environment_reads, "repo/x.py", "from os import getenv\ngetenv('HOME')"),
    (rules.prints, "tensorrepo/cli/main.py", "print(1)"),
    (rules.prints, "tensorrepo/sdk.py", "import sys\nsys.stderr.write('x')"),
    (rules.prints, "tensorrepo/sdk.py", "from rich.console import Console\nConsole()"),
    (rules.code_from_data, "formats/x.py", "import pickle"),
    (rules.code_from_data, "formats/exchange/checkpoints/torch.py", "from pickle import Unpickler"),
    (rules.code_from_data, "formats/x.py", "eval('1')"),
    (rules.code_from_data, "formats/x.py", "np.load(file, allow_pickle=True)"),
    (
        rules.storage_in_pure_modules,
        "formats/dataset/streaming/plan/pages.py",
        "from tensorrepo.repo.objects.envelope import ObjectSource",
    ),
    (rules.storage_in_pure_modules, "formats/dataset/streaming/plan/pages.py", "open('x')"),
    (
        rules.dangling_descriptions,
        "repo/x.py",
        'class A:\n    """A.\n\n    Attributes:\n        x: of A.\n    """',
    ),
    (rules.too_long, "repo/x.py", "a = 1\n" * 801),
    (rules.code_in_init, "repo/__init__.py", '"""Doc."""\nimport os'),
    (rules.code_in_init, "repo/__init__.py", ""),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_every_module_keeps_the_rule(rule: Callable[[Source], list[str]]) -> None:
    assert [finding for source in sources() for finding in rule(source)] == []


@pytest.mark.parametrize(("rule", "path", "text"), BREAKS)
def test_the_rule_finds_what_breaks_it(
    rule: Callable[[Source], list[str]], path: str, text: str
) -> None:
    findings = rule(Source(path, text))
    assert findings
    assert findings[0].startswith(f"{path}:")


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (rules.upward_imports, "formats/x.py", "from tensorrepo.repo import ids"),
        (rules.late_imports, "formats/x.py", "def f():\n    import torch"),
        (rules.environment_reads, "tensorrepo/cli/main.py", "import os\nos.environ['HOME']"),
        (rules.prints, "tensorrepo/cli/output.py", "print(1)"),
        (
            rules.code_from_data,
            "formats/exchange/arrays/npy.py",
            "np.load(file, allow_pickle=False)",
        ),
        (
            rules.storage_in_pure_modules,
            "formats/dataset/read.py",
            "from tensorrepo.repo.objects.envelope import ObjectSource",
        ),
    ],
)
def test_the_rule_lets_pass_what_is_allowed(
    rule: Callable[[Source], list[str]], path: str, text: str
) -> None:
    assert rule(Source(path, text)) == []


def test_nineteen_of_twenty_functions_fit_on_a_screen() -> None:
    found = [rules.long_functions(source, 40) for source in sources()]
    long = [place for places, _ in found for place in places]
    assert len(long) <= 0.05 * sum(count for _, count in found), "\n".join(long)


def test_a_long_function_is_found() -> None:
    text = 'def f():\n    """Doc."""\n' + "    a = 1\n" * 41
    assert rules.long_functions(Source("repo/x.py", text), 40) == (["repo/x.py:1: f: 42 lines"], 1)


def test_no_module_imports_itself_by_a_detour() -> None:
    assert rules.import_cycles(sources()) == []


def test_a_cycle_is_found() -> None:
    ring = [
        Source("repo/a.py", "import tensorrepo.repo.b"),
        Source("repo/b.py", "from tensorrepo.repo import a"),
    ]
    (cycle,) = rules.import_cycles(ring)
    assert set(cycle.split(" -> ")) == {"tensorrepo.repo.a", "tensorrepo.repo.b"}


def test_pyproject_lists_exactly_the_folders_that_hold_modules() -> None:
    folders = {source.path.rsplit("/", 1)[0] for source in sources()}
    names = {Source(f"{folder}/__init__.py", "").module for folder in folders}
    assert set(project()["tool"]["setuptools"]["packages"]) == names


def test_every_folder_of_modules_has_an_init() -> None:
    folders = {source.path.rsplit("/", 1)[0] for source in sources()}
    assert {folder for folder in folders if not (ROOT / folder / "__init__.py").is_file()} == set()


def test_pyproject_maps_every_layer() -> None:
    mapped = project()["tool"]["setuptools"]["package-dir"]
    names = {layer: layer if layer == "tensorrepo" else f"tensorrepo.{layer}" for layer in LAYERS}
    assert mapped == {name: layer for layer, name in names.items()}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout: git knows what is ours")
def test_the_top_level_holds_the_layers_and_little_else() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    top = {name.split("/", 1)[0] for name in listed.splitlines()}
    folders = {*LAYERS, "tests", "docs", "benchmarks", "examples", ".ci"}
    files = {
        "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "Makefile", "README.md", ".gitignore",
        "constraints.txt", "pyproject.toml",
    }  # fmt: skip
    assert top - folders - files == set()
