"""`branch`, `tag`, `switch`, `undo`, `redo`, `reset`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, RepoOption, session_of
from tensorrepo.repo import refs
from tensorrepo.repo.errors import ConflictError, InvalidInputError
from tensorrepo.repo.workspace import Head
from tensorrepo.workspace.checkout import switch, update_tracked

if TYPE_CHECKING:
    from tensorrepo.workspace.session import Session


def branch_command(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="A branch to make.")] = None,
    ref: Annotated[str, typer.Argument(help="Where it begins.")] = "HEAD",
    delete: Annotated[bool, typer.Option("-d", "--delete", help="Delete NAME.")] = False,
    move: Annotated[
        bool, typer.Option("-m", "--move", help="Rename: NAME is the old name, REF the new one.")
    ] = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """List, make, rename or delete branches.

    A deleted branch's commits are kept for a while: `tensorrepo branch NAME DIGEST` brings it back.

    Examples:
        tensorrepo branch
        tensorrepo branch cleaning v1
        tensorrepo branch -m cleaning cleaned
        tensorrepo branch -d cleaned
    """
    session = session_of(context, repo)
    if name is None:
        _list_refs(session, refs.BRANCHES, as_json=as_json)
    elif delete:
        _refuse_current(session, name)
        old = refs.delete_ref(session.repository, refs.BRANCHES + name, actor=session.author())
        output.line(f"Deleted branch {name} (was {old:.12}).")
    elif move:
        _rename(session, name, ref)
    else:
        at = session.resolve(ref)
        refs.create_branch(session.repository, name, at.digest, actor=session.author())
        output.line(f"Branch {name} is at {at.digest:.12}.")


def tag_command(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="A tag to make.")] = None,
    ref: Annotated[str, typer.Argument(help="The commit it names.")] = "HEAD",
    message: Annotated[str, typer.Option("-m", "--message", help="A note kept with it.")] = "",
    delete: Annotated[bool, typer.Option("-d", "--delete", help="Delete NAME.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Needed to delete.")] = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """List, make or delete tags. A tag never moves.

    Examples:
        tensorrepo tag
        tensorrepo tag v1
        tensorrepo tag v0.9 main~3 -m "before the relabelling"
        tensorrepo tag -d v0.9 --force
    """
    session = session_of(context, repo)
    if name is None:
        _list_refs(session, refs.TAGS, as_json=as_json)
    elif delete:
        if not force:
            raise ConflictError(
                f"others may rely on tag {name!r}: repeat with --force to delete it"
            )
        old = refs.delete_ref(session.repository, refs.TAGS + name, actor=session.author())
        output.line(f"Deleted tag {name} (was {old:.12}).")
    else:
        at = session.resolve(ref)
        refs.create_tag(session.repository, name, at.digest, actor=session.author(), note=message)
        output.line(f"Tag {name} names {at.digest:.12}.")


def switch_command(
    context: typer.Context,
    branch: Annotated[str, typer.Argument(help="A branch, or with --detach any commit.")],
    create: Annotated[bool, typer.Option("-c", "--create", help="Make the branch first.")] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Stand at a commit, no branch.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Carry staged changes over.")] = False,
    update: Annotated[
        bool,
        typer.Option("--update", help="Write clean tracked files anew as the branch has them."),
    ] = False,
) -> None:
    """Put the workspace on another branch. Writes no data, unless asked to.

    Examples:
        tensorrepo switch main
        tensorrepo switch -c cleaning
        tensorrepo switch --detach v1
    """
    session = session_of(context)
    with session.here.locked():
        head = switch(session, branch, create=create, detach=detach, keep=keep)
        output.line(describe_head(head))
        if update:
            report_update(session)


def undo_command(context: typer.Context) -> None:
    """Take back your last change of this branch, as a new record of the log.

    Refused when somebody else changed the branch after you.

    Examples:
        tensorrepo undo
        tensorrepo redo
    """
    _take_back(context, "undo")


def redo_command(context: typer.Context) -> None:
    """Take back the last undo of this branch.

    Examples:
        tensorrepo redo
    """
    _take_back(context, "redo")


def reset_command(
    context: typer.Context,
    ref: Annotated[str, typer.Argument(help="The commit to move this branch to.")],
) -> None:
    """Move this branch to another commit. The old place stays in the branch's history: BRANCH@{1}.

    Examples:
        tensorrepo reset HEAD~1
        tensorrepo reset main@{1}
    """
    session = session_of(context)
    name = _current(session)
    at = session.resolve(ref)
    move = refs.reset_branch(session.repository, name, at.digest, actor=session.author())
    output.line(f"Branch {name} is at {at.digest:.12} (was {move.update.old or 'nothing':.12}).")


def describe_head(head: Head) -> str:
    """HEAD for people."""
    if head.branch is not None:
        return f"On branch {head.branch}."
    return (
        f"HEAD is detached at {head.commit:.12}. `tensorrepo switch -c NAME` makes a branch here."
    )


def report_update(session: Session) -> None:
    """Write clean tracked files as HEAD has them, and say what was done."""
    written, skipped = update_tracked(session)
    for one in written:
        output.line(f"wrote {one.path.relative_to(session.here.root)} ({one.files} files)")
    for path in skipped:
        output.note(f"left {path}: it was changed on disk")


def _take_back(context: typer.Context, verb: str) -> None:
    session = session_of(context)
    name = _current(session)
    step = refs.undo if verb == "undo" else refs.redo
    move = step(session.repository, name, actor=session.author())
    old, new = move.update.old, move.update.new
    place = f"at {new:.12}" if new else "without commits"
    output.line(f"Branch {name} is {place} again (was {old or 'nothing':.12}).")


def _current(session: Session) -> str:
    head = session.here.state().head
    if head.branch is None:
        raise InvalidInputError(f"HEAD is detached at {head.commit:.12}: switch to a branch first")
    return head.branch


def _refuse_current(session: Session, name: str) -> None:
    head = session.head
    if head is not None and head.branch == name:
        raise ConflictError(f"the workspace is on branch {name!r}: switch to another one first")


def _rename(session: Session, old: str, new: str) -> None:
    if new == "HEAD":
        raise InvalidInputError("rename from what to what? `tensorrepo branch -m OLD NEW`")
    refs.rename_branch(session.repository, old, new, actor=session.author())
    head = session.head
    if head is not None and head.branch == old:
        session.here.set_head(Head(branch=new))
    output.line(f"Branch {old} is {new} now.")


def _list_refs(session: Session, space: str, *, as_json: bool) -> None:
    state = session.repository.log.refresh().state
    found = {ref.removeprefix(space): at for ref, at in state.refs.items() if ref.startswith(space)}
    if as_json:
        output.json_value(dict(sorted(found.items())))
        return
    current = session.head.branch if session.head and space == refs.BRANCHES else None
    if current is not None and current not in found:
        output.line(f"* {current} (no commit yet)")
    for name, at in sorted(found.items()):
        output.line(f"{'*' if name == current else ' '} {name} {at:.12}")
