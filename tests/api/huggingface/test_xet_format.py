"""Xorbs and shards: what is read of them is what was written, and nothing else is taken."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tensorrepo.api.huggingface.xet_format import (
    MAX_CHUNK_BYTES,
    MAX_CHUNKS,
    ChunkRun,
    chunk_hash,
    hash_text,
    read_chunks,
    read_shard,
    xorb_hash,
)
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.xet import END, TAG, make_chunk, make_file, make_shard, make_xorb
from tests.support.effort import sampled

NAME, SHA256 = "ab" * 32, "cd" * 32
ONE = make_file(SHA256, [(NAME, 10, 0, 1), (NAME, 20, 1, 3)])
CHUNKS = [b"first", b"second chunk"]
XORB = make_xorb(*CHUNKS, codec=1)
BODY = XORB.body
SHARD = make_shard(ONE, ONE)


@given(st.lists(st.binary(min_size=1, max_size=200), max_size=6), st.sampled_from([0, 1, 2]))
def test_chunks_of_every_codec_come_out_as_they_went_in(chunks: list[bytes], codec: int) -> None:
    body = b"".join(make_chunk(chunk, codec) for chunk in chunks)
    assert list(read_chunks(body)) == chunks
    assert list(read_chunks(body + b"XETBLOB and a footer")) == chunks


def test_a_hash_is_written_as_four_numbers() -> None:
    assert hash_text(bytes(range(32))) == (
        "07060504030201000f0e0d0c0b0a090817161514131211101f1e1d1c1b1a1918"
    )


def test_a_xorb_of_one_chunk_is_called_like_the_chunk() -> None:
    assert xorb_hash([(chunk_hash(b"a"), 1)]) == hash_text(chunk_hash(b"a"))


@given(st.permutations([b"a", b"b", b"c", b"d", b"e", b"f", b"g", b"h", b"i", b"j", b"k"]))
def test_the_name_of_a_xorb_is_that_of_its_chunks_in_their_order(chunks: list[bytes]) -> None:
    names = {make_xorb(*chunks).name, make_xorb(*sorted(chunks)).name}
    assert len(names) == (1 if chunks == sorted(chunks) else 2)


def chunks_of(body: bytes) -> list[bytes] | None:
    """The chunks of a xorb; None where it is refused."""
    with suppress(InvalidInputError):
        return list(read_chunks(body))
    return None


def name_of(chunks: list[bytes] | None) -> str:
    known = [(chunk_hash(one), len(one)) for one in chunks or ()]
    return xorb_hash(known) if known else "nothing"


@given(st.integers(0, len(BODY) - 1), st.integers(1, 255))
def test_a_xorb_with_a_flipped_byte_has_its_chunks_or_another_name(at: int, by: int) -> None:
    damaged = bytearray(BODY)
    damaged[at] ^= by
    found = chunks_of(bytes(damaged))
    assert found == CHUNKS or name_of(found) != XORB.name


@pytest.mark.parametrize("at", sampled([*range(1, len(BODY)), -1], 16))
def test_a_xorb_that_is_cut_short_is_refused_or_has_fewer_chunks(at: int) -> None:
    assert chunks_of(BODY[:at]) in (None, CHUNKS[:1])


@pytest.mark.parametrize(
    "body",
    [
        make_chunk(b"abc", size=4),
        make_chunk(b"abc" * 1000, 1, size=2999),
        make_chunk(b"", size=0),
        make_chunk(b"abc", codec=3),
        b"\1" + make_chunk(b"abc")[1:],
        make_chunk(bytes(MAX_CHUNK_BYTES + 1), 1),
        make_chunk(bytes(1 << 20), 1, size=MAX_CHUNK_BYTES),
        b"\0\3\0\0\2\3\0\0abc",
        make_chunk(b"a") * (MAX_CHUNKS + 1),
        make_chunk(bytes(MAX_CHUNK_BYTES), 1) * 513,
    ],
    ids=[
        "size", "lz4 size", "nothing", "codec", "version", "large", "bomb", "no lz4", "chunks",
        "bytes",
    ],
)  # fmt: skip
def test_what_is_no_xorb_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidInputError):
        list(read_chunks(body))


def test_a_shard_tells_files_and_their_segments() -> None:
    found = list(read_shard(SHARD))
    assert [file.sha256 for file in found] == [SHA256, SHA256]
    assert list(found[1].segments()) == [ChunkRun(NAME, 10, 0, 1), ChunkRun(NAME, 20, 1, 3)]


def test_proofs_of_ranges_may_be_left_out() -> None:
    (found,) = read_shard(make_shard(make_file(SHA256, [(NAME, 10, 0, 1)], flags=1 << 30)))
    assert list(found.segments()) == [ChunkRun(NAME, 10, 0, 1)]


@given(st.binary(max_size=400) | st.builds(lambda at: SHARD[:at], st.integers(0, len(SHARD) - 49)))
def test_what_is_no_shard_is_refused(shard: bytes) -> None:
    assume(len(shard) < SHARD.index(END) + len(END))
    with pytest.raises(InvalidInputError):
        list(read_shard(shard))


@pytest.mark.parametrize(
    "shard",
    [
        make_shard(make_file(SHA256, [(NAME, 1, 0, 1)], flags=1 << 31)),
        make_shard(make_file(SHA256, [])),
        make_shard(bytes(32) + b"\0\0\0\xc0" + b"\xff" * 4 + bytes(8)),
        TAG + b"\3" + bytes(15) + END + END,
    ],
    ids=["no sha256", "no segments", "four billion segments", "version"],
)
def test_a_shard_that_lacks_what_it_must_have_is_refused(shard: bytes) -> None:
    with pytest.raises(InvalidInputError):
        list(read_shard(shard))


@pytest.mark.parametrize("span", [(1, 1), (2, 1), (0, MAX_CHUNKS + 1)])
def test_a_segment_of_no_chunks_is_refused(span: tuple[int, int]) -> None:
    (found,) = read_shard(make_shard(make_file(SHA256, [(NAME, 1, *span)])))
    with pytest.raises(InvalidInputError):
        list(found.segments())
