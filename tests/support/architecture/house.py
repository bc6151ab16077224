"""Architecture figures: modules, lines, import cycles, duplicate type names.

`.ci/house` prints them (`make lint` runs it), tests/architecture/test_house.py holds them. Only the
standard library is needed, and nothing of the package is imported.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath

from tests.support.architecture.rules import MODULE_LINES
from tests.support.architecture.sources import LAYERS, ROOT, Source, imports, sources

# The table of public names, each with the module that it is loaded from when first asked for.
SEAM = ("tensorrepo/__init__.py", "tensorrepo/lazy.py")
_QUESTION = re.compile(r"[^?\n]*(\n[^?\n]+)?\?(\s|$)")  # in the first line, or ending in the second


def modules(files: Iterable[Source]) -> list[Source]:
    """Those that hold code: all but ``__init__.py``."""
    return [source for source in files if PurePosixPath(source.path).name != "__init__.py"]


def lines(files: Iterable[Source]) -> int:
    return sum(len(source.text.splitlines()) for source in files)


def lines_of_c() -> int:
    paths = [path for layer in LAYERS for path in (ROOT / layer).rglob("*.[ch]")]
    return sum(len(path.read_text("utf-8").splitlines()) for path in paths)


def import_graph(files: Iterable[Source]) -> dict[str, set[str]]:
    """Modules that each module imports: when it is loaded, for typing, or inside a function."""
    ours = list(files)
    names = {source.module for source in ours}
    graph: dict[str, set[str]] = {}
    for source in ours:
        seen = [] if source.path in SEAM else imports(source)
        targets = {each.full if each.full in names else each.module for each in seen}
        graph[source.module] = (targets & names) - {source.module}
    return graph


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of two modules or more, the largest first."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:  # Tarjan's algorithm
        numbers[module] = lowest[module] = len(numbers)
        stack.append(module)
        for target in sorted(graph[module]):
            if target not in numbers:
                visit(target)
            if target in stack:
                lowest[module] = min(lowest[module], lowest[target])
        if lowest[module] == numbers[module]:
            at = stack.index(module)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for module in sorted(graph):
        if module not in numbers:
            visit(module)
    return sorted((each for each in found if len(each) > 1), key=lambda each: (-len(each), each))


def questions(files: Iterable[Source]) -> list[str]:
    """Modules whose docstring opens with a question instead of a noun phrase of the field."""
    openings = {source.path: ast.get_docstring(source.tree) or "" for source in files}
    return [path for path, text in openings.items() if _QUESTION.match(text)]


def shared_type_names(files: Iterable[Source]) -> dict[str, list[str]]:
    """Public classes that several modules define, with those modules."""
    homes: dict[str, list[str]] = defaultdict(list)
    for source in files:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(source.path)
    return {name: paths for name, paths in sorted(homes.items()) if len(paths) > 1}


def too_long(files: Iterable[Source]) -> list[str]:
    sizes = {source.path: len(source.text.splitlines()) for source in files}
    return [f"{path}: {size}" for path, size in sizes.items() if size > MODULE_LINES]


def of_one_sibling(graph: Mapping[str, set[str]]) -> list[str]:
    """Modules that one module alone imports, which lies in the same folder."""
    times = Counter(target for targets in graph.values() for target in targets)
    return [
        f"{target}: {module}"
        for module, targets in sorted(graph.items())
        for target in sorted(targets)
        if times[target] == 1 and target.rpartition(".")[0] == module.rpartition(".")[0]
    ]


def report() -> str:
    """Figures, each with what it counts below it where that is to be mended."""
    files = sources()
    graph = import_graph(files)
    knots = [f"{len(each)}: {' '.join(each)}" for each in cycles(graph)]
    shared = [f"{name}: {' '.join(paths)}" for name, paths in shared_type_names(files).items()]
    figures: list[tuple[str, int, list[str]]] = [
        ("modules", len(modules(files)), []),
        ("lines of Python", lines(files), []),
        ("lines of C", lines_of_c(), []),
        ("import cycles", len(knots), knots),
        ("modules that open with a question", len(questions(files)), []),
        ("public types that several modules define", len(shared), shared),
        (f"modules above {MODULE_LINES} lines", len(too_long(files)), too_long(files)),
        ("modules that one sibling alone imports", len(of_one_sibling(graph)), []),
    ]
    return "\n".join(
        f"{count:7,} {what}" + "".join(f"\n          {line}" for line in listed)
        for what, count, listed in figures
    )
