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

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from math import prod
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import pyarrow as pa

from tensorrepo.formats.common.damage import damage
from tensorrepo.formats.common.dtypes import SMALL_FLOATS, dtype_name
from tensorrepo.formats.common.tensors import is_torch
from tensorrepo.formats.dataset.schema.arrow_types import infer_type
from tensorrepo.formats.dataset.schema.by_arrow import is_pandas_null
from tensorrepo.formats.dataset.schema.convert import is_exact
from tensorrepo.formats.dataset.schema.numpy_moments import whole_units
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    Column,
    ColumnBatch,
    ColumnLayout,
    ColumnType,
    Embedding,
    Image,
    Json,
    Scalar,
    Schema,
    Tensor,
    Text,
    Timestamp,
)
from tensorrepo.formats.exchange.base import (
    BATCH_BYTES,
    Damage,
    ImportOrigin,
    OpenedSource,
    columns_of,
    first_of,
    grouped,
)
from tensorrepo.formats.exchange.column_choice import ColumnChoice, each_column
from tensorrepo.formats.exchange.tables.nested_values import nested_type
from tensorrepo.formats.images.encode import (
    codec_of_path,
    encode_picture,
    is_picture,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import Error, InvalidInputError, UnsupportedError

_VALUE_BYTES: Final = 64  # of an object of Python, beside what it holds
_PLAIN: Final = frozenset({bool, int, float, complex, str, bytes, type(None)})  # never change
_NUMBERS: Final = frozenset({bool, int, float, complex})
# Python's objects of which Arrow, and not numpy, knows the type.
_ARROW_VALUES: Final = (date, time, timedelta, Decimal)
_AS_OBJECTS: Final = tuple(map(np.dtype, ("M8[D]", "m8[s]", "m8[ms]", "m8[us]")))


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
    if is_picture(value):
        return Picture(encode_picture(value, image_format), image_format)
    if getattr(getattr(value, "dtype", None), "kind", "") in tuple("mM"):
        return _plain_count(np.asarray(value))
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, list | tuple):
        if value and _NUMBERS.issuperset(map(type, value)):
            return _joined(list(value))
        return _joined([_alone(plain(part, image_format)) for part in value])
    return None if is_pandas_null(value) else value


def _plain_count(given: np.ndarray[Any, Any]) -> Any:
    """A moment or duration of numpy's, or lists of them, in the units that columns have."""
    if given.ndim:
        return _listed(given)
    if np.isnat(given):  # one of no unit, too
        return None
    whole = whole_units(given)
    if whole.dtype not in _AS_OBJECTS:
        return whole
    found = whole.item()
    return whole if isinstance(found, int) else found  # Python's years end with 9999


def _alone(part: Any) -> Any:
    """A value of a list: a number of numpy, which `plain` makes an array, as one of Python."""
    if not isinstance(part, np.ndarray) or part.ndim:
        return part
    return part[()] if part.dtype.kind in "mM" else part.item()


def column_of(name: str, values: Iterable[Any]) -> Column:
    """The column of the first values; None makes it nullable. Raises InvalidInputError: a mix."""
    kinds: dict[ColumnType, None] = {}
    of_arrow: list[Any] = []
    nested: list[Any] = []
    rows: dict[np.dtype[Any], list[Any]] = {}
    nullable = has_empty = False
    for value in values:
        if value is None:
            nullable = True
        elif isinstance(value, list) and not value:
            has_empty = True  # of numbers, or of anything: the others tell
        elif isinstance(value, _ARROW_VALUES) and not isinstance(value, datetime):
            of_arrow.append(value)
        elif isinstance(value, list | dict):
            nested.append(value)
        else:
            kinds[kind_of(value)] = None
            if isinstance(value, np.ndarray) and value.ndim == 1:
                rows.setdefault(value.dtype, value.tolist())
    if of_arrow:
        kinds[_arrow_kind(name, of_arrow)] = None
    even = all(isinstance(kind, Tensor) and len(kind.shape) == 1 for kind in kinds)
    # Lists of numbers are arrays already, but for those in which one is null.
    found = nested_type([*nested, *rows.values()], name) if nested and even else None
    if found is not None:
        return Column(name, found, nullable)
    if nested:
        kinds[_json_kind(nested)] = None
    elif has_empty:
        kinds[Tensor("bool", (None,)) if kinds and even else Json()] = None
    return Column(name, _one_kind(name, kinds), nullable)


def _one_kind(name: str, kinds: Iterable[ColumnType]) -> ColumnType:
    if not kinds:
        raise InvalidInputError(
            f"column {name!r}: every first value is None, so it has no type. "
            f"Say it: create_dataset(..., columns={{{name!r}: ...}})"
        )
    joined, *others = kinds
    for kind in others:
        joined = _together(name, joined, kind)
    return joined


