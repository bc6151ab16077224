"""The forks that share the tests of a session run each of them once, whatever happens to one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.architecture.sources import ROOT
from tests.support.processes.session_workers import NONE, Shares

TESTS = """
import os, pytest, warnings

@pytest.mark.parametrize("at", range(30))
def test_one(at, tmp_path):
    if not at:
        warnings.warn("of a test")
    assert at != 3
    if at == 7:
        os.kill(os.getpid(), 9)
    with open("ran", "a") as file:
        file.write(f"{at} {os.environ['PYTEST_XDIST_WORKER']}\\n")
"""


def test_every_test_runs_once_and_one_that_kills_its_worker_fails_alone(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    plugin = "tests.support.processes.session_workers"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", plugin, "--forks", "3", tmp_path],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 failed, 28 passed, 1 warning" in done.stdout
    assert "UserWarning: of a test" in done.stdout
    assert "test_one[7]" in done.stdout
    assert "ended with -9" in done.stdout
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert sorted(int(at) for at, _ in ran) == [at for at in range(30) if at not in (3, 7)]
    assert {worker for _, worker in ran} == {"gw0", "gw1", "gw2"}


def test_who_has_nothing_left_takes_half_of_what_the_longest_has(tmp_path: Path) -> None:
    shares = Shares(12, 2, tmp_path / "lock")
    assert [shares.advance(0) for _ in range(6)] == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 4),
        (4, 5),
        (5, 9),
    ]
    assert shares.advance(1) == (6, 7)
    shares.advance(0)
    assert shares.lost_by(0) == 9
    assert shares.lost_by(0) == NONE
