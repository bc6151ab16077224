"""Adoption in place: a dataset's root over foreign files, without copies.

The dataset says of each file which version is meant, and where rows are in it. Whoever reads it
needs the files, and the permission to read them.

Source:
    docs/spec/foreign.md
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tensorrepo.formats.common.damage import damage
from tensorrepo.formats.common.provenance import ProvenanceEdge, imported_from, with_edges
from tensorrepo.formats.dataset.external.foreign import ForeignFile, encode_foreign, hash_outside
from tensorrepo.formats.dataset.external.outside import Outside, parse_address
from tensorrepo.formats.dataset.metadata.boundaries import ColumnPart, FragmentPart
from tensorrepo.formats.dataset.metadata.index import ColumnPages
from tensorrepo.formats.dataset.metadata.span_write import Fragment
from tensorrepo.formats.dataset.metadata.tree_write import Groups, TreeWriter
from tensorrepo.formats.dataset.pages.page import TAG_BYTES
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import Column, Schema
from tensorrepo.formats.dataset.write import column_id
from tensorrepo.formats.dataset.writing.fragment_write import column_groups
from tensorrepo.formats.exchange.in_place.arrays import scan_npy, scan_safetensors
from tensorrepo.formats.exchange.in_place.parquet import scan_parquet
from tensorrepo.formats.exchange.in_place.scan import AdoptedFragment, AdoptedSource, FileScan
from tensorrepo.formats.exchange.in_place.tar import TarSurvey, shard_fragments, survey_shard
from tensorrepo.formats.exchange.records.samples import choose
from tensorrepo.formats.exchange.records.webdataset import schema_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError
from tensorrepo.repo.ids import Digest, digest_bytes
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, ObjectSink

FORMATS = ("parquet", "tar", "npy", "safetensors")
MOST_FILE_EDGES = 32
_HEAD_BYTES = 512
_WAITING_BYTES = 1 << 20  # nothing waits to be stored: of a base at most its inline pages
_RANDOM = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class Adopted:
    """What was adopted: the root, and how much of what lies where it lay."""

    link: ObjectLink
    rows: int
    bytes: int
    files: int
    notes: tuple[str, ...] = ()


def adopt(
    objects: ObjectSink,
    urls: Sequence[str],
    outside: Outside,
    *,
    format: str | None = None,  # noqa: A002  # the SDK's word
    columns: tuple[str, ...] | None = None,
    base: StoredDataset | None = None,
    hashed: bool | None = None,
    rng: random.Random = _RANDOM,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Adopted:
    """Store a dataset whose rows stay in the files at `urls`, or put them behind those of `base`.

    Args:
        objects: where to store what describes them, the root last.
        urls: absolute paths or URLs, one format and one schema, in the order of their rows.
        outside: who may read them; each must be under an allowed prefix.
        format: one of `FORMATS`; None: told by content.
        columns: only these, in this order.
        base: a dataset with the same columns.
        hashed: whether to read the files once for their hashes, by which copies of them are known;
            None: for files of this machine, whose times change easily, and for stores that name no
            versions.
        rng: gives fragments their uids.
        progress: callback that receives the bytes looked at so far, and those in all.

    Raises:
        PermissionDenied: a file is under no prefix that `outside` allows.
        InvalidInputError: a damaged file, one without rows, or files of several schemas.
        UnsupportedError: a format or element type that is not read in place.
    """
    if not urls:
        raise InvalidInputError("no file to adopt was given")
    sources = list(_sources(urls, outside, hashed, progress))
    name = format or _recognise(sources[0])
    if name not in FORMATS:
        raise UnsupportedError(
            f"files of format {name!r} are not adopted; {', '.join(FORMATS)} are"
        )
    scan = _scan(name, sources, columns)
    schema = _identified(scan.schema, base)
    with ThreadPoolExecutor(1, "store") as storers:
        writer = _Writer(objects, schema, base, storers, rng)
        for fragment in scan.fragments(schema):
            writer.add(fragment)
        if not writer.rows:
            raise InvalidInputError(f"{sources[0].url} holds no rows: there is nothing to adopt")
        told = with_edges(() if base is None else base.root.lineage, _edges(name, sources))
        link = writer.finish(dict(base.root.properties) if base is not None else {}, told)
    stored = sum(source.version.size for source in sources)
    return Adopted(link, writer.rows, stored, len(sources), scan.notes)


def _sources(
    urls: Sequence[str],
    outside: Outside,
    hashed: bool | None,
    progress: Callable[[int, int], None],
) -> Iterator[AdoptedSource]:
    found = [outside.stat(url) for url in urls]
    done, total = 0, sum(version.size for version in found)
    for url, version in zip(urls, found, strict=True):
        address = parse_address(url)
        wanted = version.etag is None or (address.scheme == "file" if hashed is None else hashed)
        digest = b""
        if wanted:
            tell = partial(lambda before, read: progress(before + read, total), done)
            digest = hash_outside(outside, url, version, tell)
        done += version.size
        progress(done, total)
        yield AdoptedSource(address.url, outside, version, digest)


def _edges(name: str, sources: Sequence[AdoptedSource]) -> Iterator[ProvenanceEdge]:
    """Where the rows are: each file, or of very many the folder of the first."""
    if len(sources) <= MOST_FILE_EDGES:
        for source in sources:
            known = {"etag": source.version.etag, "blake3": source.hash.hex() or None}
            size = source.version.size
            yield imported_from(source.url, format=name, files=1, bytes=size, adopted=True, **known)
        return
    size = sum(source.version.size for source in sources)
    folder = sources[0].url.rpartition("/")[0]
    yield imported_from(folder, format=name, files=len(sources), bytes=size, adopted=True)


def _recognise(source: AdoptedSource) -> str:
    """The format of a file, by its content."""
    head = source.file().read(_HEAD_BYTES)
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(b"\x93NUMPY"):
        return "npy"
    if head[257:262] == b"ustar" or head[:2] == b"\x1f\x8b":
        return "tar"
    if head[8:9] == b"{":
        return "safetensors"
    raise damage(
        source.url, f"is no file that can be adopted in place ({', '.join(FORMATS)}). "
        "Import it: tensorrepo add"
    )  # fmt: skip


def _scan(name: str, sources: list[AdoptedSource], columns: tuple[str, ...] | None) -> FileScan:
    if name == "tar":
        return _scan_tars(sources, columns)
    scanner = {"parquet": scan_parquet, "npy": scan_npy, "safetensors": scan_safetensors}[name]
    scans = [scanner(source, columns) for source in sources]
    if name == "npy" and len(scans) > 1:
        scans = _renamed(scans)
    for source, scan in zip(sources, scans, strict=True):
        if scan.schema != scans[0].schema:
            raise damage(source.url, f"has other columns than {sources[0].url}: {scan.schema}")

    def fragments(schema: Schema) -> Iterator[AdoptedFragment]:
        for scan in scans:
            yield from scan.fragments(schema)

    return FileScan(scans[0].schema, fragments)


def _scan_tars(sources: list[AdoptedSource], columns: tuple[str, ...] | None) -> FileScan:
    survey = TarSurvey()
    for source in sources:
        survey_shard(source, survey)
    where = sources[0].url
    planned = survey.plan(where)
    every = schema_of(planned)
    schema = every.select(choose(where, every.names, columns))

    def fragments(schema: Schema) -> Iterator[AdoptedFragment]:
        for shard in survey.shards:
            yield from shard_fragments(shard, planned, schema)

    return FileScan(schema, fragments)


def _identified(schema: Schema, base: StoredDataset | None) -> Schema:
    """The schema with ids: new ones, or those of `base`, whose columns it must have."""
    if base is None:
        return Schema(
            tuple(replace(column, id=column_id(None, column)) for column in schema.columns)
        )
    if schema.without_ids() != base.schema.without_ids():
        raise InvalidInputError(
            f"the files have other columns than the dataset: {schema.without_ids()} instead of "
            f"{base.schema.without_ids()}"
        )
    if len(base.schema.visible.columns) < len(base.schema.columns):
        raise UnsupportedError(
            "the dataset keeps the sizes of its images in columns of their own, which files in "
            "place don't have: adopt them as a dataset of their own, or import them"
        )
    return base.schema


class _Writer:
    """Adopted fragments in, a root out."""

    def __init__(
        self,
        objects: ObjectSink,
        schema: Schema,
        base: StoredDataset | None,
        storers: ThreadPoolExecutor,
        rng: random.Random,
    ) -> None:
        self.rows = 0
        self._objects = objects
        self._schema = schema
        self._base = base
        self._storers = storers
        self._rng = rng
        self._tree: TreeWriter | None = None
        self._groups: Groups = ()
        self._last: tuple[ForeignFile, Digest] | None = None  # many fragments share one object

    def add(self, fragment: AdoptedFragment) -> None:
        tree = self._tree or self._begin(fragment)
        if self._last is None or self._last[0] is not fragment.file:
            link = self._objects.put(Kind.FOREIGN, encode_foreign(fragment.file))
            self._last = fragment.file, link.digest
        columns = {
            column.id: _part(column, fragment.entries[column.id], self._last[1])
            for column in self._schema.columns
        }
        parts = {
            group[0]: FragmentPart(tuple(columns[name] for name in group if name in columns))
            for group in self._groups
        }
        stored = sum(int(entries["stored_bytes"].sum()) for entries in fragment.entries.values())
        known = Fragment(self._rng.getrandbits(64), fragment.rows, parts, stored_bytes=stored)
        tree.add_known(known, counted=False)
        self.rows += fragment.rows

    def finish(
        self, properties: dict[str, Any], lineage: Sequence[Mapping[str, Any]]
    ) -> ObjectLink:
        assert self._tree is not None, "there are rows"
        return self._tree.finish(properties, lineage)

    def _begin(self, fragment: AdoptedFragment) -> TreeWriter:
        base = self._base
        if base is not None and base.root.leaves:
            self._groups = base.root.groups
        else:
            entries = (fragment.entries[column.id] for column in self._schema.columns)
            means = [int(each["stored_bytes"].sum()) / fragment.rows for each in entries]
            self._groups = column_groups(self._schema, means)
        self._tree = TreeWriter(
            self._objects, self._schema, self._groups, base, self._storers, _WAITING_BYTES
        )
        return self._tree


def _part(column: Column, entries: Any, digest: Digest) -> ColumnPart:
    # What proves a page proves its file: the tag of a page is the beginning of the digest of what
    # describes the file.
    tag = np.frombuffer(digest_bytes(digest)[:TAG_BYTES], np.uint8)
    tags = np.broadcast_to(tag, (len(entries), TAG_BYTES)).copy()
    pages = ColumnPages(column.id, column.storage, entries, tags, np.zeros(len(entries), np.uint32))
    return ColumnPart(column.id, column.storage, pages, (digest,))


def _renamed(scans: list[FileScan]) -> list[FileScan]:
    """Files of one array each have its name from theirs: all take the first one's."""
    names = scans[0].schema.names
    if len(names) != 1:
        return scans
    return [scan if scan.schema.names == names else _under(scan, names[0]) for scan in scans]


def _under(scan: FileScan, name: str) -> FileScan:
    if len(scan.schema.columns) != 1:
        return scan
    own = scan.schema.columns[0].name

    def fragments(schema: Schema) -> Iterator[AdoptedFragment]:
        (column,) = schema.columns
        return scan.fragments(Schema((replace(column, name=own),)))

    return FileScan(Schema((replace(scan.schema.columns[0], name=name),)), fragments, scan.notes)
