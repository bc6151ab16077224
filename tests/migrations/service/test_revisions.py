"""Revisions of the service's database: one process runs them, and one version back still works."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, inspect, text

from tensorrepo.api.database.connection import Database
from tensorrepo.api.database.tables import METADATA
from tensorrepo.migrations.service import revisions
from tensorrepo.repo.errors import UnsupportedError
from tests.support.servers.postgres import shared_server

OURS = set(METADATA.tables) | {revisions.VERSION_TABLE, revisions.supported.name}


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    made = f"sqlite:///{tmp_path / 'server.db'}"
    return made if request.param == "sqlite" else shared_server().database()


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """The database past ours, as it stands."""
    made = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    yield made
    made.dispose()


def become(engine: Engine, revision: str, *works: str) -> None:
    """As a newer version leaves it."""
    with engine.begin() as connection:
        connection.execute(text("UPDATE service_version SET version_num = :to"), {"to": revision})
        connection.execute(text("DELETE FROM service_supported"))
        for one in works:
            connection.execute(text("INSERT INTO service_supported VALUES (:one)"), {"one": one})


def test_the_first_start_makes_the_tables_of_the_code(url: str, engine: Engine) -> None:
    Database(url).close()
    assert set(inspect(engine).get_table_names()) == OURS


def test_processes_that_start_together_wait_for_one(url: str, engine: Engine) -> None:
    with ThreadPoolExecutor(4) as pool:
        started = list(pool.map(lambda _: Database(url), range(4)))
    for database in started:
        database.close()
    assert set(inspect(engine).get_table_names()) == OURS


def test_tables_of_the_next_version_are_worked_with(url: str, engine: Engine) -> None:
    Database(url).close()
    become(engine, "9999", "9999", "0001")
    Database(url).close()


def test_tables_of_a_version_after_that_are_refused(url: str, engine: Engine) -> None:
    Database(url).close()
    become(engine, "9999", "9999", "9998")
    with pytest.raises(UnsupportedError, match="newer tensorrepo"):
        Database(url)


def test_a_downgrade_takes_all_away(url: str, engine: Engine) -> None:
    Database(url).close()
    with engine.begin() as connection:
        revisions.downgrade(connection, METADATA)
    assert set(inspect(engine).get_table_names()) - {revisions.VERSION_TABLE} == set()
