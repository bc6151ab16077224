"""The history of a repository, as the SDK shows it: branches, tags, commits, what moves them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from tensorrepo.formats.arguments import whole
from tensorrepo.given import text
from tensorrepo.repo import append, refs
from tensorrepo.repo.combine import MergeOutcome, merge
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.history import walk
from tensorrepo.repo.pick import cherry_pick, revert
from tensorrepo.repo.revisions import Revision

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorrepo.context import Context
    from tensorrepo.repo.attempt import Committed
    from tensorrepo.repo.commits import Commit
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.revisions import Revision


@dataclass(frozen=True, slots=True, repr=False)
class Log:
    """One commit of a history."""

    digest: Digest
    commit: Commit

    def __repr__(self) -> str:
        subject = self.commit.message.partition("\n")[0]
        return f"<commit {self.digest:.12} by {self.commit.author}: {subject}>"


class History:
    """What a repository tells of its history, and what changes it. See `Repository`."""

    def __init__(self, context: Context) -> None:
        self.context = context

    @property
    def author(self) -> str:
        """``Name <email>`` of commits. Raises InvalidInputError when no setting names one."""
        return self.context.author

    def branches(self) -> dict[str, Digest]:
        """Names of branches, and the commits they stand at."""
        return self._refs(refs.BRANCHES)

    def tags(self) -> dict[str, Digest]:
        """Names of tags, and the commits they name."""
        return self._refs(refs.TAGS)

    def resolve(self, ref: str) -> Revision:
        """The commit that `ref` names. Raises NotFoundError with near names."""
        return self.context.resolve(ref)

    def log(self, ref: str = "main", *, limit: int | None = None) -> list[Log]:
        """Commits that lead to `ref`, the newest first."""
        most = None if limit is None else whole("limit", limit)
        history = walk(self.context.core.objects, [self.resolve(ref).digest])
        return [Log(digest, commit) for digest, commit in islice(history, most)]

    def create_branch(self, name: str, ref: str = "main") -> None:
        refs.create_branch(
            self.context.core, text("name", name), self.resolve(ref).digest, actor=self.author
        )

    def delete_branch(self, name: str) -> None:
        refs.delete_ref(self.context.core, refs.BRANCHES + text("name", name), actor=self.author)

    def create_tag(self, name: str, ref: str = "main", *, note: str = "") -> None:
        """Name a commit for ever: a tag never moves."""
        at = self.resolve(ref).digest
        refs.create_tag(self.context.core, text("name", name), at, actor=self.author, note=note)

    def merge(
        self,
        ref: str,
        into: str = "main",
        *,
        message: str | None = None,
        strategy: str | Mapping[str, str] = "fail",
    ) -> MergeOutcome:
        """Bring the history of `ref` into a branch: one merge commit, or nothing.

        Args:
            ref: what to merge.
            into: the branch.
            message: of the commit.
            strategy: for what both sides changed: "fail", "ours", "theirs"; of models also
                "average", "slerp", "task-arithmetic" and "ties", which blend the tensors that both
                changed. As a mapping: of single paths, such as ``{"models/net": "average"}``.

        Raises:
            ConflictError: `conflicts` names paths and reasons. Nothing changed.
        """
        other = self.resolve(ref)
        return merge(
            self.context.core,
            into,
            other.digest,
            author=self.author,
            message=message or f"Merge {ref} into {into}",
            called=ref,
            strategy=strategy if isinstance(strategy, str) else "fail",
            by_path={} if isinstance(strategy, str) else strategy,
        )

    def revert(
        self,
        ref: str,
        branch: str = "main",
        *,
        message: str | None = None,
        mainline: int | None = None,
        strategy: str = "fail",
    ) -> Committed | None:
        """Take back on a branch what one commit changed, as a new commit; the rest stays.

        Args:
            ref: the commit to take back.
            branch: what to commit to.
            message: of the new commit; None: one that says what is reverted.
            mainline: of a merge: the parent, counted from 1, whose side stays.
            strategy: for conflicts: "fail", "ours" (the branch stays) or "theirs".

        Returns:
            The commit made, None when it would change nothing.

        Raises:
            ConflictError: `conflicts` names paths and reasons. Nothing changed.
            InvalidInputError: a merge without `mainline`, or no such parent.
        """
        return revert(
            self.context.core,
            branch,
            self.resolve(ref).digest,
            author=self.author,
            message=message,
            mainline=mainline,
            strategy=strategy,
        )

    def cherry_pick(
        self,
        ref: str,
        branch: str = "main",
        *,
        message: str | None = None,
        mainline: int | None = None,
        strategy: str = "fail",
    ) -> Committed | None:
        """Repeat on a branch what one commit changed elsewhere; its author and message are kept.

        Arguments, result and errors are those of `revert`.
        """
        return cherry_pick(
            self.context.core,
            branch,
            self.resolve(ref).digest,
            committer=self.author,
            message=message,
            mainline=mainline,
            strategy=strategy,
        )

    def undo(self, branch: str = "main") -> refs.Move:
        """Take back your last change of a branch."""
        return refs.undo(self.context.core, branch, actor=self.author)

    def redo(self, branch: str = "main") -> refs.Move:
        """Take back the last `undo` of a branch."""
        return refs.redo(self.context.core, branch, actor=self.author)

    def status_of(self, txn: str, generation: int | None = None, *, settle: bool = False) -> str:
        """What became of a commit whose outcome was unknown: "landed", "lost" or "unknown".

        Args:
            txn: as `CommitOutcomeUnknown` named it.
            generation: likewise; None: as this machine noted it.
            settle: make an unknown outcome a definite one.

        Raises:
            NotFoundError: no generation was given, and this machine noted none.
        """
        if generation is None:
            pending = self.context.core.log.pending
            noted = {one.txn: one.generation for one in (pending.unresolved() if pending else ())}
            if txn not in noted:
                raise NotFoundError(
                    f"this machine has no note of transaction {txn!r}: give its generation, too"
                )
            generation = noted[txn]
        return append.resolve(self.context.core.log, txn, generation, settle=settle)

    def _refs(self, space: str) -> dict[str, Digest]:
        found = self.context.core.log.refresh().state.refs.items()
        return {ref.removeprefix(space): at for ref, at in sorted(found) if ref.startswith(space)}
