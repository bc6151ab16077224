"""`model ls`, `desc`, `diff`, `verify`: commands that tell of models. `model_make` makes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tensorrepo.cli import output
from tensorrepo.cli.common import JsonOption, RepoOption, session_of
from tensorrepo.cli.complete import complete_place, complete_ref
from tensorrepo.cli.exits import NOTHING_TO_DO
from tensorrepo.formats.model.describe import describe_model
from tensorrepo.formats.model.diff import diff_models
from tensorrepo.formats.model.graph.source import model_graph
from tensorrepo.formats.model.read import open_model
from tensorrepo.formats.model.verify import verify_model
from tensorrepo.repo.errors import CorruptError
from tensorrepo.workspace.models import find_model

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tensorrepo.formats.model.diff import ModelDiff

ModelArgument = Annotated[
    str,
    typer.Argument(metavar="[REF:]NAME", help="A model.", autocompletion=complete_place),
]
StagedOption = Annotated[bool, typer.Option("--staged", help="As it is staged, NAME alone.")]
SHOWN_LAYERS = 10


def model_ls_command(
    context: typer.Context,
    ref: Annotated[
        str | None,
        typer.Argument(metavar="[REF]", help="A commit.", autocompletion=complete_ref),
    ] = None,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the models of a commit: tensors, parameters, bytes and metrics.

    Examples:
        tensorrepo model ls
        tensorrepo model ls v1
        tensorrepo model ls --repo s3://bucket/team --json
    """
    session = session_of(context, repo)
    tree = session.resolve(ref).commit.tree
    found = [
        (path, open_model(session.repository.objects, entry))
        for path, entry in session.repository.entries(tree, "models/")
    ]
    if as_json:
        output.json_value(
            [
                {
                    "path": path,
                    "digest": model.entry.digest,
                    "tensors": len(model),
                    "bytes": model.size_bytes,
                    "metrics": dict(model.metrics),
                }
                for path, model in found
            ]
        )
        return
    rows = [
        (
            path,
            f"{len(model):,}",
            output.bytes_text(model.size_bytes),
            ", ".join(f"{name} = {value}" for name, value in model.metrics.items()),
            f"{model.entry.digest:.12}",
        )
        for path, model in found
    ]
    if rows:
        output.table(("path", ">tensors", ">bytes", "metrics", "digest"), rows)


def model_desc_command(
    context: typer.Context,
    name: ModelArgument,
    graph: Annotated[bool, typer.Option("--graph", help="Its graph, node by node.")] = False,
    staged: StagedOption = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Describe a model: layers, parameters, types, architecture, files, metrics, lineage.

    The architecture's graph is the one that was stored with the model, that of the ONNX file that
    it came from, or one derived from the names and shapes of tensors; the answer says which.

    Examples:
        tensorrepo model desc classifier
        tensorrepo model desc v1:classifier --json
        tensorrepo model desc classifier --graph
    """
    session = session_of(context, repo)
    found = find_model(session, name, staged=staged)
    if graph:
        shown = model_graph(found.model)
        if as_json:
            output.json_value(msgspec.to_builtins(shown))
            return
        rows = [
            (
                node.name,
                node.op,
                ", ".join(one.node for one in node.inputs),
                ", ".join(f"{one.role}{list(one.shape)}" for one in node.parameters),
            )
            for node in shown.nodes
        ]
        output.table(("node", "operation", "takes", "tensors"), rows)
        return
    described = describe_model(found.model)
    if as_json:
        output.json_value({"path": found.path, "commit": found.commit, **described.to_json()})
        return
    output.line(f"{found.path} ({described.digest:.12}), {output.bytes_text(described.bytes)}")
    output.lines(f"  {line}" for line in described.lines())
    layers = [
        (layer.name, layer.tensors, f"{layer.parameters:,}", output.bytes_text(layer.bytes))
        for layer in described.layers
    ]
    output.table(("layer", ">tensors", ">parameters", ">bytes"), layers)


def model_diff_command(
    context: typer.Context,
    old: ModelArgument,
    new: ModelArgument,
    names_only: Annotated[
        bool, typer.Option("--names-only", help="Read no tensor: only say which changed.")
    ] = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 1 when they differ.")
    ] = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare two models: tensors, how far they moved, layers that moved most, config, metrics.

    Tensors that are equal are not read. Of one that changed: the share of elements with other bits,
    the largest and the L2 norm of the difference, and the cosine between both.

    Examples:
        tensorrepo model diff v1:classifier main:classifier
        tensorrepo model diff base tuned --json
        tensorrepo model diff HEAD~1:net net --names-only --exit-code
    """
    session = session_of(context, repo)
    sides = [find_model(session, name).model.entry for name in (old, new)]
    objects = session.repository.objects
    with output.working(f"comparing {old} and {new}"):
        found = diff_models(objects, *sides, measure=not names_only, whole=not names_only)
    if as_json:
        output.json_value(found.to_json())
    else:
        output.line(found.summary)
        output.lines(found.lines())
        output.lines(_moved(found))
    if exit_code and sides[0].digest != sides[1].digest:
        raise typer.Exit(NOTHING_TO_DO)


def model_verify_command(
    context: typer.Context,
    name: ModelArgument,
    staged: StagedOption = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read all of a model and check every byte: tensors, files, the files that it gives back.

    Examples:
        tensorrepo model verify classifier
        tensorrepo model verify v1:classifier --json
    """
    session = session_of(context, repo)
    found = find_model(session, name, staged=staged)
    with output.progress(f"verifying {found.path}", found.model.size_bytes) as told:
        checked = verify_model(found.model, told)
    value: dict[str, Any] = {
        "path": found.path,
        "tensors": checked.tensors,
        "bytes": checked.bytes,
        "files": checked.files,
        "faults": list(checked.faults),
    }
    counts = output.counted(checked.tensors, "tensor"), output.counted(checked.files, "file")
    good = f"{found.path} is whole: {', '.join(counts)}, {output.bytes_text(checked.bytes)}"
    lines = checked.faults or (good,)
    output.answer(value, *lines, as_json=as_json)
    if checked.faults:
        faults = output.counted(len(checked.faults), "fault")
        raise CorruptError(f"{found.path} is damaged: {faults}")


def _moved(found: ModelDiff) -> Iterator[str]:
    """The layers that moved most, for people."""
    layers = found.layers
    if len(layers) < 2:
        return
    yield "layers by movement:"
    for layer in layers[:SHOWN_LAYERS]:
        share = "" if layer.relative is None else f", {layer.relative:.3%} of its norm"
        yield f"  {layer.layer}: L2 {layer.l2:.3g}{share}"
    if len(layers) > SHOWN_LAYERS:
        yield f"  and {len(layers) - SHOWN_LAYERS} more"
