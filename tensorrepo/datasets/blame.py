"""Blame of rows: which commits added a row, and set its values.

The row's history is looked for in the commits that changed its dataset under its present path;
where the dataset had another name, the commit that renamed it is the first one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from numpy.typing import NDArray

from tensorrepo.formats.dataset.blame import DatasetVersion, blame_row
from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.formats.dataset.metadata.row_ids import format_row_id, row_ids
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, open_dataset, row_id_table
from tensorrepo.formats.dataset.schema.cells import cell_text
from tensorrepo.formats.dataset.schema.json_values import named_class, value_json
from tensorrepo.formats.dataset.schema.types import ColumnType
from tensorrepo.formats.dataset.selecting.select_rows import choose_rows
from tensorrepo.formats.purged import refuse_purged_rows
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.history.commits import Commit, read_commit
from tensorrepo.repo.history.trees import lookup
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.cache import LimitedCache
from tensorrepo.repo.objects.envelope import Kind, ObjectSource
from tensorrepo.repo.tables import Cell, RecordTable, Shown

OPEN_VERSIONS = 16


@dataclass(frozen=True, slots=True, repr=False)
class CellOrigin(Shown):
    """A commit that is blamed for something."""

    digest: Digest
    commit: Commit = field(repr=False)

    @property
    def time(self) -> str:
        """When it was made, ISO 8601, UTC."""
        return datetime.fromtimestamp(self.commit.time_ns / 1e9, UTC).isoformat()

    @property
    def subject(self) -> str:
        """The first line of its message."""
        return self.commit.message.partition("\n")[0]

    def to_table(self) -> RecordTable:
        """Which commit, by whom, when and why, in a line."""
        before = " or before (history ends there)" if self.or_before else ""
        who = f"by {self.by}, {self.time[:10]}: {self.subject}"
        return RecordTable((f"{self.digest:.12}{before} {who}",))

    @property
    def or_before(self) -> bool:
        """Whether history ends at it, so that a commit before it may have been the one."""
        return bool(self.commit.beyond)

    @property
    def by(self) -> str:
        """The author's name, without the address."""
        return self.commit.author.partition(" <")[0]

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "commit": self.digest,
            "author": self.commit.author,
            "time": self.time,
            "message": self.commit.message,
        } | ({"or_before": True} if self.or_before else {})


@dataclass(frozen=True, slots=True)
class BlamedCell:
    """One value, and the commit that brought it; `type` is that of its column."""

    column: str
    value: Any
    origin: CellOrigin
    type: ColumnType = field(repr=False)

    @property
    def text(self) -> str:
        """The value for people, short: a class by its name."""
        return cell_text(self.type, self.value)

    def to_json(self) -> dict[str, Any]:
        """For programs: a class by its name, as `cat` and `diff` tell it."""
        value = value_json(named_class(self.type, self.value))
        return {"column": self.column, "value": value, **self.origin.to_json()}


@dataclass(frozen=True, slots=True, repr=False)
class Blame(Shown):
    """Where a row of a dataset came from.

    Attributes:
        path: path of the dataset.
        row: its number, None when it was deleted.
        row_id: its lasting id.
        added: the commit that added it, or brought it back.
        deleted: the commit that deleted it; `cells` are those it had before.
        cells: its values, in the order of the columns.
    """

    path: str
    row: int | None
    row_id: str
    added: CellOrigin
    deleted: CellOrigin | None
    cells: tuple[BlamedCell, ...]

    def __getitem__(self, column: str) -> BlamedCell:
        for cell in self.cells:
            if cell.column == column:
                return cell
        raise NotFoundError(
            f"no column {column!r}; there are {', '.join(cell.column for cell in self.cells)}"
        )

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "path": self.path,
            "row": self.row,
            "row_id": self.row_id,
            "added": self.added.to_json(),
            "deleted": None if self.deleted is None else self.deleted.to_json(),
            "cells": [cell.to_json() for cell in self.cells],
        }

    def to_table(self) -> RecordTable:
        """For people, a row for each cell, below what became of the whole row."""
        columns: dict[str, Cell] = {
            "column": "column",
            "value": "text",
            "commit": lambda cell: "^" * cell.origin.or_before + cell.origin.digest[:12],
            "author": "origin.by",
            "date": lambda cell: cell.origin.time[:10],
            "message": "origin.subject",
        }
        row = f"row {self.row}" if self.row is not None else "a deleted row"
        lines = [f"{self.path}, {row}, id {self.row_id}", f"added in {self.added}"]
        if self.deleted is not None:
            lines.append(f"deleted in {self.deleted}")
        if any(cell.origin.or_before for cell in self.cells):
            lines.append("^: there or before; the history that is here ends at that commit")
        return RecordTable.of(self.cells, columns, *lines)


