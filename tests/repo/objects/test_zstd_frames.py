"""Tests of `repo.objects.zstd_frames`: what a frame claims is compared before it is expanded."""

from __future__ import annotations

import pytest
import zstandard

from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.objects.zstd_frames import claimed_bytes, expand_frame

CONTENT = bytes(range(256)) * 40
FRAME = zstandard.ZstdCompressor().compress(CONTENT)


def test_a_frame_gives_its_content_where_that_may_be_as_large() -> None:
    assert claimed_bytes(FRAME, "x") == len(CONTENT)
    assert expand_frame(FRAME, "x", len(CONTENT)) == CONTENT


def test_a_frame_of_one_byte_too_many_is_refused() -> None:
    with pytest.raises(CorruptError, match=f"^x: .*claims {len(CONTENT)} bytes, at most 10239"):
        expand_frame(FRAME, "x", len(CONTENT) - 1)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"no frame at all",
        FRAME[:-1],
        FRAME + b"y",
        FRAME + FRAME,
        zstandard.ZstdCompressor(write_content_size=False).compress(CONTENT),
    ],
    ids=["nothing", "no frame", "cut", "a byte behind", "a frame behind", "no size"],
)
def test_anything_but_one_whole_frame_is_damage(frame: bytes) -> None:
    with pytest.raises(CorruptError, match=r"^x: its compressed form"):
        expand_frame(frame, "x", 1 << 20)
