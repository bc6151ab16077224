"""Clients over a store that fails in every way: whatever the order, no promise is broken."""

from __future__ import annotations

from functools import partial

import pytest

from tensorrepo.repo.changes.transaction import CommitAttempt
from tests.support.effort import soaking
from tests.support.servers.sql_logs import in_sql, log_url
from tests.support.simulation.run import simulate


def test_one_seed_gives_one_trace() -> None:
    first, second = simulate(1, 60), simulate(1, 60)
    assert first.trace == second.trace
    assert first.trace != simulate(2, 60).trace


def test_no_order_of_actions_and_faults_breaks_a_promise() -> None:
    for seed in range(30):
        simulate(seed, 12, clients=2 + seed % 4, skew=seed % 2 == 1)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def test_nor_where_the_log_is_in_a_database(kind: str) -> None:
    seeds, actions = (200, 300) if soaking() else (2, 12)
    with log_url(kind) as url:
        for seed in range(seeds):
            logged = partial(in_sql, url=url, repository=f"seed-{seed}")
            simulate(seed, actions, clients=2 + seed % 4, skew=seed % 2 == 1, placed=logged)


@pytest.mark.soak  # what is gone is waited for, by clocks that no simulation holds
@pytest.mark.parametrize("seed", [22, 30])
def test_a_writer_without_its_fence_is_caught(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    simulate(seed, 300, clients=2 + seed % 4, skew=seed % 2 == 1)
    monkeypatch.setattr(CommitAttempt, "_pass_fence", lambda *_: None)
    with pytest.raises(AssertionError, match="leads to what is gone"):
        simulate(seed, 300, clients=2 + seed % 4, skew=seed % 2 == 1)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_so_it_is_at_length_and_with_clocks_that_are_wrong_by_a_day() -> None:
    for seed in range(2000):
        simulate(seed, 300, clients=2 + seed % 4, skew=seed % 2 == 1)
