"""Python samples and torch datasets as rows.

Samples are dicts, tuples or single values, of numbers, arrays, torch tensors, pictures of Pillow,
text, bytes, and whatever JSON can say. The first samples decide the columns; a later one that does
not fit is named by its number. Neither torch nor Pillow is imported: their objects are told by what
they can do.

    tensorrepo.read(torchvision.datasets.CIFAR10(root), names=("image", "label"))

Map-style (``ds[7]`` and ``len(ds)``) and iterable datasets alike; torch is not imported. Pictures
of Pillow are stored as PNG, without loss.
"""

from __future__ import annotations

import decimal
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from tensorrepo.formats.common.damage import damage
from tensorrepo.formats.common.dtypes import SMALL_FLOATS, dtype_name
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    ColumnBatch,
    ColumnLayout,
    ColumnType,
    Date,
    Decimal,
    Duration,
    Image,
    Json,
    Scalar,
    Schema,
    Tensor,
    Text,
    Time,
    Timestamp,
)
from tensorrepo.formats.dataset.schema.types import Nested
from tensorrepo.formats.exchange.base import (
    BATCH_BYTES,
    Damage,
    ImportOrigin,
    OpenedSource,
    columns_of,
    first_of,
    grouped,
)
from tensorrepo.repo.errors import Error, InvalidInputError, UnsupportedError

