"""Few requests cover the pieces of a run, none of them larger than useful."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.streaming.load.requests import JOINED_BYTES, PagePiece, spans
from tensorrepo.repo.hashing.digests import content_tag
from tensorrepo.repo.objects.envelope import Kind, ObjectLink

KIB = 1 << 10


def piece(start: int, size: int, chunk: int = 0, tag: bytes | None = None) -> PagePiece:
    link = ObjectLink(f"{chunk:064x}", 1 << 40, Kind.CHUNK, leaf=True)
    return PagePiece((chunk, start), link, start, start + size, tag)


def bounds(pieces: list[PagePiece]) -> list[tuple[int, int]]:
    return [(span.start, span.stop) for span in spans(pieces)]


def test_neighbours_come_by_one_request() -> None:
    assert bounds([piece(0, 100), piece(100, 100), piece(300, 100)]) == [(0, 400)]


def test_what_lies_far_apart_comes_by_several() -> None:
    far = 10 << 20
    assert bounds([piece(far, 100), piece(0, 100)]) == [(far, far + 100), (0, 100)]


def test_other_chunks_are_other_requests() -> None:
    assert len(spans([piece(0, 10), piece(10, 10, chunk=1)])) == 2


def test_no_request_grows_without_need() -> None:
    every = [piece(at << 20, 1 << 20) for at in range(10)]
    assert bounds(every) == [(0, 4 << 20), (4 << 20, 8 << 20), (8 << 20, 10 << 20)]
    assert bounds([piece(0, 100 << 20)]) == [(0, 100 << 20)]


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 900), st.integers(0, 2)), max_size=40))
def test_every_piece_gets_its_bytes(places: list[tuple[int, int, int]]) -> None:
    wanted = {(chunk, at): piece(at * 1000, size, chunk) for at, size, chunk in places}
    found = spans(list(wanted.values()), gap_bytes=3 * KIB) if wanted else []
    assert sorted(one.key for span in found for one in span.pieces) == sorted(
        one.key for one in wanted.values()
    )
    chunk_bytes = memoryview(bytes(at % 251 for at in range(60_000)))
    for span in found:
        data = chunk_bytes[span.start : span.stop]
        assert span.size_bytes <= JOINED_BYTES
        for one in span.pieces:
            assert span.part(data, one) == chunk_bytes[one.start : one.stop]


def test_what_is_proved_by_another_tag_has_another_name() -> None:
    one, other = (piece(0, 4, tag=content_tag(data)) for data in (b"page", b"evil"))
    assert one.name != other.name
    assert one.name == piece(0, 4, tag=content_tag(b"page")).name


def test_a_piece_knows_its_bytes_by_its_tag() -> None:
    tagged = piece(0, 4, tag=content_tag(b"page"))
    assert tagged.is_proved_by(b"page")
    assert not tagged.is_proved_by(b"pagf")
    assert piece(0, 4).is_proved_by(b"anything")
