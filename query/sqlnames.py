"""Which names does a query use?

DuckDB's own tokens say what is a name and what is text, a number or a comment. Which names are
tables only a binder knows: so every name is looked up, and what is no table of ours is left to
DuckDB, which may know it as a column, an alias or a function.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Names:
    """The names in a query.

    Attributes:
        query: its text.
        paths: names joined by dots, each once, in their order: ``("catalog", "models")``. Parts
            are as they are meant: quotes are taken off.
    """

    query: str
    paths: tuple[tuple[str, ...], ...]

    @cached_property
    def words(self) -> frozenset[str]:
        """All single names."""
        return frozenset(part for path in self.paths for part in path)


def names_of(query: str) -> Names:
    """The names that a query uses; of text that is no SQL those that are readable."""
    import duckdb  # as heavy as the engine: loaded by who asks SQL

    text = query.encode()
    kinds = duckdb.token_type
    tokens = duckdb.tokenize(query)
    ends = [*(start for start, _ in tokens), len(text)][1:]
    paths: dict[tuple[str, ...], None] = {}
    path: list[str] = []
    is_open = False  # behind a dot
    for (start, kind), end in zip(tokens, ends, strict=True):
        word = text[start:end].decode(errors="replace").strip()
        if word == ".":
            is_open = bool(path)
            continue
        if kind in (kinds.identifier, kinds.keyword) and _is_name(word):
            path = [*path, _plain(word)] if is_open else [_plain(word)]
            paths[tuple(path)] = None
        else:
            path = []
        is_open = False
    return Names(query, tuple(paths))


def _is_name(word: str) -> bool:
    return word[:1] == '"' or word[:1].isidentifier()


def _plain(word: str) -> str:
    return word[1:-1].replace('""', '"') if word[:1] == '"' else word


def quoted(name: str) -> str:
    """A name as SQL takes any."""
    return '"' + name.replace('"', '""') + '"'
