"""Change feed of a dataset: which rows every commit inserted, updated and deleted.

The commits are the first parents between two versions, so that the changes of all steps, put on the
rows of the first, give those of the last. What a merge brought is what the merge changed. Rows are
compared by their ids; where they moved in compaction is no change. Memory is bounded by one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any, Literal

import pyarrow as pa

from tensorrepo.context import Context
from tensorrepo.formats.dataset.metadata.row_ids import format_row_id
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.convert import present_row
from tensorrepo.formats.dataset.schema.schema import Schema
from tensorrepo.formats.dataset.schema.values import ColumnValues
from tensorrepo.formats.dataset.versions.match import emptied
from tensorrepo.formats.dataset.versions.row_diff import RowChanges, row_changes
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.history.commits import Commit, read_commit
from tensorrepo.repo.history.trail import Trail, trail
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.tables import Cell, RecordTable, Shown

ChangeKind = Literal["inserted", "updated", "deleted"]
_KINDS: dict[str, ChangeKind] = {"added": "inserted", "updated": "updated", "deleted": "deleted"}


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """What a commit did to one row.

    Attributes:
        commit: digest of the commit.
        change: "inserted", "updated" or "deleted".
        row_id: lasting id of the row.
        before: its values before, by column; None for a row that was inserted.
        after: its values since; None for a row that was deleted.
        changed: names of the columns that differ, of an updated row.
    """

    commit: Digest
    change: ChangeKind
    row_id: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    changed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, repr=False)
class FeedStep(Shown):
    """A commit that changed the dataset. Its rows are read when they are asked for.

    Attributes:
        digest: digest of the commit.
        commit: the commit itself.
    """

    digest: Digest
    commit: Commit
    _before: StoredDataset = field(repr=False)
    _after: StoredDataset = field(repr=False)
    _columns: Sequence[str] | None = field(repr=False)

    def rows(self) -> Iterator[ChangedRow]:
        """Rows that were updated, then deleted, then inserted, one by one."""
        for batch in self._batches():
            old, new = batch.old(), batch.new()
            for at in range(batch.rows):
                names = [
                    name
                    for name, differs in zip(batch.columns, batch.changed[at], strict=True)
                    if differs
                ]
                yield ChangedRow(
                    self.digest,
                    _KINDS[batch.change],
                    format_row_id(batch.ids[at]),
                    _row(self._before.schema, old, at) if batch.old_rows is not None else None,
                    _row(self._after.schema, new, at) if batch.new_rows is not None else None,
                    tuple(names) if batch.change == "updated" else (),
                )

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The same as Arrow, in batches of bounded bytes.

        Columns: ``commit``, ``change``, ``row_id``, ``old_row``, ``new_row``, ``changed`` (names of
        columns), ``old`` and ``new`` (structs of the columns; null where the row is not there).
        """
        for batch in self._batches():
            found = batch.to_arrow()
            said = pa.array([_KINDS[batch.change]] * batch.rows, pa.string())
            found = found.set_column(0, found.schema.field(0), said)
            yield found.add_column(0, "commit", pa.array([self.digest] * batch.rows, pa.string()))

    def to_table(self) -> RecordTable:
        """Which commit, by whom and why, in a line."""
        author = self.commit.author.partition(" <")[0]
        subject = self.commit.message.partition("\n")[0]
        return RecordTable((f"{self.digest:.12} by {author}: {subject}",))

    def _batches(self) -> Iterator[RowChanges]:
        return row_changes(self._before, self._after, columns=self._columns)


@dataclass(frozen=True, slots=True, repr=False)
class ChangeFeed(Shown):
    """What happened to a dataset since a commit; see `Dataset.changes`. Iterable, more than once.

    Attributes:
        path: path of the dataset.
        since: commit behind which it begins; None: the beginning.
        until: commit that it ends with.
    """

    path: str
    since: Digest | None
    until: Digest
    _context: Context = field(repr=False)
    _columns: Sequence[str] | None = field(repr=False)
    _trail: Trail = field(repr=False)

    def __iter__(self) -> Iterator[ChangedRow]:
        """All changed rows, commit by commit."""
        for step in self.commits():
            yield from step.rows()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All changed rows as Arrow batches, commit by commit; see `FeedStep.batches`."""
        for step in self.commits():
            yield from step.batches()

    def commits(self) -> Iterator[FeedStep]:
        """The commits that changed rows or columns, oldest first.

        Whoever keeps the digest of the last one that was worked off goes on behind it, with
        ``since=``.
        """
        known, start = self._version(self.since), self._trail.start
        back = () if start is None or start == self.since else (start,)
        for digest in (*back, *self._trail.commits):
            commit = read_commit(self._context.core.objects, digest)
            compared = None if digest in back else commit.changed  # with its first parent
            if compared is not None and self.path not in compared:
                continue
            after = self._version(digest)
            only = after or known
            if only is None or (after and known and after.digest == known.digest):
                continue
            sides = (known or emptied(only), after or emptied(only))
            yield FeedStep(digest, commit, *sides, self._columns)
            known = after

    def to_table(self) -> RecordTable:
        """The commits that changed rows, in a table."""
        columns: dict[str, Cell] = {
            "commit": lambda step: step.digest[:12],
            "author": lambda step: step.commit.author.partition(" <")[0],
            "message": lambda step: step.commit.message.partition("\n")[0],
        }
        return RecordTable.of(self.commits(), columns, repr(self))

    def __repr__(self) -> str:
        behind = "the beginning" if self.since is None else f"{self.since:.12}"
        return f"<changes of {self.path} from {behind} to {self.until:.12}>"

    def _version(self, digest: Digest | None) -> StoredDataset | None:
        """The dataset at a commit, where there is one."""
        if digest is None:
            return None
        core = self._context.core
        entry = core.entry(read_commit(core.objects, digest).tree, self.path)
        if entry is None or entry.kind is not Kind.DATASET:
            return None
        return open_dataset(core.objects, entry.digest, self._context.outside)


def changes_of(
    context: Context,
    path: str,
    until: Digest,
    since: str | None,
    columns: Sequence[str] | None,
) -> ChangeFeed:
    """See `Dataset.changes`."""
    start = None if since is None else context.resolve(since).digest
    found = trail(context.core.objects, until, start)
    return ChangeFeed(path, start, until, context, columns, found)


def _row(schema: Schema, values: dict[str, ColumnValues], at: int) -> dict[str, Any]:
    return {name: present_row(schema.column(name), each, at) for name, each in values.items()}
