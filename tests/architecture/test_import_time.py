"""Importing the package loads nothing heavy: `tensorrepo --help` must answer at once."""

from __future__ import annotations

import json
import subprocess
import sys

HEAVY = {
    "PIL", "alembic", "blake3", "cv2", "duckdb", "fsspec", "ml_dtypes", "msgspec", "numpy",
    "obstore", "pandas", "pyarrow", "rich", "sklearn", "sqlalchemy", "torch", "typer", "xxhash",
    "zstandard",
}  # fmt: skip


def test_import_tensorrepo_loads_no_other_package() -> None:
    code = "import tensorrepo, json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert HEAVY & set(json.loads(done.stdout)) == set()
