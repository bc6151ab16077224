"""MindRecord: MindSpore's files of samples."""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.schema.schema import Bytes, Image, Scalar, Tensor, Text
from tensorrepo.formats.exchange.records.mindrecord import decode_integers, read_mindrecord
from tensorrepo.formats.exchange.registry import read, recognise
from tensorrepo.repo.errors import Error, InvalidInputError, NotFoundError, UnsupportedError
from tests.support.builders.foreign import rows_of, store
from tests.support.effort import sampled
from tests.support.faults.damage import short_survivors

NAME = "five.mindrecord"
GOLDEN = (Path(__file__).parents[3] / "golden/foreign/mindrecord" / NAME).read_bytes()
HEADER_BYTES = struct.unpack_from("<Q", GOLDEN)[0]
PAGES_AT, PAGE_BYTES = 1 << 14, 1 << 15


def write(folder: Path, *changes: tuple[int, bytes], name: str = NAME) -> Path:
    """The golden file with other bytes at some places."""
    content = bytearray(GOLDEN)
    for at, data in changes:
        content[at : at + len(data)] = data
    path = folder / name
    path.write_bytes(content)
    return path


def with_header(folder: Path, name: str = NAME, **changes: Any) -> Path:
    header = json.loads(GOLDEN[8 : 8 + HEADER_BYTES]) | changes
    text = json.dumps(header).encode()
    return write(folder, (0, struct.pack("<Q", len(text)) + text), name=name)


def packed(numbers: list[int]) -> bytes:
    """Numbers as MindSpore packs them, written from its description."""
    powers = [
        next(p for p in range(4) if -(1 << (8 << p) - 1) <= n < 1 << (8 << p) - 1) for n in numbers
    ]
    padded = powers + [0] * (-len(powers) % 4)
    bitmap = bytes(
        a << 6 | b << 4 | c << 2 | d
        for a, b, c, d in zip(padded[::4], padded[1::4], padded[2::4], padded[3::4], strict=True)
    )
    pairs = zip(numbers, powers, strict=True)
    body = b"".join(number.to_bytes(1 << power, "little", signed=True) for number, power in pairs)
    return struct.pack(">I", len(numbers)) + bitmap + body


def test_a_file_that_mindspore_wrote_is_read(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert recognise(path).name == "mindrecord"
    reading = read(path)
    assert {column.name: column.type for column in reading.schema.columns} == {
        "blob": Bytes(),
        "box": Tensor("float32", (2, 2)),
        "caption": Text(),
        "exact": Scalar("float64"),
        "id": Scalar("int64"),
        "image": Image("png"),
        "label": Scalar("int32"),
        "score": Scalar("float32"),
        "tokens": Tensor("int64", (None,)),
    }
    rows = rows_of(store(reading))
    assert len(rows) == 5
    assert rows[3].pop("image").startswith(b"\x89PNG")
    assert rows[3] == {
        "blob": b"\x00\xff\x03",
        "box": [[0.0, 3.0], [6.0, 9.0]],
        "caption": "картка 3",
        "exact": 1.0,
        "id": 1000,
        "label": 2,
        "score": 0.75,
        "tokens": [0, 1, 2, 3],
    }


def test_columns_can_be_chosen(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert rows_of(store(read(path, columns="label,caption")))[0] == {
        "label": -1,
        "caption": "картка 0",
    }
    with pytest.raises(NotFoundError, match="no column 'x'; there are 'blob'"):
        read(path, columns="x")


def test_files_that_were_written_together_are_read_together(tmp_path: Path) -> None:
    for name in ("a0", "a1"):
        with_header(tmp_path, name, shard_addresses=["a0", "a1"])
    assert store(read(tmp_path / "a1", columns="label"))["label"][:].tolist() == [
        *range(-1, 4),
        *range(-1, 4),
    ]
    (tmp_path / "a0").unlink()
    with pytest.raises(NotFoundError, match="a0: no such file"):
        read(tmp_path / "a1")


def test_a_renamed_file_is_read_alone(tmp_path: Path) -> None:
    assert len(store(read(write(tmp_path, name="other")))) == 5


# MindSpore's own bytes for these numbers.
MIXED = bytes.fromhex(
    "0000000c05af1105ff2c01d4fe7011010090eefeff00000000000100000000000000ffffff7f8000807fff"
)


def test_numbers_that_mindspore_packed_are_read() -> None:
    wide = [5, -1, 300, -300, 70000, -70000, 1 << 40, -(1 << 40), 127, 128, -128, -129]
    assert decode_integers(MIXED, "here").tolist() == wide
    assert packed(wide) == MIXED


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-200, 200)))
def test_packed_numbers_come_back(numbers: list[int]) -> None:
    assert decode_integers(packed(numbers), "here").tolist() == numbers