def _json_kind(values: Sequence[Any]) -> ColumnType:
    for value in values:
        _check_json(value)
    return Json()


def _arrow_kind(name: str, values: Sequence[Any]) -> ColumnType:
    """The column type of dates, times, durations and decimals, as that of Arrow's values."""
    try:
        arrow = pa.infer_type(values)
        if pa.types.is_decimal128(arrow):  # the first values do not tell the last
            arrow = pa.decimal128(_DECIMAL_DIGITS, arrow.scale)
        return infer_type(arrow, name)
    except pa.ArrowException as problem:
        raise InvalidInputError(f"column {name!r}: {problem}") from problem


def misfit(column: Column, value: Any) -> str:
    """Why a value is none of the column; "" when it is one."""
    if value is None:
        return "" if column.nullable else "is None, and no first value was"
    kind = column.type
    if not isinstance(kind, Scalar | Tensor | Embedding | Text | Bytes | Image):
        return ""  # the writer looks at the value itself
    if isinstance(kind, Image) and isinstance(value, np.ndarray | str | os.PathLike):
        return ""  # as does the encoder
    if isinstance(value, list) and not value and column.storage.shape == (None,):
        return ""
    if isinstance(value, np.ndarray) and isinstance(kind, Scalar | Tensor | Embedding):
        shape, held = column.storage.shape, value.shape
        if value.dtype.kind in "biufc" and _fits(shape, held):
            return ""
    found = kind_of(value)
    if isinstance(kind, Image):
        fits = isinstance(found, Image | Bytes)
        return "" if fits else f"is {_shown(found)}, the column has images"
    shape = column.storage.shape
    if isinstance(found, Scalar | Tensor) and column.storage.layout is not ColumnLayout.BINARY:
        held = found.shape if isinstance(found, Tensor) else ()
        return "" if _fits(shape, held) else f"has shape {held}, the column {shape}"
    return "" if type(found) is type(kind) else f"is {_shown(found)}, the column {_shown(kind)}"


def _other_zone(kind: ColumnType, value: datetime) -> str:
    found = kind_of(value)
    differs = isinstance(kind, Timestamp) and (kind.zone is None) != (value.tzinfo is None)
    return f"is {_shown(found)}, the column {_shown(kind)}" if differs else ""


def _fits(shape: tuple[int | None, ...], held: tuple[int | None, ...]) -> bool:
    return len(held) == len(shape) and all(
        want is None or have == want for want, have in zip(shape, held, strict=True)
    )


def stored_form(column: Column, value: Any) -> Any:
    """A value as the writer takes it; of a path, the bytes of its image.

    Raises:
        InvalidInputError: a path of no file.
    """
    if isinstance(value, Picture):
        return value.data
    if isinstance(value, str | os.PathLike) and isinstance(column.type, Image):
        return image_file(Path(value))
    if isinstance(value, np.ndarray) and isinstance(column.type, Json):
        return value.tolist()
    return value