# Pillow's modes that a format keeps to the last bit.
LOSSLESS = {
    "png": frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"}),
    "webp": frozenset({"RGB"}),  # it drops transparency that hides nothing
    "tiff": frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16", "I", "F", "CMYK", "LAB"}),
    "bmp": frozenset({"1", "L", "P", "RGB"}),
}
_SAVE_OPTIONS: dict[str, dict[str, Any]] = {"webp": {"lossless": True, "exact": True}}


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture as bytes, so that it is told from bytes that are none."""

    data: bytes
    codec: str


def name_values(sample: object, names: Sequence[str] | None) -> dict[str, Any]:
    """A sample as values by name; those of a tuple are called `names`, or col0, col1, ...

    Raises:
        InvalidInputError: `names` are not as many as the values.
    """
    if isinstance(sample, Mapping):
        return {str(name): value for name, value in sample.items()}
    fields = getattr(sample, "_fields", None)
    values = list(sample) if isinstance(sample, tuple | list) else [sample]
    called = names or fields or [f"col{at}" for at in range(len(values))]
    if len(called) != len(values):
        raise InvalidInputError(f"has {len(values)} values, and the names are {tuple(called)}")
    return dict(zip(called, values, strict=True))


def plain(value: object, image_format: str) -> Any:
    """A value without its library: tensors as arrays, pictures as encoded bytes.

    Raises:
        InvalidInputError: a picture that `image_format` would not keep exactly.
        UnsupportedError: a tensor that numpy cannot hold.
    """
    if hasattr(value, "detach") and hasattr(value, "numpy"):
        return _from_tensor(value)
    if hasattr(value, "save") and hasattr(value, "mode") and hasattr(value, "getbands"):
        return _from_picture(value, image_format)
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, list | tuple):
        parts = [plain(part, image_format) for part in value]
        numbers = (isinstance(part, np.ndarray) and not part.ndim for part in parts)
        return _joined(
            [part.item() if number else part for part, number in zip(parts, numbers, strict=True)]
        )
    return value


def column_of(name: str, values: Sequence[Any]) -> Column:
    """The column of the first values; None makes it nullable. Raises InvalidInputError: a mix."""
    given = [value for value in values if value is not None]
    kinds = list(dict.fromkeys(map(_kind, given)))
    if not kinds:
        raise InvalidInputError(f"column {name!r}: every first value is None, so it has no type")
    joined = kinds[0]
    for kind in kinds[1:]:
        joined = _together(name, joined, kind)
    return Column(name, joined, nullable=len(given) < len(values))


def misfit(column: Column, value: Any) -> str:
    """Why a value is none of the column; "" when it is one."""
    if value is None:
        return "" if column.nullable else "is None, and no first value was"
    kind = column.type
    if isinstance(kind, ClassLabel | Timestamp | Date | Time | Duration | Decimal | Json | Nested):
        return ""  # the writer looks at the value itself
    found = _kind(value)
    if isinstance(kind, Image):
        fits = isinstance(found, Image | Bytes)
        return "" if fits else f"is {_shown(found)}, the column has images"
    shape = column.storage.shape
    if isinstance(found, Scalar | Tensor) and column.storage.layout is not ColumnLayout.BINARY:
        held = found.shape if isinstance(found, Tensor) else ()
        fits = len(held) == len(shape) and all(
            want is None or have == want for want, have in zip(shape, held, strict=True)
        )
        return "" if fits else f"has shape {held}, the column {shape}"
    return "" if type(found) is type(kind) else f"is {_shown(found)}, the column {_shown(kind)}"


def stored_form(column: Column, value: Any) -> Any:
    """A value as the writer takes it."""
    if isinstance(value, Picture):
        return value.data
    if isinstance(value, np.ndarray) and isinstance(column.type, Json):
        return value.tolist()
    return value


def size_of(value: Any) -> int:
    """About how many bytes a value takes."""
    if isinstance(value, Picture):
        return len(value.data)
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    return int(getattr(value, "nbytes", 64))


def _from_tensor(tensor: Any) -> Any:
    found = tensor.detach().cpu()
    try:
        return np.asarray(found.numpy())
    except (TypeError, RuntimeError, ValueError) as problem:
        return _bits(found, problem)


def _bits(tensor: Any, problem: Exception) -> Any:
    """A tensor of a type that torch does not hand to numpy: its bits, under the name they have."""
    import torch

    dtype = SMALL_FLOATS.get(str(tensor.dtype).removeprefix("torch."))
    if dtype is None:
        raise UnsupportedError(f"a tensor of {tensor.dtype} is not read: {problem}") from problem
    raw = torch.int16 if dtype.itemsize == 2 else torch.uint8
    return np.asarray(tensor.contiguous().view(raw).numpy()).view(dtype)


def _from_picture(picture: Any, image_format: str) -> Picture:
    modes = LOSSLESS.get(image_format)
    if modes is None:
        raise InvalidInputError(f"image_format is {' or '.join(LOSSLESS)}, got {image_format!r}")
    if picture.mode not in modes:
        fitting = [name for name, held in LOSSLESS.items() if picture.mode in held]
        hint = f"say image_format={fitting[0]}" if fitting else "convert it first"
        raise InvalidInputError(
            f"{image_format} would not keep a picture of mode {picture.mode!r} exactly; {hint}"
        )
    file = io.BytesIO()
    picture.save(file, image_format.upper(), **_SAVE_OPTIONS.get(image_format, {}))
    return Picture(file.getvalue(), image_format)


def _joined(parts: list[Any]) -> Any:
    """Nested numbers as one array where they are even; else the list that they are."""
    if parts and all(isinstance(part, bool | int | float | complex | np.ndarray) for part in parts):
        try:
            array = np.asarray(parts)
        except (ValueError, OverflowError):
            array = np.empty(0, np.object_)
        if array.dtype.kind in "biufc":
            return array
    return [part.tolist() if isinstance(part, np.ndarray) else part for part in parts]


def _kind(value: Any) -> ColumnType:
    """The column type of one value."""
    match value:
        case Picture(codec=codec):
            return Image(codec)
        case datetime():
            return Timestamp("us", "UTC" if value.tzinfo else None)
        case decimal.Decimal():
            return Decimal(_DECIMAL_DIGITS, max(0, -int(value.as_tuple().exponent)))
        case np.ndarray():
            return _array_kind(value)
        case list() | dict():
            _check_json(value)
            return Json()
    for kind, column_type in _SIMPLE.items():  # bool comes before int, which it is too
        if isinstance(value, kind):
            return column_type
    raise InvalidInputError(f"holds {type(value).__name__}, which no column type holds")


_SIMPLE: dict[type, ColumnType] = {
    bool: Scalar("bool"),
    int: Scalar("int64"),
    float: Scalar("float64"),
    complex: Scalar("complex128"),
    date: Date(),
    time: Time("us"),
    timedelta: Duration("us"),
    str: Text(),
    bytes: Bytes(),
    bytearray: Bytes(),
    memoryview: Bytes(),
}


def _array_kind(array: np.ndarray[Any, Any]) -> ColumnType:
    if array.dtype.kind == "M":
        unit = np.datetime_data(array.dtype)[0]
        if not array.ndim and unit in ("s", "ms", "us", "ns"):
            return Timestamp(unit)  # type: ignore[arg-type]  # it is one of them
    if array.dtype.kind in "USOMm":
        raise InvalidInputError(f"holds an array of {array.dtype}, which no column type holds")
    dtype = dtype_name(array.dtype)
    return Tensor(dtype, array.shape) if array.ndim else Scalar(dtype)


def _check_json(value: object) -> None:
    try:
        msgspec.json.encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as problem:
        raise InvalidInputError(f"holds what JSON cannot say: {problem}") from problem


def _together(name: str, first: ColumnType, other: ColumnType) -> ColumnType:
    """One type for values of both."""
    match first, other:
        case Image(), Image():
            return Image(None)
        case Tensor(), Json():
            return other
        case Json(), Tensor():
            return first
        case Tensor(dtype=dtype, shape=shape), Tensor(dtype=held, shape=found) if len(shape) == len(
            found
        ):
            dims = (a if a == b else None for a, b in zip(shape, found, strict=True))
            return Tensor(_wider(name, dtype, held), tuple(dims))
        case Decimal(scale=one), Decimal(scale=two):
            return Decimal(_DECIMAL_DIGITS, max(one, two))
        case Scalar(dtype=dtype), Scalar(dtype=held):
            return Scalar(_wider(name, dtype, held))
    raise InvalidInputError(
        f"column {name!r}: the first values are {_shown(first)} and {_shown(other)}"
    )


def _wider(name: str, first: str, other: str) -> str:
    if first == other:
        return first
    try:
        return dtype_name(np.promote_types(first, other))
    except TypeError as problem:
        raise InvalidInputError(f"column {name!r}: mixes {first} and {other}") from problem


def _shown(kind: ColumnType) -> str:
    match kind:
        case Scalar(dtype=dtype):
            return f"a number ({dtype})"
        case Tensor(dtype=dtype, shape=shape):
            return f"an array of {dtype}{shape}"
    return type(kind).__name__.lower()


_DECIMAL_DIGITS = 38  # of Arrow's decimals of 128 bits: the first values do not tell the last
FIRST_SAMPLES = 64  # that decide the columns, or fewer when they are large
_TORCH = "torch.utils.data"
TorchSample = tuple[int, dict[str, Any]]


def read_samples(
    given: Any,
    *,
    names: tuple[str, ...] | None = None,
    image_format: str = "png",
    damaged: bool = False,
    schema: Schema | None = None,
) -> OpenedSource:
    """The samples of a torch dataset as rows.

    Args:
        given: has ``__getitem__`` and ``__len__``, or ``__iter__``.
        names: names of the columns of tuples; else those of `schema`, or col0, ...
        image_format: "png", "webp", "tiff" or "bmp", for pictures of Pillow.
        damaged: pass over samples that raise, or that do not fit the first ones.
        schema: the columns, when they are known; else the first samples tell.

    Raises:
        InvalidInputError: no samples, or a sample that does not fit; names its number.
    """
    met = Damage(skip=damaged)
    called = names or (schema.names if schema is not None else None)
    samples = _samples(given, called, image_format, met)
    if schema is None:
        sizes = ((each, sum(map(size_of, each[1].values()))) for each in samples)
        first = first_of(sizes, FIRST_SAMPLES, BATCH_BYTES)
        if not first:
            raise damage(_what(given), "has no samples")
        schema = _infer(given, first)
        samples = chain(first, samples)
    sized = hasattr(given, "__len__") and not damaged
    return OpenedSource(
        schema=schema,
        rows=len(given) if sized else None,
        batches=_batches(given, schema, samples, met),
        origin=ImportOrigin(_what(given), "torch", 0, 0),
        damage=met,
    )


def is_torch_dataset(given: object) -> bool:
    """Whether an object is one of torch's datasets, or gives samples by number as they do."""
    if isinstance(given, Mapping | Sequence | set | frozenset) or hasattr(given, "schema"):
        return False
    if any(kind.__module__.startswith(_TORCH) for kind in type(given).__mro__):
        return True
    by_number = hasattr(given, "__getitem__") and hasattr(given, "__len__")
    # Arrays and tables give their own parts by number too, but those are no samples.
    return by_number and not hasattr(given, "__array__") and not hasattr(given, "keys")


