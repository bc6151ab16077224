"""SQL conditions as Arrow expressions: the tree that DuckDB parses, translated.

DuckDB reads the text of a condition (``json_serialize_sql``: nothing is run, no table is needed).
Comparisons of columns with values, ``in``, ``between``, ``like``, ``starts_with``, ``is null``,
``and``, ``or`` and ``not`` become a `col()` expression, which skips pages, is pushed down and can
be pickled. Anything else is SQL that DuckDB alone can answer.

Beyond SQL these are read: numbers for class names, names of columns with dots or in
`backticks`, and text in double quotes where no column has that name.
"""

from __future__ import annotations

import atexit
import decimal
import json
import operator
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time
from functools import cache
from typing import Any, Final, NoReturn, get_args

import numpy as np
import pyarrow as pa

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.dtypes import is_float, is_small_float
from tensorrepo.formats.dataset.schema.arrow_types import arrow_type
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.formats.dataset.schema.types import (
    ClassLabel,
    ColumnLayout,
    ColumnType,
    Date,
    Decimal,
    Duration,
    Embedding,
    Nested,
    Null,
    Struct,
    Tensor,
    Text,
    Time,
    Timestamp,
    storage_of,
)
from tensorrepo.formats.dataset.selecting.row_bits import RowBits
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

