"""Revisions of the service's database: one process runs them, and one version back still works."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory
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


def described(engine: Engine) -> dict[str, list[str]]:
    """Columns and keys of all tables."""
    seen = inspect(engine)
    return {
        name: [
            *(f"{one['name']} {one['type']!r} {one['nullable']}" for one in seen.get_columns(name)),
            f"{seen.get_pk_constraint(name)} {seen.get_indexes(name)}",
        ]
        for name in sorted(seen.get_table_names())
    }


def test_the_first_start_makes_the_tables_of_the_revisions(url: str, engine: Engine) -> None:
    Database(url).close()
    made = described(engine)
    assert set(made) == OURS
    with engine.begin() as connection:
        revisions.downgrade(connection, METADATA)
        connection.execute(text(f"DROP TABLE {revisions.VERSION_TABLE}"))
        revisions.upgrade(connection, METADATA)
    assert described(engine) == made


def test_the_revisions_are_those_of_the_scripts() -> None:
    config = Config()
    config.set_main_option("script_location", str(revisions.SCRIPTS))
    config.set_main_option("path_separator", "os")
    scripts = ScriptDirectory.from_config(config).walk_revisions()
    assert tuple(script.revision for script in scripts)[::-1] == revisions.REVISIONS


def test_tables_that_came_before_the_first_release_are_made(url: str, engine: Engine) -> None:
    Database(url).close()
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE oci_digests"))
    Database(url).close()
    assert set(inspect(engine).get_table_names()) == OURS


def test_a_database_without_a_column_says_what_to_do(url: str, engine: Engine) -> None:
    Database(url).close()
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE repositories DROP COLUMN description"))
    with pytest.raises(UnsupportedError, match=r"no column description.*move it away"):
        Database(url)


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
