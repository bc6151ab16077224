"""Message forms of the pipe to an untrusted query.

Every head has one of these forms and nothing else. A filter comes as the tree of it, and is built
anew from the few functions that DuckDB pushes down: Arrow's own decoder of expressions is not made
for bytes of somebody who wants to break it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from tensorrepo.formats.dataset.selecting.expression import (
    Call,
    ColumnRef,
    ExpressionNode,
    Literal,
    stored_tree,
)
from tensorrepo.query.untrusted.pipe import packed, unpacked
from tensorrepo.repo.errors import InvalidInputError

MOST_FILTER_BYTES = 1 << 20
MOST_DEPTH = 100  # of calls in one another
_Number = Annotated[int, msgspec.Meta(ge=0, le=(1 << 62))]


class _Said(msgspec.Struct, frozen=True, tag_field="kind", forbid_unknown_fields=True):
    pass


class Ready(_Said, frozen=True, tag="ready"):
    """The tables are there."""


class Begun(_Said, frozen=True, tag="begun"):
    """The query was understood; the body has the columns of its result."""


class RowsMessage(_Said, frozen=True, tag="rows"):
    """Rows of the result."""


class Done(_Said, frozen=True, tag="done"):
    """There are no more."""


class Failed(_Said, frozen=True, tag="error"):
    """The query is wrong."""

    type: str
    text: str


class ScanRequest(_Said, frozen=True, tag="scan"):
    """Begin to read columns of a table; the body is the filter, if there is one."""

    scan: _Number
    table: _Number
    columns: list[str]
    ended: list[_Number]


class Next(_Said, frozen=True, tag="next"):
    """Give the next rows of a scan."""

    scan: _Number
    ended: list[_Number]


Said: TypeAlias = Ready | Begun | RowsMessage | Done | Failed | ScanRequest | Next


def said_in(head: dict[str, Any]) -> Said:
    """What a head says. Raises InvalidInputError where it is none of the things that may be."""
    try:
        said: Said = msgspec.convert(head, Said)
    except (msgspec.MsgspecError, RecursionError, OverflowError) as error:
        raise misbehaved(f"it said what has no meaning: {error!s:.200}") from error
    return said


def misbehaved(what: str) -> InvalidInputError:
    """The error of a process that does what ours never does."""
    return InvalidInputError(
        f"the process of the untrusted query was stopped, for {what}. The query, or the data that "
        "it read, may have taken it over: nothing of its answer is to be believed"
    )


# ------------------------------------------------------------------------------ filters


def packed_filter(where: pc.Expression) -> pa.Buffer | None:
    """A filter as a body; None: it is none that `filter_in` gives back."""
    _, (stored,) = where.__reduce__()
    batch = pa.ipc.open_file(stored).get_batch(0)
    body = packed([batch], batch.schema)
    try:
        return body if filter_in(body).equals(where) else None
    except InvalidInputError:
        return None


def filter_in(body: bytes | pa.Buffer) -> pc.Expression:
    """The filter that `packed_filter` made a body of. Raises InvalidInputError for any other."""
    if len(body) > MOST_FILTER_BYTES:
        raise InvalidInputError(f"a filter of {len(body):,} bytes: {MOST_FILTER_BYTES:,} are taken")
    batches = unpacked(body).batches
    if len(batches) != 1 or batches[0].num_rows != 1:
        raise InvalidInputError("a filter that is not one row of literals")
    try:
        return _built(stored_tree(batches[0], MOST_DEPTH))
    except (pa.ArrowException, ValueError, TypeError, LookupError, StopIteration) as error:
        raise InvalidInputError(f"a filter that is not understood: {error!s:.200}") from error


def _built(node: ExpressionNode) -> pc.Expression:
    match node:
        case ColumnRef(name):
            return pc.field(name)
        case Literal(value):
            return pc.scalar(value)
        case Call(function, arguments, options):
            made = _FUNCTIONS[function](options)
            given = [_built(each) for each in arguments]
            return pc.Expression._call(function, given, made)  # noqa: SLF001 - names any function
    raise ValueError("a part of it is not known")


def _none(_: dict[str, pa.Scalar]) -> None:
    return None


def _nulls(options: dict[str, pa.Scalar]) -> pc.FunctionOptions:
    return pc.NullOptions(nan_is_null=options["nan_is_null"].as_py())


def _lookup(options: dict[str, pa.Scalar]) -> pc.FunctionOptions:
    if options["null_matching_behavior"].as_py() != 0:
        raise ValueError("it matches nulls in another way")
    return pc.SetLookupOptions(value_set=options["value_set"].values)


_PLAIN = (
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "and_kleene",
    "or_kleene", "invert", "is_valid", "is_nan", "if_else",
)  # fmt: skip
_FUNCTIONS: dict[str, Callable[[dict[str, pa.Scalar]], pc.FunctionOptions | None]] = {
    **dict.fromkeys(_PLAIN, _none),
    "is_null": _nulls,
    "is_in": _lookup,
}
