"""Differences of two commits: paths, and what became of the rows, columns and tensors in them."""

from __future__ import annotations

import json
from itertools import islice
from typing import Any, Final

from pydantic import Field

from tensorrepo.api.content.commit_content import CommitContent, Record
from tensorrepo.formats.dataset.versions.row_diff import ChangeCounts
from tensorrepo.query.compare.comparison import compare_entry
from tensorrepo.query.compare.contents import DatasetChange, compare_contents, row_documents
from tensorrepo.query.compare.entry_change import EntryChange, mark_of
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.history.trees import EMPTY_TREE, PathChange, diff
from tensorrepo.repo.names import check_path, path_key

MOST_CHANGES: Final = 100  # of one answer: what each holds is compared
MOST_ROWS: Final = 1000
MOST_LINES: Final = 200
INSIDE_BYTES: Final = 256 << 10  # of JSON of what is in one entry


class EntryDifference(Record):
    """What became of one path."""

    mark: str = Field(description="A added, D deleted, M modified.")
    path: str
    kind: str
    old: str | None = Field(description="Digest before.")
    new: str | None = Field(description="Digest after.")
    summary: str = Field(default="", description="In a few words.")
    details: list[str] = Field(default=[], description="In lines, as `tensorrepo diff` has them.")
    inside: Any = Field(
        default=None,
        description="The same as JSON: columns and rows of a dataset, tensors of a model; null "
        "where that is very much.",
    )


class CommitDifference(Record):
    """What leads from one commit to another, some paths of it; `after` is the last, if more."""

    old: str | None = Field(description="Digest of the commit before; null: of nothing.")
    new: str
    changes: tuple[EntryDifference, ...]
    after: str | None = None


class RowDifferences(Record):
    """Rows of a dataset that changed: updated ones, then deleted, then added."""

    path: str
    rows: list[dict[str, Any]] = Field(
        description="`change`, `row_id`, `old_row`, `new_row`, `changed` (names of columns), and "
        "the values that differ, or all, as `old` and `new`."
    )
    updated: int = Field(description="Rows that changed, of all.")
    deleted: int
    added: int
    next: int | None = Field(default=None, description="`start` of the rows that follow.")


def first_parent(content: CommitContent) -> CommitContent | None:
    """The content of the commit before; None where there is none."""
    parents = content.revision.commit.parents
    return None if not parents else CommitContent.of(content.access, parents[0], content.memory)


def compare_commits(
    old: CommitContent | None,
    new: CommitContent,
    prefix: str = "",
    *,
    after: str | None = None,
    limit: int = 20,
    contents: bool = True,
) -> CommitDifference:
    """What differs between two commits, by path.

    Args:
        old: the one before; None: nothing was there.
        new: the one after, of the same repository.
        prefix: beginning of paths that alone are looked at.
        after: path of the last one of the answer before.
        limit: largest number of paths.
        contents: whether to compare what entries hold; else paths and digests are told.
    """
    if not 1 <= limit <= MOST_CHANGES:
        raise InvalidInputError(f"1 to {MOST_CHANGES} paths are compared at once, got {limit}")
    changes = diff(new.core.objects, EMPTY_TREE if old is None else old.tree, new.tree, prefix)
    behind = (one for one in changes if after is None or path_key(one.path) > path_key(after))
    found = list(islice(behind, limit + 1))
    told = [_difference(new, one) if contents else _bare(one) for one in found[:limit]]
    return CommitDifference(
        old=None if old is None else old.commit,
        new=new.commit,
        changes=tuple(told),
        after=found[limit - 1].path if len(found) > limit else None,
    )


def compare_rows(
    old: CommitContent | None,
    new: CommitContent,
    path: str,
    *,
    columns: tuple[str, ...] = (),
    key: tuple[str, ...] = (),
    start: int = 0,
    limit: int = 100,
) -> RowDifferences:
    """Rows of the dataset at `path` that differ.

    Args:
        old: the commit before; None: nothing was there.
        new: the one after.
        path: whole path of the dataset.
        columns: those to compare and to show; none: all.
        key: columns whose values make two rows the same row; none: their ids do.
        start: number of changed rows that are passed over.
        limit: largest number of rows.

    Raises:
        NotFoundError: the path did not change, is no dataset, or lacks a column.
    """
    if start < 0 or not 1 <= limit <= MOST_ROWS:
        raise InvalidInputError(f"start is 0 or more, limit 1 to {MOST_ROWS}")
    change = _dataset_change(old, new, path)
    wanted = {"columns": columns or None, "key": key or None}
    if (lacking := change.lacks(**wanted)) is not None:
        raise NotFoundError(f"{path}: {lacking}")
    counts: ChangeCounts = change.counts(**wanted)
    rows = list(row_documents(change, **wanted, start=start, limit=limit))
    total = counts.updated + counts.deleted + counts.added
    following = start + len(rows)
    return RowDifferences(
        path=path,
        rows=[{name: value for name, value in row.items() if name != "path"} for row in rows],
        updated=counts.updated,
        deleted=counts.deleted,
        added=counts.added,
        next=following if rows and following < total else None,
    )


def _dataset_change(old: CommitContent | None, new: CommitContent, path: str) -> DatasetChange:
    check_path(path)
    before = EMPTY_TREE if old is None else old.tree
    found = next((one for one in diff(new.core.objects, before, new.tree, path)), None)
    if found is None or found.path != path:
        raise NotFoundError(f"{path} is the same in both commits, or in neither")
    change = compare_contents(new.core, found)
    if not isinstance(change, DatasetChange):
        raise NotFoundError(f"{path} is a {change.kind}: rows are of datasets")
    return change


def _difference(content: CommitContent, change: PathChange) -> EntryDifference:
    return entry_difference(compare_entry(content.core, change, compare_contents))


def entry_difference(change: EntryChange) -> EntryDifference:
    """A change as answers have it: of bounded size."""
    size = len(json.dumps(change.inside, default=str))
    lines = list(change.details[:MOST_LINES])
    if len(change.details) > MOST_LINES:
        lines.append(f"... and {len(change.details) - MOST_LINES:,} more")
    return EntryDifference(
        mark=change.mark,
        path=change.path,
        kind=change.kind,
        old=change.old,
        new=change.new,
        summary=change.summary.strip(" ()"),
        details=lines,
        inside=change.inside if size <= INSIDE_BYTES else None,
    )


def _bare(change: PathChange) -> EntryDifference:
    one = change.new or change.old
    assert one is not None, "a change has a side"
    return EntryDifference(
        mark=mark_of(change),
        path=change.path,
        kind=one.kind.noun,
        old=None if change.old is None else change.old.digest,
        new=None if change.new is None else change.new.digest,
    )
