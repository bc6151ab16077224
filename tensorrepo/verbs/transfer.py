"""Clone, fetch, push, pull and promotion between the repository here and others.

The other side is the name of a remote, a URL, a folder or a bundle; its credentials come from the
environment. The command line and the SDK call these with what they know of this machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from tensorrepo.connect import Machine, connect, create, is_url, whole_database
from tensorrepo.formats.common.arguments import byte_size
from tensorrepo.formats.runs.run_record import RUNS
from tensorrepo.remotes import ORIGIN, Remotes, whole_url
from tensorrepo.repo.backends.registry import open_backend
from tensorrepo.repo.changes import gc_fence, merge_branches, refs
from tensorrepo.repo.changes.merge_branches import MergeOutcome
from tensorrepo.repo.changes.refs import BRANCHES, REMOTES
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.changes.revisions import Head, resolve
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import (
    ConflictError,
    Error,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    UnsupportedError,
)
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.reader import LogView
from tensorrepo.repo.log.records import LogEntry
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.writer import ObjectWriter
from tensorrepo.repo.transfer import exchange
from tensorrepo.repo.transfer.bundle import Bundle, is_bundle
from tensorrepo.repo.transfer.exchange import TransferReport
from tensorrepo.repo.transfer.lazy_clone import complete, follow_origin, lazily, promise
from tensorrepo.repo.transfer.mirror import begin_mirror, follow
from tensorrepo.repo.transfer.pace import RateLimit, TransferTotals
from tensorrepo.repo.transfer.promotion import Promotion, note_at_origin
from tensorrepo.repo.transfer.promotion import promote as promote_entry
from tensorrepo.repo.transfer.receive import HistorySource, TransferOptions
from tensorrepo.repo.transfer.ref_rules import (
    MovedRef,
    RefChange,
    entries_of,
    judge,
    tracking_ref,
)
from tensorrepo.workspace.session import DEFAULT_URL, full_path, start_workspace
from tensorrepo.workspace.state import Workspace, find_workspace

Progress = Callable[[TransferTotals], None]


@dataclass(frozen=True, slots=True)
class Here:
    """The repository that is worked in, on this machine.

    Attributes:
        machine: where this process runs.
        core: the repository.
        config: settings of the workspace, if there is one.
    """

    machine: Machine
    core: RepositoryCore
    config: Path | None = None

    @property
    def remotes(self) -> Remotes:
        """Other repositories that are named here."""
        name, copy = self.core.id, self.core.copy
        if copy is not None and copy.kind == "mirror":  # it has the id of its origin
            name = f"{name}@{copy.id}"
        return Remotes.of(self.machine, self.core.url, name, self.config)


def transfer_options(
    machine: Machine,
    actor: str,
    *,
    limit_rate: int | str | None = None,
    progress: Progress = lambda _: None,
) -> TransferOptions:
    """How objects are moved. `limit_rate`: bytes a second, such as ``"10MB"``."""
    limit = rate_limit(limit_rate)
    return TransferOptions(actor, machine.cache_folder / "parts", limit, progress)


def rate_limit(text: int | str | None) -> RateLimit:
    """So many bytes a second, such as ``"10MB"``; None: as fast as it goes."""
    rate = None if text is None else byte_size("limit_rate", text)
    if rate == 0:
        raise InvalidInputError("limit_rate is 0: nothing would ever come. Leave it out.")
    return RateLimit(rate)


@contextmanager
def opened_source(machine: Machine, url: str) -> Iterator[HistorySource]:
    """What a repository or a bundle has to give."""
    if not is_url(url) and not Path(url).exists():
        raise NotFoundError(f"there is no file or folder {url}: neither a repository nor a bundle")
    if not is_url(url) and is_bundle(Path(url)):
        bundle = Bundle(Path(url))
        try:
            yield bundle.source()
        finally:
            bundle.close()
    else:
        yield HistorySource.of(connect(url, None, machine))


@dataclass(frozen=True, slots=True)
class Cloned:
    """A clone that was made: the repository, its branch, and the workspace on it, if any.

    Attributes:
        left_out: number of refs of registered versions, which a service writes itself.
        left_runs: number of runs that stay at the origin, with their files and checkpoints.
    """

    core: RepositoryCore
    branch: str | None
    workspace: Workspace | None
    report: TransferReport
    left_out: int = 0
    left_runs: int = 0


@dataclass(frozen=True, slots=True)
class CloneRequest:
    """What is to be cloned, and how.

    Attributes:
        url: the origin.
        place: folder of the workspace, or URL of the repository where there is to be none.
        workspace: whether a workspace is made.
        mirror: whether it is to have the log of the origin.
        lazy: whether data stays at the origin until it is read.
        branch: branch that it begins on; None: main.
        depth: number of commits of each branch that are copied at most.
        remote: what the origin is called.
        log: SQL database that its log is to be in; None: it lies with the rest.
    """

    url: str
    place: str
    workspace: bool = True
    mirror: bool = False
    lazy: bool = False
    branch: str | None = None
    depth: int | None = None
    remote: str = ORIGIN
    log: str | None = None


def clone(machine: Machine, request: CloneRequest, options: TransferOptions) -> Cloned:
    """Copy a repository; where an earlier call was cut off, go on.

    Raises:
        ConflictError: there is something else at the place.
        NotFoundError: there is no repository at the URL, or no such branch in it.
    """
    request = replace(request, url=whole_url(machine, request.url))
    if request.mirror:
        return _clone_mirror(machine, request, options)
    if request.lazy and not is_url(request.url) and is_bundle(Path(request.url)):
        raise InvalidInputError(
            f"{request.url} is a bundle, which may be gone when data is read: clone it whole"
        )
    with opened_source(machine, request.url) as source:
        exchange.default_branch(source.refs, request.branch, source.url)  # before anything is made
        core, workspace = _place_of_clone(machine, request)
        here = Here(machine, core, None if workspace is None else workspace.config_file)
        _begin_clone(here, request, source)
        if request.lazy:
            core = _reopened(here)
            options = lazily(options)
        at_service = core.url.startswith(("http://", "https://"))
        branch, report = exchange.clone(
            source,
            core,
            request.remote,
            options,
            branch=request.branch,
            depth=request.depth,
            registered=not at_service,
        )
        versions = sum(ref.startswith(exchange.REGISTERED) for ref in source.refs)
        runs = {ref.rpartition("/")[0] for ref in source.refs if ref.startswith(RUNS)}
    if workspace is not None:
        workspace.set_head(Head(branch=branch))
    return Cloned(core, branch, workspace, report, versions if at_service else 0, len(runs))


def fetch(
    here: Here,
    remote: str | None,
    options: TransferOptions,
    *,
    specs: Sequence[str] = (),
    tags: bool = True,
    prune: bool = False,
    depth: int | None = None,
    unshallow: bool = False,
) -> TransferReport:
    """Bring what a remote has; a mirror takes over its origin's log."""
    name, url = here.remotes.find(remote)
    if depth is not None and unshallow:
        raise InvalidInputError("a depth and all of the history: ask for one of both")
    if here.core.copy is not None and here.core.copy.kind == "mirror":
        if depth is not None or unshallow:
            raise InvalidInputError(f"{here.core.url} is a mirror, which has all of its origin")
        return _follow(here, url, options)
    before = len(here.core.log.refresh().state.purges)
    if here.core.copy is not None:
        options = lazily(options)
    with opened_source(here.machine, url) as source:
        followed = _follow_origin(here.core, source, options)
        report = exchange.fetch(
            source,
            here.core,
            name or _name_of(url),
            options,
            specs=specs,
            tags=tags,
            prune=prune,
            depth=depth,
            unshallow=unshallow,
        )
    report.totals.add(followed)
    return replace(report, purged=len(here.core.log.refresh().state.purges) - before)


