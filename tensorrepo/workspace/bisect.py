"""Bisection in a workspace: HEAD at the commit to try next, until the first bad one is known."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tensorrepo import lazy
from tensorrepo.repo.changes.revisions import Head
from tensorrepo.repo.errors import ConflictError, NotFoundError
from tensorrepo.repo.history.bisect import BisectStep, next_step
from tensorrepo.repo.ids import Digest
from tensorrepo.workspace.session import WorkspaceSession
from tensorrepo.workspace.state import Bisection
from tensorrepo.workspace.switch import switch

GOOD, BAD, SKIP = "good", "bad", "skip"


def start(session: WorkspaceSession, *, update: bool = False) -> None:
    """Begin a bisection where HEAD stands.

    Raises:
        ConflictError: one is going on, or changes are staged.
    """
    here = session.here
    if here.bisection() is not None:
        raise ConflictError("a bisection is going on: `tensorrepo bisect reset` ends it first")
    if here.staging().entries:
        raise ConflictError(
            "changes are staged, and a bisection moves HEAD: commit them, or put them aside with "
            "`tensorrepo stash`"
        )
    here.write_bisection(Bisection(here.state().head, update=update))


def tell(session: WorkspaceSession, verdict: str, commits: Iterable[Digest]) -> BisectStep | None:
    """Note what is known of commits, and put HEAD at the one to try next.

    Returns:
        What is next; None as long as no bad or no good commit is known.
    """
    bisection = going_on(session)
    told = [*bisection.verdicts, *((verdict, commit) for commit in commits)]
    known = msgspec.structs.replace(bisection, verdicts=told)
    step = step_of(session, known)
    session.here.write_bisection(known)
    if step is not None and step.commit is not None:
        switch(session, step.commit, detach=True)
        if known.update:
            lazy.update_tracked(session)
    return step


def step_of(session: WorkspaceSession, bisection: Bisection) -> BisectStep | None:
    """What is next in a bisection; None as long as no bad or no good commit is known."""
    verdicts = {commit: verdict for verdict, commit in bisection.verdicts}
    bad = [commit for verdict, commit in bisection.verdicts if verdict == BAD]
    bad = [commit for commit in bad if verdicts[commit] == BAD]
    good = [commit for commit, verdict in verdicts.items() if verdict == GOOD]
    skipped = {commit for commit, verdict in verdicts.items() if verdict == SKIP}
    if not bad or not good:
        return None
    return next_step(session.repository.objects, bad[-1], good, skipped)


def end(session: WorkspaceSession, ref: str | None = None) -> Head:
    """End a bisection: back where it began, or at `ref`."""
    bisection = going_on(session)
    begun = bisection.start
    name = ref or begun.branch or str(begun.commit)
    is_unborn = begun.branch is not None and session.tip_of(begun) is None
    if ref is None and is_unborn:
        session.here.set_head(begun)
        head = begun
    else:
        found = session.resolve(name)
        is_branch = found.ref is not None and found.ref.startswith("heads/")
        head = switch(session, name, detach=not is_branch)
    if bisection.update:
        lazy.update_tracked(session)
    session.here.write_bisection(None)
    return head


def going_on(session: WorkspaceSession) -> Bisection:
    """The bisection of the workspace. Raises NotFoundError where none was started."""
    bisection = session.here.bisection()
    if bisection is None:
        raise NotFoundError("no bisection is going on: `tensorrepo bisect start` begins one")
    return bisection
