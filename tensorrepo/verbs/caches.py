"""Disk caches of this machine: what they hold, by repository, and how they are made smaller.

    objects   small objects of remote repositories
    pages     pages of remote datasets, kept by streams
    derived   what transforms of streams made, with ``cache="derived"``

Each is a folder that all processes of this user share; nothing in them is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tensorrepo.connect import Machine
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.cache import CacheUse, DiskCache, PageDiskCache, Trimmed


@dataclass(frozen=True, slots=True)
class HeldBytes:
    """What one cache holds of one repository.

    Attributes:
        cache: name of the cache.
        folder: where it lies.
        origin: URL of the repository that the values were first kept for; "" where nobody said.
        files: number of values.
        bytes: bytes that they take on disk.
        oldest: when the one that was not used for longest was used, in seconds since the epoch.
        newest: when one was used last.
    """

    cache: str
    folder: str
    origin: str
    files: int
    bytes: int
    oldest: float
    newest: float


def machine_caches(machine: Machine, folder: str | None = None) -> dict[str, DiskCache]:
    """The caches of this machine by name; with a `folder`, the one cache that lies there.

    Raises:
        InvalidInputError: `folder` is there and no cache made it.
    """
    if folder is not None:
        root = machine.path(Path(folder).expanduser())
        named = PageDiskCache(root, 0)
        refused = named.refusal()
        if refused is not None:
            raise InvalidInputError(f"{root} is no cache: {refused}")
        return {"folder": named}
    folders = machine.cache_folder
    return {
        "objects": DiskCache(folders / "objects", 0),
        "pages": PageDiskCache(folders / "pages", 0),
        "derived": DiskCache(folders / "derived", 0),
    }


def held_bytes(caches: dict[str, DiskCache]) -> list[HeldBytes]:
    """What caches hold, cache by cache, the repository with the most bytes first."""
    return [_held(name, cache, use) for name, cache in caches.items() for use in cache.uses()]


def _held(name: str, cache: DiskCache, use: CacheUse) -> HeldBytes:
    return HeldBytes(
        name, str(cache.root), use.origin, use.files, use.bytes, use.oldest, use.newest
    )


def trim_caches(
    caches: dict[str, DiskCache], to_bytes: int, origin: str | None = None
) -> dict[str, Trimmed]:
    """Make caches smaller until they have `to_bytes` together, each in proportion to its own.

    In each goes first what it would let go of first by itself. With an `origin`, only what was
    first kept for this repository counts, and goes.
    """
    taken = {name: sum(_sizes(cache, origin)) for name, cache in caches.items()}
    total_bytes = sum(taken.values())
    if total_bytes <= to_bytes:
        return dict.fromkeys(caches, Trimmed(0, 0))
    return {
        name: cache.trim(to_bytes * taken[name] // total_bytes, origin)
        for name, cache in caches.items()
    }


def _sizes(cache: DiskCache, origin: str | None) -> Iterator[int]:
    for use in cache.uses():
        if origin is None or use.origin == origin:
            yield use.bytes
