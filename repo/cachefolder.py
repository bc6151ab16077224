"""May this folder be a cache, in which files are deleted?

Only one that a cache made, or that is empty, or that holds nothing but what caches write: people
name folders that hold their data. Ours are marked by a file that backup programs know too.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

# Whether a cache made this: a name of a folder in it, and of a file in that folder.
IsOwn: TypeAlias = "Callable[[str, str], bool]"

MARKER = "CACHEDIR.TAG"  # of the Cache Directory Tagging Specification
_SIGNATURE = b"Signature: 8a477f597d28d172789f06886806bc55\n"
_OWNER = b"# A cache of tensorrepo"
_TEXT = _SIGNATURE + _OWNER + b", which deletes files in it. It can be deleted as a whole.\n"
_PARTIAL = re.compile(r"\.\d+-[0-9a-f]{16}")
_HEX_FOLDER = re.compile(r"[0-9a-f]{2}")


def partial_name() -> str:
    """What a file is called while it is written."""
    return f".{os.getpid()}-{secrets.token_hex(8)}"


def is_partial(name: str) -> bool:
    """Whether `partial_name` made it."""
    return _PARTIAL.fullmatch(name) is not None


def claim(root: Path, is_own: IsOwn) -> bool:
    """Make `root` a cache that only this user can write into: its checksums stop no attacker.

    Returns:
        Whether it may be used. What `refusal` tells of is left as it is.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        if refusal(root, is_own) is not None:
            return False
        _mark(root)
        if root.stat().st_mode & 0o077:
            root.chmod(0o700)
    except OSError:
        return False
    return True


def refusal(root: Path, is_own: IsOwn) -> str | None:
    """Why `root` cannot be a cache; None where it can, or is not there yet."""
    try:
        status = root.stat(follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            return "it is no folder"
        if status.st_uid != os.geteuid():
            return f"it belongs to user {status.st_uid}, not to user {os.geteuid()} who reads"
        if _is_marked(root):
            return None
        foreign = next(_foreign(root, is_own), None)
        # Looked at again: another process may have begun to use the folder meanwhile.
        if foreign is None or _is_marked(root):
            return None
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return f"it cannot be read ({error.strerror})"
    return f"it holds what no cache wrote ({foreign!r:.100}), and a cache deletes files"


def _foreign(root: Path, is_own: IsOwn) -> Iterator[str]:
    """Whatever else there is than in caches that were made before they were marked."""
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.name == MARKER or is_partial(entry.name):  # a damaged one of ours
                continue
            if not _HEX_FOLDER.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
                yield entry.name
                continue
            names = os.listdir(entry.path)
            yield from (f"{entry.name}/{name}" for name in names if not is_own(entry.name, name))


def _is_marked(root: Path) -> bool:
    try:
        with open(root / MARKER, "rb") as file:
            return file.read(len(_TEXT)).startswith(_SIGNATURE + _OWNER)
    except FileNotFoundError:
        return False


def _mark(root: Path) -> None:
    if _is_marked(root):
        return
    partial = root / partial_name()
    with suppress(OSError):  # a disk that is full or can only be read: it is a cache all the same
        partial.write_bytes(_TEXT)
        partial.rename(root / MARKER)
