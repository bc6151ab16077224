"""``catalog.pages`` for DuckDB: the pages of datasets as rows, each with its place and statistics.

The manifests say it, so nothing of it is stored twice, and no database is loaded for it. Page
indexes are read one after the other, of the datasets and columns alone that a query does not rule
out, and none is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.dataset.metadata.index import ColumnPages, PageIndex
from tensorrepo.formats.dataset.metadata.tree_read import read_index, read_leaf, read_patches
from tensorrepo.formats.dataset.pages.page import (
    HAS_NAN,
    HAS_RANGE,
    IS_SORTED,
    PAGE_COMPRESSED,
    PAGE_FOREIGN,
    PAGE_PLAIN,
    PAGE_TILES,
)
from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import ColumnLayout
from tensorrepo.formats.dataset.selecting.expression import (
    ArrowCall,
    ColumnRef,
    ExpressionNode,
    Literal,
    expression_tree,
    field_names,
)
from tensorrepo.formats.dataset.selecting.pruning import numbers_of_keys
from tensorrepo.query.chunks import chunks
from tensorrepo.query.sql.pushdown import Scanned, StoppedError, noting
from tensorrepo.repo.deferred_dataclass import dataclass

SCHEMA: Final = pa.schema(
    [
        ("path", pa.string()),  # of the dataset
        ("dataset", pa.string()),  # its digest
        ("column", pa.string()),
        ("fragment", pa.int64()),  # counted from 0 in the dataset
        ("patch", pa.bool_()),  # whether its values replace those of other pages
        ("first_row", pa.int64()),  # deleted rows counted; of a patch null
        ("rows", pa.int64()),
        ("nulls", pa.int64()),
        ("min", pa.float64()),  # of numbers; rounded where an integer needs more than 53 bits
        ("max", pa.float64()),
        ("min_key", pa.binary()),  # 8 bytes that order as the values do, exactly
        ("max_key", pa.binary()),
        ("has_nan", pa.bool_()),
        ("is_sorted", pa.bool_()),
        ("form", pa.string()),  # plain, compressed, tiles or foreign
        ("stored_bytes", pa.int64()),
        ("raw_bytes", pa.int64()),
        ("chunk", pa.string()),  # its digest; null where the page stands in the metadata
        ("offset", pa.int64()),  # in the chunk's payload
    ]
)
_ROWS: Final = 1 << 12
_FORMS: Final = {
    PAGE_PLAIN: "plain", PAGE_COMPRESSED: "compressed", PAGE_TILES: "tiles",
    PAGE_FOREIGN: "foreign",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class PagesTable:
    """The pages of all datasets of one commit.

    `datasets` gives their paths and digests, `opened` the dataset of a digest.
    """

    datasets: Callable[[], Iterator[tuple[str, str]]]
    opened: Callable[[str], StoredDataset]
    scanned: Scanned

    @property
    def schema(self) -> pa.Schema:
        return SCHEMA

    @property
    def shown(self) -> Sequence[str]:
        """The columns that ``*`` stands for: all."""
        return list(SCHEMA.names)

    def reader(self, columns: Sequence[str], where: pc.Expression | None) -> pa.RecordBatchReader:
        """Rows of some columns for which `where` is true."""
        schema = pa.schema([SCHEMA.field(name) for name in columns])
        found = noting(self.scanned, self._batches(list(columns), where))
        return pa.RecordBatchReader.from_batches(schema, found)

    def _batches(self, columns: list[str], where: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        tree = None if where is None else expression_tree(where)
        compared = frozenset() if tree is None else field_names(tree)
        every = SCHEMA.names
        names = every if compared is None else [n for n in every if n in {*columns, *compared}]
        found = (pages.table(known, names) for known, pages in self._pages(tree))
        for page_tables in chunks(found, _ROWS, len):  # datasets of a page each are many
            if self.scanned.stop.is_set():
                raise StoppedError
            table = pa.concat_tables(page_tables)
            self.scanned.rows += len(table)
            kept = table if where is None else table.filter(where)
            yield from kept.select(columns).combine_chunks().to_batches()

    def _pages(self, tree: ExpressionNode | None) -> Iterator[tuple[dict[str, Any], _Pages]]:
        """Pages that `tree` may be true for, and what is the same for all of them."""
        for path, digest in self.datasets():
            known: dict[str, Any] = {"path": path, "dataset": digest}
            if not may_be_true(tree, known):
                continue
            dataset = self.opened(digest)
            columns = {column.id: column for column in dataset.schema.columns}
            wanted = {
                each.id: each
                for each in columns.values()
                if may_be_true(tree, known | {"column": each.name})
            }
            for pages in _pages_of(dataset, wanted) if wanted else ():
                yield known | {"column": pages.column.name, "patch": pages.first_row is None}, pages


@dataclass(frozen=True, slots=True, eq=False)
class _Pages:
    """Pages of one column in one page index; a patch index has no `first_row`."""

    column: Column
    index: PageIndex
    pages: ColumnPages
    fragment: NDArray[np.int64]
    first_row: NDArray[np.int64] | None

    def table(self, known: Mapping[str, Any], names: Sequence[str]) -> pa.Table:
        """Some columns of them."""
        count = len(self.pages.entries)
        arrays = [
            pa.repeat(pa.scalar(known[name], SCHEMA.field(name).type), count)
            if name in known
            else self._array(name)
            for name in names
        ]
        return pa.table(arrays, schema=pa.schema([SCHEMA.field(name) for name in names]))

    def _array(self, name: str) -> pa.Array:
        entries = self.pages.entries
        match name:
            case "fragment":
                return pa.array(self.fragment)
            case "first_row":
                rows = self.first_row
                return pa.nulls(len(entries), pa.int64()) if rows is None else pa.array(rows)
            case "min" | "max":
                numbers = numbers_of_keys(entries[name].astype(np.uint64), self._element)
                real = numbers.astype(np.float64)
                return pa.array(real, mask=~self._has_range | ~np.isfinite(real))
            case "min_key" | "max_key":
                keys = zip(entries[name[:3]].tolist(), self._has_range.tolist(), strict=True)
                told = [key.to_bytes(8, "big") if known else None for key, known in keys]
                return pa.array(told, pa.binary())
            case "has_nan" | "is_sorted":
                flag = HAS_NAN if name == "has_nan" else IS_SORTED
                return pa.array((entries["flags"] & flag) > 0)
            case "form":
                return pa.array([_FORMS[code] for code in entries["codec"].tolist()])
            case "chunk":
                chunks = self.index.chunks
                return pa.array([chunks[at] for at in self.pages.chunk.tolist()], pa.string())
        return pa.array(entries[name].astype(np.int64))

    @property
    def _element(self) -> np.dtype[Any]:
        return self.pages.storage.element

    @property
    def _has_range(self) -> NDArray[np.bool_]:
        """Which pages say their smallest and largest value: of scalars alone."""
        storage = self.pages.storage
        scalar = storage.layout is ColumnLayout.FIXED and not storage.shape
        return ((self.pages.entries["flags"] & HAS_RANGE) > 0) & scalar


def _pages_of(dataset: StoredDataset, wanted: Mapping[str, Column]) -> Iterator[_Pages]:
    """Pages of some columns, by their ids: leaf after leaf, index after index."""
    groups = {group[0] for group in dataset.root.groups if wanted.keys() & {*group}}
    fragments = rows = 0
    for entry in dataset.root.leaves:
        leaf, links = read_leaf(dataset.objects, dataset.links, entry)
        starts = rows + np.cumsum([0, *leaf.fragments["rows"].tolist()])
        for span in leaf.indexes:
            if span.group in groups:
                index, _ = read_index(dataset.objects, span, links)
                first = fragments + span.first_fragment
                yield from _indexed(index, wanted, first, starts[span.first_fragment :])
        for span in leaf.patches:
            if span.group in wanted:
                patch, _ = read_patches(dataset.objects, span, links)
                at = patch.fragment.astype(np.int64) + fragments + span.first_fragment
                yield _Pages(wanted[span.group], patch.index, patch.index.columns[0], at, None)
        fragments, rows = fragments + entry.fragments, rows + entry.rows


def _indexed(
    index: PageIndex, wanted: Mapping[str, Column], first: int, starts: NDArray[np.int64]
) -> Iterator[_Pages]:
    """Pages of one page index, whose fragments are counted from `first` and begin at `starts`."""
    for pages in index.columns:
        if pages.id in wanted and len(pages.entries):
            within = np.cumsum(pages.entries["first_row"] == 0) - 1
            first_row = starts[within] + pages.entries["first_row"]
            yield _Pages(wanted[pages.id], index, pages, first + within, first_row)


# ------------------------------------------------------------------------------ filters


def may_be_true(node: ExpressionNode | None, known: Mapping[str, str]) -> bool:
    """Whether a predicate may hold where these columns have these values, whatever the others have.

    `node` None is a predicate that always holds.
    """
    return node is None or _outcome(node, known) is not False


def _outcome(node: ExpressionNode, known: Mapping[str, str]) -> bool | None:
    """The value of a predicate; None: it is not told by what is known."""
    match node:
        case ArrowCall("and_kleene", (one, two)):
            found = {_outcome(one, known), _outcome(two, known)}
            return False if False in found else None if None in found else True
        case ArrowCall("or_kleene", (one, two)):
            found = {_outcome(one, known), _outcome(two, known)}
            return True if True in found else None if None in found else False
        case ArrowCall("invert", (inside,)):
            told = _outcome(inside, known)
            return None if told is None else not told
        case ArrowCall("if_else", (which, one, two)):  # DuckDB's way to write IN
            told = _outcome(which, known)
            return None if told is None else _outcome(one if told else two, known)
    return _of_column(node, known)


def _of_column(node: ExpressionNode, known: Mapping[str, str]) -> bool | None:
    match node:
        case ArrowCall("is_valid" | "is_null" as function, (ColumnRef(name),)) if name in known:
            return function == "is_valid"
        case ArrowCall("is_in", (ColumnRef(name),), options) if (
            name in known and "value_set" in options
        ):
            return known[name] in options["value_set"].as_py()
        case ArrowCall(
            function, (ColumnRef(name), Literal(value)) | (Literal(value), ColumnRef(name))
        ):
            if name in known and value.is_valid and function in _SAME:
                return (known[name] == value.as_py()) is _SAME[function]
    return None


_SAME: Final = {"equal": True, "not_equal": False}
