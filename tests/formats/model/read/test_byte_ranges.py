"""Byte ranges of tensors and files, against the bytes themselves."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.model.read.byte_ranges import ModelBytes, ProvedFrames, file_bytes
from tensorrepo.formats.model.stored_model import StoredModel
from tensorrepo.repo.errors import CorruptError, NotFoundError
from tests.support.builders.models import MemoryObjects, flip, payload_start, stored
from tests.support.builders.streams import MappedObjects

TENSORS = {
    "large": np.arange(1_300_000, dtype=np.float32),
    "noise": np.frombuffer(np.random.default_rng(1).bytes(2_700_001), np.uint8),  # 6 raw frames
    "small": np.arange(300, dtype=np.int64),
    "tiny": np.float16(3),
}
WHOLE = b"".join(array.tobytes() for array in TENSORS.values())


@pytest.fixture(scope="module")
def pool() -> Iterator[Executor]:
    with ThreadPoolExecutor(2) as made:
        yield made


@pytest.fixture(scope="module", params=[MemoryObjects, MappedObjects])
def model(request: pytest.FixtureRequest) -> StoredModel:
    """Of objects from afar, and of objects on this machine's disk, which are mapped."""
    return stored(TENSORS, request.param())


def _bytes(content: ModelBytes, start: int, stop: int, pool: Executor) -> bytes:
    return b"".join(bytes(piece) for piece in content.pieces(start, stop, pool, ProvedFrames()))


@given(st.data())
def test_any_range_is_that_of_the_bytes(
    model: StoredModel, pool: Executor, data: st.DataObject
) -> None:
    parts = (b"head", "large", b"between", "noise", "small", "tiny", b"end")
    whole = b"".join(TENSORS[part].tobytes() if isinstance(part, str) else part for part in parts)
    content = ModelBytes(model, parts)
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert content.size_bytes == len(whole)
    assert _bytes(content, start, stop, pool) == whole[start:stop]


def test_pieces_stay_what_they_are_when_the_next_ones_come(
    model: StoredModel, pool: Executor
) -> None:
    pieces = list(ModelBytes(model, tuple(TENSORS)).pieces(0, len(WHOLE), pool, ProvedFrames()))
    assert sha256(b"".join(pieces)).digest() == sha256(WHOLE).digest()


def test_a_damaged_frame_is_told_before_a_byte_of_it_is_given(pool: Executor) -> None:
    objects = MemoryObjects()
    model = stored({"large": TENSORS["large"]}, objects)
    last = model.tensor("large").frames[-1]
    at = payload_start(objects, last.pack.digest) + last.frame.planes[0].offset
    flip(objects, last.pack.digest, at)
    given: list[bytes] = []
    with pytest.raises(CorruptError):
        given.extend(
            map(bytes, ModelBytes(model, ("large",)).pieces(0, 5_200_000, pool, ProvedFrames()))
        )
    assert TENSORS["large"].tobytes().startswith(b"".join(given))


@pytest.mark.parametrize("looks_before", [0, 1, 2])
def test_a_raw_frame_that_is_damaged_is_told_however_often_it_was_right(looks_before: int) -> None:
    rows = np.frombuffer(np.random.default_rng(1).bytes(600_000), np.uint8)
    tensor, proved = stored({"noise": rows}).tensor("noise"), ProvedFrames()
    frame = bytearray(rows[: tensor.frames[0].frame.size_bytes])
    for _ in range(looks_before):
        proved.check(tensor, 0, memoryview(frame))
    frame[len(frame) // 2] ^= 1
    with pytest.raises(CorruptError, match="noise"):
        proved.check(tensor, 0, memoryview(frame))


@pytest.mark.parametrize("damaged", [0, 1, 4, 5])
def test_raw_frames_that_lie_back_to_back_leave_together_up_to_the_damaged_one(
    pool: Executor, damaged: int
) -> None:
    objects, noise = MappedObjects(), TENSORS["noise"]
    model = stored({"noise": noise}, objects)
    content, proved = ModelBytes(model, ("noise",)), ProvedFrames()
    whole = [bytes(piece) for piece in content.pieces(0, noise.nbytes, pool, proved)]
    assert b"".join(whole) == noise.tobytes()
    assert len(whole) == len(model.tensor("noise").frames) / 2
    frame = model.tensor("noise").frames[damaged]
    flip(
        objects,
        frame.pack.digest,
        payload_start(objects, frame.pack.digest) + frame.frame.planes[0].offset,
    )
    given: list[bytes] = []
    for before in (proved, ProvedFrames()):
        given.clear()
        with pytest.raises(CorruptError):
            given.extend(map(bytes, content.pieces(0, noise.nbytes, pool, before)))
        assert noise.tobytes().startswith(b"".join(given))
        assert sum(map(len, given)) <= damaged * (512 << 10)


def test_a_file_that_is_not_there_is_told_so(model: StoredModel) -> None:
    with pytest.raises(NotFoundError, match="config"):
        file_bytes(model, "config.json")
