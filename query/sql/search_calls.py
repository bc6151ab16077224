"""Calls of `nearest` and `search` as tables of a query: answered first, then joined by DuckDB.

    SELECT caption, distance FROM nearest('photos', 'embedding', [0.1, 0.2], 10) WHERE year > 2000

DuckDB has no table functions in Python. So calls behind FROM, JOIN or a comma are found among the
tokens of the query, their arguments are evaluated by DuckDB, and each call is replaced by the name
of a table that holds its answer. What a query says besides is left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa

from tensorrepo.query.sql.names import as_utf8, quoted
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

FUNCTIONS: Final = {
    "nearest": ("dataset", "column", "query", "k", "metric", "where", "exact", "nprobes"),
    "search": ("dataset", "column", "query", "k", "where", "exact"),
}
_NEEDED: Final = 3  # arguments without a default
_BEFORE: Final = frozenset({"from", "join", ",", "lateral"})
Evaluate: TypeAlias = Callable[[str], Any]  # the value of an expression


class AnswersCalls(Protocol):
    """Who answers calls: a table with `row_number`, `row_id` and a distance or score comes back."""

    def __call__(
        self, function: str, arguments: dict[str, Any], columns: frozenset[str] | None
    ) -> pa.Table:
        """The answer with columns of the dataset; None: with all that ``*`` stands for."""


@dataclass(frozen=True, slots=True)
class SearchCall:
    """A call in a query.

    Attributes:
        function: name of the function.
        start: byte of the query that it begins at.
        stop: byte behind its closing parenthesis.
        arguments: texts of expressions, by name.
    """

    function: str
    start: int
    stop: int
    arguments: dict[str, str]


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    start: int
    stop: int


def find_calls(query: str) -> list[SearchCall]:
    """The calls of a query, in their order.

    Raises:
        InvalidInputError: arguments that the function does not take, or calls in each other.
    """
    if not any(name in query.lower() for name in FUNCTIONS):
        return []
    tokens = list(_tokens(query))
    found: list[SearchCall] = []
    for at, token in enumerate(tokens[1:-1], 1):
        name = token.text.lower()
        is_call = name in FUNCTIONS and tokens[at + 1].text == "("
        if is_call and tokens[at - 1].text.lower() in _BEFORE:
            if found and token.start < found[-1].stop:
                raise InvalidInputError(f"SQL: {name} stands in the arguments of another call")
            found.append(_call(query, name, tokens, at))
    return found


def answer_calls(
    query: str,
    calls: Sequence[SearchCall],
    columns: frozenset[str],
    evaluate: Evaluate,
    answer: AnswersCalls,
    register: Callable[[str, pa.Table], None],
) -> str:
    """The query with a table in the place of each call.

    Args:
        query: text of the query.
        calls: its calls.
        columns: all names in the query: those of columns are read.
        evaluate: gives the value of an expression.
        answer: answers one call.
        register: makes a table known by a name.
    """
    text, pieces, done = as_utf8(query), [], 0
    wanted = None if b"*" in text else columns
    for number, call in enumerate(calls):
        arguments = {name: evaluate(each) for name, each in call.arguments.items()}
        name = f"tensorrepo:{call.function}:{number}"
        register(name, answer(call.function, arguments, wanted))
        table = f"(SELECT * FROM {quoted(name)})"  # noqa: S608 - the name is quoted
        alias = "" if _has_alias(query, call.stop) else f" AS {call.function}"
        pieces += [text[done : call.start], f"{table}{alias}".encode()]
        done = call.stop
    return b"".join([*pieces, text[done:]]).decode()


def _tokens(query: str) -> Iterator[_Token]:
    import duckdb  # as heavy as the engine: loaded by who asks SQL

    text = as_utf8(query)
    tokens = [start for start, _ in duckdb.tokenize(query)]
    for start, stop in zip(tokens, [*tokens[1:], len(text)], strict=True):
        piece = text[start:stop].decode(errors="replace")
        yield _Token(piece.strip(), start, start + len(piece.rstrip().encode()))


def _has_alias(query: str, stop: int) -> bool:
    """Whether a name for the table follows what ends at `stop`."""
    rest = next((token for token in _tokens(query) if token.start >= stop), None)
    if rest is None:
        return False
    is_word = rest.text[:1] == '"' or rest.text[:1].isidentifier()
    return is_word and (rest.text.lower() == "as" or not _is_reserved(rest.text))


def _is_reserved(word: str) -> bool:
    """Whether a word cannot be the name of a table: ``WHERE``, ``JOIN``, ..."""
    import duckdb

    ((_, kind),) = duckdb.tokenize(word)
    return word[:1] != '"' and kind == duckdb.token_type.keyword


def _call(query: str, name: str, tokens: Sequence[_Token], at: int) -> SearchCall:
    """The call whose name is token number `at`."""
    text, depth = as_utf8(query), 0
    pieces: list[tuple[int, int]] = []
    begin = tokens[at + 1].stop
    for token in tokens[at + 1 :]:
        depth += (token.text in "([{") - (token.text in ")]}") if token.text else 0
        if (depth == 1 and token.text == ",") or not depth:
            pieces.append((begin, token.start))
            begin = token.stop
        if not depth:
            arguments = [text[start:stop].decode().strip() for start, stop in pieces]
            given = _named(name, [each for each in arguments if each])
            return SearchCall(name, tokens[at].start, token.stop, given)
    raise InvalidInputError(f"SQL: {name}( is not closed")


def _named(function: str, arguments: Sequence[str]) -> dict[str, str]:
    names = FUNCTIONS[function]
    usage = f"{function}({', '.join(names[:_NEEDED])}, k := 10, ...)"
    found: dict[str, str] = {}
    for at, text in enumerate(arguments):
        name, value = names[at] if at < len(names) else "", text
        for sign in (":=", "=>"):
            before, is_named, after = text.partition(sign)
            if is_named and before.strip().isidentifier():
                name, value = before.strip().lower(), after.strip()
                break
        if name not in names or name in found:
            raise InvalidInputError(
                f"SQL: {usage} takes {', '.join(names)}, each once; got {text!r:.80}"
            )
        if "?" in value:
            raise InvalidInputError(
                f"SQL: a parameter of {function} is written by name, $name, or by number, $1"
            )
        found[name] = value
    if not set(names[:_NEEDED]) <= found.keys():
        raise InvalidInputError(f"SQL: expected {usage}, got {len(arguments)} arguments")
    return found