def test_packed_numbers_cut_short_are_refused() -> None:
    found = short_survivors(MIXED, lambda cut: decode_integers(cut, "here"), (InvalidInputError,))
    assert found == {}


@pytest.mark.parametrize("count", [1 << 20, (1 << 32) - 1])
def test_a_lying_count_costs_no_memory(count: int) -> None:
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match="numbers"):
        decode_integers(struct.pack(">I", count) + bytes(10), "here")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("size", [0, 7, 100, PAGES_AT, PAGES_AT + 99, len(GOLDEN) - 3])
def test_a_file_cut_short_is_refused(size: int, tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.write_bytes(GOLDEN[:size])
    with pytest.raises(InvalidInputError):
        store(read(path, "mindrecord"))


@pytest.mark.parametrize(
    ("at", "data", "message"),
    [
        (0, struct.pack("<Q", 1 << 60), "header of"),
        (8, b"x", "not a readable MindRecord file"),
        (PAGES_AT, struct.pack("<Q", 1 << 60), "reach past its page"),
        (PAGES_AT + 8, struct.pack(">Q", 1 << 60), "blob 'blob'.*reaches past"),
        (PAGES_AT + PAGE_BYTES, struct.pack("<Q", 1 << 60), "reach past its page"),
        (PAGES_AT + PAGE_BYTES + 8, b"\xff", "no MessagePack"),
    ],
)
def test_damaged_places_are_named(at: int, data: bytes, message: str, tmp_path: Path) -> None:
    path = write(tmp_path, (at, data))
    with pytest.raises(InvalidInputError, match=message):
        store(read_mindrecord(path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": "2.0"}, "MindRecord '2.0'; 3.0 is read"),
        ({"schema": []}, "0 schemas"),
        ({"page_size": 1 << 50}, "Is it cut short"),
        ({"header_size": -9}, "Is it cut short"),
    ],
)
def test_a_header_that_lies_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = with_header(tmp_path, **changes)
    with pytest.raises(InvalidInputError, match=message):
        read(path)


def test_a_file_without_pages_has_no_rows(tmp_path: Path) -> None:
    assert len(store(read(with_header(tmp_path, page=[])))) == 0


def test_an_image_that_is_cut_short_names_its_sample(tmp_path: Path) -> None:
    at = GOLDEN.rindex(b"IEND")
    with pytest.raises(InvalidInputError, match=r"sample 4, field 'image'.*cut short"):
        store(read(write(tmp_path, (at, b"xxxx"))))


def test_a_field_of_another_type_is_refused(tmp_path: Path) -> None:
    schema = json.loads(GOLDEN[8 : 8 + HEADER_BYTES])["schema"]
    schema[0]["schema"]["label"]["type"] = "uint8"
    path = with_header(tmp_path, schema=schema)
    with pytest.raises(UnsupportedError, match=r"field 'label': is 'uint8'.*exclude=label"):
        read(path)
    assert len(store(read(path, columns="id"))) == 5


@pytest.mark.parametrize("seed", sampled(range(40), 8))
def test_damaged_bytes_are_refused_or_harmless_and_nothing_else(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    starts = (0, HEADER_BYTES), (PAGES_AT, 688), (PAGES_AT + PAGE_BYTES, 341)
    places = [start + rng.randrange(size) for start, size in rng.choices(starts, k=3)]
    path = write(tmp_path, *((at, bytes([rng.randrange(256)])) for at in places))
    assert _outcome(path) in ("read", "refused")


def _outcome(path: Path) -> str:
    try:
        store(read(path, "mindrecord"))
    except Error:
        return "refused"
    return "read"
