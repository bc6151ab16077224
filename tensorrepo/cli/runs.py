"""`runs`: what trainings read, made and logged."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from typer import Argument, Context, Option

from tensorrepo.cli import output
from tensorrepo.cli.chart import chart, sparkline
from tensorrepo.cli.common import JsonOption, RepoOption, json_pair
from tensorrepo.cli.handle import handle_of
from tensorrepo.formats.run.document import STATUSES
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.runrecord import STALE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tensorrepo.runrecord import RunRecord

MetricOption = Annotated[
    list[str] | None, Option("--metric", metavar="NAME", help="Only this one; repeatable.")
]
MaxOption = Annotated[bool, Option("--max", help="Large values are good, as of accuracy.")]
STATES = (*STATUSES, STALE)
_SHOWN = 3  # metrics in a list, where none is named
MOST_SHOWN = 40  # metrics of one run
PARAM = "NAME=VALUE, such as lr=0.001"


def runs_ls_command(
    context: Context,
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
    repo: RepoOption = None,
    as_json: JsonOption = False,
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
    every = list(handle_of(context, repo).runs().values())
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
        "began": lambda run: _moment(run.document.started_ns),
        ">took": lambda run: _took(run.seconds),
    }
    for name in metric or ([best] if best else _common(ranked)):
        columns[f">{name}"] = partial(_value, name=name, mode=mode if name == best else None)
    empty = "no runs" if not every else f"none of {output.counted(len(every), 'run')} fits"
    output.show(ranked, columns, as_json=as_json, document=_run_document, empty=empty)


def runs_show_command(
    context: Context,
    name: Annotated[str, Argument(metavar="RUN", help="Its name.")],
    metric: MetricOption = None,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a run: parameters, what it read and made, code and machine, and its metrics.

    Examples:
        tensorrepo runs show exp1
        tensorrepo runs show exp1 --metric loss
    """
    run = handle_of(context, repo).runs()[name]
    if as_json:
        output.json_value(_run_document(run, metric or ()))
        return
    if metric:
        for one in metric:
            values = run.points(one).values
            output.line(f"{one}: {len(values):,} points")
            output.lines(chart(values))
        return
    output.lines(output.printable(text, keep="\n") for text in _run_lines(run))
    if run.document.metrics:
        columns = {
            "metric": "name",
            ">points": lambda each: f"{each.points:,}",
            ">last": lambda each: f"{each.last.value:.6g}",
            ">min": lambda each: _extreme(each.min),
            ">max": lambda each: _extreme(each.max),
            "course": lambda each: sparkline(run.points(each.name).values),
        }
        output.show(run.document.metrics[:MOST_SHOWN], columns, as_json=False)
    more = len(run.document.metrics) - MOST_SHOWN
    if more > 0:
        output.note(f"{more:,} more metrics: --metric NAME shows one, --json all")