def blame(
    objects: ObjectSource,
    path: str,
    tip: Digest,
    *,
    row: int | None = None,
    row_id: str | None = None,
    key: Mapping[str, Any] | None = None,
    columns: Iterable[str] | None = None,
    outside: Outside | None = None,
) -> Blame:
    """Where a row of a dataset came from, and each of its values.

    The row is named by its number, by its lasting id (of a deleted row, too), or by key columns
    with their values. `tip` is the commit to look back from.

    Raises:
        InvalidInputError: not exactly one of `row`, `row_id` and `key`.
        NotFoundError: no such row.
        PurgedError: it was purged.
    """
    history = _EntryHistory(objects, path, outside)
    wanted = _row_id(history.dataset(tip), row, row_id, key)
    shown = None if columns is None else set(columns)
    try:
        found = blame_row(history.step, tip, wanted)
    except NotFoundError:
        refuse_purged_rows(objects, wanted)
        raise
    dataset = history.dataset(found.last)
    number = int(_number(dataset, wanted))
    values = dataset[number]
    cells = tuple(
        BlamedCell(
            column.name,
            values[column.name],
            history.origin(found.columns[column.id]),
            column.type,
        )
        for column in dataset.schema.columns
        if (column.derived is None if shown is None else column.name in shown)
    )
    return Blame(
        path,
        number if found.deleted is None else None,
        format_row_id(wanted[0]),
        history.origin(found.added),
        None if found.deleted is None else history.origin(found.deleted),
        cells,
    )


def _row_id(
    dataset: StoredDataset, row: int | None, row_id: str | None, key: Mapping[str, Any] | None
) -> NDArray[Any]:
    """The id that is meant: ROW_ID ``(1,)``."""
    if sum(each is not None for each in (row, row_id, key)) != 1:
        raise InvalidInputError("blame takes a row number, a row id or a key: exactly one of them")
    if row_id is not None:
        return row_ids([row_id])
    if key is not None:
        chosen = choose_rows(dataset, {name: [value] for name, value in key.items()})
        if len(chosen.rows) != 1:
            raise InvalidInputError(
                f"{len(chosen.rows)} rows have that key: name one of them by number or id"
            )
        return row_id_table(dataset).of(chosen.rows)
    return row_id_table(dataset).of(choose_rows(dataset, [row]).rows)


def _number(dataset: StoredDataset, row_id: NDArray[Any]) -> int:
    rows = row_id_table(dataset).find(row_id)
    return int(live_rows(dataset).live(rows)[0])


class _EntryHistory:
    """One path at every commit. Few versions are held open at a time."""

    def __init__(self, objects: ObjectSource, path: str, outside: Outside | None) -> None:
        self._objects = objects
        self._path = path
        self._outside = outside
        self._digests: dict[Digest, Digest | None] = {}
        self._open = LimitedCache[StoredDataset](OPEN_VERSIONS)

    def step(self, commit: Digest) -> DatasetVersion:
        found = read_commit(self._objects, commit)
        digest = self._digest(commit, found)
        dataset = None
        if digest is not None:
            load = partial(open_dataset, self._objects, digest, self._outside)
            dataset = self._open.get_or_load(digest, lambda: (load(), 1))
        return DatasetVersion(commit, found.generation, dataset, found.parents)

    def origin(self, commit: Digest) -> CellOrigin:
        return CellOrigin(commit, read_commit(self._objects, commit))

    def dataset(self, commit: Digest) -> StoredDataset:
        found = self.step(commit).dataset
        if found is None:
            raise NotFoundError(f"no dataset {self._path} in commit {commit:.12}")
        return found

    def _digest(self, commit: Digest, found: Commit) -> Digest | None:
        if commit not in self._digests:
            entry = lookup(self._objects, found.tree, self._path)
            is_dataset = entry is not None and entry.kind is Kind.DATASET
            self._digests[commit] = entry.digest if entry is not None and is_dataset else None
        return self._digests[commit]
