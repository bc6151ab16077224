"""Bringing a catalog up to date: many commits, many tensors, and nothing at all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from catalog_cases.databases import databases
from harness import SEED, Options, medians_ms

from tensorrepo.formats.model.write.model_writer import write_model
from tensorrepo.query.catalog.database import CatalogDatabase
from tensorrepo.query.sync.catch_up import catch_up
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.changes.repository import (
    LocalState,
    RepositoryCore,
    create_repository,
    open_repository,
)
from tensorrepo.repo.history.commits import Commit, write_commit
from tensorrepo.repo.history.trees import EMPTY_TREE, Entry, update
from tensorrepo.repo.log.records import LogEntry, Update
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.writer import ObjectWriter

COMMITS, PATHS = 100_000, 20
MODELS, TENSORS = 1000, 300
ADA = "Ada <ada@example.org>"


def many_commits(folder: Path, options: Options) -> dict[str, Any]:
    """100,000 commits of one change each to one of 20 entries, a record of the log for each."""
    count = max(100, int(COMMITS * options.scale))
    repository = _repository(folder)
    _append(repository, _small_changes(repository, count))
    return {"commits": count} | _measured(folder, repository, options)


def many_tensors(folder: Path, options: Options) -> dict[str, Any]:
    """1,000 models of 300 tensors, half of them of an architecture of their own, 10 a commit."""
    count = max(10, int(MODELS * options.scale))
    repository = _repository(folder)
    _append(repository, _models(repository, count))
    return {"models": count, "tensors": TENSORS} | _measured(folder, repository, options)


def _measured(folder: Path, repository: RepositoryCore, options: Options) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, catalog in databases(folder):
        fresh = open_repository(repository.backend, drivers={})
        wall, cpu = time.perf_counter(), time.process_time()
        done = catch_up(fresh, catalog)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        found |= {
            "rows": done.rows,
            f"{name}_rows_per_s": round(done.rows / wall),
            f"{name}_rows_per_cpu_s": round(done.rows / cpu),
            f"{name}_seconds": round(wall, 2),
            **_nothing_new(name, fresh, catalog, options),
        }
    return found


def _nothing_new(
    name: str, repository: RepositoryCore, catalog: CatalogDatabase, options: Options
) -> dict[str, float]:
    seconds = []
    for _ in range(max(5, options.rounds)):
        begun = time.perf_counter()
        catch_up(repository, catalog)
        seconds.append(time.perf_counter() - begun)
    return medians_ms({f"{name}_nothing_new": seconds})


def _repository(folder: Path) -> RepositoryCore:
    return create_repository(LocalBackend(folder / "repo"), drivers={}, local=LocalState())


def _append(repository: RepositoryCore, staged: Iterator[tuple[ObjectWriter, Any]]) -> None:
    """A commit, and a record, for each of these changes; quicker than transactions would be."""
    tree, tip = EMPTY_TREE, None
    for generation, (writer, changes) in enumerate(staged, 1):
        tree = update(writer, tree, changes)
        parents = () if tip is None else (tip,)
        paths = tuple(changes) if len(changes) <= 256 else None
        commit = Commit(tree, parents, generation, ADA, "change", generation, {}, paths)
        made = write_commit(writer, commit).digest
        writer.flush()
        old, tip = tip, made
        moved = (Update("heads/main", old, tip),)
        entry = LogEntry(f"t{generation}", "commit", ADA, generation, "", moved)
        repository.append(lambda _, entry=entry: (entry,))


def _small_changes(repository: RepositoryCore, count: int) -> Any:
    rng = np.random.default_rng(SEED)
    for at in range(count):
        writer = ObjectWriter(repository.objects, ())
        link = writer.put(Kind.BLOB, b"%d" % at)
        yield writer, {f"files/{rng.integers(PATHS)}": Entry(Kind.BLOB, link.digest)}


def _models(repository: RepositoryCore, count: int) -> Any:
    rng = np.random.default_rng(SEED)
    for first in range(0, count, 10):
        writer = ObjectWriter(repository.objects, ())
        changes = {}
        for at in range(first, min(first + 10, count)):
            wide = 100 + at % 2 * at
            tensors = {
                f"layers.{n // 2}.{'weight' if n % 2 else 'bias'}": rng.random(
                    (2, wide) if n % 2 else wide, dtype="f4"
                )
                for n in range(TENSORS)
            }
            changes[f"models/m{at}"] = write_model(writer, tensors)
        yield writer, dict(sorted(changes.items()))


CASES: dict[str, Callable[[Path, Options], dict[str, Any]]] = {
    "many_commits": many_commits,
    "many_tensors": many_tensors,
}
