"""Commands that read models: `model ls`, `desc`, `diff`, `verify`, `similar`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Annotated

import msgspec
from typer import Argument, Exit, Option

from tensorrepo.cli import output
from tensorrepo.cli.exit_codes import NOTHING_TO_DO
from tensorrepo.cli.options import (
    RepoCall,
    StoredModelArgument,
    complete_ref,
)
from tensorrepo.formats.model.comparison import ModelDiff, diff_models
from tensorrepo.formats.model.description import describe_model
from tensorrepo.formats.model.graph.source import model_graph
from tensorrepo.formats.model.maintenance.similar_models import Similarity, similar_models
from tensorrepo.formats.model.maintenance.usage import (
    Reached,
    every_tree,
    models_at,
)
from tensorrepo.formats.model.verification import verify_model
from tensorrepo.query.compare.descriptions import describe_entries
from tensorrepo.query.compare.entry_change import shortened
from tensorrepo.repo.changes.revisions import split_path
from tensorrepo.repo.errors import CorruptError
from tensorrepo.workspace.change import find_model
from tensorrepo.workspace.session import WorkspaceSession

StagedOption = Annotated[bool, Option("--staged", help="As it is staged, NAME alone.")]
FullOption = Annotated[
    bool, Option("--full", help="Every line and layer, not only the first 20 of each kind.")
]
SHOWN_LINES = 20  # of each kind
SHOWN_LAYERS = 10  # of those that moved most


def model_ls_command(
    call: RepoCall,
    ref: Annotated[
        str | None, Argument(metavar="[REF]", help="A commit.", autocompletion=complete_ref)
    ] = None,
) -> None:
    """List the models of a commit: tensors, parameters, bytes and metrics.

    Examples:
        tensorrepo model ls
        tensorrepo model ls v1
        tensorrepo model ls --repo s3://bucket/team --json
    """
    session = call.session
    tree = session.resolve(ref).commit.tree
    described = describe_entries(
        session.repository.objects, session.repository.entries(tree, "models/")
    )
    listed = [
        {"path": model.path, "digest": model.digest, "bytes": model.bytes}
        | {name: model.facts[name] for name in ("tensors", "metrics")}
        for model in described
    ]
    columns = {
        "path": itemgetter("path"),
        ">tensors": lambda model: f"{model['tensors']:,}",
        ">bytes": lambda model: output.bytes_text(model["bytes"]),
        "metrics": lambda model: ", ".join(f"{key} = {at}" for key, at in model["metrics"].items()),
        "digest": lambda model: model["digest"][:12],
    }
    call.show(listed, columns, document=dict, empty="")


def model_desc_command(
    call: RepoCall,
    name: StoredModelArgument,
    graph: Annotated[bool, Option("--nodes", help="Its graph, node by node.")] = False,
    staged: StagedOption = False,
    full: FullOption = False,
) -> None:
    """Describe a model: layers, parameters, types, architecture, files, metrics, lineage.

    The architecture's graph is the one that was stored with the model, that of the ONNX file that
    it came from, or one derived from the names and shapes of tensors; the answer says which.

    Examples:
        tensorrepo model desc classifier
        tensorrepo model desc v1:classifier --json
        tensorrepo model desc classifier --nodes
        tensorrepo model desc classifier --full
    """
    stored = find_model(call.session, name, staged=staged)
    if graph:
        shown = model_graph(stored.model)
        if call.as_json:
            output.json_value(msgspec.to_builtins(shown))
            return
        output.show_table(shown.to_table())
        return
    described = describe_model(stored.model)
    if call.as_json:
        output.json_value({"path": stored.path, "commit": stored.commit, **described.to_json()})
        return
    output.line(f"{stored.path} ({described.digest:.12}), {output.bytes_text(described.bytes)}")
    output.lines(f"  {line}" for line in _shown(list(described.lines()), full=full))
    layer_columns = {
        "layer": "name",
        ">tensors": "tensors",
        ">parameters": lambda layer: f"{layer.parameters:,}",
        ">bytes": lambda layer: output.bytes_text(layer.bytes),
    }
    more = 0 if full else len(described.layers) - SHOWN_LINES
    output.show(described.layers if more <= 1 else described.layers[:SHOWN_LINES], layer_columns)
    if more > 1:
        output.line(f"... and {more:,} more (--full)")


def model_diff_command(
    call: RepoCall,
    old: StoredModelArgument,
    new: StoredModelArgument,
    names_only: Annotated[
        bool, Option("--names-only", help="Read no tensor: only say which changed.")
    ] = False,
    full: FullOption = False,
    exit_code: Annotated[bool, Option("--exit-code", help="Exit with 1 when they differ.")] = False,
) -> None:
    """Compare two models: tensors, how far they moved, layers that moved most, config, metrics.

    Tensors that are equal are not read. Of one that changed: the share of elements with other bits,
    the largest and the L2 norm of the difference, and the cosine between both.

    Examples:
        tensorrepo model diff v1:classifier main:classifier
        tensorrepo model diff base tuned --json
        tensorrepo model diff HEAD~1:net net --names-only --exit-code
    """
    session = call.session
    sides = [find_model(session, name).model.entry for name in (old, new)]
    objects = session.repository.objects
    with output.working(f"comparing {old} and {new}"):
        diff = diff_models(objects, *sides, measure=not names_only, whole=not names_only)
    if call.as_json:
        output.json_value(diff.to_json())
    else:
        output.line(diff.summary)
        for lines in diff.lines_by_kind():
            output.lines(_shown(lines, full=full))
        output.lines(_moved(diff, full=full))
    if exit_code and sides[0].digest != sides[1].digest:
        raise Exit(NOTHING_TO_DO)


def model_verify_command(
    call: RepoCall, name: StoredModelArgument, staged: StagedOption = False
) -> None:
    """Read all of a model and check every byte: tensors, files, the files that it gives back.

    Examples:
        tensorrepo model verify classifier
        tensorrepo model verify v1:classifier --json
    """
    stored = find_model(call.session, name, staged=staged)
    with output.progress(f"verifying {stored.path}", stored.model.size_bytes) as advance:
        checked = verify_model(stored.model, advance)
    counts_of = output.fields("tensors", "bytes", "files", "faults")
    value = {"path": stored.path} | counts_of(checked)
    counts = output.counted(checked.tensors, "tensor"), output.counted(checked.files, "file")
    good = f"{stored.path} is whole: {', '.join(counts)}, {output.bytes_text(checked.bytes)}"
    lines = checked.faults or (good,)
    call.answer(value, *lines)
    if checked.faults:
        faults = output.counted(len(checked.faults), "fault")
        raise CorruptError(f"{stored.path} is damaged: {faults}")


def _shown(lines: Sequence[str], *, full: bool) -> Iterable[str]:
    return lines if full else shortened(lines, most=SHOWN_LINES)


def _moved(diff: ModelDiff, *, full: bool) -> Iterator[str]:
    """The layers that moved most, for people."""
    layers = diff.layers
    if len(layers) < 2:
        return
    yield "layers by movement:"
    shown = layers if full else layers[:SHOWN_LAYERS]
    for layer in shown:
        share = "" if layer.relative is None else f", {layer.relative:.3%} of its norm"
        yield f"  {layer.layer}: L2 {layer.l2:.3g}{share}"
    if len(shown) < len(layers):
        yield f"  and {len(layers) - len(shown):,} more"


AllOption = Annotated[bool, Option("--all", help="Of every branch, tag and run.")]


def model_similar_command(
    call: RepoCall,
    name: StoredModelArgument,
    every_ref: AllOption = False,
) -> None:
    """Rank the stored models by how like one they are, and tell what it was encoded against.

    Told are the bits, of 16, that elements of the largest tensors differ by, estimated from samples
    that are stored with them: no tensor is read. Models that share less than half of the names,
    types and shapes are left out.

    Examples:
        tensorrepo model similar net
        tensorrepo model similar v1:net --all
        tensorrepo model similar net --json
    """
    session = call.session
    entry = find_model(session, name).model.entry
    ref, path = split_path(name)
    with output.working("looking at models"):
        models = _models(session, ref if path is not None else None, every_ref=every_ref)
        similarity = similar_models(session.repository.objects, entry, models)
    if call.as_json:
        output.json_value(similarity.to_json())
        return
    output.lines(_bases(similarity))
    columns = {
        "model": "model.text",
        ">bits of 16": lambda near: f"{near.bits:.2f}",
        "architecture": lambda near: "same" if near.same_architecture else "other",
        "as a base": lambda near: near.base or ("alike" if near.is_alike else ""),
    }
    compared, unlike = similarity.ranking, similarity.unlike
    output.show(compared, columns, empty="")
    output.line(f"{len(compared)} compared; {unlike} not: other names or shapes, or too small")


def _models(session: WorkspaceSession, ref: str | None, *, every_ref: bool) -> tuple[Reached, ...]:
    if every_ref:
        return models_at(session.repository, every_tree(session.repository))
    revision = session.resolve(ref)
    return models_at(session.repository, {ref or session.default_ref: revision.commit.tree})


def _bases(similarity: Similarity) -> Iterator[str]:
    """What the model was encoded against, for people."""
    for base in similarity.bases:
        bits = "" if base.bits is None else f", {base.bits:.2f} bits of 16 apart"
        tensors = output.counted(base.tensors, "tensor")
        yield f"{tensors} encoded against {base.digest:.12}: {base.why}{bits}"
    if not similarity.bases:
        yield "no tensor was encoded against another model's"
