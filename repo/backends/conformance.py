"""Conformance checks of a store: whether it keeps what `tensorrepo.repo.backends.base` promises.

`CHECKS` names them, each with what it means when it fails; `tensorrepo.repo.backends.trial` runs
them. A fault may hide for once, so races and reads after writes are repeated. A store that passes
is not proved: it was not caught.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Final, Self

from tensorrepo.repo.backends.base import MAX_KEY_BYTES, Backend, Guarantee, SendsParts
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.backends.trial import (
    VALUE,
    WARNING,
    BrokenPromise,
    Check,
    CheckFolder,
    NotTried,
    refused,
    same,
    shown,
)
from tensorrepo.repo.errors import Error, NotFoundError, StorageError
from tensorrepo.repo.threads import ordered_map

_THREADS: Final = 8
_ROUNDS: Final = 16
_LISTED: Final = 1025  # stores give at most 1,000 keys, Azure 5,000, in one answer
_BATCH: Final = 128
_LISTED_SECONDS: Final = 10.0
_CHILD_SECONDS: Final = 60.0
_SOON_SECONDS: Final = 0.002
_PART_BYTES: Final = 5 << 20  # S3 takes no smaller one, but for the last
_LARGE_BYTES: Final = 12 << 20


# ------------------------------------------------------------------------------ creates


def _created_again(at: CheckFolder) -> str:
    key = at.put(b"first")
    same("that creating an existing key is refused", False, at.backend.create(key, (b"2nd",)))
    with at.backend.uploads() as uploads:
        uploads.create(key, (b"third",))
        same("that an upload says that its key exists", {key: False}, uploads.finish())
    same("that the key keeps its value", b"first", at.backend.read(key))
    return "refused, and the value stayed"


def _race_of_threads(at: CheckFolder) -> str:
    _needs_atomic(at.backend)
    for number in range(_ROUNDS):
        _race_once(at.backend, at.key(f"{number:02}"))
    return f"{_ROUNDS} races of {_THREADS} threads, one winner each"


def _race_once(backend: Backend, key: str) -> None:
    barrier = threading.Barrier(_THREADS)

    def create(writer: int) -> bool:
        barrier.wait(_CHILD_SECONDS)
        return backend.create(key, (_value_of(writer),))

    creates = ordered_map(range(_THREADS), create, threads=_THREADS, name="trial-race")
    try:
        _judge_race(backend, key, list(creates))
    finally:
        barrier.abort()  # nobody waits for those that did not get there


def _race_of_processes(at: CheckFolder) -> str:
    _needs_atomic(at.backend)
    if isinstance(at.backend, MemoryBackend):
        raise NotTried("not tried: no other process sees this store")
    with _OtherProcess(at.backend) as other:
        for number in range(_ROUNDS):
            key, moment = at.key(f"{number:02}"), time.time() + _SOON_SECONDS
            other.begin(key, moment)
            mine = _create_at(at.backend, key, moment, 0)
            _judge_race(at.backend, key, [mine, other.won()])
    return f"{_ROUNDS} races of 2 processes, one winner each"


def _needs_atomic(backend: Backend) -> None:
    if backend.guarantee is not Guarantee.ATOMIC:
        raise NotTried(
            "not promised by this kind of store: one process may write at a time. Use a local "
            "disk, S3, GCS or Azure where several people or jobs commit."
        )


def _judge_race(backend: Backend, key: str, won: Sequence[bool]) -> None:
    """Refuse a second winner, and another value than the winner's.

    No winner at all is allowed: a create whose answer was lost is sent again by clients, and then
    finds its own key.
    """
    winners = [writer for writer, each in enumerate(won) if each]
    if len(winners) > 1:
        raise BrokenPromise("one winner of a race for one key", f"{len(winners)}")
    found = backend.read(key)
    values = [_value_of(writer) for writer in winners or range(len(won))]
    if found not in values:
        raise BrokenPromise("the value of the one that won", shown(found))


def _value_of(writer: int) -> bytes:
    """What a writer writes: long enough that a mixture of two would show."""
    return bytes([65 + writer]) * 5000


def _create_at(backend: Backend, key: str, moment: float, writer: int) -> bool:
    while 0 < moment - time.time() < 1:  # to sleep would wake up too late for a race
        pass
    return backend.create(key, (_value_of(writer),))


class _OtherProcess:
    """A process with the same backend, which creates keys when it is told to."""

    def __init__(self, backend: Backend) -> None:
        context = multiprocessing.get_context("spawn")
        self._link, far = context.Pipe()
        with far:  # the child has a copy; with ours its end would not be seen
            self._process = context.Process(
                target=_create_on_demand, args=(backend, far), name="tensorrepo-trial", daemon=True
            )
            self._process.start()

    def __enter__(self) -> Self:
        try:
            self._answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()
        self._process.kill()
        self._process.join()

    def begin(self, key: str, moment: float) -> None:
        """Have it create `key` at a moment of the wall clock, which processes share."""
        self._link.send_bytes(f"{moment!r} {key}".encode())

    def won(self) -> bool:
        """Whether its create made the key."""
        answer = self._answer()
        if answer not in ("True", "False"):
            raise StorageError(answer)
        return answer == "True"

    def _answer(self) -> str:
        with suppress(EOFError, OSError):
            if self._link.poll(_CHILD_SECONDS):
                return self._link.recv_bytes().decode()
        raise NotTried("not tried: a second process of this Python does not start here")


def _create_on_demand(backend: Backend, link: Connection) -> None:
    """What the other process does: a key and a moment come, whether it won goes back."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both: the parent decides
    with suppress(EOFError, OSError):
        link.send_bytes(b"ready")
        while True:
            moment, key = link.recv_bytes().decode().split(" ")
            try:
                answer = str(_create_at(backend, key, float(moment), 1))
            except Error as error:
                answer = str(error)
            link.send_bytes(answer.encode())


