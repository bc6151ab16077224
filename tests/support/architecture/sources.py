"""Source files of the package: modules, their imports and the names that they use.

Read from the files alone: nothing is imported, so that a broken module is judged like any other.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = next(
    each for each in Path(__file__).resolve().parents if (each / "pyproject.toml").is_file()
)
LAYERS = ("repo", "formats", "query", "migrations", "api", "tensorrepo")  # lowest first


@dataclass(frozen=True)
class Source:
    """One Python file of the package. `path` is relative to the checkout, with slashes."""

    path: str
    text: str

    @property
    def layer(self) -> str:
        return self.path.split("/")[0]

    @property
    def module(self) -> str:
        """The name it is imported by: ``repo/ids.py`` is ``tensorrepo.repo.ids``."""
        parts = list(Path(self.path).with_suffix("").parts)
        parts = parts if parts[0] == "tensorrepo" else ["tensorrepo", *parts]
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def tree(self) -> ast.Module:
        return _parse(self)

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """What the tree consists of, as `ast.walk` gives it."""
        return _walk(self)

    def at(self, node: ast.AST, message: str) -> str:
        """A finding as editors understand it."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}: {message}"


@cache
def _parse(source: Source) -> ast.Module:
    return ast.parse(source.text, source.path)


# A dozen rules look at some hundred files: each is parsed and walked once.
@cache
def _walk(source: Source) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(source.tree))


@dataclass(frozen=True)
class Import:
    """One imported name. `typing_only`: under ``if TYPE_CHECKING``. `late`: inside a function."""

    node: ast.AST
    module: str
    name: str | None
    typing_only: bool
    late: bool

    @property
    def full(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


@cache
def sources() -> tuple[Source, ...]:
    """Every Python file of the package, lowest layer first."""
    return tuple(
        Source(path.relative_to(ROOT).as_posix(), path.read_text("utf-8"))
        for layer in LAYERS
        for path in sorted((ROOT / layer).rglob("*.py"))
    )


@cache
def project() -> dict[str, Any]:
    """pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


@cache
def imports(source: Source) -> tuple[Import, ...]:
    """Every absolute import of `source`, one per name."""
    return tuple(_imports(source.tree, typing_only=False, late=False))


def _imports(node: ast.AST, *, typing_only: bool, late: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue  # an expression holds no statement
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(child, alias.name, None, typing_only, late)
        elif isinstance(child, ast.ImportFrom):
            for alias in child.names:
                yield Import(child, child.module or "", alias.name, typing_only, late)
        elif isinstance(child, ast.If) and _is_for_typing(child.test):
            body = ast.Module(child.body, [])
            yield from _imports(body, typing_only=True, late=late)
            yield from _imports(ast.Module(child.orelse, []), typing_only=typing_only, late=late)
        else:
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from _imports(child, typing_only=typing_only, late=late or inside)


def _is_for_typing(test: ast.expr) -> bool:
    return any(dotted(node).rpartition(".")[2] == "TYPE_CHECKING" for node in ast.walk(test))


def dotted(node: ast.AST) -> str:
    """``os.environ.get`` of the expression that says so, else ""."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (left := dotted(node.value)):
        return f"{left}.{node.attr}"
    return ""


@cache
def names_used(source: Source) -> tuple[tuple[ast.AST, str], ...]:
    """Every name and dotted name that `source` evaluates, calls included."""
    used = (node for node in source.nodes if isinstance(node, ast.Name | ast.Attribute))
    return tuple((node, name) for node in used if (name := dotted(node)))
