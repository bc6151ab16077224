"""Lineage queries: ancestors and descendants by one recursive statement.

One recursive statement, the same on both databases. Without a bound of depth it gathers things,
each once, so that it ends where edges go in a circle (a run may read what it made before) and takes
no longer where many ways lead to one thing; how deep each lies is found out afterwards.

Source:
    docs/spec/lineage.md has the words of relations.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final, TypeAlias

import msgspec
from sqlalchemy import Connection, CursorResult, bindparam, select, text

from tensorrepo.formats.common.provenance import relation_of
from tensorrepo.query.catalog import tables
from tensorrepo.query.catalog.tables import POSTGRESQL, SQLITE, shown
from tensorrepo.query.catalog.visibility import Visible
from tensorrepo.query.sync.contents import hash_of
from tensorrepo.repo.errors import InvalidInputError

EdgeRow: TypeAlias = tuple[Any, ...]  # of `_COLUMNS`
PathAtCommit: TypeAlias = tuple[str, str | None]  # a path, and a commit that has it
_NOWHERE: Final[PathAtCommit] = ("", None)

MOST_EDGES: Final = 100_000  # of one answer
# What has no digest is known by its path, a URL.
_COLUMNS: Final = """
    e.subject_kind, e.subject, e.relation, e.origin_kind, e.origin_path,
    coalesce(e.origin, e.origin_path), e.origin_commit, e.detail
