"""Frames are read once for all that look at them, and their memory is used again."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tensorrepo.formats.common.tensors import tensor_of
from tensorrepo.formats.model.delta.plane_codec import PlaneCodec, StoredPlane
from tensorrepo.formats.model.delta.similarity import signature
from tensorrepo.formats.model.layout.fingerprints import FRAME_ELEMENTS, frame_digest
from tensorrepo.formats.model.write.tensor_chunks import (
    TensorChunk,
    TensorPart,
    hash_frames,
    read_chunk,
    rounds,
    whole_part,
)
from tensorrepo.formats.native.frame_memory import FrameMemory
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.models import CountingTensor

FRAMES = np.random.default_rng(3).standard_normal(2 * FRAME_ELEMENTS + 4321).astype("f2")
SIZE = 2 * FRAME_ELEMENTS  # bytes of a frame


def chunk_of(array: np.ndarray, memory: FrameMemory | None = None) -> TensorChunk:  # type: ignore[type-arg]
    return TensorChunk(whole_part("t", tensor_of("t", array)), memory or FrameMemory(1 << 24))


def test_a_frame_is_read_once_while_it_is_held() -> None:
    reader = CountingTensor(2 * FRAME_ELEMENTS)
    chunk = TensorChunk(whole_part("t", reader), FrameMemory(0))
    digest = chunk.digest(1)
    assert digest == frame_digest(chunk.frame(1))
    assert reader.bytes_read == 8 * FRAME_ELEMENTS


def test_a_frame_that_changed_before_it_was_read_again_is_refused() -> None:
    array = FRAMES.copy()
    chunk = chunk_of(array)
    chunk.digest(2)
    chunk.forget(2)
    array[-1] += 1
    with pytest.raises(InvalidInputError, match="'t' changed while it was being stored"):
        chunk.frame(2)


def test_memory_of_a_forgotten_frame_is_used_for_the_next() -> None:
    chunk = chunk_of(FRAMES)
    before = np.frombuffer(chunk.frame(0), np.uint8)
    chunk.forget(0)
    assert np.shares_memory(before, np.frombuffer(chunk.frame(1), np.uint8))


def test_memory_that_raw_planes_lie_in_is_not_used_again() -> None:
    chunk = chunk_of(FRAMES)
    frame = chunk.frame(0)
    planes = [StoredPlane(PlaneCodec.CONSTANT, b"\0"), StoredPlane(PlaneCodec.RAW, frame[5:9])]
    chunk.forget(0, planes)
    assert not np.shares_memory(
        np.frombuffer(frame, np.uint8), np.frombuffer(chunk.frame(1), np.uint8)
    )


@pytest.mark.parametrize("elements", [1 << 16, 100_003, FRAMES.size - 1, FRAMES.size])
@pytest.mark.parametrize("dtype", ["u1", "f2", "c8"])
def test_a_chunk_has_the_signature_of_its_tensor(elements: int, dtype: str) -> None:
    array = np.resize(FRAMES, elements).astype(dtype)
    found, expected = chunk_of(array).signature(), signature(tensor_of("t", array))
    assert found is not None
    assert expected is not None
    assert found.tolist() == expected.tolist()


def test_a_part_that_begins_a_tensor_has_the_signature_of_all_of_it() -> None:
    reader = tensor_of("t", FRAMES)
    first = TensorChunk(TensorPart("t", reader, 0, SIZE), FrameMemory(0))
    second = TensorChunk(TensorPart("t", reader, SIZE, FRAMES.nbytes), FrameMemory(0))
    expected = signature(reader)
    assert (found := first.signature()) is not None
    assert expected is not None
    assert found.tolist() == expected.tolist()
    assert second.signature() is None


def test_hashes_are_the_same_however_a_tensor_is_read() -> None:
    part = whole_part("t", tensor_of("t", FRAMES))
    with ThreadPoolExecutor(2) as pool:
        assert hash_frames(part, FrameMemory(1 << 24), pool) == read_chunk(part, pool).digests()


def test_names_wait_for_what_they_need_and_not_in_circles() -> None:
    later = {"a": {"c"}, "d": {"e"}, "e": {"d"}}
    assert list(rounds("abcde", later)) == [["b", "c"], ["a"], ["d", "e"]]
