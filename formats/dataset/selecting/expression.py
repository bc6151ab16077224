"""Trees of Arrow expressions: what a `col()` expression compares.

pyarrow makes expressions and applies them, but does not show what is in them. Their stored form
does: Arrow writes an expression as a record batch whose columns are the literals, and whose
metadata walks the tree, call by call. Keys come more than once in it, so it is read through the C
data interface: pyarrow's own mapping would keep one of each.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import TypeAlias

import pyarrow as pa

from tensorrepo.formats.common import compute as pc
from tensorrepo.repo.deferred_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class ColumnRef:
    """A column, by name."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A value, as an Arrow scalar."""

    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class ArrowCall:
    """A function of Arrow's, such as ``and_kleene``, ``less`` and ``is_in``, with its options."""

    function: str
    arguments: tuple[ExpressionNode, ...]
    options: dict[str, pa.Scalar]


@dataclass(frozen=True, slots=True)
class Unknown:
    """What this version does not understand: nothing is concluded from it.

    `names` are the columns that it reads; None where not even these are known.
    """

    names: frozenset[str] | None = None


ExpressionNode: TypeAlias = ColumnRef | Literal | ArrowCall | Unknown
_METADATA_AT = 2  # struct ArrowSchema: format, name, metadata, ...


def expression_tree(expression: pc.Expression) -> ExpressionNode:
    """The tree of an expression; `Unknown` where it holds what is not understood."""
    try:
        _, (stored,) = expression.__reduce__()
        batch = pa.ipc.open_file(stored).get_batch(0)
        return stored_tree(batch)
    except (pa.ArrowException, ValueError, TypeError, StopIteration, LookupError):
        return Unknown()  # another version of Arrow may store it in another way


def stored_tree(batch: pa.RecordBatch, most_depth: int | None = None) -> ExpressionNode:
    """The tree in the batch as which Arrow stores an expression.

    More than `most_depth` calls in one another are refused; None: more than Python's stack takes.

    Raises:
        ValueError, TypeError, StopIteration, LookupError: it is no such batch.
    """
    return _Walk(batch, most_depth).node()


def field_names(node: ExpressionNode) -> frozenset[str] | None:
    """The columns that a tree reads; None where that is not known of some part."""
    match node:
        case Unknown(names):
            return names
        case ColumnRef(name):
            return frozenset([name])
        case Literal():
            return frozenset()
        case ArrowCall(arguments=arguments):
            found = [field_names(each) for each in arguments]
            known = [each for each in found if each is not None]
            return frozenset().union(*known) if len(known) == len(found) else None


class _Walk:
    def __init__(self, batch: pa.RecordBatch, most_depth: int | None = None) -> None:
        self._batch = batch
        self._most_depth = most_depth
        self._depth = 0
        self._steps: Iterator[tuple[str, str]] = iter(_metadata(batch.schema))

    def node(self) -> ExpressionNode:
        kind, value = next(self._steps)
        return self._made(kind, value)

    def _made(self, kind: str, value: str) -> ExpressionNode:
        if kind == "field_ref":
            return ColumnRef(value)
        if kind == "literal":
            return Literal(self._batch.column(int(value))[0])
        if kind == "call":
            return self._call(value)
        if kind == "nested_field_ref":
            path = [next(self._steps)[1] for _ in range(int(value))]
            return Unknown(frozenset(path[:1]))
        raise ValueError(f"an expression with a {kind}")

    def _call(self, function: str) -> ExpressionNode:
        self._depth += 1
        if self._most_depth is not None and self._depth > self._most_depth:
            raise ValueError(f"an expression of more than {self._most_depth} calls in one another")
        arguments: list[ExpressionNode] = []
        options: dict[str, pa.Scalar] = {}
        for kind, value in self._steps:
            if kind == "end":
                self._depth -= 1
                return ArrowCall(function, tuple(arguments), options)
            if kind == "options":
                options = dict(self._batch.column(int(value))[0].items())
            else:
                arguments.append(self._made(kind, value))
        raise ValueError("an expression that does not end")


def _metadata(schema: pa.Schema) -> list[tuple[str, str]]:
    """Metadata of a schema, key by key in order, equal keys too.

    Source:
        "The Arrow C data interface": i32 pairs, then i32 length and bytes of each key and value.
    """
    capsule = schema.__arrow_c_schema__()
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    words = ctypes.c_void_p * (_METADATA_AT + 1)
    at = words.from_address(pointer_of(capsule, b"arrow_schema"))[_METADATA_AT]
    if at is None:
        return []
    pairs = ctypes.c_int32.from_address(at).value
    at += 4
    texts = []
    for _ in range(2 * pairs):
        size = ctypes.c_int32.from_address(at).value
        texts.append(ctypes.string_at(at + 4, size).decode())
        at += 4 + size
    return list(zip(texts[::2], texts[1::2], strict=True))