def _follow_origin(
    core: RepositoryCore, source: HistorySource, options: TransferOptions
) -> TransferTotals:
    """Where a lazy clone fetches from its origin: take over what that purged, or stored anew."""
    if core.copy is None or core.copy.kind != "lazy" or core.copy.origin != source.id:
        return TransferTotals()
    return follow_origin(source, core, options)


def fetch_data(here: Here, options: TransferOptions) -> TransferTotals:
    """Fetch all data that a lazy clone left at its origin."""
    for url in here.remotes.urls().values() if here.core.copy is not None else ():
        try:
            origin = connect(url, None, here.machine)
        except Error:
            continue  # where it is the origin, `complete` tells that nothing comes from there
        _follow_origin(here.core, HistorySource.of(origin), options)
    return complete(here.core, options)


def push(
    here: Here,
    remote: str | None,
    specs: Sequence[str],
    options: TransferOptions,
    *,
    force: bool = False,
    lease: bool = False,
    tags: bool = False,
) -> TransferReport:
    """Bring commits to a remote, and set its refs."""
    name, url = here.remotes.find(remote)
    if lease and name is None:
        raise InvalidInputError(
            f"--force-with-lease needs to know what was fetched from {url} last: give it a name "
            "with `tensorrepo remote add`, and fetch"
        )
    if not is_url(url) and is_bundle(Path(url)):
        raise UnsupportedError(f"{url} is a bundle: `tensorrepo bundle create` makes a new one")
    try:
        target = connect(url, None, here.machine)
    except NotFoundError as error:
        raise NotFoundError(
            f"{error} `tensorrepo clone {here.core.url} {url}` makes a copy of this one there."
        ) from error
    return exchange.push(
        here.core, target, specs, options, remote=name, force=force, leased=lease, tags=tags
    )


