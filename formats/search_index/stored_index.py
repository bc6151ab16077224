"""Stored index: what a tree's entry of kind "index" holds, encoded and decoded.

An index is made of segments. Each is what a library made of some rows of one column, as files, and
the ids of these rows by their place in it. Files are cut into blobs. Nothing in a segment changes:
rows that came later are in a later one.

The index links to the version of the dataset that it was brought up to. What differs between that
and any other version is what the index does not know.

Source:
    docs/spec/search-index.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from functools import cached_property
from typing import Annotated, Any, Final

import msgspec
import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.summaries import index_summary
from tensorrepo.formats.dataset.metadata.row_ids import RUN, RowIdTable, ids_of_runs
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest, digest_bytes, digest_from_bytes
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, ObjectSink, ObjectSource
from tensorrepo.repo.typed_decoding import from_msgpack

VERSION: Final = 1
PART_BYTES: Final = 16 << 20  # of a file in one blob
MOST_FILES: Final = 1024  # of a segment
MOST_ROWS: Final = 1 << 31  # of a segment
MOST_SEGMENTS: Final = 256
MOST_FOLDERS: Final = 3  # that a file of a segment lies in
_NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")
LENGTHS: Final = "lengths"  # of an index of words: int32 a row, its words, -1 where it is null


@dataclass(frozen=True, slots=True)
class IndexFile:
    """A file of a segment: its path there, and the blobs that it is cut into."""

    name: str
    size_bytes: int
    parts: tuple[Digest, ...]


@dataclass(frozen=True, eq=False)
class IndexSegment:
    """What a library made of some rows.

    Attributes:
        runs: RUN ``(n,)``: ids of the rows, in the order of their places.
        method: how the library looks for them: ``"ivf_pq"``, ``"ivf_flat"``, ..., ``"words"``.
        options: numbers above 0 that it was made with, and is asked with, by name.
        files: its files, by name.
        recall: share of the nearest rows that it was found to give, in [0, 1]; 0: not measured.
    """

    runs: NDArray[Any]
    method: str
    options: Mapping[str, int]
    files: tuple[IndexFile, ...]
    recall: float = 0.0

    @cached_property
    def rows(self) -> int:
        return int(self.runs["rows"].sum(dtype=np.int64))

    @cached_property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @cached_property
    def name(self) -> str:
        """What its files are, in 64 hex digits: equal segments of two indexes share it."""
        hasher = blake3(derive_key_context="tensorrepo index segment v1")
        for file in self.files:
            hasher.update(f"{file.name}\0{file.size_bytes}\0{','.join(file.parts)}\n".encode())
        return hasher.hexdigest()


@dataclass(frozen=True, eq=False)
class StoredIndex:
    """An index of one column.

    Attributes:
        path: path of the dataset when the index was brought up to date.
        dataset: digest of the dataset's version then.
        column: name of the column then.
        column_id: id of the column, which stays when it is renamed.
        kind: what was asked for: ``"ivf_pq"``, ``"text"``, ``"btree"``, ...
        metric: distance that an index of vectors was made for; ``""`` for others.
        options: options that were given with the kind.
        segments: rows that it knows, the oldest first.
        digest: digest of the entry; empty before it is stored.
    """

    path: str
    dataset: Digest
    column: str
    column_id: str
    kind: str
    metric: str
    options: Mapping[str, int]
    segments: tuple[IndexSegment, ...] = ()
    digest: str = field(default="", compare=False)

    @property
    def rows(self) -> int:
        """Places of rows in all segments; a row that was updated has several."""
        return sum(segment.rows for segment in self.segments)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(segment.size_bytes for segment in self.segments)

    @property
    def summary(self) -> bytes:
        """What a tree says of it."""
        return index_summary(rows=self.rows, index_bytes=self.size_bytes, kind=self.kind)

    def equals(self, other: StoredIndex) -> bool:
        """Whether the same would be stored of both."""
        return encode_index(self) == encode_index(other)

    def __repr__(self) -> str:
        return f"<index {self.kind} of {self.path}, {self.column}: {counted(self.rows, 'row')}>"


_Number = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]


class _Head(msgspec.Struct, frozen=True):
    version: int
    features: tuple[str, ...]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    size: int  # in bytes
    parts: tuple[bytes, ...]


class _Segment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rows: int
    method: str
    options: dict[str, _Number]
    recall: Annotated[float, msgspec.Meta(ge=0, le=1)]
    runs: bytes
    files: tuple[_File, ...]


class _Root(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    features: tuple[str, ...]
    path: str
    dataset: bytes
    column: str
    column_id: str
    kind: str
    metric: str
    options: dict[str, _Number]
    segments: tuple[_Segment, ...]


def encode_index(index: StoredIndex) -> bytes:
    """The payload of an index."""
    segments = tuple(
        _Segment(
            segment.rows,
            segment.method,
            dict(segment.options),
            float(segment.recall),
            segment.runs.astype(RUN).tobytes(),
            tuple(
                _File(file.name, file.size_bytes, tuple(map(digest_bytes, file.parts)))
                for file in segment.files
            ),
        )
        for segment in index.segments
    )
    return msgspec.msgpack.encode(
        _Root(
            VERSION, (), index.path, digest_bytes(index.dataset), index.column, index.column_id,
            index.kind, index.metric, dict(index.options), segments,
        )
    )  # fmt: skip


def write_index(objects: ObjectSink, index: StoredIndex) -> tuple[ObjectLink, Entry]:
    """Store an index; its dataset and its files must be stored. Gives what a tree holds of it."""
    links = {index.dataset, *_parts(index.segments)}
    link = objects.put(Kind.SEARCH_INDEX, encode_index(index), sorted(links))
    return link, Entry(Kind.SEARCH_INDEX, link.digest, summary=index.summary)


def _parts(segments: Iterable[IndexSegment]) -> Iterator[Digest]:
    for segment in segments:
        for file in segment.files:
            yield from file.parts


def open_index(objects: ObjectSource, digest: Digest) -> StoredIndex:
    """The index of this digest; reads one object, and no file of a segment.

    Raises:
        CorruptError, UnsupportedError: it is no index that this version can read.
    """
    envelope = objects.get(digest)
    if envelope.kind is not Kind.SEARCH_INDEX:
        raise InvalidInputError(
            f"object {digest:.12} is a {envelope.kind.label}, not a search index"
        )
    try:
        head = from_msgpack(envelope.payload, _Head)
        if head.version != VERSION or head.features:
            raise UnsupportedError(
                f"index {digest:.12} is of version {head.version} with {list(head.features)}; this "
                f"reader knows version {VERSION}. Update, or make it anew."
            )
        root = from_msgpack(envelope.payload, _Root)
        index = _index(root, digest)
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptError(f"index {digest:.12}: {error}") from error
    linked = {link.digest: link for link in envelope.links}
    wanted = {index.dataset, *_parts(index.segments)}
    if wanted != linked.keys() or linked[index.dataset].kind is not Kind.DATASET:
        raise CorruptError(f"index {digest:.12}: its parts contradict each other")
    return index


def _index(root: _Root, digest: Digest) -> StoredIndex:
    if len(root.segments) > MOST_SEGMENTS:
        raise ValueError(f"{len(root.segments)} segments, expected at most {MOST_SEGMENTS}")
    return StoredIndex(
        root.path,
        digest_from_bytes(root.dataset),
        root.column,
        root.column_id,
        root.kind,
        root.metric,
        root.options,
        tuple(map(_segment, root.segments)),
        digest,
    )


def _segment(stored: _Segment) -> IndexSegment:
    files = tuple(map(_file, stored.files))
    names = [file.name for file in files]
    apart = {name.lower() for name in names}
    if names != sorted(names) or len(apart) < len(names) or len(names) > MOST_FILES:
        raise ValueError("its files are out of order, not apart by name, or too many")
    segment = IndexSegment(
        np.frombuffer(stored.runs, RUN), stored.method, stored.options, files, stored.recall
    )
    if segment.rows != stored.rows or stored.rows > MOST_ROWS or (segment.runs["rows"] == 0).any():
        raise ValueError(f"a segment says {stored.rows} rows, its runs {segment.rows}")
    return segment


def _file(stored: _File) -> IndexFile:
    parts = stored.name.split("/")
    if len(parts) > MOST_FOLDERS + 1 or not all(map(_NAME.fullmatch, parts)):
        raise ValueError(f"{stored.name!r:.100} is no name of a file")
    if stored.size < 0 or len(stored.parts) != -(-stored.size // PART_BYTES):
        raise ValueError(f"{stored.name}: {len(stored.parts)} parts of {stored.size} bytes")
    return IndexFile(stored.name, stored.size, tuple(map(digest_from_bytes, stored.parts)))


def segments_with(index: StoredIndex, runs: NDArray[Any]) -> frozenset[int]:
    """Numbers of the segments that have some of these rows: RUN ``(n,)``, ids of rows."""
    ids = ids_of_runs(runs)
    return frozenset(
        at
        for at, segment in enumerate(index.segments)
        if (segment_table(segment).find(ids) >= 0).any()
    )


def segment_table(segment: IndexSegment) -> RowIdTable:
    """Ids of the rows of a segment; what it calls rows are places."""
    counts = segment.runs["rows"].astype(np.int64)
    return RowIdTable(segment.runs, np.cumsum(counts) - counts)
