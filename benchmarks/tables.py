"""Tables and a picture of stored figures: ours beside the peers', with date, machine and commit.

    python benchmarks/tables.py

Reads `results/figures/*.jsonl`, which `everything.py` keeps, and writes `results/figures.md`,
`results/figures.svg` and the table of README.
A case has sides where its line has "ours_UNIT" beside other keys of that unit, or a mapping with
"ours" in it; times are better when small, rates when large.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

FIGURES = Path(__file__).resolve().parent / "results/figures"
OURS = "ours"
UNITS = (
    "p50_ms", "rows_per_s", "gb_per_s", "gb_per_second", "mb_per_s", "batches_per_s", "steps_per_s",
    "ms", "s", "cpu_ns_a_byte",
)  # fmt: skip
ABOUT = {
    "case", "commit", "command", "cores", "date", "goal", "load", "memory_gib", "processor",
    "python", "rounds", "settings",
}  # fmt: skip
# Ours, too.
NO_PEERS = {"presented", "proved", "open", "cold", "first", "p50", "p99", "wall", "cpu"}
MOST_SHOWN = 12  # figures of a case without sides
README = FIGURES.parents[2] / "README.md"
BEGIN, END = "<!-- figures: python benchmarks/tables.py -->", "<!-- end of figures -->"
# What README's table says of a case, and names of its peers; others are called by their keys.
IN_README = {
    "rows_3k": "shuffled rows of 3 KiB into torch, from disk",
    "loaders": "the same",
    "images": "JPEGs decoded into shuffled batches",
    "take_3k": "1,024 random rows of 3 KiB",
    "scan_3k": "all of 307 MB of rows of 3 KiB in order",
    "ingest_array": "1 GB of rows stored",
    "write_rows": "614 MB of rows stored, durable",
    "ingest_jpeg": "20,000 JPEGs of 20 KB stored",
    "save_f32": "a fine-tune of an encoder saved, F32",
    "save_alone_f32": "the encoder saved without a base, F32",
    "starting": "`tensorrepo status`, the whole process",
    "load_f32": "the fine-tune loaded into torch, F32",
}
PEERS = {
    "copy": "a copy with `fsync`",
    "floor": "what it cannot leave out",
    "huggingface": "Hugging Face datasets",
    "lance": "Lance",
    "load_file": "safetensors' `load_file` and a clone, unverified",
    "index": "torch's `memory[index]`",
    "limit": "decoding alone, on all cores",
    "litdata": "LitData",
    "litdata_synced": "LitData, synced",
    "mosaic": "Mosaic",
    "mosaic_synced": "Mosaic, synced",
    "kernels": "its codecs alone",
    "kernels_and_base": "its codecs and its base's decoding alone",
    "numpy": "`import numpy` alone",
    "python": "Python alone",
    "click": "`import click` alone",
    "typer_rich_msgspec": "Typer, Rich and msgspec imported alone",
    "select": "torch's `index_select`",
    "torch": "torch's `DataLoader`",
    "webdataset": "WebDataset",
    "zipnn": "ZipNN",
}
WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 860, 230, 190, 60, 16, 8
FONT = 'font-family="sans-serif" font-size="12"'
AHEAD, BEHIND, INK, LINE = "#1e8449", "#c0392b", "#222222", "#999999"


@dataclass(frozen=True)
class Sides:
    """Ours and the peers' figures of one case, in one unit."""

    unit: str
    values: Mapping[str, float]

    @property
    def is_time(self) -> bool:
        return self.unit in {"p50_ms", "cpu_ns_a_byte", "median_cpu_ms", "ms", "s"}

    @property
    def best(self) -> str:
        """The best of the peers."""
        peers = {name: value for name, value in self.values.items() if name != OURS}
        return (min if self.is_time else max)(peers, key=lambda name: peers[name])

    @property
    def lead(self) -> float:
        """How many times as fast ours is as the best peer."""
        return self.leads[self.best]

    @property
    def leads(self) -> dict[str, float]:
        """How many times as fast ours is as each peer."""
        ours = self.values[OURS]
        peers = {name: value for name, value in self.values.items() if name != OURS}
        return {name: each / ours if self.is_time else ours / each for name, each in peers.items()}