def pull(
    here: Here, remote: str | None, branch: str, options: TransferOptions, *, author: str
) -> tuple[TransferReport, MergeOutcome]:
    """Fetch, and merge the branch of the same name into the one here.

    Raises:
        NotFoundError: the remote has no such branch.
        ConflictError: both changed the same. What was fetched stays; the branch did not move.
    """
    report = fetch(here, remote, options)
    name, url = here.remotes.find(remote)
    state = here.core.log.refresh().state
    theirs = state.refs.get(tracking_ref(name or _name_of(url), BRANCHES + branch))
    if theirs is None:
        raise NotFoundError(f"{url} has no branch {branch!r}: `tensorrepo push` makes it there")
    if BRANCHES + branch not in state.refs:
        refs.create_branch(here.core, branch, theirs, actor=author)
        return report, MergeOutcome(forwarded=theirs)
    called = f"{name or _name_of(url)}/{branch}"
    outcome = merge_branches.merge(
        here.core, branch, theirs, author=author, message=f"Merge {called} into {branch}",
        called=called,
    )  # fmt: skip
    return report, outcome


def promote(
    source: RepositoryCore,
    target: RepositoryCore,
    path: str,
    ref: str,
    options: TransferOptions,
    *,
    named: str | None = None,
    branch: str = "main",
    message: str | None = None,
    warn: Callable[[str], None] = lambda _: None,
) -> Promotion:
    """Bring one entry of a commit to another repository, without its history.

    Args:
        source: the origin.
        target: the receiver.
        path: path of the entry; ``datasets/`` and the like may be left out.
        ref: the commit at the origin.
        options: how; the actor is the author of the commit.
        named: name at the receiver; None: the same.
        branch: branch of the receiver.
        message: message of the commit.
        warn: told where the origin could not note it.
    """
    revision = resolve(source, ref)
    whole = full_path(source, revision.commit.tree, path, where=f"in {ref} of {source.url}")
    entry = source.entry(revision.commit.tree, whole)
    assert entry is not None, "full_path gives paths that exist"
    if named is not None and "/" not in named:
        named = f"{whole.partition('/')[0]}/{named}"
    promotion = promote_entry(
        source, revision.digest, whole, entry, target, options,
        named=named, branch=branch, message=message,
    )  # fmt: skip
    try:
        note_at_origin(source, promotion, target.id, options.actor)
    except (ConflictError, PermissionDenied, UnsupportedError) as error:
        warn(f"{source.url} could not note that {whole} went to {target.url}: {error}")
    return promotion


