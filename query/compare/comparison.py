"""Comparison of two trees: which entries differ, and what became of each, in a line or more.

What is inside of datasets, models and views is compared by a function that the caller gives
(`contents.compare_contents`), who may load it when one of them differs: a difference of files alone
needs no arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from tensorrepo.formats.common.arguments import counted, grown_text
from tensorrepo.formats.common.summaries import list_entry
from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.query.compare.entry_change import EntryChange, mark_of, shortened
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.history.trees import PathChange, diff
from tensorrepo.repo.objects.envelope import Kind, ObjectSource
from tensorrepo.repo.tables import Cell, RecordTable, Shown, printable

if TYPE_CHECKING:
    from tensorrepo.query.compare.contents import DatasetChange


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Shown):
    """Everything that differs, in the order of paths.

    `working` tells of files on disk that differ from what they were written from.
    """

    changes: tuple[EntryChange, ...]
    working: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        return bool(self.changes or self.working)

    def lines(
        self, *, stat: bool = False, full: bool = False, hint: str = "--full"
    ) -> Iterator[str]:
        """For people; with `stat` a line for each entry, with `full` all that is in each.

        `hint` says how all is shown, where it is not.
        """
        for change in self.changes:
            yield f"{change.mark} {change.path}{change.summary}"
            details = () if stat else change.details if full else shortened(change.details, hint)
            yield from (f"    {detail}" for detail in details)
        yield from self.working

    def to_table(self) -> RecordTable:
        """A row for each entry that differs, as notebooks show it."""
        columns: dict[str, Cell] = {
            "": "mark",
            "path": "path",
            "what differs": lambda one: "\n".join([one.summary.strip(" ()"), *one.details]),
        }
        return RecordTable.of(self.changes, columns, *[repr(self)[1:-1], *self.working])

    def __repr__(self) -> str:
        return f"<{counted(len(self.changes), 'entry differs', 'entries differ')}>"

    def __str__(self) -> str:
        return "\n".join(map(printable, self.lines(hint="lines(full=True)")))

    def to_json(self) -> dict[str, Any]:
        return {"changes": [one.to_json() for one in self.changes], "working": list(self.working)}

    @property
    def datasets(self) -> dict[str, DatasetChange]:
        """The datasets that differ, by path."""
        return {one.path: cast("DatasetChange", one) for one in self.changes if one.has_rows}


CompareContents: TypeAlias = Callable[[RepositoryCore, PathChange, Outside | None], EntryChange]


def compare(
    repository: RepositoryCore,
    old: bytes,
    new: bytes,
    paths: tuple[str, ...] = (),
    *,
    contents: CompareContents,
    outside: Outside | None = None,
    removed: Collection[str] | None = None,
) -> Comparison:
    """What leads from one tree to another, given by their root pages.

    Args:
        repository: where they lie.
        old: root page of the one.
        new: root page of the other.
        paths: entries, and folders of them, that alone are looked at; none: all.
        contents: tells what became of an entry that is, or was, more than a file.
        outside: reads rows that lie in foreign files; None: they are not read.
        removed: paths that may have been removed; None: all.
    """
    wanted = tuple(path.strip("/") for path in paths)
    return Comparison(
        tuple(
            compare_entry(repository, change, contents, outside)
            for change in diff(repository.objects, old, new)
            if (not wanted or is_under(change.path, wanted))
            and (change.new is not None or removed is None or change.path in removed)
        )
    )


def compare_entry(
    repository: RepositoryCore,
    change: PathChange,
    contents: CompareContents,
    outside: Outside | None = None,
) -> EntryChange:
    """What became of one path; `contents` is as for `compare`."""
    kinds = {entry.kind for entry in (change.old, change.new) if entry is not None}
    if kinds == {Kind.BLOB}:
        return _compare_files(repository.objects, change)
    return contents(repository, change, outside)


def _compare_files(objects: ObjectSource, change: PathChange) -> EntryChange:
    old, new = change.old, change.new
    one = new or old
    assert one is not None, "a change has a side"
    inside: dict[str, Any]
    if old is not None and new is not None:
        grown = objects.describe(new.digest).bytes - objects.describe(old.digest).bytes
        summary, inside = grown_text(grown), {"bytes": grown}
    else:
        file = list_entry(change.path, one)
        summary = file.content
        inside = {"path": "", "kind": file.kind, "digest": file.digest, "bytes": file.bytes}
    digests = (old.digest if old else None, new.digest if new else None)
    shown = (mark_of(change), change.path, one.kind.label, *digests, f" ({summary})")
    return EntryChange(*shown, (), inside)


def is_under(path: str, wanted: tuple[str, ...]) -> bool:
    """Whether `path` is one of `wanted`, below one, or ends with one."""
    return any(
        path == one or path.startswith(f"{one}/") or path.endswith(f"/{one}") for one in wanted
    )
