"""Views: a query and its answer, as ids of the rows that it chose.

The ids stand as runs, beside the version of the dataset that they are of, and the commit whose data
was asked. Ids stay what they are, so a view can be compared with a later one, and its rows found in
another version. It links to the dataset, which stays as long as the view does.

Source:
    docs/spec/view.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.formats.dataset.metadata.row_ids import RUN, id_table, ids_of_runs, runs_of_ids
from tensorrepo.formats.dataset.read import (
    StoredDataset,
    live_rows,
    narrowed,
    open_dataset,
    row_id_table,
)
from tensorrepo.formats.dataset.reading.page_reader import DecodedPageCache
from tensorrepo.formats.dataset.selecting.select_rows import choose_rows
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError
from tensorrepo.repo.ids import Digest, digest_bytes, digest_from_bytes
from tensorrepo.repo.objects.envelope import Kind, ObjectLink, ObjectSink, ObjectSource
from tensorrepo.repo.tables import RecordTable, Shown
from tensorrepo.repo.typed_decoding import from_msgpack

VERSION = 1
MOST_ROWS = 1 << 31  # ids of so many rows are made at once


@dataclass(frozen=True, slots=True, eq=False)
class StoredView:
    """Rows of a dataset that a query chose.

    Attributes:
        sql: the query.
        path: path of the dataset when it was asked.
        dataset: digest of the dataset's version.
        commit: commit whose data was asked.
        runs: RUN ``(n,)``: ids of the rows, in the order of the dataset.
    """

    sql: str
    path: str
    dataset: Digest
    commit: Digest
    runs: NDArray[Any]

    @property
    def rows(self) -> int:
        return int(self.runs["rows"].sum(dtype=np.int64))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ViewDiff(Shown):
    """Ids of rows, ROW_ID ``(n,)``, that only the newer view has, and only the older one."""

    added: NDArray[Any]
    removed: NDArray[Any]

    @property
    def summary(self) -> str:
        """For people."""
        return f"{counted(len(self.added), 'row')} in, {counted(len(self.removed), 'row')} out"

    def to_table(self) -> RecordTable:
        """The summary."""
        return RecordTable((self.summary,))


class _Head(msgspec.Struct, frozen=True):
    version: int
    features: tuple[str, ...]


class _Root(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int
    features: tuple[str, ...]
    sql: str
    path: str
    dataset: bytes
    commit: bytes
    rows: int
    runs: bytes


def make_view(
    dataset: StoredDataset, ids: NDArray[Any], sql: str, path: str, commit: Digest
) -> StoredView:
    """A view of the rows that have these ids.

    `ids` are ROW_ID ``(n,)``, in any order; `sql` is the query that gave them when it was asked of
    `commit`.

    Raises:
        InvalidInputError: an id that no row of the dataset has.
    """
    unique = np.unique(ids)
    rows = choose_rows(dataset, unique, strict=False).rows if len(unique) else np.zeros(0, np.int64)
    if len(rows) != len(unique):
        raise InvalidInputError(
            f"{len(unique) - len(rows):,} of {len(unique):,} row ids are of no row of {path}"
        )
    return StoredView(
        sql, path, dataset.digest, commit, runs_of_ids(row_id_table(dataset).of(rows))
    )


def without_rows(view: StoredView, ids: NDArray[Any], sql: str) -> StoredView:
    """A view without the rows of these ids, and as if `sql` had been asked."""
    every = ids_of_runs(view.runs)
    return replace(view, sql=sql, runs=runs_of_ids(every[~np.isin(every, ids)]))


def write_view(objects: ObjectSink, view: StoredView) -> ObjectLink:
    """Store a view; its dataset must be stored."""
    root = _Root(
        VERSION, (), view.sql, view.path, digest_bytes(view.dataset), digest_bytes(view.commit),
        view.rows, view.runs.astype(RUN).tobytes(),
    )  # fmt: skip
    return objects.put(Kind.VIEW, msgspec.msgpack.encode(root), [view.dataset])


def open_view(objects: ObjectSource, digest: Digest) -> StoredView:
    """The view of this digest; reads one object.

    Raises:
        CorruptError, UnsupportedError: it is no view that this version can read.
    """
    envelope = objects.get(digest)
    if envelope.kind is not Kind.VIEW:
        raise InvalidInputError(f"object {digest:.12} is a {envelope.kind.label}, not a view")
    try:
        head = from_msgpack(envelope.payload, _Head)
        if head.version != VERSION or head.features:
            raise UnsupportedError(
                f"view {digest:.12} is of version {head.version} with {list(head.features)}; this "
                f"reader knows version {VERSION}. Update."
            )
        root = from_msgpack(envelope.payload, _Root)
        dataset, commit = digest_from_bytes(root.dataset), digest_from_bytes(root.commit)
        runs = np.frombuffer(root.runs, RUN)
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptError(f"view {digest:.12}: {error}") from error
    view = StoredView(root.sql, root.path, dataset, commit, runs)
    linked = [link.digest for link in envelope.links]
    if view.rows != root.rows or linked != [dataset] or (runs["rows"] == 0).any():
        raise CorruptError(f"view {digest:.12}: its parts contradict each other")
    if view.rows > MOST_ROWS:
        raise UnsupportedError(f"view {digest:.12}: {view.rows:,} rows, at most {MOST_ROWS:,}")
    return view


def physical_rows(dataset: StoredDataset, view: StoredView) -> Ints:
    """The rows of a view in its dataset, physical and ascending.

    Raises:
        CorruptError: the dataset has no such rows.
    """
    if view.rows > dataset.rows:
        raise CorruptError(f"a view of {view.rows:,} rows over a dataset of {dataset.rows:,}")
    rows = choose_rows(dataset, ids_of_runs(view.runs), strict=False).rows
    if len(rows) != view.rows:
        raise CorruptError(f"a view names {view.rows:,} rows, of which {len(rows):,} are there")
    return rows


def live_numbers(dataset: StoredDataset, view: StoredView) -> Ints:
    """The rows of a view as numbers of the dataset's rows that are there, ascending."""
    return live_rows(dataset).live(physical_rows(dataset, view))


def open_rows(
    objects: ObjectSource,
    view: StoredView,
    outside: Outside | None = None,
    *,
    pages: DecodedPageCache | None = None,
) -> tuple[StoredDataset, StoredDataset]:
    """The dataset that a view is of, and the view as a dataset of its rows alone.

    `pages` is as for `open_dataset`.
    """
    whole = open_dataset(objects, view.dataset, outside, pages=pages)
    return whole, narrowed(whole, physical_rows(whole, view))


def diff_views(old: StoredView, new: StoredView) -> ViewDiff:
    """Which rows came and went, by their ids."""
    return ViewDiff(_only(new.runs, old.runs), _only(old.runs, new.runs))


def _only(runs: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    """Ids that the first runs give and the others do not."""
    ids = ids_of_runs(runs)
    moved = {0: others} if len(others) else {}
    nothing = np.zeros(len(moved), np.uint64), np.zeros(len(moved), np.uint32)
    table = id_table(*nothing, moved)
    return ids[table.find(ids) < 0]
