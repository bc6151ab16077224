"""The rules of docs/design/layers.md as functions from a file to its findings.

Each returns ``path:line: what is wrong``. They are functions so that the tests can also hand them
a file that breaks the rule: a rule that cannot fail guards nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from graphlib import CycleError, TopologicalSorter

from tests.support.architecture.sources import LAYERS, ROOT, Source, dotted, imports, names_used

MODULE_LINES = 800
_DESCRIBED = re.compile(r"^(?:Args|Attributes):\n((?:[ \t]+.*\n?|\n)+)", re.MULTILINE)
_DANGLING = re.compile(r"^    (\w+): of\b", re.MULTILINE)

# Who may do what, by path. A new name here is a decision to be defended in review.
READ_THE_ENVIRONMENT = ("tensorrepo/this_machine.py", "tensorrepo/cli/*.py", "api/settings.py")
PRINT = ("tensorrepo/cli/output.py",)
LOAD_BY_NAME = (
    "tensorrepo/lazy.py",
    "tensorrepo/cli/main.py",
    "formats/exchange/child_main.py",
    "formats/common/tensors.py",  # optional libraries of others, all of them in one function
)
# A sampler of stored candidates, a reader of many small files at once, and a writer of merged rows.
READ_IN_PURE_ROOMS = (
    "formats/dataset/versions/merge_write.py",
    "formats/native/files.py",
    "formats/runs/stored_run.py",
)
STORAGE_NAMES = ("ObjectSource", "ObjectSink", "Backend", "DiskCache", "ObjectStore", "Repository")
STORAGE_MODULES = ("fsspec", "obstore", "mmap", "socket", "urllib", "shutil", "tempfile")
OPENERS = ("open", "os.open", "io.open")
FILE_CALLS = ("read_bytes", "read_text", "write_bytes", "write_text", "iterdir", "unlink")
UNPICKLERS = ("pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib")
EVALUATORS = ("eval", "exec", "compile", "__import__", "yaml.load", "torch.load", "builtins.eval")
# Compiles methods of records, whose text holds names of fields that stand in our own modules.
COMPILES = ("repo/deferred_dataclass.py",)
PRINTERS = ("print", "typer.echo", "click.echo", "sys.stdout", "sys.stderr", "rich.print")


def allowed(source: Source, patterns: Iterable[str]) -> bool:
    return any(fnmatch(source.path, pattern) for pattern in patterns)


def layer_of(module: str) -> str | None:
    """Layer that `module` belongs to; None when it is not ours."""
    parts = module.split(".")
    if parts[0] != "tensorrepo":
        return None
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS[:-1] else "tensorrepo"


def upward_imports(source: Source) -> list[str]:
    """Imports of a layer above the file's own, TYPE_CHECKING ones too: it must not know them."""
    own = LAYERS.index(source.layer)
    found = []
    for each in imports(source):
        layer = layer_of(each.full)
        if layer is not None and LAYERS.index(layer) > own:
            found.append(source.at(each.node, f"{source.layer} imports {each.full} from above"))
    return found


def relative_imports(source: Source) -> list[str]:
    return [
        source.at(node, "relative import")
        for node in source.nodes
        if isinstance(node, ast.ImportFrom) and node.level
    ]


def bare_layer_imports(source: Source) -> list[str]:
    """``import repo``: works from the root by accident, and makes a second copy of every class."""
    return [
        source.at(each.node, f"import tensorrepo.{each.module}, not {each.module}")
        for each in imports(source)
        if each.module.split(".")[0] in LAYERS[:-1]
    ]


def late_imports(source: Source) -> list[str]:
    """Our own modules imported inside functions, or by a name in a string."""
    late = [
        source.at(each.node, f"late import of {each.full}: a cycle hides here")
        for each in imports(source)
        if each.late and layer_of(each.module) is not None
    ]
    by_name = [
        source.at(node, "a module is loaded by name")
        for node, name in names_used(source)
        if name.endswith("import_module") and not allowed(source, LOAD_BY_NAME)
    ]
    return late + by_name


def import_graph(sources: Iterable[Source], *, typing_too: bool = False) -> dict[str, set[str]]:
    """Which of our modules each of our modules loads while it is itself being loaded.

    With `typing_too` those that it names for type checkers as well; the seam of late loading, whose
    purpose that is, aside.
    """
    files = list(sources)
    modules = {source.module for source in files}
    graph: dict[str, set[str]] = {}
    for source in files:
        typing_counts = typing_too and not allowed(source, LOAD_BY_NAME)
        at_load = [
            each
            for each in imports(source)
            if not each.late and (typing_counts or not each.typing_only)
        ]
        targets = (each.full if each.full in modules else each.module for each in at_load)
        graph[source.module] = {target for target in targets if target in modules}
    return graph


