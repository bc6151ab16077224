"""Staging area of a workspace: leases, the stage of a command, and the commit of what is staged.

Objects are stored first, then a lease in the log keeps them from collection, and only then does
the staging area name them: a crash in between leaves garbage, never a name without its bytes. A
collection between the first object and the lease may have condemned some: the staging area keeps
where the log stood before them, and the fence of the commit looks at all that came since.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field

import msgspec

from tensorrepo import lazy
from tensorrepo.formats.search_index.paths import index_folder, indexes_of, moved_index
from tensorrepo.repo.changes.leases import close_leases, secure_kept
from tensorrepo.repo.changes.revisions import split_path
from tensorrepo.repo.changes.transaction import (
    CommitTransaction,
    LandedCommit,
    amend,
    begin,
    entry_digests,
    tree_of,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    CommitOutcomeUnknown,
    ConflictError,
    InvalidInputError,
    NotFoundError,
)
from tensorrepo.repo.history.commits import clean_message, is_ancestor, read_commit, walk
from tensorrepo.repo.history.merge_trees import pick_sides
from tensorrepo.repo.history.trees import (
    EMPTY_TREE,
    Entry,
    clashes,
    lookup,
    root_links,
    update,
)
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.append import append, resolve
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import CanonicalValue, LogEntry, LogRecord
from tensorrepo.repo.names import check_path
from tensorrepo.repo.objects.envelope import Kind, ObjectSource
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.workspace.session import (
    SPACES,
    NextCommit,
    WorkspaceSession,
    full_path,
    next_commit,
)
from tensorrepo.workspace.state import StagedEntry, StagingArea

LEASE_SECONDS = 14 * 24 * 3600
RENEW_SECONDS = 24 * 3600  # a lease younger than this is not renewed
MOST_NAMED = 400  # objects that a lease names; of more it names pages of a tree


def change(
    entry: Entry | None, *, rows: int = 0, size_bytes: int = 0, source: str = ""
) -> StagedEntry:
    """A staged change to `entry` (None removes), with what `status` shows beside it."""
    if entry is None:
        return StagedEntry(source=source)
    named = (entry.kind.name, entry.digest, entry.storage, entry.summary.hex())
    return StagedEntry(*named, rows, size_bytes, source)


def stage(session: WorkspaceSession, changes: Mapping[str, StagedEntry], since: int) -> None:
    """Put changes, whose objects must be durable, into the staging area, by path.

    `since` is where the log stood before their objects were put, or found reachable.

    Raises:
        InvalidInputError: a path is none, or no tree can hold it beside what the next commit has.
    """
    for path in changes:
        check_path(path)
    staging = session.here.staging()
    if staging.entries:
        earliest = min(staging.generation, since)
        staging = msgspec.structs.replace(staging, generation=earliest)
    else:  # it is pinned to where HEAD stands now
        staging = StagingArea(session.tip(), since)
    entries = {**staging.entries, **changes}
    objects = session.repository.objects
    wanted = {path: staged.entry for path, staged in entries.items()}
    for _, _, reason in clashes(objects, tree_of(objects, staging.base), wanted):
        raise InvalidInputError(f"{reason}; rename or remove one of them. Nothing was staged.")
    keep_alive(session, [staged.entry for staged in entries.values()], staging.generation)
    session.here.write_staging(
        msgspec.structs.replace(staging, entries=dict(sorted(entries.items())))
    )


def generation(session: WorkspaceSession) -> int:
    """Where the log stands."""
    return session.repository.log.refresh().generation


def carry_staging(session: WorkspaceSession, base: Digest | None) -> StagingArea:
    """What is staged, for a commit on `base`: changes go along, history that it lacks does not.

    An undo, a reset or a switch may have left the commit that staging was begun on.

    Raises:
        ConflictError: an entry that is staged is another one there. Nothing changed.
    """
    staging = session.here.staging()
    moved = carried(session, staging, base)
    if moved != staging:
        session.here.write_staging(moved)
    return moved


def carried(session: WorkspaceSession, staging: StagingArea, base: Digest | None) -> StagingArea:
    """What `carry_staging` makes of what is staged; it changes nothing."""
    objects = session.repository.objects
    if not staging.entries or staging.base is None:
        return staging
    if base is not None and is_ancestor(objects, staging.base, base):
        return staging
    return rebased(objects, staging, base)


def rebased(objects: ObjectSource, staging: StagingArea, base: Digest | None) -> StagingArea:
    """The same changes of another commit, which has the same entries where they change some."""
    old, new = tree_of(objects, staging.base), tree_of(objects, base)
    for path in staging.entries:
        if lookup(objects, old, path) != lookup(objects, new, path):
            raise ConflictError(
                f"{path} is staged as a change of commit {staging.base or 'none':.12}, and is "
                f"another one in {base or 'a branch without commits':.24}. Unstage it with "
                f"`tensorrepo restore --staged {path}` and add it again there. Nothing changed."
            )
    return StagingArea(base, staging.generation, staging.entries)


def unstage(session: WorkspaceSession, name: str | None) -> list[str]:
    """Forget what is staged at `name`, below it, or all of it (None, or ``.``); gives the paths."""
    staging = session.here.staging()
    if name is None or name.rstrip("/") == ".":
        gone = [*staging.entries]
        if not gone:
            raise NotFoundError("nothing is staged")
    else:
        wanted = (name, *(f"{space}/{name}" for space in SPACES))
        gone = [path for path in wanted if path in staging.entries]
        below = name.rstrip("/") + "/"
        gone = gone or [path for path in staging.entries if path.startswith(below)]
        if not gone:
            raise NotFoundError(f"nothing is staged at {name!r}. `tensorrepo status` lists it.")
    left = {path: staging.entries[path] for path in staging.entries.keys() - gone}
    if not left:
        release(session)
    kept = msgspec.structs.replace(staging, entries=dict(sorted(left.items())))
    session.here.write_staging(kept if left else StagingArea())
    return gone


def remove(session: WorkspaceSession, names: Iterable[str]) -> list[str]:
    """Stage the removal of entries, of datasets with their indexes; gives their paths.

    All of them are, or none.
    """
    since, following = generation(session), next_commit(session)
    paths = dict.fromkeys(_present(following, name) for name in names)
    for path in [*paths]:
        paths |= dict.fromkeys(_indexes_of(following, path))
    stage(session, dict.fromkeys(paths, change(None)), since)
    return [*paths]


def move(session: WorkspaceSession, old: str, new: str) -> tuple[str, str]:
    """Stage another path for an entry, and for indexes of a dataset. Nothing is copied."""
    since, following = generation(session), next_commit(session)
    source = _present(following, old)
    target = new if "/" in new else f"{source.partition('/')[0]}/{new}"
    check_path(target)
    if following.entry(target) is not None:
        raise ConflictError(f"{target} exists already. Remove it first, or choose another name.")
    pairs = {source: target}
    if target.startswith("datasets/"):
        pairs |= {each: moved_index(each, target) for each in _indexes_of(following, source)}
    staged = {}
    for old_path, new_path in pairs.items():
        staged[new_path] = change(following.entry(old_path), source=f"was {old_path}")
        staged[old_path] = change(None, source=f"now {new_path}")
    stage(session, staged, since)
    return source, target


def _indexes_of(following: NextCommit, path: str) -> list[str]:
    """Paths of the search indexes of a dataset, as they are staged."""
    before = following.repository.entries(following.tree, index_folder(path))
    known = {each for each, _ in before} | following.staged.keys()
    return [each for each in indexes_of(known, path) if following.entry(each) is not None]


def restore(session: WorkspaceSession, name: str, source: str | None) -> tuple[str, str, bool]:
    """Make an entry in the next commit what it is in another one.

    `name` is ``PATH``, with `source` as the other commit, or ``REF:PATH``.

    Returns:
        The entry's path, the revision as it was given, and whether something is staged now that
        was not: False when the next commit would have had it so.

    Raises:
        NotFoundError: no such commit, or no entry of that name in it.
    """
    ref, path = split_path(name)
    if (source is None) == (path is None):
        raise InvalidInputError(
            f"say once which commit is meant: `restore {path or name} --source {source or 'REF'}`"
        )
    given, since = source or ref, generation(session)
    revision, full, entry = session.find(f"{given}:{path or name}")
    following = next_commit(session)
    if following.entry(full) == entry:
        return full, given, False
    if following.before(full) == entry:
        unstage(session, full)
    else:
        stage(session, {full: change(entry, source=f"as of {revision.digest:.12}")}, since)
    return full, given, True


def keep_alive(
    session: WorkspaceSession, entries: list[Entry | None], since: int, root: Digest | None = None
) -> None:
    """Hold one lease on all that is staged: collection keeps it until the commit, or a release.

    What a long `add` had stored stays in it as well; `root` is that of the one at work. `since` is
    where the log stood before the first of all these was put.
    """
    workspace, state = session.here, session.here.state()
    unfinished = {each.root for each in workspace.unfinished().values()}
    digests = sorted(
        kept_digests(session, entries)
        | (unfinished and unfinished & held(session))
        | ({root} if root is not None else set())
    )
    lease, renewed = own_lease(session) or new_lease(), state.lease_seconds
    renewed_now = hold(session, lease, digests, since, renewed)
    if renewed_now != renewed:
        workspace.write_state(
            msgspec.structs.replace(state, lease=lease, lease_seconds=renewed_now)
        )


def kept_digests(session: WorkspaceSession, entries: Iterable[Entry | None]) -> set[Digest]:
    """What a lease on `entries` names: their objects, of many the pages of a tree of them.

    A record of the log has 64 KiB.
    """
    digests = {digest for entry in entries for digest in entry_digests(entry)}
    if len(digests) <= MOST_NAMED:
        return digests
    core = session.repository
    named = {f"{one.digest}.{one.storage or 0}": one for one in entries if one is not None}
    with ObjectWriter(core.objects, core.log.refresh().state.graves) as writer:
        root = update(writer, EMPTY_TREE, named)
        writer.flush()
    return set(root_links(root))


def new_lease() -> str:
    """The name of a lease to come."""
    return f"stage-{secrets.token_hex(8)}"


def own_lease(session: WorkspaceSession) -> str | None:
    """The lease on what is staged; one that went with a stash is that one's alone."""
    lease = session.here.state().lease
    return None if lease in {stash.lease for stash in session.here.stashes()} else lease