_PREFIX, _SUFFIX = "SELECT 1 WHERE (\n", "\n)"
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "COMPARE_EQUAL": operator.eq,
    "COMPARE_NOTEQUAL": operator.ne,
    "COMPARE_LESSTHAN": operator.lt,
    "COMPARE_LESSTHANOREQUALTO": operator.le,
    "COMPARE_GREATERTHAN": operator.gt,
    "COMPARE_GREATERTHANOREQUALTO": operator.ge,
}
_EQUALITIES = ("COMPARE_EQUAL", "COMPARE_NOTEQUAL")
# By kind of node: the operand that is greater than the other, or equal to it, where it is true.
_GREATER = {
    "COMPARE_EQUAL": ("left", "right"),
    "COMPARE_NOTEQUAL": ("left", "right"),
    "COMPARE_LESSTHAN": ("right", "left"),
    "COMPARE_LESSTHANOREQUALTO": ("right", "left"),
    "COMPARE_GREATERTHAN": ("left", "right"),
    "COMPARE_GREATERTHANOREQUALTO": ("left", "right"),
}
_NAMES_OF_THEIR_OWN = ("SUBQUERY", "LAMBDA")
_LOWEST_IF = b"(CASE WHEN %b THEN '-inf' ELSE %b END)"
_NOT_LOWEST_IF = b"(CASE WHEN %b AND %b = '-inf' THEN 0 ELSE %b END)"
_LIKE = {"~~": (False, False), "!~~": (True, False), "~~*": (False, True), "!~~*": (True, True)}
_STARTS_WITH = frozenset({"starts_with", "prefix", "^@"})
_WORDS = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]+`|[\w][\w.]*|--[^\n]*|.""", re.DOTALL)
_NUMBER = re.compile(r"-?\s*(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?(?![\w.])")
# Words that mean a column where there is one of that name, though they are values to SQL.
_VALUES_OF_SQL = frozenset(
    {
        "current_catalog", "current_date", "current_role", "current_schema", "current_time",
        "current_timestamp", "current_user", "localtime", "localtimestamp", "session_user", "user",
    }
)  # fmt: skip
_REFERENCE = re.compile(rb"""(?:(?:"(?:[^"]|"")*"|\w+)\s*\.\s*)*("(?:[^"]|"")*"|[\w\x80-\xff]+)""")
_NEVER_COLUMNS = frozenset({"and", "or", "not", "in", "is", "null", "true", "false"})
_MAX_DIGITS = 40  # of a whole number; Python refuses some thousands
_NUMBERS, _BOOLS, _TEXTS, _TIMES = "a number", "true or false", "text in quotes", "a moment"
_DATES, _HOURS, _DECIMALS = "a date in quotes", "a time of day in quotes", "a decimal number"
_MAX_FLOAT_DIGITS = 15  # that a float keeps of a decimal


@dataclass(frozen=True, slots=True)
class SqlCondition:
    """A condition on rows of one dataset.

    Attributes:
        text: the condition as its author wrote it.
        sql: the condition as DuckDB takes it over the columns of the dataset.
        expression: the same as an Arrow expression; None: DuckDB alone can answer it.
        rows: rows that DuckDB found, where it was asked.
    """

    text: str
    sql: str
    expression: pc.Expression | None
    rows: RowBits | None = None

    def __str__(self) -> str:
        return self.text


def class_number_columns(schema: Schema) -> dict[str, str]:
    """What SQL calls the numbers of classes, by column of classes: ``label_number``.

    SQL shows classes by their names. A name that is taken gets underscores behind it.
    """
    taken, found = {name.lower() for name in schema.names}, {}
    for column in schema.columns:
        if isinstance(column.type, ClassLabel):
            name = f"{column.name}_number"
            while name.lower() in taken:
                name += "_"
            taken.add(name.lower())
            found[column.name] = name
    return found


def read_condition(text: str, schema: Schema) -> SqlCondition:
    """A condition as people write it: ``label == 'cat' and note is not null``.

    Raises:
        InvalidInputError: no SQL, a column or class that is not there, or values that do not
            compare; points at the place.
    """
    try:
        sql, tree = _parsed(text, schema)
        return _Translation(sql, schema).condition(text, tree)
    except RecursionError:
        raise InvalidInputError(f"condition {text!r:.200}: nested too deeply") from None


# ------------------------------------------------------------------------------ text to tree


def _parsed(text: str, schema: Schema) -> tuple[str, Any]:
    """The condition as SQL, and DuckDB's tree of it."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(f"condition {text!r:.200} is no UTF-8: {error}") from error
    if not text.strip():
        raise InvalidInputError("the condition is empty: write one such as \"label == 'cat'\"")
    refused: list[tuple[str, Any]] = []
    # Words that are both SQL and columns are SQL where that makes sense, as in `x between 1 and 2`.
    for every_name in (False, True):
        sql = "".join(_quoted(text, schema.names, every_name=every_name))
        answer = _serialized(_PREFIX + sql + _SUFFIX)
        if not answer["error"]:
            return sql, _only_condition(text, answer["statements"])
        refused.append((sql, answer))
    sql, answer = refused[0]
    message = str(answer["error_message"]).partition(" Use ")[0]
    if "position" not in answer:
        raise InvalidInputError(f"condition {text!r:.200}: {message}")
    at, size = int(answer["position"]) - len(_PREFIX), len(sql.encode())
    return _refuse(sql, min(max(at, 0), size), message if at < size else "it ends too early")


_OTHER_CLAUSES: Final = ("modifiers", "group_expressions", "having", "sample", "qualify")


def _only_condition(text: str, statements: Sequence[Any]) -> Any:
    """The condition's tree. Raises InvalidInputError where the text closes it, and goes on."""
    node = statements[0]["node"]
    if (
        len(statements) != 1
        or node["type"] != "SELECT_NODE"
        or any(node[clause] for clause in _OTHER_CLAUSES)
    ):
        raise InvalidInputError(f"{text!r:.200} is more than a condition: a ) has no ( before it")
    return node["where_clause"]


@cache
def _parser(_process: int) -> Any:
    """DuckDB for nothing but its parser: opening one takes 60 times as long as a condition."""
    import duckdb  # as heavy as the engine: loaded where a condition comes as text

    parser = duckdb.connect(config={"threads": 1})
    with suppress(duckdb.CatalogException):  # DuckDB 1 starts no others
        parser.execute("SET async_threads = 0")
    return parser


atexit.register(_parser.cache_clear)  # DuckDB calls what is left at the end a leak


def _serialized(query: str) -> Any:
    import duckdb

    # By process: one that was forked has none of what the other's engine holds in memory.
    with _parser(os.getpid()).cursor() as connection:
        try:
            (text,) = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()[0]
        except duckdb.Error as error:
            return {"error": True, "error_message": str(error).partition("\n")[0]}
    return json.loads(text)


def _quoted(text: str, names: Sequence[str], *, every_name: bool) -> Iterator[str]:
    """Words of `text`, with names of columns in quotes where SQL needs them, and text in single
    ones; with `every_name` all names are in quotes.
    """
    words = [match[0] for match in _WORDS.finditer(text)]
    for word, following in zip(words, [*words[1:], ""], strict=True):
        is_column = word in names and following != "(" and word.lower() not in _NEVER_COLUMNS
        if word[0] == "`":
            yield _name(word[1:-1])
        elif word[0] == '"' and len(word) > 1:
            inside = word[1:-1].replace('""', '"')
            yield word if _resolved(inside, names) else "'" + inside.replace("'", "''") + "'"
        elif is_column and (every_name or "." in word or word.lower() in _VALUES_OF_SQL):
            yield _name(word)
        else:
            yield word


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _resolved(name: str, names: Sequence[str]) -> str | None:
    """The column that SQL means by `name`: itself, else the one that differs in case alone."""
    if name in names:
        return name
    alike = [each for each in names if each.lower() == name.lower()]
    return alike[0] if len(alike) == 1 else None


