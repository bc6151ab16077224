"""GGUF files: as the library that owns the format writes and reads them, and hostile ones."""

from __future__ import annotations

import struct
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common.tensors import TYPES, ArrayTensor
from tensorrepo.formats.exchange.checkpoints.gguf import (
    GGML_TYPES,
    MAX_ITEMS,
    read_gguf,
    read_gguf_header,
    write_gguf,
)
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders import model_files
from tests.support.builders.model_files import gguf_file, gguf_pair, gguf_tensor, gguf_text
from tests.support.builders.models import stored


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(data)
    return path


def test_types_are_those_of_the_library() -> None:
    theirs = {kind.value: kind.name for kind in gguf.GGMLQuantizationType}
    assert theirs == GGML_TYPES
    sizes = {kind.name: size for kind, size in gguf.GGML_QUANT_SIZES.items()}
    ours = {name: TYPES[name] for name in GGML_TYPES.values()}
    assert sizes == {name: (each.block_elements, each.block_bytes) for name, each in ours.items()}


def test_tensors_are_those_that_the_library_reads(tmp_path: Path) -> None:
    path = model_files.write_gguf(tmp_path / "m.gguf")
    model = stored(read_gguf(path))
    theirs = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert set(model.keys()) == set(theirs)
    for name, tensor in theirs.items():
        assert b"".join(map(bytes, model.tensor_chunks(name))) == tensor.data.tobytes()
        assert model.spec(name).shape == tuple(reversed(tensor.shape.tolist()))


def test_short_metadata_is_kept_and_a_vocabulary_is_not(tmp_path: Path) -> None:
    source = read_gguf(model_files.write_gguf(tmp_path / "m.gguf"))
    assert source.metadata["gguf"] == {
        "general.architecture": "llama",
        "general.name": "tiny",
        "llama.block_count": 2,
        "llama.rope.freq_base": 10_000.0,
        "short": [1, 2, 3],
    }


def test_a_new_file_is_read_by_the_library_with_its_metadata(tmp_path: Path) -> None:
    old = stored(read_gguf(model_files.write_gguf(tmp_path / "m.gguf")))
    tensors = {name: old.tensor(name) for name in old.keys()}  # noqa: SIM118
    new = stored(ModelSource(tensors, metadata=old.metadata))
    write_gguf(new, tmp_path / "new.gguf")
    reader = gguf.GGUFReader(tmp_path / "new.gguf")
    name = reader.get_field("general.name")
    assert name is not None
    assert name.contents() == "tiny"
    assert {tensor.name: tensor.tensor_type.name for tensor in reader.tensors} == {
        name: new.spec(name).type.name for name in tensors
    }


def test_rows_of_blocks_are_sliced(tmp_path: Path) -> None:
    model = stored(read_gguf(model_files.write_gguf(tmp_path / "m.gguf")))
    whole = model["q.Q8_0"]
    assert whole.shape == (3, 512 // 32 * 34)
    assert np.array_equal(model.slice("q.Q8_0", slice(1, 3)), whole[1:3])


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [("w", (1, 1, 1, 1, 1), "5 dimensions"), ("w" * 64, (1,), "63 bytes")],
)
def test_what_gguf_cannot_hold_is_refused_by_name(
    name: str, shape: tuple[int, ...], message: str, tmp_path: Path
) -> None:
    model = stored({name: np.zeros(shape, "f4")})
    with pytest.raises(InvalidInputError, match=message):
        write_gguf(model, tmp_path / "m.gguf")
    assert list(tmp_path.iterdir()) == []


def test_blocks_that_cross_rows_are_refused(tmp_path: Path) -> None:
    odd = ArrayTensor(np.zeros(34, "u1").view("V34"), TYPES["Q8_0"], (2, 16))
    with pytest.raises(InvalidInputError, match="whole number of blocks"):
        write_gguf(stored(ModelSource({"w": odd})), tmp_path / "m.gguf")


