"""Architecture guessed from names and shapes of tensors.

Honest guesswork: each module that owns tensors is a node, its operation is told from the roles and
ranks of its tensors, and nodes follow one another in the order in which names suggest that they
run. What is computed between them is unknown, and so is every branch. The graph says so: its
source is "names".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tensorrepo.formats.model.graph.graph import (
    INPUT,
    Graph,
    GraphNode,
    Input,
    Parameter,
    make_graph,
    module_of,
)
from tensorrepo.formats.model.layout.fingerprints import NamedShape

# Settings of a config file that change what the same tensors compute. Sizes are not among them:
# shapes tell those, and models of another depth share their first layers all the same.
BEHAVIOUR: Final = (
    "activation_function", "attention_bias", "hidden_act", "head_dim", "layer_norm_eps",
    "layer_norm_epsilon", "model_type", "n_head", "num_attention_heads", "num_key_value_heads",
    "position_embedding_type", "rms_norm_eps", "rope_scaling", "rope_theta", "sliding_window",
)  # fmt: skip
_ROOT: Final = "(root)"  # the node of tensors without a module
_FIRST = re.compile(r"emb|^w[tp]e$|^stem|^patch|^tok")
_LATE = re.compile(r"^ln_f|^norm$|^final|^post")
_LAST = re.compile(r"head$|^pooler|^classifier|^fc$|^score$|^qa_outputs|^cls$")
_NORM = re.compile(r"norm|^ln|^bn|_ln\b")


def derived_graph(specs: Iterable[NamedShape], config: Mapping[str, Any] | None = None) -> Graph:
    """The graph that these tensors suggest, all of a model, and the settings of its config file."""
    modules: dict[str, list[NamedShape]] = {}
    for spec in specs:
        modules.setdefault(module_of(spec.name), []).append(spec)
    settings = dict(config or {})
    start, root = _free_name(INPUT, modules), _free_name(_ROOT, modules)
    known = {key: settings[key] for key in BEHAVIOUR if settings.get(key) is not None}
    nodes = [GraphNode(start, INPUT, {"index": 0, **known})]
    for module in sorted(modules, key=_place):
        nodes.append(_node(module or root, module, modules[module], nodes[-1].name))
    return make_graph("names", nodes, [Input("0", nodes[-1].name)], settings)


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key by which layer 10 stands behind layer 9."""
    return tuple(
        (0, int(part), "") if part.isdecimal() and part.isascii() else (1, 0, part)
        for part in name.split(".")
    )


def _place(module: str) -> tuple[Any, ...]:
    """Where a module stands: embeddings first, heads last, the rest by name, numbers by value."""
    ranks = ((_FIRST, 0), (_LATE, 2), (_LAST, 3))
    return tuple(
        (next((rank for pattern, rank in ranks if pattern.search(part.lower())), 1), natural)
        for part, natural in zip(module.split("."), natural_key(module), strict=True)
    )


def _free_name(name: str, taken: Mapping[str, object]) -> str:
    while name in taken or any(one.startswith(f"{name}.") for one in taken):
        name += "_"
    return name


def _node(name: str, module: str, specs: list[NamedShape], before: str) -> GraphNode:
    inside = f"{module}." if module else ""  # ".w" and "w" are two tensors of no module
    parameters = tuple(
        Parameter(spec.name.removeprefix(inside), spec.name, spec.type.name, spec.shape)
        for spec in specs
    )
    inputs = (Input("(before)", before),)
    operation = _operation(name, {one.role: one.shape for one in parameters})
    return GraphNode(name, operation, {}, inputs, parameters)


def _operation(name: str, shapes: Mapping[str, tuple[int, ...]]) -> str:
    """What a module of such tensors usually is; "parameters" when nothing tells."""
    last = name.rpartition(".")[2].lower()
    weight = shapes.get("weight")
    if "running_mean" in shapes:
        return "batch_norm"
    if any(role.startswith("weight_ih") for role in shapes):
        return "recurrent"
    if "in_proj_weight" in shapes:
        return "attention"
    if weight is None:
        return "parameters"
    if len(weight) == 1:
        return "norm" if _NORM.search(last) or "bias" in shapes else "scale"
    if len(weight) == 2:
        return "embedding" if _FIRST.search(last) and "bias" not in shapes else "linear"
    return f"conv{len(weight) - 2}d" if len(weight) <= 5 else "parameters"
