"""What works here, what does not, and what to do about it?"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorrepo.formats.native.extensions import why_not_native
from tensorrepo.formats.native.rows import NATIVE
from tensorrepo.repo.backends.base import Guarantee
from tensorrepo.repo.backends.mounts import mount_of
from tensorrepo.repo.backends.probe import probe
from tensorrepo.repo.checkpoints import HINT_INTERVAL, decode_hint
from tensorrepo.repo.errors import Error, InvalidInputError, UnsupportedError
from tensorrepo.repo.fence import closure
from tensorrepo.repo.mend import rewrite_checkpoint, rewrite_hint
from tensorrepo.repo.slots import HINT_KEY, checkpoint_key
from tensorrepo.workspace.outside import files_in_place, look_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensorrepo.repo.backends.mounts import Mount
    from tensorrepo.workspace.session import Session

LOW_SPACE_BYTES = 1 << 30
SAFE_LOOKUPS = frozenset({"lookupcache=positive", "lookupcache=none"})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `level` is "ok", "warning" or "error"."""

    what: str
    level: str
    found: str
    advice: str = ""


def examine(session: Session) -> Iterator[Finding]:
    """Look at everything, one finding after the other; an error of one check stops none."""
    checks: tuple[tuple[str, Callable[[Session], Finding]], ...] = (
        ("repository", _repository),
        ("store", _store),
        ("mount", _mount),
        ("space", _space),
        ("log", _log),
        ("caches", _caches),
        ("objects", _objects),
        ("outside", _outside),
        ("author", _author),
        ("workspace", _workspace),
        ("kernel", _kernel),
    )
    for what, check in checks:
        try:
            yield check(session)
        except InvalidInputError as error:
            yield Finding(what, "warning", str(error))
        except Error as error:
            yield Finding(what, "error", str(error))


def _kernel(_: Session) -> Finding:
    if NATIVE is not None:
        return Finding("kernel", "ok", "batches are gathered by code in C")
    return Finding(
        "kernel",
        "ok",
        f"batches are gathered by numpy: {why_not_native}",
        "Install tensorrepo again where there is a C compiler: streaming gets faster.",
    )


def _repository(session: Session) -> Finding:
    repository = session.repository
    return Finding("repository", "ok", f"{repository.url}, id {repository.id:.12}")


def _store(session: Session) -> Finding:
    backend = session.repository.backend
    if backend.guarantee is Guarantee.READ_ONLY:
        return Finding("store", "ok", "read-only")
    guarantee = probe(backend)
    if guarantee is Guarantee.ATOMIC:
        return Finding("store", "ok", "creates are atomic: any number of writers is safe")
    return Finding(
        "store",
        "warning",
        "creates are not atomic here: one process may write at a time",
        "Use a local disk, S3, GCS or Azure where several people or jobs commit.",
    )


def _mount(session: Session) -> Finding:
    root = session.repository.backend.local_root
    return Finding("mount", "ok", "not on this machine") if root is None else judge(mount_of(root))


def judge(mount: Mount) -> Finding:
    """What a mount is worth to a repository. An NFS client may remember that a slot is absent."""
    found = f"{mount.point} is {mount.type}"
    if mount.type.startswith("nfs") and not mount.options & {
        "lookupcache=positive",
        "lookupcache=none",
    }:
        return Finding(
            "mount",
            "warning",
            f"{found}, whose client may overlook what others just wrote",
            "Mount it with the option lookupcache=positive.",
        )
    return Finding("mount", "ok", found)


def _space(session: Session) -> Finding:
    root = session.repository.backend.local_root
    if root is None:
        return Finding("space", "ok", "not on this machine")
    free = shutil.disk_usage(root).free
    level = "ok" if free > LOW_SPACE_BYTES else "warning"
    advice = "" if level == "ok" else "A commit needs room for what it adds: free some."
    return Finding("space", level, f"{free / 2**30:.1f} GiB free", advice)


def _log(session: Session) -> Finding:
    log = session.repository.log
    view = log.refresh()
    void = 0
    for _, verdicts in log.judged(1, view.generation + 1):
        void += sum(not verdict.applied for verdict in verdicts)
    reason = view.state.read_only_reason
    if reason:
        return Finding("log", "warning", f"{view.generation} records; {reason}")
    note = f", {void} entries without effect (`tensorrepo log --void`)" if void else ""
    return Finding("log", "ok", f"{view.generation} records, their chain is whole{note}")


def _caches(session: Session) -> Finding:
    """What makes opening the log fast, and may be lost or wrong: only time is lost with it."""
    log = session.repository.log
    tip = log.refresh_tip()
    newest, due = tip.view.generation, tip.checkpoint
    if tip.view.state.read_only_reason is not None:
        return Finding("caches", "ok", "not looked at: a newer tensorrepo writes them")
    hint = decode_hint(log.slots.read(HINT_KEY))
    bad = []
    if newest >= HINT_INTERVAL and (hint is None or hint.generation > newest):
        bad.append("the hint is missing or wrong")
    if due and log.slots.read(checkpoint_key(due)) != log.encoded(log.view_at(due - 1).state).data:
        bad.append(f"checkpoint {due} is missing or wrong")
    if not bad:
        return Finding("caches", "ok", "what makes opening the log fast is in order")
    return Finding(
        "caches",
        "warning",
        f"{' and '.join(bad)}: opening is slow, nothing is lost",
        "Run `tensorrepo doctor --repair`.",
    )


def repair(session: Session) -> tuple[int, int | None]:
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


def _objects(session: Session) -> Finding:
    """Every object that a ref leads to is there; all but chunks and packs are read and verified."""
    state = session.repository.log.refresh().state
    store = session.repository.objects
    count = 0
    for digest in closure(store, sorted(set(state.refs.values())), state.supersedes):
        store.describe(digest)
        count += 1
    return Finding("objects", "ok", f"{count:,} reachable, all there")


def _outside(session: Session) -> Finding:
    """Files that datasets were adopted from, of the commit that HEAD or `main` names."""
    if not session.repository.log.refresh().state.refs:
        return Finding("outside", "ok", "no commits yet")
    tree = session.resolve().commit.tree
    entries = (entry for _, entry in session.repository.entries(tree, "datasets/"))
    files = files_in_place(session.repository.objects, entries)
    wrong, hidden = look_at(session.outside, files)
    note = f", {hidden} of them not looked at" if hidden else ""
    if wrong:
        return Finding(
            "outside",
            "error",
            f"{len(wrong)} of {len(files)} files in place are not as they were: {wrong[0]}",
            "Put them back, or adopt the new ones.",
        )
    advice = "Allow to read them: `tensorrepo --allow-outside PREFIX doctor`." if hidden else ""
    level = "warning" if hidden else "ok"
    return Finding("outside", level, f"{len(files)} files in place are needed{note}", advice)


def _author(session: Session) -> Finding:
    return Finding("author", "ok", session.author())


def _workspace(session: Session) -> Finding:
    if session.workspace is None:
        return Finding("workspace", "ok", "none: the repository was named by its URL")
    pending = session.repository.log.pending
    unresolved = pending.unresolved() if pending else ()
    if unresolved:
        return Finding(
            "workspace",
            "warning",
            f"{len(unresolved)} commits whose outcome is unknown",
            "Run `tensorrepo resolve`.",
        )
    staged = len(session.workspace.staging().entries)
    return Finding("workspace", "ok", f"{session.workspace.root}, {staged} changes staged")
