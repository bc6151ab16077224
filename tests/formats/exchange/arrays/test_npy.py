"""npy and npz files, without unpickling."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Date,
    Duration,
    Scalar,
    Tensor,
    Text,
    Timestamp,
)
from tensorrepo.formats.exchange.arrays.columns import read_array
from tensorrepo.formats.exchange.arrays.npy import npz_arrays, read_npy, read_npz
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tests.support.builders.foreign import rows_of, store
from tests.support.effort import sampled_product

RNG = np.random.default_rng(1)
DTYPES = ["?", "i1", "<i2", ">i4", "<i8", "u1", ">u2", "<u8", "<f2", ">f4", "<f8", "<c8", ">c16"]


class Bomb:
    """What happens when somebody unpickles it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("a pickle was loaded",))


def npy(header: str, data: bytes = b"", version: tuple[int, int] = (1, 0)) -> bytes:
    text = header.encode() + b"\n"
    size = len(text).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + size + text + data


@pytest.mark.parametrize("dtype", DTYPES)
@sampled_product("order,shape", ["C", "F"], [(7,), (7, 2), (5, 3, 4)], dev=2)
def test_every_number_type_and_order_is_read(
    dtype: str, order: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    array = np.asarray(RNG.integers(0, 2, shape).astype(dtype), order=order)  # type: ignore[call-overload]
    np.save(tmp_path / "x.npy", array)
    dataset = store(read_npy(tmp_path / "x.npy"))
    name = np.dtype(dtype).name
    expected = Tensor(name, shape[1:]) if len(shape) > 1 else Scalar(name)
    assert dataset.schema.column("x").type == expected
    assert dataset["x"][:].tolist() == array.tolist()


@given(
    array=arrays.arrays(
        st.sampled_from([">f4", "<i8", "u1"]),
        arrays.array_shapes(min_dims=1, max_dims=4, max_side=5),
        elements=st.integers(0, 100),
    ),
    fortran=st.booleans(),
    packed=st.booleans(),
)
def test_any_array_survives_npz(
    array: np.ndarray, fortran: bool, packed: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("npz") / "x.npz"
    given_array = np.asfortranarray(array) if fortran else array
    (np.savez_compressed if packed else np.savez)(path, x=given_array)
    assert store(read_npz(path))["x"][:].tolist() == array.tolist()
    assert read_array(npz_arrays(path)["x"][0]).tolist() == array.tolist()


def test_the_column_is_called_as_the_file_or_as_told(tmp_path: Path) -> None:
    np.save(tmp_path / "features.npy", np.zeros(2))
    assert read_npy(tmp_path / "features.npy").schema.names == ("features",)
    assert read_npy(tmp_path / "features.npy", column="x").schema.names == ("x",)


def test_fields_of_a_record_array_are_columns(tmp_path: Path) -> None:
    kind = [("point", "<f4", (3,)), ("id", ">i8"), ("name", "U5"), ("raw", "S3")]
    records = np.zeros(4, kind)
    records["point"], records["id"] = RNG.normal(size=(4, 3)), range(4)
    records["name"], records["raw"] = "héy", b"ab"
    np.save(tmp_path / "r.npy", records)
    dataset = store(read_npy(tmp_path / "r.npy"))
    types = [column.type for column in dataset.schema.columns]
    assert types == [Tensor("float32", (3,)), Scalar("int64"), Text(), Bytes()]
    row = rows_of(dataset)[2]
    assert (row["id"], row["name"], row["raw"]) == (2, "héy", b"ab")


def test_a_field_of_no_letters_is_empty_text(tmp_path: Path) -> None:
    np.save(tmp_path / "r.npy", np.zeros(2, [("n", "<i4"), ("t", "U0"), ("s", "S0")]))
    row = rows_of(store(read_npy(tmp_path / "r.npy")))[1]
    assert row == {"n": 0, "t": "", "s": b""}


def test_moments_are_read_in_their_unit(tmp_path: Path) -> None:
    times = np.array(["2024-01-01T00:00:01", "1969-12-31"], "M8[ms]")
    np.save(tmp_path / "t.npy", times)
    dataset = store(read_npy(tmp_path / "t.npy"))
    assert dataset.schema.column("t").type == Timestamp("ms")
    assert np.asarray(dataset["t"][:]).astype(np.int64).tolist() == times.astype(np.int64).tolist()


@pytest.mark.parametrize(
    ("counts", "kind", "expected"),
    [
        ("M8[h]", Timestamp("s"), datetime(1970, 1, 1, 2)),  # noqa: DTZ001
        (">M8[10s]", Timestamp("s"), datetime(1970, 1, 1, 0, 0, 20)),  # noqa: DTZ001
        ("M8[M]", Date(), date(1970, 3, 1)),
        ("m8[D]", Duration("s"), timedelta(2)),
    ],
)
def test_moments_of_any_unit_are_read_as_those_in_memory(
    tmp_path: Path, counts: str, kind: Any, expected: Any
) -> None:
    given = np.array([2, "NaT"], counts)
    np.save(tmp_path / "t.npy", given)
    np.savez(tmp_path / "z.npz", n=np.arange(2), t=np.stack([given, given]))
    dataset = store(read_npy(tmp_path / "t.npy"))
    assert dataset.schema.column("t").type == kind
    assert [row["t"] for row in dataset.to_arrow().to_pylist()] == [expected, None]
    rows = store(read_npz(tmp_path / "z.npz")).to_arrow().to_pylist()
    assert [row["t"] for row in rows] == [[expected, None]] * 2


def test_a_unit_that_no_column_has_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "t.npy", np.array([1], "m8[M]"))
    with pytest.raises(InvalidInputError, match=r"type timedelta64\[M\].*no column type holds"):
        read_npy(tmp_path / "t.npy")


@pytest.mark.parametrize("reader", [read_npz, npz_arrays])
def test_objects_in_npz_are_never_unpickled(reader: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "o.npz", good=np.zeros(1), bad=np.array([Bomb()], object))
    with pytest.raises(InvalidInputError, match="'bad': holds Python objects"):
        reader(tmp_path / "o.npz")


def test_objects_in_npy_are_never_unpickled(tmp_path: Path) -> None:
    np.save(tmp_path / "o.npy", np.array([Bomb()], object), allow_pickle=True)
    with pytest.raises(InvalidInputError, match="holds Python objects"):
        read_npy(tmp_path / "o.npy")


@pytest.mark.parametrize(
    "descr", ["'O'", "[('a', '<i4'), ('b', 'O')]", "('O', (2,))", "[('a', [('b', '|O')])]"]
)
def test_objects_in_any_corner_of_a_type_are_refused(descr: str, tmp_path: Path) -> None:
    header = f"{{'descr': {descr}, 'fortran_order': False, 'shape': (1,)}}"
    (tmp_path / "o.npy").write_bytes(npy(header, bytes(64)))
    with pytest.raises(InvalidInputError, match=r"holds Python objects|damaged header"):
        read_npy(tmp_path / "o.npy")


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1000000000000)}",
        "{'descr': '<f4', 'fortran_order': True, 'shape': (4000000000, 4000000000)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 0)}",
        "{'descr': '<U0', 'fortran_order': False, 'shape': (1000000000000,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': ()}",
        "{'descr': '<f4', 'fortran_order': 1, 'shape': (2,)}",
        "{'descr': '<f4', 'shape': (2,)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'x': 1}",
        "{'descr': 'no such', 'fortran_order': False, 'shape': (2,)}",
        "{'descr': '|V8', 'fortran_order': False, 'shape': (1,)}",
        "__import__('os').system('true')",
        "(" * 9000,
        "[" * 9000 + "]" * 9000,
        "{'descr': '<f4'",
        "",
    ],
)
def test_a_lying_or_damaged_header_is_refused_and_costs_no_memory(
    header: str, tmp_path: Path
) -> None:
    (tmp_path / "x.npy").write_bytes(npy(header, bytes(8)))
    tracemalloc.start()
    with pytest.raises(InvalidInputError, match=r"x\.npy"):
        read_npy(tmp_path / "x.npy")
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_a_header_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(npy(" " * 100_000, b"", (2, 0)))
    with pytest.raises(InvalidInputError, match="header of 100001 bytes"):
        read_npy(tmp_path / "x.npy")