def main() -> None:
    lines = list(stored())
    (FIGURES.parent / "figures.md").write_text(table(lines))
    (FIGURES.parent / "figures.svg").write_text(picture(lines))
    README.write_text(with_table(README.read_text(), lines))


def stored() -> Iterator[dict[str, Any]]:
    for path in sorted(FIGURES.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            yield {"benchmark": path.stem, **json.loads(line)}


def sides_of(line: Mapping[str, Any]) -> Sides | None:
    """The first figure of a line that ours and a peer have."""
    for name, value in line.items():
        if isinstance(value, dict) and OURS in value and len(value) > 1:
            numbers = {side: each for side, each in value.items() if _is_number(each)}
            if OURS in numbers and len(numbers) > 1:
                return Sides(name, numbers)
    for unit in UNITS:
        numbers = {
            OURS if name == unit else name.removesuffix(f"_{unit}"): value
            for name, value in line.items()
            if (name == unit or name.endswith(f"_{unit}")) and _is_number(value)
        }
        numbers = {
            name: value
            for name, value in numbers.items()
            if name not in NO_PEERS and not name.startswith("cpu_")
        }
        if OURS in numbers and len(numbers) > 1:
            return Sides(unit, numbers)
    return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


# ------------------------------------------------------------------------------ a table


def table(lines: list[dict[str, Any]]) -> str:
    """All lines as Markdown; each with its own date and commit, for a run may take days."""
    done = [line for line in lines if "failed" not in line and "skipped" not in line]
    head = [
        "# Figures",
        "",
        "Made by `make bench-all` from `figures/*.jsonl`; not written by hand. A ratio above 1",
        "says that ours is ahead of the best beside it. Figures of two machines are not compared.",
        "A load far above the cores says that others worked, too: then only sides that took turns,",
        "processor time and exponents mean something.",
        "",
    ]
    machines = {
        f"{_of(each, 'processor')}, {_of(each, 'cores')} cores, {_of(each, 'memory_gib')} GiB, "
        f"Python {_of(each, 'python')}"
        for each in done
    }
    head += [f"Machine: {each}." for each in sorted(machines)]
    if any(sides_of(line) for line in done):
        head += ["", "![ours beside the best peer](figures.svg)"]
    rows = [
        "",
        "| case | ours | beside | ratio | goal | date | load | commit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    rows += [_row(line) for line in done]
    left = [f"- `{line['case']}`: {_why(line)}" for line in lines if line not in done]
    return "\n".join([*head, *rows, *(["", "Not measured:", "", *left] if left else []), ""])


def _of(line: Mapping[str, Any], name: str) -> Any:
    return line.get(name, "?")


def _why(line: Mapping[str, Any]) -> str:
    return str(line.get("skipped") or f"failed, {line.get('failed', '')}".splitlines()[-1])[:160]


def _row(line: Mapping[str, Any]) -> str:
    found = sides_of(line)
    if found is None:
        ours, beside, lead = _alone(line), "", ""
    else:
        ours = f"{_number(found.values[OURS])} {_unit(found.unit)}"
        peers = [each for each in found.values.items() if each[0] != OURS]
        beside = ", ".join(f"{name} {_number(value)}" for name, value in peers)
        lead = f"{found.lead:.2f}"
    goal = str(line.get("goal", "")).replace("|", "/")
    about = (_of(line, each) for each in ("date", "load", "commit"))
    cells = (f"`{line['case']}`", ours, beside, lead, goal, *about)
    return "| " + " | ".join(map(str, cells)) + " |"


def _alone(line: Mapping[str, Any]) -> str:
    told = {name: value for name, value in line.items() if name not in {*ABOUT, "benchmark"}}
    shown = [
        f"{name} {_number(value)}" for name, value in told.items() if not isinstance(value, dict)
    ]
    return ", ".join(shown[:MOST_SHOWN])


def _number(value: Any) -> str:
    if isinstance(value, list):
        return "/".join(map(_number, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _unit(unit: str) -> str:
    unit = unit.replace("_per_second", "/s").replace("_per_s", "/s").replace("_", " ")
    return unit.replace("gb", "GB").replace("mb", "MB")


def with_table(text: str, lines: list[dict[str, Any]]) -> str:
    """README with what stands between its marks made anew of one run.

    As it was, where not all of its cases were measured at one commit.
    """
    shown = {line["case"]: line for line in lines if line["case"] in IN_README}
    sides = {case: found for case in shown if (found := sides_of(shown[case])) is not None}
    commits = {_of(line, "commit") for line in shown.values()}
    if sides.keys() != IN_README.keys() or len(commits) > 1 or BEGIN not in text:
        return text
    days = sorted({_of(line, "date") for line in shown.values()})
    one = next(iter(shown.values()))
    head = [
        (
            f"Measured {' to '.join(days[:1] + days[1:][-1:])} at commit {commits.pop()}, on "
            f"{_of(one, 'processor')}, {_of(one, 'cores')} cores, {_of(one, 'memory_gib')} GiB, "
            f"Python {_of(one, 'python')}:"
        ),
        "",
        "| what | ours | times as fast as | load |",
        "|---|---|---|---|",
    ]
    rows = [
        f"| {what} | {_number(sides[case].values[OURS])} {_unit(sides[case].unit)} | "
        f"{_leads(sides[case])} | {_of(shown[case], 'load')} |"
        for case, what in IN_README.items()
    ]
    before, _, rest = text.partition(BEGIN)
    return "\n".join([before + BEGIN, *head, *rows, END + rest.partition(END)[2]])


def _leads(sides: Sides) -> str:
    """The best of each peer, whatever the number of its workers: the smallest lead first."""
    least: dict[str, float] = {}
    for name, lead in sorted(sides.leads.items(), key=lambda each: each[1]):
        least.setdefault(PEERS.get(name, PEERS.get(name.rstrip("0123456789_"), name)), lead)
    return ", ".join(f"{peer} {lead:.1f}" if lead >= 2 else f"{peer} {lead:.2f}"
                     for peer, lead in least.items())  # fmt: skip


# ------------------------------------------------------------------------------ a picture


def picture(lines: list[dict[str, Any]]) -> str:
    """A bar for each case with peers: how many times as fast as the best of them, logarithmic."""
    leads = [(line, sides) for line in lines if (sides := sides_of(line)) is not None]
    height = TOP + len(leads) * (BAR + GAP) + 2 * GAP
    reach = max((abs(math.log2(sides.lead)) for _, sides in leads), default=1.0)
    reach = max(1.0, math.ceil(reach))
    middle, scale = LEFT + (WIDTH - LEFT - RIGHT) / 2, (WIDTH - LEFT - RIGHT) / 2 / reach
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(20, 24, "Speed beside the best peer or limit of the same run (logarithmic)"),
    ]
    for power in range(-int(reach), int(reach) + 1):
        x = middle + power * scale
        drawn.append(
            f'<path d="M{x:.1f} {TOP - 8} V{height - GAP}" stroke="{LINE}" stroke-width="0.5"/>'
        )
        drawn.append(_text(x, TOP - 12, f"{2.0**power:g}x", "middle"))
    for at, (line, sides) in enumerate(leads):
        y, end = TOP + at * (BAR + GAP), middle + math.log2(sides.lead) * scale
        color = AHEAD if sides.lead >= 1 else BEHIND
        drawn.append(_text(LEFT - 8, y + 12, line["case"], "end"))
        drawn.append(
            f'<rect x="{min(middle, end):.1f}" y="{y}" width="{max(1.0, abs(end - middle)):.1f}" '
            f'height="{BAR}" fill="{color}"/>'
        )
        drawn.append(_text(WIDTH - RIGHT + 12, y + 12, f"{sides.lead:.2f} x {sides.best}"))
    return "\n".join([*drawn, "</svg>", ""])


def _text(x: float, y: float, what: str, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}">{escape(what)}</text>'
    )


if __name__ == "__main__":
    main()
