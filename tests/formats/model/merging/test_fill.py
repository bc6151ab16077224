from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.common.tensors import TYPES
from tensorrepo.formats.model.comparison import content_of
from tensorrepo.formats.model.merging.new_model import RULES, filled
from tensorrepo.repo.errors import InvalidInputError

F32 = TYPES["F32"]


def values(rule: str, shape: tuple[int, ...], name: str = "a.weight", seed: int = 0) -> Any:
    tensor = filled(name, F32, shape, rule, seed)
    out = np.empty(shape, "f4")
    tensor.read_into(0, out.reshape(-1).view("u1").data)
    return out


def test_the_rules_draw_what_they_say() -> None:
    assert (values("zeros", (9,)) == 0).all()
    assert (values("ones", (9,)) == 1).all()
    normal, uniform = values("normal", (1000, 100)), values("uniform", (1000, 100))
    assert abs(normal.mean()) < 1e-3
    assert abs(normal.std() - 0.02) < 1e-3
    assert np.abs(uniform).max() <= 0.1
    assert abs(uniform.std() - 0.1 / np.sqrt(3)) < 1e-3


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [("ln.weight", (9,), 1), ("ln.bias", (9,), 0), ("running_mean", (9,), 0)],
)
def test_the_default_knows_norms_and_biases(
    name: str, shape: tuple[int, ...], expected: float
) -> None:
    assert (values("default", shape, name) == expected).all()
    assert (values("default", (9, 9)) == values("uniform", (9, 9))).all()


def test_numbers_depend_on_name_and_seed_and_nothing_else() -> None:
    one = values("normal", (50, 50))
    assert (one == values("normal", (50, 50))).all()
    assert (one != values("normal", (50, 50), seed=1)).any()
    assert (one != values("normal", (50, 50), name="b.weight")).any()


def test_a_stretch_is_the_same_alone() -> None:
    count = (1 << 19) + 100
    whole = values("normal", (count,))
    part = np.empty(60, "f4")
    filled("a.weight", F32, (count,), "normal", 0).read_into(
        ((1 << 19) - 30) * 4, part.view("u1").data
    )
    np.testing.assert_array_equal(whole[(1 << 19) - 30 : (1 << 19) + 30], part)


def test_numbers_are_the_same_on_every_machine() -> None:
    tensor = filled("a.weight", F32, (10, 10), "uniform", 7)
    assert (
        content_of(tensor).hex()
        == "59520efc42c6b8fcd5695e2cd92eb47731a234d7247b05c65b961681a983b664"
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["I64", "BOOL"])
def test_counters_are_zero_by_every_rule(rule: str, name: str) -> None:
    data = np.full(16, 9, np.uint8)
    filled("n", TYPES[name], (16 // TYPES[name].block_bytes,), rule, 0).read_into(0, data.data)
    assert not data.any()


def test_what_no_rule_fills_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="no rule fills F4"):
        filled("w", TYPES["F4"], (16,), "normal", 0)
    with pytest.raises(InvalidInputError, match="no rule 'xavier'"):
        filled("w", F32, (16,), "xavier", 0)
