"""Schema revisions of the service's database: upgrades by one process, and one version back.

All that an upgrade does is one transaction, so a crash leaves the tables as they were; processes
that start together wait for the one that was first. A revision only adds: what the version before
does not know has a default or may be null, and what it needs is taken away a version later. So that
one still works on the new tables, and each upgrade writes down for which versions that holds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import (
    Column,
    Connection,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    insert,
    inspect,
    select,
    text,
)

from tensorrepo.repo.errors import UnsupportedError

if TYPE_CHECKING:
    from alembic.config import Config

VERSION_TABLE: Final = "service_version"
REVISIONS: Final = ("0001",)  # those of the scripts, the oldest first
SCRIPTS: Final = Path(__file__).parent  # where Alembic finds env.py and the revisions
_LOCK: Final = 0x7472_7365_7276_6963  # of PostgreSQL, for this alone
_COLUMNS: Final = {  # all at once: to ask for those of each table takes 2 ms a table
    "sqlite": "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c "
    "WHERE t.type = 'table'",
    "postgresql": "SELECT table_name, column_name FROM information_schema.columns "
    "WHERE table_schema = current_schema()",
}

# As Alembic makes it.
_version: Final = Table(
    VERSION_TABLE,
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)
# Revisions whose code works with these tables.
supported: Final = Table(
    "service_supported", MetaData(), Column("revision", String(32), primary_key=True)
)


def prepare(connection: Connection, tables: MetaData) -> None:
    """Bring the service's tables to this version's, in the transaction of `connection`.

    Raises:
        UnsupportedError: a newer version made them, with which this one does not work, or one of
            before the first release.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    found = _revision(connection)
    if found is None:
        _make(connection, tables)
    elif found == REVISIONS[-1]:
        _complete(connection, tables)
    elif found in REVISIONS:
        upgrade(connection, tables)
    else:
        _refuse_unless_supported(connection, REVISIONS[-1], found)


def upgrade(connection: Connection, tables: MetaData) -> None:
    """Bring the tables to the newest revision, and write down whose code works with them."""
    from alembic import command

    command.upgrade(_config(connection, tables), "head")
    _support(connection)


def _revision(connection: Connection) -> str | None:
    """Revision of the tables; None where there are none."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(select(_version.c.version_num)).scalar()
    return None if found is None else str(found)


def _make(connection: Connection, tables: MetaData) -> None:
    """Make all tables at once, as the revisions would one after the other; a test holds it so."""
    is_empty = not inspect(connection).get_table_names()
    tables.create_all(connection, checkfirst=not is_empty)  # a question for each table otherwise
    _version.create(connection, checkfirst=True)
    connection.execute(insert(_version).values(version_num=REVISIONS[-1]))
    _support(connection)


def _support(connection: Connection) -> None:
    supported.create(connection, checkfirst=True)
    connection.execute(supported.delete())
    connection.execute(insert(supported), [{"revision": one} for one in REVISIONS[-2:]])


def _complete(connection: Connection, tables: MetaData) -> None:
    """Bring along a database of a version before the first release: revision 0001 is what is there.

    Tables that it lacks are made; where one has other columns, nothing can be told of them.
    """
    present: dict[str, set[str]] = {}
    for table, column in connection.execute(text(_COLUMNS[connection.dialect.name])):
        present.setdefault(table, set()).add(column)
    if tables.tables.keys() - present.keys():
        tables.create_all(connection)
    for name in tables.tables.keys() & present.keys():
        missing = {column.name for column in tables.tables[name].columns} - present[name]
        if missing:
            raise UnsupportedError(
                f"the service's database was made by a tensorrepo of before the first release: its "
                f"table {name} has no column {min(missing)}, and nothing brings it along. "
                "Start with another one: move it away, or name one by the setting `database`. "
                "Accounts, tokens and names are made anew there; repositories stay as they are."
            )


def downgrade(connection: Connection, tables: MetaData, to: str = "base") -> None:
    """Take the tables back to a revision."""
    from alembic import command

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


def _config(connection: Connection, tables: MetaData) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    config.attributes["tables"] = tables
    return config
