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

import re
from collections.abc import Mapping
from typing import Any, Final

from sqlalchemy import (
    TEXT,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Subquery,
    Table,
    Text,
    select,
    type_coerce,
)
from sqlalchemy.dialects import sqlite
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


_TYPES: Final[dict[str, TypeEngine[Any]]] = {
    "text": TEXT_TYPE, "whole": WHOLE, "flag": FLAG, "real": REAL, "bytes": BYTES,
}  # fmt: skip
_COLUMN: Final = re.compile(r"(?P<key>\*?)(?P<name>\w+)(?::(?P<type>\w+))?(?P<nullable>\??)")


def _table(name: str, columns: str, **indexes: str) -> Table:
    """A table, and its indexes: ``<name>_of_...``, each with its columns.

    ``*`` stands before the columns of the primary key, ``?`` behind those that may be null, and the
    type, unless it is text, behind a colon.
    """
    parts = [
        *map(_column, columns.split()),
        *(Index(f"{name}_{of}", *within.split()) for of, within in indexes.items()),
    ]
    return Table(name, METADATA, *parts, sqlite_strict=True)


def _column(text: str) -> Column[Any]:
    told = _COLUMN.fullmatch(text)
    assert told is not None, text
    kind = _TYPES[told["type"] or "text"]
    if told["key"]:
        return Column(told["name"], kind, primary_key=True, autoincrement=False)
    return Column(told["name"], kind, nullable=bool(told["nullable"]))


# ------------------------------------------------------------------------------ the log

# One row, `id` 1: of which repository, and after which record, the catalog is a picture.
# `digest` of that record's bytes: another one there means another past; `shallow` is JSON list of
# the commits whose parents the repository did not have.
cursor = _table("cursor", "*id:whole repository generation:whole digest shallow")

# `place` of the entry in its record; `reason`: why it did not.
log_record = _table(
    "log_record",
    "*generation:whole *place:whole txn kind actor time_ns:whole note applied:flag reason",
)

# The reflog: what each applied entry did to each ref. Histories of aliases come from here.
ref_update = _table(
    "ref_update", "*generation:whole *place:whole *ref old? new?", of_ref="ref generation"
)

# `name`: the full one: heads/main; `space`: what stands before the first slash: heads, tags,
# runs, ....
ref = _table("ref", "*name space commit", of_commit="commit")

# ------------------------------------------------------------------------------ commits

# `generation`: 1 + the largest parent's; `metadata` is JSON.
commit = _table("commit", "*digest generation:whole author message time_ns:whole metadata")

commit_parent = _table("commit_parent", "*commit *place:whole parent", of_parent="parent")

# What a commit changed against its first parent. A row with `new` is the version of `path` that
# this commit made; every path of every commit goes back to one such row.
# `kind` of the entry: dataset, model, blob, ...; `storage`: the placement of `new` as the tree
# names it, see `placement`.
entry_change = _table(
    "entry_change", "*commit *path kind old? new? storage?", of_path="path", of_new="new"
)

# The whole tree that each ref has now.
entry = _table("entry", "*ref *path kind digest storage?", of_digest="digest")

# ------------------------------------------------------------------------------ datasets

# `rows`: those that are there; `properties` is JSON.
dataset_version = _table(
    "dataset_version",
    "*digest rows:whole deleted:whole column_count:whole fragments:whole stored_bytes:whole "
    "raw_bytes:whole properties",
)

# `type`: in words: "tensor<uint8>[28, 28]"; `dtype` of the elements; `shape` of a row: JSON list,
# null where unknown; `min`: as a number; rounded to 64 bits where an integer needs more;
# `min_key`: 8 bytes, big-endian: ordered as the values are, exactly.
dataset_column = _table(
    "dataset_column",
    "*dataset *place:whole name type dtype? shape? nulls:whole min:real? max:real? "
    "min_key:bytes? max_key:bytes? stored_bytes:whole raw_bytes:whole",
    of_name="name",
)

# ------------------------------------------------------------------------------ models

# `architecture`: fingerprint of names, shapes and types; `graph`: key of `graph`; `metadata` is
# JSON.
model_version = _table(
    "model_version",
    "*digest tensor_count:whole elements:whole bytes:whole architecture graph? metadata",
    of_architecture="architecture",
    of_graph="graph",
)

# Versions of a model have most of their tensors alike, and many models the same layers: their rows
# stand in blocks, each of which is there once (docs/design/088). `block` is the hash of its rows.
# `place`: of the block's first tensor among those of the model.
model_block = _table("model_block", "*model *place:whole block", of_block="block")

# `place` within the block; `shape` is JSON list; `fingerprint`: null for one stored inline, or in
# pieces: see `block_piece`.
block_tensor = _table(
    "block_tensor",
    "*block *place:whole name dtype shape elements:whole bytes:whole fingerprint?",
    of_fingerprint="fingerprint",
)

# The pieces of tensors that were stored in several.
# `place` of the tensor.
block_piece = _table(
    "block_piece",
    "*block *place:whole *piece:whole bytes:whole fingerprint?",
    of_fingerprint="fingerprint",
)

# Where the tensors of a model lie now: `stated` is the placement that trees name, `placement` the
# one that took its place by repacking, or the same.
placement = _table("placement", "*model *stated placement", of_placement="placement")

# The members of packs that a placement names, in blocks as tensors are.
# `member`: the first one of the block.
placement_block = _table(
    "placement_block", "*placement *pack *member:whole block", of_block="block"
)

