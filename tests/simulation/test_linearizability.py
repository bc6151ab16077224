"""Refs are registers: whatever clients were told, one order of all that happened explains it."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path

import pytest

from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.log.reader import RepositoryLog
from tests.support.effort import soaking
from tests.support.reference.linearizable import SOMETHING, RegisterOperation, linearize
from tests.support.simulation.registers import History, simulated_history, threaded_history

HISTORIES = 200 if soaking() else 12
UNKNOWN_SEED = 0
THREADED = 20 if soaking() else 1


def write(began: float, ended: float, before: str | None, after: str | None) -> RegisterOperation:
    return RegisterOperation(began, ended, before, changes=True, after=after)


def read(began: float, ended: float, value: str | None) -> RegisterOperation:
    return RegisterOperation(began, ended, value)


@pytest.mark.parametrize(
    "history",
    [
        [],
        [read(1, 2, None), write(3, 4, None, "x"), read(5, 6, "x")],
        [write(1, 9, None, "x"), read(2, 3, "x"), read(4, 5, "x")],  # while it is under way
        [write(1, 9, None, "x"), read(2, 3, None), read(4, 5, "x")],
        [write(1, inf, None, "x"), read(2, 3, None), read(8, 9, "x")],  # unknown, and done later
        [write(1, inf, None, "x"), read(2, 3, None), read(8, 9, None)],  # unknown, and never done
        [write(1, 4, None, "x"), write(2, 5, "x", "y"), RegisterOperation(6, 7, SOMETHING)],
        [write(1, 2, None, "x"), write(3, 8, "x", None), write(4, 9, None, "y"), read(5, 6, "x")],
    ],
)
def test_what_one_order_explains_is_linearizable(history: list[RegisterOperation]) -> None:
    order = linearize(history)
    assert order is not None
    value = None
    for one in order:
        assert one.fits(value)
        value = one.after if one.changes else value


@pytest.mark.parametrize(
    "history",
    [
        [read(1, 2, "x")],  # nobody wrote it
        [write(1, 2, None, "x"), read(3, 4, None)],  # stale
        [write(1, 9, None, "x"), read(2, 3, "x"), read(4, 5, None)],  # back in time
        [write(1, 4, None, "x"), write(2, 5, None, "y")],  # two made it
        [write(1, 2, None, "x"), write(3, 6, "x", "y"), write(4, 7, "x", "z")],  # lost update
        [write(1, 2, None, "x"), write(3, 4, "x", None), RegisterOperation(5, 6, SOMETHING)],
        [write(1, inf, None, "x"), read(2, 3, "x"), read(4, 5, None)],
    ],
)
def test_what_no_order_explains_is_not(history: list[RegisterOperation]) -> None:
    assert linearize(history) is None


def test_refs_are_linearizable_over_a_store_that_fails() -> None:
    operations = 0
    for seed in range(HISTORIES):
        history = simulated_history(seed)
        assert history.impossible() == [], f"seed {seed}"
        operations += sum(map(len, history.by_ref.values()))
    assert operations > 40 * HISTORIES


@pytest.mark.parametrize("seed", range(THREADED))
def test_refs_are_linearizable_for_threads_on_a_disk(seed: int, tmp_path: Path) -> None:
    history = threaded_history(lambda: LocalBackend(tmp_path / "store"), seed)
    assert history.impossible() == []


def caught(seeds: Sequence[int]) -> list[str]:
    return [ref for seed in seeds for ref in simulated_history(seed).impossible()]


def test_a_reader_that_does_not_look_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = RepositoryLog.refresh
    monkeypatch.setattr(RepositoryLog, "refresh", lambda log: log.latest or looked(log))
    assert caught(range(2))


def test_a_store_that_lets_two_writers_win_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    created = MemoryBackend.create

    def wins(backend: MemoryBackend, key: str, parts: Sequence[Buffer]) -> bool:
        if key.startswith("log/0"):
            backend.overwrite(key, parts)
            return True
        return created(backend, key, parts)

    monkeypatch.setattr(MemoryBackend, "create", wins)
    with pytest.raises(CorruptError, match="does not follow the record before it"):
        caught(range(2))


def test_an_unknown_outcome_that_is_called_a_failure_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    noted = History.note

    def note(history: History, ref: str, operation: RegisterOperation) -> None:
        if operation.ended != inf:
            noted(history, ref, operation)

    monkeypatch.setattr(History, "note", note)
    assert caught(range(UNKNOWN_SEED, UNKNOWN_SEED + 1))
