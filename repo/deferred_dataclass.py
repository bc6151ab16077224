"""Dataclasses whose methods are made when they are first called.

The library compiles up to six methods of each class from their text while the module that has it is
imported: a quarter of what the service's start took of the processor went into methods of 640
classes, of few of which it makes an instance. Here each is compiled when somebody looks at it, and
a frozen class refuses changes by closures. Fields, defaults and slots are the library's work, so
that `fields`, `replace`, `asdict` and ``match`` know these classes.

A class that asks for more than most is left to the library: one that inherits fields, orders its
instances, or has fields that are no parameters.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError
from reprlib import recursive_repr
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from dataclasses import dataclass  # the one whose rules type checkers know
else:

    def dataclass(cls: type | None = None, /, **asked: bool) -> Any:
        """The library's decorator, with its arguments and what it promises of a class."""
        return _decorate(cls, asked) if cls is not None else lambda one: _decorate(one, asked)


__all__ = ["dataclass"]

_SIMPLE: Final = frozenset({"repr", "eq", "frozen", "slots", "kw_only"})
_ASSIGN: Final = object.__setattr__  # which a frozen class does not refuse


class _NotGiven:
    """Default of a parameter whose value a factory makes."""

    def __repr__(self) -> str:
        return "<factory>"  # as signatures of the library's classes have it


_NOT_GIVEN: Final = _NotGiven()


class _Deferred:
    """A method until somebody looks at it; then a function is in its place."""

    __slots__ = ("_make", "_name", "_owner")

    def __init__(self, owner: type, name: str, make: Callable[[type], Callable[..., Any]]) -> None:
        self._owner, self._name, self._make = owner, name, make

    def __get__(self, instance: object | None, _: type) -> Any:
        made = self._make(self._owner)
        setattr(self._owner, self._name, made)  # threads that come at once make the same twice
        return made if instance is None else made.__get__(instance)


def _decorate(cls: type, asked: dict[str, bool]) -> type:
    if not _is_simple(cls, asked):
        made: type = dataclasses.dataclass(**asked)(cls)
        return made
    has_doc, own = cls.__doc__ is not None, set(vars(cls))
    if "__eq__" in own and vars(cls).get("__hash__", MISSING) is None:
        own.discard("__hash__")  # Python put it there, for a class with a comparison of its own
    shape = {name: asked[name] for name in ("slots", "kw_only") if name in asked}
    # Whether it is frozen the library learns later: two more methods would be compiled for that.
    made = dataclasses.dataclass(init=False, repr=False, eq=False, **shape)(cls)
    if not has_doc:
        made.__doc__ = None  # the library wrote a signature there, one without parameters
    for name, method in _methods(made, asked).items():
        if name not in own:
            setattr(made, name, method)
    params = made.__dataclass_params__  # type: ignore[attr-defined]
    params.init = True
    params.repr, params.eq = asked.get("repr", True), asked.get("eq", True)
    params.frozen = asked.get("frozen", False)  # asked for when a class derives from this one
    return made


def _is_simple(cls: type, asked: Iterable[str]) -> bool:
    """Whether its methods can be made here."""
    space = vars(cls)
    return (
        _SIMPLE.issuperset(asked)
        and not any(hasattr(base, "__dataclass_fields__") for base in cls.__bases__)
        and not any("InitVar" in str(kind) for kind in space.get("__annotations__", {}).values())
        and all(one.init and one.hash is None for one in space.values() if isinstance(one, Field))
        and space.keys().isdisjoint({"__setattr__", "__delattr__"})
    )


def _methods(owner: type, asked: dict[str, bool]) -> dict[str, Any]:
    """What the library would give the class, but for methods that the class has itself."""
    frozen, eq = asked.get("frozen", False), asked.get("eq", True)
    methods: dict[str, Any] = {
        "__init__": _Deferred(owner, "__init__", _make_frozen_init if frozen else _make_init)
    }
    if asked.get("repr", True):
        methods["__repr__"] = _Deferred(owner, "__repr__", _make_repr)
    if eq:
        methods["__eq__"] = _Deferred(owner, "__eq__", _make_eq)
        methods["__hash__"] = _Deferred(owner, "__hash__", _make_hash) if frozen else None
    if frozen:
        names = frozenset(one.name for one in dataclasses.fields(owner))
        methods["__setattr__"] = _refuse(owner, names, "__setattr__", "assign to")
        methods["__delattr__"] = _refuse(owner, names, "__delattr__", "delete")
        if asked.get("slots", False):
            methods["__getstate__"], methods["__setstate__"] = _get_state, _set_state
    return methods


