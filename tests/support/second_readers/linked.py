"""Checks of datasets as stored: every named object is linked, statistics bound their values.

An object that is named but not linked is lost with the next collection; bounds that are none make a
reader pass rows over.
"""

from __future__ import annotations

from collections.abc import Callable

from tensorrepo.formats.dataset.metadata.index import PageIndex, decode_index, decode_patch_index
from tensorrepo.formats.dataset.metadata.manifest import FragmentSpan, Leaf, decode_leaf
from tensorrepo.formats.dataset.read import StoredDataset, page_reader
from tensorrepo.formats.dataset.schema.values import FixedValues, range_of, valid_rows
from tensorrepo.repo.ids import Buffer, Digest, digest_from_bytes
from tensorrepo.repo.objects.envelope import ObjectSource


def unlinked(dataset: StoredDataset) -> set[Digest]:
    """What objects of a dataset name and do not link to, or link to and do not name."""
    walk = _Walk(dataset.objects)
    named: set[Digest] = set()
    for entry in dataset.root.leaves:
        if entry.digest:
            digest = digest_from_bytes(entry.digest)
            named.add(digest)
            envelope = dataset.objects.get(digest)
            walk.compare(digest, walk.of_leaf(decode_leaf(envelope.payload, "leaf")))
        else:
            named |= walk.of_leaf(decode_leaf(entry.payload, "leaf"))
    walk.compare(dataset.digest, named)
    return walk.wrong


class _Walk:
    def __init__(self, objects: ObjectSource) -> None:
        self._objects = objects
        self.wrong: set[Digest] = set()

    def compare(self, holder: Digest, named: set[Digest]) -> None:
        self.wrong |= {link.digest for link in self._objects.get(holder).links} ^ named

    def of_leaf(self, leaf: Leaf) -> set[Digest]:
        """What a leaf names, and what stands inline in it."""
        found = {span.payload for span in leaf.spans if not isinstance(span.payload, memoryview)}
        for span in leaf.indexes:
            found |= self._of_span(span, lambda payload: decode_index(payload, "page index"))
        for span in leaf.patches:
            found |= self._of_span(span, lambda payload: decode_patch_index(payload, "patch").index)
        return found

    def _of_span(self, span: FragmentSpan, decode: Callable[[Buffer], PageIndex]) -> set[Digest]:
        """What an index names that stands inline; that of another one is compared here."""
        if isinstance(span.payload, memoryview):
            return _chunks(decode(span.payload))
        self.compare(span.payload, _chunks(decode(self._objects.get(span.payload).payload)))
        return set()


def _chunks(index: PageIndex) -> set[Digest]:
    """Chunks that pages and tiles lie in, told from these and not from the list of chunks."""
    places = {int(place) for column in index.columns for place in column.chunk}
    places |= {place for column in index.columns for each in column.tiles for place in each}
    found = (index.chunks[place] for place in places)
    return {chunk for chunk in found if chunk is not None}


def unbounded(dataset: StoredDataset) -> list[str]:
    """Columns whose statistics in the root do not hold for all of their rows."""
    wrong = []
    for column, known in zip(dataset.schema.columns, dataset.root.statistics, strict=True):
        reader = page_reader(dataset, column.name)
        nulls = 0
        holds = min(known.stored_bytes, known.raw_bytes) >= 0
        for values in map(reader.values, range(reader.index.pages)):
            nulls += int((~valid_rows(values)).sum())
            if isinstance(values, FixedValues) and values.values.ndim == 1:
                found = range_of(values.values, values.valid)
                if known.min is not None and known.max is not None and found.smallest is not None:
                    assert found.largest is not None
                    holds &= known.min <= found.smallest and found.largest <= known.max
        if not holds or nulls > known.nulls:
            wrong.append(column.name)
    return wrong
