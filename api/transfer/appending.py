"""Group commit: appends of many clients in one record of the log, while the one before it lands.

Who calls what: a route checks a message and hands what makes an `Appending` to the `Appender` of
its repository. One thread judges them, up to 64 for a record, each on the state that those before
it leave. Another makes the objects of a group durable, creates its record, and tells its clients;
what comes meanwhile is judged ahead, on the state after that record. So syncs are not waited for
where there is something to compute. The rules:

1. Records land one after the other: the next begins when the one before it is durable.
2. What is judged ahead is seen by nobody, refusals too, before its own group has landed.
3. Where a record does not land, for whatever reason, what was judged on it is forgotten, and
   judged anew on what is in the log (`append`), in the order in which it came.
4. Only commits are judged ahead on, which leave as it is what decides how objects are stored.
5. A transaction that is sent again while its record lands waits for the outcome.

Source:
    docs/spec/service.md, section "Append".
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import field
from threading import Barrier, Lock
from typing import Final

from tensorrepo.api.repositories.opening import ServedRepository
from tensorrepo.api.transfer.judging import (
    Appending,
    Decision,
    LandedEntries,
    SeenTransactions,
)
from tensorrepo.api.transfer.offered_objects import OfferedWriter
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CommitOutcomeUnknown, ConflictError, Error, StorageError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.log.append import Appended, Draft, append, draft_record, land
from tensorrepo.repo.log.reader import LogView, Tip
from tensorrepo.repo.log.records import LogEntry
from tensorrepo.repo.log.state import State
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.incarnations import object_key
from tensorrepo.repo.threads import Waiting

MOST_TRANSACTIONS: Final = 64  # in one record
_TOLD_RECORDS: Final = 64
_TOLD_REFS: Final = 4
_TOLD_BYTES: Final = 512 << 10  # of objects in an answer
# These move refs, and change nothing by which objects are stored and kept.
_JUDGED_ON: Final = frozenset({"commit", "lease-close"})
_GROUPS_IN_TURN: Final = 16  # after others wrote to the log: they may go on


@dataclass(slots=True, eq=False)
class _Waiting:
    """An append that waits for its turn: `check` makes what is judged, of what came."""

    check: Callable[[], Appending]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[LandedEntries]  # of that loop, which alone may touch it
    answer: LandedEntries | BaseException | None = None
    checked: Appending | None = None

    def run_check(self) -> bool:
        """Make what is to be judged; False: it was refused."""
        if self.checked is None:
            try:
                self.checked = self.check()
            except BaseException as error:  # noqa: BLE001  told to whoever waits
                self.answer = error
        return self.checked is not None

    @property
    def appending(self) -> Appending:
        assert self.checked is not None, "it was checked"
        return self.checked


def _tell(answered: Sequence[_Waiting]) -> None:
    """Let those who wait go on; each loop is woken once, for all that it waits for."""
    for loop in dict.fromkeys(each.loop for each in answered):
        mine = [each for each in answered if each.loop is loop]
        with suppress(RuntimeError):  # it was closed: nobody waits there
            loop.call_soon_threadsafe(_resolve, mine)


def _resolve(answered: Sequence[_Waiting]) -> None:
    for each in answered:
        if each.future.done():  # whoever waited has gone
            continue
        if isinstance(each.answer, LandedEntries):
            each.future.set_result(each.answer)
        else:
            assert each.answer is not None, "it was answered"
            each.future.set_exception(each.answer)


@dataclass(slots=True, eq=False)
class _Group:
    """Appends that share a record, and what became of it.

    Attributes:
        decision: what was judged.
        members: those who wait for it.
        before: what the record comes after.
        draft: the record, once nothing more is judged for it.
        appended: the record, where it landed.
        is_over: whether the outcome is known.
        in_turn: whether it is to be judged once more, with nobody ahead, which tells what is wrong.
    """

    decision: Decision
    members: list[_Waiting] = field(default_factory=list)
    before: Tip | None = None
    draft: Draft | None = None
    appended: Appended | None = None
    is_over: bool = False
    in_turn: bool = False

    @property
    def unanswered(self) -> list[_Waiting]:
        return [each for each in self.members if each.answer is None]

    @property
    def is_judged_on(self) -> bool:
        """Whether others may be judged on the state after it before it has landed."""
        return all(entry.kind in _JUDGED_ON for entry in self.decision.entries)

    def judge(self, members: Sequence[_Waiting]) -> None:
        """Judge those who come with this group."""
        self.members += members
        if self.in_turn:
            return
        try:
            for each in members:
                self.decision.add(each.appending)
        except BaseException:  # noqa: BLE001  told when they are judged once more
            self.in_turn = True

    def take_postponed(self) -> list[_Waiting]:
        """Those who come with the next group."""
        postponed = {id(one) for one in self.decision.postponed}
        later = [each for each in self.members if id(each.checked) in postponed]
        self.members = [each for each in self.members if id(each.checked) not in postponed]
        return later


@dataclass(slots=True, eq=False)
class _Turn:
    """What the judging thread has in hand: `group` is judged ahead of `landing`, `taken` is new."""

    landing: _Group | None = None
    group: _Group | None = None
    taken: list[_Waiting] = field(default_factory=list)

    def judge_taken(self) -> None:
        assert self.group is not None, "it began"
        members, self.taken = self.taken, []
        self.group.judge(members)

    def give_up(self) -> list[_Waiting]:
        """Those whom nobody will answer now, in their order; what is landing yet goes on."""
        ahead, self.group = self.group, None
        members = [*([] if ahead is None else ahead.members), *self.taken]
        self.taken = []
        if self.landing is not None and self.landing.is_over:
            members = [*self.landing.unanswered, *members]
            self.landing = None
        return members


class Appender:
    """Writes the records of one repository, for all its clients in this process."""

    def __init__(self, served: ServedRepository) -> None:
        self._core = served.core
        self._waiting: deque[_Waiting] = deque()
        self._is_at_work = False
        self._lock = Lock()
        self._news = Waiting()  # something came, or the outcome of a record
        self._seen = SeenTransactions()
        self._in_turn = 0  # groups that are not judged ahead
        self._pool = _started_pool(2, f"append-{served.name}")

    async def append(self, check: Callable[[], Appending]) -> LandedEntries:
        """Append what `check` makes with the next group; it is called on this thread.

        Returns when it is durable. Raises why it was refused, by `check` too.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(check, loop, loop.create_future())
        with self._lock:
            self._waiting.append(waiting)
            is_at_work, self._is_at_work = self._is_at_work, True
            self._news.wake()
        if not is_at_work:  # else it looks for more before it rests
            self._pool.submit(self._work)
        return await waiting.future

    def _work(self) -> None:
        """Judge what comes, until nothing does."""
        turn, goes_on = _Turn(), True
        while goes_on:
            try:
                goes_on = self._step(turn)
            except BaseException as error:  # noqa: BLE001  told to everybody who waits
                failed = turn.give_up()
                _fail(failed, error)
                _tell(failed)

    def _step(self, turn: _Turn) -> bool:
        """Judge what came, and have it land where nothing else does; False: nothing came."""
        taken = self._take(turn.landing, turn.group)
        if taken is None:
            return False
        turn.taken = _checked(taken)
        if turn.landing is not None and turn.landing.is_over:
            if not self._has_landed(turn.landing):
                turn.taken = turn.give_up()
                self._append_in_turn(turn.taken)
                turn.taken = []
                return True
            if turn.group is not None:
                turn.group.decision.settle()
            turn.landing = None
        if turn.taken:
            turn.group = turn.group or self._begin(turn.landing)
            turn.judge_taken()
        if turn.landing is None and turn.group is not None:
            turn.landing, turn.group = self._launch(turn.group), None
        return True

    def _take(self, landing: _Group | None, group: _Group | None) -> list[_Waiting] | None:
        """What came, perhaps nothing once `landing` is over; None: this thread is done."""
        room = MOST_TRANSACTIONS - (0 if group is None else len(group.members))
        may_judge = landing is None or (landing.is_judged_on and not (group and group.in_turn))
        while True:
            with self._lock:
                is_over = landing is not None and landing.is_over
                count = min(len(self._waiting), room) if may_judge else 0
                if count or is_over:
                    return [self._waiting.popleft() for _ in range(count)]
                if landing is None:
                    self._is_at_work = False
                    return None
                wait = self._news.add()
            wait()

    def _has_landed(self, landing: _Group) -> bool:
        appended = landing.appended
        if appended is not None and appended.record is not None:
            self._seen.add(appended.record)
        elif landing.unanswered:  # somebody else writes to this log
            self._in_turn = _GROUPS_IN_TURN
        return appended is not None

    def _begin(self, landing: _Group | None) -> _Group:
        """A group that comes after what is landing, or after what is in the log."""
        log = self._core.log
        group = _Group(
            Decision(self._core, self._seen, None if landing is None else landing.decision)
        )
        try:
            if landing is not None:
                known, group.before = _before(landing), _draft_of(landing).tip
            elif self._in_turn or log.read_only is not None:
                group.in_turn = True
                return group
            else:
                known = group.before = log.refresh_tip(remember=False)
                if known.view.state.read_only_reason is not None:
                    group.in_turn = True
            group.decision.begin(group.before.view, known.view)
        except BaseException:  # noqa: BLE001  told when its members are judged once more
            group.in_turn = True
        return group

    def _launch(self, group: _Group) -> _Group | None:
        """Have a group land; None: it is answered already."""
        if group.in_turn or not self._is_drafted(group):
            self._append_in_turn(group.members)
            return None
        self._put_back(group.take_postponed())
        if group.draft is None:
            self._answer_all(group, Appended(_before(group).view, None, (), 1))
            _tell(group.members)
            return None
        self._pool.submit(self._land, group)
        return group

    def _is_drafted(self, group: _Group) -> bool:
        """Whether a group has a record, or needs none; else it is judged once more."""
        entries = tuple(group.decision.entries)
        try:
            if any(entry.bulk is not None for entry in entries):
                group.decision.writer.flush()  # the fold reads it
            if entries:
                group.draft = draft_record(self._core.log, _before(group), entries)
        except BaseException:  # noqa: BLE001  told by the other way, if it stays
            return False
        return True

    def _land(self, group: _Group) -> None:
        """Make a group durable, on a thread of its own, and tell its members."""
        log, commits = self._core.log, self._core.introduced
        try:
            group.decision.writer.flush()
            appended = land(log, _before(group), _draft_of(group), commits=commits)
            if appended is not None:
                self._answer_all(group, appended)
        except BaseException as error:  # noqa: BLE001  told to everybody who waits
            _fail(group.members, error)
            appended = None
        try:
            _tell([each for each in group.members if each.answer is not None])
        finally:
            with self._lock:
                group.appended, group.is_over = appended, True
                self._news.wake()

    def _append_in_turn(self, members: Sequence[_Waiting]) -> None:
        """Judge and append those members, with nobody ahead of them or after."""
        self._in_turn -= self._in_turn > 0
        for start in range(0, len(members), MOST_TRANSACTIONS):
            some = members[start : start + MOST_TRANSACTIONS]
            group = _Group(Decision(self._core, self._seen), list(some))
            try:
                self._append(group)
            except BaseException as error:  # noqa: BLE001  told to everybody who waits
                _fail(group.members, error)
            _tell(group.members)

    def _append(self, group: _Group) -> None:
        def decide(view: LogView) -> tuple[LogEntry, ...]:
            group.decision.begin(view, view)
            for each in group.members:
                group.decision.add(each.appending)
            group.decision.writer.flush()
            return tuple(group.decision.entries)

        appended = append(self._core.log, decide, commits=self._core.introduced)
        if appended.record is not None:
            self._seen.add(appended.record)
        self._put_back(group.take_postponed())
        self._answer_all(group, appended)

    def _put_back(self, postponed: Sequence[_Waiting]) -> None:
        """Let them come next."""
        with self._lock:
            self._waiting.extendleft(reversed(postponed))

    def _answer_all(self, group: _Group, appended: Appended) -> None:
        news = _News(self._core, group.decision.writer)
        for each in group.members:
            try:
                each.answer = self._answer(each.appending, appended, news)
            except BaseException as error:  # noqa: BLE001  told to whoever waits
                each.answer = error

    def _answer(self, one: Appending, appended: Appended, news: _News) -> LandedEntries | Error:
        if one.failure is not None:
            return one.failure
        landed = one.landed
        if landed is None:  # no entries: of a commit that would change nothing
            landed = LandedEntries(appended.generation, one.admitted)
        if landed.generation - one.generation <= _TOLD_RECORDS and one.access.reads_all:
            slots = self._core.log.slots
            behind = range(one.generation + 1, landed.generation + 1)
            records = tuple(slots.slot_bytes(generation) for generation in behind)
            of = news.of if one.wanted is None else news.commits_of
            objects = of(landed, appended.view.state)
            landed = LandedEntries(landed.generation, landed.entries, records, objects)
        return landed


