"""Models that are saved in one transaction, each a possible base of the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import tensorrepo as tr


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
