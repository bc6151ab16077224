"""safetensors files: byte for byte out again, as the reference writes them, and hostile ones."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save, save_file

from tensorrepo.formats.common.tensors import SAFETENSORS_TYPES, TYPES, ArrayTensor
from tensorrepo.formats.exchange.checkpoints.safetensors import (
    MAX_HEADER_BYTES,
    parse_header,
    read_safetensors,
    write_safetensors,
)
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.repo.errors import CorruptError, InvalidInputError, NotFoundError
from tests.support.builders.models import flip, stored
from tests.support.builders.objects import MemoryObjects

ARRAYS: dict[str, Any] = {
    "layer.10.w": np.arange(6000, dtype="f4").reshape(60, 100),
    "layer.2.w": np.arange(30, dtype="i8"),
    'q"uo\\te é': np.array([True, False]),
    "scalar": np.array(1.5),
    "empty": np.zeros((0, 3), "f2"),
    "half": np.arange(50, dtype="f2"),
}


def file_of(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensor(start: int, stop: int, shape: tuple[int, ...] | None = None, dtype: str = "U8") -> Any:
    shape = (stop - start,) if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def written(tmp_path: Path, data: bytes) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    return path


def exported(model: Any, tmp_path: Path, **options: Any) -> bytes:
    target = tmp_path / "out.safetensors"
    write_safetensors(model, target, overwrite=True, **options)
    return target.read_bytes()


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt", "shape": '{"__metadata__":{'}])
def test_a_file_comes_out_byte_for_byte(tmp_path: Path, metadata: Any) -> None:
    data = save(ARRAYS, metadata)
    model = stored(read_safetensors(written(tmp_path, data)))
    assert exported(model, tmp_path) == data
    assert all(np.array_equal(model[name], ARRAYS[name]) for name in ARRAYS)


@pytest.mark.parametrize(
    "header",
    [
        (
            b'{ "b":{"shape":[2],"dtype":"U8","data_offsets":[3,5]} ,\n"a":{"dtype":"U8",'
            b'"shape":[3],"data_offsets":[0,3],"more":{"x":[1]}},"__metadata__":{"z":"\\u0041"} } '
        ),
        b'{"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]}}',
        b'{"dtype":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},"__metadata__":{}}',
    ],
    ids=["any order, space and more fields", "unaligned", "a tensor called dtype"],
)
def test_a_header_that_others_wrote_is_kept_verbatim(tmp_path: Path, header: bytes) -> None:
    data = file_of(header, b"12345")
    assert safetensors.deserialize(data)
    model = stored(read_safetensors(written(tmp_path, data)))
    assert exported(model, tmp_path) == data


def test_a_file_without_tensors_comes_out_too(tmp_path: Path) -> None:
    data = file_of({"__metadata__": {"a": "b"}})
    assert exported(stored(read_safetensors(written(tmp_path, data))), tmp_path) == data


@pytest.mark.parametrize("metadata", [{"format": "pt"}, {"b": "ü\n"}])
def test_a_new_file_is_as_the_reference_writes_it(tmp_path: Path, metadata: Any) -> None:
    assert exported(stored(ARRAYS), tmp_path, metadata=metadata) == save(ARRAYS, metadata)


@pytest.mark.parametrize("name", SAFETENSORS_TYPES)
def test_every_type_goes_out_and_in(tmp_path: Path, name: str) -> None:
    element = TYPES[name]
    items = np.arange(96 * element.block_bytes, dtype="u1").view(f"V{element.block_bytes}")
    shape = (4, 24 * element.block_elements)
    model = stored(ModelSource({"w": ArrayTensor(items, element, shape)}))
    data = exported(model, tmp_path)
    ((read_name, read),) = safetensors.deserialize(data)
    assert (read_name, read["dtype"], tuple(read["shape"])) == ("w", name, shape)
    again = stored(read_safetensors(written(tmp_path, data)))
    assert again.spec("w").fingerprint == model.spec("w").fingerprint


def test_torch_types_are_laid_out_as_the_reference_does(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save as save_torch

    tensors = {
        f"t{number}": torch.arange(16, dtype=torch.uint8).view(getattr(torch, name))
        for number, name in enumerate(
            ["float8_e4m3fn", "bfloat16", "float8_e5m2", "float32", "uint16", "float8_e8m0fnu",
             "bool", "complex64", "float4_e2m1fn_x2", "int8", "float64", "uint64", "int64"]
        )
    }  # fmt: skip
    assert exported(stored(tensors), tmp_path) == save_torch(tensors, {"format": "pt"})


def test_types_that_safetensors_lacks_are_refused_by_name(tmp_path: Path) -> None:
    model = stored({"w": np.zeros(3, "c16")})
    with pytest.raises(InvalidInputError, match=r"'w'.*C128"):
        exported(model, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_alias_is_written_as_a_tensor(tmp_path: Path) -> None:
    weight = np.arange(100.0)
    exported(stored({"a": weight, "b": weight}), tmp_path)
    loaded = load_file(tmp_path / "out.safetensors")
    assert np.array_equal(loaded["b"], weight)


def test_what_exists_is_not_overwritten_unless_told(tmp_path: Path) -> None:
    path = written(tmp_path, b"mine")
    with pytest.raises(InvalidInputError, match="exists"):
        write_safetensors(stored(ARRAYS), path)
    assert path.read_bytes() == b"mine"


def test_a_damaged_model_is_not_written(tmp_path: Path) -> None:
    objects = MemoryObjects()
    model = stored(read_safetensors(written(tmp_path, save(ARRAYS))), objects)
    largest = max(objects.stored, key=lambda digest: len(objects.stored[digest]))
    flip(objects, largest, 5000)
    with pytest.raises(CorruptError, match="tensor"):
        write_safetensors(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_nothing_but_the_header_is_read_until_it_is_stored(tmp_path: Path) -> None:
    save_file({"w": np.zeros(5_000_000, "u1")}, tmp_path / "big")
    tracemalloc.start()
    source = read_safetensors(tmp_path / "big")
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert source.tensor_bytes == 5_000_000
    assert peak_bytes < 1_000_000


DEEP = b"[" * 200_000 + b"]" * 200_000
FAULTS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 bytes"),
    "shorter than a length": (b"1234567", "7 bytes"),
    "a header longer than the file": (file_of({}, length=100), "cut short"),
    "a header of 2^64 bytes": (file_of({}, length=(1 << 64) - 1), "cut short"),
    "no header": (file_of(b""), "header"),
    "no JSON": (file_of(b"nonsense"), "header"),
    "a list": (file_of([]), "header"),
    "no UTF-8": (file_of(b'{"\xff":{}}'), "header"),
    "half a surrogate pair": (file_of(b'{"\\ud800":{"dtype":"U8"}}'), "header"),
    "nested without end": (file_of(b'{"a":' + DEEP + b"}"), "header"),
    "nested metadata": (file_of(b'{"__metadata__":' + DEEP + b"}"), "header"),
    "metadata that is no text": (file_of({"__metadata__": {"a": 1}}), "header"),
    "metadata twice": (file_of(b'{"__metadata__":{},"__metadata__":{}}'), "header"),
    "a million numbers": (file_of(b'{"a":' + b"[" + b"1," * 10**6 + b"1]}"), "header"),
    "no type": (file_of({"a": {"shape": [0], "data_offsets": [0, 0]}}), "dtype"),
    "no offsets": (file_of({"a": {"dtype": "U8", "shape": [0]}}), "data_offsets"),
    "three offsets": (file_of({"a": tensor(0, 0) | {"data_offsets": [0, 0, 0]}}), "length 2"),
    "a type that nobody knows": (file_of({"a": tensor(0, 1, dtype="F7")}, b"1"), "'F7'"),
    "cut short": (file_of({"a": tensor(0, 9)}, b"12345678"), "cut short"),
    "a byte too many": (file_of({"a": tensor(0, 3)}, b"1234"), "after the last"),
    "a hole": (file_of({"a": tensor(0, 1), "b": tensor(2, 3)}, b"123"), "hole"),
    "a hole at the start": (file_of({"a": tensor(1, 2)}, b"12"), "hole"),
    "overlapping": (file_of({"a": tensor(0, 2), "b": tensor(1, 3)}, b"123"), "overlaps"),
    "the same bytes twice": (file_of({"a": tensor(0, 2), "b": tensor(0, 2)}, b"12"), "overlaps"),
    "backwards": (file_of({"a": tensor(2, 0, (2,))}, b"12"), "data_offsets"),
    "negative offsets": (file_of({"a": tensor(-1, 0)}), "'a'"),
    "another size": (file_of({"a": tensor(0, 3, (1,), "F32")}, b"123"), "4 bytes"),
    "a negative dimension": (file_of({"a": tensor(0, 1, (-1,))}, b"1"), "'a'"),
    "2^64 elements": (file_of({"a": tensor(0, 0, (1 << 32, 1 << 32))}), "'a'"),
    "half a block": (file_of({"a": tensor(0, 1, (3,), "F4")}, b"1"), "blocks"),
    "a name twice": (
        file_of(b'{"a":%b,"a":%b}' % ((json.dumps(tensor(0, 1)).encode(),) * 2), b"1"),
        "twice",
    ),
    "a field twice": (
        file_of(b'{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"1"),
        "twice",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_lies_is_refused_and_says_where(tmp_path: Path, fault: str) -> None:
    data, message = FAULTS[fault]
    path = written(tmp_path, data)
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match=message) as caught:
        read_safetensors(path)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert str(caught.value).startswith(f"{path}: ")
    assert peak_bytes < 8 * len(data) + 500_000


def test_a_header_longer_than_any_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, (MAX_HEADER_BYTES + 1).to_bytes(8, "little"))
    os.truncate(path, MAX_HEADER_BYTES + 100)
    with pytest.raises(InvalidInputError, match="at most"):
        read_safetensors(path)


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="gone"):
        read_safetensors(tmp_path / "gone")


def test_a_file_that_changes_while_it_is_stored_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, save(ARRAYS))
    source = read_safetensors(path)
    data = bytearray(path.read_bytes())
    data[8] ^= 1  # in the header, which was read already
    path.write_bytes(data)
    with pytest.raises(InvalidInputError, match="changed while"):
        stored(source)


def test_a_file_that_shrinks_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, save(ARRAYS))
    source = read_safetensors(path)
    path.write_bytes(path.read_bytes()[:-10_000])
    with pytest.raises(InvalidInputError, match="shrink"):
        stored(source)


@given(st.binary(max_size=200))
def test_random_headers_are_refused_or_mean_what_the_reference_reads(text: bytes) -> None:
    try:
        parse_header(text, 0)
    except InvalidInputError:
        return
    assert safetensors.deserialize(file_of(text)) is not None


@given(st.data())
def test_a_damaged_header_is_refused_or_the_reference_reads_the_same(data: st.DataObject) -> None:
    whole = save({"a": np.arange(5, dtype="u1"), "b": np.arange(3, dtype="f4")})
    length = int.from_bytes(whole[:8], "little")
    at = data.draw(st.integers(8, 7 + length))
    changed = bytearray(whole)
    changed[at] = data.draw(st.integers(0, 255))
    try:
        ranges = parse_header(bytes(changed[8 : 8 + length]), len(whole) - 8 - length)
    except InvalidInputError:
        return
    theirs = {name: tuple(read["shape"]) for name, read in safetensors.deserialize(bytes(changed))}
    assert {part.name: part.shape for part in ranges} == theirs