def hold(
    session: WorkspaceSession, lease: str, digests: list[Digest], since: int, renewed: float
) -> float:
    """Let a lease keep exactly `digests`, put after `since`, and renew one that is a day old.

    Returns:
        When it was renewed last, by this machine's clock: `renewed`, or now.

    Raises:
        CommitExpired: something of them was collected before they were kept.
    """
    now_ns = time.time_ns()
    renews = now_ns / 10**9 - renewed > RENEW_SECONDS
    txn, actor = secrets.token_hex(16), _holder(session)

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        known = view.state.leases.get(lease)
        if known is not None and sorted(known.keep) == digests and not renews:
            return ()
        secure_kept(session.repository, view, digests, since, "what is staged")
        data: dict[str, CanonicalValue] = {
            "id": lease,
            "keep": tuple(digests),
            "expires": now_ns + LEASE_SECONDS * 10**9,
        }
        opened = LogEntry(txn, "lease-open", actor, now_ns, "staged", data=data)
        if known is None:
            return (opened,)
        return (LogEntry(txn, "lease-close", actor, now_ns, data={"id": lease}), opened)

    return renewed if append(session.repository.log, decide).record is None else now_ns / 10**9


def held(session: WorkspaceSession) -> set[Digest]:
    """What the lease of the staging area keeps now, as far as it is staged or unfinished."""
    state, objects = session.repository.log.refresh().state, session.repository.objects
    lease = state.leases.get(session.here.state().lease or "")
    if lease is None:
        return set()
    kept = set(lease.keep)
    if len(session.here.staging().entries) <= MOST_NAMED // 2:
        return kept
    pages = [digest for digest in kept if objects.describe(digest).kind is Kind.TREE_PAGE]
    while pages:
        links = objects.get(pages.pop()).links
        kept.update(link.digest for link in links)
        pages += [link.digest for link in links if link.kind is Kind.TREE_PAGE]
    return kept


