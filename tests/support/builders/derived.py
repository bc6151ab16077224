"""Transforms for tests of derived rows: of this module, so that they can be identified."""

from __future__ import annotations

from typing import Any

import numpy as np

SCALE = 3.0


def scaled(batch: Any) -> Any:
    """A dict of what follows from each row alone."""
    return {"z": batch["x"] * np.float32(SCALE), "name": [f"row {y}" for y in batch["y"]]}


def in_place(batch: Any) -> Any:
    """The batch, changed."""
    batch["x"] = batch["x"] + 1
    batch["twice"] = batch["y"] * 2
    return batch


def pair(batch: Any) -> Any:
    return batch["x"][:, :2], batch["y"]


def of_the_batch(batch: Any) -> Any:
    return {"z": batch["x"] - batch["x"].mean()}


def random_values(batch: Any) -> Any:
    return {"z": np.random.default_rng().random(len(batch.rows))}


def no_rows(batch: Any) -> Any:
    return {"z": batch["x"].sum()}


def tensors(batch: Any) -> Any:
    return {"z": batch["x"] * 2, "y": batch["y"]}


def scaled_label(batch: Any) -> Any:
    return {"z": batch["label"] * 2}
