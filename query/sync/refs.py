"""Rows of refs, of the log, of registered models and of runs.

A run that goes on is written anew every so often: only its newest document has rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlalchemy import Connection, bindparam, delete, select

from tensorrepo.formats.common.provenance import MADE_BY
from tensorrepo.formats.runs.run_record import MetricPoint, RunDocument, decode_run
from tensorrepo.query.catalog import tables
from tensorrepo.query.sync.contents import edge_row, edge_rows, kind_of_path
from tensorrepo.query.sync.loader import Loader, TableRows, as_json, delete_where, number
from tensorrepo.repo.changes.refs import updates_of
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.errors import CommitExpired, NotFoundError
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.repo.history.trees import EMPTY_TREE, PathChange, differences
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.apply import Folding
from tensorrepo.repo.log.reader import LogView, RepositoryLog
from tensorrepo.repo.log.records import LogRecord
from tensorrepo.repo.log.state import Verdict
from tensorrepo.repo.objects.envelope import Kind, ObjectSource
from tensorrepo.repo.registry.cards import BRANCH, Card, CardText, described
from tensorrepo.repo.registry.versions import SPACE, Registered, registered


def move_refs(
    objects: ObjectSource, loader: Loader, old: Mapping[str, Digest], new: Mapping[str, Digest]
) -> None:
    """Make the rows of refs those of `new`; they are those of `old`."""
    gone = [name for name in old if name not in new]
    for column in (tables.ref.c.name, tables.entry.c.ref):
        delete_where(loader.connection, column, gone)
    changed = [name for name in sorted(new) if old.get(name) != new[name]]
    delete_where(loader.connection, tables.ref.c.name, [name for name in changed if name in old])
    for name in changed:
        loader.add([(tables.ref, (name, name.partition("/")[0], new[name]))])
        _move_entries(objects, loader, name, old.get(name), new[name])


def _move_entries(
    objects: ObjectSource, loader: Loader, ref: str, old: Digest | None, new: Digest
) -> None:
    tree = read_commit(objects, new).tree
    before = EMPTY_TREE
    if old is not None:
        try:
            before = read_commit(objects, old).tree
            changes = list(differences(objects, before, tree))
        except (CommitExpired, NotFoundError):  # collected since: begin anew
            delete_where(loader.connection, tables.entry.c.ref, [ref])
        else:
            _delete_entries(loader.connection, ref, changes)
            loader.add(_entry_rows(ref, iter(changes)))
            return
    loader.add(_entry_rows(ref, differences(objects, EMPTY_TREE, tree)))


def _delete_entries(connection: Connection, ref: str, changes: list[PathChange]) -> None:
    paths = [{"of": ref, "at": change.path} for change in changes if change.old is not None]
    if paths:
        entry = tables.entry
        which = (entry.c.ref == bindparam("of"), entry.c.path == bindparam("at"))
        connection.execute(delete(entry).where(*which), paths)


def _entry_rows(ref: str, changes: Iterator[PathChange]) -> TableRows:
    for change in changes:
        if (new := change.new) is not None:
            yield tables.entry, (ref, change.path, new.kind.label, new.digest, new.storage)


_TABLES = (tables.registered_model, tables.registered_version, tables.registered_alias)


def move_registry(repository: RepositoryCore, loader: Loader, old: LogView, new: LogView) -> None:
    """Make the rows of the registry those of `new`, when it changed since `old`.

    Called when the refs are those of `new`, and their entries are in the tables.
    """
    if _its_refs(old) == _its_refs(new):
        return
    for table in _TABLES:
        loader.connection.execute(table.delete())
    commit = new.state.refs.get(f"heads/{BRANCH}")
    found = () if commit is None else described(repository, commit)
    said = {model: about for model, about in found if not about.gone}
    loader.add(_rows(loader.connection, registered(new), said))
    loader.flush()


def _its_refs(view: LogView) -> dict[str, Digest]:
    branch = f"heads/{BRANCH}"
    refs = view.state.refs.items()
    return {ref: at for ref, at in refs if ref.startswith(SPACE) or ref == branch}


def _rows(
    connection: Connection, known: Mapping[str, Registered], said: Mapping[str, Card]
) -> TableRows:
    digests = dict(_digests(connection))
    for model in sorted({*known, *said}):
        about = said.get(model, Card())
        yield tables.registered_model, (model, *_words(about.entry))
        one = known.get(model)
        for version, commit in one.versions.items() if one else ():
            path, digest = f"models/{model}", digests.get(f"{SPACE}{model}/v/{version}", "")
            words = _words(about.of(version))
            yield tables.registered_version, (model, version, commit, path, digest, *words)
        for alias, commit in one.aliases.items() if one else ():
            number_of = one.number_of(commit) if one else None
            yield tables.registered_alias, (model, alias, number_of or 0, commit)


def _digests(connection: Connection) -> Iterator[tuple[str, str]]:
    """What each version's tree holds: its one entry."""
    entry = tables.entry
    query = select(entry.c.ref, entry.c.digest).where(
        entry.c.ref >= SPACE,
        entry.c.ref < SPACE[:-1] + "0",  # "0" comes behind "/"
    )
    for row in connection.execute(query):
        yield row.ref, row.digest


