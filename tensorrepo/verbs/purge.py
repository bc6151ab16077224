"""Purge of rows and columns from all history: asked, carried out, collected, and told.

Beside the repository this machine's own copies go: cached objects and pages, unfinished downloads,
and the rows of the catalog. What lies elsewhere cannot be reached, and is named as far as history
tells of it: files that were read in place, models that learned from the rows, messages of commits.

Source:
    docs/spec/log.md, section "Purges"; docs/guides/erasing.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from tensorrepo import lazy
from tensorrepo.connect import derived_cache, local_state, page_cache
from tensorrepo.context import Context
from tensorrepo.filesystem.commit import renderings
from tensorrepo.formats.common.arguments import path_in
from tensorrepo.formats.common.provenance import IMPORTED_FROM, SYNCED_WITH, edges_of
from tensorrepo.formats.dataset.selecting.select_rows import Where
from tensorrepo.formats.model.maintenance.erase import TensorSurvey
from tensorrepo.formats.purging import (
    PurgeRequest,
    PurgeSurvey,
    purge_history,
    silent,
    survey_of,
)
from tensorrepo.repo.backends.base import PART_PREFIX
from tensorrepo.repo.changes.gc_collect import CollectionReport, CollectionRules, collect_garbage
from tensorrepo.repo.changes.purge import (
    Progress,
    PurgeRecord,
)
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.history.commits import walk
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.tables import RecordTable, Shown, counted
from tensorrepo.verbs.purge_reach import ReachedNode, lineage_nodes, reached, repeating, texts_in

MOST_SHOWN: Final = 20  # columns, or tensors, that a plan names in lines
_ELSEWHERE: Final = (
    "clones, mirrors, bundles, exports and checkouts elsewhere, and caches of other machines"
)


@dataclass(frozen=True, slots=True, repr=False)
class PurgePlan(Shown):
    """What a purge finds, before anything is changed.

    Attributes:
        rows: number of rows that are erased.
        columns: names of columns that are erased.
        tensors: names of tensors that are erased.
        versions: paths of entries, to the number of their versions that hold some of it.
        views: paths of views that name erased rows, or repeat an erased text in their query.
        classes: number of names of classes that only erased rows had.
        beyond: what cannot be reached, in words.
    """

    rows: int
    columns: tuple[str, ...]
    versions: Mapping[str, int]
    beyond: tuple[str, ...]
    views: tuple[str, ...] = ()
    classes: int = 0
    tensors: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to erase."""
        return not self.versions and not self.views

    def to_table(self) -> RecordTable:
        """In lines."""
        what = [counted(self.rows, "row")] if self.rows else []
        what += [*_some("column", self.columns), *_some("tensor", self.tensors)]
        if self.classes:
            what.append(counted(self.classes, "name of a class", "names of classes"))
        lines = [f"erases {', '.join(what) or 'nothing'}"]
        lines += [f"  in {path}: {counted(n, 'version')}" for path, n in self.versions.items()]
        lines += [f"  in {path}, which names such rows or repeats a text" for path in self.views]
        lines += [f"not reached: {each}" for each in self.beyond]
        return RecordTable(tuple(lines))


@dataclass(frozen=True, slots=True, repr=False)
class PurgeReport(Shown):
    """What a purge did.

    Attributes:
        plan: what it found.
        record: its record in the log; None: there was nothing to erase.
        gc: collection that took what was erased.
        cached: number of files that were deleted from this machine's caches.
    """

    plan: PurgePlan
    record: PurgeRecord | None
    gc: CollectionReport | None
    cached: int

    def to_table(self) -> RecordTable:
        """In lines."""
        if self.record is None:
            return RecordTable(("nothing was purged", *self.plan.to_table().lines))
        done = f"purged {counted(len(self.record.erased), 'object')} by record "
        return RecordTable((f"{done}{self.record.generation}", *self.plan.to_table().lines))


def _some(kind: str, names: Sequence[str]) -> list[str]:
    """The first of some names, and how many more there are."""
    shown, more = names[:MOST_SHOWN], len(names) - MOST_SHOWN
    return [f"{kind} {name}" for name in shown] + ([f"{more:,} more {kind}s"] if more > 0 else [])


def purge_request(
    names: Iterable[str],
    *,
    where: Where | None = None,
    rows: Iterable[str] = (),
    columns: Iterable[str] = (),
    tensors: Iterable[str] = (),
) -> PurgeRequest:
    """The request about datasets, or with `tensors` about models, named without their space."""
    tensors = tuple(tensors)
    paths = tuple(path_in("models" if tensors else "datasets", name) for name in names)
    return PurgeRequest(paths, where, tuple(rows), tuple(columns), tensors)


def plan_purge(
    context: Context, request: PurgeRequest, *, progress: Progress = silent
) -> PurgePlan:
    """What `purge` would erase. Changes nothing.

    Raises:
        NotFoundError: no commit has such a dataset, or no version of it such a column.
        InvalidInputError: a condition that fits no version.
    """
    core = context.core
    view = core.log.refresh()
    progress("walking history", 0, 0)
    return _plan(context, survey_of(core, request, view.state, context.outside), view.state)


