"""How do the changes of one version get onto another?

Fragments that the other version has more are put behind, with their chunks. Columns that it
replaced or added are linked fragment by fragment where these are the same, so that nothing is
encoded anew; what is left are single cells, which become patches as an update makes them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.dataset.editing.where import by_leaf
from tensorrepo.formats.dataset.merging.mergecellwrite import CellWriter
from tensorrepo.formats.dataset.read import open_dataset
from tensorrepo.formats.dataset.tree.deletions import pack_deletions, unpack_deletions
from tensorrepo.formats.dataset.tree.fragments import Fragment, leaf_fragments, read_fragments
from tensorrepo.formats.dataset.tree.rowruns import ids_of_runs, plain_run, runs_of_ids
from tensorrepo.formats.dataset.tree.spans import FragmentPart
from tensorrepo.formats.dataset.tree.treewrite import TreeWriter
from tensorrepo.repo.ids import content_tag, digest_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.merging.mergerows import RowPlan, Side
    from tensorrepo.formats.dataset.merging.mergeschema import MergedRoot
    from tensorrepo.formats.dataset.read import Dataset
    from tensorrepo.formats.dataset.tree.spans import ColumnPart
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import ObjectSink

WAITING_BYTES = 16 << 20


def write_merged(
    objects: ObjectSink, onto: Side, other: Side, root: MergedRoot, rows: RowPlan
) -> Digest:
    """Store `onto` with what `rows` says of `other`; gives the digest of the root."""
    joined = _Joining(objects, onto, other, root, rows).joined()
    same_columns = root.schema == onto.dataset.schema == other.dataset.schema
    same_facts = (joined.root.properties, joined.root.lineage) == (root.properties, root.lineage)
    if same_columns and same_facts and not len(rows.killed) and not rows.cells:
        return joined.digest
    return CellWriter(objects, joined, onto, other, root, rows).write(count_added=not same_columns)


class _Joining:
    """Puts fragments of `other` behind `onto`, and takes deletions back."""

    def __init__(
        self, objects: ObjectSink, onto: Side, other: Side, root: MergedRoot, rows: RowPlan
    ) -> None:
        self._objects = objects
        self._onto = onto
        self._other = other
        self._root = root
        self._rows = rows
        self._live = frozenset(column.id for column in root.schema.columns)

    def joined(self) -> Dataset:
        """`onto` with more rows, under the merged schema; itself where no row came."""
        onto, rows, root = self._onto.dataset, self._rows, self._root
        if not rows.whole and not rows.masked and not len(rows.revived):
            return onto
        same_columns = root.schema == onto.schema == self._other.dataset.schema
        with ThreadPoolExecutor(1, "store") as storers:
            tree = TreeWriter(
                self._objects,
                root.schema,
                root.groups,
                onto,
                storers,
                WAITING_BYTES,
                behind=not len(rows.revived),
            )
            if len(rows.revived):
                self._put_revived(tree)
            for fragment in self._fragments():
                tree.add_known(self._regrouped(fragment), counted=not same_columns)
            link = tree.finish(root.properties, root.lineage)
        return open_dataset(self._objects, link.digest, onto.outside)

    # -------------------------------------------------------------------------- rows that come back

    def _put_revived(self, tree: TreeWriter) -> None:
        """All of `onto`, some of its rows deleted no more."""
        onto, revived = self._onto.dataset, self._rows.revived
        touched = dict(by_leaf(onto, revived))
        for number, entry in enumerate(onto.root.leaves):
            if number not in touched:
                tree.keep_leaf(onto, entry, last=number == len(onto.root.leaves) - 1)
                continue
            back = {
                each.fragment: revived[each.start : each.stop] - each.first_row
                for each in touched[number]
            }
            for at, fragment in enumerate(leaf_fragments(onto, entry)):
                whole = _revived(fragment, back[at]) if at in back else fragment
                tree.add_known(self._regrouped(whole), counted=True)

    # -------------------------------------------------------------------------- rows that come

    def _fragments(self) -> Iterator[Fragment]:
        """The fragments of `other` that are put behind, in its order."""
        rows, other = self._rows, self._other
        if not rows.masked:
            for fragment in read_fragments(other.pair.new.dataset):
                if fragment.uid in rows.whole:
                    yield fragment
            return
        first_row = 0
        for fragment in read_fragments(other.dataset):
            if fragment.uid in rows.whole:
                yield fragment
            elif fragment.uid in rows.masked:
                yield self._masked(fragment, rows.masked[fragment.uid] - first_row)
            first_row += fragment.rows

    def _masked(self, fragment: Fragment, wanted: NDArray[np.int64]) -> Fragment:
        """The fragment with all rows deleted but those at offsets `wanted`.

        The others get ids that no row has: their own are those of rows of `onto`.
        """
        seed = (digest_bytes(each.dataset.digest) for each in (self._onto, self._other))
        uid = int.from_bytes(
            content_tag(b"".join(seed) + fragment.uid.to_bytes(8, "little"))[:8], "little"
        )
        runs = plain_run(fragment.uid, fragment.rows) if fragment.runs is None else fragment.runs
        ids = ids_of_runs(runs)
        hidden = np.ones(fragment.rows, np.bool_)
        hidden[wanted] = False
        offsets = np.flatnonzero(hidden)
        ids["fragment"][offsets], ids["offset"][offsets] = uid, offsets
        deletions = pack_deletions(offsets, fragment.rows) if len(offsets) else None
        return replace(fragment, uid=uid, runs=runs_of_ids(ids), deletions=deletions)

    def _regrouped(self, fragment: Fragment) -> Fragment:
        """The fragment with its columns in the groups of the result."""
        columns: dict[str, ColumnPart] = {
            column.id: column
            for part in fragment.parts.values()
            for column in part.columns
            if column.id in self._live
        }
        parts = {}
        for group in self._root.groups:
            known = fragment.parts.get(group[0])
            mine = {each: columns[each] for each in group if each in columns}
            if known is not None and {each.id for each in known.columns} == mine.keys():
                parts[group[0]] = known
            elif mine:
                parts[group[0]] = FragmentPart(tuple(mine.values()))
        patches = {each: some for each, some in fragment.patches.items() if each in self._live}
        return replace(fragment, parts=parts, patches=patches)


def _revived(fragment: Fragment, offsets: NDArray[np.int64]) -> Fragment:
    """The fragment with rows at `offsets` deleted no more."""
    assert fragment.deletions is not None, "its rows are deleted"
    dead = np.setdiff1d(unpack_deletions(fragment.deletions, fragment.rows), offsets)
    return replace(fragment, deletions=pack_deletions(dead, fragment.rows) if len(dead) else None)
