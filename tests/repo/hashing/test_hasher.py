"""Many frames hashed, verified and copied at once, and parts joined: in C and in Python, with
identical results.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.repo.hashing.hasher import NATIVE, PYTHON, Hasher

needs_native = pytest.mark.skipif(NATIVE is None, reason="no compiler when this was installed")
EVERY = pytest.mark.parametrize(
    "checker",
    [
        pytest.param(PYTHON, id="python"),
        pytest.param(NATIVE, id="native", marks=needs_native),
    ],
)
CONTEXT = "tensorrepo test v1"
# Around blocks of 64 bytes, chunks of 1024, and trees of several levels with and without a last one
# that has no partner.
SIZES = [0, 1, 63, 64, 65, 128, 1023, 1024, 1025, 2047, 2048, 2049, 3072, 5000, 16384, 17408, 31749]
LARGE = [3 << 20, 5, (1 << 20) + 1024, 1 << 17]


def frames_of(sizes: list[int]) -> list[bytes]:
    rng = np.random.default_rng(len(sizes))
    return [rng.bytes(size) for size in sizes]


def digests_of(frames: list[bytes]) -> bytes:
    return b"".join(blake3(frame, derive_key_context=CONTEXT).digest() for frame in frames)


@EVERY
@pytest.mark.parametrize("sizes", [[], SIZES, SIZES[::-1], LARGE, [3000] * 700], ids=len)
def test_frames_that_are_what_their_digests_say_are_copied(
    checker: Hasher, sizes: list[int]
) -> None:
    frames = frames_of(sizes)
    rooms = [memoryview(bytearray(size)) for size in sizes]
    assert checker.check(CONTEXT, frames, None, digests_of(frames)) == -1
    assert checker.check(CONTEXT, frames, rooms, digests_of(frames)) == -1
    assert [bytes(room) for room in rooms] == frames


@EVERY
@pytest.mark.parametrize("sizes", [[], SIZES, LARGE, [32 << 10], [65 << 10], [3000] * 700], ids=len)
def test_digests_of_frames_are_those_of_their_copies(checker: Hasher, sizes: list[int]) -> None:
    frames = frames_of(sizes)
    rooms = [memoryview(bytearray(size)) for size in sizes]
    assert b"".join(checker.digests(CONTEXT, frames)) == digests_of(frames)
    assert b"".join(checker.digests(CONTEXT, frames, rooms)) == digests_of(frames)
    assert [bytes(room) for room in rooms] == frames


@EVERY
@given(
    st.lists(st.integers(0, 9000), min_size=1, max_size=40), st.integers(0, 39), st.integers(0, 31)
)
def test_the_first_frame_that_is_another_is_found(
    checker: Hasher, sizes: list[int], which: int, byte: int
) -> None:
    frames = frames_of(sizes)
    digests = bytearray(digests_of(frames))
    for wrong in range(which % len(sizes), len(sizes)):
        digests[32 * wrong + byte] ^= 1
    assert checker.check(CONTEXT, frames, None, bytes(digests)) == which % len(sizes)


@EVERY
@pytest.mark.parametrize("at", [0, 1023, 1024, 20_000, 33_333])
def test_no_flipped_bit_goes_unnoticed(checker: Hasher, at: int) -> None:
    frames = frames_of([100, 33_334])
    digests = digests_of(frames)
    damaged = bytearray(frames[1])
    damaged[at] ^= 1
    assert checker.check(CONTEXT, [frames[0], bytes(damaged)], None, digests) == 1


@EVERY
def test_arrays_of_any_shape_are_their_bytes(checker: Hasher) -> None:
    frame = np.arange(3000.0).reshape(30, 100)
    room = np.zeros((30, 100))
    digests = blake3(frame.tobytes(), derive_key_context=CONTEXT).digest()
    assert checker.check(CONTEXT, [memoryview(frame)], [memoryview(room)], digests) == -1
    assert np.array_equal(room, frame)


@EVERY
def test_sizes_that_contradict_each_other_are_refused(checker: Hasher) -> None:
    frames = frames_of([100, 200])
    digests = digests_of(frames)
    with pytest.raises(ValueError, match="do not fit"):
        checker.check(CONTEXT, frames, None, digests[:-1])
    with pytest.raises(ValueError, match="fit"):
        checker.check(CONTEXT, frames, [memoryview(bytearray(100))] * 2, digests)
    with pytest.raises(ValueError, match="fit"):
        checker.digests(CONTEXT, frames, [memoryview(bytearray(100))] * 2)
    with pytest.raises(ValueError, match="do not fit"):
        checker.check(CONTEXT, frames, [memoryview(bytearray(100))], digests)


# A part of a tree has 1 MiB; 32 KiB are hashed side by side.
JOINED = [*SIZES, 32 << 10, (32 << 10) + 1, 1 << 20, (1 << 20) + 1, (3 << 20) + 33_000, 4 << 20]


@EVERY
@pytest.mark.parametrize("size", JOINED)
def test_parts_have_the_digest_of_their_bytes_wherever_they_are_cut(
    checker: Hasher, size: int
) -> None:
    rng = np.random.default_rng(size)
    data = rng.bytes(size)
    expected = blake3(data, derive_key_context=CONTEXT).digest()
    for count in (0, 1, 3, 50):
        cuts = [0, *sorted(rng.integers(0, size + 1, count).tolist()), size]
        parts = [data[start:stop] for start, stop in pairwise(cuts)]
        assert checker.joined(CONTEXT, parts) == expected, cuts


@EVERY
def test_no_parts_and_empty_ones_of_any_shape_are_no_bytes(checker: Hasher) -> None:
    nothing = blake3(b"", derive_key_context=CONTEXT).digest()
    assert checker.joined(CONTEXT, []) == nothing
    assert checker.joined(CONTEXT, [b"", memoryview(np.zeros((0, 3)))]) == nothing
    rows = np.arange(30.0).reshape(5, 6)
    parts = [b"", memoryview(rows[:2]), memoryview(np.zeros((0, 3))), memoryview(rows[2:]), b""]
    assert (
        checker.joined(CONTEXT, parts)
        == blake3(rows.tobytes(), derive_key_context=CONTEXT).digest()
    )


@EVERY
def test_what_is_not_contiguous_is_refused(checker: Hasher) -> None:
    rows = memoryview(np.arange(30.0).reshape(5, 6)[:, ::2])
    with pytest.raises((BufferError, TypeError, ValueError)):
        checker.joined(CONTEXT, [b"x", rows])
