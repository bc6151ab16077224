"""System calls that fail, and stores that know nobody any more."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar
from unittest.mock import patch

from tensorrepo.repo.backends import disk
from tensorrepo.repo.backends.disk import Disk
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.errors import PermissionDenied
from tests.support.faults.backends import WrappedBackend

T = TypeVar("T")
_UNNAMED = getattr(os, "O_TMPFILE", 0) & ~os.O_DIRECTORY
CALLS = ("open", "writev", "fsync", "link", "rename", "mkdir")


class FailingCalls:
    """`os` as the local store sees it: call `at` that changes the disk, from 0, fails.

    Those after it fail as well, until `heal`, but for a single defect (EIO). A write that fails
    has written half.
    """

    def __init__(self, error: int, at: int) -> None:
        self.error, self.at = error, at
        self.calls = 0
        self.healed = False
        self._lock = Lock()

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._failing(name, real) if name in CALLS else real

    def _failing(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if name == "open" and not args[1] & (os.O_CREAT | _UNNAMED):
                return real(*args, **options)
            if self._fails():
                if name == "writev":
                    os.write(args[0], memoryview(args[1][0])[: len(args[1][0]) // 2])
                raise OSError(self.error, os.strerror(self.error))
            return real(*args, **options)

        return call

    def _fails(self) -> bool:
        with self._lock:
            number, self.calls = self.calls, self.calls + 1
        if self.healed or number < self.at:
            return False
        return number == self.at or self.error != disk.errno.EIO

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The local store calls these."""
        with patch.object(disk, "os", self):
            yield

    def backend(self, folder: Path) -> LocalBackend:
        """A store on a disk that fails so."""
        return LocalBackend(folder, disk=Disk(folder, link=self.link))


class ExpiredLogin(WrappedBackend):
    """A store that refuses operation `at`, from 1, and all after it, until `renew`."""

    def __init__(self, inner: Any, at: int) -> None:
        super().__init__(inner)
        self.at = at
        self.renewed = False

    def step(self, verb: str, key: str, work: Callable[[], T]) -> T:
        self.operations.append((verb, key))
        if len(self.operations) >= self.at and not self.renewed:
            raise PermissionDenied(f"{self.url} refuses {verb} {key}: the credentials have expired")
        return work()
