"""Beton: FFCV's file of samples."""

from __future__ import annotations

import gzip
import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tensorrepo.formats.dataset.schema.schema import Bytes, Image, Json, Scalar, Tensor
from tensorrepo.formats.exchange.records.beton import read_beton
from tensorrepo.formats.exchange.registry import read, recognise
from tensorrepo.repo.errors import Error, InvalidInputError, NotFoundError, UnsupportedError
from tests.support.builders.foreign import rows_of, store
from tests.support.effort import sampled

# FFCV's smallest page is 2 MiB, so its file is kept compressed.
GOLDEN = gzip.decompress(
    (Path(__file__).parents[3] / "golden/foreign/beton/five.beton.gz").read_bytes()
)
FIELD_BYTES, METADATA_AT, ROW_BYTES = 1041, 24 + 8 * 1041, 96


def write(folder: Path, *changes: tuple[int, bytes]) -> Path:
    """The golden file with other bytes at some places."""
    content = bytearray(GOLDEN)
    for at, data in changes:
        content[at : at + len(data)] = data
    path = folder / "five.beton"
    path.write_bytes(content)
    return path


def test_a_file_that_ffcv_wrote_is_read(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert recognise(path).name == "beton"
    reading = read(path)
    assert {column.name: column.type for column in reading.schema.columns} == {
        "raw_image": Tensor("uint8", (3, 4, 3)),
        "jpg_image": Image("jpeg"),
        "label": Scalar("int64"),
        "score": Scalar("float64"),
        "blob": Bytes(),
        "matrix": Tensor("float32", (2, 3)),
        "big_endian": Tensor("int16", (2,)),
        "info": Json(),
    }
    assert reading.rows == 5
    rows = rows_of(store(reading))
    assert [row["label"] for row in rows] == [-1, 0, 1, 2, 3]
    assert rows[3]["blob"] == bytes(range(4))
    assert rows[3]["big_endian"] == [0, 3]
    assert rows[3]["matrix"] == [[0.0, 3.0, 6.0], [9.0, 12.0, 15.0]]
    assert rows[3]["info"] == {"a": [3, "é"]}
    assert rows[3]["raw_image"] == np.full((3, 4, 3), 120).tolist()
    assert rows[3]["jpg_image"].endswith(b"\xff\xd9")


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert rows_of(store(read(path, columns="label")))[0] == {"label": -1}
    with pytest.raises(NotFoundError, match="no column 'x'; there are 'raw_image'"):
        read(path, columns="x")


@pytest.mark.parametrize("size", [0, 10, 100, METADATA_AT + 7, 1 << 21, len(GOLDEN) - 1])
def test_a_file_cut_short_is_refused(size: int, tmp_path: Path) -> None:
    path = tmp_path / "five.beton"
    path.write_bytes(GOLDEN[:size])
    with pytest.raises(InvalidInputError):
        store(read(path, "beton"))


@pytest.mark.parametrize(
    ("at", "data", "message"),
    [
        (0, b"\x03", "version 2: it says 3"),
        (8, struct.pack("<Q", 1 << 50), "Is it cut short"),
        (16, struct.pack("<Q", 1 << 50), "Is it cut short"),
        (16, struct.pack("<Q", 99), "Is it cut short"),
        (2, struct.pack("<H", 0), "at least one"),
        (METADATA_AT + 48, struct.pack("<QQ", 1 << 40, 9), "sample 0, field 'blob'.*outside"),
        (METADATA_AT + 48, struct.pack("<QQ", 0, 9), "sample 0, field 'blob'.*outside"),
        (METADATA_AT + 56, struct.pack("<Q", 1 << 60), "sample 0, field 'blob'.*outside"),
        (METADATA_AT + 64, struct.pack("<Q", 5), "sample 0, field 'matrix'.*outside"),
        (METADATA_AT + 18, struct.pack("<Q", 5), "sample 0, field 'jpg_image'.*nothing was"),
        (METADATA_AT + 80, struct.pack("<QQ", 1 << 21, 3), "field 'info'.*not JSON"),
    ],
)
def test_places_and_sizes_that_lie_cost_no_memory(
    at: int, data: bytes, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path, (at, data))
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match=message):
        store(read_beton(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


@pytest.mark.parametrize(
    ("at", "data", "error", "message"),
    [
        (24, b"\xff", UnsupportedError, "'raw_image': is of kind 255, a writer's own"),
        (METADATA_AT, b"\0", UnsupportedError, "some images are raw and some are jpeg"),
        (24 + 5 * FIELD_BYTES + 17 + 264, b"[[]]", InvalidInputError, "damaged element type"),
        (24 + 5 * FIELD_BYTES + 17 + 264 + 6, b'"|O8"', InvalidInputError, "elements of type"),
        (24 + FIELD_BYTES + 1, b"raw_image\0", InvalidInputError, "of different names"),
    ],
)
def test_fields_that_are_not_read_say_why(
    at: int, data: bytes, error: type[Error], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        read_beton(write(tmp_path, (at, data)))


@pytest.mark.parametrize("seed", sampled(range(30), 8))
def test_damaged_bytes_are_refused_or_harmless_and_nothing_else(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    ends = METADATA_AT + 5 * ROW_BYTES, len(GOLDEN) - 1
    places = [rng.choice([rng.randrange(ends[0]), ends[1] - rng.randrange(700)]) for _ in range(3)]
    path = write(tmp_path, *((at, bytes([rng.randrange(256)])) for at in places))
    assert _outcome(path) in ("read", "refused")


def _outcome(path: Path) -> str:
    try:
        store(read(path, "beton"))
    except Error:
        return "refused"
    return "read"
