"""What differs between two trees: which entries, and what inside of them?

The trees are compared page by page, equal ones are skipped; each changed entry is then compared by
its own format. The result is a value, for people and as JSON.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tensorrepo.formats.dataset.diff import diff_datasets
from tensorrepo.formats.model.diff import diff_models
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.trees import Change, diff
from tensorrepo.workspace.describe import describe_entry
from tensorrepo.workspace.session import base_entry
from tensorrepo.workspace.status import status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.repo.objects import ObjectSource
    from tensorrepo.repo.repository import Repository
    from tensorrepo.repo.trees import Entry
    from tensorrepo.workspace.session import Session

Inside = tuple[str, tuple[str, ...], Any]  # a summary, lines below it, the same as JSON values


@dataclass(frozen=True, slots=True)
class EntryChange:
    """One entry that differs. `mark` is "A" added, "D" deleted, "M" modified.

    `summary` follows the path on its line, `details` are lines below it; `inside` is the
    difference as JSON values.
    """

    mark: str
    path: str
    kind: str
    old: str | None
    new: str | None
    summary: str
    details: tuple[str, ...]
    inside: Any


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that differs, in the order of paths.

    `working` tells of files on disk that differ from what they were written from.
    """

    changes: tuple[EntryChange, ...]
    working: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        return bool(self.changes or self.working)

    def lines(self, *, stat: bool = False) -> Iterator[str]:
        """For people; with `stat` a line for each entry and no more."""
        for change in self.changes:
            yield f"{change.mark} {change.path}{change.summary}"
            if not stat:
                yield from (f"    {detail}" for detail in change.details)
        yield from self.working

    def __str__(self) -> str:
        return "\n".join(self.lines())

    def to_json(self) -> dict[str, Any]:
        return {"changes": [asdict(one) for one in self.changes], "working": list(self.working)}


def compare(
    repository: Repository, old: bytes, new: bytes, paths: tuple[str, ...] = ()
) -> Comparison:
    """What leads from one tree to another.

    Args:
        repository: where both are stored.
        old: root page.
        new: root page.
        paths: only these entries, and those below them; none: all.
    """
    wanted = tuple(path.strip("/") for path in paths)
    return Comparison(
        tuple(
            compare_entry(repository, change)
            for change in diff(repository.objects, old, new)
            if not wanted or _is_under(change.path, wanted)
        )
    )


def compare_working(session: Session, paths: tuple[str, ...] = ()) -> Comparison:
    """What is staged, and which written files changed on disk."""
    found = status(session)
    wanted = tuple(path.strip("/") for path in paths)
    changes = []
    for one in found.staged:
        if not wanted or _is_under(one.path, wanted):
            change = Change(one.path, base_entry(session, one.path), one.staged.entry)
            changes.append(compare_entry(session.repository, change))
    lines = [
        f"{what:8} {tracked.path}{f'/{name}' if name else ''} (on disk, not staged)"
        for tracked in found.tracked
        for name, what in tracked.files.items()
        if not wanted or _is_under(tracked.entry, wanted)
    ]
    return Comparison(tuple(changes), tuple(lines))


def compare_entry(repository: Repository, change: Change) -> EntryChange:
    """What became of one path."""
    old, new = (entry and repository.current(entry) for entry in (change.old, change.new))
    mark = "A" if old is None else "D" if new is None else "M"
    kind = new or old
    assert kind is not None, "a change has a side"
    summary, details, inside = _inside(repository.objects, old, new)
    return EntryChange(
        mark,
        change.path,
        kind.kind.label,
        old.digest if old else None,
        new.digest if new else None,
        f" ({summary})" if summary else "",
        details,
        inside,
    )


def _inside(objects: ObjectSource, old: Entry | None, new: Entry | None) -> Inside:
    if old is None or new is None:
        only = new or old
        assert only is not None, "a change has a side"
        described = describe_entry(objects, "", only)
        return described.shape, described.details, described.to_json()
    if old.kind is not new.kind:
        return f"a {old.kind.label} became a {new.kind.label}", (), None
    if new.kind in (Kind.DATASET, Kind.MODEL):
        found = (
            diff_datasets(objects, old.digest, new.digest)
            if new.kind is Kind.DATASET
            else diff_models(objects, old, new)
        )
        return found.summary, tuple(found.lines()), found.to_json()
    grown = objects.describe(new.digest).bytes - objects.describe(old.digest).bytes
    return f"{grown:+,} bytes", (), {"bytes": grown}


def _is_under(path: str, wanted: tuple[str, ...]) -> bool:
    return any(
        path == one or path.startswith(f"{one}/") or path.endswith(f"/{one}") for one in wanted
    )
