"""Grammar of DQL: a text to a statement, or an error that says where and what was expected.

The parser is lark's LALR(1): no text takes longer than it is long. Values are made while rules are
reduced, so that nothing recurses over a text; nesting is bounded for who walks the statement.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from functools import cache
from typing import Any, Final, TypeVar, cast

from lark import Lark, Token, Transformer, UnexpectedInput, UnexpectedToken, v_args
from lark.exceptions import UnexpectedCharacters

from tensorrepo.formats.common.arguments import text as checked_text
from tensorrepo.query.dql.statements import (
    ATTRIBUTES,
    EVERY,
    MOMENTS,
    NUMBERS,
    Among,
    And,
    Attribute,
    Best,
    Change,
    Compare,
    Condition,
    Construct,
    Evaluate,
    Has,
    MetricOf,
    ModelOrder,
    ModelScope,
    Nodes,
    Not,
    Operation,
    Or,
    Plain,
    Select,
    Setting,
    Slice,
    Statement,
    Step,
    Value,
    Varied,
    Verb,
    predicates,
)
from tensorrepo.repo.changes.moments import parse_moment
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.suggest import did_you_mean

MAX_TEXT_BYTES: Final = 64 << 10
MAX_DEPTH: Final = 50  # of conditions in conditions
_MAX_DIGITS: Final = 100
_SOME_MOMENT_NS: Final = 10**18  # whether a text is a moment does not depend on when it is read
_SHOWN: Final = 60  # characters of a line on either side of an error

GRAMMAR: Final = r"""
?statement: (select | slice | construct | evaluate) ";"?

select: "select"i source [order] [limit]
slice: "slice"i NAME "from"i source "mutate"i end "and"i end [called]
construct: "construct"i NAME "from"i source "mutate"i change ("and"i change)* [init] [called]
evaluate: "evaluate"i NAME "from"i source [vary] "keep"i (best | condition)
kept: best | condition

source: NAME [at] [where]
at: "at"i (STRING | EVERY)
where: "where"i condition
order: "order"i "by"i value [DIRECTION]
limit: "limit"i NUMBER
called: "as"i STRING
init: "init"i STRING
end: NAME "." END EQUALS nodes
change: node "." "insert"i EQUALS operation -> insert
      | node "." "replace"i EQUALS operation -> replace
      | node "." "delete"i -> delete
vary: "vary"i varied ("and"i varied)*
varied: "config"i ("." word)+ "in"i list
best: "top"i "(" NUMBER "," metric [DIRECTION] ["," NUMBER] ")"

?condition: conjunction | conjunction ("or"i conjunction)+ -> either
?conjunction: negation | negation ("and"i negation)+ -> both
?negation: "not"i negation -> negated
         | "(" condition ")"
         | value (OPERATOR | EQUALS) literal -> compare
         | value "like"i STRING -> like
         | value "in"i list -> among
         | nodes "has"i operation -> has

?value: attribute | metric
attribute: NAME "." word
metric: NAME "[" STRING "]"
node: NAME "[" STRING "]"
nodes: NAME "[" STRING "]" ("." STEP)*
operation: NAME "(" [_arguments] ")"
_arguments: STRING ("," setting)* | setting ("," setting)*
setting: word EQUALS (literal | list)
list: "[" literal ("," literal)* "]"
literal: STRING | NUMBER | CONSTANT
// Names of attributes and settings may be words of the language.
word: NAME | EVERY | END | STEP | CONSTANT | DIRECTION

EVERY: "every"i
END: "input"i | "output"i
STEP: "next"i | "prev"i
DIRECTION: "asc"i | "desc"i
CONSTANT: "true"i | "false"i | "null"i
OPERATOR: "<=" | ">=" | "!=" | "<" | ">"
EQUALS: "="
NAME: /[a-z_][a-z0-9_]*/i
NUMBER: /[+-]?\d+(\.\d+)?(e[+-]?\d+)?/i
STRING: /"([^"\\\n]|\\[^\n])*"/ | /'([^'\n]|'')*'/