@dataclass(slots=True)
class _News:
    """What a group's clients would read next: they have what they brought, and nothing else."""

    core: RepositoryCore
    writer: OfferedWriter
    _forms: dict[Digest, tuple[str, bytes]] = field(default_factory=dict)

    def of(self, landed: LandedEntries, state: State) -> dict[str, bytes]:
        """Its commits, and the commit and new tree pages of each branch that it moved."""
        moved = [(each.ref, each.new) for entry in landed.entries for each in entry.updates]
        told: dict[str, bytes] = {}
        for ref, new in moved[:_TOLD_REFS]:
            tip = state.refs.get(ref)
            for digest in dict.fromkeys((new, tip, *(() if tip is None else self._below(tip)))):
                if digest is not None and digest in self.writer.written:
                    told |= [self._form(digest)]
        return told if sum(map(len, told.values())) <= _TOLD_BYTES else {}

    def commits_of(self, landed: LandedEntries, _state: State) -> dict[str, bytes]:
        """Its commit alone: who had it composed needs no tree to go on."""
        moved = (each.new for entry in landed.entries for each in entry.updates)
        return dict(self._form(new) for new in moved if new in self.writer.written)

    def _below(self, tip: Digest) -> Iterator[Digest]:
        pending = [tip]
        while pending:
            found = self.writer.written.get(pending.pop())
            for link in () if found is None else found.envelope().links:
                if link.kind is Kind.TREE_PAGE and link.digest in self.writer.written:
                    yield link.digest
                    pending.append(link.digest)

    def _form(self, digest: Digest) -> tuple[str, bytes]:
        if digest not in self._forms:
            label = self.core.objects.label(digest, self.writer.graves)
            data = b"".join(self.writer.stored_form(digest))
            self._forms[digest] = object_key(digest, label), data
        return self._forms[digest]


