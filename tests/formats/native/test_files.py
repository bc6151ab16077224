"""Image files taken in one behind the other: in C and in Python."""

from __future__ import annotations

import errno
import io
import os
import random
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensorrepo.formats.images.headers import HEAD_BYTES, JPEG_MODES, codec_of, examine
from tensorrepo.formats.native.extensions import kernels, why_not_native
from tensorrepo.formats.native.files import CODECS, NATIVE, PYTHON, FileBatch, FileReader
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.foreign import gif, png
from tests.support.effort import sampled

needs_native = pytest.mark.skipif(NATIVE is None, reason=f"not built: {why_not_native}")
EVERY = pytest.mark.parametrize(
    "reader",
    [
        pytest.param(PYTHON, id="python"),
        pytest.param(NATIVE, id="native", marks=needs_native),
    ],
)
PNG = png(np.zeros((3, 5), np.uint8))
# A JPEG of 5 x 3 pixels that pillow would not decode, and whose structure is whole.
FRAME = b"\xff\xc0\0\x0b\x08\0\3\0\5\1\1\x11\0"
JPEG = b"\xff\xd8\xff\xe0\0\4ab" + FRAME + b"\xff\xda\0\2scan\xff\xd9"
HEADS = [
    JPEG, PNG, gif(), b"II*\0", b"MM\0*", b"II+\0", b"MM\0+", b"RIFF1234WEBPVP8 ", b"RIFF1234AVI ",
    b"BM" + bytes(12) + b"\x28\0\0\0", b"BM" + bytes(12) + b"\x29\0\0\0", b"BMW is a car maker",
    b"",
]  # fmt: skip


def stored(folder: Path, contents: Iterable[bytes]) -> list[str]:
    paths = []
    for at, data in enumerate(contents):
        (folder / f"{at}").write_bytes(data)
        paths.append(str(folder / f"{at}"))
    return paths


def buffer(size: int) -> NDArray[np.uint8]:
    """`size` bytes, and what lies behind them."""
    return np.full(size + 64, 0xA5, np.uint8)


def read(reader: FileReader, paths: list[str], size: int) -> tuple[FileBatch, list[bytes]]:
    """What was found, and the bytes that each file took."""
    memory = buffer(size)
    found = reader.read(paths, memory[:size])
    assert (memory[size:] == 0xA5).all(), "nothing is written behind the buffer"
    ends = [0, *found.records["end"].tolist()]
    return found, [memory[start:stop].tobytes() for start, stop in pairwise(ends)]


def damaged(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(4)):
        changed[rng.randrange(len(changed))] = rng.choice([0, 1, 2, 0xC0, 0xD8, 0xD9, 0xDA, 0xFF])
    return bytes(changed[: rng.randrange(len(changed) + 1)] if rng.randrange(2) else changed)


# ------------------------------------------------------------------------------ looking


@EVERY
def test_the_format_and_the_size_of_each_file_are_told(reader: FileReader, tmp_path: Path) -> None:
    contents = [*HEADS, JPEG + bytes(1 << 20)]
    found = reader.look(stored(tmp_path, contents))
    assert [CODECS[codec] for codec in found.records["codec"]] == [
        codec_of(data[:HEAD_BYTES]) or "" for data in contents
    ]
    assert found.records["end"].tolist() == [len(data) for data in contents]
    assert found.error == 0


@EVERY
def test_looking_ends_at_a_file_that_the_system_refuses(reader: FileReader, tmp_path: Path) -> None:
    first, last = stored(tmp_path, [PNG, PNG])
    paths = [first, str(tmp_path / "gone"), last]
    found = reader.look(paths)
    assert (len(found.records), found.error) == (1, errno.ENOENT)
    problem = found.problem(paths)
    assert isinstance(problem, FileNotFoundError)
    assert problem.filename == paths[1]


@EVERY
def test_no_files_are_no_problem(reader: FileReader) -> None:
    assert len(reader.look([]).records) == 0
    assert len(reader.read([], buffer(0)).records) == 0


# ------------------------------------------------------------------------------ reading


@EVERY
def test_images_lie_one_behind_the_other_and_nothing_is_kept_of_the_rest(
    reader: FileReader, tmp_path: Path
) -> None:
    contents = [JPEG, b"a note", PNG, bytes(200_000), gif(), JPEG + bytes(200_000)]
    found, pieces = read(reader, stored(tmp_path, contents), 1 << 20)
    assert pieces == [JPEG, b"", PNG, b"", gif(), contents[-1]]
    assert [CODECS[codec] for codec in found.records["codec"]] == [
        "jpeg", "", "png", "", "gif", "jpeg",
    ]  # fmt: skip


@needs_native
def test_the_header_of_a_usual_jpeg_is_told(tmp_path: Path) -> None:
    assert NATIVE is not None
    found, _ = read(NATIVE, stored(tmp_path, [JPEG, PNG, JPEG[:-1]]), 4096)
    fields = ["height", "width", "components"]
    assert found.records[fields].tolist() == [(3, 5, 1), (0, 0, 0), (0, 0, 0)]


