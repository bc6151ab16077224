from __future__ import annotations

import io
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.schema.schema import Bytes, Image, Json, Scalar, Tensor, Text
from tensorrepo.formats.exchange.tables.samples import is_torch_dataset, read_samples
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.foreign import rows_of, store

Pair = namedtuple("Pair", ["x", "y"])  # noqa: PYI024  # what collate functions of torch know


class Samples:
    """A map-style dataset without torch."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Any:
        sample = self.samples[number]
        if isinstance(sample, Exception):
            raise sample
        return sample


class Stream:
    """An iterable dataset without torch."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[Any]:
        yield from self.samples


@pytest.mark.parametrize("kind", [Samples, Stream])
def test_samples_of_every_kind_become_rows(kind: type) -> None:
    sample = {
        "array": np.arange(6, dtype=np.int16).reshape(2, 3),
        "number": 3,
        "real": 0.5,
        "flag": True,
        "small": np.float32(1.5),
        "text": "é",
        "data": b"\0\1",
        "box": [1, 2, 3],
        "facts": {"a": [1, "b"]},
    }
    reading = read_samples(kind([sample, {**sample, "box": [4]}]))
    assert {column.name: column.type for column in reading.schema.columns} == {
        "array": Tensor("int16", (2, 3)),
        "number": Scalar("int64"),
        "real": Scalar("float64"),
        "flag": Scalar("bool"),
        "small": Scalar("float32"),
        "text": Text(),
        "data": Bytes(),
        "box": Tensor("int64", (None,)),
        "facts": Json(),
    }
    rows = rows_of(store(reading))
    assert rows[1] == {**sample, "array": sample["array"].tolist(), "box": [4]}  # type: ignore[attr-defined]  # it is an array


@pytest.mark.parametrize(
    ("sample", "names", "expected"),
    [
        ((1, "a"), None, ["col0", "col1"]),
        ((1, "a"), ("x", "y"), ["x", "y"]),
        (Pair(1, "a"), None, ["x", "y"]),
        (np.zeros(3), None, ["col0"]),
    ],
)
def test_values_without_names_get_some(
    sample: Any, names: tuple[str, ...] | None, expected: list[str]
) -> None:
    assert list(read_samples(Samples([sample]), names=names).schema.names) == expected


def test_names_must_be_as_many_as_values() -> None:
    with pytest.raises(InvalidInputError, match="sample 0: has 2 values"):
        read_samples(Samples([(1, 2)]), names=("x",))


def test_shapes_that_differ_make_a_ragged_column() -> None:
    reading = read_samples(Samples([np.zeros((n, 4), np.uint8) for n in (1, 3)]))
    assert reading.schema.column("col0").type == Tensor("uint8", (None, 4))


def test_integers_and_floats_together_are_floats() -> None:
    reading = read_samples(Samples([1, 2.5]))
    assert rows_of(store(reading)) == [{"col0": 1.0}, {"col0": 2.5}]


def test_none_makes_a_column_nullable() -> None:
    reading = read_samples(Samples([{"a": 1}, {"a": None}]))
    assert rows_of(store(reading)) == [{"a": 1}, {"a": None}]


@pytest.mark.parametrize(
    ("late", "message"),
    [
        (
            {"a": np.zeros(4), "b": 1},
            r"sample 1070: column 'a' has shape \(4,\), the column \(3,\)",
        ),
        ({"a": "text", "b": 1}, "sample 1070: column 'a' is text"),
        ({"a": None, "b": 1}, "sample 1070: column 'a' is None"),
        ({"a": np.zeros(3)}, "sample 1070: column 'b' is None"),
        ({"a": np.zeros(3), "b": 1, "c": 2}, "sample 1070: has 'c'"),
        ({"a": object(), "b": 1}, "sample 1070: column 'a' holds object"),
        (KeyError("gone"), "sample 1070: KeyError: 'gone'"),
    ],
)
def test_a_late_misfit_is_named_or_passed_over(late: Any, message: str) -> None:
    samples = Samples([{"a": np.zeros(3), "b": 1}] * 1070 + [late])
    with pytest.raises(InvalidInputError, match=message):
        store(read_samples(samples))
    reading = read_samples(samples, damaged=True)
    assert len(store(reading)) == 1070
    assert [item.row for item in reading.damage.skipped] == [1070]


def test_no_samples_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="Samples: has no samples"):
        read_samples(Samples([]))


def test_kinds_that_do_not_mix_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="first values are text and a number"):
        read_samples(Samples(["a", 1]))


def test_rows_are_as_many_as_the_dataset_says() -> None:
    assert read_samples(Samples([1, 2])).rows == 2
    assert read_samples(Stream([1, 2])).rows is None


@pytest.mark.parametrize(
    "given", [[1], (1,), {"a": 1}, "text", b"", np.zeros(3), {1}, range(3), iter([1]), 3]
)
def test_other_objects_are_no_datasets_of_torch(given: object) -> None:
    assert not is_torch_dataset(given)


def test_tensors_of_torch_become_arrays() -> None:
    torch = pytest.importorskip("torch")
    sample = torch.arange(4).reshape(2, 2), torch.tensor(3), torch.ones(2, requires_grad=True)
    dataset = torch.utils.data.TensorDataset(torch.arange(3))
    assert is_torch_dataset(dataset)
    assert [row["col0"] for row in store(read_samples(dataset))] == [0, 1, 2]
    assert [column.type for column in read_samples(Samples([sample])).schema.columns] == [
        Tensor("int64", (2, 2)),
        Scalar("int64"),
        Tensor("float32", (2,)),
    ]


def test_an_iterable_dataset_of_torch_is_recognised() -> None:
    data = pytest.importorskip("torch.utils.data")

    class Numbers(data.IterableDataset):  # type: ignore[misc, name-defined]  # torch is not typed here
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    assert is_torch_dataset(Numbers())
    assert [row["col0"] for row in store(read_samples(Numbers()))] == [0, 1, 2]


@pytest.mark.parametrize(
    ("mode", "image_format"),
    [
        ("RGB", "png"),
        ("L", "png"),
        ("1", "png"),
        ("RGB", "webp"),
        ("RGBA", "png"),
        ("F", "tiff"),
        ("CMYK", "tiff"),
    ],
)
def test_pictures_keep_every_pixel(mode: str, image_format: str) -> None:
    pictures = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(1).integers(0, 256, (4, 5, 3), np.uint8)
    picture = pictures.fromarray(pixels).convert(mode)
    reading = read_samples(Samples([picture]), image_format=image_format)
    assert reading.schema.column("col0").type == Image(image_format)
    back = pictures.open(io.BytesIO(store(reading)[0]["col0"]))
    assert back.mode == mode
    assert np.array_equal(np.asarray(back), np.asarray(picture))


def test_a_picture_that_png_would_change_is_refused() -> None:
    pictures = pytest.importorskip("PIL.Image")
    with pytest.raises(InvalidInputError, match="'F' exactly; say image_format=tiff"):
        read_samples(Samples([pictures.new("F", (2, 2))]))
