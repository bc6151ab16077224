"""Delivery of webhooks: retried over a day, shared by processes, not lost by a restart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

import tensorrepo as tr
from tensorrepo.api.access.callers import Caller
from tensorrepo.api.access.grants import Action, Grant
from tensorrepo.api.outbound.delivery import RETRY_SECONDS, Deliverer
from tensorrepo.api.outbound.webhooks import Webhook
from tensorrepo.api.service import Service, open_service
from tensorrepo.api.settings import make_settings
from tests.support.servers.catalogs import catalog_url
from tests.support.servers.receiver import Receiver, receiver

ADMIN = Caller("token", "ann", grants=(Grant("*", Action.ADMIN),))


@contextmanager
def _service(folder: Path, database: str | None = None) -> Iterator[Service]:
    settings = make_settings(data=folder, database=database, outbound_allow=["127.0.0.1"])
    made = open_service(settings, {})
    try:
        yield made
    finally:
        made.close()


def _hooked(service: Service, receiving: Receiver) -> Webhook:
    service.directory.create("photos")
    return service.webhooks.add(service.enter(ADMIN, "photos"), receiving.url)


def _commit(service: Service, name: str) -> None:
    repo = tr.open(service.directory.find("photos").url, author="Ann <a@example.org>")
    with repo.transaction(message=name) as tx:
        tx.create_dataset(name, {"x": [1]})


class _Clock:
    """UTC in ns, as a test sets it."""

    now = 1_000_000 * 10**9

    def __call__(self) -> int:
        return self.now


def _deliverer(service: Service, clock: _Clock) -> Deliverer:
    return Deliverer(service.webhooks, service.directory, service.outbound, clock=clock)


def test_what_fails_is_retried_for_a_day_and_then_given_up(tmp_path: Path) -> None:
    clock = _Clock()
    with receiver() as receiving, _service(tmp_path) as service:
        hook = _hooked(service, receiving)
        _commit(service, "first")
        receiving.statuses[:] = [500] * 20
        deliverer = _deliverer(service, clock)
        tried = []
        for _ in range(200):  # of 10 minutes and a little, each
            tried += [clock.now] * deliverer.turn()
            clock.now += 10 * 10**9 if len(tried) < 3 else 600 * 10**9
        deliverer.close()
        access = service.enter(ADMIN, "photos")
        log = service.webhooks.deliveries(access, hook.id, before=None, limit=10)
    assert len(tried) == len(RETRY_SECONDS) + 1
    assert (tried[-1] - tried[0]) // 10**9 == pytest.approx(86400, rel=0.05)
    assert all(second > first for first, second in pairwise(tried))
    assert (log[0][1].state, log[0][1].status) == ("failed", 500)


def test_what_was_queued_survives_a_restart(tmp_path: Path) -> None:
    clock = _Clock()
    with receiver() as receiving:
        with _service(tmp_path) as service:
            _hooked(service, receiving)
            _commit(service, "first")
            receiving.statuses.append(503)
            deliverer = _deliverer(service, clock)
            deliverer.turn()
            deliverer.close()
            _commit(service, "second")
        clock.now += 3600 * 10**9
        with _service(tmp_path) as service:
            deliverer = _deliverer(service, clock)
            tried = deliverer.turn()
            deliverer.close()
    assert (tried, len(receiving.received)) == (2, 3)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_one_of_several_processes_delivers_each(tmp_path: Path, kind: str) -> None:
    clock = _Clock()
    with ExitStack() as stack:
        receiving = stack.enter_context(receiver())
        url = stack.enter_context(catalog_url(kind, tmp_path))
        one, two = (stack.enter_context(_service(tmp_path / name, url)) for name in ("one", "two"))
        one.directory.add("photos", tr.init(tmp_path / "repo").url)
        one.webhooks.add(one.enter(ADMIN, "photos"), receiving.url)
        deliverers = [_deliverer(service, clock) for service in (one, two)]
        for number in range(4):
            _commit(one, f"number{number}")
        clock.now = 2 * clock.now
        for deliverer in (*deliverers, *deliverers):
            deliverer.turn()
        for deliverer in deliverers:
            deliverer.close()
    notes = sorted(body.partition(b'"note":"')[2][:7] for _, body in receiving.received)
    assert notes == [b"number0", b"number1", b"number2", b"number3"]


def test_what_a_killed_process_took_is_due_again(tmp_path: Path) -> None:
    clock = _Clock()
    with receiver() as receiving, _service(tmp_path) as service:
        _hooked(service, receiving)
        _commit(service, "first")
        dying = _deliverer(service, clock)
        dying._fill(dying._active()[0])
        assert len(dying._take()) == 1
        other = _deliverer(service, clock)
        before = other.turn()
        clock.now += 3600 * 10**9
        after = other.turn()
        other.close()
        dying.close()
    assert (before, after) == (0, 1)
