"""What tests of the log share: entries, logs over memory, and a store that misbehaves on order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tensorrepo.repo.backends.base import Guarantee, StoredKey, Uploads
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.errors import StorageError
from tensorrepo.repo.hashing.digests import object_digest
from tensorrepo.repo.ids import Buffer, Digest
from tensorrepo.repo.log.append import Appended, append
from tensorrepo.repo.log.apply import Folding
from tensorrepo.repo.log.reader import LogView, RepositoryLog
from tensorrepo.repo.log.records import (
    CanonicalValue,
    LogEntry,
    LogRecord,
    Update,
    decode_ref_updates,
    record_as_read,
)
from tensorrepo.repo.log.state import State, Verdict

IDENTITY = b'{"format":1,"id":"00000000000000000000000000000001"}\n'
MAIN = "heads/main"


def digest(number: int) -> Digest:
    """A digest that tests can tell apart."""
    return Digest(f"{number:064x}")


def encode_record(record: LogRecord) -> bytes:
    """The bytes of a slot."""
    return record_as_read(record)[1]


def fold(
    state: State, record: LogRecord, bulk: Callable[[Digest], tuple[Update, ...]]
) -> tuple[State, tuple[Verdict, ...]]:
    """The state after `record`, and what became of each of its entries."""
    folding = Folding(state)
    verdicts = folding.add(record, bulk)
    return folding.state(), verdicts


def entry(
    kind: str,
    *updates: tuple[str, int | None, int | None],
    txn: str = "t",
    data: dict[str, CanonicalValue] | None = None,
    bulk: Digest | None = None,
    actor: str = "Ann <ann@example.org>",
) -> LogEntry:
    """An entry whose digests are given as numbers."""
    moved = tuple(
        Update(ref, None if old is None else digest(old), None if new is None else digest(new))
        for ref, old, new in updates
    )
    return LogEntry(txn, kind, actor, 1, "", moved, bulk, data or {})


class Bulks:
    """Ref-updates objects without an object store."""

    def __init__(self) -> None:
        self.payloads: dict[Digest, bytes] = {}

    def put(self, payload: bytes) -> Digest:
        name = object_digest((payload,))
        self.payloads[name] = payload
        return name

    def __call__(self, name: Digest) -> tuple[Update, ...]:
        return decode_ref_updates(self.payloads[name])


def new_backend() -> MemoryBackend:
    backend = MemoryBackend()
    backend.create("repo.json", [IDENTITY])
    return backend


def open_log(backend: Any, **options: Any) -> RepositoryLog:
    read_bulk = options.pop("read_bulk", Bulks())
    return RepositoryLog(backend, IDENTITY, read_bulk, **options)


def set_main(txn: str, new: int) -> Callable[[LogView], tuple[LogEntry, ...]]:
    """Decides to move main from wherever it is."""

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        update = Update(MAIN, view.state.refs.get(MAIN), digest(new))
        return (LogEntry(txn, "commit", "Ann <ann@example.org>", 1, updates=(update,)),)

    return decide


def no_sleep(_: float) -> None:
    """Waiting is what tests need not do."""


def append_one(log: RepositoryLog, txn: str, new: int, **options: Any) -> Appended:
    return append(log, set_main(txn, new), rng=random.Random(1), sleep=no_sleep, **options)


def append_many(log: RepositoryLog, count: int, start: int = 1) -> None:
    for number in range(start, start + count):
        append_one(log, f"t{number}", number)


def landed_txns(backend: Any) -> list[str]:
    """Every transaction in the log, in order, as a fresh reader sees it."""
    log = open_log(backend)
    head = log.refresh().generation
    return [entry.txn for record in log.records(1, head + 1) for entry in record.entries]


class Crash(BaseException):
    """The process dies here."""


@dataclass
class Request:
    """One call of a store."""

    number: int
    operation: str
    key: str
    perform: Callable[[], Any]


@dataclass
class Faulty:
    """A backend over another one that hands every request to `rule`, which may do anything.

    `rule` gets the request and returns its answer, or raises; it performs it by calling
    `request.perform()`, then, later or never.
    """

    inner: Any
    rule: Callable[[Request], Any] = lambda request: request.perform()
    requests: list[tuple[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return str(self.inner.url)

    @property
    def guarantee(self) -> Guarantee:
        return self.inner.guarantee

    @property
    def local_root(self) -> Path | None:
        return None

    def _ask(self, operation: str, key: str, perform: Callable[[], Any]) -> Any:
        number = len(self.requests)
        self.requests.append((operation, key))
        return self.rule(Request(number, operation, key, perform))

    def read(self, key: str) -> bytes:
        return self._ask("read", key, lambda: self.inner.read(key))

    def read_range(self, key: str, start: int, stop: int) -> Buffer:
        raise NotImplementedError

    def read_into(self, key: str, start: int, buffer: memoryview) -> None:
        raise NotImplementedError

    def size(self, key: str) -> int | None:
        return self._ask("size", key, lambda: self.inner.size(key))

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        data = b"".join(parts)
        return self._ask("create", key, lambda: self.inner.create(key, [data]))

    def uploads(self) -> Uploads:
        raise NotImplementedError

    def overwrite(self, key: str, parts: Sequence[Buffer]) -> None:
        data = b"".join(parts)
        self._ask("overwrite", key, lambda: self.inner.overwrite(key, [data]))

    def delete(self, key: str) -> None:
        self._ask("delete", key, lambda: self.inner.delete(key))

    def list(self, prefix: str) -> Iterator[StoredKey]:
        return self._ask("list", prefix, lambda: iter(list(self.inner.list(prefix))))

    def close(self) -> None:
        self.inner.close()


def lost_reply() -> StorageError:
    return StorageError("the connection was reset", transient=True)
