"""What the disk alone allows groups of commits: their files and syncs, with nothing of ours.

A group of four commits stores twelve small files in folders of their own, then a record. Files get
their names when they are synced, the record when those are: four rounds of syncs, of which those of
one round wait together.
"""

from __future__ import annotations

import os
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

COMMITS = 4  # of a group, as 8 clients make them
FILES_EACH = 3
FILE_BYTES = 2048
_THREADS = 4


def commits_per_second(folder: Path, seconds: float) -> float:
    """How many commits a second such groups make, one after the other."""
    folders = [folder / f"{number:02x}" for number in range(256)]
    for each in folders:
        each.mkdir(parents=True)
    log = folder / "log"
    log.mkdir()
    os.sync()
    with ThreadPoolExecutor(_THREADS) as pool:
        groups, began = 0, time.monotonic()
        while time.monotonic() < began + seconds:
            group = [folders[secrets.randbelow(256)] for _ in range(COMMITS * FILES_EACH)]
            _store(pool, folder, group)
            _store(pool, folder, [log])
            groups += 1
        return groups * COMMITS / (time.monotonic() - began)


def _store(pool: ThreadPoolExecutor, root: Path, folders: list[Path]) -> None:
    """A file in each of `folders`, durable."""
    opened = []
    for _ in folders:
        fd = os.open(root, os.O_TMPFILE | os.O_WRONLY)
        os.write(fd, bytes(FILE_BYTES))
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # the kernel begins to write it
        opened.append(fd)
    list(pool.map(os.fsync, opened))
    inside = {folder: os.open(folder, os.O_RDONLY) for folder in set(folders)}
    for fd, folder in zip(opened, folders, strict=True):
        name, at = secrets.token_hex(31), inside[folder]
        os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=at, follow_symlinks=True)
    list(pool.map(os.fsync, inside.values()))
    for fd in (*opened, *inside.values()):
        os.close(fd)