def image_file(path: Path) -> bytes:
    """The bytes of an image's file. Raises InvalidInputError: it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as problem:
        raise InvalidInputError(f"{path}: {problem.strerror or problem}") from problem


def size_of(value: Any) -> int:
    """About how many bytes a value takes."""
    if isinstance(value, Picture):
        return len(value.data)
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, Mapping):
        return _VALUE_BYTES + sum(map(size_of, value.values()))
    if isinstance(value, list | tuple):
        return _VALUE_BYTES + sum(map(size_of, value))
    return int(getattr(value, "nbytes", _VALUE_BYTES))


def _from_tensor(tensor: Any) -> Any:
    try:
        found = tensor.detach().cpu().resolve_conj().resolve_neg()
    except RuntimeError as problem:
        raise UnsupportedError(f"a tensor of {tensor.dtype} is not read: {problem}") from problem
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


def _joined(parts: list[Any]) -> Any:
    """Nested numbers as one array where they are even; else the list that they are."""
    if parts and all(isinstance(part, bool | int | float | complex | np.ndarray) for part in parts):
        try:
            array = np.asarray(parts)
        except (ValueError, OverflowError):
            array = np.empty(0, np.object_)
        if array.dtype.kind in "biufc" and is_exact(parts, array):
            return array
    return [_listed(part) if isinstance(part, np.ndarray) else part for part in parts]


def _listed(array: np.ndarray[Any, Any]) -> list[Any]:
    """As `tolist`, which makes bare counts of moments and durations of nanoseconds."""
    if array.dtype.kind in "mM":
        array = whole_units(array)
        if array.dtype not in _AS_OBJECTS:
            return [_listed(each) if each.ndim else each for each in array]
    found: list[Any] = array.tolist()
    return found


def kind_of(value: Any) -> ColumnType:
    """The column type of one value."""
    match value:
        case Picture(codec=codec):
            return Image(codec)
        case os.PathLike() if (by_name := codec_of_path(value)) is not None:
            return Image(by_name)
        case datetime():
            return Timestamp("us", "UTC" if value.tzinfo else None)
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
    str: Text(),
    bytes: Bytes(),
    bytearray: Bytes(),
    memoryview: Bytes(),
}


def moments_of(array: np.ndarray[Any, Any]) -> pa.Array:
    """Moments or durations of numpy's as Arrow's, in lists for each dimension beyond the first.

    Raises:
        InvalidInputError: as `whole_units`.
    """
    found = pa.array(whole_units(array).reshape(-1))
    for at in range(array.ndim - 1, 0, -1):
        lists = prod(array.shape[:at])
        offsets = np.arange(lists + 1, dtype=np.int64) * array.shape[at]
        found = pa.LargeListArray.from_arrays(offsets, found)
    return found


def _array_kind(array: np.ndarray[Any, Any]) -> ColumnType:
    if array.dtype.kind in "mM" and not array.ndim:
        return infer_type(pa.from_numpy_dtype(whole_units(array).dtype), "")
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
        case Timestamp(zone=zone):
            return f"a moment {'with' if zone else 'without'} a zone"
    return type(kind).__name__.lower()


_DECIMAL_DIGITS: Final = 38  # of Arrow's decimals of 128 bits
FIRST_SAMPLES = 1000  # that decide the columns, or fewer when they are large
_TORCH = "torch.utils.data"
TorchSample = tuple[int, dict[str, Any]]
SampleUnit = Literal["sample", "row"]


def read_samples(
    given: Any,
    *,
    names: tuple[str, ...] | None = None,
    image_format: str = "png",
    damaged: bool = False,
    schema: Schema | None = None,
    choice: ColumnChoice = ColumnChoice(),  # noqa: B008  # frozen
    unit: SampleUnit = "sample",
    what: str = "",
) -> OpenedSource:
    """The samples of a torch dataset, or rows of Python, as rows.

    Columns of samples are nullable if a first sample lacks a value; those of rows always, since
    only the last one tells.

    Args:
        given: has ``__getitem__`` and ``__len__``, or ``__iter__``.
        names: names of the columns of tuples; else those of `schema`, or col0, ...
        image_format: "png", "webp", "tiff" or "bmp", for pictures of Pillow.
        damaged: pass over samples that raise, or that do not fit the first ones.
        schema: the columns, when they are known; else the first samples tell.
        choice: columns that are wanted, and their types.
        unit: word for one of them.
        what: word for the whole in messages; "": the name of its class.

    Raises:
        InvalidInputError: no samples, or a sample that does not fit; names its number.
    """
    met = Damage(skip=damaged)
    source = _Source(given, unit, what or type(given).__name__)
    called = names or (schema.names if schema is not None else None)
    inferred: frozenset[str] = frozenset()
    samples = _samples(source, called, image_format, met)
    if schema is None:
        sizes = ((each, sum(map(size_of, each[1].values()))) for each in samples)
        first = first_of(sizes, FIRST_SAMPLES, BATCH_BYTES)
        if not first:
            raise damage(source.what, f"has no {unit}s")
        schema = _infer(source, first, choice)
        samples = chain(first, samples)
        inferred = frozenset(schema.names) - choice.types.keys()
    sized = hasattr(given, "__len__") and not damaged
    return OpenedSource(
        schema=schema,
        rows=len(given) if sized else None,
        batches=_batches(source, schema, inferred, _chosen(samples, choice), met),
        origin=ImportOrigin(source.what, "torch", 0, 0),
        damage=met,
    )


@dataclass(frozen=True, slots=True)
class _Source:
    """What gives samples, and what messages call one of them."""

    given: Any
    unit: SampleUnit
    what: str

    def at(self, number: int) -> str:
        return f"{self.what}, {self.unit} {number}"

    def named(self, number: int, problem: Exception) -> InvalidInputError:
        said = (
            str(problem) if isinstance(problem, Error) else f"{type(problem).__name__}: {problem}"
        )
        return damage(self.at(number), said)


def is_torch_dataset(given: object) -> bool:
    """Whether an object is one of torch's datasets, or gives samples by number as they do."""
    # Not asked of the object: a lazy frame would work to answer.
    has_schema = hasattr(type(given), "schema") or "schema" in getattr(given, "__dict__", {})
    if has_schema or isinstance(given, Mapping | Sequence | set | frozenset):
        return False
    if any(kind.__module__.startswith(_TORCH) for kind in type(given).__mro__):
        return True
    by_number = hasattr(given, "__getitem__") and hasattr(given, "__len__")
    # Arrays and tables give their own parts by number too, but those are no samples.
    return by_number and not hasattr(given, "__array__") and not hasattr(given, "keys")


