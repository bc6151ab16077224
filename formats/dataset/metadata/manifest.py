"""Root and leaves of a dataset, encoded and decoded.

The root (msgpack) holds the schema, counts, statistics and the list of leaves. A leaf holds the
records of a run of fragments, and says which page indexes, deletion maps, patches and row runs
cover them. What is small stands inline in its parent, so that a small change is one object.

Source:
    docs/spec/dataset.md, sections "Root" and "Leaf".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.provenance import synced_states
from tensorrepo.formats.dataset.metadata.index import decode_index, decode_patch_index
from tensorrepo.formats.dataset.pages.sections import (
    decode_sections,
    encode_sections,
    section_array,
)
from tensorrepo.formats.dataset.schema.schema import Schema
from tensorrepo.formats.dataset.schema.types import Image
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.ids import DIGEST_BYTES, Buffer, Digest, digest_bytes, digest_from_bytes
from tensorrepo.repo.typed_decoding import from_msgpack

VERSION = 2
INLINE_LEAF_BYTES = 64 << 10  # a leaf of fewer bytes stands in the root
INLINE_INDEX_BYTES = 16 << 10  # a page index of fewer bytes stands in the leaf
INLINE_INDEXES_BYTES = 48 << 10  # all that stand in one leaf
INLINE_DATA_BYTES = 16 << 10  # pages of at most so many bytes, in all, stand in a leaf's indexes

LEAF_MAGIC = b"TRPL"
FRAGMENTS, INDEXES, INLINE, DELETIONS, PATCHES, ROW_RUNS = range(1, 7)

HAS_DELETIONS, HAS_PATCHES, HAS_RUNS = 1, 2, 4
ALL_FLAGS = 7
NO_GROUP = "0" * 16

FRAGMENT = np.dtype(
    [
        ("uid", "<u8"),
        ("rows", "<u4"),
        ("deleted", "<u4"),
        ("flags", "<u4"),  # HAS_DELETIONS, HAS_PATCHES, HAS_RUNS
        ("reserved", "<u4"),
        ("stored_bytes", "<u8"),  # of all its pages and patches
    ]
)
assert FRAGMENT.itemsize == 32, "docs/spec/dataset.md promises 32-byte fragment records"

SPAN = np.dtype(
    [
        ("group", "<u8"),  # id of the group's first column, or of the column, or 0
        ("first_fragment", "<u4"),  # counted within the leaf
        ("fragments", "<u4"),
        ("digest", f"V{DIGEST_BYTES}"),  # of the object; zeros: its payload stands in INLINE
        ("offset", "<u8"),  # in INLINE
        ("bytes", "<u8"),  # in INLINE
    ]
)
assert SPAN.itemsize == 64, "docs/spec/dataset.md promises 64-byte span records"


@dataclass(frozen=True, slots=True, eq=False)
class FragmentSpan:
    """What covers some fragments of a leaf: `payload` is the digest of an object, or its payload
    where that stands inline.

    `group` is the column group of a page index and the column of a patch; deletion maps and row
    runs have NO_GROUP.
    """

    group: str
    first_fragment: int
    fragments: int
    payload: Digest | memoryview

    @property
    def stop_fragment(self) -> int:
        return self.first_fragment + self.fragments


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A run of fragments, and what covers them.

    Attributes:
        fragments: FRAGMENT ``(n,)``.
        indexes: page indexes, group after group. Fragments that no index of a group covers have no
            pages there: their rows take the columns' defaults.
        deletions: deletion maps; only fragments with deleted rows need one.
        patches: patch indexes, column after column.
        runs: row runs of fragments whose rows were written elsewhere.
    """

    fragments: NDArray[Any]
    indexes: tuple[FragmentSpan, ...]
    deletions: tuple[FragmentSpan, ...] = ()
    patches: tuple[FragmentSpan, ...] = ()
    runs: tuple[FragmentSpan, ...] = ()

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many fragments, rows, and deleted rows."""
        rows, deleted = (self.fragments[name].sum(dtype=np.int64) for name in ("rows", "deleted"))
        return len(self.fragments), int(rows), int(deleted)

    @property
    def spans(self) -> tuple[FragmentSpan, ...]:
        """All of them."""
        return self.indexes + self.deletions + self.patches + self.runs

    @property
    def links(self) -> tuple[Digest, ...]:
        """What an object that holds this leaf must link to."""
        spans = self.spans
        found = [span.payload for span in spans if not isinstance(span.payload, memoryview)]
        for span in self.indexes:
            if isinstance(span.payload, memoryview):
                found.extend(decode_index(span.payload, "inline page index").links)
        for span in self.patches:
            if isinstance(span.payload, memoryview):
                found.extend(decode_patch_index(span.payload, "inline patch").index.links)
        return tuple(found)


class ColumnStatistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One column over all fragments, deleted rows included.

    `min` and `max` are order keys that bound all values, of scalars that have them.
    """

    id: str
    nulls: int
    stored_bytes: int
    raw_bytes: int
    min: int | None
    max: int | None


class LeafEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A leaf as the root knows it: `digest` is empty where `payload` holds it inline."""

    digest: bytes
    payload: bytes
    fragments: int
    rows: int
    deleted: int
    stored_bytes: int


PROGRESSIVE = "progressive"  # some column of images is
KNOWN_FEATURES = frozenset({PROGRESSIVE})


class _Root(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    features: tuple[str, ...]
    schema: dict[str, Any]
    groups: tuple[tuple[str, ...], ...]
    properties: dict[str, Any]
    lineage: tuple[dict[str, Any], ...]
    rows: int
    deleted: int
    statistics: tuple[ColumnStatistics, ...]
    leaves: tuple[LeafEntry, ...]


@dataclass(frozen=True, slots=True)
class Root:
    """A version of a dataset.

    Attributes:
        schema: schema, with column ids.
        groups: ids of the columns that share page indexes and chunks, in order; a group is
            called by its first one.
        rows: rows of all fragments, deleted ones too.
        deleted: rows that are deleted.
    """

    schema: Schema
    groups: tuple[tuple[str, ...], ...]
    rows: int
    deleted: int
    statistics: tuple[ColumnStatistics, ...]
    leaves: tuple[LeafEntry, ...]
    properties: dict[str, Any]
    lineage: tuple[dict[str, Any], ...] = ()

    @property
    def stored_bytes(self) -> int:
        """Bytes of all pages."""
        return sum(leaf.stored_bytes for leaf in self.leaves)

    @property
    def links(self) -> tuple[Digest, ...]:
        """What the root object must link to."""
        found: list[Digest] = []
        for leaf in self.leaves:
            if leaf.digest:
                found.append(digest_from_bytes(leaf.digest))
            else:
                found.extend(decode_leaf(leaf.payload, "inline leaf").links)
        found.extend(synced_states(self.lineage).values())
        return tuple(found)


# ------------------------------------------------------------------------------ leaf


def encode_leaf(leaf: Leaf) -> bytes:
    """The payload of a leaf; its links are `leaf.links`."""
    inline: list[memoryview] = []
    sections = {
        FRAGMENTS: leaf.fragments,
        INDEXES: _span_records(leaf.indexes, inline),
        DELETIONS: _span_records(leaf.deletions, inline),
        PATCHES: _span_records(leaf.patches, inline),
        ROW_RUNS: _span_records(leaf.runs, inline),
    }
    sections[INLINE] = np.frombuffer(b"".join(inline), np.uint8)
    return encode_sections(LEAF_MAGIC, sections)


def _span_records(spans: Sequence[FragmentSpan], inline: list[memoryview]) -> NDArray[Any]:
    """SPAN records; payloads that stand in the leaf are put behind `inline`."""
    records = np.zeros(len(spans), SPAN)
    offset = sum(payload.nbytes for payload in inline)
    for record, span in zip(records, spans, strict=True):
        record["group"] = int(span.group, 16)
        record["first_fragment"], record["fragments"] = span.first_fragment, span.fragments
        if isinstance(span.payload, memoryview):
            record["offset"], record["bytes"] = offset, span.payload.nbytes
            inline.append(span.payload)
            offset += span.payload.nbytes
        else:
            record["digest"] = np.void(digest_bytes(span.payload))
    return records


def decode_leaf(payload: Buffer, what: str) -> Leaf:
    """Parse the payload of a leaf.

    Raises:
        CorruptError: the parts contradict each other.
        UnsupportedError: sections of a newer version.
    """
    sections = decode_sections(LEAF_MAGIC, payload, what)
    if unknown := sections.keys() - {FRAGMENTS, INDEXES, INLINE, DELETIONS, PATCHES, ROW_RUNS}:
        raise UnsupportedError(
            f"{what} has sections {sorted(unknown)}, which this version cannot read. Update."
        )
    fragments = section_array(sections, FRAGMENTS, FRAGMENT, what)
    if fragments["reserved"].any() or (fragments["flags"] > ALL_FLAGS).any():
        raise CorruptError(f"{what}: reserved fields of a fragment are set")
    deleted, rows = fragments["deleted"], fragments["rows"]
    flagged = (fragments["flags"] & HAS_DELETIONS) != 0
    if (deleted > rows).any() or (flagged != (deleted > 0)).any() or not rows.all():
        raise CorruptError(f"{what}: a fragment counts rows and deleted ones that cannot be")
    inline = sections.get(INLINE, memoryview(b""))
    families = [
        _decode_spans(section_array(sections, number, SPAN, what), inline, len(fragments), what)
        for number in (INDEXES, DELETIONS, PATCHES, ROW_RUNS)
    ]
    return Leaf(fragments, *families)


def _decode_spans(
    records: NDArray[Any], inline: memoryview, fragments: int, what: str
) -> tuple[FragmentSpan, ...]:
    spans = tuple(_decode_span(record, inline, what) for record in records)
    reached: dict[str, int] = {}
    for span in spans:
        if span.first_fragment < reached.get(span.group, 0) or not span.fragments:
            raise CorruptError(f"{what}: spans of group {span.group} are out of order")
        reached[span.group] = span.stop_fragment
    if any(stop > fragments for stop in reached.values()):
        raise CorruptError(f"{what}: spans go beyond its {fragments} fragments: {reached}")
    return spans


def _decode_span(record: NDArray[Any], inline: memoryview, what: str) -> FragmentSpan:
    digest = record["digest"].tobytes()
    payload: Digest | memoryview
    if any(digest):
        payload = digest_from_bytes(digest)
    else:
        start, stop = int(record["offset"]), int(record["offset"]) + int(record["bytes"])
        if stop > inline.nbytes:
            raise CorruptError(f"{what}: an inline payload ends at {stop}, after the section")
        payload = inline[start:stop]
    group = f"{record['group']:016x}"
    return FragmentSpan(group, int(record["first_fragment"]), int(record["fragments"]), payload)


# ------------------------------------------------------------------------------ root


def encode_root(root: Root) -> bytes:
    """The payload of a root; its links are `root.links`."""
    facts = {name: getattr(root, name) for name in Root.__slots__}
    facts["schema"] = root.schema.to_json()
    return msgspec.msgpack.encode(_Root(VERSION, _features(root.schema), **facts))


def _features(schema: Schema) -> tuple[str, ...]:
    """What a reader must know to read columns of such types."""
    kinds = (column.type for column in schema.columns)
    is_progressive = any(isinstance(kind, Image) and kind.progressive for kind in kinds)
    return (PROGRESSIVE,) if is_progressive else ()


def decode_root(payload: Buffer) -> Root:
    """Parse the payload of a root.

    Raises:
        CorruptError: not a root, or counts that contradict each other.
        UnsupportedError: a version or feature that this version does not know.
    """
    try:
        head = from_msgpack(payload, _Head)
        _check_readable(head)
        found = from_msgpack(payload, _Root)
        facts = {name: getattr(found, name) for name in Root.__slots__}
        facts["schema"] = Schema.from_json(found.schema)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CorruptError(f"dataset root: {error}") from error
    root = Root(**facts)
    _check_root(root)
    if found.features != _features(root.schema):
        raise CorruptError(
            f"dataset root: features {list(found.features)}, its columns need "
            f"{list(_features(root.schema))}"
        )
    return root


class _Head(msgspec.Struct, frozen=True):
    version: int
    features: tuple[str, ...]


def _check_readable(head: _Head) -> None:
    if 0 < head.version < VERSION:
        raise UnsupportedError(
            f"dataset root: version {head.version} was written by an unreleased version of "
            f"tensorrepo; this reads version {VERSION}. Write the dataset anew."
        )
    if head.version != VERSION or not KNOWN_FEATURES.issuperset(head.features):
        raise UnsupportedError(
            f"dataset root: version {head.version}, features {list(head.features)}; "
            f"this reads version {VERSION}. Update tensorrepo."
        )


def _check_root(root: Root) -> None:
    ids = [column.id for column in root.schema.columns]
    grouped = [name for group in root.groups for name in group]
    # Dropped columns stay in the groups that still have others.
    if not all(ids) or len(set(grouped)) != len(grouped) or not set(ids) <= set(grouped):
        raise CorruptError("dataset root: column groups do not hold every column once")
    if not all(set(group) & set(ids) for group in root.groups):
        raise CorruptError("dataset root: a column group holds dropped columns alone")
    if [entry.id for entry in root.statistics] != ids:
        raise CorruptError("dataset root: statistics are not those of the columns")
    if root.rows != sum(leaf.rows for leaf in root.leaves):
        raise CorruptError("dataset root: rows are not the sum over the leaves")
    if root.deleted != sum(leaf.deleted for leaf in root.leaves) or root.deleted > root.rows:
        raise CorruptError("dataset root: deleted rows are not the sum over the leaves")
