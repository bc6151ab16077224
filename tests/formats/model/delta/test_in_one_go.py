"""Planes that C encodes in one go are those of one step after the other."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard

from tensorrepo.formats.common.tensors import TYPES
from tensorrepo.formats.model.delta import distances, plane_codec
from tensorrepo.formats.model.delta.frame_codec import FrameShape
from tensorrepo.formats.model.delta.plane_codec import PlaneCodec, StoredPlane
from tensorrepo.formats.model.delta.registry import PLANES
from tensorrepo.formats.native import delta_tokens, encoding, frequency_tables
from tensorrepo.formats.native.delta_tokens import Numbers
from tests.support.effort import sampled_product

pytestmark = pytest.mark.skipif(delta_tokens.NATIVE is None, reason="the kernel was not built")

KINDS = [Numbers(1, True, 0), Numbers(2, True, 8), Numbers(4, True, 8), Numbers(8, False, 0)]


@sampled_product(
    "of,count,spread", KINDS, [1, 700, 5000, 20_001, 70_001], [0, 3, 1 << 7, 1 << 30], dev=20
)
def test_distances_are_encoded_and_expected_alike(of: Numbers, count: int, spread: int) -> None:
    rng = np.random.default_rng(count + spread)
    base = rng.integers(0, 1 << of.bits - 1, count, dtype=np.uint64).astype(of.dtype)
    frame = base + (rng.integers(0, spread + 1, count) * (1 + 255 * (spread == 3))).astype(of.dtype)
    native = distances.encode_against(frame, base, of), distances.expected_bytes(frame, base, of)
    # The steps, of which each is native still: only what puts them together differs.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(distances.BEST), "encode", delta_tokens.Distances.encode)
        stored = distances.encode_against(frame, base, of)
    assert native[0].codec == stored.codec
    assert bytes(native[0].data) == bytes(stored.data)
    out = np.empty_like(frame)
    distances.decode_against(native[0], base, of, out)
    assert np.array_equal(out, frame)
    assert native[1] <= frame.nbytes
    assert native[1] == pytest.approx(stored.size_bytes, rel=0.02, abs=160)


@pytest.mark.parametrize("of", KINDS, ids=str)
@pytest.mark.parametrize("count", [1, 700, 5000, 20_001])
@pytest.mark.parametrize("spread", [0, 1, 200, 1 << 20])
def test_layers_are_encoded_alike(of: Numbers, count: int, spread: int) -> None:
    rng = np.random.default_rng(count + spread)
    base = rng.integers(0, 1 << of.bits - 1, count, dtype=np.uint64).astype(of.dtype)
    frame = base + (rng.integers(0, spread + 1, count) // 7 * 300).astype(of.dtype)
    native = distances.encode_layers(frame, base, of)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(distances.BEST), "encode_layers", delta_tokens.Distances.encode_layers)
        stored = distances.encode_layers(frame, base, of)
    assert native.tobytes() == stored.tobytes()
    out = np.empty_like(frame)
    distances.decode_layers(native, base, of, out)
    assert np.array_equal(out, frame)


@pytest.mark.parametrize("size", [1, 2, 900, 5000, 70_000, 270_001])
@pytest.mark.parametrize("symbols", [1, 2, 40, 256])
def test_bytes_are_packed_and_expected_alike(size: int, symbols: int) -> None:
    rng = np.random.default_rng(size)
    plane = np.minimum(rng.geometric(0.1, size), symbols - 1).astype(np.uint8)
    native = plane_codec.pack_plane(plane), plane_codec.expected_plane_bytes(plane)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(frequency_tables.BEST), "pack", frequency_tables.TableMaker.pack)
        stored = plane_codec.pack_plane(plane)
        in_steps = plane_codec.expected_plane_bytes(plane)
    assert (native[0].codec, bytes(native[0].data)) == (stored.codec, bytes(stored.data))
    assert native[1] == pytest.approx(in_steps)
    assert native[1] == pytest.approx(stored.size_bytes, rel=0.02, abs=400)  # tables, and states


@pytest.mark.parametrize("size", [2, 3, 40, 700, 1024, 2999, 4096, 4097])
def test_small_planes_are_packed_alike_with_and_without_zstd(size: int) -> None:
    rng = np.random.default_rng(size)
    planes = np.stack([np.minimum(rng.geometric(p, size), 255) for p in (0.005, 0.02, 0.1, 0.9)])
    noises = rng.integers(0, 256, (24, size))
    for row, length in zip(noises, range(24), strict=True):  # one run of bytes comes again
        row[: size // 2][:length] = row[size // 2 :][: min(length, size // 2)]
    repeated = np.tile(noises[0, : size // 5 + 1], 6)[:size]
    whole = np.vstack([planes, noises, repeated, np.full(size, 7)]).astype(np.uint8)
    one_by_one = [plane_codec.pack_plane(plane) for plane in whole]
    together = plane_codec.pack_planes(whole)
    assert [(one.codec, bytes(one.data)) for one in together] == [
        (one.codec, bytes(one.data)) for one in one_by_one
    ]


@pytest.mark.parametrize("size", [2, 700, 1024, 4096])
def test_small_planes_are_unpacked_together_and_what_is_left_is_said(size: int) -> None:
    rng = np.random.default_rng(size)
    planes = [np.minimum(rng.geometric(p, size), 255).astype(np.uint8) for p in (0.005, 0.1, 0.9)]
    planes += [noise(size), np.full(size, 7, np.uint8)]
    stored = [plane_codec.pack_plane(plane) for plane in planes]
    stored.append(StoredPlane(PlaneCodec.ZSTD, zstandard.compress(planes[0].tobytes())))
    # A size that is wrong, a plane that is cut short, and one that lies beyond the pack.
    stored += [StoredPlane(PlaneCodec.RAW, bytes(size + 1)), StoredPlane(PlaneCodec.CODED, b"\0a")]
    stored.append(StoredPlane(PlaneCodec.RAW, bytes(size)))
    sizes = np.array([one.size_bytes for one in stored], np.uint64)
    offsets = np.cumsum(sizes) - sizes + np.uint64(3)
    pack = memoryview(b"abc" + b"".join(bytes(one.data) for one in stored))[:-1]
    codecs = np.array([one.codec for one in stored], np.uint8)
    out = np.zeros((len(stored), size), np.uint8)
    assert encoding.BEST.unpack(pack, offsets, sizes, codecs, out) == [5, 6, 7, 8]
    assert np.array_equal(out[:5], planes)
    assert encoding.PYTHON.unpack(pack, offsets, sizes, codecs, out) == list(range(9))


@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<u8"])
def test_both_count_values_alike(dtype: str) -> None:
    rng = np.random.default_rng(3)
    values = rng.permutation(1 << 16)[:257].astype(dtype) * np.dtype(dtype).type(257)
    for count in (1, 256, 257):
        numbers = rng.permutation(np.tile(np.unique(values)[:count], 9))
        for counter in (encoding.PYTHON, encoding.BEST):
            assert counter.has_more_values(numbers, 256) == (count > 256)


LARGE = 300_001  # bytes: a sample tells whether such a plane is noise


def noise(size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.random.default_rng(size).integers(0, 256, size, np.uint8)


@pytest.mark.parametrize("maker", [frequency_tables.NUMPY, frequency_tables.BEST])
def test_large_noise_stays_as_it_is(
    maker: frequency_tables.TableMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frequency_tables, "BEST", maker)
    plane = noise(LARGE)
    assert plane_codec.pack_plane(plane).codec == plane_codec.PlaneCodec.RAW
    assert plane_codec.expected_plane_bytes(plane) == LARGE


@pytest.mark.parametrize("place", range(16))
def test_a_plane_of_which_a_sixteenth_is_noise_is_not_taken_for_noise(place: int) -> None:
    plane = np.zeros(LARGE, np.uint8)
    each = plane[: LARGE // 16_384 * 16_384].reshape(-1, 16, 1024)
    each[:, place] = noise(each[:, place].size).reshape(-1, 1024)
    stored = plane_codec.pack_plane(plane)
    out = np.empty_like(plane)
    plane_codec.unpack_plane(stored, out)
    assert stored.size_bytes < LARGE // 4
    assert np.array_equal(out, plane)


@pytest.mark.parametrize("maker", [frequency_tables.NUMPY, frequency_tables.BEST])
def test_noise_whose_rows_repeat_is_compressed(
    maker: frequency_tables.TableMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frequency_tables, "BEST", maker)
    plane = np.tile(noise(1024), LARGE // 1024)
    assert plane_codec.pack_plane(plane).codec == plane_codec.PlaneCodec.ZSTD


def test_planes_of_a_frame_stay_when_the_thread_encodes_another() -> None:
    about = FrameShape(TYPES["F32"], 4 * LARGE)
    frames = [noise(4 * LARGE), noise(4 * LARGE + 4)[4:]]
    stored = [PLANES.encode(frame.data, [], about) for frame in frames]
    out = np.empty(4 * LARGE, np.uint8)
    PLANES.decode(stored[0], [], about, out.data)
    assert np.array_equal(out, frames[0])