def _before(group: _Group) -> Tip:
    assert group.before is not None, "it began"
    return group.before


def _draft_of(group: _Group) -> Draft:
    assert group.draft is not None, "it was launched"
    return group.draft


def _checked(taken: Sequence[_Waiting]) -> list[_Waiting]:
    """Those that can be judged; the others are told at once that they were refused."""
    refused = [each for each in taken if not each.run_check()]
    _tell(refused)
    return [each for each in taken if each.checked is not None]


def _fail(members: Sequence[_Waiting], error: BaseException) -> None:
    for each in members:
        if each.answer is None:
            each.answer = _shared(error, each.appending)


def _shared(error: BaseException, one: Appending) -> BaseException:
    """A failure of the whole group, as one of its members is told of it."""
    if isinstance(error, CommitOutcomeUnknown):
        return CommitOutcomeUnknown(str(error), txn=one.txns[0], generation=error.generation)
    if isinstance(error, ConflictError):  # others, past the service, were faster again and again
        return StorageError(f"nothing was written: {error}", transient=True, busy=True)
    return error


def _started_pool(threads: int, name: str) -> ThreadPoolExecutor:
    """A pool whose threads have begun: what is given to it later waits for none.

    Raises:
        StorageError: the machine has no threads to give.
    """
    pool, have_begun = ThreadPoolExecutor(threads, name), Barrier(threads)
    try:
        for _ in range(threads):
            pool.submit(have_begun.wait)
    except RuntimeError as error:
        have_begun.abort()
        pool.shutdown(wait=False)
        raise StorageError(
            f"nothing was written: the service can begin no more threads ({error}). Try again; if "
            "it lasts, tell whoever runs the service.",
            transient=True,
            busy=True,
        ) from error
    return pool


def appender_of(served: ServedRepository) -> Appender:
    """The appender of a repository in this process."""
    return served.kept(Appender)
