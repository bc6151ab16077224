"""This machine, as reports of benchmarks tell of it: memory, processors, name."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_KIB: Final = 1024


def total_memory() -> int | None:
    """Bytes of memory that the machine has; None where it does not say."""
    with suppress(ValueError, OSError, AttributeError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return None


def available_memory() -> int | None:
    """Bytes of memory that new processes can have without swapping; None where it does not say."""
    told = proc_table("meminfo").get("MemAvailable", "").split()
    return int(told[0]) * _KIB if told and told[0].isdigit() else None


def proc_table(name: str) -> dict[str, str]:
    """Lines of ``key: value`` of a file in /proc; of keys that come again the last value."""
    try:
        lines = (_PROC / name).read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition(":") for line in lines if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def host_name() -> str:
    """What the machine is called."""
    return platform.node()


def processor() -> str:
    """What the processor is called."""
    return platform.processor()


def core_count() -> int:
    """Number of processors."""
    return os.cpu_count() or 1
