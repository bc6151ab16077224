"""First tables of the catalog.

It is called 0003 because tables of 0001 and 0002, which no release had, are `revisions.DROPPED`.

Revision ID: 0003
Revises:
"""

from __future__ import annotations

import re
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0003"
down_revision = None
branch_labels = None
depends_on = None

# Each type as both databases spell it: strict tables of SQLite know few names.
_TYPES: dict[str, sa.types.TypeEngine[Any]] = {
    "text": sa.Text().with_variant(postgresql.TEXT(collation="C"), "postgresql"),
    "whole": sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
    "flag": sa.Boolean().with_variant(sa.Integer(), "sqlite"),
    "real": sa.Double().with_variant(sa.REAL(), "sqlite"),
    "bytes": sa.LargeBinary(),
}
_COLUMN = re.compile(r"(?P<key>\*?)(?P<name>\w+)(?::(?P<type>\w+))?(?P<nullable>\??)")

# Columns of each table in their order: ``*`` stands before those of the primary key, ``?`` behind
# those that may be null, and the type, unless it is text, behind a colon.
_TABLES = {
    "cursor": "*id:whole repository generation:whole digest shallow",
    "log_record": (
        "*generation:whole *place:whole txn kind actor time_ns:whole note applied:flag reason"
    ),
    "ref_update": "*generation:whole *place:whole *ref old? new?",
    "ref": "*name space commit",
    "commit": "*digest generation:whole author message time_ns:whole metadata",
    "commit_parent": "*commit *place:whole parent",
    "entry_change": "*commit *path kind old? new? storage?",
    "entry": "*ref *path kind digest storage?",
    "dataset_version": (
        "*digest rows:whole deleted:whole column_count:whole fragments:whole stored_bytes:whole "
        "raw_bytes:whole properties"
    ),
    "dataset_column": (
        "*dataset *place:whole name type dtype? shape? nulls:whole min:real? max:real? "
        "min_key:bytes? max_key:bytes? stored_bytes:whole raw_bytes:whole"
    ),
    "model_version": (
        "*digest tensor_count:whole elements:whole bytes:whole architecture graph? metadata"
    ),
    "model_block": "*model *place:whole block",
    "block_tensor": "*block *place:whole name dtype shape elements:whole bytes:whole fingerprint?",
    "block_piece": "*block *place:whole *piece:whole bytes:whole fingerprint?",
    "placement": "*model *stated placement",
    "placement_block": "*placement *pack *member:whole block",
    "block_member": (
        "*block *member:whole fingerprint? part:whole codec stored_bytes:whole depth:whole"
    ),
    "block_base": "*block *member:whole *place:whole base_pack base_member:whole",
    "graph": "*digest source nodes:whole hash",
    "node": "*graph *place:whole name op attributes depth:whole prefix",
    "edge": "*graph *source:whole *target:whole *role output:whole",
    "node_parameter": "*graph *node:whole *role tensor",
    "metric": "*owner *place:whole run? name step:whole? value:real? kind time_ns:whole?",
    "parameter": "*owner *name value",
    "run": (
        "*digest id name status started_ns:whole written_ns:whole due_ns:whole ended_ns:whole? "
        "error? author code_commit? code_dirty:flag? environment"
    ),
    "run_metric": (
        "*run *name points:whole not_finite:whole last_step:whole last:real? last_kind "
        "min:real? min_step:whole? max:real? max_step:whole?"
    ),
    "lineage_edge": (
        "*stated_by *place:whole subject_kind subject relation origin_kind origin_path origin? "
        "origin_commit? detail subject_hash:whole origin_hash:whole"
    ),
    "view_version": "*digest sql dataset dataset_path? commit? rows:whole",
    "registered_model": "*name description metadata",
    "registered_version": "*model *version:whole commit path digest description metadata",
    "registered_alias": "*model *alias version:whole commit",
}
# Columns of each index, whose name begins with that of its table.
_INDEXES = {
    "ref_update_of_ref": "ref generation", "ref_of_commit": "commit",
    "commit_parent_of_parent": "parent", "entry_change_of_new": "new",
    "entry_change_of_path": "path", "entry_of_digest": "digest", "dataset_column_of_name": "name",
    "model_version_of_architecture": "architecture", "model_version_of_graph": "graph",
    "model_block_of_block": "block", "block_tensor_of_fingerprint": "fingerprint",
    "block_piece_of_fingerprint": "fingerprint", "placement_block_of_block": "block",
    "placement_of_placement": "placement", "graph_of_hash": "hash", "node_of_op": "op",
    "node_of_prefix": "prefix graph", "edge_of_target": "graph target",
    "metric_of_name": "name value", "metric_of_run": "run name step",
    "parameter_of_name": "name value", "run_of_id": "id", "run_of_name": "name",
    "run_metric_of_name": "name min", "lineage_edge_of_origin": "origin_hash subject_hash",
    "lineage_edge_of_subject": "subject_hash origin_hash",
    "registered_version_of_digest": "digest",
}  # fmt: skip


def upgrade() -> None:
    for table, columns in _TABLES.items():
        parts = [_COLUMN.fullmatch(column) for column in columns.split()]
        _create(table, [part for part in parts if part is not None])
    for index, columns in _INDEXES.items():
        op.create_index(index, index.partition("_of_")[0], columns.split())


def downgrade() -> None:
    for table in reversed(_TABLES):
        op.drop_table(table)


def _create(table: str, columns: list[re.Match[str]]) -> None:
    op.create_table(
        table,
        *(
            sa.Column(each["name"], _TYPES[each["type"] or "text"], nullable=bool(each["nullable"]))
            for each in columns
        ),
        sa.PrimaryKeyConstraint(*(each["name"] for each in columns if each["key"])),
        sqlite_strict=True,
    )
