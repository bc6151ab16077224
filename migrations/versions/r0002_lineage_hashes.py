"""Walks of lineage go by numbers: 8 bytes of a hash of each end stand in the indexes.

Revision ID: 0002
Revises: 0001
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

WORDS = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")

BEFORE = (
    "stated_by, place, subject_kind, subject, relation, origin_kind, origin_path, origin, "
    "origin_commit, detail"
)
ENDS = ("subject", "coalesce(origin, origin_path)")
# As the code that fills the table makes it: of whatever a thing is known by, as UTF-8.
HASH = {
    "postgresql": (
        "('x' || encode(substr(sha256(convert_to({}, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint"
    ),
    "sqlite": "tensorrepo_hash({})",
}


def upgrade() -> None:
    bind = op.get_bind()
    ends = [HASH[bind.dialect.name].format(end) for end in ENDS]
    if bind.dialect.name == "sqlite":
        driver: Any = bind.connection.driver_connection
        driver.create_function("tensorrepo_hash", 1, _hash)
    _make_again(
        f"{BEFORE}, {ends[0]}, {ends[1]}",
        sa.Column("subject_hash", WHOLE, nullable=False),
        sa.Column("origin_hash", WHOLE, nullable=False),
    )
    op.create_index("lineage_edge_of_origin", "lineage_edge", ["origin_hash", "subject_hash"])
    op.create_index("lineage_edge_of_subject", "lineage_edge", ["subject_hash", "origin_hash"])


def downgrade() -> None:
    _make_again(BEFORE)
    op.create_index("lineage_edge_of_origin", "lineage_edge", ["origin", "subject"])
    op.create_index("lineage_edge_of_subject", "lineage_edge", ["subject", "origin"])


def _make_again(kept: str, *more: sa.Column[Any]) -> None:
    """The table with its first columns and `more`, filled with what `kept` selects of its rows.

    Not altered in place: that is made with another table in SQLite too, which is strict no more.
    """
    op.execute("CREATE TABLE lineage_edge_before AS SELECT * FROM lineage_edge")
    op.drop_table("lineage_edge")
    op.create_table(
        "lineage_edge",
        sa.Column("stated_by", WORDS, nullable=False),
        sa.Column("place", WHOLE, nullable=False),
        sa.Column("subject_kind", WORDS, nullable=False),
        sa.Column("subject", WORDS, nullable=False),
        sa.Column("relation", WORDS, nullable=False),
        sa.Column("origin_kind", WORDS, nullable=False),
        sa.Column("origin_path", WORDS, nullable=False),
        sa.Column("origin", WORDS, nullable=True),
        sa.Column("origin_commit", WORDS, nullable=True),
        sa.Column("detail", WORDS, nullable=False),
        *more,
        sa.PrimaryKeyConstraint("stated_by", "place"),
        sqlite_strict=True,
    )
    op.execute(f"INSERT INTO lineage_edge SELECT {kept} FROM lineage_edge_before")  # noqa: S608 - names of this file
    op.drop_table("lineage_edge_before")


def _hash(key: str) -> int:
    return int.from_bytes(sha256(key.encode()).digest()[:8], "big", signed=True)
