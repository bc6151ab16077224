"""F21, F23, F30: lineage takes bare names, tables are small by default, CSV comes back as CSV."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.processes.shell import Shell


def test_lineage_takes_a_bare_name_as_other_commands_do(full: Shell) -> None:
    assert full("lineage", "net") == full("lineage", "models/net")
    repo = full.repository()
    assert repo.lineage("net").ancestors().paths == repo.lineage("models/net").ancestors().paths


def test_a_table_takes_no_more_than_its_parquet_file_by_default(shell: Shell) -> None:
    numbers = np.arange(60_000, dtype="int64") % 1000
    file = shell.folder / "many.parquet"
    pq.write_table(pa.table({"n": numbers, "word": [f"w{each}" for each in numbers % 50]}), file)
    before = stored_bytes(shell)
    shell("add", "many.parquet")
    shell("commit", "-m", "Many")
    assert stored_bytes(shell) - before < 1.5 * file.stat().st_size
    assert stored_bytes(shell) - before < numbers.nbytes / 2


def stored_bytes(shell: Shell) -> int:
    objects: Path = shell.folder / ".tensorrepo/store/objects"
    return sum(file.stat().st_size for file in objects.rglob("*") if file.is_file())


def test_a_csv_is_checked_out_as_csv(shell: Shell) -> None:
    """COCO out is tests/formats/exchange/images/test_write_objects.py's."""
    rows = "id,score,day\n1,0.5,2024-01-02\n2,0.25,2024-02-03\n"
    (shell.folder / "scores.csv").write_text(rows)
    shell("add", "scores.csv")
    shell("commit", "-m", "Scores")
    shell("checkout", "HEAD", "scores")
    written = (shell.folder / "datasets/scores.csv").read_text()
    assert written.replace('"', "") == rows
    assert "unchanged" in shell("add", "datasets/scores.csv")
