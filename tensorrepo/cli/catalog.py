"""SQL catalog and what it is asked of models: `catalog ...`, `model find|donors|owners`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

from typer import Argument, Exit, Option

from tensorrepo.catalog.catalog import Catalog, model_text, way_text
from tensorrepo.cli import output
from tensorrepo.cli.exit_codes import NOTHING_TO_DO
from tensorrepo.cli.options import CommandCall, RepoCall, StoredModelArgument, complete_place
from tensorrepo.cli.sdk_handle import handle_of
from tensorrepo.connect import catalog_url
from tensorrepo.query.sync.catch_up import CatchUpProgress
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.workspace.change import find_model
from tensorrepo.workspace.session import WorkspaceSession

CORRUPT = 5
CatalogOption = Annotated[
    str | None, Option("--catalog", metavar="URL", help="Another one than TENSORREPO_CATALOG says.")
]


def catalog_status_command(call: RepoCall, catalog: CatalogOption = None) -> None:
    """Show how the SQL catalog stands: its tables, and how far it tells of the repository.

    Changes nothing. One that is behind is no trouble: whatever asks the catalog brings it up to
    date first. Exits with 5 when the catalog cannot be used as it is, and says what to do.

    Examples:
        tensorrepo catalog status
        tensorrepo catalog status --json
    """
    status = _open(call, catalog).status()
    if call.as_json:
        output.json_value(asdict(status) | {"is_usable": status.is_usable})
    else:
        output.show_table(status.to_table())
    if not status.is_usable:
        raise Exit(CORRUPT)


def catalog_upgrade_command(call: RepoCall, catalog: CatalogOption = None) -> None:
    """Bring the catalog's tables, and their rows, to the revision that this version works with.

    One transaction: a crash leaves the tables as they were.

    Examples:
        tensorrepo catalog upgrade
        tensorrepo catalog upgrade --catalog postgresql://ada@db.example.org/lineage
    """
    opened = _open(call, catalog)
    revision = ", ".join(opened.upgrade().revisions)
    text = f"the tables of {opened.url} are of revision {revision}"
    call.answer({"url": opened.url, "revision": revision}, text)


def catalog_rebuild_command(call: RepoCall, catalog: CatalogOption = None) -> None:
    """Throw the catalog away and make it anew from the repository, whatever its tables hold.

    Nothing can be lost: all that it says stands in the repository. Who reads it meanwhile sees
    what was there before. A SQLite file that is damaged is moved aside, and you are told where.

    Examples:
        tensorrepo catalog rebuild
    """
    opened = _open(call, catalog)
    with output.row_progress("rebuilding", "steps") as advance:
        done = opened.rebuild(progress=_steps(advance), warn=output.warning)
    counts = f"{output.counted(done.commits, 'commit')}, {output.counted(done.rows, 'row')}"
    call.answer(asdict(done), f"the catalog tells of record {done.generation:,}: {counts}")


def catalog_verify_command(call: RepoCall, catalog: CatalogOption = None) -> None:
    """Compare the catalog, row by row, with one made anew in a temporary file.

    Exits with 1 when they differ, and shows some of the rows that do.

    Examples:
        tensorrepo catalog verify
        tensorrepo catalog verify || tensorrepo catalog rebuild
    """
    opened = _open(call, catalog)
    with output.working("making another catalog to compare with"):
        differences = opened.verify()
    lines = [] if differences else ["the catalog says what the repository says"]
    for table in differences:
        extra = output.counted(table.extra, "row")
        lines.append(f"{table.table}: {extra} too many, {table.missing:,} missing")
        lines += [f"  {example}" for example in table.examples]
    call.answer([asdict(table) for table in differences], *lines)
    if differences:
        raise Exit(NOTHING_TO_DO)


def _open(call: CommandCall, url: str | None) -> Catalog:
    session = call.session
    repository = session.repository
    return Catalog(repository, catalog_url(session.machine, repository.id, url))


def _steps(advance: Callable[[int, int], None]) -> Callable[[CatchUpProgress], None]:
    """A bar of records read and commits taken in, of which there are about as many."""

    def tell(at: CatchUpProgress) -> None:
        done = at.records + at.commits
        advance(done, max(2 * at.of_records, done))

    return tell


def model_find_command(
    call: RepoCall,
    first: Annotated[str, Argument(metavar="NODE", help="Pattern of a node's name or operation.")],
    last: Annotated[
        str | None, Argument(metavar="[THEN]", help="Pattern of a node that NODE leads to.")
    ] = None,
    steps: Annotated[
        int | None, Option("--steps", min=1, help="Edges between them at most.")
    ] = None,
) -> None:
    """Find the models that have a node in their architecture, or a way from one node to another.

    A pattern is a regular expression that fits all of a node's name, or all of its operation.

    Examples:
        tensorrepo model find 'conv[0-9]+' max_pool2d --steps 1
        tensorrepo model find attention
        tensorrepo model find embedding '.*head'
    """
    models = handle_of(call).catalog.find_models(first, last, steps=steps)
    if call.as_json:
        output.json_value([output.to_document(each) for each in models])
    elif not models:
        output.note("no stored model has that")
    else:
        output.lines(f"{model_text(each)}: {way_text(each)}" for each in models)


def model_donors_command(
    call: RepoCall,
    target: Annotated[
        str,
        Argument(
            metavar="[REF:]NAME|FILE",
            help="A stored model, a model file, or a JSON file of types and shapes or a graph.",
            autocompletion=complete_place,
        ),
    ],
    metric: Annotated[
        str | None, Option("--metric", help="Decides between equal prefixes.")
    ] = None,
    order_by: Annotated[
        str | None, Option("--order-by", metavar="METRIC", help="The best value first.")
    ] = None,
    smallest: Annotated[
        bool, Option("--smallest", help="Small values of the metric are good ones.")
    ] = False,
    limit: Annotated[int, Option("-n", "--limit", min=1, help="So many at most.")] = 10,
) -> None:
    """Rank the stored models by how long they begin like an architecture: who can donate weights?

    With --order-by the metric counts first, among models that share at least half of the nodes.

    Examples:
        tensorrepo model donors classifier
        tensorrepo model donors wider.json --metric accuracy
        tensorrepo model donors wider.safetensors --order-by loss --smallest
    """
    if metric and order_by and metric != order_by:
        raise InvalidInputError("give one metric: --metric, or --order-by")
    session, handle = call.session, handle_of(call)
    path = call.path(target)
    wanted: Any = path if path.exists() else handle.model(*_named(session, target))
    name = order_by or metric
    donors = handle.catalog.donors(
        wanted, metric=name, order_by_metric=order_by is not None, smallest=smallest, limit=limit
    )
    columns: dict[str, Any] = {
        "MODEL": model_text,
        ">SHARED": lambda donor: f"{donor.shared} of {output.counted(donor.nodes, 'node')}",
    }
    if name:
        columns[f">{name.upper()}"] = lambda donor: (
            "-" if donor.value is None else f"{donor.value:.6g}"
        )
    shared = output.fields("model", "shared_nodes=shared", "nodes", "value")
    call.show(
        donors,
        columns,
        document=lambda donor: shared(donor) | {"versions": [asdict(at) for at in donor.versions]},
        empty="no stored model begins like it",
    )


def model_owners_command(
    call: RepoCall,
    model: StoredModelArgument,
    tensor: Annotated[str, Argument(metavar="TENSOR", help="One of its tensors.")],
) -> None:
    """List the models, of all commits, that hold a tensor bit for bit.

    Examples:
        tensorrepo model owners classifier embedding.weight
    """
    handle = handle_of(call)
    asked = handle.model(*_named(call.session, model))
    columns = {
        "MODEL": model_text,
        "TENSOR": "tensor",
        "SINCE": lambda owner: f"{owner.versions[-1].commit:.12}" if owner.versions else "",
    }
    call.show(handle.catalog.owners(asked, tensor), columns)


def _named(session: WorkspaceSession, text: str) -> tuple[str, str]:
    """(path, commit) of the model that ``[REF:]NAME`` means in this session."""
    ref = find_model(session, text)
    return ref.path, str(ref.commit)
