"""How well do orders of training data mix, at equal memory? A simulation: nothing is read or timed.

    python benchmarks/order_quality.py [--rows N] [--resident PERCENT ...] [--svg FILE]

A dataset is stored sorted by class, the hardest case for whoever reads shards: rows that lie next
to each other are alike. Every order may keep the same number of rows in memory. Counted is what
consecutive batches of 256 show: how many different runs (stretches of 125 stored rows, about a MiB)
and how many different classes, in 1, 16 and 64 batches. One JSON line for each order; with `--svg`
a picture of the classes that up to 256 batches show.

The orders of other systems were written anew by their rules, which their documentation and sources
state: Mosaic's py1e and py1br, FFCV's quasi-random, LitData's chunks a worker, and WebDataset's
shards with a buffer. All get the storage unit that suits the memory; where several ranks or workers
read side by side, there are 32 of them, and a step takes its rows from all ranks.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.dataset.streaming.order.orders import (
    Buffered,
    Order,
    RowOrder,
    Scattered,
    choose_lanes,
    paired_lanes,
)
from tensorrepo.formats.dataset.streaming.order.random_numbers import Purpose, epoch_key
from tensorrepo.formats.dataset.streaming.order.schedule import Share, stretches

RUN_ROWS, SMALL_RUN_ROWS, BATCH, CLASSES = 125, 25, 256, 1000
SHARD_ROWS = 6500  # 64 MiB, the usual shard, where rows have 10 KiB
RANKS, READERS = 8, 32
PLACES = 60  # of the epoch, at which batches are looked at
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Case:
    """How many rows there are, and how many may be in memory."""

    rows: int
    resident: int
    seed: int = 7

    @property
    def rng(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


# ------------------------------------------------------------------------------ this project


def pages(case: Case, run_rows: int = RUN_ROWS) -> NDArray[np.int64]:
    """Paired lanes over runs."""
    lanes, bands = choose_lanes(case.resident, run_rows, BATCH)
    live = runs_of(case.rows, run_rows)
    order = paired_lanes(live, seed=case.seed, epoch=0, lanes=lanes, bands=bands)
    return rows_in(order, live, case)


def small_pages(case: Case) -> NDArray[np.int64]:
    """The same over runs of a fifth of the size."""
    return pages(case, SMALL_RUN_ROWS)


def everything(case: Case) -> NDArray[np.int64]:
    """The order `global`: a full shuffle, which needs any row at any time."""
    live = runs_of(case.rows)
    return rows_in(Scattered(starts(live), case.seed, 0), live, case)


def buffer(case: Case) -> NDArray[np.int64]:
    """Windows of storage order."""
    live = runs_of(case.rows)
    return rows_in(Buffered(starts(live), case.seed, 0, case.resident), live, case)


def storage(case: Case) -> NDArray[np.int64]:
    """No shuffle at all."""
    live = runs_of(case.rows)
    return rows_in(RowOrder(starts(live)), live, case)


def runs_of(rows: int, run_rows: int = RUN_ROWS) -> NDArray[np.int64]:
    return np.full(rows // run_rows, run_rows)


def starts(live: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.cumsum(live)))


def rows_in(order: Order, live: NDArray[np.int64], case: Case) -> NDArray[np.int64]:
    key = epoch_key(case.seed, 0, Purpose.ROWS)
    found = stretches(order, live, Share(BATCH), key=key, keep=False)
    return np.concatenate([part.run * int(live[0]) + part.row for part in found])


# ------------------------------------------------------------------------------ others


def py1e(case: Case) -> NDArray[np.int64]:
    """Shards in random order; each sample moves by up to half a block, either way."""
    return moved(case, SHARD_ROWS)


def py1e_small(case: Case) -> NDArray[np.int64]:
    """The same with shards as small as our runs."""
    return moved(case, RUN_ROWS)


def moved(case: Case, shard_rows: int) -> NDArray[np.int64]:
    rng = case.rng
    spans = shuffled_spans(case, shard_rows, rng)
    ids = np.concatenate([rng.permutation(span) for span in spans])
    at = np.arange(case.rows, dtype=np.float64)
    begin = 0
    for span in spans:
        reach = max(0.0, (rng.uniform(0.75, 1.25) * case.resident - span.size) / 2)
        low, high = max(-reach, -begin), min(reach, case.rows - begin - span.size)
        at[begin : begin + span.size] += rng.uniform(low, high, span.size)
        begin += span.size
    return ids[np.argsort(at)]


def py1br(case: Case) -> NDArray[np.int64]:
    """Shards in random order, cut into staggered blocks of random size, each shuffled."""
    rng = case.rng
    ids = np.concatenate(shuffled_spans(case, SHARD_ROWS, rng))
    stop = -int(rng.integers(0, int(0.75 * case.resident)))
    while stop < case.rows:
        start = max(0, stop)
        stop += int(rng.integers(int(0.75 * case.resident), int(1.25 * case.resident)))
        rng.shuffle(ids[start : max(0, stop)])
    return ids


def quasi_random(case: Case) -> NDArray[np.int64]:
    """Pages in random order, as many open as fit; each sample comes from a random one of them."""
    rng = case.rng
    waiting = [rng.permutation(span).tolist() for span in shuffled_spans(case, RUN_ROWS, rng)]
    waiting.reverse()
    fits = case.resident // RUN_ROWS
    current: list[list[int]] = []
    found = np.empty(case.rows, dtype=np.int64)
    draws = rng.random(case.rows)
    for at in range(case.rows):
        while waiting and len(current) < fits:
            current.append(waiting.pop())
        chosen = int(draws[at] * len(current))
        found[at] = current[chosen].pop()
        if not current[chosen]:
            current[chosen] = current[-1]
            current.pop()
    return found


def chunk_a_worker(case: Case) -> NDArray[np.int64]:
    """Every worker goes through chunks of its own, one at a time, each fully shuffled."""
    rng = case.rng
    chunk_rows = max(1, case.resident // READERS)
    chunks = [rng.permutation(span) for span in shuffled_spans(case, chunk_rows, rng)]
    return dealt([np.concatenate(chunks[reader::READERS]) for reader in range(READERS)])


def shards_and_buffer(case: Case) -> NDArray[np.int64]:
    """Every worker goes through shards of its own and draws from a buffer that they fill."""
    return through_buffers(case, SHARD_ROWS)


def small_shards_and_buffer(case: Case) -> NDArray[np.int64]:
    """The same with shards as small as our runs."""
    return through_buffers(case, RUN_ROWS)


def through_buffers(case: Case, shard_rows: int) -> NDArray[np.int64]:
    rng = case.rng
    shards = shuffled_spans(case, shard_rows, rng)
    own = [shards[reader::READERS] for reader in range(READERS)]
    fits = max(1, case.resident // READERS)
    return dealt([buffered(np.concatenate(spans), fits, rng) for spans in own if spans])


def buffered(rows: NDArray[np.int64], fits: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Each row replaces a random one of the buffer, which is handed out."""
    held, found = rows[:fits].copy(), np.empty_like(rows)
    places = rng.integers(0, held.size, rows.size)
    for at, row in enumerate(rows[fits:].tolist()):
        place = places[at]
        found[at], held[place] = held[place], row
    found[rows.size - held.size :] = rng.permutation(held)
    return found


