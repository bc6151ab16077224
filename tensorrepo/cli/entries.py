"""Workspace status and entries of a commit: `status`, `ls`."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Exit, Option

from tensorrepo.cli import output
from tensorrepo.cli.exit_codes import NOTHING_TO_DO
from tensorrepo.cli.options import CommandCall, RepoCall, complete_place
from tensorrepo.formats.common.summaries import ListedEntry, list_entry
from tensorrepo.repo.changes.revisions import split_path
from tensorrepo.repo.history.trees import Entry
from tensorrepo.workspace.session import WorkspaceSession
from tensorrepo.workspace.status import WorkspaceStatus
from tensorrepo.workspace.status import status as read_status


def status_command(
    call: CommandCall,
    exit_code: Annotated[bool, Option("--exit-code", help="Exit with 1 when not clean.")] = False,
) -> None:
    """Show what is staged, what changed on disk, and where you are.

    Examples:
        tensorrepo status
        tensorrepo status --exit-code && echo clean
    """
    state = read_status(call.session)
    if call.as_json:
        output.json_value(
            _STATUS(state)
            | {
                "detached": state.head.branch is None,
                "staged": [_STAGED(change) for change in state.staged],
                "changed": [_CHANGED(change) for change in state.tracked],
                "pending": [_PENDING(append) for append in state.pending],
            }
        )
    else:
        _show_status(state)
    if exit_code and not state.clean:
        raise Exit(NOTHING_TO_DO)


def ls_command(
    call: RepoCall,
    where: Annotated[
        str,
        Argument(
            metavar="REF[:PATH]", help="A commit, or a folder of it.", autocompletion=complete_place
        ),
    ] = "",
) -> None:
    """List the entries of a commit.

    Examples:
        tensorrepo ls
        tensorrepo ls v1
        tensorrepo ls main:models
    """
    columns = {
        "path": "path",
        "kind": "kind",
        "content": "content",
        ">bytes": lambda entry: output.bytes_text(entry.bytes),
        "digest": lambda entry: entry.digest[:12],
    }
    listed = (list_entry(*each) for each in _below(call.session, where))
    call.show(listed, columns, document=ListedEntry.to_json, empty="")


def _below(session: WorkspaceSession, where: str) -> list[tuple[str, Entry]]:
    """The entries that ``[REF[:PATH]]`` names: all, those of a folder, or one."""
    ref, path = split_path(where) if where else (session.default_ref, None)
    tree = session.resolve(ref).commit.tree
    wanted = (path or "").strip("/")
    entries = list(session.repository.entries(tree, f"{wanted}/" if wanted else ""))
    if entries or not wanted:
        return entries
    _, full, entry = session.find(f"{ref}:{wanted}")
    return [(full, entry)]


def _show_place(status: WorkspaceStatus) -> None:
    """Where HEAD stands, and what is going on beside what is staged."""
    if status.head.branch is None:
        output.line(f"HEAD is detached at {status.head.commit:.12}, on no branch")
    else:
        at = f"at {status.tip:.12}" if status.tip else "no commit yet"
        output.line(f"On branch {status.head.branch}, {at}")
    output.line(f"Repository {status.url}")
    if status.moved:
        output.line(f"The branch moved by {status.moved} since you staged; `commit` will merge.")
    if status.bisecting:
        output.line("A bisection is going on: `tensorrepo bisect reset` ends it.")
    if status.stashes:
        count = output.counted(status.stashes, "time")
        output.line(f"Changes were put aside {count}: `tensorrepo stash list` shows them.")


def _show_status(status: WorkspaceStatus) -> None:
    _show_place(status)
    for one in status.pending:
        output.line(
            f"What became of log record {one.generation} is unknown: run `tensorrepo resolve`."
        )
    if status.committed:
        output.line(
            f"What is staged is in commit {status.committed:.12} already: a command was cut off "
            "before it could say so. `tensorrepo commit` or `add` tidies up."
        )
    if status.staged:
        output.line("\nStaged for the next commit:")
        for change in status.staged:
            output.line(f"  {change.text}")
        _show_lease(status)
    if status.tracked:
        output.line("\nChanged on disk (`tensorrepo add PATH` stages it):")
        for tracked in status.tracked:
            count = len(tracked.files)
            output.line(f"  {tracked.path} ({output.counted(count, 'file')})")
    if status.outdated:
        output.line("\nWritten out from another version:")
        for path in status.outdated:
            output.line(f"  {path}")
    if status.clean:
        output.line("\nNothing is staged, and nothing changed on disk.")


def _show_lease(status: WorkspaceStatus) -> None:
    if status.lease_age_seconds is None:
        return
    age = output.age_text(status.lease_age_seconds)
    if status.lease_expired:
        output.line(
            f"  The lease that keeps these has expired, it was renewed {age} ago. `commit` stores "
            "again what was collected, or says what to add again."
        )
    else:
        output.line(f"  (stored, and kept for this workspace; renewed {age} ago)")


_STATUS = output.fields(
    "url", "branch=head.branch", "commit=tip", "detached=head", "moved", "staged",
    "changed=tracked", "outdated", "lease_age_seconds", "committed", "pending",
    "stashes", "bisecting", "clean",
)  # fmt: skip
_STAGED = output.fields(
    "path", "change=what", "digest=staged.digest", "rows=staged.rows", "bytes=staged.bytes"
)
_CHANGED = output.fields("path", "files")
_PENDING = output.fields("txn", "generation")
