"""What differs between two versions of a dataset?

Coarse and cheap: columns, whole fragments, rows and bytes. Leaves that both versions have are
skipped, and no page is read.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tensorrepo.formats.dataset.read import Dataset, open_dataset
from tensorrepo.formats.dataset.schema import type_to_json
from tensorrepo.formats.dataset.treeread import read_leaf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.formats.dataset.manifest import LeafEntry
    from tensorrepo.formats.dataset.schema import Column
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.objects import ObjectSource


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """One column that differs: `old` and `new` are its type in words, None where it is absent."""

    name: str
    old: str | None
    new: str | None


@dataclass(frozen=True, slots=True)
class ColumnBytes:
    """Bytes of a column's pages before and after."""

    name: str
    old: int
    new: int


@dataclass(frozen=True, slots=True)
class DatasetDiff:
    """What `new` has that `old` has not, and the reverse. Rows are counted in whole fragments."""

    old_rows: int
    new_rows: int
    rows_added: int
    rows_removed: int
    fragments_added: int
    fragments_removed: int
    schema: tuple[ColumnChange, ...]
    columns: tuple[ColumnBytes, ...]  # those whose bytes changed

    @property
    def summary(self) -> str:
        """In a few words, for a line."""
        parts = [f"+{self.rows_added:,} rows"] if self.rows_added or not self.rows_removed else []
        parts += [f"-{self.rows_removed:,} rows"] if self.rows_removed else []
        parts += [f"{len(self.schema)} columns changed"] if self.schema else []
        return ", ".join(parts)

    def lines(self) -> Iterator[str]:
        """In full, for people."""
        for change in self.schema:
            if change.old is None:
                yield f"column {change.name} added: {change.new}"
            elif change.new is None:
                yield f"column {change.name} removed: {change.old}"
            else:
                yield f"column {change.name}: {change.old} -> {change.new}"
        yield f"rows: {self.old_rows:,} -> {self.new_rows:,}"
        for column in self.columns:
            yield f"column {column.name}: {column.new - column.old:+,} bytes"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def diff_datasets(objects: ObjectSource, old: Digest | None, new: Digest | None) -> DatasetDiff:
    """Compare two versions; None stands for no dataset at all."""
    before = None if old is None else open_dataset(objects, old)
    after = None if new is None else open_dataset(objects, new)
    gone, come = _fragments(before, after), _fragments(after, before)
    removed = {uid: rows for uid, rows in gone.items() if uid not in come}
    added = {uid: rows for uid, rows in come.items() if uid not in gone}
    return DatasetDiff(
        old_rows=0 if before is None else before.rows,
        new_rows=0 if after is None else after.rows,
        rows_added=sum(added.values()),
        rows_removed=sum(removed.values()),
        fragments_added=len(added),
        fragments_removed=len(removed),
        schema=tuple(_schema_changes(before, after)),
        columns=tuple(_byte_changes(before, after)),
    )


def _fragments(dataset: Dataset | None, other: Dataset | None) -> dict[int, int]:
    """Rows of every fragment by its uid, but for leaves that `other` has too."""
    if dataset is None:
        return {}
    known = set() if other is None else {_identity(entry) for entry in other.root.leaves}
    found: dict[int, int] = {}
    for entry in dataset.root.leaves:
        if _identity(entry) not in known:
            leaf, _ = read_leaf(dataset.objects, dataset.links, entry)
            uids, rows = leaf.fragments["uid"].tolist(), leaf.fragments["rows"].tolist()
            found.update(zip(uids, rows, strict=True))
    return found


def _identity(entry: LeafEntry) -> tuple[bytes, bytes]:
    return entry.digest, entry.payload


def _schema_changes(before: Dataset | None, after: Dataset | None) -> Iterator[ColumnChange]:
    old, new = _columns(before), _columns(after)
    for name in old | new:
        one, two = old.get(name), new.get(name)
        if one != two:
            yield ColumnChange(name, _in_words(one), _in_words(two))


def _columns(dataset: Dataset | None) -> dict[str, Column]:
    return {} if dataset is None else {column.name: column for column in dataset.schema.columns}


def _in_words(column: Column | None) -> str | None:
    if column is None:
        return None
    form = type_to_json(column.type)
    kind = form.pop("type")
    details = ", ".join(f"{key}={value}" for key, value in form.items())
    return f"{kind}({details})" + (" or null" if column.nullable else "")


def _byte_changes(before: Dataset | None, after: Dataset | None) -> Iterator[ColumnBytes]:
    old, new = _stored_bytes(before), _stored_bytes(after)
    for name in old | new:
        if old.get(name, 0) != new.get(name, 0):
            yield ColumnBytes(name, old.get(name, 0), new.get(name, 0))


def _stored_bytes(dataset: Dataset | None) -> dict[str, int]:
    if dataset is None:
        return {}
    names = {column.id: column.name for column in dataset.schema.columns}
    return {names[entry.id]: entry.stored_bytes for entry in dataset.root.statistics}
