"""What comes of a model that was changed on both sides?

Never tensors from both by a rebase: nobody looks, and it would make weights that nobody trained.
An explicit merge joins tensors that only one side changed; what both changed is a conflict, or is
settled by the strategy that was named ("ours", "theirs", or a method that blends).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorrepo.formats.model.combine.threeway import Versions, join_models
from tensorrepo.formats.model.read import open_model
from tensorrepo.formats.model.write import write_model
from tensorrepo.formats.wording import counted
from tensorrepo.repo.merge import Conflict
from tensorrepo.repo.objects import Kind

if TYPE_CHECKING:
    from tensorrepo.formats.model.combine.threeway import Contest
    from tensorrepo.repo.merge import MergeContext
    from tensorrepo.repo.objects import ObjectSink
    from tensorrepo.repo.trees import Entry


class ModelMergeDriver:
    """Decides for entries of kind MODEL."""

    def merge(
        self,
        objects: ObjectSink,
        path: str,
        base: Entry | None,
        ours: Entry,
        theirs: Entry,
        context: MergeContext,
    ) -> Entry | Conflict:
        if ours.digest == theirs.digest:
            return ours  # the same content, stored in two ways
        if base is not None and base.digest in {ours.digest, theirs.digest}:
            return theirs if base.digest == ours.digest else ours
        digests = (base.digest if base is not None else None, ours.digest, theirs.digest)
        if context.automatic:
            reason = (
                "both sides saved another model here, and weights are never combined by "
                "themselves. Merge the branches: that joins tensors which one side changed, and "
                "--strategy settles the others"
            )
            return Conflict(path, Kind.MODEL, *digests, reason)
        versions = Versions(
            None if base is None else open_model(objects, base),
            open_model(objects, ours),
            open_model(objects, theirs),
        )
        joined = join_models(path, versions, context.strategy)
        if joined.side is not None:
            return ours if joined.side == "ours" else theirs
        if joined.source is None:
            details = tuple(contest.details for contest in joined.contests)
            return Conflict(
                path, Kind.MODEL, *digests, _reason(joined.contests, base is not None), details
            )
        return write_model(
            objects,
            joined.source,
            metrics=joined.metrics,
            lineage=joined.lineage,
            known=[ours, theirs],
        )


def _reason(contests: list[Contest], has_base: bool) -> str:
    tensors = sum(1 for contest in contests if contest.what == "tensor")
    others = len(contests) - tensors
    parts = [counted(tensors, "tensor")] if tensors else []
    parts += [f"{others:,} files or settings"] if others else []
    made = "changed on both sides" if has_base else "saved on both sides without a common version"
    return (
        f"{' and '.join(parts)} {made}. Choose with --strategy: ours, theirs, average, slerp, "
        "task-arithmetic or ties"
    )
