"""Watching a ref: its new commits as they come.

What came is read from the log alone. How long to wait before the next look is another matter: on a
store some seconds; behind a service until its events tell of a move, or its connection breaks.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from typing import Final

from tensorrepo.repo.backends.base import TellsEvents
from tensorrepo.repo.changes.refs import BRANCHES, TAGS
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import NotFoundError, StorageError, UnsupportedError
from tensorrepo.repo.history.commits import Commit, commit_lines, read_commit
from tensorrepo.repo.history.trail import trail
from tensorrepo.repo.history.trees import EMPTY_TREE, lookup
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.suggest import did_you_mean
from tensorrepo.repo.tables import RecordTable, Shown

SILENCE_SECONDS: Final = 45.0  # three signs of life of a service
LONGEST_WAIT_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, repr=False)
class WatchedCommit(Shown):
    """A commit that came to a ref.

    Attributes:
        ref: whole name of the ref.
        digest: digest of the commit.
        commit: the commit itself.
        before: commit that came ahead of it: its first parent, or where the ref was before a reset;
            None: there was none.
    """

    ref: str
    digest: Digest
    commit: Commit = field(repr=False)
    before: Digest | None

    def to_table(self) -> RecordTable:
        """The commit."""
        return RecordTable(commit_lines(self.digest, self.commit))


def watch(
    core: RepositoryCore,
    ref: str,
    since: Digest | None,
    *,
    path: str = "",
    newest: bool = False,
    poll_seconds: float = 2.0,
    timeout_seconds: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[WatchedCommit]:
    """New commits of a ref, for ever; see `Repository.watch`.

    What does not answer is asked again, ever less often.

    Args:
        core: the repository.
        ref: a branch, a tag, or the whole name of a ref.
        since: commit to begin behind; None: where the ref is now.
        path: entry that a commit must have changed; "": any.
        newest: whether of several that came since the last look only the newest is given.
        poll_seconds: seconds between two looks at the log of a store.
        timeout_seconds: seconds without a commit after which it ends.
        sleep: waits so many seconds.
        clock: seconds from any start, never going back.
    """
    name, tip = _found(core, ref)
    watched = _Watched(core, name, path, newest)
    looks = _looks(core, name, poll_seconds, timeout_seconds, sleep)
    return _watch(watched, tip if since is None else since, looks, timeout_seconds, clock)


@dataclass(frozen=True, slots=True)
class _Watched:
    core: RepositoryCore
    ref: str
    path: str
    newest: bool

    def between(self, at: Digest, tip: Digest) -> Iterator[WatchedCommit]:
        """What is told of a ref that moved from `at` to `tip`."""
        told = filter(self._is_wanted, _between(self.core, self.ref, at, tip))
        if not self.newest:
            yield from told
            return
        for last in deque(told, maxlen=1):
            yield replace(last, before=at)

    def _is_wanted(self, new: WatchedCommit) -> bool:
        if not self.path:
            return True
        before, objects = new.before, self.core.objects
        tree = EMPTY_TREE if before is None else read_commit(objects, before).tree
        return lookup(objects, tree, self.path) != lookup(objects, new.commit.tree, self.path)


def _watch(
    watched: _Watched,
    at: Digest,
    looks: Iterator[None],
    timeout_seconds: float | None,
    clock: Callable[[], float],
) -> Iterator[WatchedCommit]:
    heard = clock()
    for _ in looks:
        tip = _tip(watched.core, watched.ref)
        if tip is not None and tip != at:
            try:
                for new in watched.between(at, tip):
                    at = new.digest  # what was told is not told again
                    yield new
                    heard = clock()
                at = tip
            except StorageError as error:
                if not error.transient:
                    raise
        if timeout_seconds is not None and clock() - heard >= timeout_seconds:
            return


def _between(core: RepositoryCore, ref: str, at: Digest, tip: Digest) -> Iterator[WatchedCommit]:
    """What came to a ref that moved from `at` to `tip`; the tip alone where it was set back."""
    before = at
    for digest in trail(core.objects, tip, at).commits or (tip,):
        yield WatchedCommit(ref, digest, read_commit(core.objects, digest), before)
        before = digest


def _looks(
    core: RepositoryCore,
    ref: str,
    poll_seconds: float,
    timeout_seconds: float | None,
    sleep: Callable[[float], None],
) -> Iterator[None]:
    """One item whenever it is time to look where the ref is."""
    backend = core.backend
    silence = min(SILENCE_SECONDS, timeout_seconds or SILENCE_SECONDS)
    wait = poll_seconds
    while isinstance(backend, TellsEvents):
        try:
            for _ in backend.events(ref, silence):
                wait = poll_seconds
                yield
        except (NotFoundError, UnsupportedError):  # a service of before there were events
            break
        except StorageError as error:
            if not error.transient:
                raise
        yield
        sleep(wait)
        wait = min(2 * wait, LONGEST_WAIT_SECONDS)
    while True:
        yield
        sleep(poll_seconds)


def _tip(core: RepositoryCore, ref: str) -> Digest | None:
    """Where the ref is; None: it is gone, or nobody could be asked just now."""
    try:
        return core.log.refresh().state.refs.get(ref)
    except StorageError as error:
        if not error.transient:
            raise
        return None


def _found(core: RepositoryCore, ref: str) -> tuple[str, Digest]:
    refs = core.log.refresh().state.refs
    for name in (BRANCHES + ref, TAGS + ref, ref):
        if name in refs:
            return name, refs[name]
    branches = [each.removeprefix(BRANCHES) for each in refs if each.startswith(BRANCHES)]
    raise NotFoundError(f"no branch {ref!r}.{did_you_mean(ref, branches)}")
