"""Which parts of two versions of a dataset can differ at all?

Leaves that both versions have are left out, and so are, for finding what differs, page indexes
that both have for the same fragments. What remains is again a dataset, only smaller: rows are
counted in it, and `Part` maps them to rows of the whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.columns.defaults import default_values
from tensorrepo.formats.dataset.columns.schema import Schema
from tensorrepo.formats.dataset.comparing.cellequal import differing
from tensorrepo.formats.dataset.read import Dataset, dataset_leaves, live_rows
from tensorrepo.formats.dataset.tree.manifest import LeafEntry, encode_leaf

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.dataset.columns.schema import Column
    from tensorrepo.formats.dataset.tree.manifest import Leaf, Span

_LeafKey = tuple[bytes, bytes]
_SpanKey = tuple[str, "str | bytes", bytes]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What of one version the other does not have as a whole.

    Attributes:
        dataset: the version with those leaves alone. Rows of a part are physical rows of this.
        compared: the same rows without the page indexes that the other has as well. Its indexes
            say where pages lie that can differ; its values mean nothing.
        first_row: int64 ``(leaves,)``: the row of the part that each leaf begins with.
        skipped: int64 ``(leaves,)``: physical rows of the version left out before each leaf.
        skipped_live: int64 ``(leaves,)``: live ones.
        total: physical rows of the whole version.
    """

    dataset: Dataset
    compared: Dataset
    first_row: NDArray[np.int64]
    skipped: NDArray[np.int64]
    skipped_live: NDArray[np.int64]
    total: int

    @property
    def dead(self) -> NDArray[np.int64]:
        """Deleted rows, ascending."""
        live = live_rows(self.dataset)
        return np.zeros(0, np.int64) if live is None else live.dead

    def physical(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Physical rows of the whole version."""
        return rows + self.skipped[self._leaf(rows)] if len(rows) else rows

    def live(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Live rows of the whole version; none of `rows` is deleted."""
        if not len(rows):
            return rows
        live = live_rows(self.dataset)
        mine = rows if live is None else live.live(rows)
        return mine + self.skipped_live[self._leaf(rows)]

    def _leaf(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(self.first_row, rows, side="right") - 1


def narrow(old: Dataset, new: Dataset, *, whole: bool = False) -> tuple[Part, Part]:
    """The parts of two versions that can differ; all of both when `whole`."""
    # Rows that take a default that changed are not what they were, however equal leaves are.
    if whole or _defaults_changed(old.schema, new.schema):
        return _part(old, old, set(), set()), _part(new, new, set(), set())
    shared = {_identity(entry) for entry in old.root.leaves}
    shared &= {_identity(entry) for entry in new.root.leaves}
    less_old, less_new = (_reduced(each, shared) for each in (old, new))
    spans = _span_keys(dataset_leaves(less_old)) & _span_keys(dataset_leaves(less_new))
    return _part(old, less_old, shared, spans), _part(new, less_new, shared, spans)


def _part(version: Dataset, reduced: Dataset, shared: set[_LeafKey], spans: set[_SpanKey]) -> Part:
    """A version without the leaves `shared`, which is `reduced`, and its indexes `spans`."""
    kept = np.array([_identity(entry) not in shared for entry in version.root.leaves], np.bool_)
    rows = np.array([entry.rows for entry in version.root.leaves], np.int64)
    live = rows - np.array([entry.deleted for entry in version.root.leaves], np.int64)
    mine = np.cumsum(rows * kept) - rows * kept
    mine_live = np.cumsum(live * kept) - live * kept
    return Part(
        reduced,
        _without(reduced, spans) if spans else reduced,
        mine[kept],
        (np.cumsum(rows) - rows - mine)[kept],
        (np.cumsum(live) - live - mine_live)[kept],
        version.root.rows,
    )


def _reduced(version: Dataset, shared: set[_LeafKey]) -> Dataset:
    """The version without the leaves `shared`."""
    leaves = tuple(entry for entry in version.root.leaves if _identity(entry) not in shared)
    return _with_leaves(version, leaves)


def emptied(version: Dataset) -> Dataset:
    """A dataset of the same columns without rows: what one that is not there is compared as."""
    return _with_leaves(version, ())


def _with_leaves(
    version: Dataset, leaves: tuple[LeafEntry, ...], schema: Schema | None = None
) -> Dataset:
    rows, deleted = (sum(getattr(leaf, name) for leaf in leaves) for name in ("rows", "deleted"))
    root = replace(
        version.root,
        leaves=leaves,
        rows=rows,
        deleted=deleted,
        schema=version.schema if schema is None else schema,
    )
    return Dataset(version.objects, version.digest, root, version.links, version.outside)


def _without(part: Dataset, spans: set[_SpanKey]) -> Dataset:
    """The part with leaves that lack the page indexes `spans`, and columns that may lack pages."""
    entries, links = [], dict(part.links)
    for entry, (leaf, leaf_links) in zip(part.root.leaves, dataset_leaves(part), strict=True):
        indexes = tuple(span for span in leaf.indexes if _span_key(leaf, span) not in spans)
        payload = encode_leaf(replace(leaf, indexes=indexes))
        entries.append(
            LeafEntry(b"", payload, entry.fragments, entry.rows, entry.deleted, entry.stored_bytes)
        )
        links |= leaf_links
    columns = (
        column if column.default is not None else replace(column, nullable=True)
        for column in part.schema.columns
    )
    found = _with_leaves(part, tuple(entries), Schema(tuple(columns)))
    return replace(found, links=links)


def _identity(entry: LeafEntry) -> _LeafKey:
    return entry.digest, entry.payload


def _span_keys(leaves: Sequence[tuple[Leaf, Any]]) -> set[_SpanKey]:
    return {_span_key(leaf, span) for leaf, _ in leaves for span in leaf.indexes}


def _span_key(leaf: Leaf, span: Span) -> _SpanKey:
    """What tells a page index, and the fragments that it covers, from all others."""
    uids = leaf.fragments["uid"][span.first_fragment : span.stop_fragment].tobytes()
    payload = span.payload
    return span.group, payload.tobytes() if isinstance(payload, memoryview) else payload, uids


def _defaults_changed(old: Schema, new: Schema) -> bool:
    before = {column.id: column for column in old.columns}
    return any(
        not same_default(before[column.id], column) for column in new.columns if column.id in before
    )


def same_default(old: Column, new: Column) -> bool:
    """Whether rows without a value of their own have the same in both; no default is like null."""
    if old.default == new.default and old.storage == new.storage:
        return True
    if old.default is None or new.default is None:
        return old.default is new.default
    one, two = default_values(old), default_values(new)
    return not bool(differing(one, two, old.storage, new.storage)[0])
