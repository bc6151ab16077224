"""What goes when refs have let go of commits?

A commit stays while a ref or a retained value names it, or a commit that stays has it as a parent.
History has no circles, so it is enough to look at what was dropped, and then at the parents of what
went: the cost is that of the garbage, not of the history.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, delete, select

from tensorrepo.query import tables
from tensorrepo.query.sync.kinds import CONTENTS
from tensorrepo.query.sync.loader import chunks, delete_where, present

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from sqlalchemy import Column, Connection

_GRAPH_COLUMNS = (
    tables.graph.c.digest, tables.node.c.graph, tables.edge.c.graph, tables.node_parameter.c.graph,
)  # fmt: skip


def sweep(connection: Connection, dropped: Iterable[str], roots: Collection[str]) -> int:
    """Delete what nothing reaches since `dropped` are no roots; gives how many commits went.

    Args:
        connection: in a transaction, all new rows sent.
        dropped: commits that were roots.
        roots: what is a root now.
    """
    pending = {commit for commit in dropped if commit not in roots}
    count = 0
    while pending:
        some = next(chunks(sorted(pending)))
        pending.difference_update(some)
        gone = sorted(set(some) - present(connection, tables.commit_parent.c.parent, some))
        if not gone:
            continue
        gone = sorted(present(connection, tables.commit.c.digest, gone))
        parents = present_where(
            connection, tables.commit_parent.c.parent, tables.commit_parent.c.commit, gone
        )
        _delete_commits(connection, gone)
        count += len(gone)
        pending |= {parent for parent in parents if parent not in roots}
    return count


def _delete_commits(connection: Connection, gone: list[str]) -> None:
    change = tables.entry_change
    things = present_where(connection, change.c.new, change.c.commit, gone)
    for column in (tables.commit.c.digest, tables.commit_parent.c.commit, change.c.commit):
        delete_where(connection, column, gone)
    delete_things(connection, things)


def delete_things(connection: Connection, things: Iterable[str]) -> None:
    """Delete the rows of those datasets, models, ... that no change made any more."""
    for some in chunks(things):
        unused = sorted(set(some) - present(connection, tables.entry_change.c.new, some))
        model = tables.model_version
        graphs = present_where(connection, model.c.graph, model.c.digest, unused)
        for content in CONTENTS.values():
            mine = sorted(present(connection, content.key, unused))
            for column in content.owned:
                delete_where(connection, column, mine)
        _delete_unused(connection, graphs, tables.model_version.c.graph, _GRAPH_COLUMNS)
        _delete_placements(connection, some)


def _delete_placements(connection: Connection, models: list[str]) -> None:
    """Of these models, the placements that no change names any more."""
    place, change = tables.placement, tables.entry_change
    named = (
        select(change.c.commit)
        .where(change.c.new == place.c.model, change.c.storage == place.c.stated)
        .exists()
    )
    of_these = place.c.model.in_(models)
    gone = connection.execute(select(place).where(of_these, ~named)).all()
    connection.execute(delete(place).where(of_these, ~named))
    delete_unused_placements(connection, {row.placement for row in gone})


def delete_unused_placements(connection: Connection, placements: Iterable[str]) -> None:
    """Delete what is known of those placements that no model has any more."""
    columns = (tables.tensor_storage.c.placement, tables.member_base.c.placement)
    _delete_unused(connection, placements, tables.placement.c.placement, columns)


def _delete_unused(
    connection: Connection,
    values: Iterable[str],
    used: Column[Any],
    columns: Iterable[Column[Any]],
) -> None:
    wanted = set(values)
    unused = sorted(wanted - present(connection, used, wanted))
    for column in columns:
        delete_where(connection, column, unused)


def present_where(
    connection: Connection, wanted: Column[Any], column: Column[Any], values: Iterable[str]
) -> set[str]:
    """The different values of `wanted` in the rows whose `column` is one of `values`, no nulls."""
    query = select(wanted).where(column.in_(bindparam("asked", expanding=True))).distinct()
    return {found for found in _ask(connection, query, values) if found is not None}


def _ask(connection: Connection, query: Any, values: Iterable[str]) -> Iterator[str | None]:
    for some in chunks(values):
        yield from connection.execute(query, {"asked": some}).scalars()
