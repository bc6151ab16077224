"""Damaged planes: an error, or other bytes; never a crash, never more memory than the frame's."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common.tensors import TYPES, TensorType
from tensorrepo.formats.model.delta.frame_codec import FrameCodec
from tensorrepo.formats.model.delta.plane_codec import PlaneCodec, StoredPlane, unpack_plane
from tensorrepo.formats.model.delta.registry import CODECS, DELTA, PALETTE, PLANES
from tensorrepo.repo.errors import CorruptError, UnsupportedError
from tests.formats.model.delta.test_codecs import about, decoded, encoded, near, wide_as

EVERY = pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.name)
F32, BF16 = TYPES["F32"], TYPES["BF16"]


def element_of(codec: FrameCodec) -> TensorType:
    return BF16 if codec.base_type else F32


@EVERY
@given(
    data=st.lists(st.binary(max_size=200), min_size=1, max_size=4),
    codecs=st.lists(st.sampled_from(sorted(PlaneCodec)), min_size=4, max_size=4),
    blocks=st.integers(1, 50),
)
def test_any_planes_decode_or_are_refused(
    codec: FrameCodec, data: list[bytes], codecs: list[int], blocks: int
) -> None:
    planes = [StoredPlane(*each) for each in zip(codecs, data, strict=False)]
    element, size = element_of(codec), 4 * blocks
    frame, bases = near(element, size, codec.bases, 1)
    bases = wide_as(codec, bases)
    with suppress(CorruptError, UnsupportedError):
        assert len(decoded(codec, planes, bases, about(codec, element, size))) == len(frame)


def few_values(size: int) -> bytes:
    return np.random.default_rng(0).choice(np.arange(9, dtype="<f4"), size // 4).tobytes()


@EVERY
@given(where=st.floats(0, 0.999), bit=st.integers(0, 7), count=st.sampled_from([60, 5000]))
def test_a_flipped_bit_decodes_or_is_refused(
    codec: FrameCodec, where: float, bit: int, count: int
) -> None:
    element = element_of(codec)
    frame, bases = near(element, 4 * count, codec.bases, 2)
    bases, shape = wide_as(codec, bases), about(codec, element, 4 * count)
    planes = encoded(codec, few_values(4 * count) if codec is PALETTE else frame, bases, shape)
    filled = [at for at, plane in enumerate(planes) if plane.size_bytes]
    place = filled[int(where * len(filled))]
    damaged = bytearray(planes[place].data)
    damaged[int(where * len(filled) % 1 * len(damaged))] ^= 1 << bit
    planes[place] = StoredPlane(planes[place].codec, bytes(damaged))
    with suppress(CorruptError, UnsupportedError):
        decoded(codec, planes, bases, shape)


@EVERY
@pytest.mark.parametrize("cut", [1, 3, 50])
def test_planes_cut_short_are_refused(codec: FrameCodec, cut: int) -> None:
    element = element_of(codec)
    frame, bases = near(element, 20_000, codec.bases, 3)
    bases, shape = wide_as(codec, bases), about(codec, element, 20_000)
    planes = encoded(codec, few_values(20_000) if codec is PALETTE else frame, bases, shape)
    short = bytes(planes[-1].data)[:-cut]
    planes[-1] = StoredPlane(planes[-1].codec, short)
    with pytest.raises(CorruptError):
        decoded(codec, planes, bases, shape)


@EVERY
def test_another_number_of_planes_is_refused(codec: FrameCodec) -> None:
    planes = [StoredPlane(PlaneCodec.CONSTANT, b"\0")] * 9
    bases = wide_as(codec, [bytes(8)] * codec.bases)
    with pytest.raises(CorruptError, match="planes"):
        decoded(codec, planes, bases, about(codec, element_of(codec), 8))


@pytest.mark.parametrize("codec", [PLANES, DELTA], ids=lambda codec: codec.name)
def test_an_unknown_plane_codec_asks_for_an_update(codec: FrameCodec) -> None:
    planes = [StoredPlane(99, b"\0")] * codec.planes(BF16)
    with pytest.raises(UnsupportedError, match="plane codec 99 is unknown here"):
        decoded(codec, planes, [bytes(8)] * codec.bases, about(codec, BF16, 8))


@pytest.mark.parametrize("codec", sorted(PlaneCodec)[:4])
def test_a_plane_that_claims_much_costs_no_memory(codec: int) -> None:
    bomb = StoredPlane(codec, b"\x28\xb5\x2f\xfd\xa0\xff\xff\xff\x7f" + bytes(20))
    tracemalloc.start()
    with pytest.raises(CorruptError):
        unpack_plane(bomb, np.empty(100, np.uint8))
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
