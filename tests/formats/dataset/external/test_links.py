"""What links point at."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import pytest
from blake3 import blake3

from tensorrepo.formats.dataset.external.links import LINK_THREADS, read_link, read_links
from tensorrepo.formats.dataset.external.outside import Nothing, Stat
from tensorrepo.formats.dataset.external.outside_read import changed
from tensorrepo.formats.dataset.schema.types import LinkValue
from tensorrepo.repo.errors import CorruptError, PermissionDenied, UnsupportedError

URL = "s3://bucket/x"
DATA = b"0123456789"
NOW = Stat(len(DATA), '"v1"')


@dataclass
class Store:
    """One file, and what was asked of it."""

    data: bytes = DATA
    etag: str | None = '"v1"'
    asked: list[str] = field(default_factory=list)

    def stat(self, url: str) -> Stat:
        self.asked.append("stat")
        return Stat(len(self.data), self.etag)

    def read(self, url: str, start: int, stop: int, unchanged: Stat | None = None) -> memoryview:
        self.asked.append("read")
        found = Stat(len(self.data), self.etag)
        if unchanged not in (None, found):
            assert unchanged is not None
            raise changed(url, unchanged, found)
        return memoryview(self.data[start:stop])


def _blake3(data: bytes) -> str:
    return f"blake3:{blake3(data).hexdigest()}"


LINKS = [
    LinkValue(URL),
    LinkValue(URL, 2, 5),
    LinkValue(URL, 2),
    LinkValue(URL, size=10),
    LinkValue(URL, etag='"v1"'),
    LinkValue(URL, 2, 5, 10, '"v1"'),
    LinkValue(URL, 2, 5, hash=_blake3(b"234")),
    LinkValue(URL, hash=f"sha256:{hashlib.sha256(DATA).hexdigest()}"),
    LinkValue(URL, 2, 5, 10, '"older"', _blake3(b"234")),  # the hash is the better proof
    LinkValue(URL, 10, 10),
]


@pytest.mark.parametrize("link", LINKS)
def test_a_link_gives_the_bytes_that_it_says(link: LinkValue) -> None:
    assert read_link(Store(), link) == DATA[link.start : link.stop]


def test_a_link_with_size_and_etag_takes_one_request() -> None:
    store = Store()
    read_link(store, LinkValue(URL, 2, 5, 10, '"v1"'))
    assert store.asked == ["read"]


def test_a_range_with_a_hash_takes_one_request() -> None:
    store = Store()
    read_link(store, LinkValue(URL, 2, 5, hash=_blake3(b"234")))
    assert store.asked == ["read"]


@pytest.mark.parametrize(
    "link",
    [
        LinkValue(URL, size=9),
        LinkValue(URL, etag='"v0"'),
        LinkValue(URL, 2, 5, 10, '"v0"'),
        LinkValue(URL, 2, 5, 11, '"v1"'),
        LinkValue(URL, 2, 5, hash=_blake3(b"235")),
        LinkValue(URL, 2, 5, 9, None, _blake3(b"234")),
    ],
)
def test_a_changed_source_is_refused_saying_expected_and_found(link: LinkValue) -> None:
    with pytest.raises(CorruptError, match=r"s3://bucket/x.*expected .*, found "):
        read_link(Store(), link)


def test_a_link_that_begins_behind_the_end_is_refused() -> None:
    with pytest.raises(CorruptError, match="begins at byte 11"):
        read_link(Store(), LinkValue(URL, 11))


def test_a_kind_of_hash_that_is_unknown_proves_nothing() -> None:
    with pytest.raises(UnsupportedError, match="md5"):
        read_link(Store(), LinkValue(URL, hash="md5:00"))


def test_a_link_to_very_much_is_refused_before_it_is_read() -> None:
    store = Store()
    with pytest.raises(UnsupportedError, match="at most 9"):
        read_link(store, LinkValue(URL), most_bytes=9)
    assert store.asked == ["stat"]


def test_without_permission_nothing_is_read() -> None:
    with pytest.raises(PermissionDenied):
        read_link(Nothing(), LINKS[0])


def test_many_links_come_in_their_order_and_null_stays_null() -> None:
    links = [None if at % 7 == 3 else LinkValue(URL, at % 10, 10) for at in range(100)]
    found = list(read_links(Store(), links))
    assert found == [None if link is None else DATA[link.start :] for link in links]


def test_reading_ahead_is_bounded() -> None:
    store = Store()
    links = (LinkValue(URL, 0, 1) for _ in range(1000))
    found = read_links(store, links)
    next(found)
    found.close()  # type: ignore[attr-defined]  # a generator
    assert len(store.asked) <= LINK_THREADS + 1
