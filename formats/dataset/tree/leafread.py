"""How is a part of a leaf read as if it were all there is?

Some fragments of a leaf, with what covers them cut to just these, make a leaf of their own in which
everything stands inline. So whoever reads datasets reads a part of one, without the rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tensorrepo.formats.dataset.tree.deletions import encode_deletion_map
from tensorrepo.formats.dataset.tree.index import PageIndex, encode_index
from tensorrepo.formats.dataset.tree.manifest import NO_GROUP, Leaf, Span
from tensorrepo.formats.dataset.tree.spans import fragment_bounds, part_of
from tensorrepo.formats.dataset.tree.treeread import Links, read_deletions, read_index

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import Link, ObjectSource


def leaf_part(
    objects: ObjectSource, leaf: Leaf, links: Links, some: range, columns: frozenset[str]
) -> tuple[Leaf, Links]:
    """Fragments `some` of a leaf without patches, and links of all that they name.

    Args:
        objects: where the leaf's page indexes and deletion maps are.
        leaf: the whole one.
        links: those of the object that it stands in.
        some: which of its fragments.
        columns: ids of those that are wanted; pages of others are left out.
    """
    known = dict(links)
    indexes = tuple(_indexes(objects, leaf, known, some, columns))
    fragments = leaf.fragments[some.start : some.stop]
    deletions: tuple[Span, ...] = ()
    if fragments["deleted"].any():
        found = read_deletions(objects, leaf, links)
        here = {at - some.start: each for at, each in found.items() if at in some}
        payload = memoryview(encode_deletion_map(here))
        deletions = (Span(NO_GROUP, 0, len(some), payload),)
    return Leaf(fragments, indexes, deletions), known


def _indexes(
    objects: ObjectSource,
    leaf: Leaf,
    known: dict[Digest, Link],
    some: range,
    columns: frozenset[str],
) -> Iterator[Span]:
    """The page indexes of these fragments; what they link to is added to `known`."""
    for span in leaf.indexes:
        first, stop = max(span.first_fragment, some.start), min(span.stop_fragment, some.stop)
        if first >= stop:
            continue
        index, links = read_index(objects, span, known)
        cut = _cut(index, first - span.first_fragment, stop - span.first_fragment, columns)
        if cut.columns:
            known.update(links)
            payload = memoryview(encode_index(cut))
            yield replace(
                span, first_fragment=first - some.start, fragments=stop - first, payload=payload
            )


def _cut(index: PageIndex, first: int, stop: int, columns: frozenset[str]) -> PageIndex:
    """The pages of fragments ``[first, stop)``, counted within the index."""
    parts = []
    for pages in index.columns:
        if pages.id in columns:
            bounds = fragment_bounds(pages.entries)
            parts.append(part_of(pages, bounds[first], bounds[stop]))
    return PageIndex(tuple(parts), index.chunks, index.inline)