def dealt(readers: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Steps of 8 ranks: each rank's part comes from one worker, and its workers take turns."""
    part = BATCH // RANKS
    length = min(reader.size for reader in readers) // part * part
    workers = max(1, len(readers) // RANKS)
    kept = np.stack([reader[:length] for reader in readers[: RANKS * workers]])
    by_turn = kept.reshape(RANKS, workers, length // part, part)
    return by_turn.transpose(2, 1, 0, 3).reshape(-1)


def shuffled_spans(case: Case, span_rows: int, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Shards, in random order."""
    bounds = range(0, case.rows, span_rows)
    spans = [np.arange(start, min(start + span_rows, case.rows)) for start in bounds]
    return [spans[at] for at in rng.permutation(len(spans))]


ORDERS: dict[str, tuple[Callable[[Case], NDArray[np.int64]], str]] = {
    "full shuffle": (everything, 'this project, shuffle="global"'),
    "pages": (pages, 'this project, shuffle="pages"'),
    "pages, small runs": (small_pages, 'this project, shuffle="pages", runs of 25 rows'),
    "FFCV quasi-random": (quasi_random, "pages of 125 rows"),
    "Mosaic py1e, small shards": (py1e_small, "shards of 125 rows"),
    "Mosaic py1e": (py1e, "shards of 6,500 rows"),
    "Mosaic py1br": (py1br, "shards of 6,500 rows"),
    "LitData": (chunk_a_worker, "32 workers, a chunk each"),
    "WebDataset": (shards_and_buffer, "32 workers, a buffer each, shards of 6,500 rows"),
    "WebDataset, small shards": (
        small_shards_and_buffer,
        "32 workers, a buffer each, shards of 125 rows",
    ),
    "buffer": (buffer, 'this project, shuffle="buffer"'),
    "storage order": (storage, "no shuffle"),
}


# ------------------------------------------------------------------------------ counting


def distinct(values: NDArray[np.int64], batches: int, places: int = PLACES) -> tuple[float, int]:
    """Different values in so many batches: mean and least of some places of the epoch.

    The first and the last tenth are left out.
    """
    rows = batches * BATCH
    first, last = values.size // 10, max(values.size // 10, values.size * 9 // 10 - rows)
    at = np.linspace(first, last, places).astype(int)
    counts = [np.unique(values[start : start + rows]).size for start in at.tolist()]
    return float(np.mean(counts)), min(counts)


def measured(name: str, case: Case) -> dict[str, object]:
    """What one order shows."""
    make, unit = ORDERS[name]
    rows = make(case)
    classes, runs = rows * CLASSES // case.rows, rows // RUN_ROWS
    return {
        "order": name,
        "unit": unit,
        "resident_percent": round(100 * case.resident / case.rows, 1),
        "runs": {batches: round(distinct(runs, batches)[0]) for batches in (1, 16, 64)},
        "classes": {batches: round(distinct(classes, batches)[0]) for batches in BATCHES},
        "least_classes": {batches: distinct(classes, batches)[1] for batches in (1, 16, 64)},
    }


# ------------------------------------------------------------------------------ picture

WIDTH, HEIGHT, LEFT, TOP = 760, 420, 60, 20
PLOT_WIDTH, PLOT_HEIGHT = 460, 350
FONT = 'font-family="sans-serif" font-size="12"'
COLORS = (
    "#222222", "#c0392b", "#f1948a", "#2471a3", "#8e44ad", "#bb8fce",
    "#27ae60", "#d68910", "#a04000", "#dc7633", "#16a085", "#aaaaaa",
)  # fmt: skip


def picture(found: list[dict[str, object]], percent: float) -> str:
    """Classes that consecutive batches show, one line for each order."""
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONT}>',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *(axis_line(share) for share in (0, 0.25, 0.5, 0.75, 1)),
        *(
            text(x_of(at), TOP + PLOT_HEIGHT + 18, str(batches), "middle")
            for at, batches in enumerate(BATCHES)
        ),
        text(LEFT + PLOT_WIDTH / 2, HEIGHT - 12, "consecutive batches of 256", "middle"),
        text(LEFT, TOP - 6, f"classes seen of {CLASSES:,}, {percent:g}% of the rows in memory"),
    ]
    ends = legend_places([list(each["classes"].values())[-1] for each in found])  # type: ignore[attr-defined]
    for each, color, end in zip(found, COLORS, ends, strict=True):
        counts = list(each["classes"].values())  # type: ignore[attr-defined]
        points = " ".join(f"{x_of(at):.1f},{y_of(count):.1f}" for at, count in enumerate(counts))
        lines.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        lines.append(text(LEFT + PLOT_WIDTH + 10, end + 4, str(each["order"]), fill=color))
    return "\n".join([*lines, "</svg>", ""])


def x_of(at: float) -> float:
    return LEFT + PLOT_WIDTH * at / (len(BATCHES) - 1)


def y_of(count: float) -> float:
    return TOP + PLOT_HEIGHT * (1 - count / CLASSES)


def axis_line(share: float) -> str:
    y = y_of(share * CLASSES)
    line = f'<line x1="{LEFT}" y1="{y}" x2="{LEFT + PLOT_WIDTH}" y2="{y}" stroke="#dddddd"/>'
    return line + text(LEFT - 8, y + 4, f"{share * CLASSES:,.0f}", "end")


def text(x: float, y: float, what: str, anchor: str = "start", fill: str = "#222222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}">{what}</text>'


def legend_places(counts: list[int]) -> list[float]:
    """Where the names of lines stand: at their ends, but not on each other."""
    places = [0.0] * len(counts)
    lowest = 0.0
    for at in sorted(range(len(counts)), key=lambda at: y_of(counts[at])):
        places[at] = lowest = max(y_of(counts[at]), lowest + 15)
    return places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--resident", type=float, nargs="+", default=[12.8, 2.0])
    parser.add_argument("--svg", type=Path, help="a picture of the first of --resident")
    asked = parser.parse_args()
    for at, percent in enumerate(asked.resident):
        case = Case(asked.rows, int(asked.rows * percent / 100))
        found = [measured(name, case) for name in ORDERS]
        for each in found:
            print(json.dumps(each), flush=True)
        if asked.svg is not None and not at:
            asked.svg.write_text(picture(found, percent))


if __name__ == "__main__":
    main()