def test_version_2_and_another_alignment_are_read(tmp_path: Path) -> None:
    pair = gguf_pair(b"general.alignment", 4, struct.pack("<I", 64))
    data = gguf_file(
        pair, gguf_tensor(b"w", (2,), 0), counts=(1, 1), version=2, data=bytes(8), padding=64
    )
    path = written(tmp_path, data)
    model = stored(read_gguf(path))
    write_gguf(model, tmp_path / "out.gguf")
    assert (tmp_path / "out.gguf").read_bytes() == data


NESTED = b"".join(struct.pack("<IQ", 9, 1) for _ in range(100)) + struct.pack("<IQ", 0, 0)
W = gguf_tensor(b"w", (2,), 0)
FAULTS: dict[str, tuple[bytes, str]] = {
    "another magic": (b"GGML" + bytes(20), "begin with GGUF"),
    "version 1": (gguf_file(version=1), "version 1"),
    "big-endian": (gguf_file(version=3 << 24), "big-endian"),
    "no counts": (b"GGUF" + struct.pack("<I", 3), "cut short"),
    "more tensors than bytes": (gguf_file(counts=(1 << 60, 0)), "cut short"),
    "more pairs than bytes": (gguf_file(counts=(0, 1 << 60)), "cut short"),
    "a key of 2^64 bytes": (gguf_file(b"\xff" * 8, counts=(0, 1), data=bytes(64)), "a text of"),
    "a key that is no text": (gguf_file(gguf_pair(b"\xff", 0, b"1"), counts=(0, 1)), "UTF-8"),
    "a key twice": (gguf_file(gguf_pair(b"k", 0, b"1") * 2, counts=(0, 2)), "twice"),
    "a value of no type": (gguf_file(gguf_pair(b"k", 99, b""), counts=(0, 1)), "type 99"),
    "a text longer than the file": (
        gguf_file(gguf_pair(b"k", 8, struct.pack("<Q", 1 << 20)), counts=(0, 1)),
        "cut short",
    ),
    "a list longer than the file": (
        gguf_file(gguf_pair(b"k", 9, struct.pack("<IQ", 4, 1 << 62)), counts=(0, 1)),
        "cut short",
    ),
    "texts more than bytes": (
        gguf_file(gguf_pair(b"k", 9, struct.pack("<IQ", 8, 1 << 40)), counts=(0, 1)),
        "cut short",
    ),
    "lists in lists": (
        gguf_file(gguf_pair(b"k", 9, NESTED), counts=(0, 1), data=bytes(2000)),
        "type 9",
    ),
    "an alignment of 0": (
        gguf_file(gguf_pair(b"general.alignment", 4, bytes(4)), counts=(0, 1)),
        "multiple of 8",
    ),
    "an alignment of text": (
        gguf_file(gguf_pair(b"general.alignment", 8, gguf_text(b"32")), counts=(0, 1)),
        "multiple of 8",
    ),
    "five dimensions": (
        gguf_file(tensors=gguf_tensor(b"w", (1,) * 5, 0), counts=(1, 0), data=bytes(32)),
        "5 dimensions",
    ),
    "2^32 dimensions": (
        gguf_file(tensors=gguf_tensor(b"w", (1,), 0, rank=(1 << 32) - 1), counts=(1, 0)),
        "dimensions",
    ),
    "a type that nobody knows": (
        gguf_file(tensors=gguf_tensor(b"w", (1,), 99), counts=(1, 0), data=bytes(32)),
        "type 99",
    ),
    "a type that was taken back": (
        gguf_file(tensors=gguf_tensor(b"w", (32,), 4), counts=(1, 0), data=bytes(32)),
        "type 4",
    ),
    "half a block": (
        gguf_file(tensors=gguf_tensor(b"w", (16, 2), 2), counts=(1, 0), data=bytes(32)),
        "blocks",
    ),
    "2^64 elements": (
        gguf_file(tensors=gguf_tensor(b"w", (1 << 62, 1 << 62), 0), counts=(1, 0)),
        "'w'",
    ),
    "no name": (
        gguf_file(tensors=gguf_tensor(b"", (1,), 0), counts=(1, 0), data=bytes(32)),
        "name",
    ),
    "a tensor twice": (gguf_file(tensors=W * 2, counts=(2, 0), data=bytes(16)), "twice"),
    "a name twice": (
        gguf_file(tensors=W + gguf_tensor(b"w", (2,), 0, 32), counts=(2, 0), data=bytes(64)),
        "twice",
    ),
    "overlapping": (
        gguf_file(tensors=W + gguf_tensor(b"v", (2,), 0, 4), counts=(2, 0), data=bytes(64)),
        "overlaps",
    ),
    "behind the end": (
        gguf_file(tensors=gguf_tensor(b"w", (2,), 0, 1 << 40), counts=(1, 0), data=bytes(8)),
        "cut short",
    ),
    "no data": (gguf_file(tensors=W, counts=(1, 0)), "cut short"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_lies_is_refused_and_takes_no_memory(fault: str, tmp_path: Path) -> None:
    data, message = FAULTS[fault]
    path = written(tmp_path, data)
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match=message) as caught:
        read_gguf(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert str(caught.value).startswith(f"{path}: ")
    assert peak_bytes < 4_000_000


def test_more_texts_than_any_file_has_are_refused(tmp_path: Path) -> None:
    lists = gguf_pair(b"k", 9, struct.pack("<IQ", 8, MAX_ITEMS + 1))
    data = gguf_file(lists, counts=(0, 1), data=bytes(8 * MAX_ITEMS + 100))
    with pytest.raises(InvalidInputError, match="more than"):
        read_gguf(written(tmp_path, data))


class Bytes:
    """A file in memory."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)

    def read(self, start: int, size: int) -> bytes:
        assert 0 <= start <= start + size <= self.size, "nothing beyond the end is asked for"
        return self.data[start : start + size]


SCALARS = st.one_of(
    st.builds(lambda value: (0, struct.pack("<B", value)), st.integers(0, 255)),
    st.builds(lambda value: (5, struct.pack("<i", value)), st.integers(-99, 99)),
    st.builds(lambda value: (12, struct.pack("<d", value)), st.floats()),
    st.builds(lambda value: (8, gguf_text(value.encode())), st.text(max_size=9)),
)


@st.composite
def headers(draw: st.DrawFn) -> tuple[bytes, dict[str, tuple[int, ...]]]:
    """A file of any few pairs and tensors, and the shapes in it."""
    keys = draw(st.lists(st.text("abc.é", min_size=1), unique=True, max_size=4))
    pairs = b"".join(gguf_pair(key.encode(), *draw(SCALARS)) for key in keys)
    names = draw(st.lists(st.text("wxyz.", min_size=1), unique=True, max_size=4))
    shapes = {name: tuple(draw(st.lists(st.integers(1, 5), max_size=4))) for name in names}
    infos, at = b"", 0
    for name, shape in shapes.items():
        infos += gguf_tensor(name.encode(), tuple(reversed(shape)), 0, at)
        at += -(-4 * int(np.prod(shape)) // 32) * 32
    return gguf_file(pairs, infos, counts=(len(names), len(keys)), data=bytes(at)), shapes


@given(headers())
def test_any_header_is_read_as_it_was_made(made: tuple[bytes, dict[str, Any]]) -> None:
    data, shapes = made
    header = read_gguf_header(Bytes(data))  # type: ignore[arg-type]  # a file, but for its place
    assert {tensor.name: tensor.shape for tensor in header.tensors} == shapes
    assert all(tensor.stop <= len(data) for tensor in header.tensors)


@given(headers(), st.data())
def test_a_damaged_header_is_refused_or_lies_within_the_file(
    made: tuple[bytes, dict[str, Any]], data: st.DataObject
) -> None:
    changed = bytearray(made[0])
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(changed)))
    try:
        header = read_gguf_header(Bytes(bytes(changed[:cut])))  # type: ignore[arg-type]  # as above
    except InvalidInputError:
        return
    ends = [0] + [tensor.stop for tensor in header.tensors]
    assert all(tensor.start >= end for tensor, end in zip(header.tensors, ends, strict=False))
    assert ends[-1] <= cut
