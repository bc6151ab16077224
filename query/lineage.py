"""What did something come from, and what came from it?

One recursive statement, the same on both databases. Without a bound of depth it gathers things,
each once, so that it ends where edges go in a circle (a run may read what it made before) and takes
no longer where many ways lead to one thing; how deep each lies is found out afterwards.

Source:
    docs/spec/lineage.md has the words of relations.
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import msgspec
from sqlalchemy import bindparam, select, text

from tensorrepo.formats.lineage import relation_of
from tensorrepo.query import tables
from tensorrepo.query.dialects import POSTGRESQL
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from sqlalchemy import Connection, CursorResult

MOST_EDGES: Final = 100_000  # of one answer
_COLUMNS: Final = """
    e.subject_kind, e.subject, e.relation, e.origin_kind, e.origin_path, e.origin, e.origin_commit,
    e.detail
"""
_SUBJECT, _RELATION = 1, 2
# `here` and `there` are the columns of an edge's ends: of the one that is nearer to what was asked
# about, and of the other. `{only}` is a condition on relations. What has no digest is reached as
# null, which nothing equals: a condition on edges alone would make SQLite read the whole index for
# a Bloom filter first, which takes longer than all the rest.
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
_CHANGES: Final = 'SELECT new, path, "commit" FROM entry_change WHERE new {among}'
_RUNS: Final = "SELECT id, name FROM run WHERE id {among}"
_OF_URLS: Final = """
SELECT {columns} FROM lineage_edge AS e
WHERE e.origin IS NULL AND e.origin_path IN :starts LIMIT :most
"""
_OF_PATH: Final = """
SELECT {columns} FROM lineage_edge AS e
WHERE e.origin_path = :path AND e.relation = 'trained-on' AND e.subject_kind = 'model'
AND e.origin IS NOT NULL
"""


class Node(msgspec.Struct, frozen=True, gc=False):
    """Something that came from something, or that something came from.

    Attributes:
        kind: "dataset", "model", "run", "view", "file" or "url".
        key: its digest, the id of a run, or a URL.
        path: where it was found.
        commit: of which `path` is meant, where that is known.
        stored: whether the repository has it still.
    """

    kind: str
    key: str
    path: str
    commit: str | None = None
    stored: bool = False


class Step(msgspec.Struct, frozen=True, gc=False):
    """``subject`` was <relation> ``origin``; `depth` edges away from what was asked about."""

    depth: int
    subject: Node
    relation: str
    origin: Node
    details: dict[str, Any]


def ancestors(
    connection: Connection,
    starts: Sequence[str],
    *,
    depth: int | None = None,
    relations: Iterable[str] = (),
    limit: int = MOST_EDGES,
) -> list[Step]:
    """What some things came from, the nearest first.

    Args:
        connection: to a catalog that is up to date.
        starts: digests, ids of runs.
        depth: how many edges away at most; None: as far as it goes.
        relations: only over these; none: over all.
        limit: of edges.
    """
    return _walk(connection, starts, depth, relations, limit, up=True)


def descendants(
    connection: Connection,
    starts: Sequence[str],
    *,
    depth: int | None = None,
    relations: Iterable[str] = (),
    limit: int = MOST_EDGES,
) -> list[Step]:
    """What came from some things, the nearest first; arguments are those of `ancestors`. `starts`
    may be URLs, too.
    """
    return _walk(connection, starts, depth, relations, limit, up=False)


def versions_of(connection: Connection, path: str) -> list[str]:
    """Digests of all that was at a path, in any commit of the catalog."""
    change = tables.entry_change
    query = select(change.c.new).where(change.c.path == path, change.c.new.is_not(None)).distinct()
    return sorted(connection.execute(query).scalars())


def trained_on(connection: Connection, path: str) -> list[Step]:
    """Which models, of any commit, were trained on which versions of a dataset."""
    rows = _fetched(connection.execute(text(_OF_PATH.format(columns=_COLUMNS)), {"path": path}))
    return _steps(connection, rows, [row[_SUBJECT] for row in rows], up=True)


def _walk(
    connection: Connection,
    starts: Sequence[str],
    depth: int | None,
    relations: Iterable[str],
    limit: int,
    *,
    up: bool,
) -> list[Step]:
    if depth is not None and depth < 1:
        raise InvalidInputError(f"depth {depth}: expected 1 or more")
    words = sorted({relation_of(word) for word in relations})
    given = {"starts": [*starts], "words": words, "depth": depth, "most": limit}
    rows = _asked(connection, _UNBOUND if depth is None else _BOUND, given, up=up)
    urls = [start for start in starts if "://" in start]
    if urls and not up:
        first = _asked(connection, _OF_URLS, {**given, "starts": urls}, up=up)
        first = [row for row in first if not words or row[_RELATION] in words]
        rows = [*first, *rows, *_beyond(connection, first, given)]
    return _steps(connection, rows, starts, up=up)


def _asked(connection: Connection, query: str, given: Mapping[str, Any], *, up: bool) -> list[Any]:
    here, there = ("subject", "origin") if up else ("origin", "subject")
    only = "AND coalesce(e.relation, reached.key) IN :words" if given["words"] else ""
    written = query.format(here=here, there=there, only=only, columns=_COLUMNS)
    lists = [name for name in ("starts", "words") if f":{name}" in written]
    statement = text(written).bindparams(*(bindparam(name, expanding=True) for name in lists))
    asked = {name: value for name, value in given.items() if f":{name}" in written}
    return _fetched(connection.execute(statement, asked))


def _fetched(result: CursorResult[Any]) -> list[tuple[Any, ...]]:
    """All rows as the driver gives them. Plain tuples of texts are nothing to the garbage
    collector; thousands of SQLAlchemy's rows are.
    """
    rows = list(result.cursor.fetchall())
    result.close()
    return rows


def _beyond(connection: Connection, first: list[Any], given: Mapping[str, Any]) -> list[Any]:
    """What came from those that came from URLs."""
    depth = given["depth"]
    if depth == 1 or not first:
        return []
    starts = sorted({row[_SUBJECT] for row in first})
    nearer = {**given, "starts": starts, "depth": None if depth is None else depth - 1}
    return _asked(connection, _UNBOUND if depth is None else _BOUND, nearer, up=False)


def _steps(
    connection: Connection, rows: Sequence[Any], starts: Sequence[str], *, up: bool
) -> list[Step]:
    """Rows as steps, each once, by how far they are from where it started."""
    edges = {(row[1], row[2], row[4] if row[5] is None else row[5]): row for row in rows}
    depths = _depths([(subject, origin) for subject, _, origin in edges], starts, up=up)
    known = _known(connection, {end for subject, _, origin in edges for end in (subject, origin)})
    nodes: dict[tuple[str, str, str, str | None], Node] = {}
    found = []
    for (subject, relation, origin), row in edges.items():
        depth = depths.get(subject if up else origin)
        if depth is None:
            continue  # the limit cut off what leads there
        made = _node(nodes, known, (row[0], subject, "", None))
        came_from = _node(nodes, known, (row[3], origin, row[4], row[6]))
        details = {} if row[7] == "{}" else json.loads(row[7])
        step = Step(depth + 1, made, relation, came_from, details)
        found.append((depth, made.path, subject, relation, came_from.path, origin, step))
    found.sort()  # no two are equal before their steps: edges are there once
    return [each[-1] for each in found]


def _node(
    nodes: dict[tuple[str, str, str, str | None], Node],
    known: Mapping[str, tuple[str, str | None]],
    told: tuple[str, str, str, str | None],
) -> Node:
    """The node of a kind, a key, a path and a commit, as an edge tells them; one for all alike."""
    found = nodes.get(told)
    if found is None:
        kind, key, path, commit = told
        stored = known.get(key)
        at, of_commit = stored or ("", None)
        found = nodes[told] = Node(kind, key, path or at, commit or of_commit, stored is not None)
    return found


def _depths(edges: Sequence[tuple[str, str]], starts: Sequence[str], *, up: bool) -> dict[str, int]:
    """Edges between each thing and the nearest start."""
    beyond: dict[str, list[str]] = defaultdict(list)
    for subject, origin in edges:
        here, there = (subject, origin) if up else (origin, subject)
        beyond[here].append(there)
    depths = dict.fromkeys(starts, 0)
    ring = [*starts]
    while ring:
        met = [there for here in ring for there in beyond.get(here, ()) if there not in depths]
        depth = depths[ring[0]] + 1
        ring = list(dict.fromkeys(met))
        depths.update(dict.fromkeys(ring, depth))
    return depths


def _known(connection: Connection, keys: set[str]) -> dict[str, tuple[str, str | None]]:
    """Where those things are, of these, that the repository has: a path, and a commit of it."""
    postgres = connection.dialect.name == POSTGRESQL
    given = {"keys": sorted(keys) if postgres else json.dumps(sorted(keys))}
    # One parameter, however many keys: a list of thousands takes longer to write than to answer.
    among = "= ANY(:keys)" if postgres else "IN (SELECT value FROM json_each(:keys))"
    at = _fetched(connection.execute(text(_CHANGES.format(among=among)), given))
    found = {digest: (path, commit) for digest, path, commit in sorted(at, reverse=True)}
    named = _fetched(connection.execute(text(_RUNS.format(among=among)), given))
    return found | {key: (f"runs/{name}", None) for key, name in named}
