"""What processes that were killed left behind: files and folders that nobody works on any more."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path


def remove_older(places: Iterable[Path], than_seconds: float) -> None:
    """Delete those that were changed last before a moment, in seconds since 1970."""
    for place in places:
        with suppress(OSError):
            if place.stat(follow_symlinks=False).st_mtime >= than_seconds:
                continue
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place, ignore_errors=True)
            else:
                place.unlink()
