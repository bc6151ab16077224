"""Importing the package loads nothing heavy, and a command that looks around no engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import tensorrepo as tr
from tests.support.processes.shell import Shell

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
    "tensorrepo.repository_models",
    "tensorrepo.lazy",
    "tensorrepo.sdk",
    "tensorrepo.policy",
    "tensorrepo.this_machine",
    "tensorrepo.workspace",
    "tensorrepo.workspace.state",
}
OPENED = """
import json, sys
import tensorrepo as tr

repo = tr.open(sys.argv[1])
opened = sorted(sys.modules)
rows = sum(len(batch["age"]) for batch in repo.dataset("pets").stream(batch_size=2))
print(json.dumps([opened, rows, sorted(sys.modules)]))
"""
LOOK_AROUND = """
import json, sys
from tensorrepo.cli.main import app

looks = ["status"], ["log", "-n", "5"], ["diff"], ["diff", "HEAD~1"], ["ls"], ["show"], ["branch"]
for words in (*looks, ["branch", "next"], ["switch", "next"], ["tag", "v1"]):
    sys.stdout = sys.__stderr__
    app(words, standalone_mode=False)
    sys.stdout = sys.__stdout__
print(json.dumps(sorted(sys.modules)))
"""
SERVED = """
import json, os, sys
from pathlib import Path
from tensorrepo.cli import serve

settings = serve.make_settings(data=Path(sys.argv[1]), port=0)
service = serve.open_service(settings, os.environ)
serve.server.first_token(service.accounts)
serve.create_app(service=service)
models = sys.modules["fastapi.openapi.models"]
built = models.OpenAPI.__pydantic_complete__
print(json.dumps([sorted(sys.modules), built, models.BaseModel.model_config]))
service.close()
"""
# What no first answer needs: pages, cards, sign-in elsewhere, revisions, engines, readers of rows.
LATER = {
    "PIL", "alembic", "cryptography", "duckdb", "httpx", "jinja2", "joserfc", "markdown_it",
    "pandas", "pyarrow.compute", "pyarrow.dataset", "sqlalchemy.dialects.postgresql",
    "sqlalchemy.orm", "tensorrepo.formats.exchange.formats", "torch", "yaml",
}  # fmt: skip
# What those commands need not: arrays, engines, pydantic (by typer), and clients of remote stores.
SPARED = {"asyncio", "duckdb", "numpy", "obstore", "pyarrow", "pydantic", "sqlalchemy", *ENGINES}
# What a stream without conditions needs not, either: clients of stores, Parquet, search indexes.
UNSTREAMED = {
    "asyncio", "importlib.metadata", "pyarrow.parquet", "ssl",
    "tensorrepo.formats.search_index.opened_index", *ENGINES,
}  # fmt: skip


def test_import_tensorrepo_loads_no_other_package() -> None:
    code = "import tensorrepo, json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert HEAVY & set(json.loads(done.stdout)) == set()


def test_opening_loads_no_handle_format_or_array_library_and_a_stream_no_database_or_index(
    tmp_path: Path,
) -> None:
    repository = tr.init(tmp_path / "store", author="A <a@example.org>")
    with repository.transaction("main", "Rows") as change:
        change.create_dataset("pets", {"age": [3, 5, 8]})
    done = subprocess.run(
        [sys.executable, "-c", OPENED, str(tmp_path / "store")],
        check=True,
        capture_output=True,
        text=True,
    )
    opened, rows, streamed = json.loads(done.stdout)
    loaded = set(opened)
    own = {name for name in loaded if name.split(".")[0] == "tensorrepo"}
    assert SPARED & loaded == set()
    assert {name for name in own if not re.match(r"tensorrepo\.repo(\.|$)", name)} == FACE
    assert (rows, UNSTREAMED & set(streamed)) == (3, set())


def test_commands_that_look_around_load_no_array_no_engine_and_no_client(tmp_path: Path) -> None:
    shell = Shell(tmp_path, tmp_path / "home")
    shell("init")
    repo = shell.repository()
    with repo.transaction("main", "Rows") as tx:
        tx.create_dataset("pets", {"age": [3, 5]})
    with repo.transaction("main", "Words") as tx:
        tx.save_file("words", b"of a file")
    done = subprocess.run(
        [sys.executable, "-c", LOOK_AROUND],
        check=True,
        capture_output=True,
        text=True,
        cwd=shell.folder,
        env={**os.environ, **shell.variables},
    )
    loaded = set(json.loads(done.stdout))
    assert "A files/words (9 bytes)" in done.stderr
    assert "datasets/pets  dataset  2 rows x 1 column" in done.stderr
    assert SPARED & loaded == set()
    assert HANDLES & loaded == set()  # of the SDK: they bring as much again


def test_a_service_starts_without_what_pages_cards_foreign_files_and_openapi_need(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SERVED, str(tmp_path)], check=True, capture_output=True, text=True
    )
    loaded, built, settings = json.loads(done.stdout)
    assert (LATER & set(loaded), built, settings) == (set(), False, {})
