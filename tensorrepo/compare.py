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
from tensorrepo.repo.trees import diff

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.repo.objects import ObjectSource
    from tensorrepo.repo.trees import Change, Entry


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
    """Everything that differs, in the order of paths. `working`: what a workspace adds to it."""

    changes: tuple[EntryChange, ...]
    working: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        return bool(self.changes or self.working)

    def to_json(self) -> dict[str, Any]:
        return {"changes": [asdict(one) for one in self.changes], "working": list(self.working)}


def compare(
    objects: ObjectSource, old: bytes, new: bytes, paths: tuple[str, ...] = ()
) -> Comparison:
    """What leads from one tree to another.

    Args:
        objects: where both are stored.
        old: root page.
        new: root page.
        paths: only these entries, and those below them; none: all.
    """
    wanted = tuple(path.strip("/") for path in paths)
    return Comparison(
        tuple(
            compare_entry(objects, change)
            for change in diff(objects, old, new)
            if not wanted or _is_under(change.path, wanted)
        )
    )


def compare_entry(objects: ObjectSource, change: Change) -> EntryChange:
    """What became of one path."""
    old, new = change.old, change.new
    mark = "A" if old is None else "D" if new is None else "M"
    kind = new or old
    assert kind is not None, "a change has a side"
    summary, details, inside = _inside(objects, old, new)
    return EntryChange(
        mark,
        change.path,
        kind.kind.label,
        old.digest if old else None,
        new.digest if new else None,
        f" ({summary})" if summary else "",
        tuple(details),
        inside,
    )


def _inside(
    objects: ObjectSource, old: Entry | None, new: Entry | None
) -> tuple[str, Iterator[str] | tuple[str, ...], Any]:
    kinds = {entry.kind for entry in (old, new) if entry is not None}
    if kinds == {Kind.DATASET}:
        found = diff_datasets(objects, old and old.digest, new and new.digest)
        return found.summary, found.lines(), found.to_json()
    if kinds == {Kind.MODEL}:
        models = diff_models(objects, old, new)
        return models.summary, models.lines(), models.to_json()
    if kinds == {Kind.BLOB}:
        sizes = [objects.describe(e.digest).bytes if e else 0 for e in (old, new)]
        return f"{sizes[1] - sizes[0]:+,} bytes", (), {"bytes": sizes[1] - sizes[0]}
    return "another kind", (), None


def _is_under(path: str, wanted: tuple[str, ...]) -> bool:
    return any(path == one or path.startswith(f"{one}/") or path.endswith(f"/{one}") for one in wanted)
