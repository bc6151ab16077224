"""What are the root and the leaves of a dataset?

The root (msgpack) holds the schema, counts, statistics and the list of leaves. A leaf holds the
records of a run of fragments, and says per column group which page indexes cover them. What is
small stands inline in its parent, so that a small change is one object.

Source:
    docs/spec/dataset.md, sections "Root" and "Leaf".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tensorrepo.formats.dataset.index import decode_index
from tensorrepo.formats.dataset.schema import Schema
from tensorrepo.formats.dataset.sections import decode_sections, encode_sections, section_array
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tensorrepo.repo.ids import DIGEST_BYTES, Digest, digest_bytes, digest_from_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tensorrepo.repo.ids import Buffer

VERSION = 1
INLINE_LEAF_BYTES = 64 << 10  # a leaf of fewer bytes stands in the root
INLINE_INDEX_BYTES = 16 << 10  # a page index of fewer bytes stands in the leaf
INLINE_INDEXES_BYTES = 48 << 10  # all that stand in one leaf
INLINE_DATA_BYTES = 16 << 10  # pages of at most so many bytes, in all, stand in a leaf's indexes

LEAF_MAGIC = b"TRPL"
FRAGMENTS, SPANS, INDEXES, DELETIONS, PATCHES, ID_RUNS = range(1, 7)

FRAGMENT = np.dtype(
    [
        ("uid", "<u8"),
        ("rows", "<u4"),
        ("deleted", "<u4"),
        ("flags", "<u4"),  # 1 deletions inline, 2 deletions in an object, 4 patches, 8 id runs
        ("reserved", "<u4"),
        ("stored_bytes", "<u8"),  # of all its pages
    ]
)
assert FRAGMENT.itemsize == 32, "docs/spec/dataset.md promises 32-byte fragment records"

SPAN = np.dtype(
    [
        ("group", "<u8"),  # id of the group's first column
        ("first_fragment", "<u4"),  # counted within the leaf
        ("fragments", "<u4"),
        ("digest", f"V{DIGEST_BYTES}"),  # of the page index; zeros: it stands in INDEXES
        ("offset", "<u8"),  # in INDEXES
        ("bytes", "<u8"),  # in INDEXES
    ]
)
assert SPAN.itemsize == 64, "docs/spec/dataset.md promises 64-byte span records"


@dataclass(frozen=True, slots=True, eq=False)
class Span:
    """A page index as its leaf knows it: `index` is its digest, or its payload where inline."""

    group: str
    first_fragment: int
    fragments: int
    index: Digest | memoryview


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """A run of fragments, and the spans of page indexes over them, group after group."""

    fragments: NDArray[Any]  # FRAGMENT (n,)
    spans: tuple[Span, ...]

    @property
    def links(self) -> tuple[Digest, ...]:
        """What an object that holds this leaf must link to."""
        found: list[Digest] = []
        for span in self.spans:
            if isinstance(span.index, memoryview):
                found.extend(decode_index(span.index, "inline page index").links)
            else:
                found.append(span.index)
        return tuple(found)


class ColumnStatistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One column over all fragments. `min` and `max` are order keys, of scalars that have them."""

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
        schema: with column ids.
        groups: ids of the columns that share page indexes and chunks, in order; a group is
            called by its first one.
        rows: of all fragments, deleted ones too.
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
        return tuple(found)


# ------------------------------------------------------------------------------ leaf


def encode_leaf(leaf: Leaf) -> bytes:
    """The payload of a leaf; its links are `leaf.links`."""
    spans = np.zeros(len(leaf.spans), SPAN)
    inline: list[memoryview] = []
    offset = 0
    for record, span in zip(spans, leaf.spans, strict=True):
        record["group"] = int(span.group, 16)
        record["first_fragment"], record["fragments"] = span.first_fragment, span.fragments
        if isinstance(span.index, memoryview):
            record["offset"], record["bytes"] = offset, span.index.nbytes
            inline.append(span.index)
            offset += span.index.nbytes
        else:
            record["digest"] = np.void(digest_bytes(span.index))
    sections = {
        FRAGMENTS: leaf.fragments,
        SPANS: spans,
        INDEXES: np.frombuffer(b"".join(inline), np.uint8),
    }
    return encode_sections(LEAF_MAGIC, sections)


