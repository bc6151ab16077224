"""`view`: rows that a query chose."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option

from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, RepoOption, session_of
from tensorrepo.cli.complete import complete_place
from tensorrepo.cli.handle import handle_of
from tensorrepo.connect import parse_size
from tensorrepo.formats.view import diff_views, open_view
from tensorrepo.query.duck import MEMORY
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects import Kind
from tensorrepo.verbs.views import REFRESH_LIMITS
from tensorrepo.workspace.views import stage_view, staged_view, view_path

if TYPE_CHECKING:
    from typing import Any

    from tensorrepo.formats.view import View

NameArgument = Annotated[str, Argument(metavar="NAME", help="Of the view.")]


def view_create_command(
    context: Context,
    name: NameArgument,
    query: Annotated[str, Argument(help="SQL whose column row_id says which rows.")],
    replace: Annotated[bool, Option("--replace", help="The name may be taken.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Choose rows of a dataset of HEAD by a query, and stage which they are.

    A view is read, streamed, exported and queried as a dataset is. It keeps its rows when the
    dataset changes; `view refresh` asks again.

    Examples:
        tensorrepo view create rare "SELECT row_id FROM fashion WHERE label = 3"
    """
    session, handle = session_of(context), handle_of(context)
    made = stage_view(session, handle.context, name, query, replace=replace)
    text = f"{view_path(name)}: {made.rows:,} rows of {made.path}, staged"
    output.answer(_document(view_path(name), made), text, as_json=as_json)


def view_refresh_command(
    context: Context,
    name: NameArgument,
    seconds: Annotated[
        float, Option(min=0.01, help="Stop the query after so long.")
    ] = REFRESH_LIMITS.seconds,
    memory: Annotated[str, Option(help="Bytes that the query may take.")] = MEMORY,
    as_json: JsonOption = False,
) -> None:
    """Ask the query of a view again, of what HEAD has now, and stage the answer.

    Somebody else may have written it, so a process that can reach nothing answers it. A query that
    needs more, or temporary files, is asked by `view create --replace`.

    Examples:
        tensorrepo view refresh rare
        tensorrepo view refresh rare --seconds 3600
    """
    size = parse_size(memory, "--memory", 1)
    limits = replace(REFRESH_LIMITS, seconds=seconds, memory_bytes=size)
    session, handle = session_of(context), handle_of(context)
    before = staged_view(session, name)
    after = stage_view(session, handle.context, name, before.sql, replace=True, limits=limits)
    diff = diff_views(before, after)
    counts = {"added": len(diff.added), "removed": len(diff.removed)}
    text = f"{view_path(name)}: {after.rows:,} rows ({diff.summary}), staged"
    output.answer(_document(view_path(name), after) | counts, text, as_json=as_json)


def view_ls_command(
    context: Context,
    ref: Annotated[str | None, Argument(help="Commit; HEAD if none is given.")] = None,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the views of a commit.

    Examples:
        tensorrepo view ls
        tensorrepo view ls v1
    """
    session = session_of(context, repo)
    tree, objects = session.resolve(ref).commit.tree, session.repository.objects
    views = [
        (path, open_view(objects, entry.digest))
        for path, entry in session.repository.entries(tree, "views/")
        if entry.kind is Kind.VIEW
    ]
    columns = {
        "view": lambda named: named[0],
        ">rows": lambda named: f"{named[1].rows:,}",
        "of": lambda named: named[1].path,
        "query": lambda named: named[1].sql,
    }
    output.show(views, columns, as_json=as_json, document=lambda named: _document(*named))


def view_show_command(
    context: Context,
    name: Annotated[
        str, Argument(metavar="[REF:]NAME", help="A view.", autocompletion=complete_place)
    ],
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a view is of: its query, dataset and commit.

    Examples:
        tensorrepo view show rare
        tensorrepo view show v1:rare --json
    """
    session = session_of(context, repo)
    _, path, entry = session.find(name)
    if entry.kind is not Kind.VIEW:
        raise InvalidInputError(f"{path} is a {entry.kind.label}, not a view")
    view = open_view(session.repository.objects, entry.digest)
    query = output.printable(view.sql, keep="\n")
    output.answer(
        _document(path, view),
        f"{path}  {view.rows:,} rows in {len(view.runs):,} runs",
        f"of      {output.printable(view.path)} ({view.dataset:.12}) at commit {view.commit:.12}",
        f"query   {query}",
        as_json=as_json,
    )


def _document(path: str, view: View) -> dict[str, Any]:
    queried = output.fields("dataset_path=path", "dataset", "commit", "sql")
    return {"path": path, "rows": view.rows, "runs": len(view.runs)} | queried(view)
