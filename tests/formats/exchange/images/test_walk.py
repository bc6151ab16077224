"""Image files are read ahead by threads, and come whole and in order."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tensorrepo.formats.exchange.images.walk import (
    AHEAD,
    PORTION_BYTES,
    PORTION_FILES,
    ImagePlace,
    Portion,
    WantedFile,
    read_ahead,
)
from tensorrepo.formats.images.headers import header_of
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tests.support.builders.foreign import png

RNG = np.random.default_rng(0)


def image(side: int = 8) -> bytes:
    return png(RNG.integers(0, 256, (side, side), np.uint8))


def wanted(path: Path, data: bytes, *, size: int | None = None) -> WantedFile:
    path.write_bytes(data)
    stored = len(data) if size is None else size
    return WantedFile(path.name, str(path), ImagePlace(rows=1, bytes=stored, codecs={"png"}))


def images_of(files: Iterable[WantedFile]) -> list[tuple[WantedFile, bytes]]:
    """Every image with its file."""
    return [pair for portion in read_ahead([files]) for pair in _pairs(portion)]


def _pairs(portion: Portion) -> Iterator[tuple[WantedFile, bytes]]:
    bounds = pairwise([0, *portion.ends])
    images = [portion.data[start:stop].tobytes() for start, stop in bounds]
    assert portion.headers == list(map(header_of, images))
    return zip(portion.files, images, strict=True)


def test_images_come_in_the_order_in_which_they_were_asked_for(tmp_path: Path) -> None:
    given = [image() for _ in range(300)]
    files = [
        wanted(tmp_path / f"{at}.png", data, size=PORTION_BYTES // 20)
        for at, data in enumerate(given)
    ]
    assert 17 * AHEAD < 300, "more portions than are read ahead"
    found = images_of(files)
    assert [file for file, _ in found] == files
    assert [data for _, data in found] == given


@pytest.mark.parametrize("told", [0, 1, PORTION_BYTES, None])
def test_a_large_image_is_read_whole_whatever_its_size_was_before(
    tmp_path: Path, told: int | None
) -> None:
    data = image() + bytes(PORTION_BYTES)
    before = wanted(tmp_path / "1.png", image(), size=told)
    large = wanted(tmp_path / "large.png", data, size=told)
    found = images_of([before, large, before])
    assert [file for file, _ in found] == [before, large, before]
    assert found[1][1] == data


def test_an_image_that_became_shorter_is_read_as_it_is(tmp_path: Path) -> None:
    data = image()
    file = wanted(tmp_path / "short.png", data, size=2 * len(data))
    assert images_of([file]) == [(file, data)]


def test_a_portion_of_images_larger_than_their_folder_promised_ends_early(tmp_path: Path) -> None:
    data = [image() + bytes(PORTION_BYTES * share // 10) for share in (4, 4, 9, 1, 0, 8)]
    files = [wanted(tmp_path / f"{at}.png", each, size=100) for at, each in enumerate(data)]
    portions = list(read_ahead([files]))
    assert [data for portion in portions for _, data in _pairs(portion)] == data
    assert [len(portion.files) for portion in portions] == [2, 1, 3]
    assert max(portion.data.nbytes for portion in portions) <= PORTION_BYTES


@pytest.mark.parametrize("data", [b"", b"a note", bytes(1 << 20), bytes(2 * PORTION_BYTES)])
def test_what_is_no_image_is_passed_over(tmp_path: Path, data: bytes) -> None:
    files = [wanted(tmp_path / "note.txt", data), wanted(tmp_path / "1.png", image())]
    assert [file for file, _ in images_of(files)] == files[1:]


def test_an_image_cut_short_is_refused_after_those_before_it(tmp_path: Path) -> None:
    whole = [wanted(tmp_path / f"{at}.png", image()) for at in range(3)]
    behind = wanted(tmp_path / "last.png", image())
    reading = read_ahead([[*whole, wanted(tmp_path / "cut.png", image()[:-6]), behind]])
    assert next(reading).files == whole
    with pytest.raises(InvalidInputError, match=r"cut\.png.*cut short"):
        next(reading)


def test_an_image_that_became_another_format_is_refused(tmp_path: Path) -> None:
    changed = wanted(tmp_path / "1.png", b"GIF89a" + bytes([1, 0, 1, 0, 0, 0, 0, 0x3B]))
    with pytest.raises(InvalidInputError, match="was png and became gif"):
        list(read_ahead([[changed]]))


def test_a_file_that_is_gone_is_told_by_its_name(tmp_path: Path) -> None:
    gone = WantedFile("gone.png", str(tmp_path / "gone.png"), ImagePlace(rows=1, codecs={"png"}))
    with pytest.raises(NotFoundError, match=r"gone\.png"):
        list(read_ahead([[gone]]))


def test_no_more_is_asked_for_than_may_wait_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "1.png"
    one = wanted(path, image())
    asked = 0

    def endless() -> Iterator[list[WantedFile]]:
        nonlocal asked
        while True:
            asked += 1
            yield [one]

    reading = read_ahead(endless())
    next(reading)
    assert asked <= AHEAD * PORTION_FILES + 1
    reading.close()


def test_no_thread_stays_when_reading_is_given_up(tmp_path: Path) -> None:
    path = tmp_path / "1.png"
    reading = read_ahead([[wanted(path, image(), size=PORTION_BYTES)] * 4 * AHEAD])
    next(reading)
    reading.close()
    assert not [thread for thread in threading.enumerate() if "read-image" in thread.name]