def _samples(
    source: _Source, names: tuple[str, ...] | None, image_format: str, met: Damage
) -> Iterator[TorchSample]:
    for number, sample in _numbered(source, met):
        try:
            values = name_values(sample, names)
            yield number, {name: plain(value, image_format) for name, value in values.items()}
        except Error as problem:
            met.meet(source.at(number), number, source.named(number, problem))


def _numbered(source: _Source, met: Damage) -> Iterator[tuple[int, Any]]:
    """Samples as the dataset gives them. What its own code raises is met as damage."""
    given = source.given
    if not (hasattr(given, "__getitem__") and hasattr(given, "__len__")):
        yield from _iterated(source)
        return
    for number in range(len(given)):
        try:
            sample = given[number]
        except Exception as problem:  # noqa: BLE001  # the user's code may raise anything
            met.meet(source.at(number), number, source.named(number, problem))
            continue
        yield number, sample


def _iterated(source: _Source) -> Iterator[tuple[int, Any]]:
    """Samples of an iterable: after an exception it has no next one."""
    number = 0
    samples = iter(source.given)
    while True:
        try:
            sample = next(samples)
        except StopIteration:
            return
        except Exception as problem:
            raise source.named(number, problem) from problem
        yield number, kept_value(sample)
        number += 1


def kept_value(value: Any) -> Any:
    """A value that whoever gave it may change from now on: what generators fill again and again."""
    kind = type(value)
    if kind is dict or isinstance(value, Mapping):
        return {
            name: each if type(each) in _PLAIN else kept_value(each) for name, each in value.items()
        }
    if kind in _PLAIN:
        return value
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list | tuple):
        return _kept_list(value)
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return value.detach().clone() if is_torch(value) else value


def _kept_list(value: list[Any] | tuple[Any, ...]) -> Any:
    if _PLAIN.issuperset(map(type, value)):
        return value if isinstance(value, tuple) else list(value)
    kept = map(kept_value, value)
    named: Callable[[Iterable[Any]], Any] | None = getattr(value, "_make", None)
    return (named or (tuple if isinstance(value, tuple) else list))(kept)


def _infer(source: _Source, first: Sequence[TorchSample], choice: ColumnChoice) -> Schema:
    names = list(dict.fromkeys(name for _, values in first for name in values))

    def column(name: str) -> Column:
        with naming_column(name):
            return choice.declared(name) or column_of(name, [row.get(name) for _, row in first])

    try:
        columns = each_column(choice.of(names), column)
    except Error as problem:
        where = f"among its first {source.unit}s"
        raise damage(source.what, f"{where}: {problem}") from problem
    if source.unit == "row":
        columns = [replace(each, nullable=True) for each in columns]
    return Schema(tuple(columns))


@contextmanager
def naming_column(name: str) -> Iterator[None]:
    """Say in errors which column they are about."""
    try:
        yield
    except (InvalidInputError, UnsupportedError) as problem:
        if str(problem).startswith(f"column {name!r}"):
            raise
        raise type(problem)(f"column {name!r}: {problem}") from problem


def _chosen(samples: Iterable[TorchSample], choice: ColumnChoice) -> Iterator[TorchSample]:
    for number, values in samples:
        yield number, {name: value for name, value in values.items() if choice.wants(name)}


def _batches(
    source: _Source,
    schema: Schema,
    inferred: frozenset[str],
    samples: Iterator[TorchSample],
    met: Damage,
) -> Iterator[ColumnBatch]:
    def fitting() -> Iterator[tuple[dict[str, Any], int]]:
        for number, values in samples:
            try:
                row = _fitted(schema.columns, inferred, values)
            except InvalidInputError as problem:
                met.meet(source.at(number), number, source.named(number, problem))
                continue
            yield row, sum(map(size_of, row.values()))

    for rows in grouped(fitting()):
        yield columns_of(rows, schema.names)


def _fitted(
    columns: Sequence[Column], inferred: frozenset[str], values: Mapping[str, Any]
) -> dict[str, Any]:
    """A sample as the writer takes it. Raises InvalidInputError: why it does not fit.

    Moments change their zone for a column that the caller declared, not for an `inferred` one.
    """
    known = {column.name for column in columns}
    if unknown := values.keys() - known:
        raise InvalidInputError(
            f"has {min(unknown)!r}, which is no column: none of the first ones had it"
        )
    row = {}
    for column in columns:
        value = values.get(column.name)
        try:
            problem = misfit(column, value)
            if column.name in inferred and isinstance(value, datetime):
                problem = problem or _other_zone(column.type, value)
            row[column.name] = None if problem else stored_form(column, value)
        except InvalidInputError as error:
            problem = str(error)
        if problem:
            raise InvalidInputError(f"column {column.name!r} {problem}")
    return row