"""
_SUBJECT_KIND, _SUBJECT, _RELATION, _ORIGIN_KIND, _ORIGIN_PATH, _ORIGIN = range(6)
# `here` and `there` are the columns of an edge's ends: of the one that is nearer to what was asked
# about, and of the other. They are hashes, so that what shares one with a thing on the way may be
# among the rows; no way leads to it by names, and `_rings` leaves it out. `{only}` is a condition
# on relations: on edges alone, it would make SQLite read the whole index for a Bloom filter first,
# which takes longer than all the rest.
_UNBOUND: Final = """
WITH RECURSIVE reached(key) AS (
    SELECT {here} FROM lineage_edge WHERE {here} IN :starts
    UNION
    SELECT e.{there} FROM reached JOIN lineage_edge AS e ON e.{here} = reached.key {only}
)
SELECT {columns} FROM reached JOIN lineage_edge AS e ON e.{here} = reached.key {only}
LIMIT :most
"""
_BOUND: Final = """
WITH RECURSIVE reached(key, depth) AS (
    SELECT {here}, 1 FROM lineage_edge WHERE {here} IN :starts
    UNION
    SELECT e.{there}, reached.depth + 1
    FROM reached JOIN lineage_edge AS e ON e.{here} = reached.key {only}
    WHERE reached.depth < :depth
)
SELECT {columns} FROM (SELECT DISTINCT key FROM reached) AS reached
JOIN lineage_edge AS e ON e.{here} = reached.key {only} LIMIT :most
"""
_ONLY: Final = "AND CASE WHEN reached.key IS NOT NULL THEN e.relation END IN :words"
_CHANGES: Final = (
    'SELECT e.new, e.path, e."commit" FROM {asked} CROSS JOIN entry_change AS e '
    "WHERE e.new = asked.value"
)
_RUNS: Final = "SELECT r.id, r.name FROM {asked} CROSS JOIN run AS r WHERE r.id = asked.value"
# One parameter, however many keys: a list of thousands takes longer to write than to answer.
_ASKED: Final = {
    SQLITE: "json_each(:keys) AS asked",
    POSTGRESQL: "json_array_elements_text(CAST(:keys AS json)) AS asked(value)",
}
_OF_PATH: Final = """
SELECT {columns} FROM lineage_edge AS e
WHERE e.origin_path = :path AND e.relation = 'trained-on' AND e.subject_kind = 'model'
AND e.origin IS NOT NULL
"""


class LineageNode(msgspec.Struct, frozen=True, gc=False):
    """Something that came from something, or that something came from.

    Attributes:
        kind: "dataset", "model", "run", "view", "file" or "url".
        key: its digest, the id of a run, or a URL.
        path: where it was found.
        commit: commit whose `path` is meant, where that is known.
        stored: whether the repository has it still.
    """

    kind: str
    key: str
    path: str
    commit: str | None = None
    stored: bool = False


class LineageStep(msgspec.Struct, frozen=True, gc=False):
    """``subject`` was <relation> ``origin``; `depth` edges away from what was asked about."""

    depth: int
    subject: LineageNode
    relation: str
    origin: LineageNode
    details: dict[str, Any]


def walk(
    connection: Connection,
    starts: Sequence[str],
    *,
    up: bool,
    depth: int | None = None,
    relations: Iterable[str] = (),
    limit: int = MOST_EDGES,
    visible: Visible | None = None,
) -> list[LineageStep]:
    """What some things came from, or what came from them, the nearest first.

    Args:
        connection: to a catalog that is up to date.
        starts: digests, ids of runs; of what came from something also URLs.
        up: whether origins are asked for.
        depth: how many edges away at most; None: as far as it goes.
        relations: only over these; none: over all.
        limit: most edges that are given.
        visible: what may be seen; None: all. No way leads through anything else.
    """
    if depth is not None and depth < 1:
        raise InvalidInputError(f"depth {depth}: expected 1 or more")
    words = sorted({relation_of(word) for word in relations})
    hashes = sorted({hash_of(start) for start in starts})
    given = {"starts": hashes, "words": words, "depth": depth, "most": limit}
    rows = _asked(connection, _UNBOUND if depth is None else _BOUND, given, up=up)
    return _steps(connection, rows, starts, up=up, visible=visible)


def versions_of(connection: Connection, path: str, visible: Visible | None = None) -> list[str]:
    """Digests of all that was at a path, in any commit of the catalog that may be seen."""
    change = tables.entry_change
    query = select(change.c.new).where(change.c.path == path, change.c.new.is_not(None)).distinct()
    found = connection.execute(query).scalars()
    return sorted(one for one in found if visible is None or one in visible.digests)


def trained_on(connection: Connection, path: str) -> list[LineageStep]:
    """Which models, of any commit, were trained on which versions of a dataset."""
    rows = _fetched(connection.execute(text(_OF_PATH.format(columns=_COLUMNS)), {"path": path}))
    return _steps(connection, rows, {row[_SUBJECT] for row in rows}, up=True)


def _asked(
    connection: Connection, query: str, given: Mapping[str, Any], *, up: bool
) -> list[EdgeRow]:
    here, there = ("subject_hash", "origin_hash") if up else ("origin_hash", "subject_hash")
    only = _ONLY if given["words"] else ""
    written = query.format(here=here, there=there, only=only, columns=_COLUMNS)
    lists = [name for name in ("starts", "words") if f":{name}" in written]
    statement = text(written).bindparams(*(bindparam(name, expanding=True) for name in lists))
    asked = {name: value for name, value in given.items() if f":{name}" in written}
    return _fetched(connection.execute(statement, asked))


def _fetched(result: CursorResult[Any]) -> list[EdgeRow]:
    """All rows as plain tuples of texts, which are nothing to the garbage collector."""
    rows = list(result.cursor.fetchall())
    result.close()
    return rows


def _steps(
    connection: Connection,
    rows: Sequence[EdgeRow],
    starts: Iterable[str],
    *,
    up: bool,
    visible: Visible | None = None,
) -> list[LineageStep]:
    """Rows as steps, each once, by how far they are from where it started."""
    if visible is not None:  # an edge is what its subject says of itself
        subjects = visible.digests | visible.runs
        rows = [row for row in rows if row[_SUBJECT] in subjects]
    known = _known(connection, rows, visible)
    nodes: dict[Any, LineageNode] = {}  # by key, and as origins by path and commit as well
    found = []
    for depth, ring in enumerate(_rings(rows, starts, known, up=up), 1):
        for kind, subject, relation, origin_kind, path, origin, commit, detail in ring:
            made = nodes.get(subject)
            if made is None or made.kind != kind:
                made = nodes[subject] = _node(known, kind, subject, "", None)
            told = (origin, path, commit)
            came_from = nodes.get(told)
            if came_from is None or came_from.kind != origin_kind:
                came_from = nodes[told] = _node(known, origin_kind, *told)
            details = {} if detail == "{}" else json.loads(detail)
            found.append(LineageStep(depth, made, relation, came_from, details))
    return found


def _rings(
    rows: Iterable[EdgeRow], starts: Iterable[str], known: Mapping[str, PathAtCommit], *, up: bool
) -> Iterator[list[EdgeRow]]:
    """The edges of each distance from the starts, in the order in which the ring before led to
    them. Those that no way leads to are left out: the limit cut off what does, or they share a
    hash.
    """
    near, far = (_SUBJECT, _ORIGIN) if up else (_ORIGIN, _SUBJECT)
    order = itemgetter(_RELATION, _ORIGIN_PATH, _ORIGIN) if up else partial(_by_subject, known)
    beyond: defaultdict[str, list[EdgeRow]] = defaultdict(list)
    for row in rows:
        beyond[row[near]].append(row)
    ring = dict.fromkeys(starts)
    while edges := [row for key in ring for row in _each_once(beyond.pop(key, []), far, order)]:
        yield edges
        ring = dict.fromkeys([row[far] for row in edges])


def _by_subject(known: Mapping[str, PathAtCommit], row: EdgeRow) -> tuple[str, str, str, str]:
    subject: str = row[_SUBJECT]
    return known.get(subject, _NOWHERE)[0], subject, row[_RELATION], row[_ORIGIN_PATH]


def _each_once(rows: list[EdgeRow], far: int, order: Callable[[EdgeRow], Any]) -> Iterable[EdgeRow]:
    if len(rows) < 2:
        return rows
    rows.sort(key=order)
    if len({row[far] for row in rows}) == len(rows):
        return rows
    return {(row[_RELATION], row[far]): row for row in rows}.values()


def _node(
    known: Mapping[str, PathAtCommit], kind: str, key: str, path: str, commit: str | None
) -> LineageNode:
    """What an edge tells of one of its ends, with what the repository knows."""
    at, of_commit = known.get(key, _NOWHERE)
    return LineageNode(kind, key, path or at, commit or of_commit, key in known)


def _known(
    connection: Connection, rows: Sequence[EdgeRow], visible: Visible | None
) -> dict[str, PathAtCommit]:
    """Where those ends of edges are that the repository has: a path, and a commit of it."""
    keys = {row[_SUBJECT] for row in rows} | {row[_ORIGIN] for row in rows}
    runs = {row[_ORIGIN] for row in rows if row[_ORIGIN_KIND] == "run"}
    runs |= {row[_SUBJECT] for row in rows if row[_SUBJECT_KIND] == "run"}
    if visible is not None:
        keys, runs = keys & visible.digests, runs & visible.runs
    at = _found(connection, _CHANGES, keys - runs)
    if visible is not None:
        at = [row for row in at if row[2] in visible.commits]
    found = {digest: (path, commit) for digest, path, commit in sorted(at, reverse=True)}
    return found | {key: (f"runs/{name}", None) for key, name in _found(connection, _RUNS, runs)}


def _found(connection: Connection, query: str, keys: set[str]) -> list[EdgeRow]:
    if not keys:
        return []
    given = json.dumps([shown(key) for key in keys], ensure_ascii=False)
    written = text(query.format(asked=_ASKED[connection.dialect.name]))
    return _fetched(connection.execute(written, {"keys": given}))
