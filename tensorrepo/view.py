"""A view at a commit, as the SDK shows it: the rows of a dataset that a query chose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.dataset import Dataset
from tensorrepo.formats.dataset.read import resolve_rows
from tensorrepo.formats.view import (
    ViewDiff,
    diff_views,
    live_numbers,
    open_rows,
    open_view,
)
from tensorrepo.given import check_instance
from tensorrepo.repo.objects import Kind

if TYPE_CHECKING:
    from tensorrepo.context import Context
    from tensorrepo.formats.view import View as StoredView
    from tensorrepo.repo.ids import Digest
    from tensorrepo.stream import Stream


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class View(Dataset):
    """Rows of a dataset, used like one: indexed, streamed, asked, exported. Rows count from 0.

    `source` is the whole dataset, `chosen` what is stored of the view.
    """

    source: Dataset
    chosen: StoredView
    identity: Digest

    @property
    def name(self) -> str:
        return self.path.removeprefix("views/")

    @property
    def digest(self) -> Digest:
        """What the view is, in whatever commit."""
        return self.identity

    @property
    def sql(self) -> str:
        """The query that chose the rows."""
        return self.chosen.sql

    def stream(self, *, rows: Any = None, **options: Any) -> Stream:
        """Batches of the rows, for training: see `Dataset.stream`, which takes the same.

        Args:
            rows: which rows of the view: a slice, numbers or a mask; None: all.
            options: of `Dataset.stream`.
        """
        numbers = live_numbers(self.source.stored, self.chosen)
        chosen = resolve_rows(slice(None) if rows is None else rows, len(numbers))
        return self.source.stream(rows=numbers[np.asarray(chosen, np.int64)], **options)

    def diff(self, older: View) -> ViewDiff:
        """Ids of the rows that this view has and `older` lacks, and the other way round."""
        check_instance("older", older, View, "a view, as repo.view(...) gives it")
        return diff_views(older.chosen, self.chosen)

    def __reduce__(self) -> tuple[Any, ...]:
        return view_at, (self.context, self.path, self.commit)

    def __repr__(self) -> str:
        return (
            f"<view {self.name}: {len(self):,} rows of {self.source.name} at "
            f"{self.source.commit:.12}, {self.sql!r:.80}>"
        )


def view_at(context: Context, name: str, ref: str = "main") -> View:
    """See `Repository.view`."""
    revision, path, entry = context.entry("views", name, ref, Kind.VIEW)
    chosen = open_view(context.core.objects, entry.digest)
    whole, stored = open_rows(context.core.objects, chosen, context.outside)
    source = Dataset(context, chosen.path, chosen.commit, whole)
    return View(context, path, revision.digest, stored, source, chosen, entry.digest)
