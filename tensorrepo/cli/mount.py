"""Commits as folders: the commands `mount` and `unmount`."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

from typer import Argument, Option

from tensorrepo.cli.options import CommandCall, RepoCall
from tensorrepo.cli.sdk_handle import handle_of
from tensorrepo.filesystem import libfuse
from tensorrepo.filesystem.commit import files_of
from tensorrepo.filesystem.mount import (
    check_mountpoint,
    mounted_at,
    serve_mount,
    unmount,
    unmount_lazily,
)
from tensorrepo.repo.errors import StorageError

_START_SECONDS: Final = 30.0
_LOOK_SECONDS: Final = 0.05
_LOOKS: Final = 20  # for the end of a process that was killed, which a store may hold up


def mount_command(
    call: RepoCall,
    ref: Annotated[str, Argument(metavar="REF", help="Branch, tag or digest.")],
    folder: Annotated[str, Argument(metavar="DIR", help="An empty folder, or a new one.")],
    foreground: Annotated[
        bool, Option("--foreground", help="Serve until Ctrl-C, instead of in the background.")
    ] = False,
) -> None:
    """Show a commit as a folder, read-only: files, models, images by class, tables.

    Bytes are read, and verified, when a program reads them. Programs see the commit that REF names
    now; `tensorrepo unmount DIR` takes it away.

    Examples:
        tensorrepo mount main /mnt/photos
        tensorrepo mount v1.0 photos --repo s3://bucket/team
    """
    context = handle_of(call).context
    revision = context.resolve(ref)
    place = call.path(folder)
    check_mountpoint(place)
    libfuse.load()
    said = {"commit": revision.digest, "folder": str(place)}
    if foreground:
        call.answer(said, f"{revision.digest:.12} is at {place}, until Ctrl-C")
        source = f"{context.url}@{revision.digest:.12}"
        serve_mount(files_of(context, revision), revision.commit.time_ns, place, source=source)
        return
    _in_background(call, context.url, revision.digest, place)
    call.answer(said, f"{revision.digest:.12} is at {place}. `tensorrepo unmount {place}` ends it.")


def unmount_command(
    call: CommandCall,
    folder: Annotated[str, Argument(metavar="DIR", help="Where the commit is mounted.")],
) -> None:
    """Take a mounted commit away.

    Examples:
        tensorrepo unmount /mnt/photos
    """
    place = call.path(folder)
    unmount(place)
    call.answer({"folder": str(place)}, f"Nothing is mounted at {place} any more.")


def _in_background(call: RepoCall, url: str, digest: str, place: Path) -> None:
    """Start a process that serves the commit, and wait until it does.

    Raises:
        StorageError: it ended, or did not begin in time; says what it said.
    """
    logs = call.machine.state_folder / "mounts"
    logs.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = logs / f"{hashlib.sha256(str(place).encode()).hexdigest()[:16]}.log"
    command = [
        sys.executable, "-m", "tensorrepo", "mount", digest, str(place), "--foreground",
        "--repo", url,
    ]  # fmt: skip
    with log.open("wb") as told, open(os.devnull, "rb") as nothing:
        files = ((nothing.fileno(), 0), (told.fileno(), 1), (told.fileno(), 2))
        process = os.posix_spawn(
            sys.executable,
            command,
            dict(call.machine.environment),
            file_actions=[(os.POSIX_SPAWN_DUP2, *each) for each in files],
            setsid=True,
        )
    end = time.monotonic() + _START_SECONDS
    while not mounted_at(place):
        if os.waitpid(process, os.WNOHANG)[0]:
            lines = log.read_text("utf-8", "replace").strip().splitlines()
            raise StorageError(f"nothing was mounted at {place}: {' '.join(lines[-3:])}")
        if time.monotonic() > end:
            _take_away(process, place)
            raise StorageError(
                f"nothing was mounted at {place} within {_START_SECONDS:.0f} s; {log} has more"
            )
        time.sleep(_LOOK_SECONDS)


def _take_away(process: int, place: Path) -> None:
    """End a process that did not begin in time, and what it may have mounted unseen."""
    os.kill(process, signal.SIGKILL)
    for _ in range(_LOOKS):
        if os.waitpid(process, os.WNOHANG)[0]:
            break
        time.sleep(_LOOK_SECONDS)
    with suppress(StorageError):  # nothing was mounted there when this began, nor is perhaps now
        unmount_lazily(place)
