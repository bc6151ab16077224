"""What the codecs store is decoded by the spec alone, by a reader that shares no code."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.common.tensors import TYPES
from tensorrepo.formats.model.delta.frame_codec import FrameShape
from tensorrepo.formats.model.delta.plane_codec import PlaneCodec
from tensorrepo.formats.model.delta.registry import CODECS
from tests.support.effort import sampled
from tests.support.second_readers import codecs

RANDOM = np.random.default_rng(11)
COUNT = 6000  # many coders; a tenth of it: few


def walk(dtype: str, count: int, step: float) -> Any:
    """Numbers, and those a little further on."""
    base = RANDOM.normal(size=count)
    return base.astype(dtype), (base + step * RANDOM.normal(size=count)).astype(dtype)


def bfloat(values: Any) -> Any:
    return (values.view("<u4") >> 16).astype("<u2")


def moved(name: str, count: int) -> tuple[Any, Any]:
    if name == "BF16":
        return tuple(bfloat(one) for one in walk("<f4", count, 1e-2))
    if name in {"F64", "F32", "F16"}:
        return walk(f"<f{int(name[1:]) // 8}", count, 1e-3)
    if name == "C64":
        return tuple(one.view("<c8") for one in walk("<f4", 2 * count, 1e-3))
    plain = RANDOM.integers(0, 200, count)
    small = RANDOM.integers(0, 3, count)
    kind = f"<i{TYPES[name].block_bytes}" if name.startswith("I") else "u1"
    return plain.astype(kind), (plain + small).astype(kind)


NAMES = ("F64", "F32", "F16", "BF16", "C64", "F8_E4M3", "I32", "U8")
CASES = list(product(("planes", "palette", "delta", "rows"), NAMES, (COUNT, COUNT // 10)))


@pytest.mark.parametrize(("codec", "name", "count"), sampled(CASES, 21))
def test_a_frame_is_decoded_by_the_spec_alone(codec: str, name: str, count: int) -> None:
    base, frame = moved(name, count)
    frame.reshape(-1, 20)[::3] = base.reshape(-1, 20)[::3]
    if codec == "palette":
        frame = np.resize(frame[:50], count)
    chosen, element = CODECS[codec], TYPES[name]
    of = codecs.numbers_of(name, (element.block_elements, element.block_bytes))
    row_bytes = 20 * element.block_bytes
    about = FrameShape(element, frame.nbytes, row_bytes, 7 * row_bytes + 3 * of.size)
    given = [base.view(np.uint8).data] if chosen.bases else []
    planes = chosen.encode(frame.view(np.uint8).data, given, about)
    stored = codecs.Frame(
        [(int(plane.codec), bytes(plane.data)) for plane in planes],
        frame.nbytes,
        of,
        [bytes(one) for one in given],
        row_bytes // of.size,
        about.first_byte // of.size,
    )
    assert codecs.decode(codec, stored) == frame.tobytes()


@pytest.mark.parametrize("codec", ["planes", "delta"])
def test_a_long_frame_is_decoded_by_the_spec_alone(codec: str) -> None:
    base = RANDOM.geometric(0.3, (1 << 18) + 7).astype("<u2")
    frame = base + RANDOM.integers(0, 3, base.size).astype("<u2")
    about = FrameShape(TYPES["I16"], frame.nbytes, 2, 0)
    chosen, of = CODECS[codec], codecs.numbers_of("I16", (1, 2))
    given = [base.view(np.uint8).data] if chosen.bases else []
    planes = chosen.encode(frame.view(np.uint8).data, given, about)
    assert {plane.codec for plane in planes} & {PlaneCodec.LONG_CODED, PlaneCodec.LONG_DISTANCES}
    stored = [(int(plane.codec), bytes(plane.data)) for plane in planes]
    whole = codecs.Frame(stored, frame.nbytes, of, [bytes(one) for one in given])
    assert codecs.decode(codec, whole) == frame.tobytes()


def odd_numbers() -> Any:
    """Numbers of F32 about every border of F16 and BF16."""
    edges = [0, 0x33000000, 0x33800000, 0x387FE000, 0x38800000, 0x3F800000, 0x477FE000, 0x477FF000]
    edges += [0x47800000, 0x7F7F0000, 0x7F7F8000, 0x7F800000, 0x7FC00000, 0x7FA00001, 0x00400000]
    near = [edge + step for edge in edges for step in (-1, 0, 1, 0x7FFF, 0x8000, 0x1000, 0x1001)]
    bits = np.array([number & 0x7FFFFFFF for number in near], "<u4")
    return np.concatenate(
        [bits, bits | np.uint32(1 << 31), RANDOM.integers(0, 1 << 32, 600, "<u4")]
    )


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_a_cast_is_rounded_by_the_spec_alone(name: str) -> None:
    """A frame of the codec's own rounding is stored as zero distances, which must mean the same."""
    base, chosen, element = odd_numbers(), CODECS["cast"], TYPES[name]
    of = codecs.numbers_of(name, (element.block_elements, element.block_bytes))
    about = FrameShape(element, 2 * base.size)
    frame = chosen.predicted([base.view(np.uint8).data], about)  # type: ignore[attr-defined]
    (plane,) = chosen.encode(frame.view(np.uint8).data, [base.view(np.uint8).data], about) or ()
    assert plane.size_bytes < 64
    stored = codecs.Frame(
        [(int(plane.codec), bytes(plane.data))], frame.nbytes, of, [base.tobytes()]
    )
    assert codecs.decode("cast", stored) == frame.tobytes()
