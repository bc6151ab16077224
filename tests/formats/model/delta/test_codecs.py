"""Every codec gives every frame back, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common.tensors import TYPES, TensorType
from tensorrepo.formats.model.delta.frame_codec import FrameCodec, FrameShape
from tensorrepo.formats.model.delta.plane_codec import StoredPlane
from tensorrepo.formats.model.delta.predictions import AdamParams
from tensorrepo.formats.model.delta.registry import ADAM, CODECS
from tests.support.effort import sampled

BLOCKS = {"GROUP": TensorType("GROUP", 256, 144), "ODD": TensorType("ODD", 1, 3)}
ELEMENTS = [*TYPES.values(), *BLOCKS.values()]
STEP = AdamParams("weight", 7, 1e-3, (0.9, 0.999), 1e-8, 0.01, decoupled=True).pack()


def fits(codec: FrameCodec, element: TensorType) -> bool:
    return codec.fits(element, (40, element.block_elements))


FITTING = [
    pytest.param(codec, element, id=f"{codec.name}-{element.name}")
    for codec in CODECS.values()
    for element in ELEMENTS
    if fits(codec, element)
]
EVERY = pytest.mark.parametrize(("codec", "element"), FITTING)


def about(codec: FrameCodec, element: TensorType, size: int, first_byte: int = 0) -> FrameShape:
    params = STEP if codec is ADAM else b""
    return FrameShape(element, size, 3 * element.block_bytes, first_byte, params)


def decoded(
    codec: FrameCodec, planes: list[StoredPlane], bases: list[bytes], shape: FrameShape
) -> bytes:
    out = bytearray(shape.size_bytes)
    codec.decode(planes, [memoryview(base) for base in bases], shape, memoryview(out))
    return bytes(out)


def wide_as(codec: FrameCodec, bases: list[bytes]) -> list[bytes]:
    """Bases of as many elements as the codec takes, whose highest bytes are those."""
    if not codec.base_type:
        return bases
    return [
        (np.frombuffer(base, "<u2").astype("<u4") << 16).astype("<u4").tobytes() for base in bases
    ]


def encoded(
    codec: FrameCodec, frame: bytes, bases: list[bytes], shape: FrameShape
) -> list[StoredPlane]:
    planes = codec.encode(memoryview(frame), [memoryview(base) for base in bases], shape)
    assert planes is not None
    assert len(planes) == codec.planes(shape.element)
    return planes


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
@given(data=st.data(), blocks=st.integers(1, 40))
def test_any_bytes_come_back(codec: FrameCodec, data: st.DataObject, blocks: int) -> None:
    element = data.draw(st.sampled_from([one for one in ELEMENTS if fits(codec, one)]))
    size = blocks * element.block_bytes
    some = st.binary(min_size=size, max_size=size)
    frame = data.draw(some)
    bases = wide_as(codec, [data.draw(some) for _ in range(codec.bases)])
    shape = about(codec, element, size, data.draw(st.integers(0, 5)) * element.block_bytes)
    assert decoded(codec, encoded(codec, frame, bases, shape), bases, shape) == frame


def near(element: TensorType, size: int, bases: int, seed: int) -> tuple[bytes, list[bytes]]:
    """A frame whose bytes mostly are those of its bases."""
    rng = np.random.default_rng(seed)
    base = rng.integers(0, 256, size, np.uint8)
    frame = base.copy()
    frame[:: element.block_bytes] ^= rng.integers(
        0, 4, frame[:: element.block_bytes].size, np.uint8
    )
    return frame.tobytes(), [base.tobytes()] * bases


@pytest.mark.parametrize(("codec", "element"), sampled(FITTING, 20))
@pytest.mark.parametrize("blocks", [1, 4097])
def test_frames_of_every_size_come_back(
    codec: FrameCodec, element: TensorType, blocks: int
) -> None:
    frame, bases = near(element, blocks * element.block_bytes, codec.bases, blocks)
    bases = wide_as(codec, bases)
    shape = about(codec, element, len(frame))
    planes = codec.encode(memoryview(frame), [memoryview(base) for base in bases], shape)
    assert planes is None or decoded(codec, planes, bases, shape) == frame
