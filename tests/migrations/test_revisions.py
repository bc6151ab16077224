"""The revisions make the tables that the code works with, and take them away again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import inspect, select

from tensorrepo.migrations import revisions
from tensorrepo.migrations.revisions import SchemaFit
from tensorrepo.query.catalog import tables
from tensorrepo.query.catalog.database import CatalogDatabase, connect
from tensorrepo.query.sync.catch_up import catch_up
from tests.support.builders.repositories import commit_files, new_repository
from tests.support.servers.catalogs import fresh_rows, rows_of


@pytest.fixture
def empty(catalog_url: str) -> Iterator[CatalogDatabase]:
    catalog = CatalogDatabase(connect(catalog_url))
    yield catalog
    catalog.dispose()


def described(catalog: CatalogDatabase) -> dict[str, Any]:
    """All that the database knows of our tables."""
    seen = inspect(catalog.engine)
    return {
        name: (
            [(c["name"], str(c["type"]), c["nullable"]) for c in seen.get_columns(name)],
            seen.get_pk_constraint(name)["constrained_columns"],
            sorted((i["name"], i["column_names"]) for i in seen.get_indexes(name)),
        )
        for name in sorted(seen.get_table_names())
        if name != revisions.VERSION_TABLE
    }


def break_off(catalog: CatalogDatabase) -> None:
    with catalog.writing() as connection:
        revisions.upgrade(connection)
        raise ZeroDivisionError


def fit(catalog: CatalogDatabase) -> SchemaFit:
    with catalog.reading() as connection:
        return revisions.standing(connection).fit


def test_the_revisions_make_exactly_the_tables_of_the_code(empty: CatalogDatabase) -> None:
    tables.METADATA.create_all(empty.engine)
    wanted = described(empty)
    tables.METADATA.drop_all(empty.engine)
    with empty.writing() as connection:
        revisions.upgrade(connection)
    assert described(empty) == wanted
    assert set(wanted) == set(tables.METADATA.tables)


def test_an_upgrade_taken_back_leaves_nothing_and_can_be_made_again(
    catalog: CatalogDatabase,
) -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    catch_up(repository, catalog)
    assert fit(catalog) is SchemaFit.CURRENT
    with catalog.writing() as connection:
        revisions.downgrade(connection)
    assert fit(catalog) is SchemaFit.EMPTY
    assert described(catalog) == {}
    with catalog.writing() as connection:
        revisions.upgrade(connection)
    catch_up(repository, catalog)
    assert rows_of(catalog) == fresh_rows(repository)


def test_an_upgrade_that_fails_halfway_leaves_the_tables_as_they_were(
    empty: CatalogDatabase,
) -> None:
    with pytest.raises(ZeroDivisionError):
        break_off(empty)
    assert fit(empty) is SchemaFit.EMPTY
    assert described(empty) == {}


def test_an_upgrade_keeps_the_rows_that_are_there(catalog: CatalogDatabase) -> None:
    repository = new_repository()
    commit_files(repository, {"files/a": b"a"})
    catch_up(repository, catalog)
    before = rows_of(catalog)
    with catalog.writing() as connection:
        revisions.upgrade(connection)
    assert rows_of(catalog) == before


def test_text_is_ordered_by_code_points_and_reals_and_flags_come_back(
    catalog: CatalogDatabase,
) -> None:
    names = ["a", "B", "_", "é", "ß", "\0x", "𝄞"]
    with catalog.writing() as connection:
        rows = [
            {"block": "m", "place": n, "name": name, "dtype": "F32", "shape": "[]",
             "elements": 1 << 62, "bytes": 1}
            for n, name in enumerate(names)
        ]  # fmt: skip
        connection.execute(tables.block_tensor.insert(), rows)
        record = {"generation": 1, "place": 0, "txn": "t", "kind": "noop", "actor": "", "note": "",
                  "time_ns": -(1 << 63), "applied": False, "reason": ""}  # fmt: skip
        connection.execute(tables.log_record.insert(), record)
        owner = {"owner": "m", "place": 0, "name": "loss", "value": 0.1, "kind": "finite"}
        connection.execute(tables.metric.insert(), owner)
    with catalog.reading() as connection:
        name = tables.block_tensor.c.name
        found = connection.execute(select(name).order_by(name)).scalars().all()
        applied, time_ns = connection.execute(
            select(tables.log_record.c.applied, tables.log_record.c.time_ns)
        ).one()
        value = connection.execute(select(tables.metric.c.value)).scalar_one()
    assert found == ["B", "_", "a", "ß", "é", "␀x", "𝄞"]
    assert (applied, time_ns, value) == (False, -(1 << 63), 0.1)
