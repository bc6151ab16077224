"""Content addresses of fragments, which tell the rows that no version before had.

Versions share most of their fragments. A fragment is named by what metadata says of it: its uid,
its pages by their tags, its patches, the ids of its rows, and the schema that they are read by,
wherever its pages lie. Two fragments of one name hold the same rows; whether some are deleted is
another matter. The other way round it need not be. No page is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import Any, Final

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.metadata.boundaries import fragment_bounds
from tensorrepo.formats.dataset.metadata.index import ColumnPages, PageIndex
from tensorrepo.formats.dataset.metadata.manifest import Leaf
from tensorrepo.formats.dataset.metadata.tree_read import Links, read_index, read_patches, read_runs
from tensorrepo.formats.dataset.pages.page import PAGE_ENTRY, PAGE_FOREIGN, TAG_BYTES
from tensorrepo.formats.dataset.read import StoredDataset, dataset_leaves
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.ids import DIGEST_BYTES, digest_bytes
from tensorrepo.repo.objects.cache import LimitedCache

SEEN_BYTES: Final = 64 << 20  # of names that are remembered
NAME_COST: Final = 250  # bytes that one takes there, about
_PART: Final = Struct("<cI")  # what follows, and its bytes


@dataclass(frozen=True, slots=True)
class NamedFragment:
    """Rows ``[first_row, first_row + rows)`` of a version, deleted ones too, as one fragment.

    `name` is of what they are.
    """

    first_row: int
    rows: int
    name: bytes


class FragmentNames:
    """Names of the fragments of versions, which several questions in turn ask for."""

    def __init__(self) -> None:
        self._known = LimitedCache[tuple[NamedFragment, ...]](SEEN_BYTES)

    def of(self, dataset: StoredDataset, number: int, first_row: int) -> Sequence[NamedFragment]:
        """The fragments of one leaf, which begins with a physical row."""
        form = _form(dataset)
        key = b"%b%b%d" % (digest_bytes(dataset.digest), form, number)
        known = self._known.get(key)
        if known is None:
            leaf, links = dataset_leaves(dataset)[number]
            known = tuple(_named(dataset, leaf, links, form, first_row))
            self._known.put(key, known, NAME_COST * len(known))
        return known


class SeenFragments:
    """The fragments of versions that were asked about, one version after the other."""

    def __init__(self, names: FragmentNames | None = None) -> None:
        self._seen = LimitedCache[bool](SEEN_BYTES)
        self._names = names or FragmentNames()

    def fresh(self, dataset: StoredDataset) -> Ints:
        """Physical rows in fragments that no version before had: ranges, int64 ``(n, 2)``.

        They ascend and do not touch. What was asked about too long ago is fresh again.
        """
        ranges: list[list[int]] = []
        form, first = _form(dataset), 0
        for number, entry in enumerate(dataset.root.leaves):
            if not (entry.digest and self._has(form + entry.digest)):
                for fragment in self._names.of(dataset, number, first):
                    if self._has(fragment.name):
                        continue
                    stop = fragment.first_row + fragment.rows
                    if ranges and ranges[-1][1] == fragment.first_row:
                        ranges[-1][1] = stop
                    else:
                        ranges.append([fragment.first_row, stop])
            first += entry.rows
        return np.array(ranges, np.int64).reshape(-1, 2)

    def _has(self, name: bytes) -> bool:
        known = self._seen.get(name) is not None
        if not known:
            self._seen.put(name, True, NAME_COST)
        return known


def within(rows: Ints, ranges: Ints) -> Ints:
    """Those of some ascending rows that lie in ranges ``(n, 2)``, which ascend and do not touch."""
    at = np.searchsorted(ranges[:, 0], rows, side="right") - 1
    inside: Ints = rows[(at >= 0) & (rows < np.append(ranges[:, 1], 0)[at])]
    return inside


def _form(dataset: StoredDataset) -> bytes:
    return blake3(repr(dataset.schema).encode()).digest()


def _named(
    dataset: StoredDataset, leaf: Leaf, links: Links, form: bytes, first: int
) -> list[NamedFragment]:
    """The fragments of a leaf; each hash is of parts that say how long they are."""
    uids, counts = leaf.fragments["uid"].tolist(), leaf.fragments["rows"].tolist()
    hashers = [blake3(form + uid.to_bytes(8, "little")) for uid in uids]
    for at, part in _parts(dataset, leaf, links):
        hashers[at].update(part)
    found = []
    for hasher, rows in zip(hashers, counts, strict=True):
        found.append(NamedFragment(first, rows, hasher.digest()))
        first += rows
    return found


def _parts(dataset: StoredDataset, leaf: Leaf, links: Links) -> Iterator[tuple[int, bytes]]:
    """What the names of fragments are made of, by fragment of the leaf."""
    for span in leaf.indexes:
        index, _ = read_index(dataset.objects, span, links)
        for column in index.columns:
            records, bounds = _page_records(index, column), fragment_bounds(column.entries)
            about = _part(b"c", f"{column.id} {column.storage!r}".encode())
            for at, (start, stop) in enumerate(pairwise(bounds), span.first_fragment):
                yield at, about + _part(b"p", records[start:stop])
    for span in leaf.patches:
        patch, _ = read_patches(dataset.objects, span, links)
        for column in patch.index.columns:
            records, rows = _page_records(patch.index, column), column.entries["rows"]
            about = _part(b"d", f"{column.id} {column.storage!r}".encode())
            bounds = [0, *np.cumsum(rows, dtype=np.int64).tolist()]
            for place, at in enumerate(patch.fragment.tolist()):
                offsets = patch.offsets[bounds[place] : bounds[place + 1]]
                page = _part(b"p", records[place : place + 1])
                yield span.first_fragment + at, about + page + _part(b"o", offsets)
    for at, runs in read_runs(dataset.objects, leaf, links).items():
        yield at, _part(b"r", runs)


def _part(what: bytes, data: bytes | NDArray[Any]) -> bytes:
    content = data if isinstance(data, bytes) else data.tobytes()
    return _PART.pack(what, len(content)) + content


def _page_records(index: PageIndex, column: ColumnPages) -> NDArray[np.uint8]:
    """Of each page its entry and its tag: uint8 ``(pages, n)``. Where it lies says nothing of what
    it holds, but of a page in a file in place, which has no bytes of ours.
    """
    is_foreign = column.entries["codec"] == PAGE_FOREIGN
    entries = column.entries.copy()
    entries["offset"][~is_foreign] = 0
    chunks = np.zeros((len(entries), DIGEST_BYTES), np.uint8)
    for page in np.flatnonzero(is_foreign).tolist():
        chunk = index.chunks[int(column.chunk[page])]
        assert chunk is not None, "a page of a file stands nowhere else"
        chunks[page] = np.frombuffer(digest_bytes(chunk), np.uint8)
    raw = np.frombuffer(entries.tobytes(), np.uint8).reshape(-1, PAGE_ENTRY.itemsize)
    return np.concatenate([raw, column.tags.reshape(-1, TAG_BYTES), chunks], axis=1)
