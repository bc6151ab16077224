"""Does a catalog say what the repository says?

Another catalog is made beside it, in a temporary file, and both are read in one order. Wherever
they differ, the catalog is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import select

from tensorrepo.query import tables
from tensorrepo.query.catalog import Catalog, connect
from tensorrepo.query.sync.catchup import catch_up

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Table

    from tensorrepo.repo.repository import Repository

_FETCHED: Final = 1000  # rows at a time
MOST_SHOWN: Final = 3  # of each table


@dataclass(frozen=True, slots=True)
class Difference:
    """How a table differs: rows that are too many, rows that are missing, some of each."""

    table: str
    extra: int
    missing: int
    examples: tuple[str, ...]


def differences(repository: Repository, catalog: Catalog) -> Iterator[Difference]:
    """The tables in which the catalog is not what it should be."""
    with TemporaryDirectory() as folder:
        fresh = Catalog(connect(f"sqlite:///{Path(folder) / 'fresh.db'}"))
        try:
            tables.METADATA.create_all(fresh.engine)
            catch_up(repository, fresh)
            with catalog.reading() as mine, fresh.reading() as right:
                yield from compare(mine, right)
        finally:
            fresh.dispose()


def compare(mine: Connection, right: Connection) -> Iterator[Difference]:
    """The tables whose rows differ between two catalogs."""
    for table in tables.METADATA.tables.values():
        found = _compare_table(table, mine, right)
        if found.extra or found.missing:
            yield found


def _compare_table(table: Table, mine: Connection, right: Connection) -> Difference:
    """Merge both sides, each in the order of its key."""
    sides = [_rows(connection, table) for connection in (mine, right)]
    heads = [next(side, None) for side in sides]
    counts = [0, 0]
    examples: list[str] = []
    while any(heads):
        one, two = heads
        if one == two:
            heads = [next(side, None) for side in sides]
            continue
        # The one that comes first has no twin; of two with one key, both are wrong by themselves.
        first = 0 if two is None or (one is not None and one[0] <= two[0]) else 1
        counts[first] += 1
        if len(examples) < MOST_SHOWN:
            examples.append(f"{'extra' if first == 0 else 'missing'} {heads[first]!s:.300}")
        heads[first] = next(sides[first], None)
    return Difference(table.name, counts[0], counts[1], tuple(examples))


def _rows(connection: Connection, table: Table) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """(key, row) of all rows in the order of the key; text by its code points in both databases."""
    keys = list(table.primary_key.columns)
    places = [list(table.columns).index(key) for key in keys]
    query = select(table).order_by(*keys).execution_options(yield_per=_FETCHED)
    for row in connection.execute(query):
        yield tuple(row[place] for place in places), tuple(row)
