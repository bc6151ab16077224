"""What a folder is mounted from, and what that file system promises.

Source:
    proc(5), /proc/pid/mountinfo.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tensorrepo.repo.backends.base import Guarantee
from tensorrepo.repo.deferred_dataclass import dataclass

MOUNTINFO = Path("/proc/self/mountinfo")
_LOCAL = re.compile(
    "apfs|bcachefs|btrfs|ext[234]|f2fs|hfs|jfs|nilfs2|overlay|ramfs|reiserfs|tmpfs|ufs|xfs|zfs"
)
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted file system: where, of which type, with which options; the number of its device,
    such as ``0:52``.
    """

    point: str
    type: str
    options: frozenset[str]
    device: str = ""

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.ATOMIC if _LOCAL.fullmatch(self.type) else Guarantee.SINGLE_WRITER

    @property
    def reserves(self) -> bool:
        """Whether writing into room that was reserved takes less of the processor's time: a quarter
        on ext4, where it was measured. Elsewhere the C library may fill that room with zeros.
        """
        return self.type == "ext4" and hasattr(os, "posix_fallocate")


UNKNOWN = Mount("/", "unknown", frozenset())


def mount_of(path: Path, mountinfo: Path = MOUNTINFO) -> Mount:
    """The mount that `path` (it need not exist) lies on; `UNKNOWN` where the system won't tell."""
    return find_mount(str(path.resolve()), _mount_table(mountinfo))


def mount_over(folder: Path) -> Mount | None:
    """What is mounted over `folder` itself, without asking that file system for anything."""
    found = find_mount(str(folder), _mount_table(MOUNTINFO))
    return found if found.point == str(folder) and found is not UNKNOWN else None


def _mount_table(mountinfo: Path) -> str:
    """The table of mounts; empty where the system won't tell."""
    try:
        return mountinfo.read_text("utf-8", "surrogateescape")
    except OSError:
        return ""


def find_mount(path: str, table: str) -> Mount:
    """The deepest mount above the absolute `path`; of two at one point the later hides the other.

    Source:
        proc(5), /proc/pid/mountinfo.
    """
    best = UNKNOWN
    for line in table.split("\n"):  # names may have what else is taken for a blank or a new line
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if len(fields) < 6 or len(kind) < 2:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
        above = path == point or path.startswith(point.rstrip("/") + "/")
        if above and (len(point) >= len(best.point) or best is UNKNOWN):
            options = {*fields[5].split(","), *kind[-1].split(",")}
            best = Mount(point, kind[0], frozenset(options), fields[2])
    return best