def _words(words: CardText) -> tuple[Any, str]:
    return words.description, as_json(words.labels)


_SPACE: Final = "runs/"
_RECORD: Final = "/record"
_OWNED: Final = (
    tables.run_metric.c.run,
    tables.metric.c.owner,
    tables.parameter.c.owner,
    tables.lineage_edge.c.stated_by,
)


def move_runs(
    repository: RepositoryCore, loader: Loader, old: Mapping[str, Digest], new: Mapping[str, Digest]
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


def _rows_at(repository: RepositoryCore, commit: Digest, name: str) -> TableRows:
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
    times = run.started_ns, run.written_ns, run.due_ns, run.ended_ns
    version = (None, None) if code is None else (code.commit, code.dirty)
    environment = as_json({} if newest is None else newest.environment)
    told = (*times, run.error, run.author, *version, environment)
    return (digest, run.id, run.name, run.status, *told)


def _metric_rows(digest: Digest, run: RunDocument) -> TableRows:
    for place, metric in enumerate(run.metrics):
        last, kind = number(metric.last.value)
        step, told = metric.last.step, (metric.points, metric.not_finite)
        yield tables.metric, (digest, place, run.name, metric.name, step, last, kind, None)
        ends = (*_at(metric.min), *_at(metric.max))
        yield tables.run_metric, (digest, metric.name, *told, step, last, kind, *ends)


def _lineage_rows(digest: Digest, run: RunDocument) -> TableRows:
    """What the run read, and that it made what it wrote."""
    yield from edge_rows(digest, "run", run.inputs, run.id)
    for place, made in enumerate(run.outputs, len(run.inputs)):
        kind, by = kind_of_path(made.path), ("run", f"runs/{run.name}", run.id, None)
        yield edge_row(digest, place, (kind, made.digest, MADE_BY, *by, "{}"))


def _at(at: MetricPoint | None) -> tuple[float | None, int | None]:
    return (None, None) if at is None else (at.value, at.step)


def log_rows(log: RepositoryLog, base: LogView, stop: int) -> Iterator[TableRows]:
    """For each record from the one after `base` up to `stop`, excluded, its rows."""
    folding = Folding(base.state)  # one for all: copying the state for each would cost its refs
    for record in log.records(base.generation + 1, stop):
        yield _record_rows(log, record, folding.add(record, log.read_bulk))


def _record_rows(log: RepositoryLog, record: LogRecord, verdicts: tuple[Verdict, ...]) -> TableRows:
    for place, (entry, verdict) in enumerate(zip(record.entries, verdicts, strict=True)):
        told = (entry.txn, entry.kind, entry.actor, entry.time_ns, entry.note)
        yield tables.log_record, (record.gen, place, *told, verdict.applied, verdict.reason)
        for update in updates_of(log, entry) if verdict.applied else ():
            row = (record.gen, place, update.ref, update.old, update.new)
            yield tables.ref_update, row
