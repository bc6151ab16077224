"""Predicates built in Python: trees over columns, their Arrow form and their text in SQL.

``col("label") == "cat"`` is the condition that ``"label == 'cat'"`` is as text, and means the same:
null is neither equal nor unequal, classes may be called by their names. So what one of them says,
lineage and views keep as the other. Expressions of `pyarrow.compute` are taken as Arrow means them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final, NoReturn

import numpy as np
import pyarrow as pa

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.dtypes import is_float
from tensorrepo.formats.dataset.schema.schema import Schema
from tensorrepo.formats.dataset.schema.types import ClassLabel
from tensorrepo.formats.dataset.schema.types import Decimal as DecimalType
from tensorrepo.formats.dataset.selecting.expression import (
    ArrowCall,
    ColumnRef,
    ExpressionNode,
    Literal,
    expression_tree,
)
from tensorrepo.formats.dataset.selecting.sql_condition import SqlCondition, with_both_zeros
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

MOST_TEXT: Final = 2_000  # characters of a condition that is kept for people
_MOST_NAMED: Final = 32  # rows that are told one by one
_NUMBER: Final = "row_number"
_ROW_ID = re.compile(r"[0-9a-f]{16}:\d+")
_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*")
_INFIX: Final[dict[str, tuple[str, Callable[[Any, Any], Any]]]] = {
    "equal": ("==", operator.eq),
    "not_equal": ("!=", operator.ne),
    "less": ("<", operator.lt),
    "less_equal": ("<=", operator.le),
    "greater": (">", operator.gt),
    "greater_equal": (">=", operator.ge),
    "and_kleene": ("and", operator.and_),
    "or_kleene": ("or", operator.or_),
    "add_checked": ("+", operator.add),
    "subtract_checked": ("-", operator.sub),
    "multiply_checked": ("*", operator.mul),
    "divide_checked": ("/", operator.truediv),
}
_UNARY: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "invert": ("not {}", operator.invert),
    "is_null": ("{} is null", lambda value: value.is_null()),
    "is_valid": ("{} is not null", lambda value: value.is_valid()),
    "is_nan": ("isnan({})", lambda value: value.is_nan()),
}
_COMPARED: Final = frozenset(
    {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class RowExpression:
    """A value of each row: a column, or what is computed and compared with it.

    ``col("label") == 3``, ``col("name").like("a%")``, ``col("split").isin(["a", "b"])``,
    ``col("age").between(18, 65)``, ``col("note").is_null()``, joined by ``&``, ``|`` and ``~``.
    """

    node: ExpressionNode

    def __eq__(self, other: object) -> RowExpression:  # type: ignore[override]
        return self._with("equal", other)

    def __ne__(self, other: object) -> RowExpression:  # type: ignore[override]
        return self._with("not_equal", other)

    __hash__ = None  # type: ignore[assignment]  # equality is a condition

    def __lt__(self, other: object) -> RowExpression:
        return self._with("less", other)

    def __le__(self, other: object) -> RowExpression:
        return self._with("less_equal", other)

    def __gt__(self, other: object) -> RowExpression:
        return self._with("greater", other)

    def __ge__(self, other: object) -> RowExpression:
        return self._with("greater_equal", other)

    def __and__(self, other: object) -> RowExpression:
        return self._with("and_kleene", other)

    def __or__(self, other: object) -> RowExpression:
        return self._with("or_kleene", other)

    def __invert__(self) -> RowExpression:
        return self._of("invert")

    def __add__(self, other: object) -> RowExpression:
        return self._with("add_checked", other)

    def __sub__(self, other: object) -> RowExpression:
        return self._with("subtract_checked", other)

    def __mul__(self, other: object) -> RowExpression:
        return self._with("multiply_checked", other)

    def __truediv__(self, other: object) -> RowExpression:
        return self._with("divide_checked", other)

    def like(self, pattern: str, *, ignore_case: bool = False) -> RowExpression:
        """Whether text fits a pattern: ``%`` stands for any letters, ``_`` for one."""
        if not isinstance(pattern, str):
            raise InvalidInputError(f"like() takes a pattern such as 'a%', got {pattern!r:.80}")
        options = {"pattern": pa.scalar(pattern), "ignore_case": pa.scalar(bool(ignore_case))}
        return self._of("match_like", options)

    def isin(self, values: Iterable[Any]) -> RowExpression:
        """Whether it is one of some values; of null that is not known, as in SQL."""
        if isinstance(values, str | bytes) or not isinstance(values, Iterable):
            raise InvalidInputError(f"isin() takes a list of values, got {values!r:.80}")
        given = values.tolist() if isinstance(values, np.ndarray) else list(values)
        if any(each is None for each in given):
            raise InvalidInputError("isin() takes values; None is found by is_null()")
        large = any(isinstance(each, int) and each >= 1 << 63 for each in given)
        try:
            wanted = pa.scalar(given, pa.list_(pa.uint64()) if large else None)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
            raise InvalidInputError(f"isin() takes values of one type: {error!s:.200}") from error
        return self._of("is_in", {"value_set": wanted})

    def between(self, low: Any, high: Any) -> RowExpression:
        """Whether it is `low`, `high` or in between."""
        return self._with("greater_equal", low) & self._with("less_equal", high)

    def is_null(self) -> RowExpression:
        return self._of("is_null")

    def is_not_null(self) -> RowExpression:
        return self._of("is_valid")

    def is_nan(self) -> RowExpression:
        return self._of("is_nan")

    def bound(self, schema: Schema) -> pc.Expression:
        """The same for Arrow, over columns of a dataset: classes by their numbers.

        Raises:
            InvalidInputError: a class that is not there.
        """
        return _built(self.node, schema)

    def __bool__(self) -> NoReturn:
        raise InvalidInputError(
            f"{self} is true of some rows and not of others: join conditions by &, | and ~ instead "
            "of and, or and not, with each comparison in parentheses; between(low, high) for two"
        )

    def __repr__(self) -> str:
        return node_text(self.node) or "<expression>"

    def _of(self, function: str, options: dict[str, pa.Scalar] | None = None) -> RowExpression:
        return RowExpression(ArrowCall(function, (self.node,), options or {}))

    def _with(self, function: str, other: object) -> RowExpression:
        return RowExpression(ArrowCall(function, (self.node, _operand(other)), {}))


def col(name: str) -> RowExpression:
    """A column in a predicate: see `RowExpression`."""
    if not isinstance(name, str):
        raise InvalidInputError(f"col() takes the name of a column, got {name!r:.80}")
    return RowExpression(ColumnRef(name))


def _operand(value: object) -> ExpressionNode:
    if isinstance(value, RowExpression):
        return value.node
    if value is None:
        raise InvalidInputError("nothing equals null: is_null() finds what is missing")
    try:
        return Literal(value if isinstance(value, pa.Scalar) else pa.scalar(value))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as why:
        raise InvalidInputError(
            f"a column is compared with a value or another col(), got {value!r:.80}"
        ) from why


# ------------------------------------------------------------------------------ to Arrow


def _built(node: ExpressionNode, schema: Schema) -> pc.Expression:
    match node:
        case ColumnRef(name):
            return pc.field(name)
        case Literal(value):
            return pc.scalar(value)
        case ArrowCall("is_in", (inner,), options):
            field = _built(inner, schema)
            values = options["value_set"].values
            wanted = values if values is None else _numbered(values, inner, schema)
            # As in SQL, and unlike Arrow's isin: null is neither in nor out.
            unknown = pc.scalar(pa.scalar(None, pa.bool_()))
            # No values have no type, and Arrow looks them up in no text.
            is_empty = wanted is None or not len(wanted)
            among = (
                pc.scalar(False) if is_empty else field.isin(_float_zeros(wanted, inner, schema))
            )
            return pc.if_else(field.is_null(), unknown, among)
        case ArrowCall("match_like", (inner,), options):
            pattern, ignores = (options[each].as_py() for each in ("pattern", "ignore_case"))
            return _alike(_built(inner, schema), pattern, ignore_case=ignores)
        case ArrowCall(function, (inner,)):
            return _UNARY[function][1](_built(inner, schema))
        case ArrowCall(function, (left, right)):
            if function in _COMPARED:
                left, right = _class_named(left, right, schema), _class_named(right, left, schema)
                left, right = _narrowed(left, right, schema), _narrowed(right, left, schema)
            return _INFIX[function][1](_built(left, schema), _built(right, schema))
    raise InvalidInputError(f"an expression that is not understood: {node!r:.200}")


def _float_zeros(wanted: pa.Array, inner: ExpressionNode, schema: Schema) -> pa.Array:
    """`with_both_zeros`, of whole numbers for a column of floats, too."""
    if not isinstance(inner, ColumnRef) or not pa.types.is_integer(wanted.type):
        return with_both_zeros(wanted)
    is_real = inner.name in schema and is_float(schema.column(inner.name).storage.element)
    if not is_real or 0 not in wanted.to_pylist():
        return wanted
    return with_both_zeros(wanted.cast(pa.float64(), safe=False))


def _alike(field: pc.Expression, pattern: str, *, ignore_case: bool) -> pc.Expression:
    """LIKE as SQL has it, where a backslash is a letter."""
    if "\\" not in pattern:
        return pc.match_like(field, pattern, ignore_case=ignore_case)
    # Arrow's LIKE takes it for an escape, and loses some of those that are escaped themselves.
    parts = [{"%": ".*", "_": "."}.get(letter, re.escape(letter)) for letter in pattern]
    regex = f"(?s)^{''.join(parts)}$"
    return pc.match_substring_regex(field, regex, ignore_case=ignore_case)


def _class_named(node: ExpressionNode, beside: ExpressionNode, schema: Schema) -> ExpressionNode:
    """A class's number for its name, where `node` is compared with a column of classes."""
    if isinstance(node, Literal) and pa.types.is_string(node.value.type):
        return Literal(_numbered(pa.array([node.value]), beside, schema)[0])
    return node


