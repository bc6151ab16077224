"""Stashes of a workspace: staged entries and changed working files, put aside and brought back.

What is staged goes aside as it is, with the lease that keeps it. Working files are moved, not
read: they come back byte for byte, and know what they were written from, so that `add` merges
them as if they had stayed.

Whoever is killed in the middle loses nothing. A stash is noted before anything moves, and
forgotten after all of it is back; between both each file lies in one of two places, and the same
command again goes on.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from tensorrepo.repo.errors import (
    ConflictError,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    StorageError,
)
from tensorrepo.repo.history.trees import Entry
from tensorrepo.workspace.checkout import refuse_links, write_beside
from tensorrepo.workspace.session import WorkspaceSession
from tensorrepo.workspace.staged_lease import (
    RENEW_SECONDS,
    close_lease,
    forget_committed,
    forget_lease,
    hold,
    keep_alive,
    kept_digests,
)
from tensorrepo.workspace.staging import carried, rebased
from tensorrepo.workspace.state import (
    StagedEntry,
    StagingArea,
    Stash,
    changed_files,
    describe_files,
)


def push(session: WorkspaceSession, message: str = "") -> Stash | None:
    """Put aside what is staged and which working files changed; None where there is nothing.

    The files are written anew as HEAD has them.
    """
    here = session.here
    forget_committed(session)
    staging, root = here.staging(), here.root
    files = {
        path: tracked
        for path, tracked in here.tracked().items()
        if (root / path).exists() and changed_files(root, path, tracked)
    }
    if not staging.entries and not files:
        return None
    if staging.entries:
        keep_alive(session, _entries(staging), staging.generation)
    state, stashes = here.state(), here.stashes()
    made = Stash(
        secrets.token_hex(8),
        message,
        state.head,
        time.time_ns(),
        staging,
        files,
        state.lease if staging.entries else None,
        state.lease_seconds if staging.entries else 0.0,
    )
    _sweep(session, stashes)
    here.write_stashes([made, *stashes])
    if staging.entries:
        forget_lease(session)  # it is the stash's now
        here.write_staging(StagingArea())
    for stored, path in _places(session, made):
        _move(root / path, stored)
    for stored, path in _places(session, made):
        place = _beside(stored, "new") / (root / path).name
        if write_beside(session, path, files[path], place):
            _move(place, root / path)
    _renew(session)
    return made


def bring_back(session: WorkspaceSession, stash: Stash, *, keep: bool) -> None:
    """Stage what a stash holds and put its working files back; with `keep` it stays.

    Raises:
        ConflictError: the same is staged otherwise, or a working file was changed since. Nothing
            changed.
    """
    here = session.here
    forget_committed(session)
    back = [(stored, path) for stored, path in _places(session, stash) if _lies(stored)]
    for stored, path in back:
        _refuse_changed(session, stored, path)
    staging = _joined(session, stash)
    if stash.staging.entries:
        keep_alive(session, _entries(staging), staging.generation)
        here.write_staging(staging)
    for stored, path in back:
        if _lies(here.root / path):
            _move(here.root / path, _beside(stored, "old"))
    # Neither file may lie beside the other's note: added, it would look as if all that came since
    # had been taken back.
    here.write_tracked({**here.tracked(), **{path: stash.files[path] for _, path in back}})
    for stored, path in back:
        _put_back(stored, here.root / path, keep=keep)
    if not keep:
        drop(session, stash)


def drop(session: WorkspaceSession, stash: Stash) -> None:
    """Forget a stash, and what is in no other place."""
    here = session.here
    left = [each for each in here.stashes() if each.id != stash.id]
    here.write_stashes(left)
    # Who was killed while stashing has it staged and stashed under one lease.
    if stash.lease is not None and stash.lease != here.state().lease:
        try:
            close_lease(session, stash.lease)
        except (PermissionDenied, StorageError) as error:
            session.warn(f"the lease of the stash stays until it expires: {error}")
    _sweep(session, left)
    _renew(session)


def find_stash(session: WorkspaceSession, name: str | None) -> tuple[int, Stash]:
    """The stash that ``n`` or ``stash@{n}`` names, and its number; None: the newest.

    Raises:
        NotFoundError: there is none of that number.
    """
    stashes = session.here.stashes()
    number = (name or "0").removeprefix("stash@{").removesuffix("}")
    if not number.isascii() or not number.isdigit() or len(number) > 9:
        raise InvalidInputError(f"{name!r:.80} names no stash: expected stash@{{0}}, or 0")
    if int(number) >= len(stashes):
        there = f"the last one is stash@{{{len(stashes) - 1}}}" if stashes else "nothing is stashed"
        raise NotFoundError(f"there is no stash@{{{number}}}: {there}")
    return int(number), stashes[int(number)]


def _joined(session: WorkspaceSession, stash: Stash) -> StagingArea:
    """What is staged when the stash is back."""
    now, back = session.here.staging(), stash.staging
    if not now.entries:
        return carried(session, back, session.tip())
    for path, staged in back.entries.items():
        if path in now.entries and now.entries[path].entry != staged.entry:
            raise ConflictError(
                f"{path} is staged otherwise here: commit it, or unstage it with `tensorrepo "
                f"restore --staged {path}`, and repeat. Nothing changed, the stash is kept."
            )
    if back.entries and back.base != now.base:
        back = rebased(session.repository.objects, back, now.base)
    entries: dict[str, StagedEntry] = {**now.entries, **back.entries}
    since = min(now.generation, back.generation) if back.entries else now.generation
    return StagingArea(now.base, since, dict(sorted(entries.items())))


def _entries(staging: StagingArea) -> list[Entry | None]:
    return [staged.entry for staged in staging.entries.values()]


def _places(session: WorkspaceSession, stash: Stash) -> list[tuple[Path, str]]:
    """Where the working files of a stash lie, and their paths in the workspace."""
    folder = session.here.stash_folder(stash)
    return [(folder / str(at), path) for at, path in enumerate(sorted(stash.files))]


def _lies(place: Path) -> bool:
    return place.exists() or place.is_symlink()


def _refuse_changed(session: WorkspaceSession, stored: Path, path: str) -> None:
    """Raise ConflictError where putting a file back would overwrite what lies nowhere else."""
    root, tracked = session.here.root, session.here.tracked().get(path)
    target = root / path
    refuse_links(root, target)
    if not _lies(target) or describe_files(target) == describe_files(stored):
        return
    if tracked is None or changed_files(root, path, tracked):
        what = "was not written by tensorrepo" if tracked is None else "was changed since"
        raise ConflictError(
            f"{target} {what}: commit it with `tensorrepo commit -a`, stash it, or move it away, "
            "and repeat. Nothing changed, the stash is kept."
        )


def _beside(stored: Path, what: str) -> Path:
    return stored.with_name(f"{stored.name}.{what}")


def _put_back(stored: Path, target: Path, *, keep: bool) -> None:
    if keep:
        copy = _beside(stored, "copy")
        _copy(stored, copy)
        _move(copy, target)
        _remove(_beside(stored, "old"))
    else:
        _move(stored, target)


def _move(source: Path, target: Path) -> None:
    """Move a file or folder at once; into another file system by a copy that is whole first."""
    _remove(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        part = target.with_name(f"{target.name}.part")
        _copy(source, part)
        os.replace(part, target)
        _remove(source)


def _copy(source: Path, target: Path) -> None:
    _remove(target)
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        shutil.copy2(source, target)


def _remove(place: Path) -> None:
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    else:
        place.unlink(missing_ok=True)


def _sweep(session: WorkspaceSession, stashes: Iterable[Stash]) -> None:
    """Remove folders of stashes that are gone."""
    known = {session.here.stash_folder(stash) for stash in stashes}
    root = session.here.folder / "stash"
    for folder in root.iterdir() if root.is_dir() else ():
        if folder not in known:
            shutil.rmtree(folder, ignore_errors=True)


def _renew(session: WorkspaceSession) -> None:
    """Keep the leases of stashes from expiring."""
    stashes, leases = session.here.stashes(), session.repository.log.refresh().state.leases
    kept = []
    for stash in stashes:
        is_young = time.time() - stash.lease_seconds <= RENEW_SECONDS
        if stash.lease is None or (is_young and stash.lease in leases):
            kept.append(stash)  # asked of each, the log would be read once for every stash
            continue
        digests = kept_digests(session, _entries(stash.staging))
        if not digests:
            kept.append(stash)
            continue
        since, renewed = stash.staging.generation, stash.lease_seconds
        seconds = hold(session, stash.lease, sorted(digests), since, renewed)
        kept.append(msgspec.structs.replace(stash, lease_seconds=seconds))
    if kept != stashes:
        session.here.write_stashes(kept)
