from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.backends.base import Backend, Guarantee, Landing
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.errors import (
    CommitOutcomeUnknown,
    ConflictError,
    Error,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    RepositoryRewound,
    StorageError,
)
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.log.append import append, draft_record, land, resolve
from tensorrepo.repo.log.log_slots import HINT_KEY, slot_key
from tensorrepo.repo.log.reader import LogView, RepositoryLog
from tensorrepo.repo.log.records import LogEntry, LogRecord
from tensorrepo.repo.log.rewind_guard import Pending
from tests.support.builders.log import (
    MAIN,
    Crash,
    Faulty,
    Request,
    append_many,
    append_one,
    digest,
    encode_record,
    entry,
    landed_txns,
    lost_reply,
    new_backend,
    no_sleep,
    open_log,
    set_main,
)
from tests.support.effort import sampled_product
from tests.support.faults.backends import WrappedBackend


class Clock:
    """Time that passes only while somebody sleeps, and a little with each look."""

    def __init__(self, look_seconds: float = 0.0) -> None:
        self.seconds = 0.0
        self.look_seconds = look_seconds
        self.slept: list[float] = []

    def __call__(self) -> float:
        self.seconds += self.look_seconds
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds


def on(operation: str, key: str, act: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """A rule that treats one kind of request with `act` and performs all others."""

    def rule(request: Request) -> Any:
        hit = (request.operation, request.key) == (operation, key)
        return act(request) if hit else request.perform()

    return rule


def raising(error: BaseException) -> Callable[[Request], Any]:
    def act(_: Request) -> Any:
        raise error

    return act


# ---- the plain case


def test_an_append_is_seen_by_everyone_at_once() -> None:
    backend = new_backend()
    done = append_one(open_log(backend), "first", 1)
    assert done.attempts == 1
    assert done.record is not None
    assert done.record.gen == 1
    assert [verdict.applied for verdict in done.verdicts] == [True]
    assert open_log(backend).refresh() == done.view


def test_several_transactions_share_a_record() -> None:
    backend = new_backend()
    both = (entry("commit", ("heads/a", None, 1), txn="a"), entry("noop", txn="b"))
    append(open_log(backend), lambda _: both)
    assert landed_txns(backend) == ["a", "b"]
    assert open_log(backend).refresh().generation == 1


def test_a_drafted_record_lands_in_its_slot_or_never() -> None:
    """As does one that was drafted on another, before that was there."""
    backend = new_backend()
    log = open_log(backend)
    before = log.refresh_tip()
    first, other = (draft_record(log, before, (entry("noop", txn=txn),)) for txn in "ab")
    second = draft_record(log, first.tip, (entry("noop", txn="c"),))
    landed = [land(log, before, first), land(log, before, other), land(log, first.tip, second)]
    assert [one is None for one in landed] == [False, True, False]
    assert landed_txns(backend) == ["a", "c"]


def test_nothing_to_do_writes_nothing() -> None:
    backend = new_backend()
    done = append(open_log(backend), lambda _: ())
    assert (done.record, done.view.generation, done.attempts) == (None, 0, 1)
    assert landed_txns(backend) == []


def test_what_would_be_void_is_a_conflict_and_is_not_written() -> None:
    backend = new_backend()
    append_one(open_log(backend), "first", 1)
    with pytest.raises(ConflictError, match=r"nothing was written.*expected absent"):
        append(open_log(backend), lambda _: (entry("ref-create", (MAIN, None, 2), txn="late"),))
    assert landed_txns(backend) == ["first"]


def test_a_group_may_hold_void_entries_when_it_says_so() -> None:
    backend = new_backend()
    group = (
        entry("ref-create", (MAIN, None, 1), txn="won"),
        entry("ref-create", (MAIN, None, 2), txn="lost"),
    )
    done = append(open_log(backend), lambda _: group, allow_void=True)
    assert [verdict.applied for verdict in done.verdicts] == [True, False]
    assert done.view.state.refs == {MAIN: digest(1)}


def test_what_no_record_can_hold_is_refused_before_anything_is_written() -> None:
    backend = new_backend()
    with pytest.raises(InvalidInputError):
        append(open_log(backend), lambda _: (entry("noop", txn="../x"),))
    assert backend.size(slot_key(1)) is None


def test_a_store_that_can_only_be_read_is_refused_at_once() -> None:
    backend = new_backend()
    backend.guarantee = Guarantee.READ_ONLY
    with pytest.raises(PermissionDenied):
        append_one(open_log(backend), "first", 1)


def test_what_decide_raises_passes_through_and_leaves_no_note(tmp_path: Path) -> None:
    def refuse(_: LogView) -> tuple[LogEntry, ...]:
        raise ConflictError("both changed it")

    log = open_log(new_backend(), pending=tmp_path)
    with pytest.raises(ConflictError, match="both changed it"):
        append(log, refuse)
    assert log.pending is not None
    assert log.pending.unresolved() == ()


# ---- races


def test_a_lost_race_is_decided_anew_on_what_the_winner_left() -> None:
    backend = new_backend()
    other = open_log(backend)
    seen: list[int] = []

    def decide(view: LogView) -> tuple[LogEntry, ...]:
        seen.append(view.generation)
        if view.generation < 3:
            append_one(other, f"other-{view.generation}", 50 + view.generation)
        return set_main("mine", 9)(view)

    done = append(open_log(backend), decide, sleep=no_sleep)
    assert seen == [0, 1, 2, 3]
    assert done.attempts == 4
    assert landed_txns(backend) == ["other-0", "other-1", "other-2", "mine"]


def test_the_back_off_is_random_grows_and_shrinks_for_who_lost_often() -> None:
    backend = new_backend()
    other = open_log(backend)
    clock = Clock(look_seconds=0.5)

    def late(request: Request) -> Any:
        if request.operation == "create":
            append_one(other, f"other-{request.number}", 5)
        return request.perform()

    class Longest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            assert a == 0
            return b

    with pytest.raises(ConflictError):
        append(
            open_log(Faulty(backend, late)),
            set_main("mine", 9),
            attempts=40,
            deadline_seconds=10_000,
            rng=Longest(),
            sleep=clock.sleep,
            clock=clock,
        )
    appends = [seconds / 1.0 for seconds in clock.slept]  # an append takes two looks
    assert appends[0] == pytest.approx(4)
    assert appends[:4] == sorted(appends[:4])
    assert appends[3:6] == pytest.approx([8, 6.4, 32 / 6])
    assert appends[3:] == sorted(appends[3:], reverse=True)
    assert appends[-1] == pytest.approx(1)


def test_a_deadline_ends_a_lost_race_with_a_conflict() -> None:
    backend = new_backend()
    other = open_log(backend)
    clock = Clock(look_seconds=1.0)

    def late(request: Request) -> Any:
        if request.operation == "create":
            append_one(other, f"other-{request.number}", 5)
        return request.perform()

    log = open_log(Faulty(backend, late))
    with pytest.raises(ConflictError, match="nothing was written"):
        append(log, set_main("mine", 9), deadline_seconds=5, sleep=clock.sleep, clock=clock)
    assert "mine" not in landed_txns(backend)


@pytest.mark.parametrize("writers", [2, 8])
def test_of_concurrent_writers_nothing_is_lost_and_nothing_is_there_twice(writers: int) -> None:
    backend = new_backend()
    attempts: list[int] = []

    def slow(request: Request) -> Any:
        time.sleep(0.0003)  # a store that answers after others had their turn
        return request.perform()

    def work(writer: int) -> None:
        log = open_log(Faulty(backend, slow))
        rng = random.Random(writer)
        for number in range(12):
            done = append(log, set_main(f"w{writer}-{number}", writer * 100 + number), rng=rng)
            attempts.append(done.attempts)

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = {f"w{writer}-{number}" for writer in range(writers) for number in range(12)}
    landed = landed_txns(backend)
    assert len(attempts) == len(landed) == writers * 12
    assert set(landed) == expected


def test_threads_may_share_one_log() -> None:
    backend = new_backend()
    log = open_log(backend)

    def work(writer: int) -> None:
        for number in range(10):
            append(log, set_main(f"w{writer}-{number}", number + 1))

    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(landed_txns(backend)) == len(set(landed_txns(backend))) == 40
    assert log.refresh() == open_log(backend).refresh()


# ---- replies that do not come


def warm_log(rule: Callable[[Request], Any], **options: Any) -> tuple[Any, RepositoryLog]:
    """A store with 63 records, and a log that has seen them, over a store that obeys `rule`.

    The next record brings a checkpoint and a hint, too.
    """
    backend = new_backend()
    append_many(open_log(backend), 63)
    faulty = Faulty(backend)
    log = open_log(faulty, **options)
    log.refresh()
    faulty.requests.clear()
    faulty.rule = rule
    return backend, log


def cold_log(rule: Callable[[Request], Any], **options: Any) -> tuple[Any, RepositoryLog]:
    """A store with 7 records, and a log that has read nothing yet."""
    backend = new_backend()
    append_many(open_log(backend), 7)
    return backend, open_log(Faulty(backend, rule), **options)


def places(
    make: Callable[[Callable[[Request], Any]], tuple[Any, RepositoryLog]],
) -> list[tuple[Any, int]]:
    """`make` with the number of each request that an append to its log makes."""
    _, log = make(lambda request: request.perform())
    append_one(log, "mine", 999)
    return [(make, number) for number in range(len(log.backend.requests))]


PLACES = places(warm_log) + places(cold_log)


def check_promises(backend: Any, error: BaseException | None) -> None:
    """An acknowledged commit is there once; a refused one never; an unknown one at most once."""
    times = landed_txns(backend).count("mine")
    if error is None:
        assert times == 1
    elif isinstance(error, CommitOutcomeUnknown):
        assert times <= 1
    else:
        assert times == 0


@sampled_product(
    "place,fate,other_writes",
    PLACES,
    ["not performed", "performed", "late by 1", "late by 2", "late"],
    [False, True],
    dev=30,
)
def test_a_lost_reply_makes_no_duplicate_and_no_false_success(
    place: tuple[Any, int], fate: str, *, other_writes: bool
) -> None:
    make, at = place
    late: list[tuple[int, Request]] = []

    def rule(request: Request) -> Any:
        for due, waiting in list(late):
            if request.number >= due:
                late.remove((due, waiting))
                waiting.perform()
        if request.number != at:
            return request.perform()
        if fate == "performed":
            request.perform()
        if fate.startswith("late"):
            late.append((at + int(fate[-1]) if fate[-1].isdigit() else 10**9, request))
        if other_writes:
            append_one(open_log(backend), "other", 5)
        raise lost_reply()

    backend, log = make(rule)
    error: BaseException | None = None
    try:
        append_one(log, "mine", 999)
    except Error as caught:
        error = caught
    check_promises(backend, error)
    for _, waiting in late:
        with contextlib.suppress(NotFoundError):
            waiting.perform()
    check_promises(backend, error)


FATES = ["ok", "ok", "not performed", "performed", "late", "other writes"]


@given(
    fates=st.lists(st.sampled_from(FATES), max_size=14),
    order=st.randoms(use_true_random=False),
    settle=st.booleans(),
)
def test_whatever_the_store_answers_the_promises_hold_and_resolve_tells_the_truth(
    fates: list[str], order: random.Random, *, settle: bool
) -> None:
    backend = new_backend()
    append_many(open_log(backend), 2)
    late: list[Request] = []

    def rule(request: Request) -> Any:
        fate = fates[request.number] if request.number < len(fates) else "ok"
        if late and order.random() < 0.3:
            late.pop(order.randrange(len(late))).perform()
        if fate == "other writes":
            append_one(open_log(backend), f"other-{request.number}", 5)
        if fate in ("ok", "other writes"):
            return request.perform()
        if fate == "performed":
            request.perform()
        elif fate == "late" and request.operation in ("create", "overwrite"):
            late.append(request)
        raise lost_reply()

    error: BaseException | None = None
    try:
        append_one(open_log(Faulty(backend, rule)), "mine", 999, attempts=3)
    except Error as caught:
        error = caught
    check_promises(backend, error)
    if isinstance(error, CommitOutcomeUnknown):
        outcome = resolve(open_log(backend), error.txn, error.generation, settle=settle)
        assert outcome != "unknown" or not settle
    order.shuffle(late)
    for request in late:
        request.perform()
    check_promises(backend, error)
    if isinstance(error, CommitOutcomeUnknown) and outcome != "unknown":
        assert landed_txns(backend).count("mine") == (outcome == "landed")


def test_the_same_bytes_are_sent_again_when_the_slot_is_absent() -> None:
    backend = new_backend()
    sent: list[bytes] = []

    class Recording(Faulty):
        def create(self, key: str, parts: Any) -> bool:
            sent.append(b"".join(parts))
            return super().create(key, parts)

    def fails_twice(request: Request) -> Any:
        if request.operation == "create" and len(sent) < 3:
            raise lost_reply()
        return request.perform()

    append_one(open_log(Recording(backend, fails_twice)), "mine", 1)
    assert len(sent) == 3
    assert len(set(sent)) == 1


def test_an_unreadable_slot_is_asked_again_and_never_written_over() -> None:
    backend = new_backend()
    creates = []
    reads = []

    def rule(request: Request) -> Any:
        if (request.operation, request.key) == ("create", slot_key(1)):
            creates.append(request)
            request.perform()
            raise lost_reply()
        if (request.operation, request.key) == ("read", slot_key(1)) and creates:
            reads.append(request)
            if len(reads) < 4:
                raise lost_reply()
        return request.perform()

    append_one(open_log(Faulty(backend, rule)), "mine", 1)
    assert (len(creates), len(reads)) == (1, 4)


def test_a_store_that_stays_silent_until_the_deadline_leaves_the_outcome_unknown(
    tmp_path: Path,
) -> None:
    clock = Clock()
    rule = on("create", slot_key(1), raising(lost_reply()))
    log = open_log(Faulty(new_backend(), rule), pending=tmp_path)
    with pytest.raises(CommitOutcomeUnknown, match=r"mine.*tensorrepo resolve") as caught:
        append(
            log,
            set_main("mine", 1),
            deadline_seconds=30,
            rng=random.Random(1),
            sleep=clock.sleep,
            clock=clock,
        )
    assert (caught.value.txn, caught.value.generation) == ("mine", 1)
    assert 30 <= clock.seconds < 33
    assert isinstance(caught.value.__cause__, StorageError)
    assert log.pending is not None
    assert [(note.txn, note.generation) for note in log.pending.unresolved()] == [("mine", 1)]


@pytest.mark.parametrize(
    "failure", [PermissionDenied("no"), StorageError("no space left on device")]
)
def test_an_error_that_lasts_is_not_waited_for_until_the_deadline(failure: Error) -> None:
    backend = Faulty(new_backend(), on("create", slot_key(1), raising(failure)))
    with pytest.raises(CommitOutcomeUnknown, match="no"):
        append_one(open_log(backend), "mine", 1)
    assert backend.requests.count(("create", slot_key(1))) == 3


@pytest.mark.parametrize("at", ["create", "read", "sleep"])
def test_ctrl_c_while_the_slot_is_unresolved_is_an_unknown_outcome(at: str) -> None:
    creates = []

    def rule(request: Request) -> Any:
        if request.operation == "create":
            creates.append(request)
            if at == "create":
                raise KeyboardInterrupt
            raise lost_reply()
        if request.operation == "read" and creates and at == "read":
            raise KeyboardInterrupt
        return request.perform()

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(CommitOutcomeUnknown) as caught:
        append(
            open_log(Faulty(new_backend(), rule)),
            set_main("mine", 1),
            sleep=interrupted if at == "sleep" else no_sleep,
        )
    assert isinstance(caught.value.__cause__, KeyboardInterrupt)


def test_ctrl_c_before_anything_was_sent_is_only_that(tmp_path: Path) -> None:
    def interrupted(_: LogView) -> tuple[LogEntry, ...]:
        raise KeyboardInterrupt

    log = open_log(new_backend(), pending=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        append(log, interrupted)
    assert log.pending is not None
    assert log.pending.unresolved() == ()


def test_a_transaction_that_an_earlier_call_wrote_is_not_written_again() -> None:
    backend = new_backend()
    view = open_log(backend).refresh()
    before = LogRecord(1, view.digest, None, (entry("commit", (MAIN, None, 4), txn="mine"),))

    def lands_late(request: Request) -> Any:
        backend.create(slot_key(1), [encode_record(before)])
        return request.perform()

    log = open_log(Faulty(backend, on("create", slot_key(1), lands_late)))
    done = append_one(log, "mine", 9)
    assert done.view.state.refs == {MAIN: digest(4)}
    assert landed_txns(backend) == ["mine"]


@pytest.mark.parametrize("key", [HINT_KEY, "log/checkpoint/" + f"{64:020d}.json"])
def test_a_cache_that_cannot_be_written_is_reported_and_the_commit_stands(key: str) -> None:
    backend = new_backend()
    append_many(open_log(backend), 63)

    def fails(request: Request) -> Any:
        if request.key == key and request.operation in ("create", "overwrite"):
            raise lost_reply()
        return request.perform()

    reports: list[str] = []
    append_one(open_log(Faulty(backend, fails), report=reports.append), "mine", 999)
    assert len(reports) == 1
    assert open_log(backend).refresh().generation == 64


# ---- crashes


@sampled_product("place,performed", PLACES, [False, True], dev=12)
def test_a_crash_at_any_request_leaves_a_log_that_everyone_can_use(
    place: tuple[Any, int], tmp_path: Path, *, performed: bool
) -> None:
    make, at = place

    def rule(request: Request) -> Any:
        if request.number < at:
            return request.perform()
        if request.number == at and performed:
            request.perform()
        raise Crash

    backend, log = make(rule, pending=tmp_path)
    with pytest.raises((Crash, CommitOutcomeUnknown)):
        append_one(log, "mine", 999)
    landed = landed_txns(backend).count("mine")
    assert landed <= 1
    after = open_log(backend, pending=tmp_path)
    assert after.pending is not None
    for note in after.pending.unresolved():
        outcome = resolve(after, note.txn, note.generation, settle=True)
        assert outcome == ("landed" if landed else "lost")
    assert after.pending.unresolved() == ()
    append_one(after, "next", 7)
    assert open_log(backend).refresh() == after.refresh()


def test_the_note_is_there_before_the_record_is(tmp_path: Path) -> None:
    log: RepositoryLog
    noted: list[int] = []

    def look(request: Request) -> Any:
        assert log.pending is not None
        noted.extend(note.generation for note in log.pending.unresolved())
        return request.perform()

    log = open_log(Faulty(new_backend(), on("create", slot_key(1), look)), pending=tmp_path)
    append_one(log, "mine", 1)
    assert noted == [1]
    assert log.pending is not None
    assert log.pending.unresolved() == ()


def test_a_note_that_cannot_be_written_stops_the_append_before_the_record(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    backend = new_backend()
    with pytest.raises(StorageError, match="cannot write"):
        append_one(open_log(backend, pending=blocked), "mine", 1)
    assert landed_txns(backend) == []


# ---- resolve


def unknown_outcome(tmp_path: Path) -> tuple[Any, RepositoryLog, Request]:
    """A store after a create without reply, a log over it, and that create, still in flight."""
    backend = new_backend()
    flying: list[Request] = []

    def lose(request: Request) -> Any:
        flying.append(request)
        raise lost_reply()

    log = open_log(Faulty(backend, on("create", slot_key(1), lose)), pending=tmp_path)
    with pytest.raises(CommitOutcomeUnknown):
        append_one(log, "mine", 1, attempts=1)
    return backend, open_log(backend, pending=tmp_path), flying[0]


def is_noted(log: RepositoryLog) -> bool:
    assert log.pending is not None
    return log.pending.unresolved() != ()


def test_an_unknown_outcome_resolves_to_landed_once_the_write_lands(tmp_path: Path) -> None:
    backend, log, flying = unknown_outcome(tmp_path)
    flying.perform()
    assert resolve(log, "mine", 1, settle=False) == "landed"
    assert not is_noted(log)
    assert landed_txns(backend) == ["mine"]


def test_an_unknown_outcome_resolves_to_lost_once_somebody_else_is_there(tmp_path: Path) -> None:
    backend, log, flying = unknown_outcome(tmp_path)
    append_one(open_log(backend), "other", 2)
    assert resolve(log, "mine", 1, settle=False) == "lost"
    assert not is_noted(log)
    assert flying.perform() is False
    assert landed_txns(backend) == ["other"]


def test_an_unknown_outcome_stays_unknown_while_the_write_is_in_flight(tmp_path: Path) -> None:
    _, log, _ = unknown_outcome(tmp_path)
    assert resolve(log, "mine", 1, settle=False) == "unknown"
    assert is_noted(log)


def test_settling_fills_the_slot_so_that_the_write_can_never_land(tmp_path: Path) -> None:
    _, log, flying = unknown_outcome(tmp_path)
    assert resolve(log, "mine", 1, settle=True) == "lost"
    assert not is_noted(log)
    assert flying.perform() is False
    (noop,) = (found for record in log.records(1, 2) for found in record.entries)
    assert noop.kind == "noop"


def test_settling_may_find_that_the_write_landed_first(tmp_path: Path) -> None:
    backend, _, flying = unknown_outcome(tmp_path)

    def lands_first(request: Request) -> Any:
        flying.perform()
        return request.perform()

    rule = on("create", slot_key(1), lands_first)
    log = open_log(Faulty(backend, rule), pending=tmp_path)
    assert resolve(log, "mine", 1, settle=True) == "landed"
    assert landed_txns(backend) == ["mine"]
    assert not is_noted(log)


def test_settling_that_gets_no_answer_either_is_unknown(tmp_path: Path) -> None:
    backend, _, _ = unknown_outcome(tmp_path)
    rule = on("create", slot_key(1), raising(PermissionDenied("no")))
    log = open_log(Faulty(backend, rule), pending=tmp_path)
    assert resolve(log, "mine", 1, settle=True) == "unknown"
    assert log.pending is not None
    assert [note.txn for note in log.pending.unresolved()] == ["mine"]


def test_a_transaction_that_landed_void_is_lost() -> None:
    backend = new_backend()
    append_one(open_log(backend), "first", 1)
    late = entry("ref-create", (MAIN, None, 2), txn="mine")
    append(open_log(backend), lambda _: (late,), allow_void=True)
    assert resolve(open_log(backend), "mine", 2, settle=False) == "lost"


@pytest.mark.parametrize("settle", [False, True])
def test_a_slot_far_beyond_the_end_means_that_the_log_was_rewound(*, settle: bool) -> None:
    backend = new_backend()
    append_many(open_log(backend), 3)
    with pytest.raises(RepositoryRewound, match="ends with 3"):
        resolve(open_log(backend), "mine", 9, settle=settle)
    with pytest.raises(NotFoundError):
        backend.read(slot_key(4))


class Refusing(WrappedBackend):
    """A store that refuses to create slots of the log, once and for all."""

    def __init__(self, inner: Backend, error: Error) -> None:
        super().__init__(inner)
        self.error = error

    def create(self, key: str, parts: Sequence[Buffer]) -> bool:
        if key.startswith("log/0"):
            raise self.error
        return super().create(key, parts)


REFUSALS = [PermissionDenied("read-only"), StorageError("no space left")]


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: error.kind)
def test_what_a_local_disk_refuses_is_a_definite_no(tmp_path: Path, error: Error) -> None:
    notes = tmp_path / "notes"
    log = RepositoryLog(
        Refusing(LocalBackend(tmp_path / "store"), error), b"{}", lambda _: (), pending=notes
    )
    with pytest.raises(type(error), match=str(error)):
        append_one(log, "refused", 1)
    assert Pending(notes).unresolved() == ()


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: error.kind)
def test_what_any_other_store_refuses_stays_unknown(tmp_path: Path, error: Error) -> None:
    notes = tmp_path / "notes"
    log = RepositoryLog(Refusing(new_backend(), error), b"{}", lambda _: (), pending=notes)
    with pytest.raises(CommitOutcomeUnknown):
        append(log, lambda _: (entry("noop", txn="refused"),), sleep=no_sleep)
    assert [note.txn for note in Pending(notes).unresolved()] == ["refused"]


class Misunderstood(WrappedBackend):
    """A service whose answer to an append is no JSON."""

    caller = ""

    def gathering(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def append_entries(self, entries: bytes, generation: int, *, merges: bool) -> Landing:
        return Landing(generation + 1, b"[" * 99_999, ())


def test_an_answer_that_cannot_be_read_leaves_the_outcome_unknown() -> None:
    log = open_log(Misunderstood(new_backend()))
    with pytest.raises(CommitOutcomeUnknown, match="no entries"):
        append_one(log, "t1", 1)