def release(session: WorkspaceSession) -> None:
    """Give the lease back; a lease that is gone already is fine."""
    lease = own_lease(session)
    if lease is not None:
        close_lease(session, lease)
    forget_lease(session)


def close_lease(session: WorkspaceSession, lease: str) -> None:
    """Let a lease keep nothing any more."""
    close_leases(session.repository, [lease], holder=_holder(session))


def forget_lease(session: WorkspaceSession) -> None:
    """The lease went with a commit."""
    state = session.here.state()
    session.here.write_state(msgspec.structs.replace(state, lease=None, lease_seconds=0.0))


def _holder(session: WorkspaceSession) -> str:
    try:
        return session.author()
    except InvalidInputError:
        return "somebody"  # staging needs no name; the commit will


def _present(following: NextCommit, name: str) -> str:
    for path in (name, *(f"{space}/{name}" for space in SPACES)):
        if path in following.staged and following.staged[path].kind is not None:
            return path
    return full_path(following.repository, following.tree, name)


@dataclass(frozen=True, slots=True)
class CommitResult:
    """What `commit_staged` did: `made` is new; `earlier` was made by a command that was cut off.

    Both None: nothing is staged, or what is staged changes nothing.
    """

    made: LandedCommit | None = None
    earlier: Digest | None = None


