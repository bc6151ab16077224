"""Repositories for trainings by other libraries."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import tensorrepo as tr


def prepared(folder: Path) -> tr.Repository:
    """A repository with a dataset of 64 points."""
    folder.mkdir()
    repository = tr.init(folder / "repo", author="Ada <ada@example.org>")
    points = np.random.default_rng(1).normal(size=(64, 4)).astype("f4")
    with repository.transaction(message="Points") as tx:
        columns = {"x": tr.Tensor("float32", (4,))}
        tx.create_dataset("points", columns=columns).append({"x": points})
    return repository