def _samples(
    given: Any, names: tuple[str, ...] | None, image_format: str, met: Damage
) -> Iterator[TorchSample]:
    for number, sample in _numbered(given, met):
        try:
            values = name_values(sample, names)
            yield number, {name: plain(value, image_format) for name, value in values.items()}
        except Error as problem:
            met.meet(_at(given, number), number, _named(given, number, problem))


def _numbered(given: Any, met: Damage) -> Iterator[tuple[int, Any]]:
    """Samples as the dataset gives them. What its own code raises is met as damage."""
    if not (hasattr(given, "__getitem__") and hasattr(given, "__len__")):
        yield from _iterated(given)
        return
    for number in range(len(given)):
        try:
            sample = given[number]
        except Exception as problem:  # noqa: BLE001  # the user's code may raise anything
            met.meet(_at(given, number), number, _named(given, number, problem))
            continue
        yield number, sample


def _iterated(given: Any) -> Iterator[tuple[int, Any]]:
    """Samples of an iterable: after an exception it has no next one."""
    number = 0
    samples = iter(given)
    while True:
        try:
            sample = next(samples)
        except StopIteration:
            return
        except Exception as problem:
            raise _named(given, number, problem) from problem
        yield number, sample
        number += 1


def _infer(given: Any, first: Sequence[TorchSample]) -> Schema:
    names = list(dict.fromkeys(name for _, values in first for name in values))
    try:
        columns = [column_of(name, [values.get(name) for _, values in first]) for name in names]
    except Error as problem:
        raise damage(_what(given), f"among its first samples: {problem}") from problem
    return Schema(tuple(columns))