def _refuse(sql: str, offset: int, message: str) -> NoReturn:
    """Refuse a condition, pointing at a byte of it."""
    at = len(sql.encode()[:offset].decode(errors="ignore"))
    raise InvalidInputError(f"condition, character {at + 1}: {message}\n  {sql}\n  {' ' * at}^")


# ------------------------------------------------------------------------------ tree to expression


class _BeyondTreeError(Exception):
    """SQL that no expression says."""


@dataclass(frozen=True, slots=True)
class _Value:
    """A literal; `node` is where it stands."""

    value: Any
    node: Any


class _Translation:
    def __init__(self, sql: str, schema: Schema) -> None:
        self._sql = sql
        self._schema = schema

    def condition(self, text: str, tree: Any) -> SqlCondition:
        try:
            expression = self._expression(tree)
        except _BeyondTreeError:
            expression = None
        return SqlCondition(text, self._in_sql(tree), expression)

    def _expression(self, node: Any) -> pc.Expression:
        match node["class"], node["type"]:
            case "CONJUNCTION", kind:
                join = operator.and_ if kind == "CONJUNCTION_AND" else operator.or_
                return self._joined(join, node["children"])
            case "OPERATOR", "OPERATOR_NOT":
                return ~self._expression(node["children"][0])
            case "OPERATOR", ("OPERATOR_IS_NULL" | "OPERATOR_IS_NOT_NULL") as kind:
                field = pc.field(self._column(node["children"][0]).name)
                return field.is_null() if kind == "OPERATOR_IS_NULL" else ~field.is_null()
            case "OPERATOR", ("COMPARE_IN" | "COMPARE_NOT_IN") as kind:
                among = self._among(*node["children"])
                return among if kind == "COMPARE_IN" else ~among
            case "BETWEEN", _:
                low, high = node["lower"], node["upper"]
                return self._compared(operator.ge, node["input"], low) & self._compared(
                    operator.le, node["input"], high
                )
            case "COMPARISON", kind if kind in _COMPARISONS:
                return self._compared(_COMPARISONS[kind], node["left"], node["right"])
            case "FUNCTION", _ if node["function_name"] in _LIKE.keys() | _STARTS_WITH:
                return self._of_text(node)
        return self._bools(node)

    def _joined(self, join: Callable[[Any, Any], Any], nodes: Sequence[Any]) -> pc.Expression:
        parts = [self._expression(node) for node in nodes]
        while len(parts) > 1:  # in pairs: Arrow walks trees by recursion
            halves = [parts[at : at + 2] for at in range(0, len(parts), 2)]
            parts = [half[0] if len(half) == 1 else join(*half) for half in halves]
        return parts[0]

    def _bools(self, node: Any) -> pc.Expression:
        column = self._side(node)
        if not isinstance(column, Column):
            if not isinstance(column.value, bool):
                raise _BeyondTreeError
            return pc.scalar(column.value)
        if operand_kind(column.type) != _BOOLS:
            self._refuse(node, f"an operator such as ==, as {_described(column)} is not of bools")
        return pc.field(column.name)

    def _compared(self, compare: Callable[[Any, Any], Any], left: Any, right: Any) -> pc.Expression:
        sides = [self._side(left), self._side(right)]
        columns = [side for side in sides if isinstance(side, Column)]
        if not columns:
            raise _BeyondTreeError
        if any(isinstance(column.type, _FOR_DUCKDB) for column in columns):
            raise _BeyondTreeError
        kinds = [operand_kind(column.type) for column in columns]
        for side, node in zip(sides, (left, right), strict=True):
            if isinstance(side, Column) and operand_kind(side.type) is None:
                self._refuse(node, f"a column whose values have an order, not {_described(side)}")
        if len(set(kinds)) > 1:
            self._refuse(right, f"a column that can be compared with {_described(columns[0])}")
        return compare(
            *(
                pc.field(side.name) if isinstance(side, Column) else self._scalar(side, columns[0])
                for side in sides
            )
        )

    def _among(self, left: Any, *rest: Any) -> pc.Expression:
        column = self._column(left)
        if isinstance(column.type, _FOR_DUCKDB):
            raise _BeyondTreeError
        sides = [self._side(node) for node in rest]
        literals = [each for each in sides if isinstance(each, _Value) and each.value is not None]
        if len(literals) != len(sides):
            raise _BeyondTreeError
        values = [self._scalar(each, column).as_py() for each in literals]
        kind = arrow_type(column.type)
        kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
        if is_small_float(storage_of(column.type).element):
            kind = pa.float32()  # as `comparable` has them
        try:
            wanted = pa.array(values, kind)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError) as error:
            raise InvalidInputError(f"condition {self._sql!r:.200}: {error}") from error
        field = pc.field(column.name)
        # As in SQL, and unlike Arrow's isin: null is neither in nor out.
        unknown = pc.scalar(pa.scalar(None, pa.bool_()))
        return pc.if_else(field.is_null(), unknown, field.isin(with_both_zeros(wanted)))

    def _of_text(self, node: Any) -> pc.Expression:
        if node["function_name"] in _STARTS_WITH:
            return self._starts_with(node)
        field, pattern = self._text_and_pattern(node)
        if "\\" in pattern:  # escapes in Arrow's patterns, and is a letter in SQL's
            raise _BeyondTreeError
        negated, ignore_case = _LIKE[node["function_name"]]
        alike = pc.match_like(field, pattern, ignore_case=ignore_case)
        return ~alike if negated else alike

    def _starts_with(self, node: Any) -> pc.Expression:
        # What makes no sense of it is DuckDB's to refuse.
        if node["schema"] or node["distinct"] or node["filter"] or node["order_bys"]["orders"]:
            raise _BeyondTreeError
        return pc.starts_with(*self._text_and_pattern(node))

    def _text_and_pattern(self, node: Any) -> tuple[pc.Expression, str]:
        """What a function is asked of: a column of text, and a value in quotes."""
        arguments = node.get("children") or [each["expression"] for each in node["arguments"]]
        if len(arguments) != 2:
            raise _BeyondTreeError
        column, pattern = map(self._side, arguments)
        if (
            not isinstance(column, Column)
            or not isinstance(column.type, Text)
            or isinstance(pattern, Column)
            or not isinstance(pattern.value, str)
        ):
            raise _BeyondTreeError
        return pc.field(column.name), pattern.value

    # -------------------------------------------------------------------------- operands

    def _side(self, node: Any) -> Column | _Value:
        if node["class"] == "COLUMN_REF":
            return self._column(node)
        if node["class"] == "CONSTANT":
            return _Value(self._literal(node), node)
        raise _BeyondTreeError

    def _column(self, node: Any) -> Column:
        if node["class"] != "COLUMN_REF":
            raise _BeyondTreeError
        parts = node["column_names"]
        names = self._schema.names
        name = _resolved(".".join(parts), names)
        if name is None and parts[0].lower() == "self":
            name = _resolved(".".join(parts[1:]), names)
        if name is None and parts[-1].lower() in ("row_number", "row_id"):
            raise _BeyondTreeError
        field_of = _resolved(parts[1 if parts[0].lower() == "self" else 0], names)
        if name is None and field_of and isinstance(self._schema.column(field_of).type, Struct):
            raise _BeyondTreeError
        if name is None:
            self._refuse(node, f"a column ({', '.join(map(repr, names)):.500})")
        return self._schema.column(name)

    def _literal(self, node: Any) -> Any:
        """The value of a constant, as DuckDB 2 or DuckDB 1 says it."""
        literal = node.get("literal")
        if literal is None:
            value = node["value"]
            kind, text = value["type"]["id"], value.get("value")
            if value["is_null"] or kind in ("VARCHAR", "BOOLEAN"):
                return text
        elif literal["kind"] == "STRING":
            return literal["text"]
        elif literal["kind"] == "BOOLEAN":
            return literal["text"].lower() == "true"
        elif literal["kind"] == "NULL_LITERAL":
            return None
        number = _NUMBER.match(self._sql.encode()[self._offset(node) :].decode(errors="replace"))
        if number is None:
            raise _BeyondTreeError
        digits = re.sub(r"[\s_]", "", number[0])
        is_whole = digits.lstrip("-").isdigit() and len(digits) <= _MAX_DIGITS
        return int(digits) if is_whole else float(digits)

    def _scalar(self, literal: _Value, column: Column) -> pa.Scalar:
        """A literal that is compared with a column, as an Arrow scalar."""
        value, kind = literal.value, column.type
        if value is None:
            self._refuse(literal.node, "a value; write `is null` to find what is missing")
        if isinstance(kind, ClassLabel) and isinstance(value, str):
            value = self._class_number(literal, column)
        if isinstance(kind, Timestamp):
            return self._time(literal, kind)
        if isinstance(kind, Date | Time):
            return self._clock(literal, kind)
        if isinstance(kind, Decimal):
            return self._decimal(literal, column)
        if not _fits(value, kind):
            self._refuse(
                literal.node, f"{_needed(value, kind)} to compare with {_described(column)}"
            )
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        if is_whole and storage_of(kind).element == np.uint64:
            return pa.scalar(value, pa.uint64())
        return pa.scalar(float(value) if is_whole and not -(2**63) <= value < 2**63 else value)

    def _class_number(self, literal: _Value, column: Column) -> int:
        assert isinstance(column.type, ClassLabel), "the caller looked"
        if literal.value not in column.type.names:
            classes = ", ".join(column.type.names)
            self._refuse(literal.node, f"a class of {column.name!r} ({classes:.300})")
        return column.type.names.index(literal.value)

    def _time(self, literal: _Value, kind: Timestamp) -> pa.Scalar:
        try:
            time = datetime.fromisoformat(literal.value)
        except (ValueError, TypeError):
            self._refuse(literal.node, "a moment such as '2026-01-31 12:00:00'")
        if time.tzinfo is None:
            time = time.replace(tzinfo=UTC)
        time = time.astimezone(UTC)
        return pa.scalar(time if kind.zone else time.replace(tzinfo=None), arrow_type(kind))

    def _clock(self, literal: _Value, kind: Date | Time) -> pa.Scalar:
        is_date = isinstance(kind, Date)
        try:
            parse = date.fromisoformat if is_date else time.fromisoformat
            return pa.scalar(parse(literal.value))
        except (ValueError, TypeError):
            example = "a date such as '2026-01-31'" if is_date else "a time such as '12:30:00'"
            self._refuse(literal.node, example)

    def _decimal(self, literal: _Value, column: Column) -> pa.Scalar:
        value = literal.value
        if isinstance(value, bool | str):
            self._refuse(literal.node, f"a number to compare with {_described(column)}")
        exact = decimal.Decimal(str(value))
        is_cut = isinstance(value, float) and len(exact.as_tuple().digits) > _MAX_FLOAT_DIGITS
        if is_cut or not exact.is_finite():
            raise _BeyondTreeError
        try:
            return pa.scalar(exact)
        except pa.ArrowException:
            raise _BeyondTreeError from None

    # -------------------------------------------------------------------------- for DuckDB

    def _in_sql(self, tree: Any) -> str:
        """The condition as DuckDB answers it in the way of conditions that expressions say.

        SQL sees class labels by their names, and their numbers in a column beside; and for it NaN
        is above every number.
        """
        raw = self._sql.encode()
        numbered = {at: self._numbered_text(at, name) for at, name in self._numbered(tree)}
        edits = {**numbered, **dict(self._nan_last(tree))}
        for start in sorted(edits, reverse=True):
            raw = raw[:start] + edits[start] + raw[start + len(self._reference(start)[0]) :]
        return raw.decode()

    def _reference(self, start: int) -> re.Match[bytes]:
        """The name of a column, as it is written at a byte of the condition."""
        found = _REFERENCE.match(self._sql.encode(), start)
        assert found is not None, "DuckDB says where a column is named"
        return found

    def _numbered_text(self, start: int, name: str) -> bytes:
        written = self._reference(start)
        return written[0][: written.start(1) - start] + _name(name).encode()

    def _nan_last(self, tree: Any) -> Iterator[tuple[int, bytes]]:
        """What is written in the place of columns of floats, and where, so that NaN is neither
        greater than a value or column that it is beside, nor equal to that. A null makes it unknown
        all the same.
        """
        if isinstance(tree, list):
            for each in tree:
                yield from self._nan_last(each)
        elif isinstance(tree, dict) and tree.get("class") not in _NAMES_OF_THEIR_OWN:
            kind = str(tree.get("type"))
            if kind in _GREATER:
                greater, other = _GREATER[kind]
                yield from self._compared_last(kind, tree[greater], tree[other])
            elif kind == "COMPARE_BETWEEN":
                yield from self._between_last(tree["input"], tree["lower"], tree["upper"])
            for each in tree.values():
                yield from self._nan_last(each)

    def _compared_last(self, kind: str, greater: Any, other: Any) -> Iterator[tuple[int, bytes]]:
        name, beside = self._float_column(greater), self._float_column(other)
        # No value that is written is NaN.
        is_plain = other["class"] == "CONSTANT" and kind not in _EQUALITIES
        if name is None or not (is_plain or other["class"] == "COLUMN_REF"):
            return
        yield self._offset(greater), _LOWEST_IF % (b"isnan(%b)" % name, name)
        if beside is not None and kind not in ("COMPARE_LESSTHAN", "COMPARE_GREATERTHAN"):
            is_nan = b"isnan(%b)" % name
            yield self._offset(other), _NOT_LOWEST_IF % (is_nan, beside, beside)

    def _between_last(self, given: Any, lower: Any, upper: Any) -> Iterator[tuple[int, bytes]]:
        name, top = self._float_column(given), self._float_column(upper)
        if given["class"] not in ("COLUMN_REF", "CONSTANT") or upper["class"] != "COLUMN_REF":
            return
        end = self._reference(self._offset(upper))[0]
        # NaN is above each upper end but null, of which it is not known: the lower one tells, then.
        unknown = b"" if name is None else b"isnan(%b) AND %b IS NULL" % (name, end)
        if unknown and lower["class"] == "COLUMN_REF":
            unknown += b" AND %b IS NOT NULL" % self._reference(self._offset(lower))[0]
        if top is None:
            if unknown and lower["class"] in ("COLUMN_REF", "CONSTANT"):
                yield self._offset(upper), b"(CASE WHEN %b THEN 0 ELSE %b END)" % (unknown, end)
            return
        is_nan = b"isnan(%b)" % top
        is_told = unknown and lower["class"] in ("COLUMN_REF", "CONSTANT")
        yield (
            self._offset(upper),
            _LOWEST_IF % (b"%b OR (%b)" % (is_nan, unknown) if is_told else is_nan, top),
        )
        if name is not None:
            yield self._offset(given), _NOT_LOWEST_IF % (is_nan, name, name)

    def _float_column(self, node: Any) -> bytes | None:
        """A column of floats as it is written; None: another one, or none."""
        try:
            kind = self._column(node).type
        except (_BeyondTreeError, InvalidInputError):
            return None
        if operand_kind(kind) != _NUMBERS or not is_float(storage_of(kind).element):
            return None
        return self._reference(self._offset(node))[0]

    def _numbered(self, tree: Any) -> Iterator[tuple[int, str]]:
        """Where a column of classes stands beside a number, and the column of their numbers.

        Raises:
            InvalidInputError: a class beside such a column is not there.
        """
        if isinstance(tree, list):
            for each in tree:
                yield from self._numbered(each)
        elif isinstance(tree, dict):
            beside = [tree.get(key) for key in ("left", "right", "input", "lower", "upper")]
            beside += (
                tree["children"] if tree.get("type") in ("COMPARE_IN", "COMPARE_NOT_IN") else []
            )
            yield from self._beside([node for node in beside if isinstance(node, dict)])
            for each in tree.values():
                yield from self._numbered(each)

    def _beside(self, nodes: Sequence[Any]) -> Iterator[tuple[int, str]]:
        literals = [node for node in nodes if node.get("class") == "CONSTANT"]
        for node in nodes if literals else ():
            if node.get("class") != "COLUMN_REF":
                continue
            parts, names = node["column_names"], self._schema.names
            name = _resolved(".".join(parts), names) or _resolved(".".join(parts[1:]), names)
            column = None if name is None else self._schema.column(name)
            if column is None or not isinstance(column.type, ClassLabel):
                continue
            values = [(self._literal(each), each) for each in literals]
            for value, each in values:
                if isinstance(value, str):
                    self._class_number(_Value(value, each), column)
            if any(isinstance(value, int | float) for value, _ in values):
                yield self._offset(node), class_number_columns(self._schema)[column.name]

    def _offset(self, node: Any) -> int:
        return int(node["query_location"]) - len(_PREFIX)

    def _refuse(self, node: Any, expected: str) -> NoReturn:
        length = node.get("query_location_length")
        start = self._offset(node)
        shown = self._sql.encode()[start : start + length].decode() if length else None
        _refuse(self._sql, start, f"expected {expected}" + (f", found {shown}" if shown else ""))


