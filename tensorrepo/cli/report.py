"""Report of a commit as a page: `report`."""

from __future__ import annotations

from shlex import quote
from typing import Annotated

from typer import Argument, Option

from tensorrepo.cli import output
from tensorrepo.cli.options import RepoCall, complete_ref
from tensorrepo.cli.sdk_handle import handle_of
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.report.page import write_report


def report_command(
    call: RepoCall,
    ref: Annotated[
        str | None, Argument(metavar="[REF]", help="A commit.", autocompletion=complete_ref)
    ] = None,
    to: Annotated[str, Option("--to", metavar="PATH", help="The file to write.")] = "report.html",
    size: Annotated[
        str, Option("--size", metavar="SIZE", help="Bytes that the page may take.")
    ] = "16MB",
    force: Annotated[bool, Option("--force", help="Overwrite what is at PATH.")] = False,
) -> None:
    """Write one page on what is in a commit: datasets, models, runs, lineage, history.

    The page stands alone: it has no scripts, asks no server for anything, and follows the light or
    dark scheme of its reader. Columns are told by a bounded read of their rows, so it is quick on
    large datasets, too.

    Examples:
        tensorrepo report --to report.html
        tensorrepo report v1 --to v1.html --size 4MB
        tensorrepo report --repo s3://bucket/team --force
    """
    context = handle_of(call).context
    try:
        revision = call.session.resolve(ref)
    except NotFoundError as error:
        if ref is None or not ref.lower().endswith((".html", ".htm")):
            raise
        raise NotFoundError(
            f"no branch, tag or commit {ref!r}. To write the page to a file of that name: "
            f"`tensorrepo report --to {quote(ref)}`."
        ) from error
    name = ref or call.session.default_ref
    with output.row_progress("writing the report", "sections") as advance:
        written = write_report(
            context,
            call.path(to),
            revision.digest,
            title=name,
            limit=size,
            overwrite=force,
            progress=advance,
        )
    document = {"path": str(written.path), "bytes": written.bytes, "left_out": written.left_out}
    call.answer(document, f"wrote {to} ({output.bytes_text(written.bytes)})")
    if written.left_out:
        output.note(f"{output.counted(written.left_out, 'piece')} would not fit --size {size}")
