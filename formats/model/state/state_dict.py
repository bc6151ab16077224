"""State dicts of a training as tensors and JSON, both ways.

A state is what people put together: the state dicts of a module, an optimizer and a scheduler,
states of random generators, counters; dicts, lists and tuples of tensors, arrays and plain values.
Tensors get names (their path, joined by dots), everything else becomes JSON that names them:

    {"$tensor": name}                   a torch tensor
    {"$array": name}  {"$scalar": name} a numpy array, or scalar
    {"$dict": [[key, value], ...]}      a dict whose keys are not names in their order
    {"$tuple": [...]}  {"$bytes": base64}  {"$int": decimal}  {"$complex": [real, imaginary]}

Nothing else is taken, so nothing of a stored state can be code.

Source:
    docs/spec/model.md, section "Training state".
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any, Final

import numpy as np

from tensorrepo.formats.common.tensors import is_torch
from tensorrepo.formats.model.layout.manifest import check_tensor_name
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.json_rules import MAX_JSON_NESTING, check_text

StateJson = Any
MAX_NESTING: Final = 48
_MAX_STORED: Final = MAX_JSON_NESTING - 1  # as it is stored, where wrappers nest, too, in metadata
_MAX_DIGITS: Final = 4096
_INT64: Final = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True)
class StateTree:
    """A state, taken apart: tensors by name, and the JSON that says where each belongs."""

    tensors: Mapping[str, Any]
    skeleton: StateJson


def take_apart(state: Mapping[str, Any]) -> StateTree:
    """The tensors of a state and the rest of it. No tensor is copied.

    Raises:
        InvalidInputError: something that cannot be stored; says where, and what can.
    """
    if not isinstance(state, Mapping) or not all(isinstance(key, str) for key in state):
        raise InvalidInputError(
            "a training state is a dict with names as keys, such as "
            '{"model": model.state_dict(), "optimizer": optimizer.state_dict()}'
        )
    apart = _Apart()
    return StateTree(apart.tensors, apart.node(dict(state), "", 0, 0))


def put_together(skeleton: StateJson, tensors: Mapping[str, Any]) -> Any:
    """What `take_apart` took apart into JSON and torch tensors, or numpy arrays, by name.

    Raises:
        CorruptError: no such skeleton, or it names a tensor that is missing.
    """
    return _together(skeleton, tensors, 0)


@dataclass(slots=True)
class _Apart:
    tensors: dict[str, Any] = field(default_factory=dict)

    def node(self, value: Any, where: str, depth: int, stored: int) -> StateJson:
        """What stands for a value, nested so deep in the state, and as it is stored."""
        if isinstance(value, dict | list | tuple):
            return self._container(value, where, depth, stored)
        plain = value is None or isinstance(value, bool | str | float | int)
        _check_depth(where, depth, stored + 1 + isinstance(value, complex) if not plain else stored)
        if plain:
            return _plain(value, where, depth, stored)
        if is_torch(value):
            return {"$tensor": self._named(where, value)}
        if isinstance(value, np.ndarray | np.generic):
            tag = "$array" if isinstance(value, np.ndarray) else "$scalar"
            return {tag: self._named(where, np.asarray(value))}
        if isinstance(value, bytes | bytearray):
            return {"$bytes": base64.b64encode(value).decode()}
        if isinstance(value, complex):
            return {"$complex": [value.real, value.imag]}
        raise InvalidInputError(
            f"{where or 'the state'} is of type {type(value).__name__}, which cannot be stored: "
            "give tensors, arrays, numbers, text, bytes, and dicts, lists and tuples of those"
        )

    def _container(self, value: Any, where: str, depth: int, stored: int) -> StateJson:
        _check_depth(where, depth, stored)
        if isinstance(value, dict):
            return self._dict(value, where, depth, stored)
        inside = stored + (1 if isinstance(value, list) else 2)
        items = [
            self.node(item, _joined(where, str(at)), depth + 1, inside)
            for at, item in enumerate(value)
        ]
        return items if isinstance(value, list) else {"$tuple": items}

    def _dict(self, value: dict[Any, Any], where: str, depth: int, stored: int) -> StateJson:
        names = [key for key in value if isinstance(key, str) and not key.startswith("$")]
        if len(names) == len(value) and names == sorted(names):  # as a manifest would sort them
            return {
                _text(key, where): self.node(item, _joined(where, key), depth + 1, stored + 1)
                for key, item in value.items()
            }
        of = f"a key of {where or 'the state'}"
        return {
            "$dict": [
                [
                    self.node(key, of, depth + 1, stored + 3),
                    self.node(item, _joined(where, str(key)), depth + 1, stored + 3),
                ]
                for key, item in value.items()
            ]
        }

    def _named(self, where: str, value: Any) -> str:
        """A name that nothing else has: a path may be ambiguous where keys have dots."""
        name, again = where, 1
        while name in self.tensors:
            again += 1
            name = f"{where}#{again}"
        self.tensors[check_tensor_name(name)] = value
        return name


def _check_depth(where: str, depth: int, stored: int) -> None:
    if depth > MAX_NESTING or stored > _MAX_STORED:
        raise InvalidInputError(
            f"{where[:200]!r}: nested deeper than {MAX_NESTING}, or than {_MAX_STORED} as it is "
            "stored, where a tuple counts 2 and a dict with keys that are no sorted names 3"
        )


def _plain(value: Any, where: str, depth: int, stored: int) -> StateJson:
    """A value that JSON has, as Python's own: numpy's or a subclass may be written differently."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _text(value, where)
    if isinstance(value, float):
        return float(value)
    if value in _INT64:
        return int(value)
    _check_depth(where, depth, stored + 1)
    return {"$int": _digits(value, where)}


