"""`model find`, `model donors`, `model owners`: questions about all stored models at once."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Context, Option

from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, RepoOption, resolve_path, session_of
from tensorrepo.cli.complete import complete_place
from tensorrepo.cli.handle import handle_of
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.workspace.models import find_model

if TYPE_CHECKING:
    from tensorrepo.query.architecture import Donor, Owner, PathFound
    from tensorrepo.workspace.session import Session


def model_find_command(
    context: Context,
    first: Annotated[str, Argument(metavar="NODE", help="Pattern of a node's name or operation.")],
    last: Annotated[
        str | None, Argument(metavar="[THEN]", help="Pattern of a node that NODE leads to.")
    ] = None,
    steps: Annotated[
        int | None, Option("--steps", min=1, help="Edges between them at most.")
    ] = None,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find the models that have a node in their architecture, or a way from one node to another.

    A pattern is a regular expression that fits all of a node's name, or all of its operation.

    Examples:
        tensorrepo model find 'conv[0-9]+' max_pool2d --steps 1
        tensorrepo model find attention
        tensorrepo model find embedding '.*head'
    """
    models = handle_of(context, repo).catalog.find_models(first, last, steps=steps)
    if as_json:
        output.json_value([output.to_document(each) for each in models])
    elif not models:
        output.note("no stored model has that")
    else:
        output.lines(f"{_model_text(each)}: {_shortened(each.nodes)}" for each in models)


def model_donors_command(
    context: Context,
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
    repo: RepoOption = None,
    as_json: JsonOption = False,
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
    session, handle = session_of(context, repo), handle_of(context, repo)
    path = resolve_path(context, target)
    wanted: Any = path if path.exists() else handle.model(*_named(session, target))
    name = order_by or metric
    donors = handle.catalog.donors(
        wanted,
        metric=name,
        order_by_metric=order_by is not None,
        smallest=smallest,
        limit=limit,
    )
    columns: dict[str, Any] = {
        "MODEL": _model_text,
        ">SHARED": lambda donor: f"{donor.shared} of {donor.nodes} nodes",
    }
    if name:
        columns[f">{name.upper()}"] = lambda donor: (
            "-" if donor.value is None else f"{donor.value:.6g}"
        )
    shared = output.fields("model", "shared_nodes=shared", "nodes", "value")
    output.show(
        donors,
        columns,
        as_json=as_json,
        document=lambda donor: shared(donor) | {"versions": [asdict(at) for at in donor.versions]},
        empty="no stored model begins like it",
    )


def model_owners_command(
    context: Context,
    model: Annotated[
        str, Argument(metavar="[REF:]NAME", help="A model.", autocompletion=complete_place)
    ],
    tensor: Annotated[str, Argument(metavar="TENSOR", help="One of its tensors.")],
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the models, of all commits, that hold a tensor bit for bit.

    Examples:
        tensorrepo model owners classifier embedding.weight
    """
    handle = handle_of(context, repo)
    asked = handle.model(*_named(session_of(context, repo), model))
    columns = {"MODEL": _model_text, "TENSOR": "tensor", "SINCE": _since}
    output.show(handle.catalog.owners(asked, tensor), columns, as_json=as_json)


def _named(session: Session, text: str) -> tuple[str, str]:
    """(path, commit) of the model that ``[REF:]NAME`` means in this session."""
    ref = find_model(session, text)
    return ref.path, str(ref.commit)


def _model_text(model: PathFound | Donor | Owner) -> str:
    """Where a model stands, and its digest."""
    paths = list(dict.fromkeys(version.path for version in model.versions))
    more = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
    return f"{f'{paths[0]}{more}' if paths else '(a model of no commit)'} {model.model:.12}"


def _since(owner: Owner) -> str:
    return f"{owner.versions[-1].commit:.12}" if owner.versions else ""


def _shortened(nodes: tuple[str, ...], most: int = 8) -> str:
    if len(nodes) <= most:
        return " -> ".join(nodes)
    return " -> ".join((*nodes[: most // 2], f"({len(nodes) - most} more)", *nodes[-most // 2 :]))