# Members that hold a tensor (`part` counts them within it), and those that are bases of such and no
# tensor of the model (no fingerprint).
# `depth`: bases that a read of it goes through.
block_member = _table(
    "block_member",
    "*block *member:whole fingerprint? part:whole codec stored_bytes:whole depth:whole",
)

# What a member is a delta of: another member of the same placement.
block_base = _table("block_base", "*block *member:whole *place:whole base_pack base_member:whole")

# ------------------------------------------------------------------------------ architecture

# Models of one architecture share its rows.
# `digest` of the graph's bytes; `source`: export, fx, onnx, names or given; `hash` of the
# architecture, whatever its nodes are called.
graph = _table("graph", "*digest source nodes:whole hash", of_hash="hash")

# `place`: behind those that it takes from; `attributes` is JSON; `depth` of the longest way from
# an input; `prefix`: hash of all that leads to it.
node = _table(
    "node",
    "*graph *place:whole name op attributes depth:whole prefix",
    of_prefix="prefix graph",
    of_op="op",
)

# By places of nodes.
# `role`: the argument of `target`; `output` of `source`.
edge = _table(
    "edge", "*graph *source:whole *target:whole *role output:whole", of_target="graph target"
)

node_parameter = _table("node_parameter", "*graph *node:whole *role tensor")

# ------------------------------------------------------------------------------ runs and lineage

# `owner` is the digest of a model or of a run's document; `run` the name of the run, if any.
metric = _table(
    "metric",
    "*owner *place:whole run? name step:whole? value:real? kind time_ns:whole?",
    of_name="name value",
    of_run="run name step",
)

# `value` is JSON.
parameter = _table("parameter", "*owner *name value", of_name="name value")

# `digest` of the document; `id`: stays the same when the document is written anew: lineage names
# runs by it; `status`: running, finished, failed or interrupted; `due_ns`: while it runs it is
# written anew before this; `environment` is JSON.
run = _table(
    "run",
    "*digest id name status started_ns:whole written_ns:whole due_ns:whole ended_ns:whole? "
    "error? author code_commit? code_dirty:flag? environment",
    of_name="name",
    of_id="id",
)

# What became of each metric of a run; the points themselves stay in the repository. The smallest
# and the largest are of finite values. `metric` has the last one, too.
# `run`: digest of the document.
run_metric = _table(
    "run_metric",
    "*run *name points:whole not_finite:whole last_step:whole last:real? last_kind min:real? "
    "min_step:whole? max:real? max_step:whole?",
    of_name="name min",
)

# "`subject` was <relation> `origin`", as the object `stated_by` says; see
# formats/common/provenance.py. What has no digest is known by its path. `subject_hash` and
# `origin_hash` are `edges.hash_of` the two ends: a walk goes by them, as an index of whole digests
# is five times as large.
# `detail` is JSON.
lineage_edge = _table(
    "lineage_edge",
    "*stated_by *place:whole subject_kind subject relation origin_kind origin_path origin? "
    "origin_commit? detail subject_hash:whole origin_hash:whole",
    of_subject="subject_hash origin_hash",
    of_origin="origin_hash subject_hash",
)

# ------------------------------------------------------------------------------ views

# `dataset`: the version of the dataset that it was made of.
view_version = _table("view_version", "*digest sql dataset dataset_path? commit? rows:whole")

# ------------------------------------------------------------------------------ registry

# `metadata` is JSON.
registered_model = _table("registered_model", "*name description metadata")

# `metadata` is JSON.
registered_version = _table(
    "registered_version",
    "*model *version:whole commit path digest description metadata",
    of_digest="digest",
)

registered_alias = _table("registered_alias", "*model *alias version:whole commit")

# ------------------------------------------------------------------------------ as they are asked


def _of_model(name: str, rows: Table, *names: str) -> Subquery:
    """Rows of blocks as those of models, with the place of each tensor among all of its model's."""
    place = type_coerce(model_block.c.place + rows.c.place, WHOLE).label("place")
    told = (rows.c[each] for each in names)
    return (
        select(model_block.c.model, place, *told)
        .join(rows, rows.c.block == model_block.c.block)
        .subquery(name)
    )


def _of_placement(name: str, rows: Table, *names: str) -> Subquery:
    """Rows of blocks as those of placements."""
    at, told = placement_block.c, (rows.c[each] for each in names)
    return select(at.placement, at.pack, *told).join(rows, rows.c.block == at.block).subquery(name)


model_tensor: Final = _of_model(
    "model_tensor", block_tensor, "name", "dtype", "shape", "elements", "bytes", "fingerprint"
)
tensor_piece: Final = _of_model("tensor_piece", block_piece, "piece", "bytes", "fingerprint")
tensor_storage: Final = _of_placement(
    "tensor_storage",
    block_member,
    "member",
    "fingerprint",
    "part",
    "codec",
    "stored_bytes",
    "depth",
)
member_base: Final = _of_placement(
    "member_base", block_base, "member", "place", "base_pack", "base_member"
)

_BLOCKS: Final = (
    model_block, block_tensor, block_piece, placement_block, block_member, block_base,
)  # fmt: skip
SHOWN: Final[Mapping[str, Table | Subquery]] = {
    **{name: table for name, table in METADATA.tables.items() if table not in _BLOCKS},
    "model_tensor": model_tensor,
    "tensor_piece": tensor_piece,
    "tensor_storage": tensor_storage,
    "member_base": member_base,
}
"""What SQL over the catalog asks, by name: the tables, and rows of blocks as those of models."""
