from __future__ import annotations

import numpy as np
import pytest

from tensorrepo.formats.model.layout.fingerprints import architecture_fingerprint
from tests.support.builders.models import stored


def fingerprint(tensors: dict[str, object]) -> str:
    model = stored(tensors)
    return architecture_fingerprint(model.spec(name) for name in model)


def test_weights_and_their_order_do_not_matter() -> None:
    first = {"a": np.zeros((2, 3), "f4"), "b": np.zeros(100)}
    second = {"b": np.ones(100), "a": np.ones((2, 3), "f4")}
    assert fingerprint(first) == fingerprint(second)


@pytest.mark.parametrize(
    "other",
    [
        {"b": np.zeros((2, 3), "f4")},
        {"a": np.zeros((3, 2), "f4")},
        {"a": np.zeros((2, 3), "f8")},
        {"a": np.zeros((2, 3), "f4"), "b": np.zeros(1)},
        {},
    ],
)
def test_names_shapes_and_types_do(other: dict[str, object]) -> None:
    assert fingerprint({"a": np.zeros((2, 3), "f4")}) != fingerprint(other)


def test_it_is_the_same_on_every_machine() -> None:
    found = fingerprint({"a": np.zeros((2, 3), "f4"), "b": np.zeros(100)})
    assert found == ("08aa04e3a72ec610ceb7086e21b224aa4f7ce85905defe69be311d7d00487cb2")