def commit_staged(session: WorkspaceSession, message: str) -> CommitResult:
    """Commit what is staged to the workspace's branch, merging when the branch moved.

    Raises:
        ConflictError: others changed the same, or HEAD is detached. Staging is kept.
        CommitOutcomeUnknown: of this commit, or of an earlier one that cannot be settled.
    """
    workspace = session.here
    settle_pending(session)
    earlier = forget_committed(session)
    staging, head = workspace.staging(), workspace.state().head
    if not staging.entries:
        return CommitResult(earlier=earlier)
    if head.branch is None:
        raise ConflictError(
            f"HEAD is detached at {head.commit:.12}. Run `tensorrepo switch -c NAME --keep` "
            "to make a branch here, then commit."
        )
    if not message.strip():
        raise InvalidInputError("a commit needs a message: `tensorrepo commit -m MESSAGE`")
    made = _commit(session, carry_staging(session, session.tip()), head.branch, message)
    if made is not None:
        _empty(session)
    return CommitResult(made=made)


def amend_staged(session: WorkspaceSession, message: str | None) -> CommitResult:
    """Put a commit with what is staged in the place of the one at HEAD, which must be one's own.

    `message` None keeps the one it has.

    Raises:
        ConflictError: that commit is somebody else's, or the branch moved. Staging is kept.
        NotFoundError: there is no commit yet.
    """
    workspace, objects = session.here, session.repository.objects
    settle_pending(session)
    earlier = forget_committed(session)
    if earlier is not None:
        return CommitResult(earlier=earlier)
    branch, head = session.branch(), amendable(session)
    old = read_commit(objects, head)
    staging = workspace.staging()
    told = old.message if message is None else clean_message(message)
    if not told.strip():
        raise InvalidInputError("a commit needs a message: `tensorrepo commit --amend -m MESSAGE`")
    signs = session.repository.policy.signer is not None and old.signature is None
    if not staging.entries and told == old.message and not signs:
        return CommitResult()
    if staging.entries:
        staging = rebased(objects, staging, head)
    pin = session.repository.log.view_at(staging.generation) if staging.entries else None
    with begin(session.repository, branch, pin=pin, base=head) as transaction:
        _fill(transaction, staging)
        lease = _lease_of(session, staging) if staging.entries else None
        author = session.author()
        made = amend(transaction, told, author=author, closes_lease=lease)
    _empty(session)
    return CommitResult(made=made)


def amendable(session: WorkspaceSession) -> Digest:
    """The commit at HEAD, if it is one's own: others may have built on those of others.

    Raises:
        ConflictError: it is somebody else's.
        NotFoundError: there is none.
    """
    branch, head = session.branch(), session.tip()
    if head is None:
        raise NotFoundError(f"branch {branch!r} has no commit to amend: `tensorrepo commit`")
    commit = read_commit(session.repository.objects, head)
    if commit.author != session.author():
        raise ConflictError(
            f"commit {head:.12}, the head of branch {branch!r}, is not yours but "
            f"{commit.author}'s. Make one of your own with `tensorrepo commit`, or take that one "
            f"back with `tensorrepo revert {head:.12}`. Nothing changed."
        )
    return head