def _seen_at_once(at: CheckFolder) -> str:
    for number in range(_ROUNDS):
        name = f"{number:02}"
        key, data = at.key(name), b"%d" % number * 9
        # To be told once that a key is absent must not stay in anybody's cache: so slots are found.
        refused("that a key is absent at first", NotFoundError, partial(at.backend.read, key))
        at.put(data, name)
        same("to read what was just written", data, at.backend.read(key))
        same("its size", len(data), at.backend.size(key))
        same("to list what was just written", True, name in at.names())
    return f"{_ROUNDS} keys were there as soon as they were written"


def _uploaded_side_by_side(at: CheckFolder) -> str:
    old = at.put(b"old", "old")
    values = {at.key(f"{number:02}"): b"%d" % number for number in range(40)}
    with at.backend.uploads() as uploads:

        def create(key: str) -> None:
            uploads.create(key, (values.get(key, b"new"),))

        keys = [*values, old]
        for _ in ordered_map(keys, create, threads=_THREADS, name="trial-upload"):
            pass
        told = dict.fromkeys(values, True) | {old: False}
        same("to be told which keys are new", told, uploads.finish())
    for key, data in (values | {old: b"old"}).items():
        same("the value of each", data, at.backend.read(key))
    return f"{len(values)} keys of {_THREADS} threads, and one that was there"


def _abandoned(at: CheckFolder) -> str:
    data = VALUE * 30
    with at.backend.uploads() as uploads:
        for number in range(5):
            uploads.create(at.key(str(number)), (data,))
        uploads.abort()
    sizes = set(at.sizes().values())
    if not sizes <= {len(data)}:
        raise BrokenPromise(f"no keys, or keys of {len(data)} bytes", f"some of {sorted(sizes)}")
    return "an upload that is given up leaves nothing in part"


# ------------------------------------------------------------------------------ reads


def _whole_values(at: CheckFolder) -> str:
    last = memoryview(VALUE)[98:].cast("H")
    views = (VALUE[:10], bytearray(VALUE[10:50]), memoryview(VALUE)[50:98], b"", last)
    key = at.key()
    same("that a new key is created", True, at.backend.create(key, views))
    same("all bytes of it", VALUE, at.backend.read(key))
    empty = at.put(b"", "empty")
    same("an empty value", b"", at.backend.read(empty))
    same("that an empty value has a size", 0, at.backend.size(empty))
    same("that it is a value", False, at.backend.create(empty, (b"other",)))
    return f"{len(VALUE):,} bytes, and none"


def _ranges(at: CheckFolder) -> str:
    key, end = at.put(VALUE), len(VALUE)
    for start, stop in ((0, 1), (0, end), (17, 5000), (end - 1, end), (9, 9)):
        told = f"bytes [{start}, {stop})"
        same(told, VALUE[start:stop], bytes(at.backend.read_range(key, start, stop)))
        buffer = bytearray(stop - start + 2)
        at.backend.read_into(key, start, memoryview(buffer)[1:-1])
        same(f"{told} in a buffer", b"\0" + VALUE[start:stop] + b"\0", bytes(buffer))
    return "exactly the bytes asked for"