def test_unknown_versions_are_named(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(npy("{}", b"", (9, 0)))
    with pytest.raises(InvalidInputError, match="version 9"):
        read_npy(tmp_path / "x.npy")


def test_bools_that_are_neither_0_nor_1_become_true(tmp_path: Path) -> None:
    header = "{'descr': '|b1', 'fortran_order': False, 'shape': (3,)}"
    (tmp_path / "b.npy").write_bytes(npy(header, b"\0\1\7"))
    column = store(read_npy(tmp_path / "b.npy"))["b"][:]
    assert np.asarray(column).view(np.uint8).tolist() == [0, 1, 1]


def test_code_points_that_are_no_text_name_the_row(tmp_path: Path) -> None:
    header = "{'descr': '<U1', 'fortran_order': False, 'shape': (2,)}"
    (tmp_path / "t.npy").write_bytes(npy(header, b"a\0\0\0" + b"\xff\xff\xff\x7f"))
    with pytest.raises(InvalidInputError, match="row 1: holds code points"):
        store(read_npy(tmp_path / "t.npy"))


def test_class_names_beside_a_label_make_it_a_class_label(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", **{"y": np.array([1, 0]), "y.names": np.array(["cat", "dog"])})
    schema = read_npz(tmp_path / "x.npz").schema
    assert [(c.name, c.type) for c in schema.columns] == [("y", ClassLabel(("cat", "dog")))]


def test_arrays_of_different_length_are_refused_and_can_be_chosen_from(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", a=np.zeros(3), b=np.zeros(3), scale=np.zeros(1))
    with pytest.raises(InvalidInputError, match=r"'a': 3, 'b': 3, 'scale': 1\. Choose columns"):
        read_npz(tmp_path / "x.npz")
    assert read_npz(tmp_path / "x.npz", columns=("b", "a")).schema.names == ("b", "a")
    with pytest.raises(NotFoundError, match="no array 'c'; there are 'a', 'b', 'scale'"):
        read_npz(tmp_path / "x.npz", columns=("c",))


def test_weights_of_any_shape_are_read_one_by_one(tmp_path: Path) -> None:
    weights = {"scale": np.float32(3), "w/0": RNG.normal(size=(3, 2)), "none": np.zeros((0, 4))}
    np.savez(tmp_path / "w.npz", **weights)
    tensors = npz_arrays(tmp_path / "w.npz")
    assert {name: read_array(source).tolist() for name, (source, _) in tensors.items()} == {
        name: np.asarray(array).tolist() for name, array in weights.items()
    }
    assert len(tensors) == 3


def test_a_zip_whose_member_lies_about_its_size_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros(100_000))
    data = (tmp_path / "x.npz").read_bytes()
    real, lie = (size.to_bytes(4, "little") for size in (800_128, 1 << 31))
    (tmp_path / "y.npz").write_bytes(data.replace(real, lie))
    with pytest.raises(InvalidInputError, match="promises 800128 bytes"):
        read_npz(tmp_path / "y.npz")


def test_a_header_inside_a_zip_that_promises_too_much_is_refused(tmp_path: Path) -> None:
    header = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000,)}")
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header + bytes(4_000))
    with pytest.raises(InvalidInputError, match=r"promises 40000000\d\d bytes"):
        read_npz(tmp_path / "x.npz")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compression_that_numpy_does_not_write_is_refused(method: int, tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    with zipfile.ZipFile(tmp_path / "x.npz", "w", method) as archive:
        archive.writestr("x.npy", stream.getvalue())
    with pytest.raises(InvalidInputError, match="compressed in a way"):
        read_npz(tmp_path / "x.npz")


def test_a_zip_of_other_files_is_no_npz(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(InvalidInputError, match=r"'readme.txt' is not an npy file"):
        read_npz(tmp_path / "x.npz")


def test_an_array_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("x.npy", stream.getvalue())
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("x.npy", stream.getvalue())
    with pytest.raises(InvalidInputError, match="'x' twice"):
        read_npz(tmp_path / "x.npz")


def test_batches_stay_small_however_large_the_file(tmp_path: Path) -> None:
    array = np.lib.format.open_memmap(tmp_path / "x.npy", "w+", np.dtype("u1"), (2_000, 64 << 10))
    array[1999] = 5
    array.flush()
    tracemalloc.start()
    rows = sum(len(batch["x"]) for batch in read_npy(tmp_path / "x.npy").batches)  # type: ignore[index]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (rows, peak < 40 << 20) == (2_000, True)
