"""The main job, from pictures to a model beside them and back: `make demo`, trained little."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.architecture.sources import ROOT
from tests.support.processes.prepared import prepared_commands, run_program

# The demo's own process imports them: here that would be 2 s of every worker's time.
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        find_spec("torch") is None or find_spec("sklearn") is None,
        reason="the demo trains with torch on scikit-learn's digits",
    ),
]


@pytest.mark.parametrize("store", ["local", pytest.param("s3", marks=pytest.mark.soak)])
def test_the_demo_tells_its_whole_story(tmp_path: Path, store: str) -> None:
    # A fork that is ready for each command: tests/docs proves that the installed one starts.
    with prepared_commands(tmp_path / "bin") as commands:
        ended, said = run_program(
            ROOT / "examples/demo.py",
            environment={
                "STORE": store,
                "DEMO_COMMAND": str(commands / "tensorrepo"),
                "DEMO_FOLDER": str(tmp_path / "demo"),
                "DEMO_QUICK": "1",
            },
        )
    assert ended == 0, said
    assert "The 1,000 pictures of v1 are bit-identical: True" in said
    assert "1,000 files written out again are byte for byte" in said
    assert "M datasets/digits (+500 rows)" in said
    assert "merged more-data" in said
    assert "demo-secret" not in said