def _empty(session: WorkspaceSession) -> None:
    """Forget what is staged, for it is committed: files that were added are those of a commit."""
    workspace = session.here
    files = workspace.files()
    if files != workspace.tracked():
        workspace.write_tracked(files)
    workspace.write_staging(StagingArea())
    forget_lease(session)


def forget_committed(session: WorkspaceSession) -> Digest | None:
    """Empty a staging area that is committed already; gives that commit, None when it is not."""
    commit = find_committed(session)
    if commit is not None:
        _empty(session)
    return commit


def find_committed(session: WorkspaceSession) -> Digest | None:
    """The commit that holds what is staged; None when there is none yet."""
    staging, lease = session.here.staging(), session.here.state().lease
    log = session.repository.log
    view = log.refresh()
    if not staging.entries or lease is None or lease in view.state.leases:
        return None
    return _closing(log.records(staging.generation + 1, view.generation + 1), lease)


def _closing(records: Iterable[LogRecord], lease: str) -> Digest | None:
    """The newest commit whose record closes `lease`."""
    found = None
    for record in records:
        for closed in record.entries:
            if closed.kind == "lease-close" and closed.data.get("id") == lease:
                beside = (each for each in record.entries if each.txn == closed.txn)
                made = [each for each in beside if each.kind in ("commit", "ref-reset")]
                found = made[0].updates[0].new if made else None
    return found


def settle_pending(session: WorkspaceSession) -> None:
    """Make sure what became of every earlier append of this workspace, before another one."""
    log = session.repository.log
    for one in log.pending.unresolved() if log.pending else ():
        if resolve(log, one.txn, one.generation, settle=True) == "unknown":
            raise CommitOutcomeUnknown(
                f"whether an earlier commit is in log record {one.generation} is still not known. "
                f"Nothing new was tried: run `tensorrepo resolve {one.txn} --settle` first.",
                txn=one.txn,
                generation=one.generation,
            )


def _commit(
    session: WorkspaceSession, staging: StagingArea, branch: str, message: str
) -> LandedCommit | None:
    lease = _lease_of(session, staging)
    pin = session.repository.log.view_at(staging.generation)
    with begin(session.repository, branch, pin=pin, base=staging.base) as transaction:
        transaction.base = staging.base  # None, too: an undo may have left the branch without one
        _fill(transaction, staging)
        return transaction.commit(message, author=session.author(), closes_lease=lease)


def _lease_of(session: WorkspaceSession, staging: StagingArea) -> str | None:
    """The lease on what is staged, which the commit closes; opened anew where it is gone."""
    lease = own_lease(session)
    if lease is None or lease not in session.repository.log.refresh().state.leases:
        entries = [staged.entry for staged in staging.entries.values()]
        keep_alive(session, entries, staging.generation)
        lease = session.here.state().lease
    return lease


def _fill(transaction: CommitTransaction, staging: StagingArea) -> None:
    for path, change in staging.entries.items():
        if change.entry is None:
            transaction.remove(path)
        else:
            transaction.stage(path, change.entry, since=staging.generation)


STRATEGIES = ("fail", "ours", "theirs")  # a merge also blends models, which no revert undoes


def check_strategy(strategy: str) -> None:
    """Raise InvalidInputError that names the strategies for conflicts."""
    if strategy not in STRATEGIES:
        raise InvalidInputError(f"no strategy {strategy!r}: there are {', '.join(STRATEGIES)}")


def merge_strategies(
    session: WorkspaceSession, given: Iterable[str], other: str
) -> tuple[str, dict[str, str]]:
    """The strategy of all paths, and those of single ones: ``STRATEGY`` or ``PATH=STRATEGY`` each.

    `other` is the ref that is merged.

    Raises:
        InvalidInputError: no such strategy.
        NotFoundError: a path that neither side has.
    """
    general, by_path = "fail", {}
    for text in given:
        name, _, strategy = text.rpartition("=")
        if strategy not in STRATEGIES and strategy not in lazy.METHODS:
            known = ", ".join((*STRATEGIES, *lazy.METHODS))
            raise InvalidInputError(f"no strategy {strategy!r}: there are {known}")
        if not name:
            general = strategy
            continue
        try:
            _, path, _ = session.find(name)
        except NotFoundError:
            _, path, _ = session.find(f"{other}:{name}")
        by_path[path] = strategy
    return general, by_path


