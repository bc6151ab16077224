"""Branches, tags and HEAD: `branch`, `tag`, `switch`, `reset`, ..."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from typer import Argument, Option

from tensorrepo import lazy
from tensorrepo.cli import output
from tensorrepo.cli.options import (
    CommandCall,
    RepoCall,
    complete_branch,
    complete_ref,
    complete_tag,
    signing_repository,
)
from tensorrepo.repo.changes import refs
from tensorrepo.repo.changes.moments import moment_text
from tensorrepo.repo.changes.refs import REMOTES
from tensorrepo.repo.changes.revisions import Head
from tensorrepo.repo.errors import ConflictError, InvalidInputError
from tensorrepo.repo.history.commits import contained, read_commit
from tensorrepo.repo.ids import Digest
from tensorrepo.workspace.session import WorkspaceSession
from tensorrepo.workspace.switch import switch


def branch_command(
    call: RepoCall,
    name: Annotated[
        str | None, Argument(help="A branch to make.", autocompletion=complete_branch)
    ] = None,
    ref: Annotated[
        str | None, Argument(help="Where it begins; else at HEAD.", autocompletion=complete_ref)
    ] = None,
    delete: Annotated[bool, Option("-d", "--delete", help="Delete NAME.")] = False,
    move: Annotated[
        bool, Option("--rename", help="Rename NAME to REF; alone: this branch to NAME.")
    ] = False,
    verbose: Annotated[
        bool, Option("-v", "--verbose", help="List with the last commit of each.")
    ] = False,
    merged: Annotated[
        bool, Option("--merged", help="List those that NAME, or else HEAD, has all of.")
    ] = False,
    remotes: Annotated[
        bool, Option("-r", "--remotes", help="List branches of remotes, as of the last fetch.")
    ] = False,
    no_merged: Annotated[
        bool, Option("--no-merged", help="List those that have commits which NAME, or HEAD, lacks.")
    ] = False,
) -> None:
    """List, make, rename or delete branches.

    A deleted branch's commits are kept for a while: `tensorrepo branch NAME DIGEST` brings it back.

    Examples:
        tensorrepo branch -v
        tensorrepo branch --merged main
        tensorrepo branch -r
        tensorrepo branch cleaning v1
        tensorrepo branch --rename cleaning cleaned
        tensorrepo branch -d cleaned
    """
    session = call.session
    if (delete and (move or ref)) or (name is None and (delete or move)):
        raise InvalidInputError("give `branch -d NAME`, or `branch --rename [OLD] NEW`")
    if remotes and (name or delete or move or merged or no_merged):
        raise InvalidInputError("--remotes lists all branches of remotes: give it alone")
    if merged and no_merged:
        raise InvalidInputError("give one of --merged and --no-merged")
    if merged or no_merged:
        tip = session.resolve(name).digest
        known = session.repository.log.refresh().state.refs.items()
        tips = [at for ref, at in known if ref.startswith(refs.BRANCHES)]
        held = contained(session.repository.objects, tips, tip)
        _list_refs(call, refs.BRANCHES, lambda at: (at in held) is merged, verbose=verbose)
    elif remotes:
        _list_refs(call, REMOTES, verbose=verbose)
    elif name is None:
        _list_refs(call, refs.BRANCHES, verbose=verbose)
    elif delete:
        _delete_branch(call, name)
    elif move:
        _rename(call, *((name, ref) if ref else (session.branch(), name)))
    else:
        at = session.resolve(ref).digest
        refs.create_branch(session.repository, name, at, actor=session.author())
        call.answer({"branch": name, "commit": at}, f"Branch {name} is at {at:.12}.")


def tag_command(
    call: RepoCall,
    name: Annotated[
        str | None, Argument(help="A tag to make.", autocompletion=complete_tag)
    ] = None,
    ref: Annotated[
        str | None, Argument(help="The commit it names; else HEAD.", autocompletion=complete_ref)
    ] = None,
    message: Annotated[str, Option("-m", "--message", help="A note kept with it.")] = "",
    delete: Annotated[bool, Option("-d", "--delete", help="Delete NAME.")] = False,
    force: Annotated[bool, Option("--force", help="Needed to delete.")] = False,
    sign: Annotated[
        bool, Option("-S", "--sign", help="Sign it with the key of `user.signingkey`.")
    ] = False,
) -> None:
    """List, make or delete tags. A tag never moves.

    Examples:
        tensorrepo tag
        tensorrepo tag v1
        tensorrepo tag v0.9 main~3 -m "before the relabelling"
        tensorrepo tag v1.0 -S
        tensorrepo tag -d v0.9 --force
    """
    session = call.session
    if delete and (name is None or ref):
        raise InvalidInputError("give `tag -d NAME --force`")
    if name is None:
        _list_refs(call, refs.TAGS)
    elif delete:
        if not force:
            raise ConflictError(
                f"others may rely on tag {name!r}: repeat with --force to delete it"
            )
        old = refs.delete_ref(session.repository, refs.TAGS + name, actor=session.author())
        value = {"deleted": name, "commit": old}
        call.answer(value, f"Deleted tag {name} (was {old:.12}).")
    else:
        at = session.resolve(ref).digest
        repository = signing_repository(call) if sign else session.repository
        refs.create_tag(repository, name, at, actor=session.author(), note=message)
        value = {"tag": name, "commit": at}
        call.answer(value, f"Tag {name} names {at:.12}.")


def _delete_branch(call: CommandCall, name: str) -> None:
    session = call.session
    head = session.head
    if head is not None and head.branch == name:
        raise ConflictError(f"the workspace is on branch {name!r}: switch to another one first")
    old = refs.delete_ref(session.repository, refs.BRANCHES + name, actor=session.author())
    value = {"deleted": name, "commit": old}
    back = f"`tensorrepo branch {name} {old:.12}` brings it back."
    call.answer(value, f"Deleted branch {name} (was {old:.12}). {back}")


def _rename(call: CommandCall, old: str, new: str) -> None:
    session = call.session
    refs.rename_branch(session.repository, old, new, actor=session.author())
    head = session.head
    if head is not None and head.branch == old:
        session.here.set_head(Head(branch=new))
    call.answer({"branch": new, "was": old}, f"Branch {old} is {new} now.")


def _list_refs(
    call: CommandCall,
    space: str,
    wanted: Callable[[Digest], bool] = lambda _: True,
    *,
    verbose: bool = False,
) -> None:
    """List branches or tags whose commits are `wanted`; `verbose`: with what these are."""
    session = call.session
    state = session.repository.log.refresh().state
    named = {
        ref.removeprefix(space): at
        for ref, at in sorted(state.refs.items())
        if ref.startswith(space) and wanted(at)
    }
    head = session.head if space == refs.BRANCHES else None
    if call.as_json:
        here = None if head is None else head.branch
        kept = space == refs.BRANCHES
        output.json_lines(
            {"name": name, "commit": at}
            | ({"current": name == here} if kept else {})
            | (_told(session, at) if verbose else {})
            for name, at in sorted(named.items())
        )
        return
    if head is not None and head.branch is None:
        output.line(f"* (detached at {head.commit:.12})")
    elif head is not None and f"{space}{head.branch}" not in state.refs:
        output.line(f"* {head.branch} (no commit yet)")
    width = max(map(len, named), default=0) if verbose else 0
    for name, at in named.items():
        told = "  {time:.16}  {author}: {subject}".format_map(_told(session, at)) if verbose else ""
        mark = "*" if head and name == head.branch else " "
        output.line(f"{mark} {name:{width}} {at:.12}{told}")


def _told(session: WorkspaceSession, at: Digest) -> dict[str, str]:
    """What a commit is, in short."""
    commit = read_commit(session.repository.objects, at)
    return {
        "commit": at,
        "time": moment_text(commit.time_ns),
        "author": commit.author.partition(" <")[0],
        "subject": commit.message.partition("\n")[0],
    }


def switch_command(
    call: CommandCall,
    branch: Annotated[
        str,
        Argument(
            help="A branch, - for the one before, or with --detach any commit.",
            autocompletion=complete_branch,
        ),
    ],
    start: Annotated[
        str | None,
        Argument(help="Where a new branch starts; else at HEAD.", autocompletion=complete_ref),
    ] = None,
    create: Annotated[bool, Option("-c", "--create", help="Make the branch first.")] = False,
    detach: Annotated[bool, Option("--detach", help="Stand at a commit, no branch.")] = False,
    keep: Annotated[bool, Option("--keep", help="Carry staged changes over.")] = False,
    update: Annotated[
        bool, Option("--update", help="Write clean tracked files anew as the branch has them.")
    ] = False,
) -> None:
    """Put the workspace on another branch. Writes no data, unless asked to.

    Examples:
        tensorrepo switch main
        tensorrepo switch -c cleaning
        tensorrepo switch -c mended v1
        tensorrepo switch --detach v1
    """
    session = call.session
    with session.here.locked():
        head = switch(session, branch, create=create, start=start, detach=detach, keep=keep)
        show_head(call, head, update=update)


def undo_command(call: CommandCall) -> None:
    """Take back your last change of this branch, as a new record of the log.

    Refused when somebody else changed the branch after you.

    Examples:
        tensorrepo undo
        tensorrepo redo
    """
    _take_back(call, "undo")


def redo_command(call: CommandCall) -> None:
    """Take back the last undo of this branch.

    Examples:
        tensorrepo redo
    """
    _take_back(call, "redo")


def reset_command(
    call: CommandCall,
    ref: Annotated[
        str, Argument(help="The commit to move this branch to.", autocompletion=complete_ref)
    ],
) -> None:
    """Move this branch to another commit. The old place stays in the branch's history: BRANCH@{1}.

    Examples:
        tensorrepo reset HEAD~1
        tensorrepo reset main@{1}
    """
    session = call.session
    name = session.branch()
    at = session.resolve(ref)
    move = refs.reset_branch(session.repository, name, at.digest, actor=session.author())
    _report(call, name, move)


def show_head(call: CommandCall, head: Head, *, update: bool) -> None:
    """Tell where the workspace stands now; with `update` write clean tracked files anew."""
    session = call.session
    value: dict[str, Any] = {"branch": head.branch, "commit": session.tip_of(head)}
    lines = [describe_head(head)]
    if update:
        written, skipped = lazy.update_tracked(session)
        root = session.here.root
        places = [one.path.relative_to(root).as_posix() for one in written]
        value |= {"written": places, "left": skipped}
        lines += [f"wrote {path}" for path in places]
        for path in skipped:
            output.note(f"left {path}: it was changed on disk")
    call.answer(value, *lines)


def describe_head(head: Head) -> str:
    """HEAD for people."""
    if head.branch is not None:
        return f"On branch {head.branch}."
    return (
        f"HEAD is detached at {head.commit:.12}. `tensorrepo switch -c NAME` makes a branch here."
    )


def _take_back(call: CommandCall, verb: str) -> None:
    session = call.session
    step = refs.undo if verb == "undo" else refs.redo
    with session.here.locked():
        name = session.branch()
        move = step(session.repository, name, actor=session.author())
        if move.renamed is None:
            _report(call, name, move)
            return
        other = move.renamed.ref.removeprefix(refs.BRANCHES)
        gone, back = (other, name) if move.renamed.new is None else (name, other)
        session.here.set_head(Head(branch=back))
    commit = move.update.old or move.update.new
    value = {"branch": back, "commit": commit, "was": commit, "renamed": gone}
    call.answer(value, f"Branch {gone} is {back} again.")


def _report(call: CommandCall, name: str, move: refs.Move) -> None:
    old, new = move.update.old, move.update.new
    state = f"is at {new:.12}" if new else "has no commit"
    was = f"was at {old:.12}" if old else "had none"
    call.answer({"branch": name, "commit": new, "was": old}, f"Branch {name} {state} now ({was}).")