def _batches(
    given: Any, schema: Schema, samples: Iterator[TorchSample], met: Damage
) -> Iterator[ColumnBatch]:
    def fitting() -> Iterator[tuple[dict[str, Any], int]]:
        for number, values in samples:
            if problem := _problem(schema.columns, values):
                met.meet(_at(given, number), number, damage(_at(given, number), problem))
                continue
            row = {c.name: stored_form(c, values.get(c.name)) for c in schema.columns}
            yield row, sum(map(size_of, values.values()))

    for rows in grouped(fitting()):
        yield columns_of(rows, schema.names)


def _problem(columns: Sequence[Column], values: Mapping[str, Any]) -> str:
    """Why a sample does not fit the columns; "" when it does."""
    known = {column.name for column in columns}
    if unknown := values.keys() - known:
        return f"has {min(unknown)!r}, which no first sample had"
    for column in columns:
        try:
            wrong = misfit(column, values.get(column.name))
        except InvalidInputError as problem:
            wrong = str(problem)
        if wrong:
            return f"column {column.name!r} {wrong}"
    return ""


def _what(given: object) -> str:
    return type(given).__name__


def _at(given: object, number: int) -> str:
    return f"{_what(given)}, sample {number}"


def _named(given: object, number: int, problem: Exception) -> InvalidInputError:
    said = str(problem) if isinstance(problem, Error) else f"{type(problem).__name__}: {problem}"
    return damage(_at(given, number), said)
