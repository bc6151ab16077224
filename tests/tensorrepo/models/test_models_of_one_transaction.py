"""Models that are saved in one transaction, each a possible base of the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.repo.backends.memory import MemoryBackend


def tensors(number: int) -> dict[str, Any]:
    """A fine-tune of one of eight bases."""
    base, moved = (np.random.default_rng([7, seed]) for seed in (number % 8, 8 + number))
    return {
        f"layers.{at}.weight": base.normal(0, 0.02, (128, 128)).astype("<f4")
        + moved.normal(0, 1e-5, (128, 128)).astype("<f4")
        for at in range(4)
    }


def test_bases_that_are_not_stored_yet_are_read_by_several_threads(tmp_path: Path) -> None:
    repository = tr.init(tmp_path / "r", author="Ada <ada@example.org>")
    with repository.transaction("main", "models") as change:
        for number in range(9):
            change.save_model(f"m{number}", tensors(number))
    found = repository.model("m8").load(output="numpy")
    assert all(np.array_equal(found[name], each) for name, each in tensors(8).items())


def test_a_save_opens_as_many_objects_beside_60_models_as_beside_16(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository = tr.init("memory://beside", author="Ada <ada@example.org>")
    opened: set[str] = set()
    for name in ("read", "read_range", "read_into"):
        _note_keys(monkeypatch, name, opened)
    counts = []
    for first, stop in ((0, 16), (16, 60)):
        for number in range(first, stop):
            with repository.transaction("main", "another one") as change:
                change.save_model(f"m{number:02}", {"w": np.full(4, number, np.float32)})
        fresh = tr.open("memory://beside", author="Ada <ada@example.org>")
        opened.clear()
        with fresh.transaction("main", "one more") as change:
            change.save_model("new", {"w": np.full(4, -first - 1, np.float32)})
        counts.append(sum(key.startswith("objects/") for key in opened))
    assert counts[1] <= counts[0], counts


def _note_keys(monkeypatch: pytest.MonkeyPatch, name: str, opened: set[str]) -> None:
    """Collect keys that are read from memory by the method `name`."""
    method = getattr(MemoryBackend, name)

    def noting(self: MemoryBackend, key: str, *rest: Any, **named: Any) -> Any:
        opened.add(key)
        return method(self, key, *rest, **named)

    monkeypatch.setattr(MemoryBackend, name, noting)
