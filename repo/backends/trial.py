"""Trial of a store: checks that work in a folder of their own, judged, timed, and cleaned up after.

What is checked stands in `tensorrepo.repo.backends.conformance`. A check says what it found, or
raises `BrokenPromise`. What a trial made is removed again, also after a failure or Ctrl-C.
"""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from tensorrepo.repo.backends.base import Backend, Guarantee, KeepsFolders, StoredKey
from tensorrepo.repo.backends.disk import TEMPORARY
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, UnsupportedError
from tensorrepo.repo.threads import ordered_map

FOLDER: Final = "doctor-"  # what the prefixes of trials begin with
OK: Final = "ok"
WARNING: Final = "warning"
ERROR: Final = "error"
VALUE: Final = bytes(range(256)) * 40

_LONGEST_SECONDS: Final = 180.0  # then nothing further is tried
_TIMED: Final = 9
_DELETES: Final = 16  # at once


class BrokenPromise(Exception):
    """What a check expected, and what it found."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"expected {expected}, found {found}")
        self.expected, self.found = expected, found


class NotTried(Exception):
    """The store does not promise this, or it cannot be seen from here; says which."""


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What came of one check.

    Attributes:
        what: name of the check.
        level: "ok", "warning" for what was not tried or limits the use, "error" for a fault.
        found: what was found.
        expected: what was expected instead; "" where nothing else was.
        consequence: what it means; "" where all is well.
        median_ms: milliseconds that a timed call takes, their median; None where nothing was timed.
    """

    what: str
    level: str
    found: str
    expected: str = ""
    consequence: str = ""
    median_ms: float | None = None


