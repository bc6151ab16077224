"""Tables of the catalog, and their column types in SQLite and PostgreSQL.

All rows are functions of what a repository holds. What a commit says hangs on the commit's digest,
what a dataset or a model is on the digest of its root or manifest: so a thing that many commits
hold has its rows once, and they go when no commit in the catalog has it any more.

Digests are 64 hex digits, times nanoseconds since 1970 in UTC, JSON is text with sorted names.
A number that may be NaN or infinite has `kind` beside it: finite, nan, +inf or -inf; its value is
null unless it is finite. `place` counts from 0 in the order that the thing itself has.

The revisions in `migrations/` make these tables; the tests hold the two equal.

SQLite has five types and orders text by its bytes; PostgreSQL has many and orders text as its
locale does. Each type here is spelled for both, so that a query gives the same rows in the same
order on either.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.postgresql import TEXT
from sqlalchemy.types import TypeDecorator, TypeEngine

SQLITE: Final = "sqlite"
POSTGRESQL: Final = "postgresql"
NUL_SHOWN: Final = "␀"  # PostgreSQL's text holds any character but NUL


class TextColumn(TypeDecorator[str]):
    """Text, ordered and compared by its code points. NUL is kept as the sign for it."""

    impl = Text
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        if dialect.name == POSTGRESQL:
            return TEXT(collation="C")  # as it is: the driver's own kind of text is VARCHAR
        return dialect.type_descriptor(Text())

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        return None if value is None else shown(value)


class Flag(TypeDecorator[bool]):
    """True or false; a number in SQLite, which has no truth."""

    impl = Boolean
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Integer() if dialect.name == SQLITE else Boolean())

    def process_bind_param(self, value: bool | None, dialect: Dialect) -> bool | int | None:
        return int(value) if value is not None and dialect.name == SQLITE else value

    def process_result_value(self, value: Any, dialect: Dialect) -> bool | None:  # noqa: ARG002
        return None if value is None else bool(value)


TEXT_TYPE: Final = TextColumn()
WHOLE: Final = BigInteger().with_variant(Integer(), SQLITE)  # 64 bits with a sign
FLAG: Final = Flag()
# Finite numbers of 64 bits: what may be NaN or infinite has a column `kind` beside it.
REAL: Final[TypeEngine[float]] = Double().with_variant(sqlite.REAL(), SQLITE)
BYTES: Final = LargeBinary()


def shown(text: str) -> str:
    """`text` as both databases can hold it."""
    return text.replace("\0", NUL_SHOWN) if "\0" in text else text


METADATA: Final = MetaData()

FINITE, NAN, PLUS_INFINITY, MINUS_INFINITY = "finite", "nan", "+inf", "-inf"


def _key(name: str, kind: TypeEngine[Any] = TEXT_TYPE) -> Column[Any]:
    return Column(name, kind, primary_key=True, autoincrement=False)


def _some(name: str, kind: TypeEngine[Any] = TEXT_TYPE) -> Column[Any]:
    return Column(name, kind, nullable=False)


def _maybe(name: str, kind: TypeEngine[Any] = TEXT_TYPE) -> Column[Any]:
    return Column(name, kind, nullable=True)


def _table(name: str, *parts: Column[Any] | Index) -> Table:
    return Table(name, METADATA, *parts, sqlite_strict=True)


# ------------------------------------------------------------------------------ the log

# One row, `id` 1: of which repository, and after which record, the catalog is a picture.
cursor = _table(
    "cursor",
    _key("id", WHOLE),
    _some("repository"),
    _some("generation", WHOLE),
    _some("digest"),  # of that record's bytes: another one there means another past
    _some("shallow"),  # JSON list of the commits whose parents the repository did not have
)

log_record = _table(
    "log_record",
    _key("generation", WHOLE),
    _key("place", WHOLE),  # of the entry in its record
    _some("txn"),
    _some("kind"),
    _some("actor"),
    _some("time_ns", WHOLE),
    _some("note"),
    _some("applied", FLAG),
    _some("reason"),  # why it did not
)

# The reflog: what each applied entry did to each ref. Histories of aliases come from here.
ref_update = _table(
    "ref_update",
    _key("generation", WHOLE),
    _key("place", WHOLE),
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
    _some("generation", WHOLE),  # 1 + the largest parent's
    _some("author"),
    _some("message"),
    _some("time_ns", WHOLE),
    _some("metadata"),  # JSON
)

commit_parent = _table(
    "commit_parent",
    _key("commit"),
    _key("place", WHOLE),
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
    _some("rows", WHOLE),  # those that are there
    _some("deleted", WHOLE),
    _some("column_count", WHOLE),
    _some("fragments", WHOLE),
    _some("stored_bytes", WHOLE),
    _some("raw_bytes", WHOLE),
    _some("properties"),  # JSON
)

dataset_column = _table(
    "dataset_column",
    _key("dataset"),
    _key("place", WHOLE),
    _some("name"),
    _some("type"),  # in words: "tensor<uint8>[28, 28]"
    _maybe("dtype"),  # of the elements
    _maybe("shape"),  # of a row: JSON list, null where unknown
    _some("nulls", WHOLE),
    _maybe("min", REAL),  # as a number; rounded to 64 bits where an integer needs more
    _maybe("max", REAL),
    _maybe("min_key", BYTES),  # 8 bytes, big-endian: ordered as the values are, exactly
    _maybe("max_key", BYTES),
    _some("stored_bytes", WHOLE),
    _some("raw_bytes", WHOLE),
    Index("dataset_column_of_name", "name"),
)

# ------------------------------------------------------------------------------ models

model_version = _table(
    "model_version",
    _key("digest"),
    _some("tensor_count", WHOLE),
    _some("elements", WHOLE),
    _some("bytes", WHOLE),
    _some("architecture"),  # fingerprint of names, shapes and types
    _maybe("graph"),  # key of `graph`
    _some("metadata"),  # JSON
    Index("model_version_of_architecture", "architecture"),
    Index("model_version_of_graph", "graph"),
)

model_tensor = _table(
    "model_tensor",
    _key("model"),
    _key("place", WHOLE),
    _some("name"),
    _some("dtype"),
    _some("shape"),  # JSON list
    _some("elements", WHOLE),
    _some("bytes", WHOLE),
    _maybe("fingerprint"),  # null for one stored inline, or in pieces: see `tensor_piece`
    Index("model_tensor_of_fingerprint", "fingerprint"),
)

# The pieces of tensors that were stored in several.
tensor_piece = _table(
    "tensor_piece",
    _key("model"),
    _key("place", WHOLE),  # of the tensor
    _key("piece", WHOLE),
    _some("bytes", WHOLE),
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
    _key("member", WHOLE),
    _maybe("fingerprint"),
    _some("part", WHOLE),
    _some("codec"),
    _some("stored_bytes", WHOLE),
    _some("depth", WHOLE),  # bases that a read of it goes through
    Index("tensor_storage_of_fingerprint", "fingerprint"),
    Index("tensor_storage_of_member", "pack", "member"),
)

# What a member is a delta of: another member of the same placement.
member_base = _table(
    "member_base",
    _key("placement"),
    _key("pack"),
    _key("member", WHOLE),
    _key("place", WHOLE),
    _some("base_pack"),
    _some("base_member", WHOLE),
)

# ------------------------------------------------------------------------------ architecture

# Models of one architecture share its rows.
graph = _table(
    "graph",
    _key("digest"),  # of the graph's bytes
    _some("source"),  # export, fx, onnx, names or given
    _some("nodes", WHOLE),
    _some("hash"),  # of the architecture, whatever its nodes are called
    Index("graph_of_hash", "hash"),
)

node = _table(
    "node",
    _key("graph"),
    _key("place", WHOLE),  # behind those that it takes from
    _some("name"),
    _some("op"),
    _some("attributes"),  # JSON
    _some("depth", WHOLE),  # of the longest way from an input
    _some("prefix"),  # hash of all that leads to it
    Index("node_of_prefix", "prefix", "graph"),
    Index("node_of_op", "op"),
)

# By places of nodes.
edge = _table(
    "edge",
    _key("graph"),
    _key("source", WHOLE),
    _key("target", WHOLE),
    _key("role"),  # the argument of `target`
    _some("output", WHOLE),  # of `source`
    Index("edge_of_target", "graph", "target"),
)

node_parameter = _table(
    "node_parameter", _key("graph"), _key("node", WHOLE), _key("role"), _some("tensor")
)

# ------------------------------------------------------------------------------ runs and lineage

# `owner` is the digest of a model or of a run's document; `run` the name of the run, if any.
metric = _table(
    "metric",
    _key("owner"),
    _key("place", WHOLE),
    _maybe("run"),
    _some("name"),
    _maybe("step", WHOLE),
    _maybe("value", REAL),
    _some("kind"),
    _maybe("time_ns", WHOLE),
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
    _some("started_ns", WHOLE),
    _some("written_ns", WHOLE),
    _some("due_ns", WHOLE),  # while it runs it is written anew before this
    _maybe("ended_ns", WHOLE),
    _maybe("error"),
    _some("author"),
    _maybe("code_commit"),
    _maybe("code_dirty", FLAG),
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
    _some("points", WHOLE),
    _some("not_finite", WHOLE),
    _some("last_step", WHOLE),
    _maybe("last", REAL),
    _some("last_kind"),
    _maybe("min", REAL),
    _maybe("min_step", WHOLE),
    _maybe("max", REAL),
    _maybe("max_step", WHOLE),
    Index("run_metric_of_name", "name", "min"),
)

# "`subject` was <relation> `origin`", as the object `stated_by` says; see
# formats/common/provenance.py. What has no digest is known by its path. `subject_hash` and
# `origin_hash` are `edges.hash_of` the two ends: a walk goes by them, as an index of whole digests
# is five times as large.
lineage_edge = _table(
    "lineage_edge",
    _key("stated_by"),
    _key("place", WHOLE),
    _some("subject_kind"),
    _some("subject"),
    _some("relation"),
    _some("origin_kind"),
    _some("origin_path"),
    _maybe("origin"),
    _maybe("origin_commit"),
    _some("detail"),  # JSON
    _some("subject_hash", WHOLE),
    _some("origin_hash", WHOLE),
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
    _some("rows", WHOLE),
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
    _key("version", WHOLE),
    _some("commit"),
    _some("path"),
    _some("digest"),
    _some("description"),
    _some("metadata"),  # JSON
    Index("registered_version_of_digest", "digest"),
)

registered_alias = _table(
    "registered_alias", _key("model"), _key("alias"), _some("version", WHOLE), _some("commit")
)
