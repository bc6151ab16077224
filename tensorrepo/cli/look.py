"""`status`, `ls`, `cat`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, RepoOption, session_of
from tensorrepo.cli.complete import complete_place
from tensorrepo.cli.exits import NOTHING_TO_DO
from tensorrepo.repo.objects import Kind
from tensorrepo.repo.revisions import split_path
from tensorrepo.workspace.describe import describe_entry, file_json, preview
from tensorrepo.workspace.session import find_staged
from tensorrepo.workspace.status import Status, status

if TYPE_CHECKING:
    from tensorrepo.repo.trees import Entry
    from tensorrepo.workspace.session import Session
    from tensorrepo.workspace.status import StagedChange


def status_command(
    context: typer.Context,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 when not clean.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show what is staged, what changed on disk, and where you are.

    Examples:
        tensorrepo status
        tensorrepo status --exit-code && echo clean
    """
    found = status(session_of(context))
    if as_json:
        output.json_value(_status_json(found))
    else:
        _show_status(found)
    if exit_code and not found.clean:
        raise typer.Exit(NOTHING_TO_DO)


def ls_command(
    context: typer.Context,
    place: Annotated[
        str,
        typer.Argument(
            metavar="REF[:PATH]",
            help="A commit, or a folder of it.",
            autocompletion=complete_place,
        ),
    ] = "",
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the entries of a commit.

    Examples:
        tensorrepo ls
        tensorrepo ls v1
        tensorrepo ls main:models
    """
    session = session_of(context, repo)
    objects = session.repository.objects
    found = [describe_entry(objects, path, entry) for path, entry in _below(session, place)]
    if as_json:
        output.json_value([asdict(one) for one in found])
        return
    rows = [
        (one.path, one.kind, one.shape, output.bytes_text(one.bytes), f"{one.digest:.12}")
        for one in found
    ]
    if rows:
        output.table(("path", "kind", "content", ">bytes", "digest"), rows)


def cat_command(
    context: typer.Context,
    entry: Annotated[
        str,
        typer.Argument(metavar="[REF:]PATH", help="The entry.", autocompletion=complete_place),
    ],
    rows: Annotated[
        int, typer.Option("-n", "--rows", min=0, help="How many rows of a dataset.")
    ] = 10,
    start: Annotated[int, typer.Option("--start", min=0, help="The first of them.")] = 0,
    staged: Annotated[bool, typer.Option("--staged", help="As it is staged, PATH alone.")] = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print an entry: rows of a dataset, tensors of a model, the bytes of a file.

    Examples:
        tensorrepo cat photos -n 3
        tensorrepo cat photos --staged
        tensorrepo cat v1:models/classifier
        tensorrepo cat files/README.md
    """
    session = session_of(context, repo)
    path, found = find_staged(session, entry) if staged else session.find(entry)[1:]
    objects = session.repository.objects
    if found.kind is Kind.BLOB:
        data = objects.get(found.digest).payload
        output.json_value(file_json(path, data)) if as_json else output.raw(data)
        return
    shown = preview(objects, path, found, session.outside, start=start, rows=rows)
    if as_json:
        output.json_lines(shown.records)
    else:
        output.table(shown.columns, shown.rows)


def _below(session: Session, place: str) -> list[tuple[str, Entry]]:
    """The entries that ``[REF[:PATH]]`` names: all, those of a folder, or one."""
    ref, path = split_path(place) if place else (session.default_ref, None)
    tree = session.resolve(ref).commit.tree
    wanted = (path or "").strip("/")
    found = list(session.repository.entries(tree, f"{wanted}/" if wanted else ""))
    if found or not wanted:
        return found
    _, full, entry = session.find(f"{ref}:{wanted}")
    return [(full, entry)]


def _show_status(found: Status) -> None:
    place = (
        f"On branch {found.head.branch}" if found.head.branch
        else f"HEAD is detached at {found.head.commit:.12}"
    )  # fmt: skip
    output.line(f"{place}, {f'at {found.tip:.12}' if found.tip else 'no commit yet'}")
    output.line(f"Repository {found.url}")
    if found.moved:
        output.line(f"The branch moved by {found.moved} since you staged; `commit` will merge.")
    for one in found.pending:
        output.line(
            f"What became of log record {one.generation} is unknown: run `tensorrepo resolve`."
        )
    if found.committed:
        output.line(
            f"What is staged is in commit {found.committed:.12} already: a command was cut off "
            "before it could say so. `tensorrepo commit` or `add` tidies up."
        )
    if found.staged:
        output.line("\nStaged for the next commit:")
        for change in found.staged:
            output.line(f"  {change.what:9} {change.path}{_amount(change)}")
        _show_lease(found)
    if found.tracked:
        output.line("\nChanged on disk (`tensorrepo add PATH` stages it):")
        for tracked in found.tracked:
            count = len(tracked.files)
            output.line(f"  {tracked.path} ({output.counted(count, 'file')})")
    if found.outdated:
        output.line("\nWritten out from another version:")
        for path in found.outdated:
            output.line(f"  {path}")
    if found.clean:
        output.line("\nNothing is staged, and nothing changed on disk.")


def _show_lease(found: Status) -> None:
    if found.lease_age_seconds is None:
        return
    age = output.age_text(found.lease_age_seconds)
    if found.lease_expired:
        output.line(
            f"  The lease that keeps these has expired, it was renewed {age} ago. `commit` stores "
            "again what was collected, or says what to add again."
        )
    else:
        output.line(f"  (kept by a lease, renewed {age} ago)")


def _amount(change: StagedChange) -> str:
    staged = change.staged
    parts = [f"{staged.rows:,} rows"] if staged.rows else []
    parts += [output.bytes_text(staged.bytes)] if staged.bytes else []
    parts += [staged.source] if staged.source and not staged.rows and not staged.bytes else []
    return f"  ({', '.join(parts)})" if parts else ""


def _status_json(found: Status) -> dict[str, object]:
    return {
        "url": found.url,
        "branch": found.head.branch,
        "commit": found.tip,
        "detached": found.head.branch is None,
        "moved": found.moved,
        "staged": [
            {
                "path": one.path,
                "change": one.what,
                "digest": one.staged.digest,
                "rows": one.staged.rows,
                "bytes": one.staged.bytes,
            }
            for one in found.staged
        ],
        "changed": [{"path": one.path, "files": one.files} for one in found.tracked],
        "outdated": list(found.outdated),
        "lease_age_seconds": found.lease_age_seconds,
        "committed": found.committed,
        "pending": [{"txn": one.txn, "generation": one.generation} for one in found.pending],
        "clean": found.clean,
    }