def _make_init(owner: type, assign: str = "{self}.{name} = {value}") -> Callable[..., None]:
    fields = dataclasses.fields(owner)
    known: dict[str, Any] = {"_NOT_GIVEN": _NOT_GIVEN, "_ASSIGN": _ASSIGN}
    self = "_self" if any(one.name == "self" for one in fields) else "self"
    positional: list[str] = [self]
    named: list[str] = []
    lines: list[str] = []
    for one in fields:
        parameter, value = one.name, one.name
        if one.default is not MISSING:
            known[f"_default_{one.name}"] = one.default
            parameter += f"=_default_{one.name}"
        elif one.default_factory is not MISSING:
            known[f"_make_{one.name}"] = one.default_factory
            parameter += "=_NOT_GIVEN"
            value = f"_make_{one.name}() if {one.name} is _NOT_GIVEN else {one.name}"
        (named if one.kw_only else positional).append(parameter)
        lines.append(assign.format(self=self, name=one.name, value=value))
    if hasattr(owner, "__post_init__"):
        lines.append(f"{self}.__post_init__()")
    parameters = ", ".join([*positional, *(["*", *named] if named else [])])
    made = _compile(owner, f"__init__({parameters})", lines or ["pass"], known)
    made.__annotations__ = {one.name: one.type for one in fields} | {"return": None}
    return made


def _make_frozen_init(owner: type) -> Callable[..., None]:
    return _make_init(owner, "_ASSIGN({self}, {name!r}, {value})")


def _make_repr(owner: type) -> Callable[..., str]:
    names = [one.name for one in dataclasses.fields(owner) if one.repr]
    shown = ", ".join(f"{name}={{self.{name}!r}}" for name in names)
    line = f'return f"{{self.__class__.__qualname__}}({shown})"'
    return recursive_repr()(_compile(owner, "__repr__(self)", [line]))


def _make_eq(owner: type) -> Callable[..., bool]:
    lines = [
        "if other.__class__ is self.__class__:",
        f"  return {_values(owner)} == {_values(owner, 'other')}",
        "return NotImplemented",
    ]
    return _compile(owner, "__eq__(self, other)", lines, {"NotImplemented": NotImplemented})


def _make_hash(owner: type) -> Callable[..., int]:
    return _compile(owner, "__hash__(self)", [f"return hash({_values(owner)})"], {"hash": hash})


def _values(owner: type, instance: str = "self") -> str:
    """Text of a tuple of what is compared."""
    names = [one.name for one in dataclasses.fields(owner) if one.compare]
    return f"({''.join(f'{instance}.{name}, ' for name in names)})"


def _compile(
    owner: type, head: str, lines: Iterable[str], known: Mapping[str, Any] = MappingProxyType({})
) -> Callable[..., Any]:
    """A method of that text, which holds names of fields; whatever else it uses is `known`.

    Its globals are those of the module that has the class: by them others resolve its annotations.
    """
    name = head.partition("(")[0]
    body = "".join(f"  {line}\n" for line in lines)
    text = f"def make({', '.join(known)}):\n def {head}:\n{body} return {name}"
    module, space = sys.modules.get(owner.__module__), dict[str, Any]()
    exec(text, vars(module) if module else {}, space)  # noqa: S102
    made: Callable[..., Any] = space["make"](**known)
    made.__qualname__, made.__module__ = f"{owner.__qualname__}.{name}", owner.__module__
    return made


def _refuse(owner: type, names: frozenset[str], verb: str, what: str) -> Callable[..., None]:
    """``__setattr__`` or ``__delattr__`` of a frozen class; one derived from it may have more."""

    def refuse(self: object, name: str, *value: object) -> None:
        if type(self) is owner or name in names:
            raise FrozenInstanceError(f"cannot {what} field {name!r}")
        getattr(super(owner, self), verb)(name, *value)

    return refuse


def _get_state(self: Any) -> list[Any]:
    """What is pickled of a frozen class with slots."""
    return [getattr(self, one.name) for one in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for one, value in zip(dataclasses.fields(self), state, strict=False):
        _ASSIGN(self, one.name, value)
