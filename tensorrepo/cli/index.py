"""Search indexes: `index ls`, `index create`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from typer import Argument, Option

from tensorrepo.cli import output
from tensorrepo.cli.options import CommandCall, RepoCall, complete_entry, complete_ref
from tensorrepo.formats.dataset.searching.nearest import METRICS
from tensorrepo.formats.search_index.build import IndexReport
from tensorrepo.formats.search_index.kinds import KINDS
from tensorrepo.query.compare.descriptions import EntryDescription, describe_entries
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.workspace.change import create_index


def index_create_command(
    call: CommandCall,
    dataset: Annotated[
        str, Argument(metavar="DATASET", help="Its name.", autocompletion=complete_entry)
    ],
    column: Annotated[str, Argument(metavar="COLUMN", help="Of vectors, text, or values.")],
    kind: Annotated[
        str | None, Option("--kind", metavar="KIND", help=f"One of {', '.join(KINDS)}.")
    ] = None,
    distance: Annotated[
        str | None, Option("--distance", help=f"One of {', '.join(METRICS)}; of vectors.")
    ] = None,
    options: Annotated[
        list[str] | None,
        Option(
            "--build-option",
            metavar="NAME=N",
            help="partitions, sub_vectors, m or ef_construction; may be repeated.",
        ),
    ] = None,
) -> None:
    """Make a search index of a column of a dataset, or bring it up to date, and stage it.

    `search` finds rows by it, and conditions do by one of values. Where rows changed since, these
    are compared as well, so that no answer is of what was; called again, this reads and indexes
    them alone. One that is damaged is made anew. Without --kind the index is of the kind that there
    is, else ivf_pq of vectors, text (BM25) of text, and btree (equality and ranges) of any other
    column.

    Examples:
        tensorrepo index create photos embedding
        tensorrepo index create photos embedding --kind hnsw --distance cosine
        tensorrepo index create photos caption
        tensorrepo index create photos year
    """
    numbers = dict(_number(each) for each in options or ())
    session = call.session
    with session.here.locked(), output.row_progress(f"indexing {column}") as progress:
        path, report, changed = create_index(
            session, dataset, column, kind, distance, numbers, progress
        )
    value = {"path": path, "changed": changed} | msgspec.to_builtins(report)
    call.answer(value, _text(path, report, changed=changed))


def _number(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    if not equals or not value.strip().isdigit():
        raise InvalidInputError(
            f"--build-option {text!r:.80}: expected NAME=N, such as partitions=256"
        )
    return name.strip(), int(value)


def _text(path: str, report: IndexReport, *, changed: bool) -> str:
    if not changed and report.anew:  # its files were written again, and came out the same
        return f"{path} was made anew, as {report.anew}"
    if not changed:
        return f"{path} is up to date ({output.counted(report.rows, 'row')})"
    what = f"{output.counted(report.indexed, 'row')} indexed of {report.rows:,}"
    if report.again:
        what += f", {report.again:,} of earlier segments again"
    anew = f"; all anew, as {report.anew}" if report.anew else ""
    return f"staged {path} ({what}, {output.bytes_text(report.bytes)}){anew}"


def index_ls_command(
    call: RepoCall,
    ref: Annotated[
        str | None, Argument(metavar="[REF]", help="A commit.", autocompletion=complete_ref)
    ] = None,
) -> None:
    """List the search indexes of a commit: kind, rows and bytes.

    `show REF:PATH` tells more of one.

    Examples:
        tensorrepo index ls
        tensorrepo index ls v1
    """
    session = call.session
    objects, tree = session.repository.objects, session.resolve(ref).commit.tree
    entries = (
        (path, entry)
        for path, entry in session.repository.entries(tree, "indexes/")
        if entry.kind is Kind.SEARCH_INDEX
    )
    columns: dict[str, Any] = {
        "path": "path",
        "kind": lambda entry: entry.facts["index"],
        "distance": lambda entry: entry.facts["metric"] or "",
        ">rows": lambda entry: f"{entry.facts['rows']:,}",
        ">bytes": lambda entry: output.bytes_text(entry.bytes),
    }
    found = describe_entries(objects, entries)
    call.show(found, columns, document=EntryDescription.to_json, empty="")
