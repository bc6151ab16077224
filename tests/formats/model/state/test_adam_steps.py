"""The steps of Adam are found in the states that torch's optimizers give."""

from __future__ import annotations

from typing import Any

import pytest

from tensorrepo.formats.model.state.adam_steps import AdamStep, adam_steps, predictions
from tensorrepo.formats.model.state.state_dict import take_apart


def trained(optimizer_of: Any, steps: int = 3) -> dict[str, Any]:
    """The state of a small training after some steps, its rate changed after each."""
    torch = pytest.importorskip("torch", reason="pip install tensorrepo[torch]")
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 8)
    )
    optimizer = optimizer_of(model)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        scheduler.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def steps_of(state: dict[str, Any], before: dict[str, Any] | None = None) -> dict[Any, AdamStep]:
    apart = take_apart(state)
    skeleton = None if before is None else take_apart(before).skeleton
    return {step.weight: step for step in adam_steps(apart.skeleton, apart.tensors, skeleton)}


def adamw(model: Any) -> Any:
    import torch

    return torch.optim.AdamW(model.parameters(), lr=0.5, betas=(0.8, 0.9), weight_decay=0.25)


def two_groups(model: Any) -> Any:
    """Weights with decay and the rest without, as is usual."""
    import torch

    parameters = dict(model.named_parameters())
    decayed = [one for one in parameters.values() if one.ndim > 1]
    rest = [one for one in parameters.values() if one.ndim == 1]
    groups = [{"params": decayed}, {"params": rest, "weight_decay": 0.0, "lr": 0.125}]
    return torch.optim.AdamW(groups, lr=0.5, betas=(0.8, 0.9), weight_decay=0.25)


def sgd(model: Any) -> Any:
    import torch

    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def amsgrad(model: Any) -> Any:
    import torch

    return torch.optim.AdamW(model.parameters(), amsgrad=True)


NAMES = ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize("optimizer_of", [adamw, two_groups])
def test_each_parameter_is_found_beside_its_moments(optimizer_of: Any) -> None:
    state = trained(optimizer_of)
    found = steps_of(state)
    assert sorted(found) == sorted(f"model.{name}" for name in NAMES)
    step = found["model.2.weight"]
    at = {name: number for number, name in enumerate(NAMES)}["2.weight"]
    number = at if optimizer_of is adamw else 1  # numbered group by group
    assert step.first == f"optimizer.state.{number}.exp_avg"
    assert step.second == f"optimizer.state.{number}.exp_avg_sq"
    assert step.params.decoupled
    assert (step.params.step, step.params.betas, step.params.decay) == (3, (0.8, 0.9), 0.25)


def test_the_rate_of_the_checkpoint_before_comes_first() -> None:
    before, now = trained(adamw, 2), trained(adamw, 3)
    assert steps_of(now, before)["model.0.bias"].rates == (0.125, 0.0625)


def test_a_rate_that_never_changes_is_told_once() -> None:
    state = trained(adamw)
    assert steps_of(state, state)["model.0.bias"].rates == (0.0625,)


def test_optimizers_without_moments_have_no_steps() -> None:
    assert steps_of(trained(sgd)) == {}


def test_amsgrad_is_left_alone() -> None:
    assert steps_of(trained(amsgrad)) == {}


@pytest.mark.parametrize(
    "optimizer",
    [
        {"state": {}, "param_groups": []},
        {"state": [], "param_groups": [{}]},
        {"state": {0: {"exp_avg": 1}}, "param_groups": [{"params": [0], "lr": 0.1}]},
        {"state": 7, "param_groups": 8},
    ],
)
def test_what_only_looks_like_an_optimizer_is_passed_over(optimizer: Any) -> None:
    assert steps_of({"optimizer": optimizer}) == {}


def tensors_for_numbers(model: Any) -> Any:
    import torch

    betas = torch.tensor(0.8), torch.tensor(0.9)
    return torch.optim.AdamW(model.parameters(), lr=0.5, betas=betas, weight_decay=0.25)


def test_numbers_that_are_tensors_are_numbers() -> None:
    found = steps_of(trained(tensors_for_numbers))
    assert found["model.0.weight"].params.betas == pytest.approx((0.8, 0.9))
    assert "model.0.weight" in predictions(found.values())


@pytest.mark.parametrize("step", [0, -1, 1 << 32, float("nan"), float("inf"), 10**400])
def test_a_step_that_none_was_made_by_predicts_nothing(step: float) -> None:
    state = trained(adamw)
    for told in state["optimizer"]["state"].values():
        told["step"] = step
    assert steps_of(state) == {}


@pytest.mark.parametrize(("member", "value"), [("betas", ("a", "b")), ("eps", 10**400)])
def test_numbers_that_no_step_has_predict_nothing(member: str, value: Any) -> None:
    state = trained(adamw)
    state["optimizer"]["param_groups"][0][member] = value
    assert steps_of(state) == {}
