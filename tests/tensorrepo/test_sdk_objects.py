"""Datasets of other libraries, handed over as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr


class Points:
    """A dataset as torch's users write them."""

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int) -> tuple[Any, int]:
        return np.full(2, number, np.float32), number % 2


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    return tr.init(tmp_path / "store", author="Ada <ada@example.org>")


def test_a_torch_dataset_is_read_and_appended(repo: tr.Repository) -> None:
    with repo.transaction("main") as tx:
        reading = tr.read(Points(), names=("point", "label"))
        tx.create_dataset("points", columns=reading.schema).append(reading)
    assert repo.dataset("points")["point"][:].tolist() == [[0, 0], [1, 1], [2, 2]]


def test_samples_without_names_take_those_of_the_dataset(repo: tr.Repository) -> None:
    columns = {"point": tr.Tensor("float32", (2,)), "label": tr.ClassLabel(("low", "high"))}
    with repo.transaction("main") as tx:
        tx.create_dataset("points", columns=columns).append(Points())
    assert repo.dataset("points")["label"][:].tolist() == [0, 1, 0]


def test_another_object_is_refused() -> None:
    with pytest.raises(tr.InvalidInputError, match="cannot read object: expected a path"):
        tr.read(object())
