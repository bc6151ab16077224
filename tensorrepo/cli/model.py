"""`model ls`, `desc`, `diff`, `verify`: commands that tell of models. `model_make` makes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import msgspec
from typer import Argument, Context, Exit, Option

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
    from tensorrepo.repo.ids import Digest

StoredModelArgument = Annotated[
    str, Argument(metavar="[REF:]NAME", help="A model.", autocompletion=complete_place)
]
StagedOption = Annotated[bool, Option("--staged", help="As it is staged, NAME alone.")]
SHOWN_LAYERS = 10


@dataclass(frozen=True, slots=True)
class _Listed:
    """A model as `model ls` lists it."""

    path: str
    digest: Digest
    tensors: int
    bytes: int
    metrics: dict[str, float]


def model_ls_command(
    context: Context,
    ref: Annotated[
        str | None, Argument(metavar="[REF]", help="A commit.", autocompletion=complete_ref)
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
    listed = [
        _Listed(path, entry.digest, len(model), model.size_bytes, dict(model.metrics))
        for path, entry in session.repository.entries(tree, "models/")
        for model in [open_model(session.repository.objects, entry)]
    ]
    columns = {
        "path": "path",
        ">tensors": lambda model: f"{model.tensors:,}",
        ">bytes": lambda model: output.bytes_text(model.bytes),
        "metrics": lambda model: ", ".join(f"{key} = {at}" for key, at in model.metrics.items()),
        "digest": lambda model: model.digest[:12],
    }
    output.show(listed, columns, as_json=as_json, empty="")


def model_desc_command(
    context: Context,
    name: StoredModelArgument,
    graph: Annotated[bool, Option("--graph", help="Its graph, node by node.")] = False,
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
    stored = find_model(session, name, staged=staged)
    if graph:
        shown = model_graph(stored.model)
        if as_json:
            output.json_value(msgspec.to_builtins(shown))
            return
        columns = {
            "node": "name",
            "operation": "op",
            "takes": lambda node: ", ".join(edge.node for edge in node.inputs),
            "tensors": lambda node: ", ".join(
                f"{one.role}{list(one.shape)}" for one in node.parameters
            ),
        }
        output.show(shown.nodes, columns, as_json=False)
        return
    described = describe_model(stored.model)
    if as_json:
        output.json_value({"path": stored.path, "commit": stored.commit, **described.to_json()})
        return
    output.line(f"{stored.path} ({described.digest:.12}), {output.bytes_text(described.bytes)}")
    output.lines(f"  {line}" for line in described.lines())
    layer_columns = {
        "layer": "name",
        ">tensors": "tensors",
        ">parameters": lambda layer: f"{layer.parameters:,}",
        ">bytes": lambda layer: output.bytes_text(layer.bytes),
    }
    output.show(described.layers, layer_columns, as_json=False)


def model_diff_command(
    context: Context,
    old: StoredModelArgument,
    new: StoredModelArgument,
    names_only: Annotated[
        bool, Option("--names-only", help="Read no tensor: only say which changed.")
    ] = False,
    exit_code: Annotated[bool, Option("--exit-code", help="Exit with 1 when they differ.")] = False,
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
        diff = diff_models(objects, *sides, measure=not names_only, whole=not names_only)
    if as_json:
        output.json_value(diff.to_json())
    else:
        output.line(diff.summary)
        output.lines(diff.lines())
        output.lines(_moved(diff))
    if exit_code and sides[0].digest != sides[1].digest:
        raise Exit(NOTHING_TO_DO)


def model_verify_command(
    context: Context,
    name: StoredModelArgument,
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
    stored = find_model(session, name, staged=staged)
    with output.progress(f"verifying {stored.path}", stored.model.size_bytes) as advance:
        checked = verify_model(stored.model, advance)
    counts_of = output.fields("tensors", "bytes", "files", "faults")
    value = {"path": stored.path} | counts_of(checked)
    counts = output.counted(checked.tensors, "tensor"), output.counted(checked.files, "file")
    good = f"{stored.path} is whole: {', '.join(counts)}, {output.bytes_text(checked.bytes)}"
    lines = checked.faults or (good,)
    output.answer(value, *lines, as_json=as_json)
    if checked.faults:
        faults = output.counted(len(checked.faults), "fault")
        raise CorruptError(f"{stored.path} is damaged: {faults}")


def _moved(diff: ModelDiff) -> Iterator[str]:
    """The layers that moved most, for people."""
    layers = diff.layers
    if len(layers) < 2:
        return
    yield "layers by movement:"
    for layer in layers[:SHOWN_LAYERS]:
        share = "" if layer.relative is None else f", {layer.relative:.3%} of its norm"
        yield f"  {layer.layer}: L2 {layer.l2:.3g}{share}"
    if len(layers) > SHOWN_LAYERS:
        yield f"  and {len(layers) - SHOWN_LAYERS} more"
