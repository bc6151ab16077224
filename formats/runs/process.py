"""Identity of a process: a text that no other has, and whether the process still runs."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_START_FIELD: Final = 19  # of /proc/<pid>/stat, counted behind the name: when the process began


def this_process() -> str | None:
    """A text that no other process has, neither here nor elsewhere, before or after."""
    with suppress(OSError):
        return f"{_place()}:{os.getpid()}:{_started(os.getpid())}"
    return None


def is_alive(process: str) -> bool | None:
    """Whether the process of `this_process` still runs; None when it is not of this machine."""
    place, _, rest = process.partition(":")
    pid, _, started = rest.partition(":")
    try:
        if place != _place() or not pid.isdecimal():
            return None
    except OSError:
        return None
    try:
        return _started(int(pid)) == started
    except OSError:
        return False


def boot_id() -> str:
    """What the kernel calls this start of the machine. Raises OSError where it does not say."""
    return (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()


def _place() -> str:
    """The kernel that was booted, and the processes that see each other."""
    space = (_PROC / "self" / "ns" / "pid").readlink().name  # pid:[4026531836]
    return f"{boot_id()}/{''.join(filter(str.isdecimal, space))}"


def _started(pid: int) -> str:
    told = (_PROC / str(pid) / "stat").read_text()
    state, *fields = told.rpartition(")")[2].split()
    return "" if state == "Z" else fields[_START_FIELD - 1]
