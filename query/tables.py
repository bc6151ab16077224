"""Which tables does the catalog have?

All rows are functions of what a repository holds. What a commit says hangs on the commit's digest,
what a dataset or a model is on the digest of its root or manifest: so a thing that many commits
hold has its rows once, and they go when no commit in the catalog has it any more.

Digests are 64 hex digits, times nanoseconds since 1970 in UTC, JSON is text with sorted names.
A number that may be NaN or infinite has `kind` beside it: finite, nan, +inf or -inf; its value is
null unless it is finite. `place` counts from 0 in the order that the thing itself has.

The revisions in `migrations/` make these tables; the tests hold the two equal.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Column, Index, MetaData, Table
from sqlalchemy.types import TypeEngine

from tensorrepo.query.dialects import Bytes, Flag, Real, Whole, Words

METADATA: Final = MetaData()

FINITE, NAN, PLUS_INFINITY, MINUS_INFINITY = "finite", "nan", "+inf", "-inf"


def _key(name: str, kind: type[TypeEngine[Any]] = Words) -> Column[Any]:
    return Column(name, kind(), primary_key=True, autoincrement=False)


def _some(name: str, kind: type[TypeEngine[Any]] = Words) -> Column[Any]:
    return Column(name, kind(), nullable=False)


def _maybe(name: str, kind: type[TypeEngine[Any]] = Words) -> Column[Any]:
    return Column(name, kind(), nullable=True)


def _table(name: str, *parts: Column[Any] | Index) -> Table:
    return Table(name, METADATA, *parts, sqlite_strict=True)


# ------------------------------------------------------------------------------ the log

# One row, `id` 1: of which repository, and after which record, the catalog is a picture.
cursor = _table(
    "cursor",
    _key("id", Whole),
    _some("repository"),
    _some("generation", Whole),
    _some("digest"),  # of that record's bytes: another one there means another past
    _some("shallow"),  # JSON list of the commits whose parents the repository did not have
)

log_record = _table(
    "log_record",
    _key("generation", Whole),
    _key("place", Whole),  # of the entry in its record
    _some("txn"),
    _some("kind"),
    _some("actor"),
    _some("time_ns", Whole),
    _some("note"),
    _some("applied", Flag),
    _some("reason"),  # why it did not
)

# The reflog: what each applied entry did to each ref. Histories of aliases come from here.
ref_update = _table(
    "ref_update",
    _key("generation", Whole),
    _key("place", Whole),
    _key("ref"),
    _maybe("old"),
    _maybe("new"),
    Index("ref_update_of_ref", "ref", "generation"),
)

ref = _table(
    "ref",
    _key("name"),  # the full one: heads/main
    _some("space"),  # what stands before the first slash: heads, tags, runs, ...
    _some("commit"),
    Index("ref_of_commit", "commit"),
)

# ------------------------------------------------------------------------------ commits

commit = _table(
    "commit",
    _key("digest"),
    _some("generation", Whole),  # 1 + the largest parent's
    _some("author"),
    _some("message"),
    _some("time_ns", Whole),
    _some("metadata"),  # JSON
)

commit_parent = _table(
    "commit_parent",
    _key("commit"),
    _key("place", Whole),
    _some("parent"),
    Index("commit_parent_of_parent", "parent"),
)

# What a commit changed against its first parent. A row with `new` is the version of `path` that
# this commit made; every path of every commit goes back to one such row.
entry_change = _table(
    "entry_change",
    _key("commit"),
    _key("path"),
    _some("kind"),  # of the entry: dataset, model, blob, ...
    _maybe("old"),
    _maybe("new"),
    _maybe("storage"),  # the placement of `new` as the tree names it, see `placement`
    Index("entry_change_of_path", "path"),
    Index("entry_change_of_new", "new"),
)

# The whole tree that each ref has now.
entry = _table(
    "entry",
    _key("ref"),
    _key("path"),
    _some("kind"),
    _some("digest"),
    _maybe("storage"),
    Index("entry_of_digest", "digest"),
)

# ------------------------------------------------------------------------------ datasets

dataset_version = _table(
    "dataset_version",
    _key("digest"),
    _some("rows", Whole),  # those that are there
    _some("deleted", Whole),
    _some("column_count", Whole),
    _some("fragments", Whole),
    _some("stored_bytes", Whole),
    _some("raw_bytes", Whole),
    _some("properties"),  # JSON
)

dataset_column = _table(
    "dataset_column",
    _key("dataset"),
    _key("place", Whole),
    _some("name"),
    _some("type"),  # in words: "tensor<uint8>[28, 28]"
    _maybe("dtype"),  # of the elements
    _maybe("shape"),  # of a row: JSON list, null where unknown
    _some("nulls", Whole),
    _maybe("min", Real),  # as a number; rounded to 64 bits where an integer needs more
    _maybe("max", Real),
    _maybe("min_key", Bytes),  # 8 bytes, big-endian: ordered as the values are, exactly
    _maybe("max_key", Bytes),
    _some("stored_bytes", Whole),
    _some("raw_bytes", Whole),
    Index("dataset_column_of_name", "name"),
)

# ------------------------------------------------------------------------------ models

model_version = _table(
    "model_version",
    _key("digest"),
    _some("tensor_count", Whole),
    _some("elements", Whole),
    _some("bytes", Whole),
    _some("architecture"),  # fingerprint of names, shapes and types
    _maybe("graph"),  # key of `graph`
    _some("metadata"),  # JSON
    Index("model_version_of_architecture", "architecture"),
    Index("model_version_of_graph", "graph"),
)

model_tensor = _table(
    "model_tensor",
    _key("model"),
    _key("place", Whole),
    _some("name"),
    _some("dtype"),
    _some("shape"),  # JSON list
    _some("elements", Whole),
    _some("bytes", Whole),
    _maybe("fingerprint"),  # null for one stored inline, or in pieces: see `tensor_piece`
    Index("model_tensor_of_fingerprint", "fingerprint"),
)

# The pieces of tensors that were stored in several.
tensor_piece = _table(
    "tensor_piece",
    _key("model"),
    _key("place", Whole),  # of the tensor
    _key("piece", Whole),
    _some("bytes", Whole),
    _maybe("fingerprint"),
    Index("tensor_piece_of_fingerprint", "fingerprint"),
)

# Where the tensors of a model lie now: `stated` is the placement that trees name, `placement` the
# one that took its place by repacking, or the same.
placement = _table(
    "placement",
    _key("model"),
    _key("stated"),
    _some("placement"),
    Index("placement_of_placement", "placement"),
)

# The members of packs that a placement names: those that hold a tensor (`part` counts them within
# it), and those that are bases of such and no tensor of the model (no fingerprint).
tensor_storage = _table(
    "tensor_storage",
    _key("placement"),
    _key("pack"),
    _key("member", Whole),
    _maybe("fingerprint"),
    _some("part", Whole),
    _some("codec"),
    _some("stored_bytes", Whole),
    _some("depth", Whole),  # bases that a read of it goes through
    Index("tensor_storage_of_fingerprint", "fingerprint"),
    Index("tensor_storage_of_member", "pack", "member"),
)

# What a member is a delta of: another member of the same placement.
member_base = _table(
    "member_base",
    _key("placement"),
    _key("pack"),
    _key("member", Whole),
    _key("place", Whole),
    _some("base_pack"),
    _some("base_member", Whole),
)

# ------------------------------------------------------------------------------ architecture

# Models of one architecture share its rows.
graph = _table(
    "graph",
    _key("digest"),  # of the graph's bytes
    _some("source"),  # export, fx, onnx, names or given
    _some("nodes", Whole),
    _some("hash"),  # of the architecture, whatever its nodes are called
    Index("graph_of_hash", "hash"),
)

node = _table(
    "node",
    _key("graph"),
    _key("place", Whole),  # behind those that it takes from
    _some("name"),
    _some("op"),
    _some("attributes"),  # JSON
    _some("depth", Whole),  # of the longest way from an input
    _some("prefix"),  # hash of all that leads to it
    Index("node_of_prefix", "prefix", "graph"),
    Index("node_of_op", "op"),
)

# By places of nodes.
edge = _table(
    "edge",
    _key("graph"),
    _key("source", Whole),
    _key("target", Whole),
    _key("role"),  # the argument of `target`
    _some("output", Whole),  # of `source`
    Index("edge_of_target", "graph", "target"),
)

node_parameter = _table(
    "node_parameter",
    _key("graph"),
    _key("node", Whole),
    _key("role"),
    _some("tensor"),
)

# ------------------------------------------------------------------------------ runs and lineage

# `owner` is the digest of a model or of a run's document; `run` the name of the run, if any.
metric = _table(
    "metric",
    _key("owner"),
    _key("place", Whole),
    _maybe("run"),
    _some("name"),
    _maybe("step", Whole),
    _maybe("value", Real),
    _some("kind"),
    _maybe("time_ns", Whole),
    Index("metric_of_name", "name", "value"),
    Index("metric_of_run", "run", "name", "step"),
)

parameter = _table(
    "parameter",
    _key("owner"),
    _key("name"),
    _some("value"),  # JSON
    Index("parameter_of_name", "name", "value"),
)

run = _table(
    "run",
    _key("digest"),  # of the document
    _some("id"),  # stays the same when the document is written anew: lineage names runs by it
    _some("name"),
    _some("status"),  # running, finished, failed or interrupted
    _some("started_ns", Whole),
    _some("written_ns", Whole),
    _some("due_ns", Whole),  # while it runs it is written anew before this
    _maybe("ended_ns", Whole),
    _maybe("error"),
    _some("author"),
    _maybe("code_commit"),
    _maybe("code_dirty", Flag),
    _some("environment"),  # JSON
    Index("run_of_name", "name"),
    Index("run_of_id", "id"),
)

# What became of each metric of a run; the points themselves stay in the repository. The smallest
# and the largest are of finite values. `metric` has the last one, too.
run_metric = _table(
    "run_metric",
    _key("run"),  # digest of the document
    _key("name"),
    _some("points", Whole),
    _some("not_finite", Whole),
    _some("last_step", Whole),
    _maybe("last", Real),
    _some("last_kind"),
    _maybe("min", Real),
    _maybe("min_step", Whole),
    _maybe("max", Real),
    _maybe("max_step", Whole),
    Index("run_metric_of_name", "name", "min"),
)

# "`subject` was <relation> `origin`", as the object `stated_by` says; see formats/lineage.py. What
# has no digest is known by its path. `subject_hash` and `origin_hash` are `edges.hash_of` the two
# ends: a walk goes by them, as an index of whole digests is five times as large.
lineage_edge = _table(
    "lineage_edge",
    _key("stated_by"),
    _key("place", Whole),
    _some("subject_kind"),
    _some("subject"),
    _some("relation"),
    _some("origin_kind"),
    _some("origin_path"),
    _maybe("origin"),
    _maybe("origin_commit"),
    _some("detail"),  # JSON
    _some("subject_hash", Whole),
    _some("origin_hash", Whole),
    Index("lineage_edge_of_subject", "subject_hash", "origin_hash"),
    Index("lineage_edge_of_origin", "origin_hash", "subject_hash"),
)

# ------------------------------------------------------------------------------ views

view_version = _table(
    "view_version",
    _key("digest"),
    _some("sql"),
    _some("dataset"),  # the version of the dataset that it was made of
    _maybe("dataset_path"),
    _maybe("commit"),
    _some("rows", Whole),
)

# ------------------------------------------------------------------------------ registry

registered_model = _table(
    "registered_model",
    _key("name"),
    _some("description"),
    _some("metadata"),  # JSON
)

registered_version = _table(
    "registered_version",
    _key("model"),
    _key("version", Whole),
    _some("commit"),
    _some("path"),
    _some("digest"),
    _some("description"),
    _some("metadata"),  # JSON
    Index("registered_version_of_digest", "digest"),
)

registered_alias = _table(
    "registered_alias",
    _key("model"),
    _key("alias"),
    _some("version", Whole),
    _some("commit"),
)
