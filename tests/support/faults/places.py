"""Disks that refuse: read-only ones and full ones, also for root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """`folder`, in which nothing can be changed: by its mode, for root by a mount."""
    if os.geteuid() != 0:
        places = [folder, *(path for path in folder.rglob("*") if not path.is_symlink())]
        modes = {path: path.stat().st_mode for path in places}
        for path, mode in modes.items():
            path.chmod(mode & ~0o222)
        try:
            yield
        finally:
            for path, mode in modes.items():
                path.chmod(mode)
        return
    _mount("--bind", str(folder), str(folder))
    try:
        _mount("-o", "remount,bind,ro", str(folder))
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=False)


@contextmanager
def small_disk(folder: Path, size_bytes: int) -> Iterator[None]:
    """`folder` as a disk of `size_bytes`."""
    _mount("-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=False)


def _mount(*words: str) -> None:
    try:
        done = subprocess.run(["mount", *words], capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"no mount here: {error}")
    if done.returncode:
        pytest.skip(f"this machine lets nobody mount: {done.stderr.strip()}")
