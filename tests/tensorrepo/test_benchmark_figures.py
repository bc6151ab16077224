"""Stored figures of benchmarks: measured again only where it is due, and shown as they are."""

from __future__ import annotations

import re
from argparse import Namespace
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.support.architecture.sources import ROOT

ASKED = Namespace(rounds=None, scale=1.0, folder=None, peers=None, limit=30.0)
DONE = {"case": "take", "commit": "c1", "settings": {"rounds": None, "scale": 1.0}}


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("tables")


@pytest.fixture
def everything(tables: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ARG001
    module = import_module("everything")
    monkeypatch.setattr(module, "FIGURES", tmp_path)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    return module


@pytest.mark.parametrize(
    ("line", "lead", "best"),
    [
        ({"ours_rows_per_s": 50, "lance_rows_per_s": 10, "goal_x": 3}, 5, "lance"),
        ({"ours_p50_ms": 4, "lance_p50_ms": 2, "torch_p50_ms": 8}, 0.5, "lance"),
        ({"ours_ms": 4, "lance_ms": 6, "cpu_ours_ms": 1, "cpu_lance_ms": 9}, 1.5, "lance"),
        ({"mb_per_s": {"ours": 10, "cp": 40, "note": "x"}}, 0.25, "cp"),
    ],
)
def test_a_ratio_above_1_says_that_ours_is_ahead(
    tables: Any, line: dict[str, Any], lead: float, best: str
) -> None:
    sides = tables.sides_of(line)
    assert (sides.lead, sides.best) == (lead, best)


def test_a_line_without_a_peer_has_no_sides(tables: Any) -> None:
    assert tables.sides_of({"ours_ms": 3, "p99_ms": 9, "bytes": 5}) is None


def test_the_table_has_a_row_a_case_and_says_what_was_not_measured(tables: Any) -> None:
    lines = [
        {**DONE, "ours_ms": 2, "lance_ms": 3, "goal": "a | b"},
        {"case": "clone", "failed": "Traceback\nno disk"},
    ]
    text = tables.table(lines)
    assert "| `take` | 2 ms | lance 3 | 1.50 | a / b | ? | ? | c1 |" in text
    assert "- `clone`: no disk" in text
    assert ">1.50 x lance<" in tables.picture(lines)
    assert ET.fromstring(tables.picture([{**lines[0], "case": "<&>"}])) is not None


def test_readme_shows_one_run_and_each_peer_by_its_best_side(tables: Any) -> None:
    rates = {"ours": 1200, "lance_0": 100, "lance_2": 50, "limit": 1000}
    about = {"commit": "c1", "date": "d", "load": 1.5, "rows_per_s": rates}
    lines = [{"case": case, **about} for case in tables.IN_README]
    text = f"before\n{tables.BEGIN}\nold\n{tables.END}\nbehind"
    made = tables.with_table(text, lines)
    assert made.startswith(f"before\n{tables.BEGIN}\nMeasured d at commit c1, on ")
    assert "| 1,200 rows/s | decoding alone, on all cores 1.20, Lance 12.0 | 1.5 |" in made
    assert "old" not in made
    assert made.endswith(f"{tables.END}\nbehind")


@pytest.mark.parametrize("last", [[], [{"commit": "c2"}], [{"skipped": "no peers"}]])
def test_readme_stays_where_its_cases_are_not_of_one_run(
    tables: Any, last: list[dict[str, Any]]
) -> None:
    lines = [
        {"case": case, "commit": "c1", "ours_ms": 2, "lance_ms": 3} for case in tables.IN_README
    ]
    lines = [*lines[:-1], *({"case": lines[-1]["case"], "ours_ms": 2, **each} for each in last)]
    text = f"{tables.BEGIN}\nold\n{tables.END}"
    assert tables.with_table(text, lines) == text


def test_each_module_of_cases_is_run_by_a_benchmark() -> None:
    folder = ROOT / "benchmarks"
    names = {
        f"{path.parent.name}.{path.stem}"
        for path in folder.glob("*_cases/*.py")
        if re.search(r"^CASES\b", path.read_text(), re.MULTILINE)
    }
    scripts = "".join(path.read_text() for path in folder.glob("bench_*.py"))
    lists = re.findall(r"from (\w+_cases) import \(?([\w,\s]+)", scripts)
    run = {f"{room}.{name}" for room, names in lists for name in re.findall(r"\w+", names)}
    assert names <= run


@pytest.mark.parametrize(
    ("line", "version", "done"),
    [
        (DONE, "c1", True),
        (DONE, "c2", False),
        (DONE | {"commit": "c1+"}, "c1+", False),
        (DONE | {"failed": "x"}, "c1", False),
        (DONE | {"settings": {"rounds": 3, "scale": 1.0}}, "c1", False),
        (None, "c1", False),
    ],
)
def test_a_case_is_left_out_where_its_line_is_of_now(
    everything: Any, line: dict[str, Any] | None, version: str, done: bool
) -> None:
    assert everything.is_done(line, ASKED, version) is done


def test_what_failed_or_was_skipped_replaces_no_figure(everything: Any) -> None:
    first, last = {"case": "a", "ms": 1}, {"case": "a", "ms": 2}
    for line in (first, {"case": "a", "failed": "x"}, {"case": "a", "skipped": "no peers"}, last):
        everything.keep("core", "a", line)
        assert everything.is_figure(everything.stored("core")["a"])
    everything.keep("core", "b", {"case": "b", "failed": "x"})
    assert everything.stored("core") == {
        "a": {"case": "a", "ms": 2},
        "b": {"case": "b", "failed": "x"},
    }


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ('print("words"); print(\'{"case": "a", "ms": 1}\')', {"case": "a", "ms": 1}),
        ('raise SystemExit("no disk")', {"case": "a", "failed": "no disk"}),
    ],
)
def test_the_line_of_a_case_is_what_it_printed_last(
    everything: Any, tmp_path: Path, script: str, told: dict[str, Any]
) -> None:
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks/bench_core.py").write_text(script)
    line = everything.measured("core", "a", ASKED)
    assert line.items() >= told.items()
    assert line["command"] == "python benchmarks/bench_core.py a --scale 1.0"
