"""What does this line of text say about rows?

A small language of comparisons: ``label == 3 and not (split in ('test', 'val') or note is null)``.
It is compiled to a pyarrow expression and can do nothing else.

    or          = and {"or" and}
    and         = not {"and" not}
    not         = "not" not | "(" or ")" | comparison
    comparison  = operand [operator operand | ["not"] "in" "(" literal {"," literal} ")"
                           | "is" ["not"] "null"]
    operator    = "==" | "=" | "!=" | "<>" | "<" | "<=" | ">" | ">="
    operand     = column | literal
    column      = a name, in `backticks` where it is no plain word
    literal     = number | 'text' | "text" | true | false

Keywords may be written in capitals. A column of bools stands alone: ``checked and not hidden``.
"""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from tensorrepo.formats.dataset.columns.arrow_types import arrow_type
from tensorrepo.formats.dataset.columns.types import ClassLabel, Timestamp
from tensorrepo.formats.dataset.editing.operands import (
    as_scalar,
    fits,
    needed,
    operand_kind,
    type_name,
)
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorrepo.formats.dataset.columns.schema import Schema

_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>-?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)(?![\w.]))
    | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
    | (?P<quoted>`[^`]+`)
    | (?P<word>[^\W\d][\w.]*)
    | (?P<sign>==|!=|<>|<=|>=|[=<>(),])
    )""",
    re.VERBOSE,
)
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "=": operator.eq, "!=": operator.ne, "<>": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_KEYWORDS = frozenset({"and", "or", "not", "in", "is", "null", "true", "false"})
MAX_DEPTH = 100
_MAX_DIGITS = 40  # of a whole number; Python refuses some thousands


@dataclass(frozen=True, slots=True)
class _Token:
    """`kind` is number, text, name, sign, keyword or end; `at` its place in the line."""

    kind: str
    text: str
    at: int


def parse_where(text: str, schema: Schema | None = None) -> pc.Expression:
    """A line of text as a pyarrow expression.

    Args:
        text: see above.
        schema: with it class names stand for their numbers, text for moments, and columns that
            are not there are refused with their place.

    Raises:
        InvalidInputError: points at the place that is not understood.
    """
    return _Parser(text, schema).parse()


def parse_literal(text: str) -> Any:
    """One literal: a number, quoted text, true, false or null; anything else is text as it is."""
    found = _TOKEN.fullmatch(text.strip())
    if found and found["number"]:
        return _number(found["number"])
    if found and found["text"]:
        return _unquoted(found["text"])
    return {"true": True, "false": False, "null": None}.get(text.strip().lower(), text)


class _Parser:
    def __init__(self, text: str, schema: Schema | None) -> None:
        self._text = text
        self._schema = schema
        self._tokens = self._split()
        self._next = 0
        self._depth = 0

    def parse(self) -> pc.Expression:
        found = self._or()
        if self._peek.kind != "end":
            self._refuse("'and', 'or' or the end")
        return found

    # -------------------------------------------------------------------------- grammar

    def _or(self) -> pc.Expression:
        found = self._and()
        while self._takes("or"):
            found = found | self._and()
        return found

    def _and(self) -> pc.Expression:
        found = self._not()
        while self._takes("and"):
            found = found & self._not()
        return found

    def _not(self) -> pc.Expression:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse(f"at most {MAX_DEPTH} levels of parentheses and 'not'")
        if self._takes("not"):
            found = ~self._not()
        elif self._takes("("):
            found = self._or()
            self._expect(")")
        else:
            found = self._comparison()
        self._depth -= 1
        return found

    def _comparison(self) -> pc.Expression:
        left = self._operand()
        if self._peek.text in _OPERATORS and self._peek.kind == "sign":
            return self._compared(left)
        if isinstance(left, _Literal):
            self._refuse("an operator such as ==")
        field = pc.field(left.name)
        if self._takes("is"):
            negated = self._takes("not")
            self._expect("null")
            return ~field.is_null() if negated else field.is_null()
        negated = self._takes("not")
        if self._takes("in"):
            # As in SQL, and unlike Arrow's isin: null is neither in nor out.
            unknown = pc.scalar(pa.scalar(None, pa.bool_()))
            found = pc.if_else(field.is_null(), unknown, field.isin(self._list(left)))
            return ~found if negated else found
        if negated:
            self._refuse("'in'")
        if left.type is not None and operand_kind(left.type) != "true or false":
            self._refuse(f"an operator such as ==, as {_described(left)} is not of bools")
        return field

    def _compared(self, left: _Name | _Literal) -> pc.Expression:
        compare = _OPERATORS[self._take().text]
        right = self._operand()
        columns = [each for each in (left, right) if isinstance(each, _Name)]
        if not columns:
            self._refuse("a column on one side of the comparison", self._tokens[self._next - 1])
        self._check_columns(columns)
        return compare(self._side(left, columns[0]), self._side(right, columns[0]))

    def _check_columns(self, columns: list[_Name]) -> None:
        """Refuse columns that cannot be compared, with a literal or with each other."""
        kinds = [None if each.type is None else operand_kind(each.type) for each in columns]
        for column, kind in zip(columns, kinds, strict=True):
            if column.type is not None and kind is None:
                self._refuse(
                    f"a column whose values have an order, not {_described(column)}", column.token
                )
        if len(set(kinds)) > 1 and None not in kinds:
            one, two = columns
            self._refuse(f"a column that can be compared with {_described(one)}", two.token)

    def _side(self, side: _Name | _Literal, column: _Name) -> pc.Expression:
        return pc.field(side.name) if isinstance(side, _Name) else self._value(side, column)

    def _list(self, column: _Name) -> pa.Array:
        self._expect("(")
        values: list[Any] = []
        while True:
            literal = self._operand()
            if isinstance(literal, _Name):
                self._refuse("a literal", literal.token)
            values.append(self._value(literal, column).as_py())
            if self._takes(")"):
                break
            self._expect(",")
        try:
            return pa.array(values, _wide(arrow_type(column.type)) if column.type else None)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, TypeError) as error:
            raise InvalidInputError(f"predicate {self._text!r}: {error}") from error

    def _operand(self) -> _Name | _Literal:
        token = self._peek
        if token.kind == "name":
            self._take()
            return _Name(token, *self._column(token))
        if token.kind == "number":
            return _Literal(self._take(), _number(token.text))
        if token.kind == "text":
            return _Literal(self._take(), _unquoted(token.text))
        if token.text in ("true", "false"):
            return _Literal(self._take(), token.text == "true")
        if token.text == "null":
            self._refuse("a column or a value; write `is null` to find what is missing")
        return self._refuse("a column or a value")

    # -------------------------------------------------------------------------- names, values

    def _column(self, token: _Token) -> tuple[str, Any]:
        if self._schema is None:
            return token.text, None
        if token.text not in self._schema:
            names = ", ".join(map(repr, self._schema.names))
            self._refuse(f"a column ({names:.500})", token)
        return token.text, self._schema.column(token.text).type

    def _value(self, literal: _Literal, column: _Name) -> Any:
        """A literal that is compared with a column, as an Arrow scalar."""
        value, kind = literal.value, column.type
        if isinstance(kind, ClassLabel) and isinstance(value, str):
            if value not in kind.names:
                classes = ", ".join(kind.names)
                self._refuse(f"a class of {column.name!r} ({classes:.300})", literal.token)
            value = kind.names.index(value)
        if isinstance(kind, Timestamp):
            return self._moment(literal, kind)
        if kind is not None and not fits(value, kind):
            self._refuse(
                f"{needed(value, kind)} to compare with {_described(column)}", literal.token
            )
        return as_scalar(value, kind)

    def _moment(self, literal: _Literal, kind: Timestamp) -> Any:
        try:
            moment = datetime.fromisoformat(literal.value)
        except (ValueError, TypeError):
            self._refuse("a moment such as '2026-01-31 12:00:00'", literal.token)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        moment = moment.astimezone(UTC)
        return pa.scalar(moment if kind.zone else moment.replace(tzinfo=None), arrow_type(kind))

    # -------------------------------------------------------------------------- tokens

    def _split(self) -> list[_Token]:
        tokens: list[_Token] = []
        at = 0
        text = self._text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                while text[at].isspace():
                    at += 1
                self._tokens, self._next = [_Token("unknown", text[at], at)], 0
                self._refuse("a column, a value or an operator")
            tokens.append(_token(found))
            at = found.end()
        return [*tokens, _Token("end", "", len(text))]

    @property
    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        self._next += 1
        return self._tokens[self._next - 1]

    def _takes(self, text: str) -> bool:
        if self._peek.kind in ("keyword", "sign") and self._peek.text == text:
            self._next += 1
            return True
        return False

    def _expect(self, text: str) -> None:
        if not self._takes(text):
            self._refuse(f"{text!r}")

    def _refuse(self, expected: str, token: _Token | None = None) -> NoReturn:
        token = token or self._peek
        found = f"found {token.text!r}" if token.kind != "end" else "it ends there"
        raise InvalidInputError(
            f"predicate, character {token.at + 1}: expected {expected}, {found}\n"
            f"  {self._text}\n  {' ' * token.at}^"
        )


@dataclass(frozen=True, slots=True)
class _Name:
    token: _Token
    name: str
    type: Any  # None where the schema is not known


@dataclass(frozen=True, slots=True)
class _Literal:
    token: _Token
    value: Any


def _token(found: re.Match[str]) -> _Token:
    kind = str(found.lastgroup)
    text, at = found[kind], found.start(kind)
    if kind == "quoted":
        return _Token("name", text[1:-1], at)
    if kind == "word":
        is_keyword = text.lower() in _KEYWORDS
        return _Token("keyword", text.lower(), at) if is_keyword else _Token("name", text, at)
    return _Token(kind, text, at)


def _number(text: str) -> int | float:
    is_whole = text.lstrip("-").isdigit() and len(text) <= _MAX_DIGITS
    return int(text) if is_whole else float(text)


def _described(column: _Name) -> str:
    return f"{column.name!r} ({type_name(column.type)})"


def _unquoted(text: str) -> str:
    return text[1:-1].replace(text[0] * 2, text[0])


def _wide(kind: pa.DataType) -> pa.DataType:
    """The type of a list of literals that values of `kind` are looked for in."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
