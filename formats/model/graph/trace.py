"""Tracing of torch modules into architecture graphs.

With example arguments the module is exported (`torch.export`): nodes are operations of ATen.
Without, it is traced symbolically (`torch.fx`): nodes are the module's layers and the functions
between them. Nothing is run that the module does not run itself, and weights are only named.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from tensorrepo.formats.common.tensors import TensorType, import_torch, tensor_of
from tensorrepo.formats.model.graph.graph import (
    INPUT,
    Graph,
    GraphNode,
    Input,
    Parameter,
    make_graph,
)
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError

_GETITEM = "getitem"


def trace_module(
    module: Any,
    args: tuple[Any, ...] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
) -> Graph:
    """The graph of a torch module.

    Args:
        module: on any device, also "meta".
        args: example arguments; without them, and `kwargs`, the module is traced symbolically.
        kwargs: likewise.
        dynamic_shapes: as `torch.export.export` takes them; without, sizes of the examples may
            stand in the configuration of nodes.

    Raises:
        UnsupportedError: torch is not installed, or cannot trace this module; says why.
    """
    torch = import_torch("leave the graph to be derived from names")
    if not isinstance(module, torch.nn.Module):
        raise InvalidInputError(f"expected a torch module, got {type(module).__name__}")
    state = module.state_dict(keep_vars=True)
    try:
        if args is None and kwargs is None:
            return _Builder("fx", state, module).build(torch.fx.symbolic_trace(module).graph)
        program = torch.export.export(
            module, args or (), dict(kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False
        )
    except (InvalidInputError, UnsupportedError):
        raise
    except Exception as error:
        line = next(iter(str(error).splitlines()), type(error).__name__)
        raise UnsupportedError(
            f"torch cannot trace {type(module).__name__}: {line:.300}. Give other example "
            "arguments, or save without a graph: one is derived from names."
        ) from error
    signature = program.graph_signature
    lifted = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    constants = {
        name: program.constants.get(target)
        for name, target in signature.inputs_to_lifted_tensor_constants.items()
    }
    return _Builder("export", state, module, lifted, constants).build(program.graph)


class _Builder:
    """Makes nodes of ours of torch's, one after the other."""

    def __init__(
        self,
        source: str,
        state: Mapping[str, Any],
        module: Any,
        lifted: Mapping[str, str] | None = None,
        constants: Mapping[str, Any] | None = None,
    ) -> None:
        self._source = source
        self._module = module
        self._state = {name: _described(name, value) for name, value in state.items()}
        self._lifted = dict(lifted or {})
        self._constants = dict(constants or {})
        self._nodes: list[GraphNode] = []
        self._places: dict[str, tuple[str, int]] = {}
        self._parameters: dict[str, str] = {}
        self._inputs = 0

    def build(self, graph: Any) -> Graph:
        outputs: list[Input] = []
        for node in graph.nodes:
            if node.op == "output":
                outputs = [
                    Input(role, *self._places[value.name])
                    for role, value in _flat("", node.args)
                    if _is_node(value) and value.name in self._places
                ]
            else:
                self._add(node)
        named = [Input(str(at), one.node, one.output) for at, one in enumerate(outputs)]
        return make_graph(self._source, self._nodes, named)

    def _add(self, node: Any) -> None:
        if node.op == "placeholder":
            self._placeholder(node)
        elif node.op == "get_attr":
            self._attribute(node.name, str(node.target))
        elif _is_getitem(node, self._places):
            self._places[node.name] = (self._places[node.args[0].name][0], node.args[1])
        else:
            self._operation(node)

    def _placeholder(self, node: Any) -> None:
        if node.name in self._lifted:
            self._attribute(node.name, self._lifted[node.name])
        elif node.name in self._constants:
            self._constant(node.name, self._constants[node.name])
        else:
            self._put(GraphNode(node.name, INPUT, {"index": self._inputs}))
            self._inputs += 1

    def _attribute(self, name: str, target: str) -> None:
        """A tensor of the module: a parameter of whoever takes it, if it is in the state dict."""
        if target in self._state:
            self._parameters[name] = target
            return
        value = self._module
        for part in target.split("."):
            value = getattr(value, part, None)
        self._constant(name, value)

    def _constant(self, name: str, value: Any) -> None:
        """A tensor that no state dict holds: named by its content."""
        self._put(GraphNode(name, "constant", _content(value)))

    def _operation(self, node: Any) -> None:
        inputs: list[Input] = []
        parameters: list[Parameter] = []
        config: dict[str, Any] = {}
        for role, value in _arguments(node):
            if not _is_node(value):
                config[role] = _plain(value)
            elif value.name in self._parameters:
                parameters.append(self._parameter(role, self._parameters[value.name]))
            else:
                inputs.append(Input(role, *self._places[value.name]))
        op = _operation_name(node)
        if node.op == "call_module":
            layer = self._module.get_submodule(node.target)
            op, config = type(layer).__name__, {**config, "settings": layer.extra_repr()}
            parameters += [
                self._parameter(name, f"{node.target}.{name}")
                for name in layer.state_dict()
                if f"{node.target}.{name}" in self._state
            ]
        self._put(GraphNode(node.name, op, config, tuple(inputs), tuple(parameters)))

    def _parameter(self, role: str, tensor: str) -> Parameter:
        element, shape = self._state[tensor]
        return Parameter(role, tensor, element.name, shape)

    def _put(self, node: GraphNode) -> None:
        self._nodes.append(node)
        self._places[node.name] = (node.name, 0)


