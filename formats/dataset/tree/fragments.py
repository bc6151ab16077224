"""The fragments of a dataset, one by one, as writers pass them on: no page is read.

A fragment is whole with this: its uid, its rows, its pages by column group, and what was deleted,
patched and moved since.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.tree.index import column_pages
from tensorrepo.formats.dataset.tree.spans import column_part, index_parts, part_of
from tensorrepo.formats.dataset.tree.spanwrite import PatchPart
from tensorrepo.formats.dataset.tree.treeread import (
    Links,
    covering,
    read_deletions,
    read_index,
    read_leaf,
    read_patches,
    read_runs,
)
from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.read import Dataset
    from tensorrepo.formats.dataset.tree.deletions import Deletions
    from tensorrepo.formats.dataset.tree.manifest import Leaf, LeafEntry
    from tensorrepo.formats.dataset.tree.spans import FragmentPart
    from tensorrepo.repo.objects import ObjectSource


@dataclass(frozen=True, slots=True, eq=False)
class Fragment:
    """Rows written together.

    Attributes:
        uid: its name for good.
        rows: deleted ones too.
        parts: pages by column group; a group that is not here has none: its rows take defaults.
        deletions: None when no row is deleted.
        runs: ids of the rows, RUN; None when they were written here.
        patches: by column, in the order in which they were set.
        stored_bytes: of all pages that are in chunks or inline already.
    """

    uid: int
    rows: int
    parts: Mapping[str, FragmentPart]
    deletions: Deletions | None = None
    runs: NDArray[Any] | None = None
    patches: Mapping[str, tuple[PatchPart, ...]] = field(default_factory=dict)
    stored_bytes: int = 0


def read_fragments(dataset: Dataset, first: int = 0) -> Iterator[Fragment]:
    """The fragments from number `first` on, in order."""
    passed = 0
    for entry in dataset.root.leaves:
        if passed + entry.fragments > first:
            yield from leaf_fragments(dataset, entry, max(0, first - passed))
        passed += entry.fragments


def leaf_fragments(dataset: Dataset, entry: LeafEntry, first: int = 0) -> Iterator[Fragment]:
    """The fragments of one leaf from its number `first` on; dropped columns are left out."""
    objects = dataset.objects
    leaf, links = read_leaf(objects, dataset.links, entry)
    live = frozenset(column.id for column in dataset.schema.columns)
    groups = {
        group[0]: group_parts(objects, leaf, links, group[0], live) for group in dataset.root.groups
    }
    deletions, runs = read_deletions(objects, leaf, links), read_runs(objects, leaf, links)
    patches = leaf_patches(objects, leaf, links, live)
    for at, record in enumerate(leaf.fragments):
        parts = {group: part for group, found in groups.items() if (part := next(found))}
        if at >= first:
            yield Fragment(
                int(record["uid"]),
                int(record["rows"]),
                parts,
                deletions.get(at),
                runs.get(at),
                {column: each[at] for column, each in patches.items() if at in each},
                int(record["stored_bytes"]),
            )


def group_parts(
    objects: ObjectSource, leaf: Leaf, links: Links, group: str, live: frozenset[str]
) -> Iterator[FragmentPart | None]:
    """Per fragment of the leaf its pages of one column group, None where it has none."""
    for start, stop, span in covering(leaf.indexes, group, len(leaf.fragments)):
        if span is None:
            yield from (None for _ in range(start, stop))
        else:
            yield from index_parts(read_index(objects, span, links)[0], live)


def leaf_patches(
    objects: ObjectSource, leaf: Leaf, links: Links, live: frozenset[str]
) -> dict[str, dict[int, tuple[PatchPart, ...]]]:
    """Patches of the columns `live`, by fragment of the leaf."""
    found: dict[str, dict[int, tuple[PatchPart, ...]]] = {}
    for span in leaf.patches:
        if span.group in live:
            patch, _ = read_patches(objects, span, links)
            pages = column_pages(patch.index, span.group)
            if pages is None:
                raise CorruptError(f"a patch of column {span.group} holds another column")
            stops = np.cumsum(pages.entries["rows"], dtype=np.int64).tolist()
            for at, fragment in enumerate(patch.fragment.tolist()):
                start = stops[at] - int(pages.entries["rows"][at])
                part = PatchPart(
                    column_part(patch.index, part_of(pages, at, at + 1)),
                    patch.offsets[start : stops[at]],
                )
                of_column = found.setdefault(span.group, {})
                place = span.first_fragment + fragment
                of_column[place] = (*of_column.get(place, ()), part)
    return found
