"""Every case of every benchmark, one after the other; cut off, it goes on where it was.

    make bench-all
    python benchmarks/everything.py [case ...] [--folder DIR] [--rounds N] [--scale X]
        [--peers PYTHON] [--limit SECONDS]

What a case printed is a line of `results/figures/BENCHMARK.jsonl`, which takes the place of the
case's older one as soon as it is there. A case is left out when its line is of this commit and of
the same options; so a run that was stopped goes on when the command is given again, and what failed
or lacked a peer is tried again; its older figure stays meanwhile. In the end `tables.py` makes
tables and a picture of all lines. `case` may name its benchmark, too: ``codecs:rows``.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import tables
from harness import HERE, ROOT, code_version

FIGURES = HERE / "results/figures"


def main() -> int:
    parser = argparse.ArgumentParser(description="Run all benchmarks, resumed where it was.")
    parser.add_argument("cases", nargs="*", help="only these; none: all")
    parser.add_argument("--folder", help="on the disk to be measured")
    parser.add_argument("--rounds", type=int, help="of each case; else what its benchmark has")
    parser.add_argument("--scale", type=float, default=1.0, help="of the data")
    parser.add_argument("--peers", help="python of an environment with benchmarks/peers.txt")
    parser.add_argument("--limit", type=float, default=3600.0, help="seconds that a case may take")
    asked = parser.parse_args()
    FIGURES.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    known: set[str] = set()
    for bench, case in every_case(failed):
        known |= {case, f"{bench}:{case}"}
        if asked.cases and not {case, f"{bench}:{case}"} & {*asked.cases}:
            continue
        if is_done(stored(bench).get(case), asked, code_version()):
            print(f"{bench} {case}: there already", flush=True)
            continue
        print(f"{bench} {case}: begins", flush=True)
        line = measured(bench, case, asked)
        keep(bench, case, line)
        if "failed" in line:
            failed.append(f"{bench}:{case}")
        print(f"{bench} {case}: {json.dumps(line)}", flush=True)
    tables.main()
    if unknown := {*asked.cases} - known:
        failed += sorted(f"{case}, which there is not" for case in unknown)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def every_case(failed: list[str]) -> Iterator[tuple[str, str]]:
    """Each benchmark with each of its cases; in `failed` come those that cannot be loaded."""
    for script in sorted(HERE.glob("bench_*.py")):
        listed = [sys.executable, str(script), "--list"]
        done = subprocess.run(listed, capture_output=True, text=True, check=False, cwd=ROOT)
        if done.returncode:
            print(f"{script.stem}: {done.stderr.strip().splitlines()[-1]}", flush=True)
            failed.append(script.stem)
        yield from ((script.stem.removeprefix("bench_"), name) for name in done.stdout.split())


def is_figure(line: Mapping[str, Any]) -> bool:
    """Whether the case was measured: it neither failed nor lacked what it compares with."""
    return "failed" not in line and "skipped" not in line


def is_done(line: Mapping[str, Any] | None, asked: argparse.Namespace, version: str) -> bool:
    """Whether a stored line is what would be measured now."""
    if line is None or not is_figure(line) or version.endswith("+"):
        return False
    settings = {"rounds": asked.rounds, "scale": asked.scale}
    return line["commit"] == version and line["settings"] == settings


def measured(bench: str, case: str, asked: argparse.Namespace) -> dict[str, Any]:
    """The line of one case; what went wrong stands under "failed"."""
    words = [f"benchmarks/bench_{bench}.py", case, "--scale", str(asked.scale)]
    for name in ("rounds", "folder", "peers"):
        value = getattr(asked, name)
        words += [] if value is None else [f"--{name}", str(value)]
    told: dict[str, Any] = {"case": case}
    try:
        done = _run([sys.executable, *words], asked.limit)
    except subprocess.TimeoutExpired:
        told |= {"failed": f"took longer than {asked.limit:g} s", "commit": code_version()}
    else:
        if done.returncode:
            told |= {"failed": done.stderr.strip()[-500:], "commit": code_version()}
        else:
            told = json.loads(done.stdout.splitlines()[-1])
    settings = {"rounds": asked.rounds, "scale": asked.scale}
    return told | {"settings": settings, "command": " ".join(["python", *_shown(words)])}


def _run(command: list[str], limit_seconds: float) -> subprocess.CompletedProcess[str]:
    """A case in a session of its own: servers and peers that it started end with it."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        shown, said = process.communicate(timeout=limit_seconds)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return subprocess.CompletedProcess(command, process.returncode, shown, said)


def _shown(words: list[str]) -> list[str]:
    """The command without folders of this machine."""
    return [Path(word).name if word.startswith("/") else word for word in words]


def stored(bench: str) -> dict[str, dict[str, Any]]:
    """Lines of a benchmark by case."""
    path = FIGURES / f"{bench}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return {line["case"]: line for line in map(json.loads, lines)}


def keep(bench: str, case: str, line: dict[str, Any]) -> None:
    """Put a line in the place of the case's older one. What is none replaces no figure."""
    lines = stored(bench)
    if not is_figure(line) and case in lines and is_figure(lines[case]):
        return
    lines[case] = line
    path = FIGURES / f"{bench}.jsonl"
    new = path.with_suffix(".new")
    new.write_text("".join(json.dumps(each) + "\n" for each in lines.values()))
    os.replace(new, path)


if __name__ == "__main__":
    sys.exit(main())
