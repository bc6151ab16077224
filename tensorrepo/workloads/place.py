"""Data of benchmarks in a store: made below a folder of its own, found again, and removed.

    STORE/tensorrepo-bench/<workload>-<shape>-<random>/    a repository of one dataset or run

Each dataset has a repository of its own, with one commit: without the commit it is half made, by
somebody who was killed or is still at it, and nobody reads it. Whatever else lies in a store is
neither read nor written.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Final

from tensorrepo import connect
from tensorrepo.connect import Machine
from tensorrepo.repo.backends.base import Backend
from tensorrepo.repo.backends.urls import SCHEMES, scheme_of
from tensorrepo.repo.changes.repository import IDENTITY_KEY
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, InvalidInputError, StorageError, UnsupportedError
from tensorrepo.repo.tables import bytes_text
from tensorrepo.repo.threads import ordered_map

FOLDER: Final = "tensorrepo-bench"
_DELETES: Final = 16  # at once
_SPARE: Final = 1.05  # of the room: what lies around the data


@dataclass(frozen=True, slots=True)
class BenchData:
    """A repository of a benchmark.

    Attributes:
        name: its folder's name.
        stored_bytes: bytes of all that lies in it.
        is_whole: whether something in it is committed; else it is half made.
    """

    name: str
    stored_bytes: int
    is_whole: bool


@dataclass(frozen=True)
class BenchPlace:
    """Where the benchmarks of a store keep their data."""

    url: str
    machine: Machine

    @cached_property
    def backend(self) -> Backend:
        """The store below the benchmarks' folder."""
        return connect.open_store(self.url, None, self.machine)

    def url_of(self, name: str) -> str:
        """The repository of a name."""
        return f"{self.url}/{name}"

    def folder_of(self, name: str) -> Path | None:
        """Its folder, where the store is on this machine's disk."""
        root = self.backend.local_root
        return None if root is None else root / name

    def there(self) -> list[BenchData]:
        """What benchmarks left, by name. Lists the whole folder."""
        sizes: dict[str, int] = {}
        begun: set[str] = set()
        for each in self.backend.list(""):
            name, _, key = each.key.partition("/")
            sizes[name] = sizes.get(name, 0) + each.bytes
            if key == IDENTITY_KEY:
                begun.add(name)
        return [
            BenchData(name, size, name in begun and self._is_whole(name))
            for name, size in sorted(sizes.items())
        ]

    def remove(self, name: str) -> None:
        """Delete a repository and all that lies in it."""
        folder = self.folder_of(name)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            with suppress(OSError):  # others' data lies there
                folder.parent.rmdir()
            return
        keys = [each.key for each in self.backend.list(f"{name}/")]
        for _ in ordered_map(keys, self.backend.delete, threads=_DELETES, name="bench-remove"):
            pass

    def check_room(self, wanted_bytes: int) -> int | None:
        """Bytes that are free, None where the store does not tell.

        Raises:
            StorageError: not enough for so many.
        """
        root = self.backend.local_root
        if root is None:
            return None
        there = next(each for each in (root, *root.parents) if each.exists())
        free = shutil.disk_usage(there).free
        if free < wanted_bytes * _SPARE:
            raise StorageError(
                f"{there} has {bytes_text(free)} free, and the benchmark writes "
                f"{bytes_text(wanted_bytes)}: give a smaller --size, or another store"
            )
        return free

    @contextmanager
    def new(self, shape: str) -> Iterator[str]:
        """Name of a new repository, which is removed where the block is left by an error."""
        name = f"{shape}-{secrets.token_hex(4)}"
        is_made = False
        try:
            yield name
            is_made = True
        finally:
            if not is_made:
                self.remove(name)

    @contextmanager
    def lent(self, name: str, *, keep: bool) -> Iterator[None]:
        """A repository that is removed when the block is left, however, unless it is to be kept."""
        try:
            yield
        finally:
            if not keep:
                self.remove(name)

    def _is_whole(self, name: str) -> bool:
        try:
            core = connect.connect(self.url_of(name), None, self.machine)
        except Error:  # somebody is at it, in this moment
            return False
        return bool(core.log.refresh().state.refs)


def bench_place(store: str, machine: Machine) -> BenchPlace:
    """Where benchmarks of the store at a URL or folder keep their data.

    Raises:
        InvalidInputError: a repository lies there.
        UnsupportedError: a service, or memory, which other processes do not see.
    """
    url = store if connect.is_url(store) else str(machine.path(store))
    scheme = scheme_of(url)
    if scheme == "memory" or SCHEMES.get(scheme) == "http":
        raise UnsupportedError(
            f"{store}: benchmarks make repositories in a folder or a bucket, and read them by "
            "several processes. Name the store that the service has, or a folder."
        )
    url = url.rstrip("/")
    if connect.open_store(url, None, machine).size(IDENTITY_KEY) is not None:
        raise InvalidInputError(
            f"{store} is a repository, in which nothing else may lie: name the folder or prefix "
            "above it, or another one of the same store"
        )
    return BenchPlace(f"{url}/{FOLDER}", machine)
