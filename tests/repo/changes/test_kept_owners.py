"""Counts of storage that are kept up to date are those of a count of everything."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.formats.common.summaries import decoded_bytes
from tensorrepo.repo.changes import kept_owners
from tensorrepo.repo.changes.growing_reach import GrowingReach
from tensorrepo.repo.changes.kept_owners import KeptOwners
from tensorrepo.repo.changes.owner_usage import Owners, OwnersUsage, measure_owners

STEPS = 14
EMPTY_BYTES = 400  # the root of a dataset before its first rows: no commit leads to it


@pytest.fixture
def listings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An item for each time that a store is counted from nothing."""
    made: list[int] = []
    before = GrowingReach.__init__

    def init(self: GrowingReach, *given: object) -> None:
        made.append(1)
        before(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(GrowingReach, "__init__", init)
    return made


def change_something(repo: tr.Repository, chance: random.Random, step: int) -> None:
    """A commit to a branch, with content that is new, or that another path has as well."""
    branch = chance.choice(list(repo.branches()) or ["main"])
    name = chance.choice("abc")
    rows = {"x": np.arange(chance.choice([10, 20_000]))}
    with repo.transaction(branch) as tx:
        if chance.random() < 0.5:
            weights = np.full(5000, chance.randrange(4), np.float32)
            tx.save_model(name, {"w": weights, "step": np.array(step)})
        elif step and f"datasets/{name}" in repo.entries(branch):
            tx.dataset(name).append(rows)
        else:
            tx.create_dataset(name, columns={"x": "int64"}).append(rows)
    if step % 5 == 4:
        repo.create_branch(f"side{step}", branch)


def counted(kept: KeptOwners, repo: tr.Repository, by: Owners) -> OwnersUsage:
    """What is kept, once it is seen to be what a count of everything finds."""
    core = repo.context.core
    found, expected = kept.measure(core, decoded_bytes), measure_owners(core, by, decoded_bytes)
    assert found == replace(expected, total_bytes=found.total_bytes)
    assert 0 <= expected.total_bytes - found.total_bytes <= STEPS * EMPTY_BYTES
    return found


@pytest.mark.parametrize("by", list(Owners))
def test_what_grew_is_counted_as_all_of_it(by: Owners, listings: list[int]) -> None:
    repo = tr.init(f"memory://kept-owners-{by}", author="Ada <ada@example.org>")
    kept, chance = KeptOwners(by), random.Random(7)
    for step in range(STEPS):
        change_something(repo, chance, step)
        found = counted(kept, repo, by)
    assert len(listings) == 1
    assert any(0 < one.unique_bytes < one.stored_bytes for one in found.owners)


@pytest.mark.parametrize("by", list(Owners))
def test_what_is_taken_away_is_counted_anew(by: Owners) -> None:
    repo = tr.init(f"memory://kept-owners-less-{by}", author="Ada <ada@example.org>")
    kept, chance = KeptOwners(by), random.Random(8)
    for step in range(5):
        change_something(repo, chance, step)
    counted(kept, repo, by)
    with repo.transaction("side4") as tx:
        tx.create_dataset("alone", columns={"x": "int64"}).append({"x": np.arange(10_000)})
    before = counted(kept, repo, by)
    repo.delete_branch("side4")
    dropped = counted(kept, repo, by)
    repo.gc(grace="0s", retention="0s")
    after = counted(kept, repo, by)
    assert dropped.owners != before.owners
    assert after.total_bytes < dropped.total_bytes


@pytest.mark.parametrize("limit", ["MOST_BITMAP_BYTES", "MOST_LISTED"])
def test_what_would_take_much_memory_is_counted_anew(
    limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_owners, limit, 1)
    repo = tr.init(f"memory://kept-owners-{limit}", author="Ada <ada@example.org>")
    kept, chance = KeptOwners(Owners.REF), random.Random(9)
    for step in range(6):
        change_something(repo, chance, step)
        counted(kept, repo, Owners.REF)
    assert kept._counted is None
