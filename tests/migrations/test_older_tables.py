"""Tables of an earlier revision are told with what mends them, and come up with their rows.

A later revision is laid beside the real ones, so that today's tables are the earlier ones.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import text

import tensorrepo as tr
from tensorrepo.migrations import revisions
from tensorrepo.query.catalog.database import CatalogDatabase, connect
from tests.support.processes.shell import Shell
from tests.support.servers.catalogs import rows_of

LATER = '''"""A column that is filled from others, and a table of what was counted.

Revision ID: later
Revises: {newest}
"""

import sqlalchemy as sa
from alembic import op

revision = "later"
down_revision = "{newest}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("commit") as batch:
        batch.add_column(sa.Column("letters", sa.Integer(), nullable=True))
    op.execute('UPDATE "commit" SET letters = length(message)')
    op.create_table("counted", sa.Column("commits", sa.Integer(), nullable=False))
    op.execute('INSERT INTO counted SELECT count(*) FROM "commit"')


def downgrade() -> None:
    op.drop_table("counted")
    with op.batch_alter_table("commit") as batch:
        batch.drop_column("letters")
'''
# What is done to the tables of PostgreSQL is shown there by an upgrade that brings the rows along.
MOST_IN_SQLITE = pytest.mark.parametrize(
    "catalog_url",
    ["sqlite", pytest.param("postgresql", marks=pytest.mark.soak)],
    indirect=True,
)
HOME = revisions.SCRIPTS
FRESH = itertools.count()
MESSAGES = ("one", "three more")


@pytest.fixture
def later(tmp_path: Path) -> Path:
    """The revisions of a version of tensorrepo that is yet to come."""
    folder = tmp_path / "later"
    shutil.copytree(HOME, folder, ignore=shutil.ignore_patterns("__pycache__"))
    script = LATER.format(newest=revisions.newest())
    (folder / "versions" / "r9999_later.py").write_text(script)
    return folder


@pytest.fixture
def repo(catalog_url: str) -> Iterator[tr.Repository]:
    """A repository of two commits, whose catalog has today's tables."""
    made = tr.init(f"memory://older-{os.getpid()}-{next(FRESH)}", author="Ada <ada@example.org>")
    made = tr.open(made.url, author=made.author, catalog=catalog_url)
    for number, message in enumerate(MESSAGES):
        with made.transaction("main", message) as tx:
            tx.save_model("net", {"w": np.full((4, 4), number, "f4")})
    made.catalog.catch_up()
    yield made
    made.catalog.close()


def rows(url: str) -> dict[str, list[tuple[object, ...]]]:
    catalog = CatalogDatabase(connect(url))
    try:
        return rows_of(catalog)
    finally:
        catalog.dispose()


def asked(repo: tr.Repository, query: str) -> list[tuple[object, ...]]:
    with repo.catalog.reading() as connection:
        return [tuple(row) for row in connection.execute(text(query))]


@MOST_IN_SQLITE
def test_older_tables_are_told_with_what_mends_them(
    repo: tr.Repository, later: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revisions, "SCRIPTS", later)
    status = repo.catalog.status()
    assert (status.state, status.newest_revision) == ("old tables", "later")
    assert not status.is_usable
    with pytest.raises(tr.UnsupportedError, match="Run `tensorrepo catalog upgrade`"):
        repo.catalog.catch_up()
    with pytest.raises(tr.UnsupportedError, match="catalog upgrade"):
        list(repo.sql("SELECT * FROM catalog.ref"))


def test_an_upgrade_brings_the_rows_along(
    repo: tr.Repository, catalog_url: str, later: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows(catalog_url)
    monkeypatch.setattr(revisions, "SCRIPTS", later)
    assert repo.catalog.upgrade().revisions == ("later",)
    assert rows(catalog_url) == before
    assert repo.catalog.status().state == "current"
    letters = sorted(map(len, MESSAGES))
    assert asked(repo, 'SELECT letters FROM "commit" ORDER BY 1') == [(each,) for each in letters]
    assert asked(repo, "SELECT commits FROM counted") == [(len(MESSAGES),)]
    assert repo.catalog.verify() == []


@MOST_IN_SQLITE
def test_it_can_go_down_again(
    repo: tr.Repository, catalog_url: str, later: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, today = rows(catalog_url), revisions.newest()
    monkeypatch.setattr(revisions, "SCRIPTS", later)
    repo.catalog.upgrade()
    catalog = CatalogDatabase(connect(catalog_url))
    with catalog.writing() as connection:
        revisions.downgrade(connection, today)
    catalog.dispose()
    monkeypatch.setattr(revisions, "SCRIPTS", HOME)
    assert rows(catalog_url) == before
    assert repo.catalog.status().state == "current"
    with repo.transaction("main", "after") as tx:
        tx.save_file("notes", b"text")
    assert repo.catalog.catch_up().commits == 1
    assert repo.catalog.verify() == []


@MOST_IN_SQLITE
def test_tables_of_a_later_revision_are_refused(
    repo: tr.Repository, later: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revisions, "SCRIPTS", later)
    repo.catalog.upgrade()
    monkeypatch.setattr(revisions, "SCRIPTS", HOME)
    assert repo.catalog.status().state == "newer tables"
    with pytest.raises(tr.UnsupportedError, match="Update tensorrepo"):
        repo.catalog.catch_up()


@MOST_IN_SQLITE
def test_tables_from_before_the_first_release_are_told_to_be_rebuilt(
    repo: tr.Repository, catalog_url: str
) -> None:
    before = rows(catalog_url)
    catalog = CatalogDatabase(connect(catalog_url))
    with catalog.writing() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    catalog.dispose()
    assert repo.catalog.status().state == "old tables"
    with pytest.raises(tr.UnsupportedError, match="Run `tensorrepo catalog rebuild`"):
        repo.catalog.catch_up()
    with pytest.raises(tr.UnsupportedError, match="cannot be upgraded"):
        repo.catalog.upgrade()
    repo.catalog.rebuild()
    assert rows(catalog_url) == before


def test_the_command_line_says_and_does_the_same(
    full: Shell, later: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full("catalog", "rebuild")
    monkeypatch.setattr(revisions, "SCRIPTS", later)
    assert "catalog upgrade" in full.fails(8, "sql", "SELECT count(*) FROM catalog.ref")
    assert full.run("catalog", "status").exit_code == 5
    assert "revision later" in full("catalog", "upgrade")
    assert (
        full("sql", "SELECT count(*) > 0 AS a FROM catalog.ref", "--format", "csv") == "a\nTrue\n"
    )