def _narrowed(node: ExpressionNode, beside: ExpressionNode, schema: Schema) -> ExpressionNode:
    """A whole number as the smallest type that holds it, where it is compared with decimals.

    Arrow compares them exactly, but casts a larger type than the number needs, and gives up.
    """
    if not (isinstance(node, Literal) and pa.types.is_integer(node.value.type)):
        return node
    if not isinstance(beside, ColumnRef) or beside.name not in schema:
        return node
    if not isinstance(schema.column(beside.name).type, DecimalType) or not node.value.is_valid:
        return node
    number = node.value.as_py()
    bits = next((bits for bits in (8, 16, 32, 64) if -1 << bits - 1 <= number < 1 << bits - 1), 0)
    return Literal(pa.scalar(number, f"int{bits}")) if bits else node


def _numbered(values: pa.Array, beside: ExpressionNode, schema: Schema) -> pa.Array:
    if not isinstance(beside, ColumnRef) or beside.name not in schema:
        return values
    kind = schema.column(beside.name).type
    if not isinstance(kind, ClassLabel) or not pa.types.is_string(values.type):
        return values
    strange = [name for name in values.to_pylist() if name not in kind.names]
    if strange:
        raise InvalidInputError(
            f"expected a class of {beside.name!r} ({', '.join(kind.names):.300}), found "
            f"{strange[0]!r:.80}"
        )
    return pa.array([kind.names.index(name) for name in values.to_pylist()])


