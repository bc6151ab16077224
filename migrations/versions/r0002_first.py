"""First tables of the catalog.

It is called 0002 because it makes what a step from 0001 to 0002 once made; tables of 0001, which
no release had, are `revisions.DROPPED`.

Revision ID: 0002
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0002"
down_revision = None
branch_labels = None
depends_on = None

# Each type as both databases spell it: strict tables of SQLite know few names.
WORDS = sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql")
WHOLE = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
FLAG = sa.Boolean().with_variant(sa.Integer(), "sqlite")
REAL: sa.Double[float] = sa.Double().with_variant(sa.REAL(), "sqlite")


def upgrade() -> None:
    for make in _TABLES.values():
        make()


def downgrade() -> None:
    for name in reversed(_TABLES):
        op.drop_table(name)


def _cursor() -> None:
    op.create_table(
        "cursor",
        sa.Column("id", WHOLE, nullable=False),
        sa.Column("repository", WORDS, nullable=False),
        sa.Column("generation", WHOLE, nullable=False),
        sa.Column("digest", WORDS, nullable=False),
        sa.Column("shallow", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_strict=True,
    )


def _log_record() -> None:
    op.create_table(
        "log_record",
        sa.Column("generation", WHOLE, nullable=False),
        sa.Column("place", WHOLE, nullable=False),
        sa.Column("txn", WORDS, nullable=False),
        sa.Column("kind", WORDS, nullable=False),
        sa.Column("actor", WORDS, nullable=False),
        sa.Column("time_ns", WHOLE, nullable=False),
        sa.Column("note", WORDS, nullable=False),
        sa.Column("applied", FLAG, nullable=False),
        sa.Column("reason", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("generation", "place"),
        sqlite_strict=True,
    )


def _ref_update() -> None:
    op.create_table(
        "ref_update",
        sa.Column("generation", WHOLE, nullable=False),
        sa.Column("place", WHOLE, nullable=False),
        sa.Column("ref", WORDS, nullable=False),
        sa.Column("old", WORDS, nullable=True),
        sa.Column("new", WORDS, nullable=True),
        sa.PrimaryKeyConstraint("generation", "place", "ref"),
        sqlite_strict=True,
    )
    op.create_index("ref_update_of_ref", "ref_update", ["ref", "generation"])


def _ref() -> None:
    op.create_table(
        "ref",
        sa.Column("name", WORDS, nullable=False),
        sa.Column("space", WORDS, nullable=False),
        sa.Column("commit", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sqlite_strict=True,
    )
    op.create_index("ref_of_commit", "ref", ["commit"])


def _commit() -> None:
    op.create_table(
        "commit",
        sa.Column("digest", WORDS, nullable=False),
        sa.Column("generation", WHOLE, nullable=False),
        sa.Column("author", WORDS, nullable=False),
        sa.Column("message", WORDS, nullable=False),
        sa.Column("time_ns", WHOLE, nullable=False),
        sa.Column("metadata", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("digest"),
        sqlite_strict=True,
    )


def _commit_parent() -> None:
    op.create_table(
        "commit_parent",
        sa.Column("commit", WORDS, nullable=False),
        sa.Column("place", WHOLE, nullable=False),
        sa.Column("parent", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("commit", "place"),
        sqlite_strict=True,
    )
    op.create_index("commit_parent_of_parent", "commit_parent", ["parent"])


def _entry_change() -> None:
    op.create_table(
        "entry_change",
        sa.Column("commit", WORDS, nullable=False),
        sa.Column("path", WORDS, nullable=False),
        sa.Column("kind", WORDS, nullable=False),
        sa.Column("old", WORDS, nullable=True),
        sa.Column("new", WORDS, nullable=True),
        sa.Column("storage", WORDS, nullable=True),
        sa.PrimaryKeyConstraint("commit", "path"),
        sqlite_strict=True,
    )
    op.create_index("entry_change_of_new", "entry_change", ["new"])
    op.create_index("entry_change_of_path", "entry_change", ["path"])


def _entry() -> None:
    op.create_table(
        "entry",
        sa.Column("ref", WORDS, nullable=False),
        sa.Column("path", WORDS, nullable=False),
        sa.Column("kind", WORDS, nullable=False),
        sa.Column("digest", WORDS, nullable=False),
        sa.Column("storage", WORDS, nullable=True),
        sa.PrimaryKeyConstraint("ref", "path"),
        sqlite_strict=True,
    )
    op.create_index("entry_of_digest", "entry", ["digest"])


def _dataset_version() -> None:
    op.create_table(
        "dataset_version",
        sa.Column("digest", WORDS, nullable=False),
        sa.Column("rows", WHOLE, nullable=False),
        sa.Column("deleted", WHOLE, nullable=False),
        sa.Column("column_count", WHOLE, nullable=False),
        sa.Column("fragments", WHOLE, nullable=False),
        sa.Column("stored_bytes", WHOLE, nullable=False),
        sa.Column("raw_bytes", WHOLE, nullable=False),
        sa.Column("properties", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("digest"),
        sqlite_strict=True,
    )


def _dataset_column() -> None:
    op.create_table(
        "dataset_column",
        sa.Column("dataset", WORDS, nullable=False),
        sa.Column("place", WHOLE, nullable=False),
        sa.Column("name", WORDS, nullable=False),
        sa.Column("type", WORDS, nullable=False),
        sa.Column("dtype", WORDS, nullable=True),
        sa.Column("shape", WORDS, nullable=True),
        sa.Column("nulls", WHOLE, nullable=False),
        sa.Column("min", REAL, nullable=True),
        sa.Column("max", REAL, nullable=True),
        sa.Column("min_key", sa.LargeBinary(), nullable=True),
        sa.Column("max_key", sa.LargeBinary(), nullable=True),
        sa.Column("stored_bytes", WHOLE, nullable=False),
        sa.Column("raw_bytes", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("dataset", "place"),
        sqlite_strict=True,
    )
    op.create_index("dataset_column_of_name", "dataset_column", ["name"])


def _model_version() -> None:
    op.create_table(
        "model_version",
        sa.Column("digest", WORDS, nullable=False),
        sa.Column("tensor_count", WHOLE, nullable=False),
        sa.Column("elements", WHOLE, nullable=False),
        sa.Column("bytes", WHOLE, nullable=False),
        sa.Column("architecture", WORDS, nullable=False),
        sa.Column("graph", WORDS, nullable=True),
        sa.Column("metadata", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("digest"),
        sqlite_strict=True,
    )
    op.create_index("model_version_of_architecture", "model_version", ["architecture"])
    op.create_index("model_version_of_graph", "model_version", ["graph"])


def _model_tensor() -> None:
    op.create_table(
        "model_tensor",
        sa.Column("model", WORDS, nullable=False),
        sa.Column("place", WHOLE, nullable=False),
        sa.Column("name", WORDS, nullable=False),
        sa.Column("dtype", WORDS, nullable=False),
        sa.Column("shape", WORDS, nullable=False),
        sa.Column("elements", WHOLE, nullable=False),
        sa.Column("bytes", WHOLE, nullable=False),
        sa.Column("fingerprint", WORDS, nullable=True),
        sa.PrimaryKeyConstraint("model", "place"),
        sqlite_strict=True,
    )
    op.create_index("model_tensor_of_fingerprint", "model_tensor", ["fingerprint"])


def _tensor_piece() -> None:
    op.create_table(
        "tensor_piece",
        sa.Column("model", WORDS, nullable=False),
        sa.Column("place", WHOLE, nullable=False),
        sa.Column("piece", WHOLE, nullable=False),
        sa.Column("bytes", WHOLE, nullable=False),
        sa.Column("fingerprint", WORDS, nullable=True),
        sa.PrimaryKeyConstraint("model", "place", "piece"),
        sqlite_strict=True,
    )
    op.create_index("tensor_piece_of_fingerprint", "tensor_piece", ["fingerprint"])


def _placement() -> None:
    op.create_table(
        "placement",
        sa.Column("model", WORDS, nullable=False),
        sa.Column("stated", WORDS, nullable=False),
        sa.Column("placement", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("model", "stated"),
        sqlite_strict=True,
    )
    op.create_index("placement_of_placement", "placement", ["placement"])


def _tensor_storage() -> None:
    op.create_table(
        "tensor_storage",
        sa.Column("placement", WORDS, nullable=False),
        sa.Column("pack", WORDS, nullable=False),
        sa.Column("member", WHOLE, nullable=False),
        sa.Column("fingerprint", WORDS, nullable=True),
        sa.Column("part", WHOLE, nullable=False),
        sa.Column("codec", WORDS, nullable=False),
        sa.Column("stored_bytes", WHOLE, nullable=False),
        sa.Column("depth", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("placement", "pack", "member"),
        sqlite_strict=True,
    )
    op.create_index("tensor_storage_of_fingerprint", "tensor_storage", ["fingerprint"])
    op.create_index("tensor_storage_of_member", "tensor_storage", ["pack", "member"])


def _member_base() -> None:
    op.create_table(
        "member_base",
        sa.Column("placement", WORDS, nullable=False),
        sa.Column("pack", WORDS, nullable=False),
        sa.Column("member", WHOLE, nullable=False),
        sa.Column("place", WHOLE, nullable=False),
        sa.Column("base_pack", WORDS, nullable=False),
        sa.Column("base_member", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("placement", "pack", "member", "place"),
        sqlite_strict=True,
    )


def _graph() -> None:
    op.create_table(
        "graph",
        sa.Column("digest", WORDS, nullable=False),
        sa.Column("source", WORDS, nullable=False),
        sa.Column("nodes", WHOLE, nullable=False),
        sa.Column("hash", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("digest"),
        sqlite_strict=True,
    )
    op.create_index("graph_of_hash", "graph", ["hash"])


def _node() -> None:
    op.create_table(
        "node",
        sa.Column("graph", WORDS, nullable=False),
        sa.Column("place", WHOLE, nullable=False),
        sa.Column("name", WORDS, nullable=False),
        sa.Column("op", WORDS, nullable=False),
        sa.Column("attributes", WORDS, nullable=False),
        sa.Column("depth", WHOLE, nullable=False),
        sa.Column("prefix", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("graph", "place"),
        sqlite_strict=True,
    )
    op.create_index("node_of_op", "node", ["op"])
    op.create_index("node_of_prefix", "node", ["prefix", "graph"])


def _edge() -> None:
    op.create_table(
        "edge",
        sa.Column("graph", WORDS, nullable=False),
        sa.Column("source", WHOLE, nullable=False),
        sa.Column("target", WHOLE, nullable=False),
        sa.Column("role", WORDS, nullable=False),
        sa.Column("output", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("graph", "source", "target", "role"),
        sqlite_strict=True,
    )
    op.create_index("edge_of_target", "edge", ["graph", "target"])


def _node_parameter() -> None:
    op.create_table(
        "node_parameter",
        sa.Column("graph", WORDS, nullable=False),
        sa.Column("node", WHOLE, nullable=False),
        sa.Column("role", WORDS, nullable=False),
        sa.Column("tensor", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("graph", "node", "role"),
        sqlite_strict=True,
    )


def _metric() -> None:
    op.create_table(
        "metric",
        sa.Column("owner", WORDS, nullable=False),
        sa.Column("place", WHOLE, nullable=False),
        sa.Column("run", WORDS, nullable=True),
        sa.Column("name", WORDS, nullable=False),
        sa.Column("step", WHOLE, nullable=True),
        sa.Column("value", REAL, nullable=True),
        sa.Column("kind", WORDS, nullable=False),
        sa.Column("time_ns", WHOLE, nullable=True),
        sa.PrimaryKeyConstraint("owner", "place"),
        sqlite_strict=True,
    )
    op.create_index("metric_of_name", "metric", ["name", "value"])
    op.create_index("metric_of_run", "metric", ["run", "name", "step"])


def _parameter() -> None:
    op.create_table(
        "parameter",
        sa.Column("owner", WORDS, nullable=False),
        sa.Column("name", WORDS, nullable=False),
        sa.Column("value", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("owner", "name"),
        sqlite_strict=True,
    )
    op.create_index("parameter_of_name", "parameter", ["name", "value"])


def _run() -> None:
    op.create_table(
        "run",
        sa.Column("digest", WORDS, nullable=False),
        sa.Column("id", WORDS, nullable=False),
        sa.Column("name", WORDS, nullable=False),
        sa.Column("status", WORDS, nullable=False),
        sa.Column("started_ns", WHOLE, nullable=False),
        sa.Column("written_ns", WHOLE, nullable=False),
        sa.Column("due_ns", WHOLE, nullable=False),
        sa.Column("ended_ns", WHOLE, nullable=True),
        sa.Column("error", WORDS, nullable=True),
        sa.Column("author", WORDS, nullable=False),
        sa.Column("code_commit", WORDS, nullable=True),
        sa.Column("code_dirty", FLAG, nullable=True),
        sa.Column("environment", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("digest"),
        sqlite_strict=True,
    )
    op.create_index("run_of_id", "run", ["id"])
    op.create_index("run_of_name", "run", ["name"])


def _run_metric() -> None:
    op.create_table(
        "run_metric",
        sa.Column("run", WORDS, nullable=False),
        sa.Column("name", WORDS, nullable=False),
        sa.Column("points", WHOLE, nullable=False),
        sa.Column("not_finite", WHOLE, nullable=False),
        sa.Column("last_step", WHOLE, nullable=False),
        sa.Column("last", REAL, nullable=True),
        sa.Column("last_kind", WORDS, nullable=False),
        sa.Column("min", REAL, nullable=True),
        sa.Column("min_step", WHOLE, nullable=True),
        sa.Column("max", REAL, nullable=True),
        sa.Column("max_step", WHOLE, nullable=True),
        sa.PrimaryKeyConstraint("run", "name"),
        sqlite_strict=True,
    )
    op.create_index("run_metric_of_name", "run_metric", ["name", "min"])


def _lineage_edge() -> None:
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
        # Walks of lineage go by numbers: 8 bytes of a hash of each end stand in the indexes.
        sa.Column("subject_hash", WHOLE, nullable=False),
        sa.Column("origin_hash", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("stated_by", "place"),
        sqlite_strict=True,
    )
    op.create_index("lineage_edge_of_origin", "lineage_edge", ["origin_hash", "subject_hash"])
    op.create_index("lineage_edge_of_subject", "lineage_edge", ["subject_hash", "origin_hash"])


def _view_version() -> None:
    op.create_table(
        "view_version",
        sa.Column("digest", WORDS, nullable=False),
        sa.Column("sql", WORDS, nullable=False),
        sa.Column("dataset", WORDS, nullable=False),
        sa.Column("dataset_path", WORDS, nullable=True),
        sa.Column("commit", WORDS, nullable=True),
        sa.Column("rows", WHOLE, nullable=False),
        sa.PrimaryKeyConstraint("digest"),
        sqlite_strict=True,
    )


def _registered_model() -> None:
    op.create_table(
        "registered_model",
        sa.Column("name", WORDS, nullable=False),
        sa.Column("description", WORDS, nullable=False),
        sa.Column("metadata", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("name"),
        sqlite_strict=True,
    )


def _registered_version() -> None:
    op.create_table(
        "registered_version",
        sa.Column("model", WORDS, nullable=False),
        sa.Column("version", WHOLE, nullable=False),
        sa.Column("commit", WORDS, nullable=False),
        sa.Column("path", WORDS, nullable=False),
        sa.Column("digest", WORDS, nullable=False),
        sa.Column("description", WORDS, nullable=False),
        sa.Column("metadata", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("model", "version"),
        sqlite_strict=True,
    )
    op.create_index("registered_version_of_digest", "registered_version", ["digest"])


def _registered_alias() -> None:
    op.create_table(
        "registered_alias",
        sa.Column("model", WORDS, nullable=False),
        sa.Column("alias", WORDS, nullable=False),
        sa.Column("version", WHOLE, nullable=False),
        sa.Column("commit", WORDS, nullable=False),
        sa.PrimaryKeyConstraint("model", "alias"),
        sqlite_strict=True,
    )


_TABLES = {
    "cursor": _cursor,
    "log_record": _log_record,
    "ref_update": _ref_update,
    "ref": _ref,
    "commit": _commit,
    "commit_parent": _commit_parent,
    "entry_change": _entry_change,
    "entry": _entry,
    "dataset_version": _dataset_version,
    "dataset_column": _dataset_column,
    "model_version": _model_version,
    "model_tensor": _model_tensor,
    "tensor_piece": _tensor_piece,
    "placement": _placement,
    "tensor_storage": _tensor_storage,
    "member_base": _member_base,
    "graph": _graph,
    "node": _node,
    "edge": _edge,
    "node_parameter": _node_parameter,
    "metric": _metric,
    "parameter": _parameter,
    "run": _run,
    "run_metric": _run_metric,
    "lineage_edge": _lineage_edge,
    "view_version": _view_version,
    "registered_model": _registered_model,
    "registered_version": _registered_version,
    "registered_alias": _registered_alias,
}