def _text(value: str, where: str) -> str:
    """Text as it is, of whatever class it was."""
    check_text(value, where or "the state")
    return str.__str__(value)


def _digits(value: int, where: str) -> str:
    # Asked first: Python refuses to write very long ones, and takes quadratic time for others.
    if value.bit_length() <= 4 * _MAX_DIGITS:
        text = str(int(value))
        if len(text) <= _MAX_DIGITS:
            return text
    raise InvalidInputError(
        f"{where[:200]!r}: an integer of {value.bit_length():,} bits; at most {_MAX_DIGITS:,} "
        "digits are stored. Give its bytes"
    )


def _joined(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def dict_of(node: StateJson) -> dict[Any, StateJson] | None:
    """The nodes of a dict by key, whichever form it has; None for what is no dict."""
    if not isinstance(node, dict):
        return None
    pairs = node.get("$dict")
    if pairs is None:
        return None if any(key.startswith("$") for key in node) else node
    return {key: item for key, item in pairs if not isinstance(key, dict)}


def optimizers(
    node: StateJson, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], StateJson]]:
    """The state dicts of optimizers in a skeleton, and where they are."""
    entries = dict_of(node)
    if entries is None:
        return
    if {"state", "param_groups"} <= entries.keys():
        yield path, entries
        return
    for key, item in entries.items():
        yield from optimizers(item, (*path, key))


def name_of(node: StateJson) -> str | None:
    """The tensor that a node stands for; None for what is no tensor."""
    if isinstance(node, dict) and len(node) == 1:
        name = node.get("$tensor", node.get("$array"))
        return name if isinstance(name, str) else None
    return None


def _together(node: StateJson, tensors: Mapping[str, Any], depth: int) -> Any:
    if depth > 2 * MAX_NESTING:
        raise CorruptError(f"a training state is nested deeper than {2 * MAX_NESTING}")
    if isinstance(node, list):
        return [_together(item, tensors, depth + 1) for item in node]
    if not isinstance(node, dict):
        return node
    if len(node) == 1:
        (tag, content), *_ = node.items()
        if isinstance(tag, str) and tag.startswith("$"):
            return _tagged(tag, content, tensors, depth)
    return {key: _together(item, tensors, depth + 1) for key, item in node.items()}


def _tagged(tag: str, content: StateJson, tensors: Mapping[str, Any], depth: int) -> Any:
    try:
        if tag == "$tensor":
            return tensors[content]
        if tag == "$array":
            return _as_array(tensors[content])
        if tag == "$scalar":
            return _as_array(tensors[content])[()]
        if tag == "$dict":
            pairs = ((_together(key, tensors, depth + 1), item) for key, item in content)
            return {key: _together(item, tensors, depth + 1) for key, item in pairs}
        if tag == "$tuple":
            return tuple(_together(item, tensors, depth + 1) for item in content)
        if tag == "$bytes":
            return base64.b64decode(content, validate=True)
        if tag == "$int" and len(content) <= _MAX_DIGITS:
            return int(content)
        if tag == "$complex":
            real, imaginary = content
            return complex(real, imaginary)
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        raise CorruptError(f"a training state holds {tag} with {content!r:.80}: {error}") from error
    raise CorruptError(f"a training state holds {tag!r:.40}, which is unknown here")


def _as_array(tensor: Any) -> Any:
    return tensor.numpy() if is_torch(tensor) else tensor
