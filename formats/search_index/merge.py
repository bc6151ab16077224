"""Merge driver of search indexes: of two versions one stays, for an index loses nothing by age.

Any index answers right about any version of its dataset: what it does not know is compared. So two
that both sides changed are no conflict. The one that knows more rows stays, whoever merges.
"""

from __future__ import annotations

import numpy as np

from tensorrepo.formats.dataset.metadata.row_ids import RUN
from tensorrepo.formats.search_index.stored_index import open_index, segments_with
from tensorrepo.repo.history.merge_trees import Conflict, MergeContext
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import ObjectSink, ObjectSource


class IndexMergeDriver:
    """Joins two versions of an index; see `tensorrepo.repo.history.merge_trees.MergeDriver`."""

    def merge(
        self,
        objects: ObjectSink,
        path: str,  # noqa: ARG002  as all drivers
        base: Entry | None,  # noqa: ARG002
        ours: Entry,
        theirs: Entry,
        context: MergeContext,
    ) -> Entry | Conflict:
        """One side: that of the strategy, else the one that knows more rows."""
        if context.strategy in {"ours", "theirs"}:
            return ours if context.strategy == "ours" else theirs
        return max(
            ours, theirs, key=lambda each: (open_index(objects, each.digest).rows, each.digest)
        )

    def held_purged(
        self,
        objects: ObjectSource,
        path: str,  # noqa: ARG002  as all drivers
        entry: Entry,
        state: State,
    ) -> str | None:
        """What an index holds that was purged; see `purge_guard.KnowsPurged`."""
        index = open_index(objects, entry.digest)
        columns = state.purged_columns.get(index.path, {})
        if index.column_id in columns:
            return f"column {columns[index.column_id]!r}"
        for listed in state.purged_rows:
            runs = np.frombuffer(objects.get(listed).payload, RUN)
            if segments_with(index, runs):
                return "rows"
        return None
