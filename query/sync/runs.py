"""Which runs are there, as their refs say now, and which rows tell of them?

A run that goes on is written anew every so often: only its newest document has rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sqlalchemy import delete, select

from tensorrepo.formats.lineage import MADE_BY
from tensorrepo.formats.run.document import decode_run
from tensorrepo.query import tables
from tensorrepo.query.sync.edges import edge_row, edge_rows, kind_of_path
from tensorrepo.query.sync.values import as_json, number
from tensorrepo.repo.commits import read_commit
from tensorrepo.repo.objects import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tensorrepo.formats.run.document import At, RunDocument
    from tensorrepo.query.sync.loader import Loader, Rows
    from tensorrepo.repo.ids import Digest
    from tensorrepo.repo.repository import Repository

_SPACE: Final = "runs/"
_RECORD: Final = "/record"
_OWNED: Final = (
    tables.run_metric.c.run,
    tables.metric.c.owner,
    tables.parameter.c.owner,
    tables.lineage_edge.c.stated_by,
)


def move_runs(
    repository: Repository, loader: Loader, old: Mapping[str, Digest], new: Mapping[str, Digest]
) -> None:
    """Make the rows of runs those of the refs `new`, where they differ from the refs `old`."""
    for ref in sorted({*_records(old), *_records(new)}):
        if old.get(ref) == new.get(ref):
            continue
        name = ref.removeprefix(_SPACE).removesuffix(_RECORD)
        _forget(loader, name)
        if ref in new:
            loader.add(_rows_at(repository, new[ref], name))
    loader.flush()


def _records(refs: Mapping[str, Digest]) -> set[str]:
    return {ref for ref in refs if ref.startswith(_SPACE) and ref.endswith(_RECORD)}


def _forget(loader: Loader, name: str) -> None:
    documents = select(tables.run.c.digest).where(tables.run.c.name == name)
    for column in _OWNED:
        loader.connection.execute(delete(column.table).where(column.in_(documents)))
    loader.connection.execute(tables.run.delete().where(tables.run.c.name == name))


def _rows_at(repository: Repository, commit: Digest, name: str) -> Rows:
    """The rows of the run whose document `commit` holds."""
    tree = read_commit(repository.objects, commit).tree
    entry = repository.entry(tree, f"{_SPACE}{name}")
    if entry is None or entry.kind is not Kind.RUN:
        return
    run = decode_run(repository.objects.get(entry.digest).payload, entry.digest)
    yield tables.run, _run_row(entry.digest, run)
    for parameter, value in sorted(run.params.items()):
        yield tables.parameter, (entry.digest, parameter, as_json(value))
    yield from _metric_rows(entry.digest, run)
    yield from _lineage_rows(entry.digest, run)


def _run_row(digest: Digest, run: RunDocument) -> tuple[object, ...]:
    newest = run.attempts[-1] if run.attempts else None
    code = None if newest is None else newest.code
    return (
        digest,
        run.id,
        run.name,
        run.status,
        run.started_ns,
        run.written_ns,
        run.due_ns,
        run.ended_ns,
        run.error,
        run.author,
        None if code is None else code.commit,
        None if code is None else code.dirty,
        as_json({} if newest is None else newest.environment),
    )


def _metric_rows(digest: Digest, run: RunDocument) -> Rows:
    for place, metric in enumerate(run.metrics):
        last, kind = number(metric.last.value)
        yield (
            tables.metric,
            (digest, place, run.name, metric.name, metric.last.step, last, kind, None),
        )
        yield (
            tables.run_metric,
            (
                digest,
                metric.name,
                metric.points,
                metric.not_finite,
                metric.last.step,
                last,
                kind,
                *_at(metric.min),
                *_at(metric.max),
            ),
        )


def _lineage_rows(digest: Digest, run: RunDocument) -> Rows:
    """What the run read, and that it made what it wrote."""
    yield from edge_rows(digest, "run", run.inputs, run.id)
    for place, made in enumerate(run.outputs, len(run.inputs)):
        kind, by = kind_of_path(made.path), ("run", f"runs/{run.name}", run.id, None)
        yield edge_row(digest, place, (kind, made.digest, MADE_BY, *by, "{}"))


def _at(at: At | None) -> tuple[float | None, int | None]:
    return (None, None) if at is None else (at.value, at.step)
