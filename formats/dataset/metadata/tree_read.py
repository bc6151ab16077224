"""Reader of the metadata below a root: leaves, and what covers their fragments.

Everything is checked against what its parent says of it. `leaf_part` makes some fragments of a leaf
a leaf of their own, in which everything stands inline, so that readers of datasets read a part of
one without the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.dataset.metadata.boundaries import fragment_bounds, part_of
from tensorrepo.formats.dataset.metadata.deletions import (
    Deletions,
    decode_deletion_map,
    encode_deletion_map,
)
from tensorrepo.formats.dataset.metadata.index import (
    PageIndex,
    PatchIndex,
    decode_index,
    decode_patch_index,
    encode_index,
    encode_patch_index,
)
from tensorrepo.formats.dataset.metadata.manifest import (
    HAS_RUNS,
    NO_GROUP,
    FragmentSpan,
    Leaf,
    LeafEntry,
    decode_leaf,
)
from tensorrepo.formats.dataset.metadata.row_ids import decode_row_runs
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import Digest, digest_from_bytes
from tensorrepo.repo.objects.envelope import ObjectLink, ObjectSource

Links = Mapping[Digest, "ObjectLink"]
_Found = TypeVar("_Found")


def read_leaf(objects: ObjectSource, root_links: Links, entry: LeafEntry) -> tuple[Leaf, Links]:
    """A leaf, and the links of the object that it stands in.

    `root_links` are those of the root object, for leaves that stand in it.
    """
    if not entry.digest:
        leaf, links = decode_leaf(entry.payload, "inline leaf"), root_links
    else:
        digest = digest_from_bytes(entry.digest)
        envelope = objects.get(digest)
        leaf = decode_leaf(envelope.payload, f"leaf {digest:.12}")
        links = {link.digest: link for link in envelope.links}
    if leaf.counts != (entry.fragments, entry.rows, entry.deleted):
        raise CorruptError("dataset root: a leaf holds other counts than the root says")
    return leaf, links


def read_index(objects: ObjectSource, span: FragmentSpan, links: Links) -> tuple[PageIndex, Links]:
    """The page index of a span, and the links of the object that it stands in."""
    return _read(objects, span, links, decode_index, "page index")


def read_patches(
    objects: ObjectSource, span: FragmentSpan, links: Links
) -> tuple[PatchIndex, Links]:
    """The patch index of a span, and the links of the object that it stands in."""
    return _read(objects, span, links, decode_patch_index, "patch")


def read_deletions(objects: ObjectSource, leaf: Leaf, links: Links) -> dict[int, Deletions]:
    """The deletions of every fragment of a leaf that has any."""
    found: dict[int, Deletions] = {}
    for span in leaf.deletions:
        some, _ = _read(objects, span, links, decode_deletion_map, "deletion map")
        found.update(_placed(some, span, "deletion map"))
    expected = leaf.fragments["deleted"]
    flagged = np.flatnonzero(expected).tolist()
    if sorted(found) != flagged or any(found[at].deleted != expected[at] for at in flagged):
        raise CorruptError("a leaf counts other deleted rows than its deletion maps hold")
    return found


def read_runs(objects: ObjectSource, leaf: Leaf, links: Links) -> dict[int, NDArray[Any]]:
    """RUN arrays of every fragment of a leaf whose rows were written elsewhere."""
    found: dict[int, NDArray[Any]] = {}
    for span in leaf.runs:
        some, _ = _read(objects, span, links, decode_row_runs, "row runs")
        found.update(_placed(some, span, "row runs"))
    flagged = np.flatnonzero(leaf.fragments["flags"] & HAS_RUNS).tolist()
    rows = leaf.fragments["rows"]
    if sorted(found) != flagged or any(
        int(found[at]["rows"].sum(dtype=np.int64)) != rows[at] for at in flagged
    ):
        raise CorruptError("row runs of a leaf do not name its rows")
    return found


def _read(
    objects: ObjectSource,
    span: FragmentSpan,
    links: Links,
    decode: Callable[[Any, str], _Found],
    what: str,
) -> tuple[_Found, Links]:
    if isinstance(span.payload, memoryview):
        return decode(span.payload, f"inline {what}"), links
    envelope = objects.get(span.payload)
    found = decode(envelope.payload, f"{what} {span.payload:.12}")
    return found, {link.digest: link for link in envelope.links}


def _placed(some: Mapping[int, _Found], span: FragmentSpan, what: str) -> dict[int, _Found]:
    """By fragment of the leaf instead of the span."""
    if any(fragment >= span.fragments for fragment in some):
        raise CorruptError(f"{what}: a fragment beyond the {span.fragments} that it covers")
    return {span.first_fragment + fragment: each for fragment, each in some.items()}


def covering(
    spans: Sequence[FragmentSpan], group: str, fragments: int
) -> list[tuple[int, int, FragmentSpan | None]]:
    """What covers fragments ``[0, fragments)`` of one group: start, stop, and span or None."""
    found: list[tuple[int, int, FragmentSpan | None]] = []
    reached = 0
    for span in spans:
        if span.group == group:
            if span.first_fragment > reached:
                found.append((reached, span.first_fragment, None))
            found.append((span.first_fragment, span.stop_fragment, span))
            reached = span.stop_fragment
    if reached < fragments:
        found.append((reached, fragments, None))
    return found


def leaf_part(
    objects: ObjectSource, leaf: Leaf, links: Links, some: range, columns: frozenset[str]
) -> tuple[Leaf, Links]:
    """Fragments `some` of a leaf, and links of all that they name.

    Pages and patches of other columns than those of ids `columns` are left out.
    """
    known = dict(links)
    indexes = tuple(_indexes(objects, leaf, known, some, columns))
    patches = tuple(_patches(objects, leaf, known, some, columns))
    fragments = leaf.fragments[some.start : some.stop]
    deletions: tuple[FragmentSpan, ...] = ()
    if fragments["deleted"].any():
        found = read_deletions(objects, leaf, links)
        here = {at - some.start: each for at, each in found.items() if at in some}
        payload = memoryview(encode_deletion_map(here))
        deletions = (FragmentSpan(NO_GROUP, 0, len(some), payload),)
    return Leaf(fragments, indexes, deletions, patches), known


def _indexes(
    objects: ObjectSource,
    leaf: Leaf,
    known: dict[Digest, ObjectLink],
    some: range,
    columns: frozenset[str],
) -> Iterator[FragmentSpan]:
    """The page indexes of these fragments; what they link to is added to `known`."""
    for span, first, stop in _within(leaf.indexes, some):
        index, links = read_index(objects, span, known)
        cut = _cut(index, first - span.first_fragment, stop - span.first_fragment, columns)
        if cut.columns:
            known.update(links)
            payload = memoryview(encode_index(cut))
            yield replace(
                span, first_fragment=first - some.start, fragments=stop - first, payload=payload
            )


def _within(spans: Iterable[FragmentSpan], some: range) -> Iterator[tuple[FragmentSpan, int, int]]:
    """Spans that have fragments among `some`, with the first of these and the one behind them."""
    for span in spans:
        first, stop = max(span.first_fragment, some.start), min(span.stop_fragment, some.stop)
        if first < stop:
            yield span, first, stop


def _cut(index: PageIndex, first: int, stop: int, columns: frozenset[str]) -> PageIndex:
    """The pages of fragments ``[first, stop)``, counted within the index."""
    parts = []
    for pages in index.columns:
        if pages.id in columns:
            bounds = fragment_bounds(pages.entries)
            parts.append(part_of(pages, bounds[first], bounds[stop]))
    return PageIndex(tuple(parts), index.chunks, index.inline)


def _patches(
    objects: ObjectSource,
    leaf: Leaf,
    known: dict[Digest, ObjectLink],
    some: range,
    columns: frozenset[str],
) -> Iterator[FragmentSpan]:
    """The patch indexes of these fragments; what they link to is added to `known`."""
    for span, first, stop in _within(leaf.patches, some):
        if span.group not in columns:
            continue
        patch, links = read_patches(objects, span, known)
        low, high = np.searchsorted(
            patch.fragment, [first - span.first_fragment, stop - span.first_fragment]
        ).tolist()
        if low < high:
            known.update(links)
            fragments = patch.fragment[low:high] - np.uint32(first - span.first_fragment)
            payload = memoryview(encode_patch_index(_cut_patches(patch, low, high, fragments)))
            yield replace(
                span, first_fragment=first - some.start, fragments=stop - first, payload=payload
            )


def _cut_patches(
    patch: PatchIndex, low: int, high: int, fragments: NDArray[np.uint32]
) -> PatchIndex:
    """Pages ``[low, high)`` of a patch index, which are of `fragments` of what is cut out."""
    pages = part_of(patch.index.columns[0], low, high)
    entries = pages.entries.copy()
    begin = int(entries["first_row"][0])
    entries["first_row"] -= np.uint32(begin)
    count = int(entries["rows"].sum(dtype=np.int64))
    index = replace(patch.index, columns=(replace(pages, entries=entries),))
    return PatchIndex(index, fragments, patch.offsets[begin : begin + count])
