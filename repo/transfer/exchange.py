"""Clone, fetch and push between two repositories, or from a bundle.

A fetch sets ``remotes/<remote>/<branch>`` and new tags, a clone the first branch, too; a push sets
refs of the other side and what is known of them here. Each is one record at the receiver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tensorrepo.repo.changes.refs import BRANCHES, REMOTES, TAGS
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history.commits import walk
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry
from tensorrepo.repo.names import check_ref
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.tables import RecordTable, Shown, counted
from tensorrepo.repo.transfer.pace import TransferTotals
from tensorrepo.repo.transfer.receive import (
    Depth,
    HistorySource,
    TransferOptions,
    both_histories,
    has_object,
    receive,
)
from tensorrepo.repo.transfer.ref_rules import (
    MovedRef,
    RefChange,
    RefSpec,
    entries_of,
    judge,
    named_ref,
    split_moves,
    target_ref,
    tracking_ref,
)

REGISTERED = "registry/"  # refs of registered versions and their aliases
_CLONED = (TAGS, REGISTERED)  # what a clone takes under its own name


@dataclass(frozen=True, slots=True, repr=False)
class TransferReport(Shown):
    """What a transfer did.

    Attributes:
        url: the other side.
        moves: refs that were set, at the receiver.
        kept: tags that name something else here, and stay.
        totals: commits, objects and bytes that came, and how many objects were there already.
        purged: number of objects that are purged at the receiver from now on.
        records: number of records of the log that a mirror took over.
        kept_purged: number of objects that were purged at the source, where twins stand for them,
            and that the receiver still has.
    """

    url: str
    moves: tuple[MovedRef, ...]
    kept: tuple[str, ...]
    totals: TransferTotals
    purged: int = 0
    records: int = 0
    kept_purged: int = 0

    @property
    def besides(self) -> tuple[str, ...]:
        """What came beside refs and objects, in words."""
        told = []
        if self.purged:
            told.append(f"{counted(self.purged, 'object')} purged there, and here from now on")
        if self.kept_purged:
            objects = counted(self.kept_purged, "object")
            told.append(
                f"{objects} purged there, and still here: `tensorrepo purge` with the same words "
                "erases that here"
            )
        if self.records:
            told.append(f"{counted(self.records, 'record')} of the log")
        return tuple(told)

    def to_table(self) -> RecordTable:
        """A row for each ref."""
        totals = self.totals
        told = f"{self.url}: {totals.commits} commits, {totals.objects} objects, "
        told += f"{totals.bytes:,} bytes; {totals.present} objects were there already"
        return RecordTable(
            (told, *self.besides),
            ("ref", "was", "is"),
            tuple(
                (move.ref, f"{move.old or 'nothing':.12}", f"{move.new or 'nothing':.12}")
                for move in self.moves
            ),
        )


def fetch(
    source: HistorySource,
    target: RepositoryCore,
    remote: str,
    options: TransferOptions,
    *,
    specs: Sequence[str] = (),
    tags: bool = True,
    prune: bool = False,
    depth: int | None = None,
    unshallow: bool = False,
) -> TransferReport:
    """Bring what a remote has here, and note where its branches are.

    Args:
        source: the remote.
        target: the repository here.
        remote: name of the remote.
        options: how.
        specs: branches and tags that are meant, or ``NAME:BRANCH`` to set a branch here; none: all.
        tags: whether all new tags come, too.
        prune: forget branches that are gone there.
        depth: bring so many commits of each branch at least that far back, also behind where
            history ends here; what is here stays.
        unshallow: bring all of the history that ends here.

    Raises:
        InvalidInputError: all of the history is here, and `unshallow` was asked for.
    """
    wanted = _fetched(source, remote, specs)
    kept: list[str] = []
    state = target.log.refresh().state
    if unshallow and not state.shallow:
        raise InvalidInputError(f"{target.url} is not shallow: all of its history is there")
    tips = tuple(dict.fromkeys(change.new for change in wanted.values() if change.new is not None))
    near = _near(source, target, tips, depth) if tags and not unshallow else None

    def changes(view: LogView) -> list[RefChange]:
        found = dict(wanted)
        kept[:] = []
        for ref, commit in source.refs.items() if tags else ():
            if ref.startswith(TAGS):
                here = view.state.refs.get(ref)
                if here is None and (near is None or commit in near):
                    found[ref] = RefChange(ref, commit)
                elif here not in (None, commit):
                    kept.append(ref.removeprefix(TAGS))
        if prune:
            found |= {ref: RefChange(ref, None) for ref in _gone(source, view, remote)}
        return list(found.values())

    tips += tuple(source.refs[ref] for ref in source.refs if unshallow and ref.startswith(TAGS))
    is_near = depth is None and not unshallow
    deeper = None if is_near else Depth(tips, depth)
    report = _receive(source, target, changes, kept, options, f"fetch {remote}", depth=deeper)
    return replace(report, kept_purged=_kept_purged(source, target))


def _kept_purged(source: HistorySource, target: RepositoryCore) -> int:
    """Number of objects with a twin at the source that the target reads and has not purged."""
    state = target.log.refresh().state
    purged = source.supersedes.keys() & source.purging.purges.keys()
    return sum(
        old not in state.purges and has_object(target.objects, old) for old in sorted(purged)
    )


def _near(
    source: HistorySource, target: RepositoryCore, tips: Sequence[Digest], depth: int | None
) -> frozenset[Digest] | None:
    """Commits whose tags come along where history ends; None: all tags do.

    A tag of an old commit would bring all of the history that a shallow clone was to be spared.
    """
    state = target.log.refresh().state
    if depth is None and not state.shallow:
        return None
    if depth is not None:
        graph = both_histories(source, target, source.to_depth(tips, depth).shallow)
        return frozenset(digest for digest, _ in walk(graph, tips))
    graph = both_histories(source, target, source.shallow | state.shallow)
    return frozenset(digest for digest, _ in walk(graph, [*tips, *state.refs.values()]))


def clone(
    source: HistorySource,
    target: RepositoryCore,
    remote: str,
    options: TransferOptions,
    *,
    branch: str | None = None,
    depth: int | None = None,
    registered: bool = True,
) -> tuple[str, TransferReport]:
    """Fill a new repository with all branches, tags and registered versions of another one.

    With a `depth`, so many commits back of its branches at most; then the branches alone.
    Without `registered`, versions stay behind: a service writes those itself.

    Returns:
        The branch that was made here, and what came.

    Raises:
        NotFoundError: it has no branch of that name.
    """
    first = default_branch(source.refs, branch, source.url)
    named: tuple[str, ...] = _CLONED if registered else (TAGS,)
    if depth is not None:
        tips = [commit for ref, commit in source.refs.items() if ref.startswith(BRANCHES)]
        source, named = source.to_depth(tips, depth), ()

    def changes(view: LogView) -> list[RefChange]:
        found = [*_fetched(source, remote, ()).values()]
        found += [
            RefChange(ref, commit)
            for ref, commit in source.refs.items()
            if named and ref.startswith(named) and ref not in view.state.refs
        ]
        own = BRANCHES + first
        if own in source.refs and own not in view.state.refs:
            found.append(RefChange(own, source.refs[own]))
        return found

    return first, _receive(source, target, changes, [], options, f"clone {remote}")


def restore(
    source: HistorySource, target: RepositoryCore, options: TransferOptions
) -> TransferReport:
    """Bring all refs of a source here under their own names: branches, tags, runs, versions.

    Into an empty repository that makes an equal one; into an older copy it brings what is new.

    Raises:
        ConflictError: a branch here would not move forward, or a tag would move. Nothing changed.
    """
    wanted = [
        RefChange(check_ref(ref), commit)
        for ref, commit in source.refs.items()
        if not ref.startswith(REMOTES)
    ]
    return _receive(source, target, lambda _: wanted, [], options, "restore")


def push(
    source: RepositoryCore,
    target: RepositoryCore,
    specs: Sequence[str],
    options: TransferOptions,
    *,
    remote: str | None = None,
    force: bool = False,
    leased: bool = False,
    tags: bool = False,
) -> TransferReport:
    """Bring commits of this repository to another one, and set refs there: all, or none.

    Of many signed tags only some have room in the record of the others; the rest follow it.

    Args:
        source: the repository here.
        target: the other one.
        specs: ``NAME``, ``SOURCE:TARGET``, ``:TARGET`` to delete; ``+`` before one forces it.
        options: how.
        remote: name of the other one, under which it is noted where its branches are now.
        force: branches may move anywhere.
        leased: they may, where they are at what was fetched last.
        tags: all tags, too.

    Raises:
        ConflictError: a branch would not move forward. Nothing was pushed.
    """
    view = source.log.refresh()
    here = HistorySource.of(source, view)
    parsed = [RefSpec.parse(spec) for spec in specs]
    if tags:
        parsed += [
            RefSpec(ref, ref, force=False) for ref in view.state.refs if ref.startswith(TAGS)
        ]
    commits = {
        spec.source: view.state.refs[named_ref(view.state.refs, spec.source, "this repository")]
        for spec in parsed
        if spec.source
    }

    def changes(there: LogView) -> list[RefChange]:
        found = {}
        for spec in parsed:
            change = _pushed(spec, commits, view, there, target.url, force=force)
            if leased:
                seen = tracking_ref(remote, change.ref) if remote else ""
                expected = view.state.refs.get(seen)
                change = replace(change, leased=True, expected=expected)
            found[change.ref] = change
        return list(found.values())

    report = replace(_receive(here, target, changes, [], options, "push"), url=target.url)
    if remote is not None:
        _track(source, remote, report.moves, options.actor)
    return report


def default_branch(refs: Mapping[str, Digest], wanted: str | None, where: str) -> str:
    """The branch that a clone begins on: the one that is asked for, main, or the first.

    Raises:
        NotFoundError: there is none of that name.
    """
    if wanted is not None:
        return named_ref(refs, BRANCHES + wanted, where).removeprefix(BRANCHES)
    names = sorted(ref.removeprefix(BRANCHES) for ref in refs if ref.startswith(BRANCHES))
    return "main" if "main" in names or not names else names[0]


def _fetched(source: HistorySource, remote: str, specs: Sequence[str]) -> dict[str, RefChange]:
    """The refs that a fetch sets, by name: tracking ones may move anywhere."""
    if not specs:
        return {
            (ref := tracking_ref(remote, name)): RefChange(ref, commit, force=True)
            for name, commit in source.refs.items()
            if name.startswith(BRANCHES)
        }
    found = {}
    for spec in map(RefSpec.parse, specs):
        if not spec.source:
            raise InvalidInputError("a fetch deletes nothing: `tensorrepo branch -d` does")
        name = named_ref(source.refs, spec.source, source.url)
        commit = source.refs[name]
        if name.startswith(BRANCHES):
            ref = tracking_ref(remote, name)
            found[ref] = RefChange(ref, commit, force=True)
        if spec.target != spec.source or not name.startswith(BRANCHES):
            ref = target_ref({}, name, name if spec.target == spec.source else spec.target)
            found[ref] = RefChange(ref, commit, force=spec.force)
    return found


def _gone(source: HistorySource, view: LogView, remote: str) -> list[str]:
    """Refs that note where branches were that are gone at the remote."""
    space = f"{REMOTES}{remote}/"
    return [
        ref
        for ref in view.state.refs
        if ref.startswith(space) and BRANCHES + ref.removeprefix(space) not in source.refs
    ]


def _pushed(
    spec: RefSpec,
    commits: Mapping[str, Digest],
    here: LogView,
    there: LogView,
    url: str,
    *,
    force: bool,
) -> RefChange:
    if not spec.source:
        ref = named_ref(there.state.refs, spec.target, url)
        return RefChange(ref, None)
    source = named_ref(here.state.refs, spec.source, "this repository")
    plain = spec.target if spec.target != spec.source else source
    ref = target_ref(there.state.refs, source, plain)
    return RefChange(ref, commits[spec.source], force=force or spec.force)


def _track(repository: RepositoryCore, remote: str, moves: Sequence[MovedRef], actor: str) -> None:
    """Note where branches of a remote are after a push."""
    known = [move for move in moves if move.ref.startswith(BRANCHES)]

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        changes = [
            RefChange(tracking_ref(remote, move.ref), move.new, force=True) for move in known
        ]
        changes = [one for one in changes if one.new or one.ref in view.state.refs]
        moved = judge(changes, view, repository.objects)
        with ObjectWriter(repository.objects, view.state.graves) as writer:
            return entries_of(moved, writer, actor=actor, note=f"push {remote}")

    repository.append(decide)


def _receive(
    source: HistorySource,
    target: RepositoryCore,
    changes: Callable[[LogView], list[RefChange]],
    kept: list[str],
    options: TransferOptions,
    note: str,
    *,
    depth: Depth | None = None,
) -> TransferReport:
    """Copy what the changes need, then set them, decided anew at each head."""
    before = target.log.refresh()
    # Refused before anything is copied; and once more at the end, as others push, too.
    planned = judge(changes(before), before, source.objects)
    signatures = source.signatures([one.ref for one in planned if one.ref.startswith(TAGS)])
    moves: tuple[MovedRef, ...] = ()
    later: tuple[MovedRef, ...] = ()
    asked: set[str] | None = None  # None: all

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        nonlocal moves, later
        wanted = [one for one in changes(view) if asked is None or one.ref in asked]
        moves, later = split_moves(judge(wanted, view, source.objects), signatures)
        actor = options.actor
        with ObjectWriter(target.objects, view.state.graves) as writer:
            return entries_of(moves, writer, actor=actor, note=note, signatures=signatures)

    wants = [move.new for move in planned if move.new is not None]
    likely = [move.old for move in planned if move.old is not None]
    appended, totals = receive(source, target, wants, decide, options, likely=likely, depth=depth)
    purged = len(appended.view.state.purges) - len(before.state.purges)
    done = [*moves]
    while later:  # signed tags that no record had room for
        asked = {move.ref for move in later}
        receive(source, target, [one.new for one in later if one.new], decide, options)
        done += moves
    return TransferReport(source.url, tuple(done), tuple(kept), totals, purged)
