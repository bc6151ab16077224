"""The stored formats that are declared, each with its versions and a golden file of every one.

What stands here is promised by docs/design/stability.md: an entry is never taken away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from struct import pack_into
from tempfile import TemporaryDirectory
from typing import Final

import msgspec

from tensorrepo.formats import views
from tensorrepo.formats.common import canonical
from tensorrepo.formats.dataset.external import foreign
from tensorrepo.formats.dataset.metadata import chunk, index, manifest
from tensorrepo.formats.dataset.pages import sections
from tensorrepo.formats.model.graph import graph
from tensorrepo.formats.model.layout import pack, placement
from tensorrepo.formats.model.layout.manifest import decode_manifest
from tensorrepo.formats.runs import metrics, run_record
from tensorrepo.formats.search_index import stored_index
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.backends.sql_log import SqlLogBackend
from tensorrepo.repo.changes import repository
from tensorrepo.repo.history import commits, tree_pages
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log import segments, state
from tensorrepo.repo.merge_requests import records as requests
from tensorrepo.repo.objects import envelope, history_pack
from tensorrepo.repo.objects.envelope import Kind, decode_object
from tensorrepo.repo.registry import cards
from tensorrepo.repo.transfer import bundle
from tests.support.architecture.sources import ROOT
from tests.support.builders.objects import MemoryObjects
from tests.support.golden.others import DATASET, INDEX_BLOBS

GOLDEN: Final = ROOT / "tests/golden"
HERE: Final = Digest("0" * 64)


@dataclass(frozen=True, slots=True)
class DeclaredFormat:
    """One version of one stored format.

    Attributes:
        name: what it is of.
        version: the version.
        written: the version that is written today.
        golden: its file in `tests/golden`.
        read: reads what is in such a file, and raises what a reader does.
        newer: makes of the same bytes those of the next version.
        is_object: whether the file holds a stored object, and `read` takes its payload.
    """

    name: str
    version: int
    written: int
    golden: str
    read: Callable[[bytes], object]
    newer: Callable[[bytes], bytes]
    is_object: bool = False

    @property
    def data(self) -> bytes:
        stored = (GOLDEN / self.golden).read_bytes()
        return bytes(decode_object(stored).payload) if self.is_object else stored


def _at(offset: int, form: str, version: int) -> Callable[[bytes], bytes]:
    """Writes `version` at a fixed place."""

    def newer(data: bytes) -> bytes:
        changed = bytearray(data)
        pack_into(form, changed, offset, version)
        return bytes(changed)

    return newer


def _in_map(version: int) -> Callable[[bytes], bytes]:
    """Writes `version` into a map of msgpack."""
    return lambda data: msgspec.msgpack.encode(
        msgspec.msgpack.decode(data) | {"version": version}, order="sorted"
    )


def _in_json(version: int, member: str = "version") -> Callable[[bytes], bytes]:
    return lambda data: msgspec.json.encode(
        msgspec.json.decode(data) | {member: version}, order="sorted"
    )


def _in_place(before: bytes, after: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(before, after)


def _read_bundle(data: bytes) -> object:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "some.bundle"
        path.write_bytes(data)
        opened = bundle.Bundle(path)
        try:
            return opened.verify()
        finally:
            opened.close()


def _read_view(data: bytes) -> object:
    objects = MemoryObjects()
    objects.links[DATASET.digest] = DATASET
    return views.open_view(objects, objects.put(Kind.VIEW, data, [DATASET.digest]).digest)


def _read_index(data: bytes) -> object:
    objects = MemoryObjects()
    objects.links[DATASET.digest] = DATASET
    parts = [objects.put(Kind.BLOB, blob).digest for blob in INDEX_BLOBS]
    link = objects.put(Kind.SEARCH_INDEX, data, [DATASET.digest, *parts])
    return stored_index.open_index(objects, link.digest)


def _read_identity(data: bytes) -> object:
    backend = MemoryBackend()
    backend.create(repository.IDENTITY_KEY, [data])
    with TemporaryDirectory() as folder:
        database = f"sqlite:///{folder}/log.db"
        SqlLogBackend(backend, database, "ab" * 16).prepare(data)
        opened = repository.open_repository(backend, drivers={}, database=lambda _: database)
        opened.close()
    return opened.identity


def _read_pack_directory(data: bytes) -> object:
    """Both places of a pack that say its version: its footer, and its directory."""
    start, size, _ = pack.decode_footer(data[-pack.FOOTER.size :], "pack")
    return pack.decode_directory(data[start : start + size], start, "pack")


def _read_history_pack(data: bytes) -> object:
    length = history_pack.table_bytes(data[: history_pack.HEADER.size], HERE)
    return history_pack.read_table(memoryview(data)[:length], HERE)


DECLARED: Final = (
    DeclaredFormat(
        "repository", 1, repository.SQL_FORMAT, "others/repo.json", _read_identity,
        _in_json(3, "format"),
    ),
    DeclaredFormat(
        "repository", 2, repository.SQL_FORMAT, "others/repo-sql.json", _read_identity,
        _in_json(3, "format"),
    ),
    DeclaredFormat(
        "object", 1, envelope.VERSION, "objects/model-of-two.bin", decode_object, _at(4, "<B", 2)
    ),
    DeclaredFormat(
        "history pack", 1, history_pack.VERSION, "others/history-pack.bin", _read_history_pack,
        _at(4, "<B", 2),
    ),
    DeclaredFormat(
        "commit", 1, commits.VERSION, "commits/merge.bin", commits.decode_commit, _at(1, "<B", 2)
    ),
    DeclaredFormat(
        "tree page", 2, tree_pages.VERSION, "trees/entries.bin",
        partial(tree_pages.decode_page, where="page"), _at(0, "<B", 3),
    ),
    DeclaredFormat(
        "state of the log", 1, 1, f"log/checkpoint/{64:020d}.json", state.decode_state, _in_json(2)
    ),
    DeclaredFormat(
        "segment of the log", 1, segments.VERSION, "log/segment", segments.decode_segment,
        _at(4, "<B", 2),
    ),
    DeclaredFormat(
        "bundle", 2, bundle.VERSION, "bundle/purged.bundle", _read_bundle, _at(8, "<I", 3)
    ),
    DeclaredFormat(
        "card", 1, cards.VERSION, "others/card.json", partial(cards.decode_card, where="card"),
        _in_json(2),
    ),
    DeclaredFormat(
        "merge request", 1, requests.VERSION, "others/request.json",
        partial(requests.decode_request, where="request"), _in_json(2),
    ),
    DeclaredFormat(
        "dataset", 2, manifest.VERSION, "dataset/everything/root.bin", manifest.decode_root,
        _in_map(3), is_object=True,
    ),
    DeclaredFormat(
        "chunk", 2, int(chunk.TRAILER_MAGIC[-1:]), "dataset/columns/chunk.1.bin",
        chunk.decode_footer, _in_place(chunk.TRAILER_MAGIC, b"TRPCHNK3"), is_object=True,
    ),
    DeclaredFormat(
        "sections", 1, sections.VERSION, "dataset/large/page_index.1.bin",
        partial(index.decode_index, what="page index"), _at(4, "<H", 2), is_object=True,
    ),
    DeclaredFormat(
        "foreign file", 1, foreign.VERSION, "others/foreign.bin",
        partial(foreign.decode_foreign, what="file"), _in_map(2),
    ),
    DeclaredFormat("view", 1, views.VERSION, "others/view.bin", _read_view, _in_map(2)),
    DeclaredFormat(
        "search index", 1, stored_index.VERSION, "others/search-index.bin", _read_index, _in_map(2)
    ),
    DeclaredFormat(
        "model", 2, canonical.VERSION, "model/manifest.bin",
        partial(decode_manifest, digest=HERE), _in_map(3), is_object=True,
    ),
    DeclaredFormat(
        "placement", 2, canonical.VERSION, "model/placement.bin",
        partial(placement.decode_placement, digest=HERE), _in_map(3), is_object=True,
    ),
    DeclaredFormat(
        "pack of tensors", 2, pack.VERSION, "model/pack-small.bin", _read_pack_directory,
        _in_place(b"TRPK\x02", b"TRPK\x03"), is_object=True,
    ),
    DeclaredFormat(
        "graph", 1, graph.VERSION, "others/graph.bin", partial(graph.decode_graph, where="graph"),
        _in_map(2),
    ),
    DeclaredFormat(
        "run", 1, run_record.VERSION, "run/run.bin", partial(run_record.decode_run, digest=HERE),
        _in_map(2), is_object=True,
    ),
    DeclaredFormat(
        "points of a metric", 1, metrics.VERSION, "run/metrics.bin",
        partial(metrics.decode_points, digest=HERE), _in_map(2),
        is_object=True,
    ),
)  # fmt: skip