def _described(name: str, value: Any) -> tuple[TensorType, tuple[int, ...]]:
    """Type and shape of a torch tensor, also of one without data."""
    import torch

    element = tensor_of(name, torch.empty(0, dtype=value.dtype)).type
    shape = tuple(int(dim) for dim in value.shape)
    if element.block_elements > 1:  # torch counts blocks
        shape = (*shape[:-1], shape[-1] * element.block_elements)
    return element, shape


def _arguments(node: Any) -> list[tuple[str, Any]]:
    """Arguments by the names that the operation gives them; lists are taken apart."""
    schema = getattr(node.target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    told: list[tuple[str, Any]] = []
    for at, value in enumerate(node.args):
        told += _flat(names[at] if at < len(names) else f"arg{at}", value)
    for name, value in node.kwargs.items():
        told += _flat(name, value)
    return told


def _flat(role: str, value: Any) -> list[tuple[str, Any]]:
    """Nodes inside of lists get a role each; a value without nodes stays whole."""
    if isinstance(value, (list, tuple)) and any(_is_node(one) for _, one in _leaves("", value)):
        return _leaves(role, value)
    return [(role, value)]


def _leaves(role: str, value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, (list, tuple)):
        return [leaf for at, one in enumerate(value) for leaf in _leaves(f"{role}.{at}", one)]
    if isinstance(value, dict):
        return [leaf for key in value for leaf in _leaves(f"{role}.{key}", value[key])]
    return [(role, value)]


def _is_node(value: Any) -> bool:
    return hasattr(value, "op") and hasattr(value, "all_input_nodes")


def _is_getitem(node: Any, places: Mapping[str, object]) -> bool:
    """Whether the node only picks one of several outputs of another one."""
    if node.op != "call_function" or getattr(node.target, "__name__", "") != _GETITEM:
        return False
    source, index = node.args
    known = _is_node(source) and source.name in places
    return known and isinstance(index, int) and index >= 0


def _operation_name(node: Any) -> str:
    if node.op == "call_method":
        return f"method.{node.target}"
    name = getattr(node.target, "__name__", None)
    module = (getattr(node.target, "__module__", "") or "").lstrip("_")
    told = str(node.target)
    if hasattr(node.target, "_schema") or name is None:
        return told
    return f"{module}.{name}" if module else name


def _plain(value: Any) -> Any:
    """A constant argument as JSON; torch's own types by their name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, slice):
        return {"slice": [_plain(one) for one in (value.start, value.stop, value.step)]}
    return str(value)


def _content(value: Any) -> dict[str, Any]:
    if not hasattr(value, "dtype"):
        return {"value": type(value).__name__}
    reader = tensor_of("constant", value)
    data = bytearray(reader.type.bytes_of(reader.shape))
    reader.read_into(0, memoryview(data))
    return {
        "type": reader.type.name,
        "shape": list(reader.shape),
        "sha256": sha256(data).hexdigest(),
    }