%ignore /[ \t\r\n]+/
%ignore /--[^\n]*/
"""

# What a terminal is called in messages, where it is not its own text.
_CALLED: Final = {
    "NAME": "a name",
    "STRING": "a text in quotes",
    "NUMBER": "a number",
    "CONSTANT": "true, false or null",
    "OPERATOR": "a comparison such as <",
    "STEP": "next or prev",
    "END": "input or output",
    "DIRECTION": "asc or desc",
    "EVERY": "every",
    "$END": "the end",
}
T = TypeVar("T")


def parse_statement(text: str) -> Statement:
    """One statement.

    Raises:
        InvalidInputError: what is wrong, with line and column, and what was expected there.
    """
    return cast("Statement", _parsed(text, "statement"))


def parse_keep(text: str) -> Best | Condition:
    """What an evaluation keeps: a condition on metrics, as ``m["loss"] < 0.5``, or ``top(...)``.

    Raises:
        InvalidInputError: as for `parse_statement`.
    """
    return cast("Best | Condition", _parsed(text, "kept"))


def _parsed(text: str, start: str) -> Any:
    checked_text("a statement of DQL", text)
    if len(text) > MAX_TEXT_BYTES or len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
        raise InvalidInputError(f"DQL: a statement has at most {MAX_TEXT_BYTES >> 10} KiB")
    try:
        return _parser().parse(text, start=start)
    except UnexpectedInput as error:
        raise _unexpected(text, error) from None
    except _Misfit as error:
        raise _at(text, error.token, error.problem) from None


@cache
def _parser() -> Lark:
    return Lark(
        GRAMMAR,
        parser="lalr",
        start=["statement", "kept"],
        maybe_placeholders=True,
        transformer=_Values(),
    )


class _Misfit(Exception):
    """Something at a token is wrong, though it is where it may be."""

    def __init__(self, token: Any, problem: str) -> None:
        super().__init__(problem)
        self.token, self.problem = token, problem


def _unexpected(text: str, error: UnexpectedInput) -> InvalidInputError:
    expected: set[str]
    if isinstance(error, UnexpectedToken):
        token, expected = error.token, set(error.accepts or error.expected)
        at_end = token.type == "$END"
        found = "the text ends" if at_end else f"{str(token)!r:.40} was not expected"
        line, column = _end(text) if at_end else (token.line or 1, token.column or 1)
    else:
        assert isinstance(error, UnexpectedCharacters)
        expected, found = set(error.allowed or ()), f"{error.char!r} begins nothing"
        if error.char in "\"'":
            found = "a text in quotes does not end in its line"
        line, column = error.line, error.column
    words = sorted(filter(None, map(_word, expected)))
    listed = " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
    return _placed(text, line, column, f"{found}; expected {listed or 'nothing more'}")


def _word(terminal: str) -> str:
    if terminal in _CALLED:
        return _CALLED[terminal]
    if terminal.startswith("__IGNORE"):
        return ""
    return str(_parser().get_terminal(terminal).pattern.value)


def _end(text: str) -> tuple[int, int]:
    lines = text.split("\n")
    return len(lines), len(lines[-1]) + 1


def _at(text: str, token: Any, problem: str) -> InvalidInputError:
    return _placed(text, token.line or 1, token.column or 1, problem)


def _placed(text: str, line: int, column: int, problem: str) -> InvalidInputError:
    """An error that shows the line that it is in, with a mark below the column."""
    shown = text.split("\n")[line - 1].replace("\t", " ")
    first = max(0, column - 1 - _SHOWN)
    part = "".join(c if c.isprintable() else "?" for c in shown[first : column - 1 + _SHOWN])
    mark = " " * (column - 1 - first) + "^"
    return InvalidInputError(f"DQL, line {line}, column {column}: {problem}\n  {part}\n  {mark}")


# ------------------------------------------------------------------------------ values


@v_args(inline=True)
class _Values(Transformer[Token, Any]):
    """Values of rules, made as the parser reduces them. Names keep their places: tokens."""

    def select(self, source: ModelScope, order: ModelOrder | None, limit: int | None) -> Select:
        _check_source(source)
        if order is not None:
            _check_variable(order.value.variable, source.variable)
        return Select(source, order, limit)

    def slice(
        self, new: Token, source: ModelScope, one: _Cut, other: _Cut, name: str | None
    ) -> Slice:
        _check_source(source)
        _check_new(new, source)
        for cut in (one, other):
            _check_variable(cut[0], new)
            _check_variable(cut[2].variable, source.variable)
            if cut[2].steps:
                raise _Misfit(cut[2].variable, "a cut names the node itself: no next, no prev")
        ends = {one[1].lower(): one[2].pattern, other[1].lower(): other[2].pattern}
        if len(ends) < 2:
            raise _Misfit(other[0], f"{other[1].lower()} is given twice; expected one of each")
        return Slice(str(new), source, ends["input"], ends["output"], name)

    def construct(self, new: Token, source: ModelScope, *rest: Any) -> Construct:
        *changes, init, name = rest
        _check_source(source)
        _check_new(new, source)
        for variable, _ in changes:
            _check_variable(variable, source.variable)
        made = tuple(change for _, change in changes)
        return Construct(str(new), source, made, init, name)

    def evaluate(
        self,
        new: Token,
        source: ModelScope,
        vary: tuple[Varied, ...] | None,
        keep: tuple[Token, Best] | Condition,
    ) -> Evaluate:
        _check_source(source)
        _check_new(new, source)
        kept = _checked_keep(keep, new)
        return Evaluate(str(new), source, vary or (), kept)

    def kept(self, keep: tuple[Token, Best] | Condition) -> Best | Condition:
        return _checked_keep(keep, None)

    def source(self, variable: Token, at: str | None, where: Condition | None) -> ModelScope:
        return ModelScope(cast("str", variable), at, where)

    def at(self, ref: Token) -> str:
        return EVERY if ref.type == "EVERY" else _string(ref)

    def where(self, condition: Condition) -> Condition:
        return condition

    def order(self, value: Value, direction: Token | None) -> ModelOrder:
        return ModelOrder(value, direction is not None and direction.lower() == "desc")

    def limit(self, number: Token) -> int:
        return _count(number)

    def called(self, name: Token) -> str:
        return _string(name)

    init = called

    def end(self, variable: Token, end: Token, _: Token, nodes: Nodes) -> _Cut:
        return variable, end, nodes

    def node(self, variable: Token, pattern: Token) -> tuple[Token, str]:
        return variable, _string(pattern)

    def insert(self, node: tuple[Token, str], _: Token, made: Operation) -> tuple[Token, Change]:
        return _changed(node, "insert", made)

    def replace(self, node: tuple[Token, str], _: Token, made: Operation) -> tuple[Token, Change]:
        return _changed(node, "replace", made)

    def delete(self, node: tuple[Token, str]) -> tuple[Token, Change]:
        return _changed(node, "delete", None)

    def vary(self, *varied: tuple[Token, Varied]) -> tuple[Varied, ...]:
        seen: set[tuple[str, ...]] = set()
        for token, each in varied:
            if each.path in seen:
                raise _Misfit(token, f"config.{'.'.join(each.path)} is varied twice")
            seen.add(each.path)
        return tuple(each for _, each in varied)

    def varied(self, *rest: Any) -> tuple[Token, Varied]:
        *words, values = rest
        return words[0], Varied(tuple(map(str, words)), values)

    def best(
        self, count: Token, metric: MetricOf, direction: Token | None, iterations: Token | None
    ) -> tuple[Token, Best]:
        ascending = direction is not None and direction.lower() == "asc"
        times = None if iterations is None else _count(iterations)
        made = Best(_count(count), metric.name, ascending, times)
        return cast("Token", metric.variable), made

    def either(self, *conditions: Condition) -> Or:
        return _bounded(Or(conditions))

    def both(self, *conditions: Condition) -> And:
        return _bounded(And(conditions))

    def negated(self, condition: Condition) -> Not:
        return _bounded(Not(condition))

    def compare(self, value: Value, operator: Token, literal: Plain) -> Compare:
        _check_literal(value, literal)
        return Compare(value, str(operator), literal)

    def like(self, value: Value, pattern: Token) -> Compare:
        if isinstance(value, MetricOf) or value.name in (*NUMBERS, *MOMENTS):
            raise _Misfit(value.variable, f"like is of texts, and {value} is none")
        return Compare(value, "like", _string(pattern))

    def among(self, value: Value, literals: tuple[Plain, ...]) -> Among:
        for literal in literals:
            _check_literal(value, literal)
        return Among(value, literals)

    def has(self, nodes: Nodes, operation: Operation) -> Has:
        return Has(nodes, operation)

    def attribute(self, variable: Token, name: Token) -> Attribute:
        word = name.lower()
        if word not in ATTRIBUTES:
            hint = did_you_mean(word, ATTRIBUTES, f"There are {', '.join(ATTRIBUTES)}.")
            raise _Misfit(name, f"models have no {str(name)!r:.40}.{hint}")
        return Attribute(cast("str", variable), word)

    def metric(self, variable: Token, name: Token) -> MetricOf:
        return MetricOf(cast("str", variable), _string(name))

    def nodes(self, variable: Token, pattern: Token, *steps: Token) -> Nodes:
        found = tuple(cast("Step", step.lower()) for step in steps)
        return Nodes(cast("str", variable), _string(pattern), found)

    def operation(self, name: Token, *arguments: Any) -> Operation:
        given = [each for each in arguments if each is not None]
        first = _string(given.pop(0)) if given and isinstance(given[0], Token) else None
        seen: set[str] = set()
        for word, _ in given:
            if word in seen:
                raise _Misfit(word, f"{word}= is given twice")
            seen.add(word)
        return Operation(str(name), first, tuple((str(word), value) for word, value in given))

    def setting(
        self, word: Token, _: Token, value: Plain | tuple[Plain, ...]
    ) -> tuple[Token, Setting]:
        if isinstance(value, tuple) and not all(type(each) is int for each in value):
            raise _Misfit(word, f"a list such as {word}=[3, 3] holds whole numbers")
        return word, cast("Setting", value)

    def list(self, *literals: Plain) -> tuple[Plain, ...]:
        return literals

    def literal(self, token: Token) -> Plain:
        if token.type == "STRING":
            return _string(token)
        if token.type == "NUMBER":
            return _number(token)
        return cast("Plain", json.loads(token.lower()))

    def word(self, token: Token) -> Token:
        return token


_Cut = tuple[Token, Token, Nodes]


def _changed(node: tuple[Token, str], verb: Verb, made: Operation | None) -> tuple[Token, Change]:
    variable, pattern = node
    if made is not None and made.argument is None:
        raise _Misfit(variable, f'{made.name}(...) needs the name of the new node, as RELU("relu")')
    return variable, Change(pattern, verb, made)


def _checked_keep(keep: tuple[Token, Best] | Condition, new: Token | None) -> Best | Condition:
    if isinstance(keep, tuple):
        variable, best = keep
        if new is not None:
            _check_variable(variable, new)
        if best.count < 1:
            raise _Misfit(variable, "top(0, ...) would keep nothing; expected 1 or more")
        return best
    for each in predicates(keep):
        value = each.nodes if isinstance(each, Has) else each.value
        if not isinstance(value, MetricOf):
            raise _Misfit(value.variable, f'{value}: expected metrics, as {new or "m"}["loss"] < 1')
        if new is not None:
            _check_variable(value.variable, new)
    return keep


def _check_source(source: ModelScope) -> None:
    for each in predicates(source.where):
        used = each.nodes.variable if isinstance(each, Has) else each.value.variable
        _check_variable(used, source.variable)


def _check_variable(token: str, expected: str) -> None:
    if token != expected:
        raise _Misfit(token, f"no model is called {str(token)!r} here; expected {str(expected)!r}")


def _check_new(new: Token, source: ModelScope) -> None:
    if new == source.variable:
        raise _Misfit(new, f"{str(new)!r} is what is read: call the new model otherwise")


def _check_literal(value: Value, literal: Plain) -> None:
    token = value.variable
    if isinstance(value, MetricOf) or value.name in NUMBERS:
        if isinstance(literal, bool) or not isinstance(literal, int | float):
            raise _Misfit(token, f"{value} is a number, and {json.dumps(literal)} is none")
        return
    if not isinstance(literal, str):
        raise _Misfit(token, f"{value} is a text; expected one in quotes")
    if value.name in MOMENTS:
        try:
            parse_moment(literal, now_ns=_SOME_MOMENT_NS)
        except InvalidInputError as error:
            raise _Misfit(token, f"{value}: {error}") from None


def _bounded(condition: T) -> T:
    if _depth(cast("Condition", condition)) > MAX_DEPTH:
        token = next(iter(_variables(cast("Condition", condition))))
        raise _Misfit(token, f"conditions nest deeper than {MAX_DEPTH}")
    return condition


def _depth(condition: Condition) -> int:
    """Conditions around the innermost one. Each is bounded when it is made, so this is short."""
    match condition:
        case Not(inner):
            return 1 + _depth(inner)
        case And(parts) | Or(parts):
            return 1 + max(map(_depth, parts))
    return 0


def _variables(condition: Condition) -> Iterator[str]:
    for each in predicates(condition):
        yield each.nodes.variable if isinstance(each, Has) else each.value.variable


def _string(token: Token) -> str:
    if token[0] == "'":
        return token[1:-1].replace("''", "'")
    try:
        found = json.loads(token, strict=False)
        found.encode("utf-8")
    except ValueError as error:
        problem = "half of a surrogate pair" if isinstance(error, UnicodeError) else str(error)
        raise _Misfit(token, f"no text: {problem}. \\ is written \\\\") from None
    return cast("str", found)


def _number(token: Token) -> int | float:
    if len(token) > _MAX_DIGITS:
        raise _Misfit(token, f"a number has at most {_MAX_DIGITS} digits")
    if token.lstrip("+-").isdigit():
        return int(token)
    found = float(token)
    if not math.isfinite(found):
        raise _Misfit(token, "no number is so large")
    return found


def _count(token: Token) -> int:
    found = _number(token)
    if not isinstance(found, int) or found < 0:
        raise _Misfit(token, f"expected a whole number, got {str(token)!r}")
    return found
