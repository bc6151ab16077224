"""Pieces of a store that a run needs, joined into few requests.

A piece is a page, or some rows of one. Pieces that lie close together in a chunk are read together,
because a request costs about as much as the bytes between them; but no request is larger than it
needs to be, so that many are in flight side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tensorrepo.repo.ids import Buffer, content_tag
from tensorrepo.repo.objects.envelope import ObjectLink
from tensorrepo.repo.ranges import GAP_BYTES, join_ranges

JOINED_BYTES = 4 << 20  # larger requests do not make better use of a link


class PagePiece(NamedTuple):
    """Payload bytes ``[start, stop)`` of a chunk.

    Attributes:
        key: what it is called among the pieces of a plan, beginning with the place of the column;
            one that several runs need has one key.
        link: the chunk.
        start: first byte.
        stop: first byte behind it.
        tag: proves the bytes; None where whoever uses them holds the sums.
    """

    key: tuple[int, ...]
    link: ObjectLink
    start: int
    stop: int
    tag: bytes | None

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start

    @property
    def name(self) -> str:
        """What the proved bytes are called in every cache, whatever dataset they belong to.

        The tag is part of it: a dataset that names a chunk of another one along with tags of its
        own would fill the cache for both, and caches check only what they wrote themselves.
        """
        assert self.tag is not None, "what nothing proves is not kept"
        return f"{self.link.digest}.{self.start}-{self.stop}.{self.tag.hex()}"

    def is_proved_by(self, data: Buffer) -> bool:
        """Whether these are its bytes, as far as its tag can tell."""
        return self.tag is None or content_tag(data) == self.tag


@dataclass(frozen=True, slots=True)
class PieceRequest:
    """One request: payload bytes ``[start, stop)`` of a chunk, and the pieces that lie in it."""

    link: ObjectLink
    start: int
    stop: int
    pieces: tuple[PagePiece, ...]

    @property
    def size_bytes(self) -> int:
        return self.stop - self.start

    def part(self, data: memoryview, piece: PagePiece) -> memoryview:
        """The bytes of a piece, given those of the request."""
        return data[piece.start - self.start : piece.stop - self.start]


def spans(pieces: Sequence[PagePiece], *, gap_bytes: int = GAP_BYTES) -> list[PieceRequest]:
    """The requests for `pieces`, in the order of the first piece of each."""
    if len(pieces) == 1:
        return [PieceRequest(pieces[0].link, pieces[0].start, pieces[0].stop, (pieces[0],))]
    by_chunk: dict[str, list[PagePiece]] = {}
    for piece in pieces:
        by_chunk.setdefault(piece.link.digest, []).append(piece)
    requests = [span for alike in by_chunk.values() for span in _joined(alike, gap_bytes)]
    place = {piece.key: at for at, piece in enumerate(pieces)}
    return sorted(requests, key=lambda span: min(place[piece.key] for piece in span.pieces))


def _joined(pieces: Sequence[PagePiece], gap_bytes: int) -> list[PieceRequest]:
    ranges = [(piece.start, piece.stop) for piece in pieces]
    return [
        PieceRequest(pieces[0].link, start, stop, tuple(pieces[at] for at in members))
        for start, stop, members in join_ranges(
            ranges, gap_bytes=gap_bytes, most_bytes=JOINED_BYTES
        )
    ]
