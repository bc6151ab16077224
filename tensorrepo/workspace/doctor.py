"""Diagnosis of machine, store and workspace: what works, what does not, what to do about it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from tensorrepo.connect import Machine, is_url, open_store
from tensorrepo.formats.common.arguments import counted
from tensorrepo.formats.dataset.external.foreign import ForeignVersion, foreign_files
from tensorrepo.formats.dataset.external.outside import Outside
from tensorrepo.formats.native.extensions import why_not_native
from tensorrepo.formats.native.rows import NATIVE
from tensorrepo.repo.backends.base import AppendsEntries, Backend, Guarantee
from tensorrepo.repo.backends.conformance import CHECKS
from tensorrepo.repo.backends.mounts import Mount, mount_of
from tensorrepo.repo.backends.probe import probe
from tensorrepo.repo.backends.sql_log import SqlLogBackend
from tensorrepo.repo.backends.trial import Trial
from tensorrepo.repo.backends.urls import SCHEMES, scheme_of
from tensorrepo.repo.changes.fsck import ObjectTotals
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, InvalidInputError, PermissionDenied, UnsupportedError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.log.checkpoints import HINT_INTERVAL, decode_hint
from tensorrepo.repo.log.log_check import CHECKPOINT, HINT
from tensorrepo.repo.log.log_slots import HINT_KEY, checkpoint_key
from tensorrepo.repo.log.repair import rewrite_checkpoint, rewrite_hint
from tensorrepo.repo.objects.envelope import Kind, ObjectSource
from tensorrepo.verbs.fsck import fsck
from tensorrepo.workspace.session import WorkspaceSession

ASKING_THREADS = 16
SHOWN_FILES = 8


def files_in_place(objects: ObjectSource, entries: Iterable[Entry]) -> list[ForeignVersion]:
    """The files outside the repository that datasets among `entries` need, by their URLs."""
    found = {
        file
        for entry in entries
        if entry.kind is Kind.DATASET
        for file in foreign_files(objects, entry.digest)
    }
    return sorted(found, key=lambda file: (file.url, file.size))


def files_text(files: list[ForeignVersion]) -> Iterator[str]:
    """Lines for people that name files in place; none without any."""
    if not files:
        return
    count, size = counted(len(files), "file"), sum(file.size for file in files)
    yield f"{count} in place of {counted(size, 'byte')}, which the repository does not hold:"
    for file in files[:SHOWN_FILES]:
        yield f"  {file.url} ({file.format}, {counted(file.size, 'byte')})"
    if len(files) > SHOWN_FILES:
        yield f"  and {len(files) - SHOWN_FILES:,} more"


def look_at(outside: Outside, files: list[ForeignVersion]) -> tuple[list[str], int]:
    """What is wrong with files in place, and how many nobody here is allowed to look at.

    Only sizes and versions are compared: a file with other times may still have its hash.
    """

    def look(file: ForeignVersion) -> str | None:
        try:
            found = outside.stat(file.url)
        except PermissionDenied:
            return None
        except Error as error:
            return str(error)
        if found.size != file.size:
            return f"{file.url}: expected {file.size} bytes, found {found.size}"
        if found.etag != file.etag and not file.hashed:
            return f"{file.url}: expected version {file.etag}, found {found.etag}"
        return ""

    with ThreadPoolExecutor(ASKING_THREADS, "outside") as threads:
        told = list(threads.map(look, files))
    return [text for text in told if text], told.count(None)


LOW_SPACE_BYTES = 1 << 30
SAFE_LOOKUPS = frozenset({"lookupcache=positive", "lookupcache=none"})


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """One thing that was looked at. `level` is "ok", "warning" or "error"."""

    what: str
    level: str
    found: str
    advice: str


_Found = tuple[str, str, str]  # level, what was found, advice


def examine(session: WorkspaceSession) -> Iterator[Diagnosis]:
    """Look at everything, one finding after the other; an error of one check stops none."""
    checks: tuple[Callable[[WorkspaceSession], _Found], ...] = (
        _repository, _store, _mount, _space, _log, _caches, _objects, _outside, _author,
        _workspace, _kernel,
    )  # fmt: skip
    for check in checks:
        try:
            found = check(session)
        except Error as error:
            found = "warning" if isinstance(error, InvalidInputError) else "error", str(error), ""
        yield Diagnosis(check.__name__.removeprefix("_"), *found)


def _kernel(_: WorkspaceSession) -> _Found:
    if NATIVE is not None:
        return "ok", "batches are gathered by code in C", ""
    return (
        "ok",
        f"batches are gathered by numpy: {why_not_native}",
        "Install tensorrepo again where there is a C compiler: streaming gets faster.",
    )


def _repository(session: WorkspaceSession) -> _Found:
    repository = session.repository
    return "ok", f"{repository.url}, id {repository.id:.12}", ""


def _store(session: WorkspaceSession) -> _Found:
    return judge_store(session.repository.backend)


def judge_store(backend: Backend) -> _Found:
    """What a store guarantees to those who commit."""
    if backend.guarantee is Guarantee.READ_ONLY:
        return "ok", "read-only", ""
    if isinstance(backend, AppendsEntries):
        return "ok", "behind a service, which alone writes to it", ""
    try:
        guarantee = probe(backend)
    except PermissionDenied as error:
        return (
            "warning",
            f"it can be read, not written: {error}",
            "Commits need the right to write.",
        )
    if guarantee is Guarantee.ATOMIC:
        return "ok", "creates are atomic: any number of writers is safe", ""
    return (
        "warning",
        "creates are not atomic here: one process may write at a time",
        "Use a local disk, S3, GCS or Azure where several people or jobs commit.",
    )


def store_trial(machine: Machine, store: str) -> Trial:
    """A trial of the store at a URL or folder, with or without a repository in it.

    Raises:
        InvalidInputError: no usable URL.
        UnsupportedError: a service, or a web server.
    """
    scheme = scheme_of(store)
    url = store if is_url(store) else str(machine.path(store))
    if SCHEMES.get(scheme) == "http":
        raise UnsupportedError(
            f"{store}: a service keeps its store to itself, and a web server is only read. Name "
            f"the store that it has; `tensorrepo doctor --repo {store}` looks at the repository."
        )
    return Trial(open_store(url, None, machine), CHECKS)


def _mount(session: WorkspaceSession) -> _Found:
    root = session.repository.backend.local_root
    if root is None:
        return "ok", "not on this machine", ""
    return judge(mount_of(root))


def judge(mount: Mount) -> _Found:
    """What a mount is worth to a repository. An NFS client may remember that a slot is absent."""
    found = f"{mount.point} is {mount.type}"
    if mount.type.startswith("nfs") and not mount.options & SAFE_LOOKUPS:
        return (
            "warning",
            f"{found}, whose client may overlook what others just wrote",
            "Mount it with the option lookupcache=positive.",
        )
    return "ok", found, ""


def _space(session: WorkspaceSession) -> _Found:
    root = session.repository.backend.local_root
    if root is None:
        return "ok", "not on this machine", ""
    free = shutil.disk_usage(root).free
    level = "ok" if free > LOW_SPACE_BYTES else "warning"
    advice = "" if level == "ok" else "A commit needs room for what it adds: free some."
    return level, f"{free / 2**30:.1f} GiB free", advice


def _log(session: WorkspaceSession) -> _Found:
    log = session.repository.log
    view = log.refresh()
    judged = log.judged(1, view.generation + 1)
    void = sum(not verdict.applied for _, verdicts in judged for verdict in verdicts)
    reason = view.state.read_only_reason or log.read_only
    where = f" in {log.backend.place}" if isinstance(log.backend, SqlLogBackend) else ""
    if reason:
        return "warning", f"{counted(view.generation, 'record')}; {reason}", ""
    note = (
        f", {counted(void, 'entry', 'entries')} without effect (`tensorrepo log --no-effect`)"
        if void
        else ""
    )
    return "ok", f"{counted(view.generation, 'record')}{where}, their chain is whole{note}", ""


def _caches(session: WorkspaceSession) -> _Found:
    """What makes opening the log fast, and may be lost or wrong: only time is lost with it."""
    log = session.repository.log
    tip = log.refresh_tip()
    newest, due = tip.view.generation, tip.checkpoint
    if tip.view.state.read_only_reason is not None:
        return "ok", "not looked at: a newer tensorrepo writes them", ""
    hint = decode_hint(log.slots.read(HINT_KEY))
    bad = []
    if newest >= HINT_INTERVAL and (hint is None or hint.generation > newest):
        bad.append("the hint is missing or wrong")
    if due and log.slots.read(checkpoint_key(due)) != log.encoded(log.view_at(due - 1).state).data:
        bad.append(f"checkpoint {due} is missing or wrong")
    if not bad:
        return "ok", "what makes opening the log fast is in order", ""
    return (
        "warning",
        f"{' and '.join(bad)}: opening is slow, nothing is lost",
        "Run `tensorrepo doctor --repair`.",
    )


def repair(session: WorkspaceSession) -> tuple[int, int | None]:
    """Write the log's hint and its newest checkpoint anew; gives the generations of both.

    Nothing else is touched: both are made from the records, which are the truth.

    Raises:
        UnsupportedError: the records say things that this version does not understand.
    """
    log = session.repository.log
    reason = log.refresh().state.read_only_reason
    if reason is not None:
        raise UnsupportedError(f"{log.backend.url} cannot be repaired here: {reason}")
    return rewrite_hint(log).generation, rewrite_checkpoint(log)


def _objects(session: WorkspaceSession) -> _Found:
    """The quick pass of `fsck`: metadata is verified, of data the sizes are compared."""
    totals = ObjectTotals()
    found = fsck(session.repository, totals, outside=session.outside)
    faults = [fault for fault in found if fault.kind not in (HINT, CHECKPOINT)]  # see `_caches`
    if not faults:
        return "ok", f"{totals.objects:,} reachable, all there and of their size", ""
    names = sorted({fault.path or f"commit {fault.commit or fault.digest:.12}" for fault in faults})
    damaged = f"{counted(len(faults), 'fault')} in {totals.objects:,} objects and the log"
    advice = (
        "`tensorrepo fsck` names columns, rows and tensors, `tensorrepo fsck --repair` fetches "
        "them from a copy of the repository."
    )
    return "error", f"{damaged}, of {', '.join(names[:SHOWN_FILES])}", advice


def _outside(session: WorkspaceSession) -> _Found:
    """Files that datasets were adopted from, of the commit that HEAD or `main` names."""
    refs = session.repository.log.refresh().state.refs
    if (session.tip() if session.workspace else refs.get("heads/main")) is None:
        return "ok", "no commits yet", ""  # there may be runs, and other branches
    tree = session.resolve().commit.tree
    entries = (entry for _, entry in session.repository.entries(tree, "datasets/"))
    files = files_in_place(session.repository.objects, entries)
    wrong, hidden = look_at(session.outside, files)
    note = f", {hidden} of them not looked at" if hidden else ""
    if wrong:
        return (
            "error",
            f"in place, but not as they were: {len(wrong)} of {len(files)} files: {wrong[0]}",
            "Put them back, or adopt the new ones.",
        )
    advice = "Allow to read them: `tensorrepo --allow-outside PREFIX doctor`." if hidden else ""
    level = "warning" if hidden else "ok"
    return level, f"{counted(len(files), 'file')} in place, which datasets need{note}", advice


def _author(session: WorkspaceSession) -> _Found:
    return "ok", session.author(), ""


def _workspace(session: WorkspaceSession) -> _Found:
    if session.workspace is None:
        return "ok", "none: the repository was named by its URL", ""
    pending = session.repository.log.pending
    unresolved = pending.unresolved() if pending else ()
    if unresolved:
        found = f"{counted(len(unresolved), 'commit')} whose outcome is unknown"
        return "warning", found, "Run `tensorrepo resolve`."
    staged = len(session.workspace.staging().entries)
    return "ok", f"{session.workspace.root}, {counted(staged, 'change')} staged", ""
