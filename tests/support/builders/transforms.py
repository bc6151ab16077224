"""Transforms that another process finds by name."""

from __future__ import annotations

import os
import signal
import time
from typing import Any


def doubled(batch: Any) -> dict[str, Any]:
    """Other containers and values than a batch has."""
    return {
        "twice": batch["point"] * 2,
        "label": batch["label"],
        "made": {
            "by": os.getpid(),
            "text": "né",
            "none": None,
            "of": (batch.position, 1.5, b"raw"),
        },
    }


def failing(batch: Any) -> Any:
    """Give up after two batches."""
    if batch.position > 20:
        raise LookupError(f"no sense in {batch.position}")
    return batch


def ending(batch: Any) -> Any:
    """What would end a loop silently, were it passed on."""
    raise StopIteration(batch.position)


def killed(batch: Any) -> Any:
    """Die as when the memory is used up."""
    if batch.position > 20:
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def sleepy(batch: Any) -> Any:
    """Take so long that nobody can wait for it."""
    if batch.position > 20:
        time.sleep(3600)
    return batch


def unsendable(batch: Any) -> Any:
    return {"batch": [batch["label"], {"what": {1, 2}}]}


def unhurried(batch: Any) -> Any:
    """Take so long that a worker can be met at work."""
    time.sleep(0.01)
    return batch
