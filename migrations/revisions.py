"""Schema revisions of the catalog: how its tables stand, and upgrades and downgrades by Alembic.

Each revision makes tables from the ones before, and can be taken back. All that an upgrade does is
one transaction in both databases, so a crash leaves the tables as they were.

Alembic is loaded where it is used: it takes 0.2 s, and a service starts without it.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from sqlalchemy import Connection, MetaData, Table, inspect

from tensorrepo.query.catalog import tables
from tensorrepo.repo.deferred_dataclass import dataclass

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import ScriptDirectory

VERSION_TABLE: Final = "alembic_version"
HEAD: Final = "head"
BASE: Final = "base"
# Revisions that were never released: nothing upgrades their tables, a catalog is only a cache.
DROPPED: Final = frozenset({"0001", "0002"})
SCRIPTS = Path(__file__).parent  # where Alembic finds env.py and the revisions


class SchemaFit(Enum):
    """How tables fit this version of tensorrepo."""

    EMPTY = "empty"
    CURRENT = "current"
    BEHIND = "behind"
    AHEAD = "ahead"
    DROPPED = "dropped tables"
    HALF = "half-migrated"
    FOREIGN = "not a catalog"


@dataclass(frozen=True, slots=True)
class Standing:
    """What the tables are: their revisions (one, or none), and what is wrong with them."""

    fit: SchemaFit
    revisions: tuple[str, ...]
    missing: tuple[str, ...] = ()


def newest() -> str:
    """The revision that this version of tensorrepo works with."""
    found = _scripts().get_current_head()
    assert found is not None, "there is a first revision"
    return found


def standing(connection: Connection) -> Standing:
    """How the tables of a database fit."""
    from alembic.migration import MigrationContext

    present = set(inspect(connection).get_table_names())
    revisions = MigrationContext.configure(connection).get_current_heads()
    ours = {table.name for table in tables.METADATA.tables.values()}
    if not revisions:
        if not present & ours:
            return Standing(SchemaFit.EMPTY, ())
        # A table of that name that somebody else made, or what is left of ours.
        fit = SchemaFit.HALF if tables.cursor.name in present else SchemaFit.FOREIGN
        return Standing(fit, (), tuple(sorted(ours - present)))
    missing = tuple(sorted(ours - present))
    known = {script.revision for script in _scripts().walk_revisions()}
    if not set(revisions) <= known:
        return Standing(
            SchemaFit.DROPPED if set(revisions) <= DROPPED else SchemaFit.AHEAD, revisions
        )
    if len(revisions) > 1 or (revisions == (newest(),) and missing):
        return Standing(SchemaFit.HALF, revisions, missing)
    return Standing(SchemaFit.CURRENT if revisions == (newest(),) else SchemaFit.BEHIND, revisions)


def upgrade(connection: Connection, to: str = HEAD) -> None:
    """Bring the tables to a revision, in the transaction of `connection`."""
    from alembic import command

    command.upgrade(_config(connection), to)


def downgrade(connection: Connection, to: str = BASE) -> None:
    """Take the tables back to a revision, in the transaction of `connection`."""
    from alembic import command

    command.downgrade(_config(connection), to)


def remove(connection: Connection) -> None:
    """Drop what is there of our tables, whatever revision it is of."""
    present = set(inspect(connection).get_table_names())
    for name in sorted(present & {*tables.METADATA.tables, VERSION_TABLE}):
        Table(name, MetaData()).drop(connection)


def _config(connection: Connection | None = None) -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    return config


def _scripts() -> ScriptDirectory:
    from alembic.script import ScriptDirectory

    return ScriptDirectory.from_config(_config())
