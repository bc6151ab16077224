"""Training runs, charts of their metrics, and lineage: `runs ...`, `lineage`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from typer import Argument, Exit, Option

from tensorrepo import lazy
from tensorrepo.cli import output
from tensorrepo.cli.exit_codes import NOTHING_TO_DO
from tensorrepo.cli.options import CommandCall, RepoCall, json_pair
from tensorrepo.cli.sdk_handle import handle_of
from tensorrepo.formats.runs.run_record import STATUSES
from tensorrepo.formats.runs.stored_run import STALE
from tensorrepo.repo.changes.revisions import split_at, split_path
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repo.suggest import did_you_mean, there_are
from tensorrepo.repo.tables import moment_text
from tensorrepo.repo.transfer.origins import promoted_from, promoted_to
from tensorrepo.repository import Repository
from tensorrepo.runs.board_import import import_runs
from tensorrepo.runs.record import RunRecord
from tensorrepo.runs.summary import (
    MOST_SHOWN,
    chart,
    common_metrics,
    metric_columns,
    param_text,
    run_lines,
    sparkline,
    took_text,
)
from tensorrepo.workspace.session import WorkspaceSession

if TYPE_CHECKING:
    from tensorrepo.catalog.lineage import Kinship, Lineage


MetricOption = Annotated[
    list[str] | None, Option("--metric", metavar="NAME", help="Only this one; repeatable.")
]
MaxOption = Annotated[bool, Option("--max", help="Large values are good, as of accuracy.")]
STATES = (*STATUSES, STALE)
PARAM = "NAME=VALUE, such as lr=0.001"


def runs_ls_command(
    call: RepoCall,
    metric: MetricOption = None,
    best: Annotated[
        str | None, Option("--best", metavar="NAME", help="By this metric, the best first.")
    ] = None,
    largest: MaxOption = False,
    status: Annotated[
        str | None, Option(metavar="STATE", help=f"Only these: one of {', '.join(STATES)}.")
    ] = None,
    param: Annotated[
        list[str] | None,
        Option("--param", metavar="NAME=VALUE", help="Only with this parameter; repeatable."),
    ] = None,
    limit: Annotated[int, Option("-n", "--limit", min=1, help="So many at most.")] = 50,
) -> None:
    """List runs, the newest first.

    A run is stale when it says that it is running, but nobody writes it any more: its process is
    gone, or it was not written in time.

    Examples:
        tensorrepo runs ls
        tensorrepo runs ls --best loss --status finished
        tensorrepo runs ls --best accuracy --max --param lr=0.001
    """
    wanted = [json_pair(each, "--param", PARAM) for each in param or ()]
    if status not in (None, *STATES):
        raise InvalidInputError(f"--status {status!r:.80}: expected one of {', '.join(STATES)}")
    every = list(handle_of(call).runs().values())
    _check_metrics(every, [*(metric or ()), *([best] if best else ())])
    runs = [
        run
        for run in every
        if (status is None or run.state() == status)
        and all(run.params.get(name, _MISSING) == value for name, value in wanted)
    ]
    mode = "max" if largest else "min"
    ranked = _sorted(runs, best, mode)[:limit]
    columns: dict[str, Any] = {
        "run": "name",
        "state": lambda run: run.state(),
        "began": lambda run: moment_text(run.document.started_ns),
        ">took": lambda run: took_text(run.document),
    }
    for name in metric or ([best] if best else common_metrics(each.document for each in ranked)):
        columns[f">{name}"] = partial(_value, name=name, mode=mode if name == best else None)
    empty = "no runs" if not every else f"none of {output.counted(len(every), 'run')} fits"
    call.show(ranked, columns, document=_run_document, empty=empty)


def runs_show_command(
    call: RepoCall,
    name: Annotated[str, Argument(metavar="RUN", help="Its name.")],
    metric: MetricOption = None,
) -> None:
    """Show a run: parameters, what it read and made, code and machine, and its metrics.

    Examples:
        tensorrepo runs show exp1
        tensorrepo runs show exp1 --metric loss
    """
    run = handle_of(call).runs()[name]
    if call.as_json:
        output.json_value(_run_document(run, metric or ()))
        return
    if metric:
        for one in metric:
            values = run.points(one).values
            output.line(f"{one}: {output.counted(len(values), 'point')}")
            output.lines(chart(values))
        return
    output.lines(output.printable(text) for text in run_lines(run.document, run.state()))
    if run.document.metrics:
        output.show(run.document.metrics[:MOST_SHOWN], metric_columns(run.points))
    more = len(run.document.metrics) - MOST_SHOWN
    if more > 0:
        output.note(f"{more:,} more metrics: --metric NAME shows one, --json all")


def runs_import_command(
    call: RepoCall,
    path: Annotated[Path, Argument(metavar="PATH", help="Folder, or one event file.")],
    name: Annotated[
        str | None,
        Option("--name", metavar="NAME", help="Name of the run; several begin with it."),
    ] = None,
) -> None:
    """Import trainings from TensorBoard's event files: a run for each folder.

    Scalars become metrics, with their steps and times; pictures become files of the run.

    Examples:
        tensorrepo runs import lightning_logs
        tensorrepo runs import runs/Nov26 --name baseline
    """
    made = import_runs(handle_of(call).context, path, name)
    columns: dict[str, Any] = {
        "run": "name",
        ">metrics": "metrics",
        ">points": "points",
        ">pictures": "pictures",
    }
    call.show(made, columns, document=msgspec.to_builtins, empty="no runs")
    for one in made:
        for note in one.notes:
            output.note(f"{one.name}: {note}")


def runs_compare_command(
    call: RepoCall,
    names: Annotated[list[str], Argument(metavar="RUN...", help="Names of runs.")],
    metric: MetricOption = None,
    largest: MaxOption = False,
    smallest: Annotated[bool, Option("--min", help="Small values are good, as of a loss.")] = False,
    everything: Annotated[
        bool, Option("--equal", help="Also what is the same in all of them.")
    ] = False,
) -> None:
    """Compare runs: parameters, code and data that differ, and their metrics side by side.

    Of a metric the last value is shown; with --min or --max the smallest or the largest.

    Examples:
        tensorrepo runs compare exp1 exp2
        tensorrepo runs compare exp1 exp2 --metric accuracy --max
    """
    every = handle_of(call).runs()
    runs = [every[name] for name in names]
    _check_metrics(runs, metric or ())
    if largest and smallest:
        raise InvalidInputError("--min and --max show different values: give one of them")
    mode = "max" if largest else "min" if smallest else "last"
    facts = {
        key: values
        for key, values in _facts(runs).items()
        if everything or len({json.dumps(value, sort_keys=True) for value in values}) > 1
    }
    wanted = metric or common_metrics((run.document for run in runs), most=None)
    measured = {name: [_measured(run, name, mode) for run in runs] for name in wanted}
    if call.as_json:
        output.json_value({"runs": names, "facts": facts, "mode": mode, "metrics": measured})
        return
    rows = [(key, *map(param_text, values)) for key, values in facts.items()]
    rows += [
        (
            name if mode == "last" else f"{name} ({mode})",
            *("-" if value is None else f"{value:.6g}" for value in values),
        )
        for name, values in measured.items()
    ]
    output.table(("", *names), rows)
    for name in wanted:
        for run in runs:
            if run.document.metric(name) is not None:
                output.line(f"{name:>16} {run.name:<16} {sparkline(run.points(name).values, 48)}")


_MISSING = object()


def _check_metrics(runs: Sequence[RunRecord], names: Iterable[str]) -> None:
    """Whether each metric was logged by one of these runs."""
    there = common_metrics((run.document for run in runs), most=None)
    for name in names:
        if runs and name not in there:
            hint = did_you_mean(name, there, there_are(there, "None was logged."))
            raise NotFoundError(f"no run has a metric {name!r:.80}.{hint}")


def _sorted(runs: list[RunRecord], best: str | None, mode: str) -> list[RunRecord]:
    if best is None:
        return sorted(runs, key=lambda run: (-run.document.started_ns, run.name))
    sign = 1 if mode == "min" else -1
    ranked = [
        (value * sign, run.name, run) for run in runs if (value := run.best(best, mode)) is not None
    ]
    return [run for _, _, run in sorted(ranked, key=lambda one: one[:2])]


def _facts(runs: list[RunRecord]) -> dict[str, list[Any]]:
    each = [_facts_of(run) for run in runs]
    keys = list(dict.fromkeys(key for facts in each for key in facts))
    return {key: [facts.get(key) for facts in each] for key in keys}


def _facts_of(run: RunRecord) -> dict[str, Any]:
    facts = dict(sorted(run.params.items()))
    code = run.document.attempts[-1].code
    if code is not None:
        facts["code"] = code.commit[:12] + (" and changes" if code.dirty else "")
    return facts | {edge.path: edge.digest[:12] or None for edge in run.inputs}


def _measured(run: RunRecord, name: str, mode: str) -> float | None:
    return run.metrics.get(name) if mode == "last" else run.best(name, mode)


def _value(run: RunRecord, name: str, mode: str | None) -> str:
    value = run.metrics.get(name) if mode is None else run.best(name, mode)
    return "-" if value is None else f"{value:.6g}"


def _run_document(run: RunRecord, metrics: Iterable[str] = ()) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.to_builtins(run.document)
    del document["chunks"]
    document["state"] = run.state(time.time_ns())
    logged = {name: run.points(name) for name in metrics}
    points = {
        name: {"steps": one.steps.tolist(), "values": one.values.tolist()}
        for name, one in logged.items()
    }
    return document | ({"points": points} if points else {})


def lineage_command(
    call: RepoCall,
    path: Annotated[
        str,
        Argument(
            metavar="[REF:]PATH", help="Such as models/net, models/net@v1, runs/exp1, or a URL."
        ),
    ],
    up: Annotated[bool, Option("--up", help="What it came from (this is the default).")] = False,
    down: Annotated[bool, Option("--down", help="What came from it.")] = False,
    depth: Annotated[int | None, Option(min=1, help="So many edges away at most.")] = None,
    relation: Annotated[
        list[str] | None,
        Option("--relation", metavar="WORD", help="Only over these edges; repeatable."),
    ] = None,
    all_versions: Annotated[
        bool, Option("--all-versions", help="Ancestors of all that was ever at PATH.")
    ] = False,
    dot: Annotated[bool, Option("--dot", help="For Graphviz.")] = False,
    draw: Annotated[
        str | None, Option("--draw", metavar="FILE", help="Draw it: FILE.svg or FILE.png.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Overwrite what is at FILE.")] = False,
    deleted: Annotated[
        bool, Option("--deleted", help="Models that saw rows which the dataset has no more.")
    ] = False,
    data_since: Annotated[
        str | None,
        Option(
            "--data-since", metavar="[REF:]MODEL", help="What its data differ in from this one's."
        ),
    ] = None,
    reproducible: Annotated[
        bool, Option("--reproducible", help="Whether it can be made again; exits with 1 if not.")
    ] = False,
) -> None:
    """Show what a model, a dataset or a run came from, or what was made of it.

    Edges are noted by runs, imports, merges and the like. `--relation` takes their words:
    trained-on, fine-tuned-from, merged-from, derived-from, imported-from, made-by and others.

    Examples:
        tensorrepo lineage models/net
        tensorrepo lineage v1:datasets/photos --down --relation trained-on
        tensorrepo lineage models/net --up --down --draw net.svg
        tensorrepo lineage datasets/photos --deleted
        tensorrepo lineage models/net --data-since v1:models/net
        tensorrepo lineage models/net --reproducible
    """
    ask = partial(_lineage_of, call.session, handle_of(call))
    lineage = ask(path, all_versions=all_versions)
    if draw is not None:
        to, up = call.path(draw), up or not down
        only = relation or ()
        drawing = lineage.draw(to, up=up, down=down, depth=depth, relations=only, overwrite=force)
        call.answer({"path": str(to), "things": len(drawing.nodes)}, f"wrote {draw}")
    elif deleted:
        _show_deleted(call, lineage)
    elif data_since is not None:
        _show_changes(call, ask(data_since), lineage)
    elif reproducible:
        _show_findings(call, lineage)
    else:
        kin: dict[str, Kinship] = {}
        if up or not down:
            kin["ancestors"] = lineage.ancestors(depth=depth, relations=relation or ())
        if down:
            kin["descendants"] = lineage.descendants(depth=depth, relations=relation or ())
        _show_kin(call, kin, dot=dot)
        if not dot:
            _show_promotions(call, path, up=up or not down, down=down)


def _lineage_of(
    session: WorkspaceSession, handle: Repository, text: str, *, all_versions: bool = False
) -> Lineage:
    if "://" in text or text.startswith("runs/"):
        return handle.lineage(text)
    ref, path = _split(text)
    if ref is not None:
        digest = session.resolve(ref).digest
        return lazy.Lineage.of(handle.context, path, digest, all_versions=all_versions)
    at = session.resolve(session.default_ref).digest
    return lazy.Lineage.of(handle.context, path, all_versions=all_versions, at=at)


def _split(text: str) -> tuple[str | None, str]:
    """``REF:PATH``, or ``PATH@REF``, as (REF, PATH); None as the REF of a path alone."""
    ref, path = split_path(text)
    if path is not None:
        return ref, path
    split = split_at(text)
    return (None, text) if split is None else (split[1], split[0])


def _show_kin(call: CommandCall, kin: dict[str, Kinship], *, dot: bool) -> None:
    if call.as_json:
        output.json_lines({"direction": name} | kinship.to_json() for name, kinship in kin.items())
        return
    if dot:
        one, *others = kin.values()
        output.line(one.joined(others[0]).dot() if others else one.dot())
        return
    for name, kinship in kin.items():
        if len(kin) > 1:
            output.line(f"{name}:")
        output.lines(output.printable(text, keep="\n") for text in kinship.lines())


def _show_promotions(call: CommandCall, text: str, *, up: bool, down: bool) -> None:
    """From which repository an entry came, and to which ones it went."""
    core, (_, path) = call.session.repository, _split(text)
    branch = call.session.head.branch if call.session.head else None
    found = promoted_from(core, path, branch or "main") if up else None
    if found is not None:
        commit, origin = found
        value = {"direction": "promoted-from", "commit": commit}
        told = f"{origin.path} of commit {origin.commit:.12} in repository {origin.repository}"
        call.answer(value | {"origin": msgspec.to_builtins(origin)}, f"promoted from {told}")
    for one in promoted_to(core.log.refresh(), path) if down else ():
        value = {"direction": "promoted-to", "repository": one.repository, "path": one.path}
        told = f"repository {one.repository}, as {one.path}, of commit {one.commit:.12}"
        call.answer(value | {"commit": one.commit}, f"promoted to {told}")


def _show_deleted(call: CommandCall, lineage: Lineage) -> None:
    columns = {
        "model": "model.path",
        "version": lambda saw: saw.model.key[:12],
        "trained on": lambda saw: saw.dataset.key[:12],
        "rows gone": "summary",
        "saw of it": "seen",
    }
    empty = "no model was trained on rows that are gone"
    call.show(lineage.saw_deleted(), columns, document=_summarized, empty=empty)


def _show_changes(call: CommandCall, old: Lineage, new: Lineage) -> None:
    columns = {
        "dataset": "path",
        "old": lambda change: (change.old or "-")[:12],
        "new": lambda change: (change.new or "-")[:12],
        "what differs": "summary",
    }
    empty = "of neither model is it known what it was trained on"
    call.show(old.data_changes(new), columns, document=_summarized, empty=empty)


def _summarized(record: Any) -> dict[str, Any]:
    return {**msgspec.to_builtins(record), "summary": record.summary}


def _show_findings(call: CommandCall, lineage: Lineage) -> None:
    findings = lineage.reproducible()
    columns = {"": lambda one: "yes" if one.ok else "NO", "needed": "what", "why": "why"}
    call.show(findings, columns)
    if not all(one.ok for one in findings):
        raise Exit(NOTHING_TO_DO)
