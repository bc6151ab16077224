"""Workers that share the collection run each test once, and import few modules twice."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.architecture.sources import ROOT
from tests.support.shared_collection import share_of

CONFTEST = """
import os
import pytest
from tests.support.shared_collection import give_folder, share_collection

def pytest_configure(config):
    os.environ["IMPORTED"] = "imported"
    share_collection(config)

def pytest_collection_finish(session):
    os.environ["IMPORTED"] = "imported_late"

@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node):
    give_folder(node)
"""
MODULE = """
import os
import pytest
from pathlib import Path

HERE = Path(__file__).parents[1]

def note(file, what):
    with (HERE / file).open("a") as opened:
        opened.write(f"{what}\\n")

note(os.environ["IMPORTED"], __name__.rpartition(".")[2])

@pytest.mark.parametrize("at", range(3))
def test_it(at):
    note("ran", f"{__name__.rpartition('.')[2]} {at}")

@pytest.mark.away
def test_left_out():
    raise AssertionError
"""


@pytest.mark.parametrize("workers", [1, 2, 4, 9])
def test_every_file_is_in_one_share(workers: int) -> None:
    files = [(Path(f"test_{at:02}.py"), at * 900, at % 5 == 0) for at in range(20)]
    shares = [share_of(files, workers, worker) for worker in range(workers)]
    assert Counter(file for share in shares for file in share) == Counter(
        file for file, _, _ in files
    )


def test_each_test_runs_once_and_each_module_is_collected_by_one_worker(tmp_path: Path) -> None:
    (tmp_path / "tests_of_it").mkdir()
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n  away: left out\n  long: first\n")
    modules = [f"test_{name}" for name in "abcdefgh"]
    for name in modules:
        long = "pytestmark = pytest.mark.long\n" if name == "test_d" else ""
        (tmp_path / f"tests_of_it/{name}.py").write_text(MODULE + long)
    command = "-m pytest -q -p xdist --import-mode=importlib -n 2 --dist worksteal"
    chosen = ["-m", "not away", "--basetemp", str(tmp_path / "base"), "."]
    done = subprocess.run(
        [sys.executable, *command.split(), *chosen],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "24 passed" in done.stdout
    ran = (tmp_path / "ran").read_text().splitlines()
    assert sorted(ran) == [f"{name} {at}" for name in modules for at in range(3)]
    # What is imported later was stolen: how much that is tells how busy the machine was.
    imported = (tmp_path / "imported").read_text().splitlines()
    assert sorted(imported) == modules
