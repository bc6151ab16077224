"""A picture of what `bench_stream.py` printed: rows a second of ours and of the loaders beside us.

python benchmarks/bench_stream.py loaders --peers ... | python benchmarks/stream_bars.py out.svg
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

WIDTH, LEFT, RIGHT, TOP, BAR, GAP = 760, 190, 120, 40, 22, 10
FONT = 'font-family="sans-serif" font-size="13"'
OURS, THEIRS, INK = "#c0392b", "#7f8c8d", "#222222"
NAMES = {
    "ours": "tensorrepo",
    "litdata": "LitData",
    "mosaic": "Mosaic",
    "huggingface": "HF datasets",
    "webdataset": "WebDataset",
    "lance": "Lance",
}


def main() -> None:
    lines = [json.loads(line) for line in sys.stdin if line.startswith("{")]
    told = next(line for line in lines if line["case"] == "loaders")
    Path(sys.argv[1]).write_text(picture(told["rows_per_s"]))


def picture(rows_per_s: dict[str, int]) -> str:
    """Bars, the fastest first."""
    sides = sorted(rows_per_s.items(), key=lambda side: -side[1])
    height = TOP + len(sides) * (BAR + GAP) + GAP
    scale = (WIDTH - LEFT - RIGHT) / sides[0][1]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        text(20, 24, "shuffled rows of 3 KiB a second, warm local disk, batches of 256"),
    ]
    for at, (name, rate) in enumerate(sides):
        y, width = TOP + at * (BAR + GAP), max(1.0, rate * scale)
        color = OURS if name == "ours" else THEIRS
        lines.append(text(LEFT - 10, y + 16, label(name), "end"))
        lines.append(
            f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR}" fill="{color}"/>'
        )
        lines.append(text(LEFT + width + 8, y + 16, f"{rate:,}"))
    return "\n".join([*lines, "</svg>", ""])


def label(name: str) -> str:
    """ "litdata_2" is LitData with two workers."""
    peer, _, workers = name.partition("_")
    return NAMES[peer] + (f", {workers} workers" if workers not in ("", "0") else "")


def text(x: float, y: float, what: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{INK}">{what}</text>'


if __name__ == "__main__":
    main()
