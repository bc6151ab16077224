from __future__ import annotations

import gzip
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.schema.schema import ClassLabel, Scalar, Tensor, Text
from tensorrepo.formats.exchange import child_hdf5, child_main
from tensorrepo.formats.exchange.registry import read, recognise
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, UnsupportedError
from tests.support.builders.foreign import rows_of, store
from tests.support.effort import sampled

h5py: Any = pytest.importorskip("h5py")
GOLDEN = Path(__file__).parents[3] / "golden/foreign/hdf5"
ROWS = 7
PIXELS = np.arange(ROWS * 6, dtype=np.uint8).reshape(ROWS, 2, 3)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.h5"


def test_datasets_become_columns_and_groups_dots(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["images"] = PIXELS
        file["meta/labels"] = np.arange(ROWS, dtype=">i4")
        file["meta/inner/score"] = np.linspace(0, 1, ROWS, dtype=">f8")
        file["flag"] = np.arange(ROWS) > 3
        file["wave"] = np.arange(ROWS) + 1j
    reading = read(path)
    assert {column.name: column.type for column in reading.schema.columns} == {
        "flag": Scalar("bool"),
        "images": Tensor("uint8", (2, 3)),
        "meta.inner.score": Scalar("float64"),
        "meta.labels": Scalar("int32"),
        "wave": Scalar("complex128"),
    }
    assert reading.rows == ROWS
    row = store(reading)[6]
    assert row["images"].tolist() == PIXELS[6].tolist()
    assert (row["meta.labels"], row["meta.inner.score"], row["wave"]) == (6, 1.0, 6 + 1j)


def test_texts_of_every_kind_are_text(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["varying"] = ["é", "", "long one"]
        file["fixed"] = np.array([b"a", b"bc", b""])
        file.create_dataset("utf8", data=["é".encode()] * 3, dtype=h5py.string_dtype("utf-8", 4))
    reading = read(path)
    assert {column.type for column in reading.schema.columns} == {Text()}
    assert rows_of(store(reading))[:2] == [
        {"fixed": "a", "utf8": "é", "varying": "é"},
        {"fixed": "bc", "utf8": "é", "varying": ""},
    ]


def test_arrays_of_varying_length_are_ragged(path: Path) -> None:
    with h5py.File(path, "w") as file:
        held = file.create_dataset("x", (3,), h5py.vlen_dtype(np.dtype("<i2")))
        held[0], held[2] = [1, 2], [3]
    reading = read(path)
    assert reading.schema.column("x").type == Tensor("int16", (None,))
    assert [row["x"] for row in rows_of(store(reading))] == [[1, 2], [], [3]]


def test_enums_are_classes_when_numbered_through_and_numbers_otherwise(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("a", data=[1, 0], dtype=h5py.enum_dtype({"cat": 0, "dog": 1}))
        file.create_dataset("b", data=[1, 5], dtype=h5py.enum_dtype({"cat": 1, "dog": 5}))
    reading = read(path)
    assert reading.schema.column("a").type == ClassLabel(("cat", "dog"))
    assert [row["b"] for row in store(reading)] == [1, 5]


def test_fields_of_compounds_become_columns(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["p"] = np.array([(1, 2.5, [3, 4])], [("x", ">i4"), ("y", "<f4"), ("z", "u1", (2,))])
    assert rows_of(store(read(path))) == [{"p.x": 1, "p.y": 2.5, "p.z": [3, 4]}]


@pytest.mark.parametrize("batch_bytes", [8, 100, 1 << 20])
def test_rows_come_in_steps_of_bounded_bytes(
    batch_bytes: int, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_hdf5, "BATCH_BYTES", batch_bytes)
    data = np.arange(1000, dtype=np.int32).reshape(100, 10)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=data, chunks=(7, 10), compression="gzip")
    opened = child_hdf5.open_hdf5(str(path), most_bytes=1 << 20)
    batches = [batch.column("x") for batch in opened.batches()]
    assert max(batch.nbytes for batch in batches) <= max(batch_bytes, 40)
    assert b"".join(row for batch in batches for row in batch.to_pylist()) == data.tobytes()


@pytest.mark.parametrize("block", [0, 512])
def test_numbers_in_one_piece_are_read_where_they_lie(block: int, path: Path) -> None:
    odd = h5py.h5t.STD_U16LE.copy()
    odd.set_precision(12)
    odd.set_offset(4)  # of bits: no number of NumPy's lies so
    with h5py.File(path, "w", userblock_size=block) as file:
        file["plain"], file["flag"] = np.arange(ROWS, dtype="<f4"), np.arange(ROWS) > 3
        file["turned"], file["pixels"] = np.arange(ROWS, dtype=">f4"), PIXELS
        space = h5py.h5s.create_simple((ROWS,))
        h5py.Dataset(h5py.h5d.create(file.id, b"odd", odd, space))[:] = np.arange(ROWS)
        file.create_dataset("unwritten", (ROWS,), "i4", fillvalue=5)
    columns = child_hdf5.open_hdf5(str(path), most_bytes=1 << 20).schema
    in_place = {column.name for column in columns if column.type == "null"}
    assert in_place == {"plain", "flag", "pixels"}
    row = store(read(path))[6]
    assert row.pop("pixels").tolist() == PIXELS[6].tolist()
    assert row == {"plain": 6, "flag": True, "turned": 6, "odd": 6, "unwritten": 5}


def test_lengths_that_differ_ask_for_columns(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"], file["y"], file["scale"] = np.zeros(3), np.zeros(4), 2.0
    with pytest.raises(InvalidInputError, match="different numbers of rows: x 3, y 4"):
        read(path)
    reading = read(path, columns="y")
    assert (reading.rows, reading.schema.names) == (4, ("y",))
    assert reading.notes == ("passed over: scale has no rows",)
    with pytest.raises(NotFoundError, match="no dataset 'z'"):
        read(path, columns="z")


def test_links_inside_the_file_are_noted(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(3)
        file["again"] = h5py.SoftLink("/x")
        file["round"] = file["/"]
    reading = read(path)
    assert reading.schema.names == ("x",)
    assert reading.notes == ("passed over: again is a link to /x",)


def _external_link(file: Any, other: Path) -> None:
    file["y"] = h5py.ExternalLink(str(other), "/x")


def _external_storage(file: Any, other: Path) -> None:
    file.create_dataset("y", (3,), "u1", external=[(str(other), 0, 3)])


def _virtual(file: Any, other: Path) -> None:
    layout = h5py.VirtualLayout((3,), "u1")
    layout[:] = h5py.VirtualSource(str(other), "x", (3,))
    file.create_virtual_dataset("y", layout)


@pytest.mark.parametrize("lead_out", [_external_link, _external_storage, _virtual])
def test_what_lies_in_another_file_is_refused(lead_out: Any, path: Path, tmp_path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(3)
        lead_out(file, tmp_path / "other.h5")
    with pytest.raises(InvalidInputError, match="other file"):
        read(path)


@pytest.mark.parametrize(
    "create",
    [
        lambda file: file.create_dataset("x", (3,), h5py.ref_dtype),
        lambda file: file.create_dataset("x", (3,), np.dtype("V5")),
        lambda file: file.create_dataset("x", (3, 2), h5py.string_dtype()),
        lambda file: file.create_dataset("x", (3,), [("a", [("b", "i4")])]),
        lambda file: file.create_dataset("x", (3,), h5py.vlen_dtype(h5py.string_dtype())),
        lambda file: file.create_dataset("x", (3,), h5py.vlen_dtype(np.dtype(">i2"))),
    ],
)
def test_types_that_no_column_holds_are_named(create: Any, path: Path) -> None:
    with h5py.File(path, "w") as file:
        create(file)
    with pytest.raises(UnsupportedError, match="'x"):
        read(path)


def test_a_header_that_promises_too_much_is_refused(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (1 << 40,), "f8", chunks=(1024,))
    with pytest.raises(InvalidInputError, match="promises 8796093022208 bytes"):
        read(path)


def test_chunks_too_large_to_hold_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_hdf5, "MAX_CHUNK_BYTES", 1 << 10)
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.zeros(4096, "u1"), chunks=(4096,))
    with pytest.raises(child_main.Refusal, match="chunks of 4096 bytes"):
        child_hdf5.open_hdf5(str(path), most_bytes=1 << 20)


def test_a_text_that_is_not_utf8_is_named(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"] = np.array([b"ok", b"\xff"])
    with pytest.raises(InvalidInputError, match="'x', rows 0 to 2: a text is not UTF-8"):
        store(read(path))


def test_a_file_is_recognised_by_content(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "data.bin", "w") as file:
        file["x"] = [1]
    assert recognise(tmp_path / "data.bin").name == "hdf5"


def test_a_file_that_ends_the_library_is_an_error_that_names_it(path: Path) -> None:
    # One changed byte, the size of a type: HDF5 2.0.0 follows a wild pointer.
    path.write_bytes(gzip.decompress((GOLDEN / "dies.h5.gz").read_bytes()))
    with pytest.raises(InvalidInputError, match=r"x\.h5"):
        store(read(path))


@pytest.mark.parametrize("seed", sampled(range(30), 8))
def test_damaged_files_are_refused_or_harmless(seed: int, path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["g/x"] = np.arange(50)
        file.create_dataset("y", data=np.arange(50), chunks=(7,), compression="gzip")
    rng = random.Random(seed)
    damaged = bytearray(path.read_bytes())
    for _ in range(3):
        damaged[rng.randrange(min(len(damaged), 2500))] = rng.randrange(256)
    path.write_bytes(damaged[: rng.choice([len(damaged), len(damaged) // 2])])
    assert _outcome(path) in ("read", "refused")


def _outcome(path: Path) -> str:
    try:
        store(read(path, "hdf5"))
    except (InvalidInputError, UnsupportedError, NotFoundError):
        return "refused"
    return "read"


def test_without_the_library_the_way_to_get_it_is_said(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(child_main.Refusal, match=r"pip install tensorrepo\[hdf5\]") as refused:
        child_hdf5.open_hdf5(str(path), most_bytes=0)
    assert refused.value.error == "UnsupportedError"
