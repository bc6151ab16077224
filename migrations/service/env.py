"""Environment script of Alembic, loaded by it alone."""

from __future__ import annotations

from alembic import context

from tensorrepo.migrations.service.revisions import VERSION_TABLE


def run() -> None:
    """Run the revisions on the connection that `revisions` handed over, in its transaction."""
    context.configure(
        connection=context.config.attributes["connection"],
        target_metadata=context.config.attributes["tables"],
        render_as_batch=True,  # SQLite alters a table by making another
        version_table=VERSION_TABLE,
        transaction_per_migration=False,
    )
    context.run_migrations()


if hasattr(context, "config"):  # Alembic loads this file; who else imports it only looks
    run()