def remove_remote(here: Here, name: str, actor: str) -> list[str]:
    """Forget a remote, and where its branches were."""
    here.remotes.remove(name)
    space, gone = f"{REMOTES}{name}/", list[str]()

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        gone[:] = [ref for ref in view.state.refs if ref.startswith(space)]
        changes = [RefChange(ref, None) for ref in gone]
        return _entries(here.core, changes, view, actor, f"remote rm {name}")

    here.core.append(decide)
    return gone


def rename_remote(here: Here, old: str, new: str, actor: str) -> None:
    """Give a remote another name, and so what notes where its branches were."""
    here.remotes.rename(old, new)
    space = f"{REMOTES}{old}/"

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        held = {ref: at for ref, at in view.state.refs.items() if ref.startswith(space)}
        changes = [RefChange(ref, None) for ref in held]
        changes += [
            RefChange(f"{REMOTES}{new}/{ref.removeprefix(space)}", at, force=True)
            for ref, at in held.items()
        ]
        return _entries(here.core, changes, view, actor, f"remote rename {old} {new}")

    here.core.append(decide)


def bundle_refs(
    core: RepositoryCore,
    names: Sequence[str],
    *,
    everything: bool = False,
    head: Head | None = None,
) -> tuple[dict[str, Digest], list[Digest]]:
    """Refs that a bundle is of, and commits that its receiver has: ``^NAME``, or ``A..B``.

    `head` is what ``HEAD`` means; None where there is no workspace.
    """
    resolved = partial(resolve, core, head=head)
    state = core.log.refresh().state
    if everything:
        kept = {ref: at for ref, at in state.refs.items() if not ref.startswith(REMOTES)}
        return dict(kept), [resolved(name[1:]).digest for name in names if name[:1] == "^"]
    wanted: dict[str, Digest] = {}
    without: list[Digest] = []
    for name in names or ("main",):
        hidden, dots, shown = name.partition("..")
        if name.startswith("^"):
            without.append(resolved(name[1:]).digest)
            continue
        if dots:
            without.append(resolved(hidden or "HEAD").digest)
        revision = resolved((shown or "HEAD") if dots else name)
        if revision.ref is None:
            raise InvalidInputError(
                f"{name!r}: a bundle holds branches and tags. Make a branch or a tag of it first."
            )
        wanted[revision.ref] = revision.digest
    return wanted, without


def unbundle(
    here: Here,
    path: Path,
    options: TransferOptions,
    *,
    named: str | None = None,
    everything: bool = False,
) -> TransferReport:
    """Bring what is in a bundle here: as branches of a remote of that name, or as it was.

    Args:
        here: the receiver.
        path: the bundle.
        options: how.
        named: name of the remote; None: that of the file.
        everything: all refs under their own names, so that an empty repository becomes an equal
            one.

    Raises:
        ConflictError: with `everything`, where a branch here would not move forward.
        NotFoundError: it needs commits that are not here.
        CorruptError: an object of it is damaged. No ref was set.
    """
    bundle = Bundle(path)
    try:
        state = here.core.log.refresh().state
        missing = [each for each in bundle.contents.needs if not _has(here.core, state, each)]
        if missing:
            raise NotFoundError(
                f"{path} continues commit {missing[0]:.12}, which is not here: bring the bundle "
                "before it first, or make one of the whole history"
            )
        if everything:
            return exchange.restore(bundle.source(), here.core, options)
        return exchange.fetch(bundle.source(), here.core, named or _name_of(str(path)), options)
    finally:
        bundle.close()


