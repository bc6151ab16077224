"""libfuse, through mfusepy: which one, what the kernel may keep, and listings with attributes.

Calls cost far more than what they answer, so there are to be few: libfuse 3 is asked for a MiB at
once, and a listing says what each of its files is, so that nobody asks file by file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from ctypes.util import find_library
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, Protocol

from tensorrepo.repo.backends.mounts import mount_over
from tensorrepo.repo.errors import UnsupportedError
from tensorrepo.this_machine import set_unless_set

FILESYSTEM: Final = "tensorrepo"
_KEEP_SECONDS: Final = 86400 * 365  # a commit never changes
_READ_AHEAD_KB: Final = 1024
_READDIRPLUS_AUTO: Final = 1 << 14  # FUSE_CAP_READDIRPLUS_AUTO: attributes with some listings alone
_FILL_PLUS: Final = 1 << 1  # FUSE_FILL_DIR_PLUS
_BEGUN_LISTINGS: Final = 64
Attributes = Mapping[str, int]  # by fields of `struct stat`; times in ns
_Listed = tuple[int, tuple[str, Attributes]]  # numbered from 1


class MountOperations(Protocol):
    """What is mounted; see `mfusepy.Operations`, which has more that may be there."""

    def listed(self, path: str) -> Iterator[tuple[str, Attributes]]:
        """Names in a folder, and the attributes of each: all of them have the same fields."""
        ...


def mount_here(operations: MountOperations, folder: Path, *, source: str) -> None:
    """Serve a mount until it is unmounted or the process ends.

    Args:
        operations: answers calls, on threads of libfuse.
        folder: where; an empty folder.
        source: what `mount` shows as the device.

    Raises:
        UnsupportedError: libfuse, or its Python module, is missing.
        RuntimeError: the system refuses; a number of libfuse.
    """
    fuse = load()
    options: dict[str, Any] = {
        "foreground": True, "ro": True, "fsname": source.replace(",", "_"), "subtype": FILESYSTEM,
    }  # fmt: skip
    if fuse.fuse_version_major == 2:
        times = dict.fromkeys(("attr_timeout", "entry_timeout", "negative_timeout"), _KEEP_SECONDS)
        options |= {"kernel_cache": True, **times}
    _with_attributes(fuse)(operations, str(folder), **options)


def keep_in_kernel(connection: Any, config: Any) -> None:
    """Say, when a mount begins, that nothing of it is ever going to change.

    They are what libfuse 3 gives to `init`; of libfuse 2 `config` is None.
    """
    if config is None:  # libfuse 2 has options for it
        return
    config.kernel_cache = 1
    config.attr_timeout = config.entry_timeout = config.negative_timeout = _KEEP_SECONDS
    connection.want &= ~_READDIRPLUS_AUTO


def raise_read_ahead(folder: Path) -> None:
    """Let the kernel ask for a MiB at once at `folder`, where this user may say so.

    It asks for 128 KiB otherwise, whatever a file system tells it: eight times the calls.
    """
    mount = mount_over(folder)
    if mount is not None:
        with suppress(OSError):  # root alone may
            Path(f"/sys/class/bdi/{mount.device}/read_ahead_kb").write_text(str(_READ_AHEAD_KB))


def load() -> Any:
    """The package mfusepy. Raises UnsupportedError: it is not installed, or libfuse is not."""
    found = find_library("fuse3") if sys.platform == "linux" else None
    if found is not None:  # what mfusepy takes by itself is libfuse 2, of 128 KiB a call
        set_unless_set("FUSE_LIBRARY_PATH", found)
    try:
        import mfusepy
    except ImportError:
        raise UnsupportedError("mounting needs mfusepy: pip install 'tensorrepo[mount]'") from None
    except OSError:
        raise UnsupportedError(
            "mounting needs libfuse: on Debian, apt-get install fuse3 libfuse3-3"
        ) from None
    return mfusepy


def _with_attributes(fuse: Any) -> Any:
    """Mfusepy's FUSE, which answers listings of libfuse 3 with attributes."""

    class MountServer(fuse.FUSE):  # type: ignore[misc]  # mfusepy was not imported before
        def __init__(self, *words: Any, **options: Any) -> None:
            self._begun: dict[tuple[bytes, int], Iterator[_Listed]] = {}
            super().__init__(*words, **options)

        def readdir_fuse_3(
            self, path: bytes, buffer: Any, filler: Any, offset: int, _info: Any, _flags: int
        ) -> int:
            # Attributes are taken with offsets alone: then a buffer that is full ends the call, and
            # the next one goes on. That it went on from here may have been forgotten.
            rest = self._begun.pop((path, offset), None)
            if rest is None:
                rest = islice(enumerate(self.operations.listed(os.fsdecode(path)), 1), offset, None)
            answer = fuse.c_stat()
            told: Attributes = {}
            for number, (name, attributes) in rest:
                changed = attributes.items() - told.items()
                fuse.set_st_attrs(answer, dict(changed), use_ns=True)
                told = attributes
                if filler(buffer, os.fsencode(name), answer, number, _FILL_PLUS):
                    for oldest in list(self._begun)[: 1 - _BEGUN_LISTINGS]:
                        self._begun.pop(oldest, None)
                    self._begun[path, number - 1] = chain([(number, (name, attributes))], rest)
                    break
            return 0

    return MountServer
