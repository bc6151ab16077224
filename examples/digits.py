"""What the examples of training share: scikit-learn's digits in a repository of their own."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import tensorrepo as tr

TRAINED = 1500  # pictures to train with; the rest is for tests


def folder() -> Path:
    """Where an example works: the folder that it was given, or a new one."""
    return Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="tensorrepo-"))


def digits(where: Path) -> tr.Dataset:
    """The first 1,500 pictures as a dataset; a repository is made for it once."""
    if (where / "store").exists():
        return tr.open(where / "store").dataset("digits")
    repo = tr.init(where / "store", author="Example <example@example.org>")
    found = load_digits()
    columns = {"image": tr.Tensor("uint8", (8, 8)), "label": tr.ClassLabel(tuple("0123456789"))}
    with repo.transaction("main", "scikit-learn's digits") as tx:
        tx.create_dataset("digits", columns=columns).append(
            {"image": found.images[:TRAINED].astype(np.uint8), "label": found.target[:TRAINED]}
        )
    return repo.dataset("digits")


def held_out() -> tuple[Any, Any]:
    """Pictures and labels that nobody trains with, float32 ``(n, 64)`` and int64 ``(n,)``."""
    found = load_digits()
    return found.data[TRAINED:].astype(np.float32) / 16, found.target[TRAINED:]
