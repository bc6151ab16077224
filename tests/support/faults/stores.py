"""Stores that break one promise each, as servers, proxies and mounts in the world do."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType

from tensorrepo.repo.backends.base import Backend, StoredKey
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend, MemoryUploads
from tensorrepo.repo.errors import NotFoundError
from tensorrepo.repo.ids import Buffer


class IgnoresTheCondition(MemoryBackend):
    """A server that takes every PUT: `If-None-Match` means nothing to it."""

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        self.overwrite(key, parts)
        return True


class LooksThenWrites(MemoryBackend):
    """Creates as most file systems do, with a gap between the look and the write."""

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        is_new = self.size(key) is None
        time.sleep(0.05)  # longer than threads are apart
        if is_new:
            self.overwrite(key, parts)
        return is_new


class LocksItsProcess(LocalBackend):
    """A mount that knows who writes in one process, and nothing of another one."""

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        is_new = self.size(key) is None
        time.sleep(0.2)  # longer than processes are apart
        if is_new:
            self.overwrite(key, parts)
        return is_new

    def __reduce__(self) -> tuple[object, ...]:
        return partial(LocksItsProcess, guarantee=self.guarantee), (self.local_root,)


class RemembersAbsence(MemoryBackend):
    """A cache on the way that keeps the answer that a key is not there."""

    def __init__(self) -> None:
        super().__init__()
        self.absent: set[str] = set()

    def read(self, key: str) -> bytes:
        if self.size(key) is None:
            self.absent.add(key)
        if key in self.absent:
            raise NotFoundError(f"no key {key}")
        return super().read(key)


class CallsAllNew(MemoryBackend):
    def uploads(self) -> MemoryUploads:
        return _AllNew(self)


class _AllNew(MemoryUploads):
    def finish(self) -> dict[str, bool]:
        return dict.fromkeys(super().finish(), True)


class ShowsHalf(MemoryBackend):
    """A server on which an upload is seen while it comes."""

    def uploads(self) -> MemoryUploads:
        return _Halves(self)


class _Halves(MemoryUploads):
    def create(self, key: str, parts: Sequence[Buffer]) -> None:
        data = b"".join(parts)
        super().create(key, (data[: len(data) // 2],))


class StoresTheFirstPart(MemoryBackend):
    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        return super().create(key, parts[:1])


class IgnoresTheStart(MemoryBackend):
    """A proxy that gives as many bytes as were asked for, from the beginning."""

    def read_range(self, key: str, start: int, stop: int) -> Buffer:
        return super().read_range(key, 0, stop - start)


class GivesWhatThereIs(MemoryBackend):
    """A server that answers a range behind the end by what it has."""

    def read_range(self, key: str, start: int, stop: int) -> Buffer:
        return self.read(key)[start:stop]


class CallsAbsentEmpty(MemoryBackend):
    def size(self, key: str) -> int | None:
        return super().size(key) or 0


class KeepsTheTail(MemoryBackend):
    """Overwrites in place, and does not cut what is left of a longer value."""

    def overwrite(self, key: str, parts: Sequence[Buffer]) -> None:
        data = b"".join(parts)
        old = self.read(key) if self.size(key) else b""
        super().overwrite(key, (data + old[len(data) :],))


class CutsLargeValues(MemoryBackend):
    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        return super().create(key, (b"".join(parts)[: 8 << 20],))


class LosesAPart(MemoryBackend):
    """Takes what comes whole; joins what comes in parts without the last one."""

    def with_parts(self, part_bytes: int) -> Backend:
        return CutsLargeValues(self.url)


class KnowsNoCapitals(MemoryBackend):
    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        return super().create(key.lower(), parts)

    def read(self, key: str) -> bytes:
        return super().read(key.lower())


class ListsByAge(MemoryBackend):
    """Lists keys as they came: as directory buckets of S3, in no order that anybody knows."""

    def list(self, prefix: str) -> Iterator[StoredKey]:
        return iter([*super().list(prefix)][::-1])


class ListsByBeginnings(MemoryBackend):
    """A server that cuts the "/" off a prefix."""

    def list(self, prefix: str) -> Iterator[StoredKey]:
        return (each for each in super().list("") if each.key.startswith(prefix.rstrip("/")))


class ListsOnePage(MemoryBackend):
    def list(self, prefix: str) -> Iterator[StoredKey]:
        return iter([*super().list(prefix)][:1000])


class DeletesWhatBeginsAlike(MemoryBackend):
    def delete(self, key: str) -> None:
        for each in [*self.list("")]:
            if each.key.startswith(key):
                super().delete(each.key)


# name of the check that catches it: the store, which may use a folder
FAULTY: Mapping[str, Callable[[Path], Backend]] = MappingProxyType(
    {
        "creating again": lambda _: IgnoresTheCondition(),
        "race of threads": lambda _: LooksThenWrites(),
        "race of processes": LocksItsProcess,
        "read after write": lambda _: RemembersAbsence(),
        "uploads": lambda _: CallsAllNew(),
        "abandoned uploads": lambda _: ShowsHalf(),
        "whole values": lambda _: StoresTheFirstPart(),
        "ranges": lambda _: IgnoresTheStart(),
        "past the end": lambda _: GivesWhatThereIs(),
        "absent keys": lambda _: CallsAbsentEmpty(),
        "overwriting": lambda _: KeepsTheTail(),
        "large values": lambda _: CutsLargeValues(),
        "values in parts": lambda _: LosesAPart(),
        "unusual names": lambda _: KnowsNoCapitals(),
        "listing": lambda _: ListsByAge(),
        "prefixes": lambda _: ListsByBeginnings(),
        "long listings": lambda _: ListsOnePage(),
        "deleting": lambda _: DeletesWhatBeginsAlike(),
    }
)
