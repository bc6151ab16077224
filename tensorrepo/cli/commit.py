"""`commit`, `merge`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Exit, Option

from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, session_of
from tensorrepo.cli.complete import complete_ref
from tensorrepo.cli.exits import NOTHING_TO_DO
from tensorrepo.repo import combine
from tensorrepo.repo.commits import MAX_CHANGED
from tensorrepo.workspace.commit import commit_staged
from tensorrepo.workspace.pick import merge_strategies, refuse_staged

if TYPE_CHECKING:
    from tensorrepo.repo.attempt import Committed


def commit_command(
    context: Context,
    message: Annotated[str, Option("-m", "--message", help="What, and why.")],
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
        outcome = commit_staged(session, message)
    made = outcome.made
    if outcome.earlier is not None:
        value = {"commit": outcome.earlier, "branch": session.head and session.head.branch}
        line = f"What was staged is committed already, as {outcome.earlier:.12}: nothing is left."
        output.answer(value, line, as_json=as_json)
        return
    if made is None:
        output.note("nothing to commit: stage something with `tensorrepo add`")
        raise Exit(NOTHING_TO_DO)
    branch = session.branch()
    output.answer(committed_json(branch, made), *committed_lines(branch, made), as_json=as_json)


def committed_json(branch: str, made: Committed) -> dict[str, Any]:
    """A commit that was made, for programs; `changed` is null when there are more than it lists."""
    return {
        "commit": made.digest,
        "branch": branch,
        "onto": made.onto,
        "changed": made.commit.changed,
        "attempts": made.attempts,
    }


def committed_lines(branch: str, made: Committed) -> list[str]:
    """A commit that was made, for people."""
    changed = made.commit.changed
    count = f"more than {MAX_CHANGED}" if changed is None else str(len(changed))
    subject = made.commit.message.partition("\n")[0]
    return [
        *([f"The branch had moved: merged onto {made.onto:.12}."] if made.onto else []),
        f"[{branch} {made.digest:.12}] {subject}",
        f" {count} {'entry' if count == '1' else 'entries'} changed",
    ]


def merge_command(
    context: Context,
    ref: Annotated[str, Argument(help="A branch or any commit.", autocompletion=complete_ref)],
    message: Annotated[str | None, Option("-m", "--message", help="Of the commit.")] = None,
    strategy: Annotated[
        list[str] | None,
        Option(
            "--strategy",
            metavar="[PATH=]STRATEGY",
            help="For conflicts: fail, ours, theirs; for models also average, slerp, "
            "task-arithmetic, ties. Of one path, or of all.",
        ),
    ] = None,
    commit: Annotated[
        bool, Option("--no-ff", help="Make a commit also where moving forward is enough.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Join another branch into this one: one merge commit, or nothing.

    Rows, cells and columns of a dataset that both sides changed are joined. There is no half-merged
    state: in a conflict nothing changes, and the message says which paths and cells, and why.
    Tensors of a model that one side changed are joined, too; what both changed is blended only by a
    strategy that says so.

    Examples:
        tensorrepo merge cleaning
        tensorrepo merge cleaning --strategy theirs
        tensorrepo merge tuning --strategy models/net=average
    """
    session = session_of(context)
    general, by_path = merge_strategies(session, strategy or [], ref)
    branch = session.branch()
    with session.here.locked(), output.conflicts_shown(as_json=as_json):
        refuse_staged(session)
        outcome = combine.merge(
            session.repository,
            branch,
            session.resolve(ref).digest,
            author=session.author(),
            message=message or f"Merge {ref} into {branch}",
            called=ref,
            strategy=general,
            by_path=by_path,
            fast_forward=not commit,
        )
    _report_merge(branch, ref, outcome, as_json=as_json)


def _report_merge(branch: str, ref: str, outcome: combine.MergeOutcome, *, as_json: bool) -> None:
    made = outcome.committed
    value: dict[str, Any] = {
        "branch": branch,
        "commit": outcome.forwarded,
        "forwarded": bool(outcome.forwarded),
    }
    if made is not None:
        changed = made.commit.changed or ()
        value |= {"commit": made.digest, "changed": changed}
        lines = [f"[{branch} {made.digest:.12}] merged {ref}", *(f"  {path}" for path in changed)]
    elif outcome.forwarded is not None:
        lines = [f"Branch {branch} moved forward to {outcome.forwarded:.12}."]
    else:
        lines = [f"{branch} has all of {ref} already."]
    output.answer(value, *lines, as_json=as_json)
