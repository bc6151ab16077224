"""Backends that fail on purpose, and one that counts.

Each wraps a real backend and sees every operation as (verb, key). An upload is an operation per
object and one to finish.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeVar

from tensorrepo.repo.backends.base import Backend, Guarantee, StoredKey, Uploads
from tensorrepo.repo.errors import Error, StorageError
from tensorrepo.repo.ids import Buffer

T = TypeVar("T")
Loss = Literal["before", "after", "later", "twice"]


class Crash(BaseException):
    """The process died here; nothing but a test may catch it."""


class WrappedBackend:
    """Every operation goes through `step`.

    Args:
        inner: the backend that does the work.
        late: uploads are carried out one by one by `finish`, instead of as they come.
    """

    def __init__(self, inner: Backend, *, late: bool = False) -> None:
        self.inner = inner
        self.late = late
        self.operations: list[tuple[str, str]] = []
        self.lock = threading.RLock()

    @property
    def url(self) -> str:
        return self.inner.url

    @property
    def guarantee(self) -> Guarantee:
        return self.inner.guarantee

    @property
    def local_root(self) -> Path | None:
        return self.inner.local_root

    def step(self, verb: str, key: str, work: Callable[[], T]) -> T:
        """Do one operation; subclasses decide how it ends. One at a time."""
        self.operations.append((verb, key))
        return work()

    def read(self, key: str) -> bytes:
        return self._step("read", key, lambda: self.inner.read(key))

    def read_range(self, key: str, start: int, stop: int) -> Buffer:
        return self._step("read", key, lambda: self.inner.read_range(key, start, stop))

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        self._step("read", key, lambda: self.inner.read_into(key, start, buffer))

    def size(self, key: str) -> int | None:
        return self._step("size", key, lambda: self.inner.size(key))

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        return self._step("create", key, lambda: self.inner.create(key, parts))

    def uploads(self) -> Uploads:
        return WrappedUploads(self, self.inner.uploads())

    def overwrite(self, key: str, parts: Sequence[Buffer]) -> None:
        self._step("overwrite", key, lambda: self.inner.overwrite(key, parts))

    def delete(self, key: str) -> None:
        self._step("delete", key, lambda: self.inner.delete(key))

    def list(self, prefix: str) -> Iterator[StoredKey]:
        return self._step("list", prefix, lambda: iter([*self.inner.list(prefix)]))

    def close(self) -> None:
        self.inner.close()

    def _step(self, verb: str, key: str, work: Callable[[], T]) -> T:
        with self.lock:
            return self.step(verb, key, work)


class WrappedUploads(Uploads):
    """Uploads whose creates and finish are steps of the backend."""

    def __init__(self, backend: WrappedBackend, inner: Uploads) -> None:
        self._backend = backend
        self._inner = inner
        self._waiting: list[tuple[str, Sequence[Buffer]]] = []

    def create(self, key: str, parts: Sequence[Buffer]) -> None:
        if self._backend.late:
            self._waiting.append((key, parts))
        else:
            self._upload(key, parts)

    def finish(self) -> dict[str, bool]:
        created: dict[str, bool] = {}
        for key, parts in self._waiting:
            self._upload(key, parts)
            # One by one, so that a crash leaves any first part of them durable.
            created |= self._inner.finish()
        self._waiting = []
        return self._backend._step("finish", "", lambda: created | self._inner.finish())

    def abort(self) -> None:
        self._inner.abort()

    def _upload(self, key: str, parts: Sequence[Buffer]) -> None:
        self._backend._step("upload", key, lambda: self._inner.create(key, parts))


class ActedOnBackend(WrappedBackend):
    """Right before operation `at`, counted from 1, `act` is called with `inner`; once."""

    def __init__(self, inner: Backend, at: int, act: Callable[[Backend], object]) -> None:
        super().__init__(inner)
        self.at = at
        self._act = act

    def step(self, verb: str, key: str, work: Callable[[], T]) -> T:
        self.operations.append((verb, key))
        if len(self.operations) == self.at:
            self._act(self.inner)
        return work()


class CrashBackend(WrappedBackend):
    """Dies right after operation `die_after`, counted from 1; 0 dies before the first.

    Every later operation raises `Crash` without being done, as nothing is done by the dead.
    """

    def __init__(self, inner: Backend, die_after: int, *, late: bool = False) -> None:
        super().__init__(inner, late=late)
        self.die_after = die_after

    def step(self, verb: str, key: str, work: Callable[[], T]) -> T:
        self.operations.append((verb, key))
        number = len(self.operations)
        if number > self.die_after:
            raise Crash(f"dead since operation {self.die_after}, before {verb} {key}")
        result = work()
        if number == self.die_after:
            raise Crash(f"died after operation {number}, {verb} {key}")
        return result


class LostReplyBackend(WrappedBackend):
    """Operation `at`, counted from 1, goes wrong on its way; the others are done.

    Modes: ``before``: it is never done, the caller sees a transient error. ``after``: it is done,
    the caller sees the error. ``later``: the caller sees the error, and it is done right after the
    operation that follows (or by `settle`). ``twice``: a client in between repeats it, and the
    caller sees the second reply: its own create "exists".
    """

    def __init__(
        self, inner: Backend, at: int, mode: Loss = "before", *, late: bool = False
    ) -> None:
        super().__init__(inner, late=late)
        self.at = at
        self.mode = mode
        self._postponed: Callable[[], object] | None = None

    def step(self, verb: str, key: str, work: Callable[[], T]) -> T:
        self.operations.append((verb, key))
        if len(self.operations) != self.at:
            try:
                return work()
            finally:
                self.settle()
        if self.mode in {"after", "twice"}:
            work()
        if self.mode == "twice":
            return work()
        if self.mode == "later":
            self._postponed = work
        raise StorageError(f"the reply to {verb} {key} was lost ({self.mode})", transient=True)

    def settle(self) -> None:
        """Let a postponed operation land now."""
        postponed, self._postponed = self._postponed, None
        if postponed is not None:
            with suppress(Error):  # it comes late: there is nobody left to tell
                postponed()


class FlippingBackend(WrappedBackend):
    """One bit of the answer to read `at`, counted from 1, is flipped on its way."""

    def __init__(self, inner: Backend, at: int) -> None:
        super().__init__(inner)
        self.at = at
        self.reads = 0

    def read(self, key: str) -> bytes:
        data = bytearray(super().read(key))
        self.reads += 1
        if self.reads == self.at:
            data[len(data) // 2] ^= 1
        return bytes(data)


class CountingBackend(WrappedBackend):
    """Counts operations by verb, and the bytes of values read and written."""

    def __init__(self, inner: Backend) -> None:
        super().__init__(inner)
        self.count: Counter[str] = Counter()
        self.read_bytes = 0
        self.written_bytes = 0

    @property
    def round_trips(self) -> int:
        """Requests, were each operation one; `finish` sends none of its own."""
        return sum(self.count.values()) - self.count["finish"]

    def reset(self) -> None:
        """Count from nothing again."""
        self.count.clear()
        self.operations.clear()
        self.read_bytes = self.written_bytes = 0

    def step(self, verb: str, key: str, work: Callable[[], T]) -> T:
        self.operations.append((verb, key))
        self.count[verb] += 1
        result = work()
        if isinstance(result, (bytes, bytearray, memoryview)):
            self.read_bytes += len(result)
        return result

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        super().read_into(key, start, buffer)
        self.read_bytes += buffer.nbytes

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        self._count_written(parts)
        return super().create(key, parts)

    def overwrite(self, key: str, parts: Sequence[Buffer]) -> None:
        self._count_written(parts)
        super().overwrite(key, parts)

    def uploads(self) -> Uploads:
        return _CountingUploads(self, self.inner.uploads())

    def _count_written(self, parts: Sequence[Buffer]) -> None:
        self.written_bytes += sum(memoryview(part).nbytes for part in parts)


class _CountingUploads(WrappedUploads):
    def create(self, key: str, parts: Sequence[Buffer]) -> None:
        assert isinstance(self._backend, CountingBackend)
        self._backend._count_written(parts)
        super().create(key, parts)
