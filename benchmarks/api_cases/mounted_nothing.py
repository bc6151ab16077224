"""A mount of zeros: ``FOLDER SIZE FILES``, as fast as mfusepy can answer.

What a file system in Python costs that looks nothing up: the limit of `bench_files.py`.
"""

from __future__ import annotations

import ctypes
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorrepo.filesystem.libfuse import keep_in_kernel, mount_here

IN_FOLDER = 1000
ZEROS = (ctypes.c_char * (1 << 20))()


class Nothing:
    use_ns = True

    def __init__(self, size: int, files: int) -> None:
        self.file = {"st_mode": stat.S_IFREG | 0o444, "st_nlink": 1, "st_size": size}
        self.folder = {"st_mode": stat.S_IFDIR | 0o555, "st_nlink": 2, "st_size": 0}
        self.files = files

    def init_with_config(self, connection: Any, config: Any) -> None:
        keep_in_kernel(connection, config)

    def getattr(self, path: str, _handle: int | None = None) -> dict[str, int]:
        is_folder = path == "/" or (path.startswith("/d") and path.count("/") == 1)
        return self.folder if is_folder else self.file

    def listed(self, path: str) -> Iterator[tuple[str, dict[str, int]]]:
        if self.files == 1:
            return iter([("0", self.file)])
        if path == "/":
            return ((f"d{number}", self.folder) for number in range(-(-self.files // IN_FOLDER)))
        return ((str(number), self.file) for number in range(IN_FOLDER))

    def readdir(self, path: str, _handle: int) -> list[str]:
        return [name for name, _ in self.listed(path)]

    def open(self, _path: str, _flags: int) -> int:
        return 1

    def read(self, _path: str, size: int, offset: int, _handle: int) -> Any:
        size = min(size, max(self.file["st_size"] - offset, 0))
        return (ctypes.c_char * size).from_buffer(ZEROS)


if __name__ == "__main__":
    folder, size, files = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    mount_here(Nothing(size, files), folder, source="nothing")