def refuse_staged(session: WorkspaceSession) -> None:
    """Raise ConflictError when something is staged: a merge or pick would mix with it."""
    if session.here.staging().entries:
        raise ConflictError(
            "changes are staged: `tensorrepo commit` them first, or forget them with "
            "`tensorrepo restore --staged`"
        )


def prepare(
    session: WorkspaceSession, commits: Iterable[Digest], *, revert: bool, mainline: int | None
) -> None:
    """Make sure that every one of `commits` can be tried, before the first of them is.

    Raises:
        ConflictError: something is staged.
        InvalidInputError: a merge without `mainline`, or no such parent.
        CommitOutcomeUnknown: of an earlier commit. It may be what is to be picked now.
    """
    refuse_staged(session)
    settle_pending(session)
    for commit in commits:
        pick_sides(session.repository.objects, commit, revert=revert, mainline=mainline)


def commits_meant(session: WorkspaceSession, words: Iterable[str]) -> list[Digest]:
    """The commits that `words` name, in their order; ``A..B`` is its commits, the oldest first.

    Raises:
        InvalidInputError: a range without a commit, or one commit named twice.
    """
    found: list[Digest] = []
    for word in words:
        old, dots, new = word.partition("..")
        if dots:
            found += _between(session, word, old or "HEAD", new or "HEAD")
        else:
            found.append(session.resolve(word).digest)
    twice = next((digest for digest in found if found.count(digest) > 1), None)
    if twice is not None:
        raise InvalidInputError(f"commit {twice:.12} is named twice: a change is picked once")
    return found


def _between(session: WorkspaceSession, word: str, old: str, new: str) -> list[Digest]:
    tips, hidden = [session.resolve(new).digest], [session.resolve(old).digest]
    newest_first = walk(session.repository.objects, tips, hidden=hidden)
    found = [digest for digest, _ in newest_first][::-1]
    if not found:
        raise InvalidInputError(f"{word}: {old} has all commits of {new}")
    return found


@dataclass(slots=True)
class WorkspaceStage:
    """What one command adds to the staging area.

    Attributes:
        session: workspace and repository of the command.
        before: what is staged already, and on which commit.
        objects: stores what the command makes.
        since: log generation before the first of these objects was stored.
        changes: staged entries by path.
        leases: leases on what this command stages, closed after it.
    """

    session: WorkspaceSession
    before: NextCommit
    objects: ObjectWriter
    since: int
    changes: dict[str, StagedEntry] = field(default_factory=dict)
    leases: list[str] = field(default_factory=list)

    def entry(self, path: str) -> Entry | None:
        return self.changes[path].entry if path in self.changes else self.before.entry(path)

    def stage(self, path: str, entry: Entry, *, since: int | None = None) -> None:
        # One generation holds for all that is staged. With 0, objects that were collected and
        # stored anew before would count as condemned: what `add` stored yesterday would expire.
        if since:
            self.since = min(self.since, since)
        self.changes[path] = change(entry)

    def describe(self, path: str, *, rows: int = 0, size_bytes: int = 0, source: str = "") -> None:
        """What `status` shows beside a staged entry."""
        entry = self.changes[path].entry
        self.changes[path] = change(entry, rows=rows, size_bytes=size_bytes, source=source)

    def drop_if_unchanged(self, path: str) -> bool:
        """Forget an entry that is what was there before. True when it differs, and stays."""
        before, after = self.before.entry(path), self.changes[path].entry
        if before is None or after is None or before.digest != after.digest:
            return True
        del self.changes[path]
        return False


@contextmanager
def begin_stage(session: WorkspaceSession) -> Iterator[WorkspaceStage]:
    """The stage of one command, in effect when its ``with`` ends; nothing changes on an error."""
    forget_committed(session)  # what a command that was cut off had committed
    view = session.repository.log.refresh()
    writer = ObjectWriter(session.repository.objects, view.state.graves)
    made = WorkspaceStage(session, next_commit(session), writer, view.generation)
    try:
        yield made
        writer.flush()
    except BaseException:
        writer.abort()
        raise
    if made.changes:
        stage(session, made.changes, made.since)
    if made.leases:
        close_leases(session.repository, made.leases, holder=_holder(session))