class CheckFolder:
    """A folder of a store for one check, whose keys are noted for their removal."""

    def __init__(self, backend: Backend, folder: str, made: set[str]) -> None:
        self.backend = backend
        self.prefix = folder
        self._made = made

    def key(self, name: str = "value") -> str:
        """A key of this folder."""
        key = self.prefix + name
        self._made.add(key)
        return key

    def put(self, data: bytes, name: str = "value") -> str:
        """A key that holds `data`, and did not exist."""
        key = self.key(name)
        same("that a new key is created", True, self.backend.create(key, (data,)))
        return key

    def put_many(self, values: dict[str, bytes]) -> list[str]:
        """Several keys, in the order of `values`."""
        keys = {self.key(name): data for name, data in values.items()}
        with self.backend.uploads() as uploads:
            for key, data in keys.items():
                uploads.create(key, (data,))
            same("that all of them are new", dict.fromkeys(keys, True), uploads.finish())
        return list(keys)

    def names(self, below: str = "") -> list[str]:
        """What a listing gives, without the folder's own prefix."""
        return [each.key.removeprefix(self.prefix) for each in self._list(below)]

    def sizes(self) -> dict[str, int]:
        """Bytes of each name, as a listing says."""
        return {each.key.removeprefix(self.prefix): each.bytes for each in self._list("")}

    def _list(self, below: str) -> list[StoredKey]:
        return list(self.backend.list(self.prefix + below))


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of a store.

    Attributes:
        name: what is checked.
        run: gives what it found in a folder of its own; raises `BrokenPromise`, `NotTried`.
        consequence: what it means when the promise is broken.
        level: "warning" where a repository can do without it.
    """

    name: str
    run: Callable[[CheckFolder], str]
    consequence: str
    level: str = ERROR


class Trial:
    """A run of checks against one store.

    Args:
        backend: the store, with or without a repository in it.
        checks: which ones, in this order.
        below: folder in which the trial has its own, "" or with "/" at its end.
        clock: seconds that pass.

    Raises:
        UnsupportedError: the store can only be read.
    """

    def __init__(
        self,
        backend: Backend,
        checks: Sequence[Check],
        *,
        below: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if backend.guarantee is Guarantee.READ_ONLY:
            raise UnsupportedError(
                f"{backend.url} can only be read, so there is nothing to try: these checks write, "
                "read and delete keys of their own"
            )
        self.backend = backend
        self.prefix = f"{below}{FOLDER}{secrets.token_hex(8)}/"
        self.checks = tuple(checks)
        self.left: list[str] = []  # keys that could not be removed, once that was tried
        self._clock = clock
        self._made: set[str] = set()
        self._is_reached = False

    @property
    def place(self) -> str:
        """Where all keys of the trial are, for people."""
        return f"{self.backend.url}/{self.prefix}"

    def run(self) -> Generator[CheckResult]:
        """The result of each check, as it comes. What was made is removed however this ends.

        Raises:
            Error: not a single key can be created: no such bucket, no right to write, no network.
        """
        folders = _absent_folders(self.backend)
        begun = self._clock()
        try:
            self.backend.create(self._folder("first").key(), (b"first",))
            self._is_reached = True
            for number, check in enumerate(self.checks):
                if self._clock() - begun > _LONGEST_SECONDS:
                    late = f"not tried: the checks before took {_LONGEST_SECONDS:.0f} s"
                    yield CheckResult(check.name, WARNING, late)
                    continue
                yield judged(check, self._folder(f"{number:02}"))
            yield from self._timings()
        finally:
            self._remove(folders)

    def removal(self) -> CheckResult | None:
        """What could not be removed, once `run` has ended; None: nothing is left."""
        if not self.left:
            return None
        found = f"{len(self.left):,} keys below {self.place} could not be removed: delete them"
        return CheckResult("removal", WARNING, found)

    def _folder(self, name: str) -> CheckFolder:
        return CheckFolder(self.backend, f"{self.prefix}{name}/", self._made)

    def _timings(self) -> Generator[CheckResult]:
        """How long small calls take: told, and not judged."""
        at = self._folder("timed")
        keys = [at.key(str(number)) for number in range(_TIMED)]
        calls: dict[str, Callable[[str], object]] = {
            "small write": lambda key: self.backend.create(key, (VALUE,)),
            "small read": self.backend.read,
            "small listing": lambda _: list(self.backend.list(at.prefix)),
        }
        for what, call in calls.items():
            try:
                times = [self._milliseconds(call, key) for key in keys]
            except Error as error:
                yield CheckResult(what, WARNING, str(error))
                return
            median = statistics.median(times)
            yield CheckResult(what, OK, f"median {median:.2f} ms of {_TIMED}", median_ms=median)

    def _milliseconds(self, call: Callable[[str], object], key: str) -> float:
        begun = self._clock()
        call(key)
        return (self._clock() - begun) * 1e3

    def _remove(self, folders: Sequence[Path]) -> None:
        """Take away what was made, as far as the store lets us; notes in `left` what stays."""
        keys = self._made | set(self._listed())  # the one that failed may have landed
        for _ in ordered_map(sorted(keys), self._delete, threads=_DELETES, name="trial-remove"):
            pass
        if isinstance(self.backend, KeepsFolders):
            self.backend.remove_folders(self.prefix)
        for folder in folders:
            with suppress(OSError):  # somebody else has begun to use it
                folder.rmdir()
        self.left = self._listed()

    def _listed(self) -> list[str]:
        with suppress(Error):
            # A store that does not answer has everybody wait a minute for each request.
            return [each.key for each in self.backend.list(self.prefix)] if self._is_reached else []
        return []

    def _delete(self, key: str) -> None:
        with suppress(Error):
            self.backend.delete(key)


def judged(check: Check, folder: CheckFolder) -> CheckResult:
    """Run one check. An error of the store's is its failure."""
    try:
        return CheckResult(check.name, OK, check.run(folder))
    except NotTried as reason:
        return CheckResult(check.name, WARNING, str(reason))
    except BrokenPromise as broken:
        found, expected = broken.found, broken.expected
    except Error as error:
        found, expected = str(error), "no error"
    return CheckResult(check.name, check.level, found, expected, check.consequence)


def same(what: str, expected: object, found: object) -> None:
    """Raise BrokenPromise where `found` is not what was expected of `what`."""
    if expected != found:
        raise BrokenPromise(f"{what} ({shown(expected)})", shown(found))


def refused(what: str, kind: type[Error], call: Callable[[], object]) -> None:
    """Raise BrokenPromise where `call` does not raise an error of that kind."""
    try:
        found = call()
    except kind:
        return
    raise BrokenPromise(what, shown(found))


def shown(value: object) -> str:
    """A value for people: long ones by their size and how they begin."""
    if isinstance(value, (bytes, bytearray, memoryview)) and len(value) > 16:
        return f"{len(value):,} bytes that begin with {bytes(value[:8])!r}"
    if isinstance(value, (list, dict)) and len(value) > 16:
        return f"{len(value):,} of {shown(sorted(value)[:3])} and so on"
    return repr(value) if value is not None else "none"


def _absent_folders(backend: Backend) -> list[Path]:
    """Folders of this machine that a trial will make beside its own, innermost first."""
    root = backend.local_root
    if root is None:
        return []
    return [each for each in (root / TEMPORARY, root, *root.parents) if not each.exists()]
