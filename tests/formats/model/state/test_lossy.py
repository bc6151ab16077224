"""Every number of a shortened state is within its bound, or has all of its bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tensorrepo.formats.common.provenance import LOSSY_OF, ProvenanceEdge
from tensorrepo.formats.common.tensors import tensor_of
from tensorrepo.formats.model.comparison import content_of
from tensorrepo.formats.model.state.lossy import (
    _FORMS,
    Approximation,
    LossyState,
    approximation_of,
    farthest,
    shorten_state,
    shortened,
)
from tensorrepo.formats.model.state.state_dict import take_apart
from tensorrepo.repo.errors import CorruptError, InvalidInputError

PLAIN = ["F64", "F32", "F16"]
SPECIAL = {
    "F32": [0, 1 << 31, 1, 0x007FFFFF, 0x807FFFFF, 0x7F800000, 0xFF800000, 0x7FC00001, 0x7F800001,
            0xFFFFFFFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x00800000],
    "BF16": [0, 1 << 15, 1, 0x7F, 0x807F, 0x7F80, 0xFF80, 0x7FC1, 0x7F81, 0xFFFF, 0x7F7F, 0xFF7F],
}  # fmt: skip


def adam(rows: int = 500, dtype: Any = np.float32) -> dict[str, Any]:
    random = np.random.default_rng(1)
    moment, weight = random.normal(size=(2, rows, 8)).astype(dtype)
    state = {"step": np.float32(3), "exp_avg": moment, "exp_avg_sq": moment**2}
    optimizer = {"state": {0: state}, "param_groups": [{"lr": 1e-3, "params": [0]}]}
    return {"model": {"weight": weight}, "optimizer": optimizer}


@pytest.mark.parametrize("name", PLAIN)
@given(data=st.data())
def test_every_number_is_within_the_bound_or_exact(name: str, data: Any) -> None:
    form = _FORMS[name]
    bits = data.draw(arrays(form.units, 64))
    kept = data.draw(st.integers(1, form.mantissa - 1))
    stored = shortened(bits, form, kept)
    before, after = (one.view(form.element.numpy).astype(np.longdouble) for one in (bits, stored))
    special = ~np.isfinite(before) | (np.abs(before) < np.finfo(form.element.numpy).tiny)
    assert np.array_equal(bits[special], stored[special])
    far = np.abs(after - before)[~special] <= np.abs(before[~special]) * 2.0 ** -(kept + 1)
    assert (far | (bits[~special] == stored[~special])).all()
    assert np.isfinite(after[~special]).all()
    assert farthest(bits, stored, form, 2.0 ** -(kept + 1)) is not None


@pytest.mark.parametrize("name", SPECIAL)
def test_what_is_no_normal_number_keeps_all_bits(name: str) -> None:
    form = _FORMS[name]
    bits = np.array(SPECIAL[name], form.units)
    assert np.array_equal(shortened(bits, form, 3), bits)


def test_numbers_lose_the_bits_that_they_may() -> None:
    bits = np.array([1 + 2**-8, 1 + 3 * 2**-8, -np.pi], "<f4").view("<u4")
    stored = shortened(bits, _FORMS["F32"], 7)
    assert stored.view("<f4").tolist() == [1.0, 1 + 4 * 2**-8, -3.140625]
    assert not (stored & 0xFFFF).any()


@pytest.mark.parametrize("change", [1 << 20, 1 << 31])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_check_finds_what_is_too_far(change: int, place: int) -> None:
    bits = np.array([1.5, np.nan, 1e-42], "<f4").view("<u4")
    wrong = bits.copy()
    wrong[place] ^= change
    assert farthest(bits, wrong, _FORMS["F32"], 2**-8) is None
    assert farthest(bits, bits, _FORMS["F32"], 2**-8) == 0


def test_moments_are_rounded_and_nothing_else_is() -> None:
    state = adam()
    apart, exact = take_apart(state), take_apart(adam())
    edge = shorten_state(apart.skeleton, apart.tensors, LossyState(relative=2**-8), "models/state")
    found = approximation_of([edge] if edge else [])
    assert found is not None
    names = {"optimizer.state.0.exp_avg", "optimizer.state.0.exp_avg_sq"}
    assert set(found.tensors) == names
    assert 2**-10 < found.largest <= 2**-8
    changed = {
        name for name, value in exact.tensors.items()
        if not np.array_equal(value, apart.tensors[name])
    }  # fmt: skip
    assert changed == names
    print_ = content_of(tensor_of("m", exact.tensors["optimizer.state.0.exp_avg"]))
    assert found.tensors["optimizer.state.0.exp_avg"] == print_.hex()


def test_what_a_model_holds_too_is_left_alone() -> None:
    state = adam()
    state["model"]["weight"] = state["optimizer"]["state"][0]["exp_avg"]
    apart = take_apart(state)
    edge = shorten_state(apart.skeleton, apart.tensors, LossyState(), "models/state")
    assert edge is not None
    assert set(edge.details["tensors"]) == {"optimizer.state.0.exp_avg_sq"}


@pytest.mark.parametrize(
    "state",
    [
        {"model": {"exp_avg": np.ones(99, "f4") / 3}},
        adam(rows=1),
        adam(dtype=np.float16),
        {"optimizer": {"state": {0: {"exp_avg": np.full(99, 0.3, ">f4")}}, "param_groups": []}},
    ],
    ids=["no optimizer", "in the manifest", "bits are few already", "of another order"],
)
def test_what_need_not_be_rounded_is_not(state: dict[str, Any]) -> None:
    apart = take_apart(state)
    assert shorten_state(apart.skeleton, apart.tensors, LossyState(relative=2**-11), "s") is None


@pytest.mark.parametrize("relative", [0, -1, 0.5, np.nan, "1/256"])
def test_a_bound_that_is_none_is_refused(relative: Any) -> None:
    with pytest.raises(InvalidInputError, match="expected a number above 0"):
        LossyState(relative=relative)


def test_keys_are_names() -> None:
    with pytest.raises(InvalidInputError, match="tuple of names"):
        LossyState(keys="exp_avg")  # type: ignore[arg-type]  # what is refused


@pytest.mark.parametrize(("relative", "bits"), [(2**-8, 7), (0.25, 1), (0.01, 6), (2**-24, 23)])
def test_as_few_bits_are_kept_as_the_bound_allows(relative: float, bits: int) -> None:
    assert LossyState(relative).kept_bits == bits


@pytest.mark.parametrize("details", [{}, {"relative": 1, "largest": "x", "tensors": {}}])
def test_a_lineage_that_tells_nonsense_is_corrupt(details: dict[str, Any]) -> None:
    with pytest.raises(CorruptError, match=LOSSY_OF):
        approximation_of([ProvenanceEdge(LOSSY_OF, "models/state", "0" * 64, None, details)])


def test_an_approximation_is_told_in_words() -> None:
    text = Approximation(2**-8, 0.0031, {"a": "", "b": ""}).text
    assert text == (
        "2 tensors of optimizer state are approximate: each number within 0.00391 of its size, "
        "the farthest 0.0031 off"
    )