@EVERY
@pytest.mark.parametrize("behind", [0, 1, 50, 70_000])
def test_a_file_that_does_not_fit_ends_the_reading_before_it(
    reader: FileReader, behind: int, tmp_path: Path
) -> None:
    paths = stored(tmp_path, [PNG, JPEG + bytes(100 + behind), PNG])
    found, pieces = read(reader, paths, len(PNG) + len(JPEG) + 100)
    assert pieces[:1] == [PNG]
    assert len(pieces) == (1 if behind else 2)
    assert found.error == 0


@EVERY
def test_a_file_that_fills_the_buffer_fits(reader: FileReader, tmp_path: Path) -> None:
    data = JPEG + bytes(100_000)
    _, pieces = read(reader, stored(tmp_path, [data]), len(data))
    assert pieces == [data]
    assert read(reader, stored(tmp_path, [data]), len(data) - 1)[1] == []


@EVERY
def test_reading_ends_at_what_the_system_refuses(reader: FileReader, tmp_path: Path) -> None:
    found, pieces = read(reader, [*stored(tmp_path, [PNG]), str(tmp_path)], 4096)
    assert pieces == [PNG]
    assert found.error == errno.EISDIR


@EVERY
def test_a_size_that_is_a_lie_is_not_believed(reader: FileReader) -> None:
    # The system says that such a file has no bytes, and gives some.
    found = reader.look(["/proc/self/status"] if os.path.exists("/proc/self/status") else [])
    assert found.records["codec"].tolist() in ([], [0])


@EVERY
def test_names_may_be_any_bytes(reader: FileReader, tmp_path: Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"caf\xe9 \n.png")
    with open(path, "wb") as file:
        file.write(PNG)
    assert read(reader, [os.fsdecode(path)], 4096)[1] == [PNG]


@EVERY
def test_a_name_that_ends_early_is_refused(reader: FileReader, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"null|paths do not fit"):
        reader.look([f"{tmp_path}/a\0b"])


# ------------------------------------------------------------------------------ both alike


@needs_native
@pytest.mark.parametrize("seed", sampled(range(20), 8))
def test_both_find_the_same_in_damaged_files(seed: int, tmp_path: Path) -> None:
    assert NATIVE is not None
    rng = random.Random(seed)
    contents = [damaged(rng.choice([JPEG, JPEG, JPEG, *HEADS[:-1]]), rng) for _ in range(200)]
    paths = stored(tmp_path, contents)
    room = sum(map(len, contents)) * 3 // 4
    (native, pieces), (python, same) = read(NATIVE, paths, room), read(PYTHON, paths, room)
    told = ["end", "error", "codec"]
    assert native.records[told].tolist() == python.records[told].tolist()
    assert pieces == same
    assert NATIVE.look(paths).records.tolist() == PYTHON.look(paths).records.tolist()


@needs_native
@given(
    segments=st.lists(
        st.one_of(
            st.binary(max_size=8),
            st.sampled_from([FRAME, b"\xff\xda\0\2", b"\xff\xd9", b"\xff\xe0\0\2", b"\xff"]),
        ),
        max_size=8,
    )
)
def test_what_is_told_of_a_jpeg_is_what_examining_it_finds(
    segments: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert NATIVE is not None
    data = b"\xff\xd8" + b"".join(segments)
    path = tmp_path_factory.getbasetemp() / "one.jpg"
    path.write_bytes(data)
    records = NATIVE.read([str(path)], np.empty(4096, np.uint8)).records
    told = [
        (height, width, JPEG_MODES.get(components))
        for _, height, width, _, _, components in records.tolist()
        if components
    ]
    assert told in ([], [_examined(data)])


def _examined(data: bytes) -> tuple[int, int, str | None] | None:
    try:
        header = examine(data)
    except InvalidInputError:
        return None
    return header.height, header.width, header.mode


@needs_native
@pytest.mark.parametrize("options", [{}, {"progressive": True}, {"optimize": True}])
@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_what_an_encoder_writes_needs_no_second_look(
    options: dict[str, bool], mode: str, tmp_path: Path
) -> None:
    assert NATIVE is not None
    pillow = pytest.importorskip("PIL.Image", reason="pillow encodes what is read here")
    file = io.BytesIO()
    pillow.new(mode, (37, 53)).save(file, "jpeg", **options)
    found, _ = read(NATIVE, stored(tmp_path, [file.getvalue()]), 1 << 16)
    (height, width, components) = found.records[["height", "width", "components"]].tolist()[0]
    assert (height, width, JPEG_MODES[components]) == (53, 37, mode)


# ------------------------------------------------------------------------------ the kernel alone


@needs_native
def test_the_kernel_refuses_buffers_that_do_not_fit_each_other() -> None:
    with pytest.raises(ValueError, match="1 paths do not fit 48 bytes"):
        kernels.look_files(b"/a\0", np.zeros(6, np.int64))
    with pytest.raises(ValueError, match="paths do not fit"):
        kernels.look_files(b"/a\0/b", np.zeros(3, np.int64))
