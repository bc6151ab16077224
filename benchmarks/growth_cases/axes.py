"""Axes of growth: one operation at several sizes, and the exponent with which its cost grows.

Costs are seconds of CPU of the process that works, the least of some repetitions, each by a handle
that has just been opened: a loaded machine makes waits longer, but hardly this. An exponent is the
slope of a line through the logarithms of sizes and costs (least squares): 0 is flat, 1 linear.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import SEED, Options

import tensorrepo as tr

ADA = "Ada <ada@example.org>"
Grown = Iterator[tuple[int, Callable[[], float]]]  # a size, and what measures the cost there
Axis = Callable[[Path, Sequence[int]], Grown]


def measure(
    axis: Axis, sizes: Sequence[int], goal: float, *, least: float = 0.0
) -> Callable[[Path, Options], dict[str, Any]]:
    """A case that measures an axis, whose exponent should be `goal` at most.

    `least` is what no cost counts as less than, in ms: growth below it is of no interest.
    """

    def case(folder: Path, options: Options) -> dict[str, Any]:
        wanted = sorted({max(1, round(size * options.scale)) for size in sizes})
        points = {
            size: min(cost() for _ in range(options.rounds)) * 1e3
            for size, cost in axis(folder, wanted)
        }
        found = exponent(list(points), [max(each, least) for each in points.values()])
        return {
            "sizes": list(points),
            "cpu_ms": [round(each, 2) for each in points.values()],
            "exponent": round(found, 2),
            "goal": f"exponent <= {goal}",
            "reached": bool(found <= goal),
        }

    return case


def exponent(sizes: Sequence[int], costs: Sequence[float]) -> float:
    """The slope of ``log(cost)`` over ``log(size)``; 0 of a single size."""
    x, y = np.log(np.array(sizes, float)), np.log(np.maximum(costs, 1e-6))
    spread = float(((x - x.mean()) ** 2).sum())
    return float(((x - x.mean()) * (y - y.mean())).sum()) / spread if spread else 0.0


@contextmanager
def _cpu() -> Iterator[Callable[[], float]]:
    """Seconds of CPU of this process since the block began."""
    begun = time.process_time()
    yield lambda: time.process_time() - begun


def _repository(folder: Path) -> tr.Repository:
    return tr.init(folder / "repository", author=ADA)


def _fresh(folder: Path) -> tr.Repository:
    return tr.open(folder / "repository", author=ADA)


def _up_to(sizes: Sequence[int]) -> Iterator[tuple[int, range]]:
    """Each size, and the numbers from the size before up to it."""
    done = 0
    for size in sizes:
        yield size, range(done, size)
        done = size


def _commit_file(repo: tr.Repository, name: str, content: bytes) -> None:
    with repo.transaction("main", name) as tx:
        tx.save_file(name, content)


def _timed_commit(folder: Path, name: str) -> Callable[[], float]:
    def cost() -> float:
        repo = _fresh(folder)
        _commit_file(repo, name, b"before")  # what is read first is read here
        with _cpu() as spent:
            _commit_file(repo, name, str(time.monotonic_ns()).encode())
            return spent()

    return cost


# ------------------------------------------------------------------------------ what grows


def commits(folder: Path, sizes: Sequence[int]) -> Grown:
    """A commit of a small file, by the number of commits before it."""
    repo = _repository(folder)
    for size, more in _up_to(sizes):
        for at in more:
            _commit_file(repo, "file", str(at).encode())
        yield size, _timed_commit(folder, "file")


def history(folder: Path, sizes: Sequence[int]) -> Grown:
    """Opening, and the ten newest commits, by the number of commits."""
    repo = _repository(folder)

    def cost(size: int) -> float:
        with _cpu() as spent:
            assert len(_fresh(folder).log(limit=10)) == min(size, 10)
            return spent()

    for size, more in _up_to(sizes):
        for at in more:
            _commit_file(repo, "file", str(at).encode())
        yield size, partial(cost, size)


def entries(folder: Path, sizes: Sequence[int]) -> Grown:
    """A commit of one file, by the number of files beside it."""
    repo = _repository(folder)
    for size, more in _up_to(sizes):
        with repo.transaction("main", str(size)) as tx:
            for at in more:
                tx.save_file(f"{at:07}", str(at).encode())
        yield size, _timed_commit(folder, f"{size // 2:07}")


def refs(folder: Path, sizes: Sequence[int]) -> Grown:
    """Making a branch, by the number of refs, half of them tags."""
    repo = _repository(folder)
    _commit_file(repo, "file", b"one")
    names = iter(range(1 << 30))

    def cost() -> float:
        fresh = _fresh(folder)
        fresh.create_branch(f"before-{next(names)}")
        with _cpu() as spent:
            fresh.create_branch(f"here-{next(names)}")
            return spent()

    for size, more in _up_to(sizes):
        for at in more:
            (repo.create_tag if at % 2 else repo.create_branch)(f"ref-{at}")
        yield size, cost


def rows(folder: Path, sizes: Sequence[int]) -> Grown:
    """Opening a dataset and reading one row of 16 bytes, by the number of rows."""
    for size in sizes:
        place = folder / str(size)
        repo = _repository(place)
        with repo.transaction("main", "rows") as tx:
            tx.create_dataset("d", {"a": np.arange(size), "b": np.arange(size, dtype="<f8")})

        def cost(place: Path = place, size: int = size) -> float:
            with _cpu() as spent:
                assert _fresh(place).dataset("d")[size // 2]["a"] == size // 2
                return spent()

        yield size, cost


def columns(folder: Path, sizes: Sequence[int]) -> Grown:
    """The first row of all columns, by their number."""
    for size in sizes:
        place = folder / str(size)
        repo = _repository(place)
        with repo.transaction("main", "columns") as tx:
            tx.create_dataset("d", {f"c{at:05}": np.arange(100) + at for at in range(size)})

        def cost(place: Path = place) -> float:
            dataset = _fresh(place).dataset("d")
            with _cpu() as spent:
                assert dataset[7]["c00000"] == 7
                return spent()

        yield size, cost


def appends(folder: Path, sizes: Sequence[int]) -> Grown:
    """An append of 100 rows, by the number of appends before it."""
    repo = _appended(folder)

    def cost() -> float:
        fresh = _fresh(folder)
        with _cpu() as spent:
            _append(fresh, 0)
            return spent()

    for size, more in _up_to(sizes):
        for at in more:
            _append(repo, at)
        yield size, cost


def blame(folder: Path, sizes: Sequence[int]) -> Grown:
    """Blame of a row of the first commit, by the number of appends since."""
    repo = _appended(folder)

    def cost() -> float:
        fresh = _fresh(folder)
        with _cpu() as spent:
            assert fresh.blame("d", row=7).added.subject == "first"
            return spent()

    for size, more in _up_to(sizes):
        for at in more:
            _append(repo, at)
        yield size, cost


def _appended(folder: Path) -> tr.Repository:
    repo = _repository(folder)
    with repo.transaction("main", "first") as tx:
        kinds = {"a": "int64", "b": "float32", "t": tr.Tensor("float32", (128,))}
        tx.create_dataset("d", columns=kinds).append(_rows(0))
    return repo


def _append(repo: tr.Repository, at: int) -> None:
    with repo.transaction("main", str(at)) as tx:
        tx.dataset("d").append(_rows(at + 1))


def _rows(at: int) -> dict[str, Any]:
    random = np.random.default_rng([SEED, at])
    return {
        "a": np.arange(100) + 100 * at,
        "b": random.random(100, np.float32),
        "t": random.random((100, 128), np.float32),
    }


def small_tensors(folder: Path, sizes: Sequence[int]) -> Grown:
    """Saving a model of tensors of 4 KiB, by their number."""
    for size in sizes:
        place = folder / str(size)
        repo = _repository(place)
        tensors = {f"t{at:06}": _tensor(at) for at in range(size)}

        def cost(repo: tr.Repository = repo, tensors: dict[str, Any] = tensors) -> float:
            # Numbers that are nowhere stored yet: equal ones are not encoded again.
            changed = {name: each * np.float32(1 + 1e-3) for name, each in tensors.items()}
            tensors.update(changed)
            with _cpu() as spent, repo.transaction("main", "saved") as tx:
                tx.save_model("m", changed)
                return spent()

        yield size, cost


def models(folder: Path, sizes: Sequence[int]) -> Grown:
    """Saving a small model, by the number of models in the commit."""
    repo = _repository(folder)

    def cost() -> float:
        fresh = _fresh(folder)
        tensors = {"w": _tensor(time.monotonic_ns())}
        with _cpu() as spent:
            with fresh.transaction("main", "one more") as tx:
                tx.save_model("0000000", tensors)
            return spent()

    for size, more in _up_to(sizes):
        with repo.transaction("main", str(size)) as tx:
            for at in more:
                tx.save_model(f"{at:07}", {"w": _tensor(at)[:4]})
        yield size, cost


def _tensor(at: int) -> Any:
    return np.random.default_rng([SEED, at]).standard_normal(1024, np.float32)


def catalog_bytes(folder: Path, options: Options) -> dict[str, Any]:
    """What the catalog takes for each tensor of a version in which one tensor changed."""
    count, rng = max(1, round(20_000 * options.scale)), np.random.default_rng(SEED)
    tr.init(folder / "r")
    repo = tr.open(folder / "r", author=ADA, catalog=f"sqlite:///{folder / 'catalog.db'}")
    weights = {f"layers.{at}.weight": rng.standard_normal((16, 16)) for at in range(count)}
    sizes = []
    for step in range(2):
        weights["layers.0.weight"] = weights["layers.0.weight"] + step
        with repo.transaction(message=f"step {step}") as tx:
            tx.save_model("net", weights)
        repo.catalog.catch_up()
        sizes.append(_used_bytes(folder / "catalog.db"))
    found = (sizes[1] - sizes[0]) / count
    return {
        "tensors": count,
        "first_bytes": sizes[0],
        "bytes_a_tensor": round(found, 1),
        "goal": "bytes_a_tensor <= 50",
        "reached": bool(found <= 50),
    }


def _used_bytes(file: Path) -> int:
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        asked = "PRAGMA page_count", "PRAGMA freelist_count", "PRAGMA page_size"
        pages, free, size = (database.execute(one).fetchone()[0] for one in asked)
    return int((pages - free) * size)


CASES = {
    "growth_commits": measure(commits, (100, 1_000, 5_000), 0.1, least=2.0),
    "growth_history": measure(history, (100, 1_000, 5_000), 0.1, least=2.0),
    "growth_entries": measure(entries, (100, 1_000, 10_000), 0.3, least=2.0),
    "growth_refs": measure(refs, (10, 1_000, 4_000), 0.2, least=2.0),
    "growth_rows": measure(rows, (100_000, 1_000_000, 10_000_000), 0.1, least=5.0),
    "growth_columns": measure(columns, (10, 100, 1_000), 1.1),
    "growth_appends": measure(appends, (50, 200, 800), 0.5),
    "growth_blame": measure(blame, (50, 100, 200, 400), 1.2),
    "growth_small_tensors": measure(small_tensors, (100, 1_000, 10_000), 1.1),
    "growth_models": measure(models, (100, 500, 2_000), 0.2, least=5.0),
    "growth_catalog": catalog_bytes,
}
