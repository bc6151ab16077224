"""Stored bytes that are read with others: pages with their entries, frames with their bases.

A mutant begins with the number of what it stands in for. Its sums are taken for right, as those of
one who made all of it would be: pages are decoded without them, and objects are served under the
name of the one that they stand in for.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.tensors import TYPES
from tensorrepo.formats.dataset.pages.page import (
    HAS_ROW_SUMS,
    check_rows,
    decode_page,
    expected_bytes,
    split_page,
)
from tensorrepo.formats.dataset.pages.tiles import decode_tile_table
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset, page_reader
from tensorrepo.formats.dataset.schema.types import Storage
from tensorrepo.formats.dataset.verification import page_problems, verify_dataset
from tensorrepo.formats.model.delta.frame_codec import FrameCodec, FrameShape
from tensorrepo.formats.model.delta.plane_codec import StoredPlane
from tensorrepo.formats.model.delta.predictions import AdamParams
from tensorrepo.formats.model.delta.registry import ADAM, CODECS, PALETTE
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.model.verification import verify_model
from tensorrepo.formats.search_index.sorted_values import SortedSegment
from tensorrepo.formats.search_index.stored_index import open_index
from tensorrepo.formats.views import open_view
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import Envelope, Kind, ObjectLink
from tests.support.builders.objects import MemoryObjects
from tests.support.golden.dataset import CASES
from tests.support.golden.model import golden_family, kept_objects
from tests.support.golden.others import DATASET, INDEX_BLOBS
from tests.support.golden.others import GOLDEN as OTHERS

NUMBER = struct.Struct("<H")
MOST_ROWS = 5_000  # of a dataset that is read: more rows than any of the real ones has
_PLANE = struct.Struct("<BI")
_STEP = AdamParams("weight", 7, 1e-3, (0.9, 0.999), 1e-8, 0.01, decoupled=True).pack()


def chosen(data: bytes, number: int) -> tuple[int, bytes]:
    """Which of so many a mutant stands in for, and the bytes that it brings."""
    head = data[: NUMBER.size].ljust(NUMBER.size, b"\0")
    return NUMBER.unpack(head)[0] % number, data[NUMBER.size :]


def numbered(stored: Sequence[Buffer]) -> list[bytes]:
    return [NUMBER.pack(number) + bytes(data) for number, data in enumerate(stored)]


# ------------------------------------------------------------------------------ pages


class Page(NamedTuple):
    """A page, and what its index says of it; `tile_chunks` where it is a table of tiles."""

    data: bytes
    entry: NDArray[Any]
    storage: Storage
    tile_chunks: int | None


@cache
def golden_pages() -> tuple[Page, ...]:
    """All pages of all golden datasets."""
    return tuple(page for make in CASES.values() for page in _pages(make().dataset))


def _pages(dataset: StoredDataset) -> Iterator[Page]:
    for column in dataset.schema.columns:
        reader = page_reader(dataset, column.name)
        for page in range(reader.index.pages):
            if reader.link(page) is not None:
                chunks = len(reader.index.tiles[page]) if reader.is_tiled(page) else None
                entry = reader.index.entries[page]
                yield Page(bytes(reader.bytes(page)), entry, reader.storage(page), chunks)


def page_corpus() -> list[bytes]:
    return numbered([page.data for page in golden_pages()])


def read_page(mutant: bytes) -> None:
    """Decode it as what it stands in for, prove its rows, and take each of them."""
    pages = golden_pages()
    at, data = chosen(mutant, len(pages))
    _, entry, storage, tile_chunks = pages[at]
    if len(data) != int(entry["stored_bytes"]):
        data = data[: int(entry["stored_bytes"])].ljust(int(entry["stored_bytes"]), b"\0")
    view = memoryview(data)
    if tile_chunks is not None:
        decode_tile_table(view, entry, storage, tile_chunks)
        return
    values = decode_page(view, entry, storage)
    values.take(np.arange(values.rows)[::-1].copy())
    if entry["flags"] & HAS_ROW_SUMS:
        check_rows(
            values, np.frombuffer(split_page(view, expected_bytes(entry, storage))[2], "<u4")
        )
    list(page_problems(entry, values, storage))


# ------------------------------------------------------------------------------ frames


class Frame(NamedTuple):
    """A frame as its codec has it: `planes` are read again with `codec`, `bases` and `shape`."""

    codec: FrameCodec
    planes: bytes
    bases: tuple[bytes, ...]
    shape: FrameShape


@cache
def frames() -> tuple[Frame, ...]:
    """Frames of every codec, small and large, of every type of numbers that it takes."""
    made = []
    for codec in CODECS.values():
        for name in ("F32", "BF16", "F16", "I8", "F64"):
            element = TYPES[name]
            if codec.fits(element, (40, 1)):
                made += [_frame(codec, name, count) for count in (60, 5_000)]
    return tuple(frame for frame in made if frame is not None)


def _frame(codec: FrameCodec, name: str, count: int) -> Frame | None:
    element, rng = TYPES[name], np.random.default_rng(count)
    size = count * element.block_bytes
    base = rng.integers(0, 256, size, np.uint8)
    frame = base.copy()
    frame[:: element.block_bytes] ^= rng.integers(0, 4, count, np.uint8)
    if codec is PALETTE:
        frame = rng.choice(rng.integers(0, 256, (9, element.block_bytes), np.uint8), count).ravel()
    bases = (base.tobytes(),) * codec.bases
    if codec.base_type:  # of wider numbers, whose highest bytes are those
        wide = (base.view("<u2").astype("<u4") << 16).astype("<u4")
        bases = (wide.tobytes(),) * codec.bases
    shape = FrameShape(element, size, 3 * element.block_bytes, 0, _STEP if codec is ADAM else b"")
    planes = codec.encode(memoryview(frame.tobytes()), [memoryview(each) for each in bases], shape)
    if planes is None:
        return None
    stored = b"".join(_PLANE.pack(each.codec, each.size_bytes) + each.data for each in planes)
    return Frame(codec, stored, bases, shape)


def frame_corpus() -> list[bytes]:
    return numbered([frame.planes for frame in frames()])


def read_frame(mutant: bytes) -> None:
    known = frames()
    at, data = chosen(mutant, len(known))
    codec, _, bases, shape = known[at]
    planes, start = [], 0
    while start + _PLANE.size <= len(data):
        kind, size = _PLANE.unpack_from(data, start)
        start += _PLANE.size
        planes.append(StoredPlane(kind, data[start : start + size]))
        start += size
    out = memoryview(bytearray(shape.size_bytes))
    codec.decode(planes, [memoryview(each) for each in bases], shape, out)


# ------------------------------------------------------------------------------ objects


class StandIns(MemoryObjects):
    """Objects of which one is served with another payload."""

    def __init__(self, like: MemoryObjects, name: Digest, payload: bytes) -> None:
        super().__init__()
        self.stored, self.links = like.stored, dict(like.links)
        self._name = name
        true = super().get(name)
        self._served = Envelope(true.kind, true.links, memoryview(payload))
        self.links[name] = self._served.link(name)

    def get(self, digest: Digest) -> Envelope:
        return self._served if digest == self._name else super().get(digest)

    def read_range(self, link: ObjectLink, start: int, stop: int) -> Buffer:
        found = memoryview(super().read_range(link, start, stop))
        if found.nbytes != stop - start:  # as a store says it
            raise CorruptError(f"{link.digest:.12} ends before byte {stop}")
        return found

    def _payload(self, link: ObjectLink) -> memoryview:
        return self._served.payload if link.digest == self._name else super()._payload(link)


class Whole(NamedTuple):
    """Objects that are read together, `changed` of them as a mutant has it."""

    objects: MemoryObjects
    changed: Digest
    read: Callable[[MemoryObjects], object]


@cache
def whole_datasets() -> tuple[Whole, ...]:
    """Each object of the golden datasets but chunks, whose pages have tags."""
    found = []
    for make in CASES.values():
        dataset = make().dataset
        objects = dataset.objects
        assert isinstance(objects, MemoryObjects), "cases are made in memory"
        names = _reached(objects, dataset.digest)
        read = _reads_dataset(dataset.digest)
        found += [
            Whole(objects, each, read)
            for each in names
            if objects.links[each].kind is not Kind.CHUNK
        ]
    return tuple(found)


def _reads_dataset(root: Digest) -> Callable[[MemoryObjects], None]:
    def read(objects: MemoryObjects) -> None:
        dataset = open_dataset(objects, root)
        if dataset.root.rows > MOST_ROWS:
            return
        list(verify_dataset(dataset))
        for _ in islice(dataset, MOST_ROWS):
            pass

    return read


@cache
def whole_models() -> tuple[Whole, ...]:
    """Each object of a golden model that is stored as the difference from another."""
    objects, (_, entry) = kept_objects("family"), golden_family()
    return tuple(Whole(objects, name, _reads_model(entry)) for name in sorted(objects.stored))


def _reads_model(entry: Entry) -> Callable[[MemoryObjects], None]:
    def read(objects: MemoryObjects) -> None:
        model = open_model(objects, entry)
        verify_model(model)

    return read


@cache
def lone_objects() -> tuple[Whole, ...]:
    """Views and indexes, with the files of those."""
    objects = MemoryObjects()
    objects.links[DATASET.digest] = DATASET
    files = sorted(OTHERS.glob("value-index-*.bin"))
    parts = [objects.put(Kind.BLOB, path.read_bytes()).digest for path in files]
    blobs = [objects.put(Kind.BLOB, blob).digest for blob in INDEX_BLOBS]
    found = []
    for name, kind, read, linked in (
        ("view", Kind.VIEW, open_view, []),
        ("search-index", Kind.SEARCH_INDEX, _read_index, blobs),
        ("value-index", Kind.SEARCH_INDEX, _read_index, parts),
    ):
        payload = (OTHERS / f"{name}.bin").read_bytes()
        made = objects.put(kind, payload, sorted([DATASET.digest, *linked])).digest
        names = [made, *(parts if linked is parts else [])]
        found += [Whole(objects, each, partial(_open, read, made)) for each in names]
    return tuple(found)


def _open(read: Callable[[Any, Digest], object], name: Digest, objects: MemoryObjects) -> object:
    return read(objects, name)


def _read_index(objects: MemoryObjects, name: Digest) -> None:
    for segment in open_index(objects, name).segments:
        if segment.method not in {"ivf_pq", "empty"}:  # those are Lance's
            asked = SortedSegment(objects, segment, LimitedCache(1 << 20))
            asked.positions([-2, 7], "left")
            for _ in asked.every_block():
                pass


def _reached(objects: MemoryObjects, root: Digest) -> list[Digest]:
    found, waiting = [root], [root]
    while waiting:
        for link in objects.get(waiting.pop()).links:
            if link.digest not in found:
                found.append(link.digest)
                waiting.append(link.digest)
    return found


def whole_corpus(wholes: Callable[[], tuple[Whole, ...]]) -> Callable[[], list[bytes]]:
    return lambda: numbered([each.objects.get(each.changed).payload for each in wholes()])


def read_whole(wholes: Callable[[], tuple[Whole, ...]]) -> Callable[[bytes], None]:
    def read(mutant: bytes) -> None:
        known = wholes()
        at, payload = chosen(mutant, len(known))
        objects, changed, read_all = known[at]
        read_all(StandIns(objects, changed, payload))

    return read
