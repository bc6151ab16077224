"""Reads past a service: addresses that are asked for once, and what happens where one fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from examples.s3_server import S3Server
from tensorrepo.repo.backends.direct_reads import DirectReads, StoreAddresses

DATA = bytes(range(256)) * 8
KEYS = [f"objects/{number}" for number in range(4)]


class Service:
    """Gives addresses at a store, and notes what it was asked for."""

    def __init__(self, url: str) -> None:
        self.url, self.asked = url, list[tuple[str, ...]]()
        self.may_answer = threading.Event()
        self.may_answer.set()

    def ask(self, keys: Sequence[str]) -> tuple[Mapping[str, str], float]:
        self.asked.append(tuple(keys))
        self.may_answer.wait(10)
        return {key: f"{self.url}/bucket/{key}?signed=1" for key in keys if key in KEYS}, 900.0


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    root = tmp_path_factory.mktemp("store")
    for key in KEYS:
        place = root / "bucket" / key
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(DATA)
    with S3Server(root) as server:
        yield server


@pytest.fixture
def service(store: S3Server) -> Iterator[Service]:
    store.requests.clear()
    yield Service(store.url)
    store.fault = lambda _method, _path: None


def test_an_object_that_is_read_again_comes_from_its_address(
    store: S3Server, service: Service
) -> None:
    direct = DirectReads(StoreAddresses(service.ask), plain=True)
    read = [direct.read(KEYS[0], start, start + 100) for start in (0, 5, 700)]
    direct.close()
    assert read == [None, DATA[5:105], DATA[700:800]]
    assert service.asked == [(KEYS[0],)]
    assert store.requests == [("GET", f"bucket/{KEYS[0]}")] * 2


def test_threads_that_wait_for_addresses_share_a_call(service: Service) -> None:
    addresses = StoreAddresses(service.ask)
    seen = [addresses.find(key) for key in KEYS]
    service.may_answer.clear()
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(addresses.find, KEYS[0])
        while not service.asked:
            threading.Event().wait(0.001)
        others = [pool.submit(addresses.find, key) for key in KEYS[1:]]
        while len(addresses._wanted) < 3:
            threading.Event().wait(0.001)
        service.may_answer.set()
        found = [each.result() for each in (first, *others)]
    assert seen == [None] * 4
    assert found == [f"{service.url}/bucket/{key}?signed=1" for key in KEYS]
    assert [set(keys) for keys in service.asked] == [{KEYS[0]}, set(KEYS[1:])]


def test_expected_objects_have_addresses_at_the_first_read_by_one_call(service: Service) -> None:
    addresses = StoreAddresses(service.ask)
    service.may_answer.clear()
    addresses.expect(KEYS)
    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(addresses.find, key) for key in KEYS]
        while not service.asked:
            threading.Event().wait(0.001)
        addresses.expect(KEYS)
        service.may_answer.set()
        urls = [each.result() for each in found]
    assert urls == [f"{service.url}/bucket/{key}?signed=1" for key in KEYS]
    assert [set(keys) for keys in service.asked] == [set(KEYS)]


def test_what_has_no_address_is_not_asked_for_again_before_addresses_expire(
    service: Service,
) -> None:
    now = [0.0]
    addresses = StoreAddresses(service.ask, timer=lambda: now[0])
    found = [addresses.find("objects/small") for _ in range(3)]
    now[0] += 900.0
    addresses.find("objects/small")
    assert found == [None] * 3
    assert service.asked == [("objects/small",)] * 2


@pytest.mark.parametrize("fault", ["403 before", "500 before", "drop after"])
def test_a_read_that_fails_is_left_to_the_service_and_the_address_dropped(
    store: S3Server, service: Service, fault: str
) -> None:
    direct = DirectReads(StoreAddresses(service.ask), plain=True)
    direct.read(KEYS[0], 0, 9)
    store.fault = lambda _method, _path: fault
    failed = direct.read(KEYS[0], 0, 9)
    store.fault = lambda _method, _path: None
    read = [direct.read(KEYS[0], 0, 9) for _ in range(2)]
    assert (failed, *read) == (None, None, DATA[:9])
    assert service.asked == [(KEYS[0],)] * 2


def test_a_connection_that_the_store_closed_is_followed_by_another(tmp_path: Path) -> None:
    (tmp_path / "bucket" / "objects").mkdir(parents=True)
    (tmp_path / "bucket" / KEYS[0]).write_bytes(DATA)
    with S3Server(tmp_path) as first:
        service = Service(first.url)
        direct = DirectReads(StoreAddresses(service.ask), plain=True)
        before = [direct.read(KEYS[0], 0, 9) for _ in range(2)]
    with S3Server(tmp_path, port=int(first.url.rpartition(":")[2])):
        after = direct.read(KEYS[0], 0, 9)
    assert (before, after) == ([None, DATA[:9]], DATA[:9])


def test_an_address_beyond_the_end_or_without_tls_is_left(service: Service) -> None:
    direct = DirectReads(StoreAddresses(service.ask), plain=True)
    secure = DirectReads(StoreAddresses(service.ask), plain=False)
    read = [direct.read(KEYS[0], 0, 9), direct.read(KEYS[0], 9, len(DATA) + 1)]
    read += [secure.read(KEYS[0], 0, 9) for _ in range(2)]
    assert read == [None] * 4


def test_a_store_that_nobody_reaches_is_left_after_a_few_failures() -> None:
    service = Service("http://127.0.0.1:9")
    direct = DirectReads(StoreAddresses(service.ask), plain=True)
    read = [direct.read(KEYS[0], 0, 9) for _ in range(20)]
    assert read == [None] * 20
    assert len(service.asked) == 3
