"""DQL on the command line: models selected and evaluated, and new ones staged."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from typing import Annotated, Any

from typer import Argument, Option

from tensorrepo.cli import output
from tensorrepo.cli.model_make import stage_made
from tensorrepo.cli.options import CommandCall, RepoCall, complete_place, complete_ref
from tensorrepo.cli.sdk_handle import handle_of
from tensorrepo.datasets.dataset import Dataset
from tensorrepo.formats.common.arguments import path_in
from tensorrepo.query.dql.grammar import parse_statement
from tensorrepo.query.dql.statements import Evaluate, Select
from tensorrepo.repo.errors import ConflictError, InvalidInputError
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.verbs.dql import PlannedModel, evaluated, planned, selected
from tensorrepo.verbs.evaluate import PROGRESSIVE, Evaluation, Score, request_of
from tensorrepo.workspace.session import next_commit


def dql_command(
    call: RepoCall,
    statement: Annotated[
        str | None, Argument(metavar="STATEMENT", help="One; - or nothing: read it from stdin.")
    ] = None,
    ref: Annotated[
        str | None,
        Option("--ref", help="Commit of models without one.", autocompletion=complete_ref),
    ] = None,
    replace: Annotated[bool, Option("--replace", help="Names of new models may be taken.")] = False,
    over: Annotated[
        str | None,
        Option(
            "--over", metavar="[REF:]DATASET", help="To evaluate: on what.",
            autocompletion=complete_place,
        ),
    ] = None,
    score: Annotated[
        str | None,
        Option("--score", metavar="FILE.py:NAME", help="To evaluate: function of model and data."),
    ] = None,
    train: Annotated[
        str | None,
        Option(
            "--train", metavar="FILE.py:NAME", help="Where settings vary: a function that trains."
        ),
    ] = None,
    train_data: Annotated[
        str | None,
        Option(
            "--train-data", metavar="[REF:]DATASET", help="What --train gets.",
            autocompletion=complete_place,
        ),
    ] = None,
    progressive: Annotated[
        str | None,
        Option("--planes", help=f"High bits first, by {' or '.join(PROGRESSIVE)}."),
    ] = None,
) -> None:  # fmt: skip
    """Select, cut, construct and evaluate models by a statement of DQL, ModelHub's query language.

    Select lists models, of a commit or with at every of all of them. Slice and construct stage new
    ones, as model slice does. Evaluate scores models by a function of your own file, in runs, and
    keeps the best.

    Examples:
        tensorrepo dql 'select m where m.name like "vgg%" order by m["loss"] limit 5'
        tensorrepo dql 'select m at every where m["conv[1,3,5]"].next has POOL("MAX")'
        tensorrepo dql 'slice h from m mutate h.input = m["conv1"] and h.output = m["fc7"]'
        tensorrepo dql 'construct r from m mutate m["conv*($1)"].insert = RELU("relu$1")'
        tensorrepo dql 'evaluate e from m keep top(3, e["f1"])' --over test --score f.py:f1
    """
    text = sys.stdin.read() if statement in (None, "-") else str(statement)
    parsed = parse_statement(text)
    handle = handle_of(call)
    at = _commit(call, ref)
    if isinstance(parsed, Select):
        found = selected(handle.context, parsed, at)
        if call.as_json:
            output.json_lines(asdict(one) for one in found)
        else:
            output.show_table(found.to_table())
            output.note(output.counted(len(found), "model"))
        return
    if not isinstance(parsed, Evaluate):
        _stage(call, planned(handle.context, parsed, at), replace=replace)
        return
    if over is None or score is None:
        raise InvalidInputError(
            "evaluate needs --over DATASET and --score FILE.py:NAME, a function of a model and data"
        )
    options: dict[str, Any] = {"data": _rows(call, over), "metric": _function(call, score)}
    if train is not None:
        options["train"] = _function(call, train)
    if train_data is not None:
        options["train_data"] = _rows(call, train_data)
    with output.row_progress("evaluating", "candidates") as advance:
        options |= {"progressive": progressive, "progress": advance}
        answer = evaluated(handle.context, parsed, at, request_of(options))
    _show(call, answer)


def _commit(call: RepoCall, ref: str | None) -> str:
    """The commit of models without one; of a workspace HEAD, where it has a commit."""
    session = call.session
    if ref is not None:
        return str(session.resolve(ref).digest)
    tip = None if session.workspace is None else session.tip()
    return "main" if tip is None else str(tip)


def _stage(call: CommandCall, plans: Sequence[PlannedModel], *, replace: bool) -> None:
    """Stage all, or nothing where a name is taken."""
    following = next_commit(call.session)
    for path in (path_in("models", plan.name) for plan in plans):
        if following.entry(path) is not None and not replace:
            raise ConflictError(f"{path} exists: say another name by as, or give --replace")
    for plan in plans:
        stage_made(call, plan.name, plan.make, plan.what, replace=replace)


def _rows(call: RepoCall, text: str) -> Dataset:
    """The dataset or view of an option."""
    revision, path, stored = call.session.find(text)
    handle = handle_of(call)
    if stored.kind is Kind.VIEW:
        return handle.view(path, revision.digest)
    if stored.kind is Kind.DATASET:
        return handle.dataset(path, revision.digest)
    raise InvalidInputError(f"{path} is a {stored.kind.label}: expected a dataset or a view")


def _function(call: RepoCall, text: str) -> Callable[..., Any]:
    """A function of a file of the caller's, which is run for that."""
    file, colon, name = text.rpartition(":")
    path = call.path(file)
    if not colon or path.suffix != ".py" or not path.is_file():
        raise InvalidInputError(f"{text!r:.200}: expected FILE.py:NAME, a function of a file here")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Where functions of the file look for their classes, and inspect for its source.
    with ExitStack() as undo:
        if path.stem not in sys.modules:
            sys.modules[path.stem] = module
            undo.callback(sys.modules.pop, path.stem)
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise InvalidInputError(
                f"{path.name} does not run: {type(error).__name__}: {error}"
            ) from error
        undo.pop_all()
    found = getattr(module, name, None)
    if not callable(found):
        raise InvalidInputError(f"{path.name} has no function {name!r:.80}")
    return found  # type: ignore[no-any-return]


def _show(call: RepoCall, found: Evaluation) -> None:
    if call.as_json:
        output.json_lines(_records(found))
        return
    output.show_table(found.to_table())


def _records(found: Evaluation) -> Iterator[dict[str, Any]]:
    kept = {score.candidate.key for score in found.kept}
    for score in found:
        yield _record(score) | {"kept": score.candidate.key in kept}


def _record(score: Score) -> dict[str, Any]:
    model = score.candidate.model
    return {
        "model": None if model is None else model.path,
        "digest": None if model is None else model.digest,
        "config": score.candidate.config,
        "outcome": score.outcome,
        "metrics": dict(score.metrics),
        "bounds": score.bounds,
        "run": score.run,
        "trained": score.model,
        "seconds": score.seconds,
        "read_bytes": score.read_bytes,
        "error": score.error,
    }
