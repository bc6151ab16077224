"""What comes of a model that was changed on both sides?

Never tensors from both: a rebase that nobody looks at would make weights that nobody trained.
Taking one side whole ("ours", "theirs") is done for every kind before a driver is asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorrepo.repo.merge import Conflict
from tensorrepo.repo.objects import Kind

if TYPE_CHECKING:
    from tensorrepo.repo.merge import MergeContext
    from tensorrepo.repo.objects import ObjectSink
    from tensorrepo.repo.trees import Entry


class ModelMergeDriver:
    """Decides for entries of kind MODEL."""

    def merge(
        self,
        objects: ObjectSink,  # noqa: ARG002  # the protocol's; nothing is read to refuse
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
        return Conflict(
            path,
            Kind.MODEL,
            base.digest if base is not None else None,
            ours.digest,
            theirs.digest,
            _reason(context),
        )


def _reason(context: MergeContext) -> str:
    both = "both sides saved another model here, and weights are never combined by themselves"
    if context.automatic:
        return f"{both}. Merge the branches, and choose: --strategy ours or theirs"
    if context.strategy not in {"fail", "ours", "theirs"}:
        return f"{both}: strategy {context.strategy!r} is unknown for models. Use ours or theirs"
    return f"{both}. Choose: --strategy ours or theirs"
