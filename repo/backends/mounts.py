"""Can this folder's file system be trusted with two writers?

`link` is exclusive and `fsync` means it on local file systems. On network and user-space ones it
depends on the server, so they get one writer at a time unless somebody who knows says otherwise.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tensorrepo.repo.backends.base import Guarantee

MOUNTINFO = Path("/proc/self/mountinfo")
_LOCAL = re.compile(
    "apfs|bcachefs|btrfs|ext[234]|f2fs|hfs|jfs|nilfs2|overlay|ramfs|reiserfs|tmpfs|ufs|xfs|zfs"
)
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class Mount:
    """One mounted file system: where, of which type, with which options."""

    point: str
    type: str
    options: frozenset[str]

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.ATOMIC if _LOCAL.fullmatch(self.type) else Guarantee.SINGLE_WRITER


UNKNOWN = Mount("/", "unknown", frozenset())


def mount_of(path: Path, mountinfo: Path = MOUNTINFO) -> Mount:
    """The mount that `path` (it need not exist) lies on; `UNKNOWN` where the system won't tell."""
    try:
        table = mountinfo.read_text("utf-8", "surrogateescape")
    except OSError:
        return UNKNOWN
    return find_mount(str(path.resolve()), table)


def find_mount(path: str, table: str) -> Mount:
    """The deepest mount above the absolute `path`; of two at one point the later hides the other.

    Source:
        proc(5), /proc/pid/mountinfo.
    """
    best = UNKNOWN
    for line in table.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 6 or len(kind) < 2:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[4])
        above = path == point or path.startswith(point.rstrip("/") + "/")
        if above and (len(point) >= len(best.point) or best is UNKNOWN):
            options = {*fields[5].split(","), *kind[-1].split(",")}
            best = Mount(point, kind[0], frozenset(options))
    return best