# ------------------------------------------------------------------------------ to text


def condition_text(where: object) -> str | None:
    """The condition in SQL that says what `where` does.

    None where there is none, as of rows that are named by number, or one of more than
    `MOST_TEXT` characters.
    """
    text: str | None = None
    if isinstance(where, str):
        text = where
    elif isinstance(where, SqlCondition):
        text = where.text
    elif isinstance(where, RowExpression):
        text = node_text(where.node)
    elif isinstance(where, pc.Expression):
        text = node_text(expression_tree(where))
    return text if text is not None and len(text) <= MOST_TEXT else None


def row_text(rows: object, *, counts: bool) -> str | None:
    """The condition in SQL that says which rows are named one by one; None: none does, briefly.

    `counts` says whether numbers of rows are those that SQL calls ``row_number``.
    """
    if isinstance(rows, slice):
        start, stop = rows.start or 0, rows.stop
        if not counts or rows.step not in (None, 1) or start < 0 or (stop or 0) < 0:
            return None
        parts = [f"{_NUMBER} >= {start}"] if start else []
        parts += [] if stop is None else [f"{_NUMBER} < {stop}"]
        return " and ".join(parts) or f"{_NUMBER} >= 0"
    if not isinstance(rows, list | tuple | np.ndarray) or not 0 < len(rows) <= _MOST_NAMED:
        return None
    given = [each.item() if isinstance(each, np.generic) else each for each in rows]
    if all(isinstance(each, str) for each in given):
        return str(col("row_id").isin(given))
    whole = all(isinstance(each, int) and not isinstance(each, bool) for each in given)
    return str(col(_NUMBER).isin(given)) if whole and counts and min(given) >= 0 else None