def _past_the_end(at: CheckFolder) -> str:
    key, end = at.put(VALUE), len(VALUE)
    for start, stop in ((0, end + 1), (end, end + 9), (10**6, 10**6 + 1)):
        told = f"an error for bytes [{start}, {stop}) of {end}"
        refused(told, StorageError, partial(at.backend.read_range, key, start, stop))
    buffer = memoryview(bytearray(end))
    refused(
        "an error for a buffer that ends behind the value",
        StorageError,
        lambda: at.backend.read_into(key, 10, buffer),
    )
    return "an error, and no short answer"


def _absent_keys(at: CheckFolder) -> str:
    key = at.key("absent")
    same("no size of an absent key", None, at.backend.size(key))
    refused("that it is not found", NotFoundError, lambda: at.backend.read(key))
    for stop in (0, 1):
        told = "that no range of it is found"
        refused(told, NotFoundError, partial(at.backend.read_range, key, 0, stop))
    there = at.put(VALUE)
    same("the size of a key", len(VALUE), at.backend.size(there))
    return "told apart, and sizes are right"


def _overwritten(at: CheckFolder) -> str:
    key = at.key()
    values = [bytes([65 + number]) * (9000 if number % 2 else 5000) for number in range(_ROUNDS)]
    at.backend.overwrite(key, (values[0],))
    ahead = ordered_map(
        values,
        lambda value: at.backend.overwrite(key, (value,)),
        threads=1,
        ahead=_ROUNDS,
        name="trial-overwrite",
    )
    for _ in ahead:  # the thread goes on with the next ones
        if (found := at.backend.read(key)) not in values:
            raise BrokenPromise("an old or a new value, whole", shown(found))
    same("the newest value", values[-1], at.backend.read(key))
    at.backend.overwrite(key, (b"short",))
    same("a shorter value in its place", b"short", at.backend.read(key))
    same("its size", 5, at.backend.size(key))
    return f"{_ROUNDS} times, and readers saw whole values"


def _large(at: CheckFolder) -> str:
    return _store_large(at.backend, at.key())


def _large_in_parts(at: CheckFolder) -> str:
    if not isinstance(at.backend, SendsParts):
        return "this kind of store needs no parts"
    return _store_large(at.backend.with_parts(_PART_BYTES), at.key())


