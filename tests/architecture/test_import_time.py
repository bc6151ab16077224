"""Importing the package loads nothing heavy, and a command that looks around no engine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import tensorrepo as tr

HEAVY = {
    "PIL", "alembic", "blake3", "cv2", "duckdb", "fsspec", "ml_dtypes", "msgspec", "numpy",
    "obstore", "pandas", "pyarrow", "rich", "sklearn", "sqlalchemy", "torch", "typer", "xxhash",
    "zstandard",
}  # fmt: skip

ENGINES = {
    "PIL", "alembic", "cv2", "duckdb", "fastapi", "fsspec", "jax", "lance", "pandas", "psycopg",
    "pyarrow.dataset", "sklearn", "sqlalchemy", "torch",
}  # fmt: skip
HANDLES = {
    "tensorrepo.sdk",
    "tensorrepo.repository",
    "tensorrepo.datasets.dataset",
    "tensorrepo.models.model",
}
FACE = {
    "tensorrepo",
    "tensorrepo._version",
    "tensorrepo.connect",
    "tensorrepo.context",
    "tensorrepo.formats",
    "tensorrepo.formats.common",
    "tensorrepo.formats.common.arguments",
    "tensorrepo.formats.dataset",
    "tensorrepo.formats.dataset.external",
    "tensorrepo.formats.dataset.external.outside",
    "tensorrepo.repository",
    "tensorrepo.repository_exchange",
    "tensorrepo.lazy",
    "tensorrepo.sdk",
    "tensorrepo.this_machine",
    "tensorrepo.workspace",
    "tensorrepo.workspace.state",
}
OPENED = """
import json, sys
import tensorrepo as tr

tr.open(sys.argv[1])
print(json.dumps(sorted(sys.modules)))
"""
COMMANDS = """
import json, sys
from typer.testing import CliRunner
from tensorrepo.cli.main import app

for word in ("init", "status"):
    done = CliRunner().invoke(app, [word])
    assert done.exit_code == 0, done.output
print(json.dumps(sorted(sys.modules)))
"""


def test_import_tensorrepo_loads_no_other_package() -> None:
    code = "import tensorrepo, json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert HEAVY & set(json.loads(done.stdout)) == set()


def test_opening_a_repository_loads_no_handle_format_or_array_library(tmp_path: Path) -> None:
    tr.init(tmp_path / "store")
    done = subprocess.run(
        [sys.executable, "-c", OPENED, str(tmp_path / "store")],
        check=True,
        capture_output=True,
        text=True,
    )
    loaded = set(json.loads(done.stdout))
    own = {name for name in loaded if name.split(".")[0] == "tensorrepo"}
    assert {"numpy", "pyarrow", *ENGINES} & loaded == set()
    assert {name for name in own if not re.match(r"tensorrepo\.repo(\.|$)", name)} == FACE


def test_status_loads_no_engine(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    loaded = set(json.loads(done.stdout))
    assert "tensorrepo.cli.entries" in loaded
    assert ENGINES & loaded == set()
    assert HANDLES & loaded == set()  # of the SDK: they bring as much again
