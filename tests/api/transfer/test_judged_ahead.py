"""What is judged while the record before it lands, whatever becomes of that."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tensorrepo.api.transfer.judging import Appending, Decision
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.changes.repository import open_repository
from tensorrepo.repo.errors import StorageError
from tensorrepo.repo.history.composing import WantedCommit, WantedEntry
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.log.append import append
from tensorrepo.repo.log.log_slots import slot_key
from tensorrepo.repo.log.records import LogEntry
from tensorrepo.repo.objects.envelope import EncodedObject, Kind, encode_object
from tests.api.transfer.test_appending import compose
from tests.support.builders.repositories import ADA, files_at, tip_of
from tests.support.reference.judged_ahead import RULES, explore
from tests.support.servers.service import RunningService

Fate = Callable[[LocalBackend], None]
Call = tuple[WantedCommit, Sequence[EncodedObject]]


def lands(_: LocalBackend) -> None:
    """The record is created, as it was to be."""


def fails(_: LocalBackend) -> None:
    raise StorageError("no space is left")


def is_lost(backend: LocalBackend) -> None:
    """Somebody else, past the service, is faster."""
    log = open_repository(LocalBackend(backend.local_root), drivers={}).log
    append(log, lambda _: (LogEntry("past", "noop", ADA, 1),))


FATES = pytest.mark.parametrize("fate", [lands, fails, is_lost])


class Landing:
    """Holds the first record of a service until `go_on`; then `fate` says what becomes of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fate: Fate) -> None:
        self._reached, self._may_go_on, self._judged = (threading.Event() for _ in range(3))
        create, add = LocalBackend.create, Decision.add
        fates = [fate]

        def held(backend: LocalBackend, key: str, parts: Sequence[Buffer]) -> bool:
            if key == slot_key(1) and fates:
                mine = fates.pop()
                self._reached.set()
                assert self._may_go_on.wait(60)
                mine(backend)
            return create(backend, key, parts)

        def judged(decision: Decision, one: Appending) -> None:
            add(decision, one)
            if self._reached.is_set():
                self._judged.set()

        monkeypatch.setattr(LocalBackend, "create", held)
        monkeypatch.setattr(Decision, "add", judged)

    def wait(self) -> None:
        assert self._reached.wait(60)

    def wait_until_judged(self) -> None:
        """Until something was judged while the record was held."""
        assert self._judged.wait(60)

    def go_on(self) -> None:
        self._may_go_on.set()


def two_appends(
    service: RunningService, landing: Landing, first: Call, second: Call
) -> tuple[httpx.Response, httpx.Response]:
    """The answers to two appends, of which the second is judged while the first one lands."""
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(compose, service, *first)]
        landing.wait()
        answers.append(pool.submit(compose, service, *second))
        landing.wait_until_judged()
        assert not any(each.done() for each in answers)
        landing.go_on()
        return answers[0].result(60), answers[1].result(60)


def setting(path: str, data: bytes, *, txn: str) -> Call:
    """A commit of one file, made on nothing."""
    blob = encode_object(Kind.BLOB, data)
    named = {path: WantedEntry(int(Kind.BLOB), blob.link.digest)}
    return WantedCommit(txn, "heads/main", named, ADA, "words", 7, None), [blob]


def files_of(service: RunningService) -> dict[str, Any]:
    core = service.service.directory.open("team/photos").core
    core.log.refresh()
    return files_at(core, tip_of(core))


@FATES
def test_what_was_judged_ahead_stands_on_what_is_in_the_log(
    fresh: RunningService, monkeypatch: pytest.MonkeyPatch, fate: Fate
) -> None:
    first, second = two_appends(
        fresh, Landing(monkeypatch, fate),
        setting("a", b"one", txn="t1"), setting("b", b"two", txn="t2"),
    )  # fmt: skip
    mine = {"a": b"one"} if fate is not fails else {}
    assert (first.status_code, second.status_code) == (200 if mine else 503, 200)
    assert files_of(fresh) == mine | {"b": b"two"}


@FATES
def test_no_refusal_stands_on_what_did_not_land(
    fresh: RunningService, monkeypatch: pytest.MonkeyPatch, fate: Fate
) -> None:
    """Both set one file: who comes second is refused, unless there is no first."""
    first, second = two_appends(
        fresh, Landing(monkeypatch, fate),
        setting("a", b"one", txn="t1"), setting("a", b"two", txn="t2"),
    )  # fmt: skip
    told = (503, 200) if fate is fails else (200, 409)
    assert (first.status_code, second.status_code) == told
    assert files_of(fresh) == {"a": b"two" if fate is fails else b"one"}


@FATES
def test_what_is_sent_again_while_it_lands_lands_once(
    fresh: RunningService, monkeypatch: pytest.MonkeyPatch, fate: Fate
) -> None:
    call = setting("a", b"one", txn="t1")
    answers = two_appends(fresh, Landing(monkeypatch, fate), call, call)
    assert [each.status_code for each in answers] == [503 if fate is fails else 200, 200]
    log = fresh.service.directory.open("team/photos").core.log
    records = log.records(1, log.refresh().generation + 1)
    txns = [entry.txn for record in records for entry in record.entries]
    assert [txn for txn in txns if txn != "past"] == ["t1"]


def test_the_rules_of_judging_ahead_have_no_violation() -> None:
    assert explore() == (None, 322)  # all worlds: no bound was hit


@pytest.mark.parametrize(
    ("dropped", "violation"),
    [
        ("turn", "a client was refused for what is lost"),
        ("again", "a client was refused for what is lost"),
        ("late", "a client was refused for what is lost"),
    ],
)
def test_without_any_of_the_rules_a_promise_breaks(dropped: str, violation: str) -> None:
    assert explore(RULES - {dropped})[0] == violation
