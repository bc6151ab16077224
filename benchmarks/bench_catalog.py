"""The SQL catalog: brought up to date, and asked.

    python benchmarks/bench_catalog.py [case ...] [--folder DIR] [--rounds N] [--scale X]

One JSON line for each case. Each runs on SQLite and, where its programs are installed, on a
PostgreSQL started for it (fsync off). `--scale` shrinks the data.
"""

from __future__ import annotations

from catalog_cases import architecture, catchup, lineage, sql
from harness import run

CASES = {
    **catchup.CASES,
    "lineage": lineage.lineage,
    **architecture.CASES,
    "sql": sql.sql,
}

if __name__ == "__main__":
    run(CASES, "Measure the catalog.", rounds=5)