def purge(
    context: Context, request: PurgeRequest, *, reason: str, progress: Progress = silent
) -> PurgeReport:
    """Erase rows or columns from all history, and collect what held them.

    A purge that was cut off left the old state or the new one: run again, it goes on with what is
    left, be it only the collection.

    Raises:
        NotFoundError, InvalidInputError: as `plan_purge` does; or something that was not named has
            the same bytes. Nothing was changed.
        ConflictError: others changed the repository, again and again. Nothing was changed.
        PermissionDenied, UnsupportedError: it can only be read here.
    """
    core = context.core
    plans: list[PurgePlan] = []

    actor = context.author
    record = purge_history(
        core,
        request,
        actor=actor,
        reason=reason,
        outside=context.outside,
        found=lambda survey: plans.append(_plan(context, survey, core.log.refresh().state)),
        progress=progress,
    )
    view = core.log.refresh()
    if not view.state.purges:
        return PurgeReport(plans[-1], None, None, 0)
    # Also where nothing was left to erase: the purge before may have been cut off.
    core.objects.forget(view.state.purges)
    # Without any grace: what a sync, or a command that was killed, left lately may hold it, too.
    rules = CollectionRules(grace_seconds=0.0)
    report = collect_garbage(core, actor=actor, rules=rules, progress=progress)
    cached = _drop_cached(context, view.state.purges)
    lazy.catalog_of(context).erase_purged()
    return PurgeReport(plans[-1], record, report, cached)


def _plan(context: Context, survey: PurgeSurvey | TensorSurvey, state: State) -> PurgePlan:
    versions: dict[str, int] = {}
    if isinstance(survey, TensorSurvey):
        for entry in survey.holders:
            for path in sorted(survey.models[entry]):
                versions[path] = versions.get(path, 0) + 1
        names = dict.fromkeys(name for gone in survey.holders.values() for name in gone)
        beyond = (*dict.fromkeys(_of_models(context.core, survey)), _ELSEWHERE)
        return PurgePlan(0, (), dict(sorted(versions.items())), beyond, tensors=tuple(names))
    for digest in survey.versions:
        for path in sorted(filter(None, survey.datasets[digest])) or ["(a stash or view)"]:
            versions[path] = versions.get(path, 0) + 1
    request, erasure = survey.request, survey.erasure
    return PurgePlan(
        len(erasure.ids) if survey.versions else 0,
        request.columns,
        dict(sorted(versions.items())),
        tuple(_beyond(context.core, survey, state)),
        tuple(sorted(set(survey.views.values()))),
        sum(map(len, erasure.classes.values())),
    )


def _of_models(core: RepositoryCore, survey: TensorSurvey) -> Iterator[str]:
    """What says that it is made of a model that loses tensors, and loses none itself."""
    nodes = lineage_nodes(core, survey.held)
    erased = {entry.digest for entry in survey.holders}
    return _told(reached(core, nodes, erased, survey.paths), ())


def _beyond(core: RepositoryCore, survey: PurgeSurvey, state: State) -> Iterator[str]:
    """What cannot be reached, as far as history tells."""
    erased = set(survey.versions)
    paths = {path for digest in erased for path in survey.datasets[digest] if path}
    nodes = lineage_nodes(core, survey.held)
    repeats = survey.erasure.repeats
    made = _told(reached(core, nodes, erased, paths), paths)
    yield from dict.fromkeys([*_sources(survey, erased), *made, *repeating(nodes, repeats)])
    for path, count in survey.copies.items():
        rows = counted(count, "row that equals an erased one", "rows that equal erased ones")
        yield f"{path}, with {rows}, under other ids: name them too, if they are copies"
    for digest, commit in walk(core.objects, [*state.refs.values(), *state.retained]):
        if repeats(commit.message) or any(map(repeats, texts_in(commit.metadata))):
            yield f"commit {digest:.12}, whose message or metadata repeats an erased text"
    yield _ELSEWHERE


def _told(found: Iterable[ReachedNode], named: Collection[str]) -> Iterator[str]:
    """In words: models at each commit, others once; views and what was named itself are erased."""
    for each in found:
        held = each.node.held
        if held.path and held.path not in named and held.entry.kind is not Kind.VIEW:
            yield str(each)


def _sources(survey: PurgeSurvey, erased: Collection[Digest]) -> Iterator[str]:
    for digest in erased:
        for edge in edges_of(survey.open(digest).root.lineage):
            if edge.relation in (IMPORTED_FROM, SYNCED_WITH):
                yield f"{edge.path}, which rows were read from"


def _drop_cached(context: Context, purged: Collection[Digest]) -> int:
    """Delete what this machine keeps of purged objects; gives the number of files."""
    machine = context.machine
    caches = (local_state(machine, Path()).cache, page_cache(machine))
    gone = sum(cache.drop_objects(purged) for cache in caches if cache is not None)
    derived = derived_cache(machine)  # their names tell nothing of the rows that they were made of
    gone += 0 if derived is None else derived.trim(0).files
    gone += renderings(machine).drop_objects(purged)
    root = context.core.backend.local_root
    for digest in purged if root is not None else ():
        part = Path(root or "") / "tmp" / (PART_PREFIX + digest)
        if part.exists():
            part.unlink(missing_ok=True)
            gone += 1
    return gone