def _has(core: RepositoryCore, state: State, commit: Digest) -> bool:
    """Whether a commit is here, and whole."""
    try:
        return gc_fence.reachable(core.objects, state, commit)
    except NotFoundError:
        return False


def _entries(
    core: RepositoryCore, changes: Sequence[RefChange], view: LogView, actor: str, note: str
) -> tuple[LogEntry, ...]:
    with ObjectWriter(core.objects, view.state.graves) as writer:
        return entries_of(judge(changes, view, core.objects), writer, actor=actor, note=note)


def _name_of(url: str) -> str:
    """What a place without a name is called in refs: its last component."""
    place = url.rstrip("/").removesuffix(f"/{DEFAULT_URL}")
    last = place.rpartition("/")[2].partition(".")[0]
    plain = "".join(each if each.isalnum() or each in "_-" else "-" for each in last).lstrip("-")
    return plain or "other"


def _place_of_clone(
    machine: Machine, request: CloneRequest
) -> tuple[RepositoryCore, Workspace | None]:
    """The repository that is to be filled, made or found there."""
    if not request.workspace:
        try:
            return create(request.place, None, machine, log=request.log), None
        except ConflictError:
            return connect(request.place, None, machine), None
    root = Path(request.place)
    held = find_workspace(root) if root.is_dir() else None
    if held is not None and held.root == root.resolve():
        store = held.state().url
        url = store if is_url(store) else str(held.root / store)
        return connect(url, None, machine, pending=held.folder / "pending"), held
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ConflictError(f"{root} is there already, and not empty. Name another folder.")
    root.mkdir(parents=True, exist_ok=True)
    log = None if request.log is None else whole_database(request.log, machine)
    started = start_workspace(replace(machine, cwd=root), None, force=True, log=log)
    return started.repository, started.workspace


def _begin_clone(here: Here, request: CloneRequest, source: HistorySource) -> None:
    """Name the origin first: by that a clone that was cut off is known when it is taken up."""
    remotes, url = here.remotes, whole_url(here.machine, request.url)
    known = remotes.urls().get(request.remote)
    begun = any(ref.startswith(BRANCHES) for ref in here.core.log.refresh().state.refs)
    if begun or known not in (None, url):
        raise ConflictError(
            f"{here.core.url} is a repository already. `tensorrepo fetch` brings it up to date; "
            "to clone, name another place."
        )
    if known is None:
        remotes.add(request.remote, url)
    if request.lazy and here.core.copy is None:
        promise(here.core.backend, source.id)


def _reopened(here: Here) -> RepositoryCore:
    pending = None if here.config is None else here.config.parent / "pending"
    return connect(here.core.url, None, here.machine, pending=pending)


def _clone_mirror(machine: Machine, request: CloneRequest, options: TransferOptions) -> Cloned:
    origin = connect(request.url, None, machine)
    backend = open_backend(request.place, environment=machine.environment)
    begin_mirror(origin, backend)
    here = Here(machine, connect(request.place, None, machine))
    if request.remote not in here.remotes.urls():
        here.remotes.add(request.remote, request.url)
    return Cloned(here.core, None, None, _follow(here, request.url, options))


def _follow(here: Here, url: str, options: TransferOptions) -> TransferReport:
    origin = connect(url, None, here.machine)
    old = here.core.log.refresh().state
    report = follow(origin, here.core, options)
    new = here.core.log.refresh().state
    moves = tuple(
        MovedRef(ref, old.refs.get(ref), new.refs.get(ref))
        for ref in sorted(old.refs.keys() | new.refs.keys())
        if old.refs.get(ref) != new.refs.get(ref)
    )
    purged = len(new.purges) - len(old.purges)
    return TransferReport(origin.url, moves, (), report.totals, purged, report.records)
