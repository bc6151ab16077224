"""Names that a query uses, by the tokens of DuckDB.

DuckDB's own tokens say what is a name and what is text, a number or a comment. Which names are
tables only a binder knows: so every name is looked up, and what is no table of ours is left to
DuckDB, which may know it as a column, an alias or a function.
"""

from __future__ import annotations

from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

MOST_PARTS = 2  # of the name of a table: its space, and what it is called there


@dataclass(frozen=True)
class QueryNames:
    """The names in a query.

    Attributes:
        query: its text.
        paths: names that may be tables, joined by dots, each once, in their order:
            ``("catalog", "models")``. Parts are as they are meant: quotes are taken off.
        words: all single names.
    """

    query: str
    paths: tuple[tuple[str, ...], ...]
    words: frozenset[str]


def names_of(query: str) -> QueryNames:
    """The names that a query uses; of text that is no SQL those that are readable.

    Raises:
        InvalidInputError: it holds what no text may hold.
    """
    import duckdb  # as heavy as the engine: loaded by who asks SQL

    text = as_utf8(query)
    kinds = duckdb.token_type
    tokens = duckdb.tokenize(query)
    ends = [*(start for start, _ in tokens), len(text)][1:]
    paths: dict[tuple[str, ...], None] = {}
    words: set[str] = set()
    path: list[str] = []
    is_open = False  # behind a dot
    for (start, kind), end in zip(tokens, ends, strict=True):
        word = text[start:end].decode(errors="replace").strip()
        if word == ".":
            is_open = bool(path)
            continue
        if kind in (kinds.identifier, kinds.keyword) and _is_name(word):
            name = _plain(word)
            words.add(name)
            # Never longer than what is looked up: a chain of dots would cost its square.
            path = [*path, name][: MOST_PARTS + 1] if is_open else [name]
            if len(path) <= MOST_PARTS:
                paths[tuple(path)] = None
        else:
            path = []
        is_open = False
    return QueryNames(query, tuple(paths), frozenset(words))


def as_utf8(query: str) -> bytes:
    """The bytes of a query. Raises InvalidInputError where a character of it has none."""
    try:
        return query.encode()
    except UnicodeEncodeError as error:
        raise InvalidInputError(
            f"SQL: the query is no text in UTF-8: character {error.start} is "
            f"{query[error.start]!r}, which stands for bytes that could not be read"
        ) from error


def _is_name(word: str) -> bool:
    return word[:1] == '"' or word[:1].isidentifier()


def _plain(word: str) -> str:
    return word[1:-1].replace('""', '"') if word[:1] == '"' else word


def text_literal(text: str) -> str:
    """A text as SQL takes any."""
    return "'" + text.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """A name as SQL takes any."""
    return '"' + name.replace('"', '""') + '"'
