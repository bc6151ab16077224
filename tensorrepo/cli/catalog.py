"""`catalog status`, `upgrade`, `rebuild` and `verify`: the SQL catalog, which is a cache."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from typer import Context, Exit, Option

from tensorrepo.catalog import Catalog
from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, RepoOption, session_of
from tensorrepo.cli.exits import NOTHING_TO_DO
from tensorrepo.connect import catalog_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from tensorrepo.query.sync.catchup import Progress

CORRUPT = 5
CatalogOption = Annotated[
    str | None, Option("--catalog", metavar="URL", help="Another one than TENSORREPO_CATALOG says.")
]


def catalog_status_command(
    context: Context,
    catalog: CatalogOption = None,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how the SQL catalog stands: its tables, and how far it tells of the repository.

    Changes nothing. One that is behind is no trouble: whatever asks the catalog brings it up to
    date first. Exits with 5 when the catalog cannot be used as it is, and says what to do.

    Examples:
        tensorrepo catalog status
        tensorrepo catalog status --json
    """
    status = _open(context, catalog, repo).status()
    if as_json:
        output.json_value(asdict(status) | {"is_usable": status.is_usable})
    else:
        output.line(f"catalog   {status.url}")
        output.line(f"state     {status.state}")
        tables = status.revision or "none yet"
        output.line(f"tables    revision {tables}, newest {status.newest_revision}")
        output.line(f"tells of  record {status.generation:,} of {status.of_generation:,}")
        if status.advice:
            output.line(status.advice)
        if status.rows:
            output.table(("table", ">rows"), [(name, f"{n:,}") for name, n in status.rows.items()])
    if not status.is_usable:
        raise Exit(CORRUPT)


def catalog_upgrade_command(
    context: Context,
    catalog: CatalogOption = None,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring the catalog's tables, and their rows, to the revision that this version works with.

    One transaction: a crash leaves the tables as they were.

    Examples:
        tensorrepo catalog upgrade
        tensorrepo catalog upgrade --catalog postgresql://ada@db.example.org/lineage
    """
    opened = _open(context, catalog, repo)
    revision = ", ".join(opened.upgrade().revisions)
    text = f"the tables of {opened.url} are of revision {revision}"
    output.answer({"url": opened.url, "revision": revision}, text, as_json=as_json)


def catalog_rebuild_command(
    context: Context,
    catalog: CatalogOption = None,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Throw the catalog away and make it anew from the repository, whatever its tables hold.

    Nothing can be lost: all that it says stands in the repository. Who reads it meanwhile sees
    what was there before. A SQLite file that is damaged is moved aside, and you are told where.

    Examples:
        tensorrepo catalog rebuild
    """
    opened = _open(context, catalog, repo)
    with output.row_progress("rebuilding", "steps") as advance:
        done = opened.rebuild(progress=_steps(advance), warn=output.warning)
    text = f"the catalog tells of record {done.generation:,}: {done.commits:,} commits, "
    output.answer(asdict(done), f"{text}{done.rows:,} rows", as_json=as_json)


def catalog_verify_command(
    context: Context,
    catalog: CatalogOption = None,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the catalog, row by row, with one made anew in a temporary file.

    Exits with 1 when they differ, and shows some of the rows that do.

    Examples:
        tensorrepo catalog verify
        tensorrepo catalog verify || tensorrepo catalog rebuild
    """
    opened = _open(context, catalog, repo)
    with output.working("making another catalog to compare with"):
        differences = opened.verify()
    lines = [] if differences else ["the catalog says what the repository says"]
    for table in differences:
        lines.append(f"{table.table}: {table.extra:,} rows too many, {table.missing:,} missing")
        lines += [f"  {example}" for example in table.examples]
    output.answer([asdict(table) for table in differences], *lines, as_json=as_json)
    if differences:
        raise Exit(NOTHING_TO_DO)


def _open(context: Context, url: str | None, repo: str | None) -> Catalog:
    session = session_of(context, repo)
    repository = session.repository
    return Catalog(repository, catalog_url(session.machine, repository.id, url))


def _steps(advance: Callable[[int, int], None]) -> Callable[[Progress], None]:
    """A bar of records read and commits taken in, of which there are about as many."""

    def tell(at: Progress) -> None:
        done = at.records + at.commits
        advance(done, max(2 * at.of_records, done))

    return tell
