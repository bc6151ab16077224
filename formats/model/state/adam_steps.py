"""Adam steps in a training state: moments, weights and hyperparameters of one step.

Found in the state dicts of torch: an optimizer's state names both moments of each parameter by a
number or by its name, and the parameters are tensors elsewhere in the state. What is found is a
guess that costs nothing when it is wrong: a prediction that does not come true is not used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from tensorrepo.formats.common.tensors import is_torch
from tensorrepo.formats.model.delta.predictions import MOST_STEPS, AdamParams
from tensorrepo.formats.model.state.state_dict import dict_of, name_of, optimizers
from tensorrepo.formats.model.write.base_choice import Prediction
from tensorrepo.repo.deferred_dataclass import dataclass

Json = Any

_MOMENTS = ("exp_avg", "exp_avg_sq")
_NO_GUESS = (LookupError, TypeError, ValueError, AttributeError, OverflowError)
_BUFFERS = ("running_mean", "running_var")  # of normalisation: no parameters, but shaped like them


@dataclass(frozen=True, slots=True)
class AdamStep:
    """A parameter, its moments, and the step that led to them.

    Attributes:
        weight: name of the parameter's tensor; None where it was not found.
        first: name of the first moment.
        second: name of the second moment.
        rates: learning rates that the step may have had.
        params: what else is known of the step; they predict the second moment.
    """

    weight: str | None
    first: str
    second: str
    rates: tuple[float, ...]
    params: AdamParams


def adam_steps(
    skeleton: Json, tensors: Mapping[str, Any], before: Json = None
) -> tuple[AdamStep, ...]:
    """The steps of every optimizer in a state that `take_apart` took apart.

    `before` is the skeleton of the checkpoint before: a scheduler may have changed the rate since
    the step was made.
    """
    earlier: dict[tuple[str, ...], Json] = {}
    with suppress(*_NO_GUESS):
        earlier = dict(optimizers(before, ()))
    found: list[AdamStep] = []
    with suppress(*_NO_GUESS):
        for path, optimizer in optimizers(skeleton, ()):
            # What looked like one, and is none: nothing is predicted.
            with suppress(*_NO_GUESS):
                found += _steps_of(optimizer, skeleton, tensors, earlier.get(path))
    return tuple(found)


def predictions(steps: Iterable[AdamStep]) -> dict[str, tuple[Prediction, ...]]:
    """How moments and weights follow from the checkpoint before; see `DeltaOptions`."""
    found: dict[str, tuple[Prediction, ...]] = {}
    for step in steps:
        before = step.second, step.first
        found[step.second] = (Prediction("adam", step.params.pack(), before, (step.first,)),)
        if step.weight is not None:
            now = step.first, step.second
            found[step.weight] = tuple(
                Prediction(
                    "adam",
                    replace(step.params, role="weight", rate=rate).pack(),
                    (step.weight,),
                    now,
                )
                for rate in step.rates
            )
    return found


def _steps_of(
    optimizer: Json, skeleton: Json, tensors: Mapping[str, Any], before: Json
) -> list[AdamStep]:
    states = {
        key: dict_of(state) or {} for key, state in (dict_of(optimizer["state"]) or {}).items()
    }
    own = {name for state in states.values() for name in _tensors_in(state)}
    free = [
        name for name in _tensors_in(skeleton) if name not in own and not name.endswith(_BUFFERS)
    ]
    groups = _groups(optimizer)
    rates_before = [group["lr"] for group in _groups(before)] if before else []
    found = []
    for at, group in enumerate(groups):
        # A rate that is a tensor is known of now only.
        rates = [one for one in rates_before[at : at + 1] if isinstance(one, float | int)]
        numbers = dict.fromkeys([*map(float, rates), _number(group["lr"], tensors)])
        keys = [key for key in group["params"] if key in states]
        weights = _matched(keys, states, tensors, free)
        free = [name for name in free if name not in weights]
        for key, weight in zip(keys, weights, strict=True):
            step = _adam_step(weight, states[key], group, tensors, tuple(numbers))
            if step is not None:
                found.append(step)
    return found


def _adam_step(
    weight: str | None,
    state: Mapping[str, Json],
    group: Mapping[str, Json],
    tensors: Mapping[str, Any],
    rates: tuple[float, ...],
) -> AdamStep | None:
    first, second = (name_of(state.get(moment)) for moment in _MOMENTS)
    if first is None or second is None or group.get("amsgrad"):
        return None
    betas = group["betas"]["$tuple"] if isinstance(group["betas"], dict) else group["betas"]
    one, two = (_number(beta, tensors) for beta in betas)
    step = int(_number(state["step"], tensors))
    if not 1 <= step < MOST_STEPS:
        return None
    decoupled = bool(group.get("decoupled_weight_decay", False))
    eps, decay = (_number(group[key], tensors) for key in ("eps", "weight_decay"))
    params = AdamParams("second-moment", step, 0.0, (one, two), eps, decay, decoupled)
    return AdamStep(weight, first, second, rates, params)


def _matched(
    keys: Sequence[Json],
    states: Mapping[Json, Mapping[str, Json]],
    tensors: Mapping[str, Any],
    free: Sequence[str],
) -> list[str | None]:
    """For each parameter the tensor that it probably is: by its name, or by order and shape."""
    left = list(free)
    found: list[str | None] = []
    for key in keys:
        moment = tensors[name_of(states[key]["exp_avg"]) or ""]
        form = tuple(moment.shape), moment.dtype
        alike = [one for one in left if (tuple(tensors[one].shape), tensors[one].dtype) == form]
        if isinstance(key, str):
            alike = [name for name in alike if name == key or name.endswith(f".{key}")]
        found.append(alike[0] if alike else None)
        if alike:
            # Parameters of a group come in the order of the module's.
            left = left[left.index(alike[0]) + 1 :] if not isinstance(key, str) else left
    return found


def _groups(optimizer: Json) -> list[dict[Any, Json]]:
    return [dict_of(group) or {} for group in optimizer["param_groups"]]


def _tensors_in(node: Json) -> Iterator[str]:
    """Names of the tensors below a node of a skeleton, in its order."""
    name = name_of(node)
    if name is not None:
        yield name
    elif isinstance(node, dict):
        for item in node.values():
            yield from _tensors_in(item)
    elif isinstance(node, list):
        for item in node:
            yield from _tensors_in(item)


def _number(node: Json, tensors: Mapping[str, Any]) -> float:
    """A number of an optimizer, which may be a tensor of one."""
    if isinstance(node, dict):
        name = node.get("$scalar") or name_of(node)
        node = tensors[str(name)]
    return float(node.item() if is_torch(node) else node)
