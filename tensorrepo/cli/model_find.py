"""`model find`, `model donors`, `model owners`: questions about all stored models at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, RepoOption, place, session_of
from tensorrepo.cli.complete import complete_place
from tensorrepo.cli.handle import handle_of
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.workspace.models import find_model

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tensorrepo.query.architecture import Version
    from tensorrepo.workspace.session import Session


def model_find_command(
    context: typer.Context,
    first: Annotated[
        str, typer.Argument(metavar="NODE", help="Pattern of a node's name or operation.")
    ],
    last: Annotated[
        str | None,
        typer.Argument(metavar="[THEN]", help="Pattern of a node that NODE leads to."),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Edges between them at most.")
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
    found = handle_of(context, repo).catalog.find_models(first, last, steps=steps)
    if as_json:
        output.json_value(
            [
                {"model": one.model, "nodes": list(one.nodes), "versions": _json(one.versions)}
                for one in found
            ]
        )
        return
    if not found:
        output.note("no stored model has that")
    for one in found:
        output.line(f"{_place(one.versions)} {one.model:.12}: {_shortened(one.nodes)}")


def model_donors_command(
    context: typer.Context,
    target: Annotated[
        str,
        typer.Argument(
            metavar="[REF:]NAME|FILE",
            help="A stored model, a model file, or a JSON file of types and shapes or a graph.",
            autocompletion=complete_place,
        ),
    ],
    metric: Annotated[
        str | None, typer.Option("--metric", help="Decides between equal prefixes.")
    ] = None,
    order_by: Annotated[
        str | None,
        typer.Option("--order-by", metavar="METRIC", help="The best value first."),
    ] = None,
    smallest: Annotated[
        bool, typer.Option("--smallest", help="Small values of the metric are good ones.")
    ] = False,
    limit: Annotated[int, typer.Option("-n", "--limit", min=1, help="So many at most.")] = 10,
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
    path = place(context, target)
    wanted: Any = path if path.exists() else handle.model(*_named(session, target))
    found = handle.catalog.donors(
        wanted,
        metric=order_by or metric,
        order_by_metric=order_by is not None,
        smallest=smallest,
        limit=limit,
    )
    if as_json:
        output.json_value(
            [
                {
                    "model": one.model,
                    "shared_nodes": one.shared,
                    "nodes": one.nodes,
                    "value": one.value,
                    "versions": _json(one.versions),
                }
                for one in found
            ]
        )
        return
    if not found:
        output.note("no stored model begins like it")
        return
    name = order_by or metric
    output.table(
        ("MODEL", ">SHARED", *((f">{name.upper()}",) if name else ())),
        [
            (
                f"{_place(one.versions)} {one.model:.12}",
                f"{one.shared} of {one.nodes} nodes",
                *(("-" if one.value is None else f"{one.value:.6g}",) if name else ()),
            )
            for one in found
        ],
    )


def model_owners_command(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(metavar="[REF:]NAME", help="A model.", autocompletion=complete_place),
    ],
    tensor: Annotated[str, typer.Argument(metavar="TENSOR", help="One of its tensors.")],
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the models, of all commits, that hold a tensor bit for bit.

    Examples:
        tensorrepo model owners classifier embedding.weight
    """
    handle = handle_of(context, repo)
    asked = handle.model(*_named(session_of(context, repo), model))
    found = handle.catalog.owners(asked, tensor)
    if as_json:
        output.json_value(
            [
                {"model": one.model, "tensor": one.tensor, "versions": _json(one.versions)}
                for one in found
            ]
        )
        return
    output.table(
        ("MODEL", "TENSOR", "SINCE"),
        [
            (f"{_place(one.versions)} {one.model:.12}", one.tensor, _since(one.versions))
            for one in found
        ],
    )


def _named(session: Session, text: str) -> tuple[str, str]:
    """(path, commit) of the model that ``[REF:]NAME`` means in this session."""
    found = find_model(session, text)
    return found.path, str(found.commit)


def _json(versions: Iterable[Version]) -> list[dict[str, str]]:
    return [{"path": one.path, "commit": one.commit} for one in versions]


def _place(versions: tuple[Version, ...]) -> str:
    paths = list(dict.fromkeys(one.path for one in versions))
    more = f" (and {len(paths) - 1} more)" if len(paths) > 1 else ""
    return f"{paths[0]}{more}" if paths else "(a model of no commit)"


def _since(versions: tuple[Version, ...]) -> str:
    return f"{versions[-1].commit:.12}" if versions else ""


def _shortened(nodes: tuple[str, ...], most: int = 8) -> str:
    if len(nodes) <= most:
        return " -> ".join(nodes)
    return " -> ".join((*nodes[: most // 2], f"({len(nodes) - most} more)", *nodes[-most // 2 :]))
