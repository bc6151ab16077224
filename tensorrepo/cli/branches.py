"""`branch`, `tag`: the names of commits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, RepoOption, session_of
from tensorrepo.cli.complete import complete_branch, complete_ref, complete_tag
from tensorrepo.repo import refs
from tensorrepo.repo.errors import ConflictError, InvalidInputError
from tensorrepo.repo.revisions import Head

if TYPE_CHECKING:
    from tensorrepo.workspace.session import Session


def branch_command(
    context: Context,
    name: Annotated[
        str | None, Argument(help="A branch to make.", autocompletion=complete_branch)
    ] = None,
    ref: Annotated[
        str | None, Argument(help="Where it begins; else at HEAD.", autocompletion=complete_ref)
    ] = None,
    delete: Annotated[bool, Option("-d", "--delete", help="Delete NAME.")] = False,
    move: Annotated[
        bool, Option("-m", "--move", help="Rename NAME to REF; alone: this branch to NAME.")
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
    if (delete and (move or ref)) or (name is None and (delete or move)):
        raise InvalidInputError("give `branch -d NAME`, or `branch -m [OLD] NEW`")
    if name is None:
        _list_refs(session, refs.BRANCHES, as_json=as_json)
    elif delete:
        _delete_branch(session, name, as_json=as_json)
    elif move:
        _rename(session, *((name, ref) if ref else (session.branch(), name)), as_json=as_json)
    else:
        at = session.resolve(ref).digest
        refs.create_branch(session.repository, name, at, actor=session.author())
        value = {"branch": name, "commit": at}
        output.answer(value, f"Branch {name} is at {at:.12}.", as_json=as_json)


def tag_command(
    context: Context,
    name: Annotated[
        str | None, Argument(help="A tag to make.", autocompletion=complete_tag)
    ] = None,
    ref: Annotated[
        str | None, Argument(help="The commit it names; else HEAD.", autocompletion=complete_ref)
    ] = None,
    message: Annotated[str, Option("-m", "--message", help="A note kept with it.")] = "",
    delete: Annotated[bool, Option("-d", "--delete", help="Delete NAME.")] = False,
    force: Annotated[bool, Option("--force", help="Needed to delete.")] = False,
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
    if delete and (name is None or ref):
        raise InvalidInputError("give `tag -d NAME --force`")
    if name is None:
        _list_refs(session, refs.TAGS, as_json=as_json)
    elif delete:
        if not force:
            raise ConflictError(
                f"others may rely on tag {name!r}: repeat with --force to delete it"
            )
        old = refs.delete_ref(session.repository, refs.TAGS + name, actor=session.author())
        value = {"deleted": name, "commit": old}
        output.answer(value, f"Deleted tag {name} (was {old:.12}).", as_json=as_json)
    else:
        at = session.resolve(ref).digest
        refs.create_tag(session.repository, name, at, actor=session.author(), note=message)
        value = {"tag": name, "commit": at}
        output.answer(value, f"Tag {name} names {at:.12}.", as_json=as_json)


def _delete_branch(session: Session, name: str, *, as_json: bool) -> None:
    head = session.head
    if head is not None and head.branch == name:
        raise ConflictError(f"the workspace is on branch {name!r}: switch to another one first")
    old = refs.delete_ref(session.repository, refs.BRANCHES + name, actor=session.author())
    value = {"deleted": name, "commit": old}
    back = f"`tensorrepo branch {name} {old:.12}` brings it back."
    output.answer(value, f"Deleted branch {name} (was {old:.12}). {back}", as_json=as_json)


def _rename(session: Session, old: str, new: str, *, as_json: bool) -> None:
    refs.rename_branch(session.repository, old, new, actor=session.author())
    head = session.head
    if head is not None and head.branch == old:
        session.here.set_head(Head(branch=new))
    output.answer({"branch": new, "was": old}, f"Branch {old} is {new} now.", as_json=as_json)


def _list_refs(session: Session, space: str, *, as_json: bool) -> None:
    state = session.repository.log.refresh().state
    named = {ref.removeprefix(space): at for ref, at in state.refs.items() if ref.startswith(space)}
    if as_json:
        output.json_value(dict(sorted(named.items())))
        return
    head = session.head if space == refs.BRANCHES else None
    if head is not None and head.branch is None:
        output.line(f"* (detached at {head.commit:.12})")
    elif head is not None and head.branch not in named:
        output.line(f"* {head.branch} (no commit yet)")
    for name, at in sorted(named.items()):
        output.line(f"{'*' if head and name == head.branch else ' '} {name} {at:.12}")