def runs_compare_command(
    context: Context,
    names: Annotated[list[str], Argument(metavar="RUN...", help="Names of runs.")],
    metric: MetricOption = None,
    largest: MaxOption = False,
    everything: Annotated[
        bool, Option("--all", help="Also what is the same in all of them.")
    ] = False,
    repo: RepoOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare runs: parameters, code and data that differ, and their metrics side by side.

    Examples:
        tensorrepo runs compare exp1 exp2
        tensorrepo runs compare exp1 exp2 --metric accuracy --max
    """
    every = handle_of(context, repo).runs()
    runs = [every[name] for name in names]
    _check_metrics(runs, metric or ())
    mode = "max" if largest else "min"
    facts = {key: values for key, values in _facts(runs).items() if everything or _differ(values)}
    wanted = metric or _common(runs, most=None)
    measured = {name: [run.best(name, mode) for run in runs] for name in wanted}
    if as_json:
        output.json_value({"runs": names, "facts": facts, f"{mode} of metrics": measured})
        return
    rows = [(key, *map(_text, values)) for key, values in facts.items()]
    rows += [
        (f"{mode} {name}", *("-" if value is None else f"{value:.6g}" for value in values))
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
    there = _common(runs, most=None)
    for name in names:
        if runs and name not in there:
            near = get_close_matches(name, there, 4) or there[:8]
            listed = f"; there are {', '.join(near)}" if near else ": none was logged"
            raise NotFoundError(f"no run has a metric {name!r:.80}{listed}")


def _sorted(runs: list[RunRecord], best: str | None, mode: str) -> list[RunRecord]:
    if best is None:
        return sorted(runs, key=lambda run: (-run.document.started_ns, run.name))
    sign = 1 if mode == "min" else -1
    ranked = [
        (value * sign, run.name, run) for run in runs if (value := run.best(best, mode)) is not None
    ]
    return [run for _, _, run in sorted(ranked, key=lambda one: one[:2])]


def _common(runs: Iterable[RunRecord], most: int | None = _SHOWN) -> list[str]:
    """Names of metrics, those that most runs have first."""
    counts: dict[str, int] = {}
    for run in runs:
        for one in run.document.metrics:
            counts[one.name] = counts.get(one.name, 0) + 1
    return sorted(counts, key=lambda name: (-counts[name], name))[:most]


def _facts(runs: list[RunRecord]) -> dict[str, list[Any]]:
    """Parameters, code and versions of inputs of each run."""
    each = [_facts_of(run) for run in runs]
    keys = list(dict.fromkeys(key for facts in each for key in facts))
    return {key: [facts.get(key) for facts in each] for key in keys}


def _facts_of(run: RunRecord) -> dict[str, Any]:
    facts = dict(sorted(run.params.items()))
    code = run.document.attempts[-1].code
    if code is not None:
        facts["code"] = code.commit[:12] + (" and changes" if code.dirty else "")
    return facts | {edge.path: edge.digest[:12] or None for edge in run.inputs}


def _differ(values: list[Any]) -> bool:
    return len({json.dumps(value, sort_keys=True) for value in values}) > 1


def _text(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else json.dumps(value)


def _value(run: RunRecord, name: str, mode: str | None) -> str:
    value = run.metrics.get(name) if mode is None else run.best(name, mode)
    return "-" if value is None else f"{value:.6g}"


def _extreme(point: Any) -> str:
    return "-" if point is None else f"{point.value:.6g} at {point.step}"


def _run_lines(run: RunRecord) -> Iterable[str]:
    document, newest = run.document, run.document.attempts[-1]
    yield f"run       {run.name} ({run.id:.12}), {run.state()}"
    if document.error:
        yield f"error     {document.error}"
    yield f"author    {document.author}"
    yield f"began     {_moment(document.started_ns)}, took {_took(run.seconds)}"
    if len(document.attempts) > 1:
        yield f"attempts  {len(document.attempts)}, the last one {_moment(newest.started_ns)}"
    if newest.code is not None:
        dirty = ", and files that differ" if newest.code.dirty else ""
        yield f"code      {newest.code.script or ''} at git commit {newest.code.commit:.12}{dirty}"
    machine = newest.environment.get("machine", {})
    words = [str(machine[key]) for key in ("host", "processor", "gpus") if machine.get(key)]
    yield f"machine   Python {newest.environment.get('python', '?')}, {', '.join(words)}"
    for name, value in sorted(run.params.items()):
        yield f"param     {name} = {_text(value)}"
    for edge in run.inputs:
        at = ", ".join(f"{key} {edge.details[key]}" for key in _POSITION if key in edge.details)
        yield f"{edge.relation:<9} {edge.path} ({edge.digest:.12}){f': {at}' if at else ''}"
    for made in run.outputs:
        yield f"made      {made.path} ({made.digest:.12}) in commit {made.commit:.12}"


_POSITION = ("seed", "epoch", "position")


def _moment(time_ns: int) -> str:
    return f"{datetime.fromtimestamp(time_ns / 1e9, UTC):%Y-%m-%d %H:%M}"


def _took(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else output.age_text(seconds)


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
