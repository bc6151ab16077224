"""Each codec stores in little what it is made for."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tensorrepo.formats.common.tensors import TYPES
from tensorrepo.formats.model.delta.distances import encode_against
from tensorrepo.formats.model.delta.frame_codec import (
    FrameCodec,
    FrameShape,
    numbers_of,
)
from tensorrepo.formats.model.delta.plane_codec import (
    PlaneCodec,
    StoredPlane,
    pack_plane,
    unpack_plane,
)
from tensorrepo.formats.model.delta.predictions import AdamParams, unpack_params
from tensorrepo.formats.model.delta.registry import (
    ADAM,
    DECAY,
    DELTA,
    LOW_RANK,
    PALETTE,
    PLANES,
    ROWS,
)
from tensorrepo.repo.errors import CorruptError, InvalidInputError, UnsupportedError

F32, BF16 = TYPES["F32"], TYPES["BF16"]
RNG = np.random.default_rng(7)
WEIGHTS = RNG.normal(0, 0.03, 50_000).astype("<f4")
STEP = AdamParams("weight", 200, 1e-3, (0.9, 0.999), 1e-8, 0.01, decoupled=True)


def share(
    codec: FrameCodec, frame: object, *bases: object, row_bytes: int = 0, params: bytes = b""
) -> float:
    views = [memoryview(np.ascontiguousarray(each)).cast("B") for each in (frame, *bases)]
    about = FrameShape(F32, views[0].nbytes, row_bytes, 0, params)
    planes = codec.encode(views[0], views[1:], about)
    assert planes is not None
    return sum(plane.size_bytes for plane in planes) / views[0].nbytes


def test_an_unchanged_frame_takes_a_few_bytes() -> None:
    assert share(DELTA, WEIGHTS, WEIGHTS) * WEIGHTS.nbytes < 64


def test_a_sparse_update_takes_little_more_than_its_numbers() -> None:
    moved = WEIGHTS.copy()
    moved[::1000] += 1.0
    assert share(DELTA, moved, WEIGHTS) * WEIGHTS.nbytes < 50 * 12 + 300


def test_rows_that_did_not_move_take_a_bit_each() -> None:
    table = WEIGHTS.reshape(-1, 50)
    moved = table.copy()
    moved[::100] += np.float32(0.01)
    assert share(ROWS, moved, table, row_bytes=200) < share(DELTA, moved, table)


def decayed(steps: int) -> np.ndarray:
    """Rows of which every seventh moved, all of which decayed as torch does it."""
    found = WEIGHTS.copy()
    for _ in range(steps):
        found *= np.float32(1 - 2e-5 * 0.01)
    found.reshape(-1, 50)[::7] += np.float32(1e-4)
    return found


def test_rows_that_only_decayed_take_next_to_nothing() -> None:
    rows = share(DECAY, decayed(20), WEIGHTS, row_bytes=200)
    assert rows < 0.09
    assert rows < 0.6 * share(DELTA, decayed(20), WEIGHTS)


@pytest.mark.parametrize("first", [0, 4, 30_004, 39_800])
def test_rows_cut_by_frames_come_back(first: int) -> None:
    new, old = (one.view("u1")[first : first + 30_000] for one in (decayed(3), WEIGHTS))
    shape = FrameShape(F32, 30_000, 200, first)
    planes = DECAY.encode(new.data, [old.data], shape)
    out = bytearray(30_000)
    DECAY.decode(planes, [old.data], shape, memoryview(out))
    assert bytes(out) == new.tobytes()
    assert planes[2].size_bytes < 1000


def test_only_a_common_decay_is_worth_a_trial() -> None:
    old, shape = WEIGHTS.view("u1").data, FrameShape(F32, WEIGHTS.nbytes, 200)
    moved = (WEIGHTS + RNG.normal(0, 1e-6, WEIGHTS.size)).astype("<f4")
    tried = [decayed(20), WEIGHTS, moved]
    assert [DECAY.seems_better(one.view("u1").data, [old], shape) for one in tried] == [
        True,
        False,
        False,
    ]


def adapted(rank: int) -> tuple[np.ndarray, np.ndarray]:
    """A matrix with an adapter merged into it in 32-bit floats, as torch does it; and without."""
    matrix = WEIGHTS.reshape(-1, 125)
    left = RNG.normal(0, 0.02, (len(matrix), rank)).astype("<f4")
    right = RNG.normal(0, 0.02, (rank, 125)).astype("<f4")
    return matrix + (left @ right) * np.float32(2.0), matrix


def test_a_merged_adapter_takes_its_factors_and_rounding() -> None:
    new, old = adapted(4)
    assert share(LOW_RANK, new, old, row_bytes=500) < 0.1
    assert share(DELTA, new, old) > 0.5


def test_a_difference_of_high_rank_is_a_delta() -> None:
    new = WEIGHTS + RNG.normal(0, 1e-4, WEIGHTS.size).astype("<f4")
    found = share(LOW_RANK, new, WEIGHTS, row_bytes=500)
    assert found == pytest.approx(share(DELTA, new, WEIGHTS), abs=1e-4)


@pytest.mark.parametrize("first", [0, 100, 10_001, 19_999])
@pytest.mark.parametrize("name", ["F32", "BF16"])
def test_parts_of_rows_come_back(name: str, first: int) -> None:
    kind = {"F32": "<f4", "BF16": ml_dtypes.bfloat16}[name]
    new, old = (one.astype(kind).reshape(-1)[first : first + 20_001] for one in adapted(3))
    size = new.itemsize
    shape = FrameShape(TYPES[name], new.nbytes, 125 * size, first * size)
    base, out = old.view("u1").data, bytearray(new.nbytes)
    planes = LOW_RANK.encode(new.view("u1").data, [base], shape)
    LOW_RANK.decode(planes, [base], shape, memoryview(out))
    assert bytes(out) == new.tobytes()
    assert planes[1].size_bytes == 3 * 3 * (125 + -(-(first % 125 + 20_001) // 125))


def test_a_product_is_the_same_on_every_machine() -> None:
    """Whole numbers of 24 bits; were this to change, nothing would decode."""
    shape = FrameShape(F32, 16, 8)
    head = StoredPlane(PlaneCodec.RAW, bytes([1, 0, 44, 0]))
    numbers = [1 << 22, -(1 << 23), 3, (1 << 23) - 1]
    both = np.array(numbers, "<i4").view("u1").reshape(-1, 4)[:, :3].tobytes()
    base = np.array([0x3F800000, 0x3F800000, 0x7FC12345, 1], "<u4")
    same = encode_against(base, base, numbers_of(F32))
    out = np.empty(4, "<u4")
    planes = [head, StoredPlane(PlaneCodec.RAW, both), same]
    LOW_RANK.decode(planes, [base.view("u1").data], shape, out.view("u1").data)
    assert out.tolist() == [0x3F800006, 0x403FFFFF, 0x7FC12345, 0xC07FFFFE]


@pytest.mark.parametrize(
    "head", [b"\x01\x00", b"\x01\x01\x2c\x00", b"\x41\x00\x2c\x00", b"\x01\x00\x2d\x01"]
)
def test_other_factors_are_refused(head: bytes) -> None:
    base = bytes(4000)
    same = StoredPlane(PlaneCodec.RAW, base)
    planes = [StoredPlane(PlaneCodec.RAW, head), StoredPlane(PlaneCodec.CONSTANT, b"\0"), same]
    with pytest.raises(CorruptError):
        LOW_RANK.decode(
            planes, [memoryview(base)], FrameShape(F32, 4000, 40), memoryview(bytearray(4000))
        )


def test_a_frame_of_few_values_is_a_palette() -> None:
    assert share(PALETTE, np.sign(WEIGHTS)) < 1.1 / 32


def test_a_frame_of_many_values_is_no_palette() -> None:
    assert PALETTE.encode(WEIGHTS.view("u1").data, [], FrameShape(F32, WEIGHTS.nbytes)) is None


def test_many_values_late_in_a_frame_are_no_palette_either() -> None:
    late = np.concatenate([np.zeros(5000, "<f4"), WEIGHTS[:300]])
    assert PALETTE.encode(late.view("u1").data, [], FrameShape(F32, late.nbytes)) is None


def test_steps_of_one_length_are_coded_byte_by_byte() -> None:
    of = numbers_of(F32)
    moved = (WEIGHTS + np.float32(2e-5) * np.sign(RNG.normal(size=WEIGHTS.size))).astype("<f4")
    stored = encode_against(moved.view("<u4"), WEIGHTS.view("<u4"), of)
    assert stored.codec == PlaneCodec.LAYERS
    assert stored.size_bytes < 0.3 * WEIGHTS.nbytes


def test_two_planes_of_f32_are_its_bf16_truncation() -> None:
    raw = WEIGHTS.view("u1").data
    about = FrameShape(F32, raw.nbytes)
    out = np.empty_like(WEIGHTS)
    PLANES.truncated(PLANES.encode(raw, [], about)[:2], about, out.view("u1").data)
    assert np.array_equal(out.view("<u4"), WEIGHTS.view("<u4") & 0xFFFF0000)


@pytest.mark.parametrize(
    ("plane", "codec"),
    [
        (np.zeros(5000, np.uint8), PlaneCodec.CONSTANT),
        (RNG.integers(0, 256, 5000).astype(np.uint8), PlaneCodec.RAW),
        (RNG.integers(0, 9, 5000).astype(np.uint8), PlaneCodec.CODED),
        (np.tile(np.arange(250, dtype=np.uint8), 40), PlaneCodec.ZSTD),
        (np.arange(1, dtype=np.uint8), PlaneCodec.RAW),
    ],
    ids=["constant", "noise", "few", "repeating", "one"],
)
def test_a_plane_gets_the_codec_that_suits_it(plane: np.ndarray, codec: PlaneCodec) -> None:
    stored = pack_plane(plane)
    out = np.empty_like(plane)
    unpack_plane(stored, out)
    assert stored.codec == codec
    assert stored.size_bytes <= plane.size
    assert np.array_equal(out, plane)


# ------------------------------------------------------------------------------ Adam


def adam_step(old: np.ndarray, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """One step of AdamW in 32-bit floats, as torch does it."""
    one, two = 1 - 0.9**STEP.step, 1 - 0.999**STEP.step
    decayed = old * np.float32(1 - STEP.rate * STEP.decay)
    below = np.sqrt(second) / np.float32(two**0.5) + np.float32(STEP.eps)
    return (decayed - np.float32(STEP.rate / one) * (first / below)).astype("<f4")


def test_a_step_of_adam_takes_a_bit_or_two_a_number() -> None:
    first = RNG.normal(0, 1e-3, WEIGHTS.size).astype("<f4")
    second = (RNG.normal(0, 1e-3, WEIGHTS.size) ** 2).astype("<f4")
    new = adam_step(WEIGHTS, first, second)
    assert share(ADAM, new, WEIGHTS, first, second, params=STEP.pack()) < 2 / 32
    assert share(DELTA, new, WEIGHTS) > 10 / 32


PREDICTED = {
    "F32": ("<f4", [0x3F7FE370, 0x3B031219, 0x7FC12345, 0]),
    "BF16": (ml_dtypes.bfloat16, [0x3F80, 0x3B03, 0x7FC1, 0]),
}


@pytest.mark.parametrize("name", PREDICTED)
def test_a_prediction_is_the_same_on_every_machine(name: str) -> None:
    """Numbers, NaN with a payload and a subnormal; were this to change, nothing would decode."""
    kind, expected = PREDICTED[name]
    size = TYPES[name].block_bytes
    old = np.array([1.0, 0.002, 0.0, 0.0]).astype(kind).view(f"<u{size}")
    old[2:] = [0x7FC12345 >> 32 - 8 * size, 1]
    first = np.array([0.01, 0.0, 0.01, 0.0]).astype(kind).view(f"<u{size}")
    second = np.array([0.0001, 0.01, 0.01, 0.0]).astype(kind).view(f"<u{size}")
    about = FrameShape(TYPES[name], 4 * size, params=STEP.pack())
    found = ADAM.predicted([each.view("u1").data for each in (old, first, second)], about)
    assert found.tolist() == expected


def test_parameters_come_back() -> None:
    assert unpack_params(STEP.pack()) == STEP


@pytest.mark.parametrize(
    ("params", "error"),
    [
        (b"", CorruptError),
        (STEP.pack()[:-1], CorruptError),
        (b"\x09" + STEP.pack()[1:], UnsupportedError),
        (STEP.pack()[:4] + bytes(4) + STEP.pack()[8:], CorruptError),
    ],
    ids=["none", "short", "unknown role", "step 0"],
)
def test_other_parameters_are_refused(params: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        unpack_params(params)


def test_steps_count_from_1() -> None:
    with pytest.raises(InvalidInputError):
        AdamParams("weight", 0, 1e-3, (0.9, 0.999), 1e-8, 0.0, decoupled=True)