def where_text(where: object, *, counts: bool) -> str | None:
    """`condition_text`, also of rows that a caller names by number, id or key."""
    if isinstance(where, str) and is_row_id(where):
        return row_text([where], counts=counts)
    text = condition_text(where)
    if text is not None:
        return text if counts or not re.search(rf"\b{_NUMBER}\b", text, re.IGNORECASE) else None
    if isinstance(where, Mapping) and len(where) == 1:
        ((name, values),) = where.items()
        given = [values] if isinstance(values, str | bytes | int) else values
        try:
            return condition_text(col(name).isin(given))
        except InvalidInputError:
            return None
    return row_text(where, counts=counts)


def is_row_id(text: str) -> bool:
    """Whether a text is the id of a row, and no condition."""
    return _ROW_ID.fullmatch(text) is not None


def joined(conditions: Sequence[str]) -> str:
    """Conditions that must all hold, as one."""
    if len(conditions) == 1:
        return conditions[0]
    return " and ".join(f"({each})" for each in conditions)


def node_text(node: ExpressionNode) -> str | None:
    """A tree as people write it in SQL; None where it holds what SQL does not say."""
    try:
        return _text(node)
    except _UnwritableError:
        return None


class _UnwritableError(Exception):
    """What SQL has no words for."""


def _text(node: ExpressionNode) -> str:  # noqa: PLR0911  one return for each kind
    match node:
        case ColumnRef(name):
            return name_text(name)
        case Literal(value):
            return _literal(value.as_py())
        case ArrowCall("if_else", (ArrowCall("is_null", (tested,)), Literal(), inner)):
            if isinstance(inner, ArrowCall) and inner.function == "is_in":
                return _text(inner) if inner.arguments == (tested,) else _unwritable()
        case ArrowCall("is_in", (inner,), options):
            values = options["value_set"].as_py() or _unwritable()
            return f"{_inner(inner)} in ({', '.join(map(_literal, values))})"
        case ArrowCall("match_like", (inner,), options):
            word = "ilike" if options["ignore_case"].as_py() else "like"
            return f"{_inner(inner)} {word} {_literal(options['pattern'].as_py())}"
        case ArrowCall("starts_with", (inner,), options) if not options["ignore_case"].as_py():
            return f"starts_with({_text(inner)}, {_literal(options['pattern'].as_py())})"
        case ArrowCall(function, (inner,)) if function in _UNARY:
            return _UNARY[function][0].format(_inner(inner))
        case ArrowCall(function, (left, right)) if function in _INFIX:
            return f"{_inner(left)} {_INFIX[function][0]} {_inner(right)}"
    return _unwritable()


def _inner(node: ExpressionNode) -> str:
    """A part of a condition, in parentheses where it is not a name or a value."""
    return f"({_text(node)})" if isinstance(node, ArrowCall) else _text(node)


def name_text(name: str) -> str:
    """A column's name as SQL takes it."""
    return name if _PLAIN_NAME.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, int | Decimal) or (isinstance(value, float) and np.isfinite(value)):
        return repr(value) if not isinstance(value, Decimal) else str(value)
    if isinstance(value, datetime | date | time):
        return f"'{value.isoformat(' ') if isinstance(value, datetime) else value.isoformat()}'"
    return _unwritable()


def _unwritable() -> NoReturn:
    raise _UnwritableError
