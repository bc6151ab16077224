"""Cache peers: ranked alike by all, believed nothing, and left alone where they fail."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import Column, Schema, Tensor
from tensorrepo.formats.dataset.streaming.load.peers import REST_SECONDS, CachePeers
from tensorrepo.formats.dataset.streaming.load.requests import PagePiece, PieceRequest
from tensorrepo.formats.dataset.streaming.stream import BatchStream
from tensorrepo.formats.dataset.streaming.stream import stream as open_stream
from tensorrepo.repo.errors import NotFoundError, PermissionDenied, StorageError
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.streams import options_of

URLS = ["https://host/a", "https://host/b", "https://host/c"]
DIGESTS = [f"{number:064x}" for number in range(3000)]
DATA = bytes(range(256)) * 16


class Peer:
    """A peer that answers as it is told, and counts."""

    def __init__(self, objects: Any, answer: Any = None) -> None:
        self._objects, self._answer, self.asked = objects, answer, 0

    def read_once(self, link: Any, start: int, stop: int) -> Any:
        self.asked += 1
        if isinstance(self._answer, Exception):
            raise self._answer
        data = self._objects.read_range(link, start, stop)
        return data if self._answer is None else self._answer(bytes(data))


def opened(peers: dict[str, Any], **words: Any) -> CachePeers:
    """Peers that are open already."""
    made = CachePeers({name: lambda peer=peer: peer for name, peer in peers.items()}, **words)
    for each in made._peers:
        each.reader = peers[each.name]
    return made


def request() -> tuple[MemoryObjects, PieceRequest]:
    objects = MemoryObjects()
    link = objects.put(Kind.CHUNK, DATA)
    pieces = tuple(
        PagePiece(
            (0, at),
            link,
            at * 1024,
            (at + 1) * 1024,
            content_tag(DATA[at * 1024 : (at + 1) * 1024]),
        )
        for at in range(2)
    )
    return objects, PieceRequest(link, 0, 2048, pieces)


# ------------------------------------------------------------------------------ ranks


def test_every_reader_ranks_alike_and_chunks_are_spread_evenly() -> None:
    one = CachePeers(dict.fromkeys(URLS, lambda: None))  # type: ignore[arg-type]
    other = CachePeers(dict.fromkeys(reversed(URLS), lambda: None))  # type: ignore[arg-type]
    firsts = [one.ranked(digest)[0] for digest in DIGESTS]
    assert firsts == [other.ranked(digest)[0] for digest in DIGESTS]
    assert all(900 < count < 1100 for count in Counter(firsts).values())


def test_only_chunks_of_a_peer_that_goes_move() -> None:
    before = CachePeers(dict.fromkeys(URLS, lambda: None))  # type: ignore[arg-type]
    after = CachePeers(dict.fromkeys(URLS[:2], lambda: None))  # type: ignore[arg-type]
    moved = [
        before.ranked(digest)[0]
        for digest in DIGESTS
        if before.ranked(digest)[0] != after.ranked(digest)[0]
    ]
    assert set(moved) == {URLS[2]}


# ------------------------------------------------------------------------------ answers


def test_a_proved_answer_is_used() -> None:
    objects, wanted = request()
    peers = opened({"https://host/a": Peer(objects)})
    assert bytes(peers.read(wanted) or b"") == DATA[:2048]
    count = peers.counts()["https://host/a"]
    assert (count.requests, count.bytes, count.failures) == (1, 2048, 0)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (lambda data: b"x" + data[1:], "other bytes"),
        (lambda data: data[:-1], "other bytes"),
        (lambda data: data + b"x", "other bytes"),
        (StorageError("no answer in time", transient=True), "no answer in time"),
        (PermissionDenied("not with this token"), "not with this token"),
        (OSError("reset"), "reset"),
    ],
)
def test_a_peer_that_fails_or_lies_is_left_alone_for_longer_each_time(
    answer: Any, told: str
) -> None:
    now = [0.0]
    objects, wanted = request()
    bad = Peer(objects, answer)
    peers = opened({"https://host/a": bad}, clock=lambda: now[0])
    assert peers.read(wanted) is None
    assert told in peers.counts()["https://host/a"].problem
    for rest in (REST_SECONDS, 2 * REST_SECONDS, 4 * REST_SECONDS):
        asked = bad.asked
        now[0] += rest - 1
        assert peers.read(wanted) is None
        assert bad.asked == asked
        now[0] += 2
        assert peers.read(wanted) is None
        assert bad.asked == asked + 1


def test_the_next_in_rank_is_asked_meanwhile() -> None:
    objects, wanted = request()
    first, second = CachePeers(dict.fromkeys(URLS[:2], lambda: None)).ranked(  # type: ignore[arg-type]
        wanted.link.digest
    )
    bad, good = Peer(objects, OSError("gone")), Peer(objects)
    peers = opened({first: bad, second: good})
    assert peers.read(wanted) is None  # the store has this one
    assert peers.read(wanted) is not None
    assert (bad.asked, good.asked) == (1, 1)


def test_what_a_peer_lacks_is_no_failure() -> None:
    objects, wanted = request()
    peers = opened({"https://host/a": Peer(objects, NotFoundError("not here"))})
    assert peers.read(wanted) is None
    assert peers.read(wanted) is None
    count = peers.counts()["https://host/a"]
    assert (count.misses, count.failures) == (2, 0)


def test_what_nothing_proves_is_not_asked_of_a_peer() -> None:
    objects, wanted = request()
    peer = Peer(objects)
    peers = opened({"https://host/a": peer})
    unproved = wanted.pieces[0]._replace(tag=None)
    assert peers.read(PieceRequest(wanted.link, 0, 2048, (unproved, wanted.pieces[1]))) is None
    assert peer.asked == 0


def test_a_peer_that_opens_slowly_keeps_nobody_waiting() -> None:
    objects, wanted = request()

    def slowly() -> Peer:
        time.sleep(0.3)
        return Peer(objects)

    peers = CachePeers({"https://host/a": slowly})
    began = time.monotonic()
    assert peers.read(wanted) is None
    assert time.monotonic() - began < 0.2
    end = time.monotonic() + 20
    while peers.read(wanted) is None and time.monotonic() < end:
        time.sleep(0.01)
    assert peers.read(wanted) is not None


# ------------------------------------------------------------------------------ streams

ROWS = 400
SCHEMA = Schema((Column("x", Tensor("float32", (4096,))), Column("y", Tensor("int64", ()))))
ROW_LIST = [{"x": np.full(4096, at, "f4"), "y": np.int64(at)} for at in range(ROWS)]


def dataset(objects: MemoryObjects) -> StoredDataset:
    return stored(objects, SCHEMA, [ROW_LIST], page_bytes=256 << 10)


def streamed(objects: MemoryObjects, peers: CachePeers) -> tuple[BatchStream, int]:
    ds = dataset(objects)
    found = open_stream(ds, options_of(batch_size=32, window=2_000_000), peers=peers)
    objects.reads.clear()
    rows = [(int(row), float(x[0])) for batch in found for row, x in zip(
        batch.rows, batch["x"], strict=True
    )]  # fmt: skip
    assert sorted(rows) == [(at, float(at)) for at in range(ROWS)]
    return found, len(objects.reads)


def test_a_stream_reads_of_its_peers_and_not_of_the_store() -> None:
    copy, objects = MemoryObjects(), MemoryObjects()
    dataset(copy)
    found, reads = streamed(objects, opened({url: Peer(copy) for url in URLS}))
    assert reads == 0
    assert found.stats().peer_requests > 20
    assert found.stats().peer_bytes == found.stats().fetched_bytes


@pytest.mark.parametrize("answer", [lambda data: data[::-1], StorageError("late", transient=True)])
def test_bad_peers_cost_a_request_each_and_no_row(answer: Any) -> None:
    copy, objects = MemoryObjects(), MemoryObjects()
    dataset(copy)
    bad = {url: Peer(copy, answer) for url in URLS}
    found, reads = streamed(objects, opened(bad))
    assert reads > 20
    assert found.stats().peer_requests == 0
    assert sum(peer.asked for peer in bad.values()) <= 3 * 40  # those that were on their way


def test_one_liar_among_peers_changes_nothing() -> None:
    copy, objects = MemoryObjects(), MemoryObjects()
    dataset(copy)
    peers = {url: Peer(copy) for url in URLS}
    peers[URLS[0]] = Peer(copy, lambda data: bytes(len(data)))
    streamed(objects, opened(peers))
