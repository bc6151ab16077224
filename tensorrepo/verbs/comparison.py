"""Comparison of two trees for handles and commands: what entries hold is looked at late.

The modules that compare datasets, models and views are loaded when one of them differs.
"""

from __future__ import annotations

from collections.abc import Collection

from tensorrepo import lazy
from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.query.compare import comparison
from tensorrepo.query.compare.comparison import Comparison
from tensorrepo.query.compare.entry_change import EntryChange
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.history.trees import PathChange


def compare(
    repository: RepositoryCore,
    old: bytes,
    new: bytes,
    paths: tuple[str, ...] = (),
    *,
    outside: Outside | None = None,
    removed: Collection[str] | None = None,
) -> Comparison:
    """As `query.compare.comparison.compare`."""
    return comparison.compare(
        repository, old, new, paths, contents=_contents, outside=outside, removed=removed
    )


def compare_entry(
    repository: RepositoryCore, change: PathChange, outside: Outside | None = None
) -> EntryChange:
    """What became of one path."""
    return comparison.compare_entry(repository, change, _contents, outside)


def _contents(
    repository: RepositoryCore, change: PathChange, outside: Outside | None
) -> EntryChange:
    return lazy.compare_contents(repository, change, outside)
