"""`switch`, `undo`, `redo`, `reset`: where the workspace and its branch stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, session_of
from tensorrepo.cli.complete import complete_branch, complete_ref
from tensorrepo.repo import refs
from tensorrepo.repo.revisions import Head
from tensorrepo.workspace.checkout import switch, update_tracked

if TYPE_CHECKING:
    from tensorrepo.workspace.session import Session


def switch_command(
    context: Context,
    branch: Annotated[
        str, Argument(help="A branch, or with --detach any commit.", autocompletion=complete_branch)
    ],
    create: Annotated[bool, Option("-c", "--create", help="Make the branch first.")] = False,
    detach: Annotated[bool, Option("--detach", help="Stand at a commit, no branch.")] = False,
    keep: Annotated[bool, Option("--keep", help="Carry staged changes over.")] = False,
    update: Annotated[
        bool, Option("--update", help="Write clean tracked files anew as the branch has them.")
    ] = False,
    as_json: JsonOption = False,
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
        show_head(session, head, update=update, as_json=as_json)


def undo_command(context: Context, as_json: JsonOption = False) -> None:
    """Take back your last change of this branch, as a new record of the log.

    Refused when somebody else changed the branch after you.

    Examples:
        tensorrepo undo
        tensorrepo redo
    """
    _take_back(context, "undo", as_json=as_json)


def redo_command(context: Context, as_json: JsonOption = False) -> None:
    """Take back the last undo of this branch.

    Examples:
        tensorrepo redo
    """
    _take_back(context, "redo", as_json=as_json)


def reset_command(
    context: Context,
    ref: Annotated[
        str, Argument(help="The commit to move this branch to.", autocompletion=complete_ref)
    ],
    as_json: JsonOption = False,
) -> None:
    """Move this branch to another commit. The old place stays in the branch's history: BRANCH@{1}.

    Examples:
        tensorrepo reset HEAD~1
        tensorrepo reset main@{1}
    """
    session = session_of(context)
    name = session.branch()
    at = session.resolve(ref)
    move = refs.reset_branch(session.repository, name, at.digest, actor=session.author())
    _report(name, move, as_json=as_json)


def show_head(session: Session, head: Head, *, update: bool, as_json: bool) -> None:
    """Tell where the workspace stands now; with `update` write clean tracked files anew."""
    value: dict[str, Any] = {"branch": head.branch, "commit": session.tip_of(head)}
    lines = [describe_head(head)]
    if update:
        written, skipped = update_tracked(session)
        root = session.here.root
        places = [one.path.relative_to(root).as_posix() for one in written]
        value |= {"written": places, "left": skipped}
        lines += [f"wrote {path}" for path in places]
        for path in skipped:
            output.note(f"left {path}: it was changed on disk")
    output.answer(value, *lines, as_json=as_json)


def describe_head(head: Head) -> str:
    """HEAD for people."""
    if head.branch is not None:
        return f"On branch {head.branch}."
    return (
        f"HEAD is detached at {head.commit:.12}. `tensorrepo switch -c NAME` makes a branch here."
    )


def _take_back(context: Context, verb: str, *, as_json: bool) -> None:
    session = session_of(context)
    step = refs.undo if verb == "undo" else refs.redo
    with session.here.locked():
        name = session.branch()
        move = step(session.repository, name, actor=session.author())
        if move.renamed is None:
            _report(name, move, as_json=as_json)
            return
        other = move.renamed.ref.removeprefix(refs.BRANCHES)
        gone, back = (other, name) if move.renamed.new is None else (name, other)
        session.here.set_head(Head(branch=back))
    commit = move.update.old or move.update.new
    value = {"branch": back, "commit": commit, "was": commit, "renamed": gone}
    output.answer(value, f"Branch {gone} is {back} again.", as_json=as_json)


def _report(name: str, move: refs.Move, *, as_json: bool) -> None:
    old, new = move.update.old, move.update.new
    state = f"is at {new:.12}" if new else "has no commit"
    was = f"was at {old:.12}" if old else "had none"
    value = {"branch": name, "commit": new, "was": old}
    output.answer(value, f"Branch {name} {state} now ({was}).", as_json=as_json)
