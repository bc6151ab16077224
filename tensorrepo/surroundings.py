"""In what code, with which packages and on what machine does this process run?

Nothing here fails: what cannot be found out is left out.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from tensorrepo.formats.run.document import Code

_GIT_SECONDS: Final = 5.0
_MOST_PACKAGES: Final = 500
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_PROC = Path("/proc")
_START_FIELD: Final = 19  # of /proc/<pid>/stat, counted behind the name: when the process began


def code_version(cwd: Path, *, timeout_seconds: float = _GIT_SECONDS) -> Code | None:
    """The git commit of the script that runs, or of the folder where there is none.

    `dirty` says that tracked files differ from it. None outside of a checkout, and without git.
    """
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folder = cwd if script is None else (cwd / script).parent
    commit = _git(folder, timeout_seconds, "rev-parse", "--verify", "HEAD")
    if commit is None or not _COMMIT.fullmatch(commit):
        return None
    changed = _git(folder, timeout_seconds, "status", "--porcelain", "--untracked-files=no")
    # No answer is no proof that the files are those of the commit.
    return Code(commit, changed != "", None if script is None else _stored_text(Path(script).name))


def environment() -> dict[str, Any]:
    """Python, packages that are imported, and machine, as JSON."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": imported_packages(),
        "machine": _machine(),
    }
    process = this_process()
    return found if process is None else found | {"process": process}


def imported_packages() -> dict[str, str]:
    """Versions by name of what is imported and is not Python's own."""
    names = {name for name in tuple(sys.modules) if "." not in name}
    names -= set(sys.stdlib_module_names) | set(sys.builtin_module_names)
    found = {name: _version(name) for name in sorted(names) if not name.startswith("_")}
    told = [(name, version) for name, version in found.items() if version is not None]
    return dict(told[:_MOST_PACKAGES])


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


def _git(folder: Path, timeout_seconds: float, *arguments: str) -> str | None:
    # A checkout may say in its own configuration which program watches files: none is started.
    command = ["git", "--no-optional-locks", "-c", "core.fsmonitor=false", *arguments]
    try:
        told = subprocess.run(  # noqa: S603 - of words of ours
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_seconds,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return told.stdout.decode(errors="replace").strip()


def _version(name: str) -> str | None:
    # Not getattr: some packages import more of themselves when an attribute is asked for.
    # A module may be None, which says that it must not be imported, or any object.
    version = getattr(sys.modules.get(name), "__dict__", {}).get("__version__")
    if isinstance(version, str):
        return _stored_text(version)
    with suppress(metadata.PackageNotFoundError, ValueError, OSError):
        return metadata.version(name)
    return None


def _stored_text(text: str) -> str:
    """`text` as UTF-8 can say it, and no text of a class of its own, as torch's version is one."""
    return str(text).encode("utf-8", "backslashreplace").decode()


def _machine() -> dict[str, Any]:
    found: dict[str, Any] = {"host": platform.node(), "cores": os.cpu_count()}
    processor = _line(_PROC / "cpuinfo", "model name") or platform.processor()
    if processor:
        found["processor"] = processor
    memory = re.match(r"\d+", _line(_PROC / "meminfo", "MemTotal") or "")
    if memory:
        found["memory_bytes"] = int(memory.group()) << 10
    # The driver's own files: asking torch would start the device in this process.
    gpus = sorted((_PROC / "driver" / "nvidia" / "gpus").glob("*/information"))
    models = [model for gpu in gpus if (model := _line(gpu, "Model"))]
    return found | {"gpus": models} if models else found


def _line(file: Path, key: str) -> str | None:
    """What follows ``key :`` in a file."""
    with suppress(OSError), file.open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, colon, value = line.partition(":")
            if colon and name.strip() == key:
                return value.strip()
    return None


def _place() -> str:
    """The kernel that was booted, and the processes that see each other."""
    boot = (_PROC / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
    space = (_PROC / "self" / "ns" / "pid").readlink().name  # pid:[4026531836]
    return f"{boot}/{''.join(filter(str.isdecimal, space))}"


def _started(pid: int) -> str:
    told = (_PROC / str(pid) / "stat").read_text()
    state, *fields = told.rpartition(")")[2].split()
    return "" if state == "Z" else fields[_START_FIELD - 1]