def import_cycles(sources: Iterable[Source]) -> list[str]:
    try:
        TopologicalSorter(import_graph(sources)).prepare()
    except CycleError as error:
        return [" -> ".join(error.args[1])]
    return []


def environment_reads(source: Source) -> list[str]:
    if allowed(source, READ_THE_ENVIRONMENT):
        return []
    words = ("os.environ", "os.environb", "os.getenv", "os.putenv", "environ", "getenv")
    return [
        source.at(node, f"{name} read here") for node, name in names_used(source) if name in words
    ]


def prints(source: Source) -> list[str]:
    """Text for people, but in the one module that knows about colour, width and --json."""
    if allowed(source, PRINT):
        return []
    asked = {  # asking whether somebody watches, or for the descriptor, prints nothing
        node.value
        for node in source.nodes
        if isinstance(node, ast.Attribute) and node.attr in ("fileno", "isatty")
    }
    used = [(node, name) for node, name in names_used(source) if name in PRINTERS]
    calls = (node for node in source.nodes if isinstance(node, ast.Call))
    consoles = [(node, "Console") for node in calls if dotted(node.func).endswith("Console")]
    return [
        source.at(node, f"{name} outside {PRINT[0]}")
        for node, name in used + consoles
        if node not in asked
    ]


def code_from_data(source: Source) -> list[str]:
    """Whatever turns stored or foreign bytes into running code."""
    loaded = [
        source.at(each.node, f"imports {each.module}")
        for each in imports(source)
        if each.module.split(".")[0] in UNPICKLERS
    ]
    called = [
        source.at(node, f"calls {dotted(node.func)}")
        for node in source.nodes
        if isinstance(node, ast.Call) and dotted(node.func) in EVALUATORS
        if not allowed(source, COMPILES)
    ]
    return loaded + called + list(_allow_pickle(source))


def _allow_pickle(source: Source) -> Iterator[str]:
    for node in source.nodes:
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
            refused = isinstance(node.value, ast.Constant) and node.value.value is False
            if not refused:
                yield source.at(node.value, "allow_pickle may only be False")


def is_pure(source: Source) -> bool:
    """Whether the docstring of the module's folder says that nothing in it touches storage."""
    package = (ROOT / source.path).with_name("__init__.py")
    return package.exists() and "Touches no storage." in package.read_text("utf-8")


def storage_in_pure_modules(source: Source) -> list[str]:
    """Storage named by a module of a folder that says of itself that it only decides.

    Types are complete here, so a function that reads or writes objects has to name what it
    reads from: to import such a name, even for typing alone, is to touch storage.
    """
    if not is_pure(source) or allowed(source, READ_IN_PURE_ROOMS):
        return []
    named = [
        source.at(each.node, f"imports {each.full}")
        for each in imports(source)
        if each.name in STORAGE_NAMES or each.module.split(".")[0] in STORAGE_MODULES
    ]
    opened = [
        source.at(node, f"calls {dotted(node.func)}")
        for node in source.nodes
        if isinstance(node, ast.Call)
        and (dotted(node.func) in OPENERS or dotted(node.func).split(".")[-1] in FILE_CALLS)
    ]
    return named + opened


def dangling_descriptions(source: Source) -> list[str]:
    """Arguments and attributes that are described by the end of a phrase, as in ``name: of it``."""
    return [
        source.at(node, f"describe {name!r} by a phrase that stands alone, not by 'of ...'")
        for node in source.nodes
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
        for section in _DESCRIBED.findall(ast.get_docstring(node) or "")
        for name in _DANGLING.findall(section)
    ]


def too_long(source: Source) -> list[str]:
    lines = len(source.text.splitlines())
    return [f"{source.path}:{lines}: {lines} lines, at most {MODULE_LINES}"] * (
        lines > MODULE_LINES
    )


def long_functions(source: Source, lines: int) -> tuple[list[str], int]:
    """Functions of more than `lines` lines without their docstrings, and how many there are."""
    functions = [
        node for node in source.nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    sizes = [(node, _code_lines(node)) for node in functions]
    long = [source.at(node, f"{node.name}: {size} lines") for node, size in sizes if size > lines]
    return long, len(functions)


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    first = node.body[0]
    documented = ast.get_docstring(node) is not None
    docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (node.end_lineno or 0) - node.lineno + 1 - docstring


def code_in_init(source: Source) -> list[str]:
    """Anything but a docstring in an ``__init__.py``; tensorrepo's own holds the public names."""
    if not source.path.endswith("/__init__.py") or source.path == "tensorrepo/__init__.py":
        return []
    documented = ast.get_docstring(source.tree) is not None
    missing = [] if documented else [f"{source.path}:1: no docstring"]
    rest = source.tree.body[1 if documented else 0 :]
    return missing + [source.at(node, "code in __init__.py") for node in rest]
