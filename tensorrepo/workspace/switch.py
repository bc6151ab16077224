"""Where HEAD stands: a workspace goes to another branch, or to any commit. No data is written."""

from __future__ import annotations

from tensorrepo.repo.changes.refs import BRANCHES, REMOTES, TAGS, create_branch, refuse_taken
from tensorrepo.repo.changes.revisions import Head
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError
from tensorrepo.repo.names import check_ref
from tensorrepo.workspace.session import WorkspaceSession
from tensorrepo.workspace.staging import carry_staging


def switch(
    session: WorkspaceSession,
    name: str,
    *,
    create: bool = False,
    start: str | None = None,
    detach: bool = False,
    keep: bool = False,
) -> Head:
    """Put the workspace on a branch, or with `detach` at any commit. No data is written.

    Args:
        session: workspace and repository of the command.
        name: where to go; ``-`` is where HEAD was before.
        create: makes the branch first.
        start: where a new branch starts; None: at HEAD.
        detach: stands at a commit, on no branch.
        keep: carries staged changes over.

    Raises:
        ConflictError: changes are staged, and not `keep`, or they do not fit there.
        NotFoundError: there is no such branch or commit.
    """
    workspace = session.here
    if start is not None and not create:
        raise InvalidInputError(
            f"{start!r} is where a new branch starts: `switch -c {name} {start}`"
        )
    if workspace.staging().entries and not keep:
        raise ConflictError(
            "changes are staged. Commit them, put them aside with `tensorrepo stash`, unstage them "
            "with `tensorrepo restore --staged`, or carry them over with --keep."
        )
    if not (create or detach) and (theirs := _only_remote(session, name)) is not None:
        create, start = True, theirs
    if create and start is not None:
        at = session.resolve(start).digest
        carry_staging(session, at)
        create_branch(session.repository, name, at, actor=session.author())
        head = Head(branch=name)
    elif create:
        _create_branch(session, name)
        head = Head(branch=name)
    else:
        head = _previous(session) if name == "-" else _target(session, name, detach=detach)
        carry_staging(session, session.tip_of(head))
    workspace.set_head(head)
    return head


def _only_remote(session: WorkspaceSession, name: str) -> str | None:
    """The branch of a remote that `name` means where nothing here is called so, as git guesses."""
    refs = session.repository.log.refresh().state.refs
    if any(f"{space}{name}" in refs for space in (BRANCHES, TAGS, REMOTES)):
        return None
    theirs = [ref.removeprefix(REMOTES) for ref in refs if ref.startswith(REMOTES)]
    found = [branch for branch in theirs if branch.partition("/")[2] == name]
    return found[0] if len(found) == 1 else None


def _create_branch(session: WorkspaceSession, name: str) -> None:
    """A branch at HEAD; where HEAD has no commit yet, the first commit will make it."""
    tip = session.tip()
    if tip is not None:
        create_branch(session.repository, name, tip, actor=session.author())
    else:
        refuse_taken(session.repository.log.refresh(), check_ref(BRANCHES + name))


def _previous(session: WorkspaceSession) -> Head:
    """Where HEAD was before it was moved last."""
    previous = session.here.state().previous
    if previous is None:
        raise NotFoundError("this workspace was on no other branch before")
    if previous.branch is not None:
        session.resolve(previous.branch)  # it may be gone
    return previous


def _target(session: WorkspaceSession, name: str, *, detach: bool) -> Head:
    revision = session.resolve(name)
    if detach or revision.ref is None or not revision.ref.startswith(BRANCHES):
        if not detach and revision.ref is None:
            raise InvalidInputError(
                f"{name!r} is a commit, not a branch: use --detach, or checkout"
            )
        return Head(commit=revision.digest)
    return Head(branch=revision.ref.removeprefix(BRANCHES))