def decode_leaf(payload: Buffer, what: str) -> Leaf:
    """Parse the payload of a leaf.

    Raises:
        CorruptError: the parts contradict each other.
        UnsupportedError: deletions, patches, id runs or sections of a newer version.
    """
    sections = decode_sections(LEAF_MAGIC, payload, what)
    if unknown := sections.keys() - {FRAGMENTS, SPANS, INDEXES}:
        names = {DELETIONS: "deletions", PATCHES: "patches", ID_RUNS: "moved row ids"}
        meant = ", ".join(names.get(number, f"section {number}") for number in sorted(unknown))
        raise UnsupportedError(f"{what} has {meant}, which this version cannot read. Update.")
    fragments = section_array(sections, FRAGMENTS, FRAGMENT, what)
    if fragments["reserved"].any():
        raise CorruptError(f"{what}: reserved fields of a fragment are set")
    if fragments["flags"].any() or fragments["deleted"].any():
        raise UnsupportedError(f"{what} has changed fragments; this version cannot read them.")
    records = section_array(sections, SPANS, SPAN, what)
    inline = sections.get(INDEXES, memoryview(b""))
    spans = tuple(_decode_span(record, inline, what) for record in records)
    _check_cover(spans, len(fragments), what)
    return Leaf(fragments, spans)


def _decode_span(record: NDArray[Any], inline: memoryview, what: str) -> Span:
    digest = record["digest"].tobytes()
    index: Digest | memoryview
    if any(digest):
        index = digest_from_bytes(digest)
    else:
        start, stop = int(record["offset"]), int(record["offset"]) + int(record["bytes"])
        if stop > inline.nbytes:
            raise CorruptError(f"{what}: an inline page index ends at {stop}, after the section")
        index = inline[start:stop]
    group = f"{record['group']:016x}"
    return Span(group, int(record["first_fragment"]), int(record["fragments"]), index)


def _check_cover(spans: Sequence[Span], fragments: int, what: str) -> None:
    """Each group that is there covers all fragments in order: later versions may relax it."""
    reached: dict[str, int] = {}
    for span in spans:
        if span.first_fragment != reached.get(span.group, 0) or not span.fragments:
            raise CorruptError(f"{what}: page indexes of group {span.group} do not follow another")
        reached[span.group] = span.first_fragment + span.fragments
    if any(count != fragments for count in reached.values()):
        raise CorruptError(f"{what}: page indexes do not cover {fragments} fragments: {reached}")


# ------------------------------------------------------------------------------ root


def encode_root(root: Root) -> bytes:
    """The payload of a root; its links are `root.links`."""
    return msgspec.msgpack.encode(
        _Root(
            VERSION,
            (),
            root.schema.to_json(),
            root.groups,
            root.properties,
            root.lineage,
            root.rows,
            root.deleted,
            root.statistics,
            root.leaves,
        )
    )


def decode_root(payload: Buffer) -> Root:
    """Parse the payload of a root.

    Raises:
        CorruptError: not a root, or counts that contradict each other.
        UnsupportedError: a version or feature that this version does not know.
    """
    try:
        head = msgspec.msgpack.decode(payload, type=_Head)
        if head.version != VERSION or head.features:
            raise UnsupportedError(
                f"dataset root: version {head.version}, features {list(head.features)}; "
                f"this reads version {VERSION}. Update tensorrepo."
            )
        found = msgspec.msgpack.decode(payload, type=_Root)
        schema = Schema.from_json(found.schema)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise CorruptError(f"dataset root: {error}") from error
    root = Root(
        schema,
        found.groups,
        found.rows,
        found.deleted,
        found.statistics,
        found.leaves,
        found.properties,
        found.lineage,
    )
    _check_root(root)
    return root


class _Head(msgspec.Struct, frozen=True):
    version: int
    features: tuple[str, ...]


def _check_root(root: Root) -> None:
    ids = [column.id for column in root.schema.columns]
    if sorted(ids) != sorted(name for group in root.groups for name in group) or not all(ids):
        raise CorruptError("dataset root: column groups do not hold every column once")
    if [entry.id for entry in root.statistics] != ids:
        raise CorruptError("dataset root: statistics are not those of the columns")
    if root.rows != sum(leaf.rows for leaf in root.leaves):
        raise CorruptError("dataset root: rows are not the sum over the leaves")
    if root.deleted:
        raise UnsupportedError("dataset root: deletions need a newer version. Update tensorrepo.")
