"""First tables of the service.

Until a version with the service is released these are the tables of the code, whatever they are:
no database has to be brought along. The first release writes them down here, and what comes after
is a revision of its own.

Revision ID: 0001
Revises:
"""

from __future__ import annotations

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.get_context().opts["target_metadata"].create_all(op.get_bind())


def downgrade() -> None:
    op.get_context().opts["target_metadata"].drop_all(op.get_bind())