def _store_large(backend: Backend, key: str) -> str:
    data = os.urandom(_LARGE_BYTES + 3)  # nobody on the way can make that shorter
    half = memoryview(data)[: _LARGE_BYTES // 2]
    parts = (half, memoryview(data)[_LARGE_BYTES // 2 :])
    same("that a new key is created", True, backend.create(key, parts))
    same("its size", len(data), backend.size(key))
    same("all bytes of it", data, backend.read(key))
    start, stop = _PART_BYTES - 7, _PART_BYTES + 7
    same("a range of it", data[start:stop], bytes(backend.read_range(key, start, stop)))
    buffer = bytearray(_PART_BYTES)
    backend.read_into(key, 7, memoryview(buffer))
    same("as much of it in a buffer", data[7 : 7 + _PART_BYTES], bytes(buffer))
    return f"{len(data) / 2**20:.0f} MiB came back as they were"


# ------------------------------------------------------------------------------ names, listings

_LONG: Final = ("x" * 255, "y" * (MAX_KEY_BYTES - 255 - 64))  # 64: for the prefix of a trial
_UNUSUAL: Final = (
    "-", "_", ".hidden", "..two", "...", "a.b", "a-b", "a_b", "ab.tmp", "CAPITALS", "0", "part-1",
    "index.html", "d.d/e_e/f-f/g/h/i/j", "/".join(_LONG),
)  # fmt: skip


def _unusual_names(at: CheckFolder) -> str:
    values = {name: name.encode() for name in _UNUSUAL}
    for key, data in zip(at.put_many(values), values.values(), strict=True):
        same(f"the value of {key[:80]}", data, at.backend.read(key))
    same("to list them as they are", sorted(values), at.names())
    return f"{len(values)} names of letters, digits, '.', '-' and '_', up to {MAX_KEY_BYTES} bytes"


def _listed_in_order(at: CheckFolder) -> str:
    names = ["a_", "a-b", "a.b", "a0", "b/c", "b-", "b/a/x", "b/a-x", "b/a.x", "b/ab", "C/x", "_"]
    at.put_many({name: name.encode() for name in names})
    found = at.names()
    same("to list all keys", sorted(names), sorted(found))
    same("ascending order of whole keys", sorted(names), found)
    same("sizes in the listing", {name: len(name) for name in names}, at.sizes())
    same("the same of one folder", ["b/a-x", "b/a.x", "b/a/x", "b/ab", "b/c"], at.names("b/"))
    return f"{len(names)} keys, ascending, with their sizes"


def _prefix_borders(at: CheckFolder) -> str:
    names = ("log/1", "log/2", "log/deep/3", "logs/4", "log-5", "lo/6", "objects/log/7")
    at.put_many(dict.fromkeys(names, b"x"))
    same("keys below log/ alone", ["log/1", "log/2", "log/deep/3"], at.names("log/"))
    same("nothing below a prefix that nothing has", [], at.names("none/"))
    return "what is below a prefix, and nothing beside it"


def _long_listing(at: CheckFolder) -> str:
    names: list[str] = []
    begun = time.monotonic()
    while len(names) < _LISTED and time.monotonic() - begun < _LISTED_SECONDS:
        more = [f"{number:04x}" for number in range(len(names), len(names) + _BATCH)]
        at.put_many(dict.fromkeys(more[: _LISTED - len(names)], b""))
        names += more[: _LISTED - len(names)]
    found = at.names()
    same("the number of keys", len(names), len(found))
    same("all keys, in order", names, found)
    if len(names) < _LISTED:
        raise NotTried(
            f"{len(names):,} keys are listed; there was no time for the {_LISTED:,} of more than "
            "one page"
        )
    return f"{_LISTED:,} keys, which most stores list by two answers"


# ------------------------------------------------------------------------------ deletion


def _deleted(at: CheckFolder) -> str:
    beside = at.put_many({"value-2": b"2", "valu": b"4", "value.x": b"5"})
    for number in range(_ROUNDS // 2):
        key, data = at.put(b"%d" % number), b"%d" % number
        same("to read a key that was deleted before", data, at.backend.read(key))
        at.backend.delete(key)
        same("no size of a deleted key", None, at.backend.size(key))
        refused("that it is not found", NotFoundError, partial(at.backend.read, key))
        same("that it is not listed", False, "value" in at.names())
    at.backend.delete(at.key())
    at.backend.delete(at.key("never/there"))
    same("that the others stay", {"value-2": 1, "valu": 1, "value.x": 1}, at.sizes())
    same("their values", [b"2", b"4", b"5"], [at.backend.read(key) for key in beside])
    return f"{_ROUNDS // 2} times gone at once, and created again"


_OVERWRITES: Final = "commits of two writers could overwrite each other, and be lost"
_MISSES: Final = "writers and readers would miss commits that were just made"
_WRONG: Final = "data could not be read, or be read wrongly"

CHECKS: Final[tuple[Check, ...]] = (
    Check("creating again", _created_again, _OVERWRITES),
    Check("race of threads", _race_of_threads, _OVERWRITES),
    Check("race of processes", _race_of_processes, _OVERWRITES),
    Check("read after write", _seen_at_once, _MISSES),
    Check("uploads", _uploaded_side_by_side, "objects of a commit could be missing"),
    Check("abandoned uploads", _abandoned, "a killed writer would leave damaged objects"),
    Check("whole values", _whole_values, _WRONG),
    Check("ranges", _ranges, _WRONG),
    Check("past the end", _past_the_end, "a value that was cut short would be taken for whole"),
    Check("absent keys", _absent_keys, "the end of the log could not be told from an error"),
    Check("overwriting", _overwritten, "the log's hint would mislead, and opening be slow"),
    Check("large values", _large, _WRONG),
    Check(
        "values in parts", _large_in_parts, "values of more than 4 GiB cannot be stored", WARNING
    ),
    Check("unusual names", _unusual_names, "keys that a repository may need cannot be stored"),
    Check("listing", _listed_in_order, "gc, fsck and copies would overlook objects"),
    Check("prefixes", _prefix_borders, "gc could take other keys for its own"),
    Check("long listings", _long_listing, "gc, fsck and copies would overlook objects"),
    Check("deleting", _deleted, "gc could free nothing, or objects stored again be lost"),
)
