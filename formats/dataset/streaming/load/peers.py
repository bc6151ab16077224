"""Cache peers: servers near by that are asked for pages before the store, by rendezvous hashing.

Each peer serves a copy of the same repository, such as a mirror on its own disk. For every chunk
all readers rank the peers alike, by a hash of chunk and peer (highest random weight; Thaler and
Ravishankar, "Using name-based mappings to increase hit rates", 1998), and ask the first one: so
each chunk is asked of one peer, and lies in the memory of one, and where a peer goes, or comes,
only its own chunks move.

Peers are believed nothing. What they answer is compared with the tags of the pages before anybody
uses it; one that answers late, wrongly or not at all costs one timeout, and is left alone for a
while, twice as long each time. Meanwhile the next one in rank is asked; after one peer the store.
Who may read is decided by each peer, by the token that it is shown: to know a digest is no right.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import field
from threading import Lock, Thread
from typing import Final, Protocol

from xxhash import xxh3_64_intdigest

from tensorrepo.formats.dataset.streaming.load.requests import PieceRequest
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, NotFoundError
from tensorrepo.repo.ids import Buffer
from tensorrepo.repo.objects.envelope import ObjectLink

REST_SECONDS: Final = 30.0
_LONGEST_REST_SECONDS: Final = 1800.0


class PeerReader(Protocol):
    """What reads from a peer, by one request that ends in time."""

    def read_once(self, link: ObjectLink, start: int, stop: int) -> Buffer: ...


@dataclass(slots=True)
class PeerCount:
    """What one peer did.

    Attributes:
        requests: requests that it answered well.
        bytes: bytes of these answers.
        misses: requests for what it does not have.
        failures: times that it answered late, wrongly, or not at all.
        problem: what was wrong the last time.
    """

    requests: int = 0
    bytes: int = 0
    misses: int = 0
    failures: int = 0
    problem: str = ""


@dataclass(slots=True, eq=False)
class _Peer:
    """One peer; all fields are behind the lock of `CachePeers`."""

    name: str
    open: Callable[[], PeerReader]
    reader: PeerReader | None = None
    is_opening: bool = False
    rests_until: float = 0.0
    rest_seconds: float = REST_SECONDS
    count: PeerCount = field(default_factory=PeerCount)


class CachePeers:
    """The peers of a stream. Thread-safe."""

    def __init__(
        self,
        peers: Mapping[str, Callable[[], PeerReader]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Ask the servers at these URLs; each is opened when it is first needed, beside reading.

        What opens a peer raises an error of ours where it cannot be used.
        """
        self._peers = [_Peer(name, opens) for name, opens in peers.items()]
        self._clock = clock
        self._lock = Lock()

    def read(self, request: PieceRequest) -> memoryview | None:
        """The bytes of a request, all its pieces proved; None: the store is to be asked."""
        if any(piece.tag is None for piece in request.pieces):
            return None  # nothing would prove the answer of somebody else
        found = self._chosen(request.link.digest)
        if found is None:
            return None
        peer, reader = found
        try:
            answer = reader.read_once(request.link, request.start, request.stop)
            data = memoryview(answer).cast("B")
        except NotFoundError:  # a mirror may lag: that is no failure
            with self._lock:
                peer.count.misses += 1
            return None
        except (Error, OSError) as error:
            self._failed(peer, f"{error}")
            return None
        whole = data.nbytes == request.size_bytes
        if not whole or not all(
            piece.is_proved_by(request.part(data, piece)) for piece in request.pieces
        ):
            self._failed(peer, f"sent other bytes than chunk {request.link.digest:.12} has")
            return None
        with self._lock:
            peer.rest_seconds = REST_SECONDS
            peer.count.requests += 1
            peer.count.bytes += data.nbytes
        return data

    def counts(self) -> dict[str, PeerCount]:
        """What each peer did, by its URL."""
        with self._lock:
            return {peer.name: peer.count for peer in self._peers}

    def ranked(self, digest: str) -> list[str]:
        """URLs of the peers in the order in which a chunk is asked of them."""
        return [peer.name for peer in self._ranked(digest)]

    def _ranked(self, digest: str) -> list[_Peer]:
        def weight(peer: _Peer) -> tuple[int, str]:
            return xxh3_64_intdigest(f"{peer.name}\0{digest}".encode()), peer.name

        return sorted(self._peers, key=weight, reverse=True)

    def _chosen(self, digest: str) -> tuple[_Peer, PeerReader] | None:
        """The first peer in rank that is not left alone, if it is open."""
        now = self._clock()
        with self._lock:
            for peer in self._ranked(digest):
                if now < peer.rests_until:
                    continue
                if peer.reader is not None:
                    return peer, peer.reader
                if not peer.is_opening:  # a dead one must not keep the first batch waiting
                    peer.is_opening = True
                    name = "tensorrepo-peer"
                    Thread(target=self._open, args=(peer,), name=name, daemon=True).start()
                return None
        return None

    def _open(self, peer: _Peer) -> None:
        try:
            reader = peer.open()
        except Exception as error:  # noqa: BLE001  whatever it is, the store answers
            self._failed(peer, f"{error}")
            return
        with self._lock:
            peer.reader, peer.is_opening = reader, False

    def _failed(self, peer: _Peer, problem: str) -> None:
        with self._lock:
            peer.is_opening = False
            peer.count.failures += 1
            peer.count.problem = problem
            if self._clock() >= peer.rests_until:  # requests that failed side by side count once
                peer.rests_until = self._clock() + peer.rest_seconds
                peer.rest_seconds = min(2 * peer.rest_seconds, _LONGEST_REST_SECONDS)