# ------------------------------------------------------------------------------ what compares


def with_both_zeros(wanted: pa.Array) -> pa.Array:
    """Values to look up; 0.0 and -0.0, which Arrow looks up as two and all else has as equal, are
    both there or neither.
    """
    if not pa.types.is_floating(wanted.type):
        return wanted
    zeros = np.array([0.0, -0.0], wanted.type.to_pandas_dtype())
    has_zero = (wanted.to_numpy(zero_copy_only=False) == 0).any()
    return pa.concat_arrays([wanted, pa.array(zeros)]) if has_zero else wanted


_WORDS_OF = {Timestamp: _TIMES, Date: _DATES, Time: _HOURS, Decimal: _DECIMALS}
# What DuckDB compares, and Arrow does not, or not with what SQL writes for it.
_FOR_DUCKDB = (Duration, Null, *get_args(Nested))


def operand_kind(column_type: ColumnType) -> str | None:
    """What a column is compared with, in words; None: with nothing. Equal words go together."""
    storage = storage_of(column_type)
    if isinstance(column_type, Tensor | Embedding) or storage.element.kind == "c":
        return None
    if isinstance(column_type, Timestamp | Date | Time | Decimal):
        return _WORDS_OF[type(column_type)]
    if isinstance(column_type, Null | Nested | Duration):
        return None
    if storage.layout is ColumnLayout.BINARY:
        return _TEXTS
    return _BOOLS if storage.element.kind == "b" else _NUMBERS


