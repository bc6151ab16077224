"""Clients over stores that fail in every way: whatever the order, no promise is broken."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from tensorrepo.repo.changes import gc_fence, gc_packs, leases
from tensorrepo.repo.changes.transaction import CommitAttempt
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.workspace import staged_lease
from tests.support.effort import soaking
from tests.support.servers.sql_logs import in_sql, log_url
from tests.support.simulation.clients import ACTIONS
from tests.support.simulation.run import Simulated, simulate
from tests.support.simulation.store import READ_FAULTS, WRITE_FAULTS

pytestmark = pytest.mark.long
SHARES = 8


def simulated(seed: int, actions: int) -> Simulated:
    """Odd seeds have clocks that are wrong by a day."""
    return simulate(seed, actions, clients=2 + seed % 4, skew=seed % 2 == 1)


def test_one_seed_gives_one_trace() -> None:
    first, second = simulate(1, 60), simulate(1, 60)
    assert first.trace == second.trace
    assert first.trace != simulate(2, 60).trace


def test_no_order_of_actions_and_faults_breaks_a_promise() -> None:
    done, faults = Counter[str](), Counter[str]()
    for seed in range(30):
        ended = simulated(seed, 300)
        done.update(what for what, outcome in ended.outcomes if outcome == "done")
        faults += ended.faults
    assert done.keys() >= set(ACTIONS) - {"redo"}  # else they were not tried
    assert faults.keys() >= {*READ_FAULTS, *WRITE_FAULTS, "death"}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("fence", "name", "seeds"),
    [
        # The first seed of each does it; others are in reserve.
        (gc_fence, "secure_commit", range(5, 25)),
        (leases, "secure_kept", range(2, 22)),
        (staged_lease, "secure_kept", range(29, 60)),
        pytest.param(CommitAttempt, "_pass_fence", range(300), marks=pytest.mark.soak),
    ],
)
def test_some_order_catches_who_names_a_commit_or_opens_a_lease_without_the_fence(
    fence: object, name: str, seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fence, name, lambda *_: None)
    with pytest.raises((AssertionError, NotFoundError)):
        all(simulated(seed, 300) for seed in seeds)


def test_some_order_catches_who_forgets_what_lies_in_packs_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gc_packs._Packing, "_is_buried", lambda *_: True)
    with pytest.raises((AssertionError, NotFoundError)):
        all(simulated(seed, 300) for seed in range(5))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)])
def test_nor_where_the_log_is_in_a_database(kind: str) -> None:
    seeds, actions = (200, 300) if soaking() else (2, 12)
    with log_url(kind) as url:
        for seed in range(seeds):
            logged = partial(in_sql, url=url, repository=f"seed-{seed}")
            simulate(seed, actions, clients=2 + seed % 4, skew=seed % 2 == 1, placed=logged)


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("share", range(SHARES))
def test_so_it_is_at_length(share: int) -> None:
    for seed in range(share, 2000, SHARES):
        simulated(seed, 300)
