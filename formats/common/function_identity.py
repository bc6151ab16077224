"""Identity of a Python function: a digest that stays while the function computes the same.

What a function computes follows from its source, from what its globals, closure and defaults hold,
from the project's functions and classes that it uses, for which the same holds, and from the
versions of the packages that it uses. All of that is walked and hashed, without calling anything.
What has no such form, a model or a function of C without a name that finds it again, is refused:
who uses it says with a version of his own when it changes.

It does not follow reads of files, time, chance and the environment: these are no part of a
function that is identified.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import dis
import enum
import functools
import hashlib
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from pathlib import Path, PurePath
from typing import Any, Final

import numpy as np

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

MAX_VALUE_BYTES: Final = 1 << 20  # of all values together: what is larger is data, not code
_OURS: Final = "tensorrepo"
_FOREIGN_FOLDERS: Final = {"site-packages", "dist-packages"}
_PLAIN: Final = (bool, int, float, complex, str, bytes, bytearray, type(None), type(...))
_MOMENTS: Final = (dt.date, dt.time, dt.timedelta, dt.tzinfo)
_BUILT_IN: Final = (types.BuiltinFunctionType, type(np.sin), type(str.upper), type(str.__add__))
# Members of a class that Python makes by itself, or that say nothing of what it does.
_NO_CONTENT: Final = {
    *("__dict__", "__weakref__", "__module__", "__doc__", "__qualname__", "__annotations__"),
    *("__dataclass_fields__", "__dataclass_params__", "__match_args__", "__slots__"),
    *("__abstractmethods__", "_abc_impl", "__orig_bases__", "__parameters__"),
}


@dataclass(frozen=True, slots=True)
class FunctionIdentity:
    """What a function is.

    Attributes:
        name: module and qualified name, for people.
        digest: 64 hex digits; equal for functions that compute the same, as far as is known.
        packages: versions by name of the packages that it uses; empty with a version of its user.
    """

    name: str
    digest: str
    packages: Mapping[str, str] = field(default_factory=dict)


def identify(function: Callable[..., Any], version: str | None = None) -> FunctionIdentity:
    """The identity of a function.

    Args:
        function: function, method, `functools.partial`, class or callable object of the project.
        version: text that the user changes when the function changes: it then stands for all
            that would be hashed.

    Raises:
        InvalidInputError: without `version`, something that it uses cannot be hashed; says what,
            by which way it is reached, and what to do.
    """
    name = function_name(function)
    if version is not None:
        # Not the module: the same function is of `__main__` where its file is run as a program.
        told = f"version\0{name.rpartition('.')[2]}\0{version}"
        digest = hashlib.sha256(told.encode("utf-8", "surrogatepass")).hexdigest()
        return FunctionIdentity(name, digest)
    walk = _Walk(name)
    walk.value(function, name)
    walk.finish()
    return FunctionIdentity(name, walk.hash.hexdigest(), dict(sorted(walk.packages.items())))


def function_name(function: Callable[..., Any]) -> str:
    """Module and qualified name of a function, or of the class of a callable object."""
    if isinstance(function, functools.partial):
        return function_name(function.func)
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{getattr(named, '__module__', None) or '?'}.{named.__qualname__}"


@dataclass(slots=True)
class _Walk:
    """One walk over what a function uses. What was met already is told by the number it had."""

    name: str
    hash: Any = field(default_factory=hashlib.sha256)
    packages: dict[str, str] = field(default_factory=dict)
    value_bytes: int = 0
    met: dict[int, int] = field(default_factory=dict)
    kept: list[Any] = field(default_factory=list)  # alive, so that no two have one `id`

    def finish(self) -> None:
        for package, version in sorted(self.packages.items()):
            self._told("package", package, version)

    def _told(self, *words: str) -> None:
        for word in words:
            encoded = word.encode("utf-8", "surrogatepass")
            self.hash.update(len(encoded).to_bytes(8, "little") + encoded)

    def _bytes(self, kind: str, content: bytes, way: str) -> None:
        self._take_room(len(content), way)
        self._told(kind, str(len(content)))
        self.hash.update(content)

    def _take_room(self, size_bytes: int, way: str) -> None:
        self.value_bytes += size_bytes
        if self.value_bytes > MAX_VALUE_BYTES:
            raise self._refused(
                way, f"with it, values take more than {MAX_VALUE_BYTES >> 20} MiB, which is data"
            )

    def _refused(self, way: str, why: str) -> InvalidInputError:
        return InvalidInputError(
            f"what {self.name} computes cannot be known: {way}: {why}. Give version='1', and "
            "another text whenever what it computes changes"
        )

    # -------------------------------------------------------------------------- values

    def value(self, value: Any, way: str) -> None:
        """Hash any value; `way` says how it is reached."""
        if isinstance(value, _PLAIN) and type(value) in _PLAIN:
            self._bytes(type(value).__name__, repr(value).encode("utf-8", "surrogatepass"), way)
            return
        if id(value) in self.met:
            self._told("again", str(self.met[id(value)]))
            return
        self.met[id(value)] = len(self.met)
        self.kept.append(value)
        if not (self._code(value, way) or self._collection(value, way) or self._data(value, way)):
            self._instance(value, way)

    def _code(self, value: Any, way: str) -> bool:
        """Functions, classes and modules."""
        match value:
            case types.ModuleType():
                self._module(value, way)
            case types.FunctionType():
                self._function(value, way)
            case types.MethodType():
                self.value(value.__func__, way)
                self.value(value.__self__, f"{way}.__self__")
            case functools.partial():
                self._told("partial")
                for part in (value.func, value.args, value.keywords):
                    self.value(part, way)
            case staticmethod() | classmethod():
                self.value(value.__func__, way)
            case property():
                self.value((value.fget, value.fset, value.fdel), way)
            case type() if not _is_alias(value):
                self._class(value, way)
            case _ if isinstance(value, _BUILT_IN):
                self._foreign(value, way)
            case _ if callable(getattr(value, "__wrapped__", None)):  # such as lru_cache
                self._told("wrapped", function_name(value))
                self.value(value.__wrapped__, way)
            case _:
                return False
        return True

    def _collection(self, value: Any, way: str) -> bool:
        match value:
            case tuple() | list() if type(value) in (tuple, list) or hasattr(value, "_fields"):
                self._told(type(value).__qualname__, str(len(value)))
                for place, each in enumerate(value):
                    self.value(each, f"{way}[{place}]")
            case dict() if type(value) is dict:
                self._told("dict", str(len(value)))
                for key, each in value.items():
                    self.value(key, f"a key of {way}")
                    self.value(each, f"{way}[{key!r:.40}]")
            case set() | frozenset() if type(value) in (set, frozenset):
                self._told(type(value).__name__, *sorted(self._apart(value, way)))
            case _:
                return False
        return True

    def _apart(self, values: Iterable[Any], way: str) -> Iterator[str]:
        """Digests of values whose order means nothing."""
        for each in values:
            walk = _Walk(self.name)
            walk.value(each, f"a member of {way}")
            self.value_bytes += walk.value_bytes
            self.packages |= walk.packages
            yield walk.hash.hexdigest()

    def _data(self, value: Any, way: str) -> bool:
        match value:
            case enum.Enum():
                self._told("enum", type(value).__qualname__, value.name)
                self.value(value.value, way)
            case np.ndarray() if not value.dtype.hasobject:
                self._told("array", str(value.dtype.descr), str(value.shape))
                self._take_room(value.nbytes, way)  # before it is copied
                self.hash.update(np.ascontiguousarray(value).tobytes())
            case np.generic() if not value.dtype.hasobject:
                self._bytes(str(value.dtype), value.tobytes(), way)
            case np.dtype():
                self._told("dtype", str(value.descr))
            case re.Pattern():
                self._bytes(f"pattern {value.flags}", repr(value.pattern).encode(), way)
            case PurePath() | range() | slice():
                self._bytes(type(value).__name__, repr(value).encode(), way)
            case _ if isinstance(value, _MOMENTS) or _is_alias(value):
                self._bytes(type(value).__name__, repr(value).encode(), way)
            case _:
                return False
        return True

    def _instance(self, value: Any, way: str) -> None:
        """An object of a class of the project: the class, and what the object holds."""
        kind = type(value)
        state = _state_of(value)
        if _package_of(kind.__module__) is not None or state is None:
            raise self._refused(
                way, f"a {kind.__module__}.{kind.__qualname__} has no content that can be hashed"
            )
        self._told("object")
        self.value(kind, f"the class of {way}")
        self.value(state, way)

    # -------------------------------------------------------------------------- code

    def _module(self, module: types.ModuleType, way: str) -> None:
        """A package by its version; a module of the project by all its source."""
        if self._is_foreign(module.__name__, way):
            self._told("module", module.__name__)
            return
        self._told("module", module.__name__, self._source(module, way))

    def _foreign(self, value: Any, way: str) -> None:
        """Something of a package, which has to be found again by its name."""
        name, module = getattr(value, "__qualname__", value.__name__), _module_of(value)
        if module is None or not self._is_foreign(module, way):
            kind = type(value).__name__
            raise self._refused(way, f"a {kind} of C, of no package whose version says what it is")
        self._told("of", module, name)

    def _is_foreign(self, module: str, way: str) -> bool:
        """Whether a module is of a package, whose version is then noted."""
        package = _package_of(module)
        if package is None:
            return False
        version = _version_of(package)
        if version is None:
            raise self._refused(way, f"package {package} does not say its version")
        self.packages[package] = version
        return True

    def _function(self, function: types.FunctionType, way: str) -> None:
        if function.__module__ is not None and self._is_foreign(function.__module__, way):
            self._told("of", function.__module__, function.__qualname__)
            return
        self._told("function", self._source(function, way))
        if function.__name__ == "<lambda>":  # several may stand in one line
            self._lambda(function.__code__)
        self.value(function.__defaults__, f"the defaults of {way}")
        self.value(function.__kwdefaults__, f"the defaults of {way}")
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            self._told("closure", name)
            self._cell(cell, f"{way}, which closes over {name!r}")
        self._globals(function, way)

    def _lambda(self, code: types.CodeType) -> None:
        constants = [each for each in code.co_consts if not isinstance(each, types.CodeType)]
        self._told(code.co_code.hex(), repr(constants), repr(code.co_names), _python())
        for each in code.co_consts:
            if isinstance(each, types.CodeType):
                self._lambda(each)

    def _cell(self, cell: types.CellType, way: str) -> None:
        try:
            content = cell.cell_contents
        except ValueError:  # not bound yet
            self._told("empty")
        else:
            self.value(content, way)

    def _globals(self, function: types.FunctionType, way: str) -> None:
        """What the names that the code loads stand for now."""
        for chain in sorted(set(_loaded_names(function.__code__))):
            name, *attributes = chain
            if name in function.__globals__:
                self._named(function.__globals__[name], attributes, name, way)
            self._told("global", *chain)
        for module in sorted(set(_imported_names(function.__code__))):
            loaded = sys.modules.get(module)
            if loaded is None:
                raise self._refused(
                    way, f"it imports {module!r}, which is not loaded yet: import it beside it"
                )
            self.value(loaded, f"{way} -> {module}")

    def _named(self, value: Any, attributes: list[str], name: str, way: str) -> None:
        """A global; of a module only what is taken of it."""
        way = f"{way} -> {name}"
        while isinstance(value, types.ModuleType) and attributes:
            if self._is_foreign(value.__name__, way):
                break
            attribute = attributes.pop(0)
            if not hasattr(value, attribute):
                break
            value, way = getattr(value, attribute), f"{way}.{attribute}"
        self.value(value, way)

    def _class(self, kind: type, way: str) -> None:
        if self._is_foreign(kind.__module__, way):
            self._told("of", kind.__module__, kind.__qualname__)
            return
        self._told("class", kind.__qualname__, self._source(kind, way))
        for base in kind.__bases__:
            self.value(base, f"a base of {way}")
        for name, member in _members(kind).items():
            self._told("member", name)
            self._member(member, f"{way}.{name}")

    def _member(self, member: Any, way: str) -> None:
        if isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType):
            return  # a slot, which the name says
        self.value(member, way)

    def _source(self, code: Any, way: str) -> str:
        try:
            return textwrap.dedent(inspect.getsource(code))
        except (OSError, TypeError) as error:
            raise self._refused(way, "its source cannot be read; write it to a file") from error


def _loaded_names(code: types.CodeType) -> Iterator[tuple[str, ...]]:
    """Globals that code and what is defined in it load, with the attributes taken of them."""
    chain: list[str] = []
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            if chain:
                yield tuple(chain)
            chain = [str(step.argval)]
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and chain:
            chain.append(str(step.argval))
        elif chain and step.opname not in ("CACHE", "PUSH_NULL", "EXTENDED_ARG"):
            yield tuple(chain)
            chain = []
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _loaded_names(each)


def _imported_names(code: types.CodeType) -> Iterator[str]:
    """Modules that code imports when it runs."""
    for step in dis.get_instructions(code):
        if step.opname == "IMPORT_NAME" and step.argval:
            yield str(step.argval)
    for each in code.co_consts:
        if isinstance(each, types.CodeType):
            yield from _imported_names(each)


def _is_alias(value: Any) -> bool:
    """Whether it is a type hint such as ``list[int]``."""
    return hasattr(value, "__origin__") and hasattr(value, "__args__")


def _members(kind: type) -> dict[str, Any]:
    """What a class has that is not all said by its source."""
    if issubclass(kind, enum.Enum):
        return {name: each.value for name, each in kind.__members__.items()}
    if issubclass(kind, tuple) and hasattr(kind, "_field_defaults"):
        return dict(kind._field_defaults)
    members = {
        name: member
        for name, member in vars(kind).items()
        if name not in _NO_CONTENT and not _is_generated(member)
    }
    for name, each in vars(kind).get("__dataclass_fields__", {}).items():
        made = each.default_factory
        members[name] = each.default if made is dataclasses.MISSING else made
    return {name: each for name, each in members.items() if each is not dataclasses.MISSING}


def _is_generated(member: Any) -> bool:
    """Whether Python made a member, as `dataclass` does: the fields say what it does."""
    function = getattr(member, "__func__", member)
    code = getattr(inspect.unwrap(function) if callable(function) else None, "__code__", None)
    return isinstance(code, types.CodeType) and code.co_filename == "<string>"


def _state_of(value: Any) -> dict[str, Any] | None:
    """The attributes of an object by name; None where it has none that can be seen."""
    names = [
        name
        for kind in type(value).__mro__
        for name in _listed(vars(kind).get("__slots__", ()))
        if name not in ("__dict__", "__weakref__")
    ]
    state = {name: getattr(value, name) for name in sorted(names) if hasattr(value, name)}
    has_attributes = hasattr(value, "__dict__")
    if has_attributes:
        state |= {name: vars(value)[name] for name in sorted(vars(value))}
    return state if has_attributes or names else None


def _listed(slots: Any) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def _module_of(value: Any) -> str | None:
    """The module that something of C is of."""
    if isinstance(value, np.ufunc):
        return "numpy" if getattr(np, value.__name__, None) is value else None
    owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
    if isinstance(owner, type):
        return owner.__module__
    module: str | None = getattr(value, "__module__", None)
    found = sys.modules.get(module or "")
    return module if getattr(found, value.__name__, None) is value else None


@functools.cache
def _package_of(module: str | None) -> str | None:
    """The package that a module belongs to: "python" for its library; None: it is the project's."""
    top = (module or "").partition(".")[0]
    if top in sys.stdlib_module_names and top != "__main__":
        return "python"
    if top == _OURS:
        return _OURS
    loaded = sys.modules.get(module or "") or sys.modules.get(top)
    file = getattr(loaded, "__file__", None)
    if file is None:
        # A namespace of the project, what is typed in, or compiled into the interpreter.
        return None
    return top if _FOREIGN_FOLDERS & set(Path(file).parts) else None


@functools.cache
def _version_of(package: str) -> str | None:
    if package == "python":
        return _python()
    from importlib import metadata  # loads what reads mail, and few need it

    for name in _distributions().get(package, [package]):
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    version = getattr(sys.modules.get(package), "__version__", None)
    return version if isinstance(version, str) else None


@functools.cache  # reads what all that is installed says of itself: most of a second
def _distributions() -> Mapping[str, list[str]]:
    from importlib import metadata  # as above

    return metadata.packages_distributions()


def _python() -> str:
    return "{}.{}".format(*sys.version_info)