def _fits(value: Any, column_type: ColumnType) -> bool:
    """Whether a literal is compared with a column exactly.

    Arrow's own conversions would compare 2^63 with the wrong number.
    """
    kind = operand_kind(column_type)
    if isinstance(value, str):
        return kind == _TEXTS
    if isinstance(value, bool):
        return kind == _BOOLS
    element = storage_of(column_type).element
    low, high = _bounds(element)
    is_within = element.kind not in "iu" or isinstance(value, float) or low <= value <= high
    return kind == _NUMBERS and is_within


def _needed(value: Any, column_type: ColumnType) -> str:
    """What a literal must be to be compared with a column, in words; `value` is none such."""
    if isinstance(column_type, ClassLabel):
        return "a class in quotes or its number"
    kind = operand_kind(column_type)
    if kind != _NUMBERS or isinstance(value, str | bool):
        return str(kind)
    return "a number from {} to {}".format(*_bounds(storage_of(column_type).element))


def _bounds(element: np.dtype[Any]) -> tuple[int, int]:
    return (0, 2**64 - 1) if element == np.uint64 else (-(2**63), 2**63 - 1)


def _described(column: Column) -> str:
    tag = column.type.__struct_config__.tag
    return f"{column.name!r} ({str(getattr(column.type, 'dtype', tag)).replace('_', ' ')})"
