"""Sections of a report: datasets, models, runs, lineage and commits, as pieces of HTML.

Every piece is made when it is asked for, so that whoever writes them can stop at a limit. What
cannot be read is told in its place; the others go on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import prod
from typing import Any, Final

from tensorrepo.catalog.catalog import catalog_of
from tensorrepo.context import Context
from tensorrepo.describe import ENTRY_COLUMNS, TENSOR_COLUMNS
from tensorrepo.formats.common.arguments import bytes_text, counted
from tensorrepo.formats.common.provenance import relation_of
from tensorrepo.formats.common.summaries import list_entry
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.cells import has_pictures
from tensorrepo.formats.dataset.schema.schema import Column
from tensorrepo.formats.dataset.schema.types import ClassLabel
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.views import open_view
from tensorrepo.query import lineage
from tensorrepo.query.drawing import charts
from tensorrepo.query.drawing.lineage import MOST_DRAWN, draw_steps
from tensorrepo.query.drawing.parts import COLORS, text
from tensorrepo.query.drawing.profiles import ColumnProfile, pictures, profile
from tensorrepo.query.lineage import LineageNode, LineageStep
from tensorrepo.repo.changes.revisions import Revision
from tensorrepo.repo.errors import Error
from tensorrepo.repo.history.commits import walk
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.tables import Cell, RecordTable, moment_text
from tensorrepo.runs.record import RunRecord, Runs
from tensorrepo.runs.summary import common_metrics, param_text, took_text

MOST_COLUMNS: Final = 60  # of a dataset
MOST_TENSORS: Final = 12  # of a model, the largest
MOST_FILES: Final = 200
MOST_RUNS: Final = 50
MOST_METRICS: Final = 12
MOST_COMMITS: Final = 50
_BASES: Final = frozenset({"fine-tuned-from", "merged-from", "merged-onto", "quantised-from"})


def datasets(context: Context, revision: Revision) -> Iterator[str]:
    """A card for each dataset: its schema with profiles, and pictures; then the views."""
    core = context.core
    for path, entry in core.entries(revision.commit.tree, "datasets/"):
        yield _card(path, lambda entry=entry: _dataset(context, entry))  # type: ignore[misc]
    for path, entry in core.entries(revision.commit.tree, "views/"):
        yield _card(path, lambda entry=entry: _view(context, entry))  # type: ignore[misc]


def models(context: Context, revision: Revision) -> Iterator[str]:
    """A card for each model: sizes, types, base, metrics and the largest tensors."""
    for path, entry in context.core.entries(revision.commit.tree, "models/"):
        yield _card(path, lambda entry=entry: _model(context, entry))  # type: ignore[misc]


def files(context: Context, revision: Revision) -> Iterator[str]:
    """One table of the files of the commit."""
    core = context.core
    entries = core.entries(revision.commit.tree, "files/")
    shown = [list_entry(*each) for each in islice(entries, MOST_FILES)]
    if shown:
        columns = {name: ENTRY_COLUMNS[name] for name in ("path", ">size", "digest")}
        table = RecordTable.of(shown, columns)
        yield replace(table, more=sum(1 for _ in entries)).html()


def runs(context: Context, _revision: Revision) -> Iterator[str]:
    """The newest runs side by side, a chart for each metric, and what each was given."""
    every = Runs(context)
    newest = sorted(every.values(), key=lambda run: (-run.document.started_ns, run.name))
    shown = newest[:MOST_RUNS]
    if not shown:
        return
    metrics = common_metrics((run.document for run in shown), most=MOST_METRICS)
    columns: dict[str, Cell] = {
        "run": "name",
        "state": lambda run: run.state(),
        "began": lambda run: moment_text(run.document.started_ns),
        ">took": lambda run: took_text(run.document),
        "by": lambda run: run.document.author.partition(" <")[0],
        "parameters": _params,
    }
    for name in metrics[:4]:
        columns[f">{name}"] = lambda run, name=name: _value(run, name)  # type: ignore[misc]
    yield RecordTable.of(shown, columns).html()
    yield _left_out(len(newest) - len(shown), "older runs")
    for name in metrics:
        yield _chart(name, [run for run in shown if run.document.metric(name) is not None])


def lineages(context: Context, revision: Revision) -> Iterator[str]:
    """A drawing of all that the entries of the commit came from."""
    core = context.core
    found = [
        LineageNode(entry.kind.label, entry.digest, path, revision.digest, True)
        for path, entry in core.entries(revision.commit.tree)
        if entry.kind in {Kind.DATASET, Kind.MODEL}
    ]
    if not found:
        return
    try:
        with catalog_of(context).reading() as connection:
            keys = [node.key for node in found[:MOST_DRAWN]]
            steps = lineage.walk(connection, keys, up=True)
    except Error as error:
        yield f'<p class="quiet">lineage could not be asked: {text(str(error), 400)}</p>'
        return
    if not steps:
        yield '<p class="quiet">Nothing is known of what these came from.</p>'
        return
    drawn = _nearest(steps)
    yield f'<div class="wide">{draw_steps(None, drawn).svg()}</div>'
    yield _left_out(len(steps) - len(drawn), "edges farther away")


def commits(context: Context, revision: Revision) -> Iterator[str]:
    """The newest commits, with the refs that stand at them."""
    refs: dict[str, list[str]] = {}
    for ref, at in sorted(context.core.log.refresh().state.refs.items()):
        if ref.startswith(("heads/", "tags/")):
            refs.setdefault(at, []).append(ref.partition("/")[2])
    history = walk(context.core.objects, [revision.digest])
    shown = list(islice(history, MOST_COMMITS))
    columns: dict[str, Cell] = {
        "commit": lambda pair: pair[0][:12],
        "refs": lambda pair: ", ".join(refs.get(pair[0], [])),
        "author": lambda pair: pair[1].author.partition(" <")[0],
        "date": lambda pair: moment_text(pair[1].time_ns),
        "message": lambda pair: pair[1].message.partition("\n")[0],
    }
    yield RecordTable.of(shown, columns).html()
    if next(history, None) is not None:
        yield '<p class="quiet">and older commits</p>'


def _card(path: str, inside: Callable[[], str]) -> str:
    try:
        body = inside()
    except Error as error:
        body = f'<p class="fault">cannot be read: {text(str(error), 400)}</p>'
    return f"<article><h3>{text(path, 200)}</h3>{body}</article>"


def _dataset(context: Context, entry: Entry) -> str:
    dataset = open_dataset(context.core.objects, entry.digest, context.outside)
    columns = dataset.schema.visible.columns
    facts = [
        counted(len(dataset), "row"),
        counted(len(columns), "column"),
        f"{bytes_text(dataset.stored_bytes)} stored",
        f"version {entry.digest:.12}",
    ]
    told = {name: _json(value) for name, value in dataset.root.properties.items()}
    rows = "".join(_column(dataset, column) for column in columns[:MOST_COLUMNS])
    head = "<thead><tr><th>column</th><th>type</th><th>values</th></tr></thead>"
    schema = f'<table class="schema">{head}<tbody>{rows}</tbody></table>'
    more = _left_out(len(columns) - MOST_COLUMNS, "columns")
    return "".join([_facts(facts), _pairs(told), _gallery(dataset, columns), schema, more])


def _gallery(dataset: StoredDataset, columns: Sequence[Column]) -> str:
    column = next((each for each in columns if has_pictures(each.type)), None)
    if column is None:
        return ""
    labels = [each for each in columns if isinstance(each.type, ClassLabel)]
    label = labels[0] if len(labels) == 1 else None
    try:
        shown = "".join(
            f"<figure>{each.html()}<figcaption>{text(each.words, 40)}</figcaption></figure>"
            for each in pictures(dataset, column, label)
        )
    except Error as error:
        return f'<p class="quiet">pictures cannot be read: {text(str(error), 400)}</p>'
    return f'<div class="gallery">{shown}</div>'


def _column(dataset: StoredDataset, column: Column) -> str:
    try:
        values = _profile(profile(dataset, column), len(dataset))
    except Error as error:
        values = f'<span class="quiet">cannot be read: {text(str(error), 200)}</span>'
    kind = text(column.type_text)
    return f"<tr><td>{text(column.name)}</td><td>{kind}</td><td>{values}</td></tr>"


def _profile(found: ColumnProfile, rows: int) -> str:
    parts = []
    if found.counts:
        parts.append(charts.histogram(found.counts, found.edges))
    if found.classes:
        parts.append(charts.bars(found.classes))
        parts.append(_left_out(found.more_classes, "classes"))
    parts += [f"<code>{text(each, 80)}</code> " for each in found.examples]
    if found.nulls:
        parts.append(f'<p class="quiet">{found.nulls:,} null</p>')
    if 0 < found.rows < rows and not found.examples:
        parts.append(f'<p class="quiet">of a sample of {counted(found.rows, "row")}</p>')
    return "".join(parts)


def _view(context: Context, entry: Entry) -> str:
    view = open_view(context.core.objects, entry.digest)
    facts = [f"{counted(view.rows, 'row')} of {view.path}", f"at commit {view.commit:.12}"]
    return f"{_facts(facts)}<pre>{text(view.sql, 2000)}</pre>"


def _model(context: Context, entry: Entry) -> str:
    model = open_model(context.core.objects, entry)
    specs = [model.spec(name) for name in model.tensors]
    elements: Counter[str] = Counter()
    for spec in specs:
        elements[spec.type.name] += prod(spec.shape)
    alone = f" ({next(iter(elements))})" if len(elements) == 1 else ""
    facts = [
        counted(len(model), "tensor"),
        counted(elements.total(), "parameter") + alone,
        f"{bytes_text(model.size_bytes)} in memory",
        f"version {entry.digest:.12}",
    ]
    bases = [
        f"{relation_of(edge.relation)} {edge.path}{f' ({edge.digest:.12})' if edge.digest else ''}"
        for edge in model.lineage
    ]
    largest = sorted(specs, key=lambda spec: (-spec.size_bytes, spec.name))[:MOST_TENSORS]
    table = RecordTable.of(largest, TENSOR_COLUMNS).html() if largest else ""
    names = "the largest tensors" if len(specs) > MOST_TENSORS else "tensors"
    return "".join(
        [
            _facts(facts),
            _origins(model, bases),
            _pairs({name: _json(value) for name, value in model.metrics.items()}),
            charts.shares(elements.most_common()) if len(elements) > 1 else "",
            f"<details><summary>{names}</summary>{table}</details>",
        ]
    )


def _origins(model: StoredModel, words: Sequence[str]) -> str:
    if not words:
        return ""
    based = any(relation_of(edge.relation) in _BASES for edge in model.lineage)
    shown = "".join(f"<li>{text(each, 200)}</li>" for each in words[:12])
    title = "base and origins" if based else "origins"
    return f'<p class="quiet">{title}</p><ul>{shown}</ul>{_left_out(len(words) - 12, "origins")}'


def _chart(metric: str, logged: Sequence[RunRecord]) -> str:
    shown = logged[:COLORS]
    try:
        series = {run.name: _points(run, metric) for run in shown}
    except Error as error:
        return f'<p class="fault">{text(metric)}: {text(str(error), 400)}</p>'
    more = _left_out(len(logged) - len(shown), "older runs have it")
    return (
        f'<figure class="chart"><figcaption>{text(metric)}</figcaption>'
        f"{charts.line_chart(series)}{more}</figure>"
    )


def _points(run: RunRecord, metric: str) -> charts.Series:
    points = run.points(metric)
    return points.steps, points.values


def _nearest(steps: Sequence[LineageStep]) -> list[LineageStep]:
    """Edges, the nearest first, that join no more things than fit a drawing."""
    drawn: list[LineageStep] = []
    keys: set[str] = set()
    for step in steps:
        ends = {step.subject.key, step.origin.key}
        if len(keys | ends) <= MOST_DRAWN:
            keys |= ends
            drawn.append(step)
    return drawn


def _params(run: RunRecord) -> str:
    return ", ".join(f"{name}={param_text(value)}" for name, value in sorted(run.params.items()))


def _value(run: RunRecord, name: str) -> str:
    value = run.metrics.get(name)
    return "" if value is None else f"{value:.6g}"


def _json(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _facts(facts: Sequence[str]) -> str:
    return f'<p class="facts">{"".join(f"<span>{text(each)}</span>" for each in facts)}</p>'


def _pairs(told: Mapping[str, str]) -> str:
    shown = islice(told.items(), 40)
    pairs = "".join(f"<dt>{text(name)}</dt><dd>{text(value, 300)}</dd>" for name, value in shown)
    return f"<dl>{pairs}</dl>{_left_out(len(told) - 40, 'more')}" if pairs else ""


def _left_out(count: int, what: str) -> str:
    return f'<p class="quiet">and {count:,} {what}</p>' if count > 0 else ""
