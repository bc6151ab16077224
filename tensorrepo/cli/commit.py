"""`commit`, `merge`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, session_of
from tensorrepo.cli.exits import NOTHING_TO_DO
from tensorrepo.repo import combine
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.workspace.commit import commit_staged


def commit_command(
    context: typer.Context,
    message: Annotated[str, typer.Option("-m", "--message", help="What, and why.")],
    as_json: JsonOption = False,
) -> None:
    """Record what is staged, as one commit.

    When the branch moved meanwhile, the change is merged onto it. In a conflict nothing changes
    and what is staged is kept. Nothing staged: exit code 1.

    Examples:
        tensorrepo commit -m "Add the pictures of March"
    """
    session = session_of(context)
    with session.here.locked():
        made = commit_staged(session, message)
    if made is None:
        output.note("nothing to commit: stage something with `tensorrepo add`")
        raise typer.Exit(NOTHING_TO_DO)
    if as_json:
        output.json_value(
            {
                "commit": made.digest,
                "branch": session.here.state().head.branch,
                "onto": made.onto,
                "changed": made.commit.changed,
                "attempts": made.attempts,
            }
        )
        return
    if made.onto is not None:
        output.line(f"The branch had moved: merged onto {made.onto:.12}.")
    count = len(made.commit.changed or ())
    subject = message.partition("\n")[0]
    output.line(f"[{session.here.state().head.branch} {made.digest:.12}] {subject}")
    output.line(f" {count} {'entry' if count == 1 else 'entries'} changed")


def merge_command(
    context: typer.Context,
    ref: Annotated[str, typer.Argument(help="A branch or any commit.")],
    message: Annotated[str | None, typer.Option("-m", "--message", help="Of the commit.")] = None,
    strategy: Annotated[
        str, typer.Option("--strategy", help="For conflicts: fail, ours or theirs.")
    ] = "fail",
    commit: Annotated[
        bool, typer.Option("--no-ff", help="Make a commit also where moving forward is enough.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Join another branch into this one: one merge commit, or nothing.

    Appends to a dataset on both sides are joined. There is no half-merged state: in a conflict
    nothing changes, and the message says which paths and why.

    Examples:
        tensorrepo merge cleaning
        tensorrepo merge cleaning --strategy theirs
    """
    session = session_of(context)
    head = session.here.state().head
    if head.branch is None:
        raise InvalidInputError("HEAD is detached: switch to the branch to merge into")
    if session.here.staging().entries:
        raise InvalidInputError("changes are staged: commit them first, or unstage them")
    other = session.resolve(ref)
    outcome = combine.merge(
        session.repository,
        head.branch,
        other.digest,
        author=session.author(),
        message=message or f"Merge {ref} into {head.branch}",
        strategy=strategy,
        fast_forward=not commit,
    )
    if as_json:
        output.json_value(asdict(outcome) | {"branch": head.branch})
    elif outcome.committed is not None:
        made = outcome.committed
        output.line(f"[{head.branch} {made.digest:.12}] merged {ref} ({other.digest:.12})")
        for path in made.commit.changed or ():
            output.line(f"  {path}")
    elif outcome.forwarded is not None:
        output.line(f"Branch {head.branch} moved forward to {outcome.forwarded:.12}.")
    else:
        output.line(f"{head.branch} has all of {ref} already.")
