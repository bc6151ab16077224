"""Schema revisions of the service's database: upgrades by one process, and one version back.

All that an upgrade does is one transaction, so a crash leaves the tables as they were; processes
that start together wait for the one that was first. A revision only adds: what the version before
does not know has a default or may be null, and what it needs is taken away a version later. So that
one still works on the new tables, and each upgrade writes down for which versions that holds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Column, Connection, MetaData, String, Table, insert, inspect, select, text

from tensorrepo.repo.errors import UnsupportedError

VERSION_TABLE: Final = "service_version"
SCRIPTS: Final = Path(__file__).parent  # where Alembic finds env.py and the revisions
_LOCK: Final = 0x7472_7365_7276_6963  # of PostgreSQL, for this alone

# Revisions whose code works with these tables.
supported: Final = Table(
    "service_supported", MetaData(), Column("revision", String(32), primary_key=True)
)


def prepare(connection: Connection, tables: MetaData) -> None:
    """Bring the service's tables to this version's, in the transaction of `connection`.

    Raises:
        UnsupportedError: a newer version made them, with which this one does not work.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    scripts = ScriptDirectory.from_config(_config(None, tables))
    newest = scripts.get_current_head()
    found = MigrationContext.configure(
        connection, opts={"version_table": VERSION_TABLE}
    ).get_current_revision()
    if found == newest:
        return
    known = {script.revision: script.down_revision for script in scripts.walk_revisions()}
    if found is not None and found not in known:
        _refuse_unless_supported(connection, str(newest), found)
        return
    upgrade(connection, tables)


def upgrade(connection: Connection, tables: MetaData, to: str = "head") -> None:
    """Bring the tables to a revision, and write down whose code works with them."""
    config = _config(connection, tables)
    command.upgrade(config, to)
    made = ScriptDirectory.from_config(config).get_revision(to)
    supported.create(connection, checkfirst=True)
    connection.execute(supported.delete())
    names = [made.revision, made.down_revision]
    connection.execute(insert(supported), [{"revision": one} for one in names if one is not None])


def downgrade(connection: Connection, tables: MetaData, to: str = "base") -> None:
    """Take the tables back to a revision."""
    command.downgrade(_config(connection, tables), to)
    supported.drop(connection, checkfirst=True)


def _refuse_unless_supported(connection: Connection, ours: str, found: str) -> None:
    works = set()
    if inspect(connection).has_table(supported.name):
        works = {row.revision for row in connection.execute(select(supported))}
    if ours not in works:
        raise UnsupportedError(
            f"the service's database is of a newer tensorrepo (revision {found}, this version "
            f"knows up to {ours}, and does not work with it): install the version that made it, or "
            "restore a backup from before"
        )


def _config(connection: Connection | None, tables: MetaData) -> Config:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    config.attributes["tables"] = tables
    return config
