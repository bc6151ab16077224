"""Datasets of Hugging Face: features as columns, reader and writer.

Features say what Arrow's types do not: that numbers are classes, that a struct is a picture, that
nested lists are one array. Structs and lists of anything are columns of these types, both ways.

    dataset_info.json state.json data-00000-of-00001.arrow              one split
    dataset_dict.json train/... test/...                                several: a column split

Folders are read without that library: they are Arrow streams and JSON. Pictures must lie in them;
of an object, those that are named by a path are read from there.

Arrow streams of about half a gigabyte, whose metadata and `dataset_info.json` say the features.
Images stay encoded; JSON and moments go as text and as Arrow's timestamps.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from tensorrepo.formats.common import compute as pc
from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.common.dtypes import dtype_name
from tensorrepo.formats.common.json import decode_json
from tensorrepo.formats.dataset.schema.arrow import from_arrow_array
from tensorrepo.formats.dataset.schema.arrow_types import arrow_type
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    ColumnBatch,
    ColumnLayout,
    Date,
    Decimal,
    Duration,
    Image,
    Json,
    Null,
    Scalar,
    Schema,
    Tensor,
    Text,
    Time,
    Timestamp,
)
from tensorrepo.formats.dataset.schema.types import Nested
from tensorrepo.formats.dataset.schema.values import FixedValues, RaggedValues
from tensorrepo.formats.exchange.base import (
    BATCH_BYTES,
    Candidate,
    ImportOrigin,
    OpenedSource,
    origin_of,
    streamed_groups,
    with_split,
)
from tensorrepo.formats.exchange.child import open_files
from tensorrepo.formats.exchange.child_main import ARROW_ERRORS, TableFile
from tensorrepo.formats.exchange.column_choice import ColumnChoice, each_column, typed
from tensorrepo.formats.exchange.images.labels import read_text
from tensorrepo.formats.exchange.output import ExportTable, column_refused, new_folder
from tensorrepo.formats.exchange.tables.files import (
    Adapted,
    adapt_plain,
    features_of,
    is_any_list,
    naming_file,
    null_below_zero,
    storage,
    table_batches,
    unnamed_index,
)
from tensorrepo.formats.exchange.tables.samples import read_samples
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, UnsupportedError

_LIGHT = (Scalar, ClassLabel, Text, Timestamp, Date, Time, Duration, Decimal)
_ARRAYS = frozenset({"Array2D", "Array3D", "Array4D", "Array5D"})
_FILES = frozenset({"Audio", "Video", "Pdf"})
HuggingFaceFeature = Any  # a mapping with "_type" or of features, or a list with one feature


def adapt_feature(field: pa.Field, feature: HuggingFaceFeature, *, follow: bool) -> Adapted:
    """How a field of which the features say this, or nothing (None), becomes a column.

    With `follow`, for the user's own process alone, pictures that are named by a path are read.

    Raises:
        UnsupportedError: no column type holds it.
    """
    kind = feature.get("_type") if isinstance(feature, Mapping) else None
    stored = storage_type(field.type)
    if kind == "ClassLabel" and pa.types.is_integer(stored) and feature.get("names"):
        names = tuple(feature["names"])
        # A missing label is written as -1.
        label = Column(field.name, ClassLabel(names), nullable=field.nullable)
        return Adapted(label, lambda array: null_below_zero(array.cast(pa.int64())))
    if kind == "Image":
        column = Column(field.name, Image(), nullable=field.nullable)
        return Adapted(column, _embedded(stored, follow=follow))
    if kind in _FILES:
        column = Column(field.name, Bytes(), nullable=field.nullable)
        return Adapted(column, _embedded(stored, follow=follow))
    if isinstance(field.type, pa.FixedShapeTensorType):
        return adapt_plain(field, field.type)
    dims, leaf = _nesting(stored)
    shape = tuple(feature["shape"]) if kind in _ARRAYS else dims
    if shape and len(shape) == len(dims) and None not in shape[1:] and _is_number(leaf):
        dtype = dtype_name(leaf.to_pandas_dtype())
        column = Column(field.name, Tensor(dtype, shape), nullable=field.nullable)
        return Adapted(column, lambda array: blocks(storage(array), shape))
    return adapt_plain(field, stored)


def storage_type(kind: pa.DataType) -> pa.DataType:
    """The type that is stored for an extension type, also of those inside of lists and structs."""
    if isinstance(kind, pa.BaseExtensionType):
        return storage_type(kind.storage_type)
    return _rebuilt(kind, storage_type) if _holds_extension(kind) else kind


def _holds_extension(kind: pa.DataType) -> bool:
    inside = (kind.field(at).type for at in range(kind.num_fields))
    return isinstance(kind, pa.BaseExtensionType) or any(map(_holds_extension, inside))


def _rebuilt(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """A list or struct whose inner types are changed; any other type as it is."""
    if pa.types.is_struct(kind):
        return pa.struct([each.with_type(change(each.type)) for each in kind.fields])
    if not is_any_list(kind):
        return kind
    inner = kind.value_field.with_type(change(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(inner, kind.list_size)
    return pa.large_list(inner) if pa.types.is_large_list(kind) else pa.list_(inner)


def blocks(array: pa.Array, shape: Sequence[int | None]) -> list[NDArray[Any] | None]:
    """Nested lists as one array a row, of a `shape` whose first dimension alone may be None.

    Raises:
        pa.ArrowInvalid: a list inside is null or has another length.
    """
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    counts: NDArray[np.int64] = np.ones(int(valid.sum()), np.int64)
    level = array
    for depth, dim in enumerate(shape):
        lengths = pc.list_value_length(level)
        if depth and level.null_count:
            raise pa.ArrowInvalid("a list inside a row is null")
        found = lengths.drop_null().to_numpy(zero_copy_only=False).astype(np.int64)
        if dim is not None and (found != dim).any():
            wrong = int(found[found != dim][0])
            raise pa.ArrowInvalid(f"a list has {wrong} values, the feature says {dim}")
        counts = found if not depth else counts * (dim or 0)
        level = level.flatten()
    if level.null_count:
        raise pa.ArrowInvalid("a number inside a row is null")
    elements = level.to_numpy(zero_copy_only=False)
    ends = iter(np.split(elements, np.cumsum(counts)[:-1]) if len(counts) else [])
    inner = tuple(dim for dim in shape[1:] if dim is not None)
    return [
        next(ends).reshape(-1 if shape[0] is None and all(inner) else shape[0] or 0, *inner)
        if there
        else None
        for there in valid
    ]


def _nesting(kind: pa.DataType) -> tuple[tuple[int | None, ...], pa.DataType]:
    """The dimensions of nested lists, and what the innermost hold."""
    dims: list[int | None] = []
    while is_any_list(kind):
        dims.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    return tuple(dims), kind


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _embedded(stored: pa.DataType, *, follow: bool) -> Callable[[pa.Array], Any]:
    """A function that gives the bytes of pictures or sounds."""
    if not pa.types.is_struct(stored):
        return storage
    if stored.get_field_index("bytes") < 0:
        raise UnsupportedError(f"{stored} holds no bytes")

    def convert(array: pa.Array) -> Any:
        held = storage(array)
        data = held.field("bytes")
        if held.null_count:
            data = pc.if_else(held.is_valid(), data, None)
        if not data.null_count or stored.get_field_index("path") < 0:
            return data
        return _filled(held, data, follow=follow)

    return convert


def _filled(held: pa.Array, data: pa.Array, *, follow: bool) -> list[bytes | None]:
    """Bytes of rows that only name a file."""
    there = held.is_valid().to_pylist()
    named = held.field("path").to_pylist()
    return [
        _read_named(path, follow=follow) if value is None and is_there and path else value
        for is_there, value, path in zip(there, data.to_pylist(), named, strict=True)
    ]


def _read_named(path: str, *, follow: bool) -> bytes:
    if not follow:
        raise pa.ArrowInvalid(
            f"a picture is only named, {path!r}. Embed it: save_to_disk of datasets does, and "
            "tensorrepo.read of the object reads the file"
        )
    with refusals(path, "file"):
        return Path(path).read_bytes()


STATE, INFO, DICT = "state.json", "dataset_info.json", "dataset_dict.json"
_MAX_JSON_BYTES = 64 << 20
_MAX_ROWS = 4096


class _File(msgspec.Struct):
    filename: str


class _State(msgspec.Struct, rename={"files": "_data_files", "indices": "_indices_data_files"}):
    files: list[_File]
    indices: list[_File] | None = None


class _Info(msgspec.Struct):
    features: dict[str, Any] | None = None


class _Dict(msgspec.Struct):
    splits: list[str]


@dataclass(frozen=True, slots=True)
class _Split:
    """One folder with a state: its files in order, opened, and its features."""

    files: Mapping[Path, TableFile]
    schema: pa.Schema
    features: Mapping[str, Any]


def read_huggingface(
    path: Path,
    *,
    split: str | None = None,
    columns: tuple[str, ...] | None = None,
    exclude: tuple[str, ...] = (),
) -> OpenedSource:
    """A folder that `save_to_disk` wrote.

    Args:
        path: the folder of a dataset, or of a dict of them.
        split: only this one of a dict; else column `split` tells them apart.
        columns: only these.
        exclude: all but these.

    Raises:
        InvalidInputError: a damaged folder, splits that differ, a picture that is only named.
        NotFoundError: no such split or column.
        UnsupportedError: a feature that no column type holds.
    """
    with refusals(path, "dataset", *ARROW_ERRORS):
        return _read(path, _splits(path, split), ColumnChoice(columns, exclude))


def _read(path: Path, splits: Sequence[str], choice: ColumnChoice) -> OpenedSource:
    opened = {name: _open_split(path / name) for name in splits}
    first = opened[splits[0]]
    for name, other in opened.items():
        if other.schema.names != first.schema.names or other.schema.types != first.schema.types:
            raise damage(path, f"splits {splits[0]!r} and {name!r} differ. Say one: split=...")
    with naming_file(path):
        adapted = _adapt(first.schema, first.features, choice, follow=False)
        schema = with_split_column(Schema(tuple(item.column for item in adapted)), splits)
    files = [file for one in opened.values() for file in one.files]
    return OpenedSource(
        schema=schema,
        rows=None,
        batches=with_split([table_batches(each.files, adapted) for each in opened.values()]),
        origin=origin_of(path, "huggingface", files),
    )


def read_huggingface_object(
    given: Any,
    *,
    choice: ColumnChoice,
    schema: Schema | None = None,
) -> OpenedSource:
    """A `Dataset` or `IterableDataset` in memory, on disk or streamed.

    Args:
        given: the object; of a `DatasetDict` choose one: ``given["train"]``.
        choice: columns that are wanted, and their types.
        schema: the columns, when they are known.
    """
    if isinstance(given, Mapping):
        raise InvalidInputError(f"is several datasets, choose one: {', '.join(map(str, given))}")
    if given.features is None:  # a stream whose columns nobody knows yet
        return read_samples(given, schema=schema, choice=choice)
    features = given.features.to_dict()
    arrow = given.features.arrow_schema
    adapted = _adapt(arrow, features, choice, follow=True)
    what = type(given).__name__
    source = OpenedSource(
        schema=Schema(tuple(item.column for item in adapted)),
        rows=len(given) if hasattr(given, "__len__") else None,
        batches=_object_batches(given, adapted, what),
        origin=ImportOrigin(
            what, "huggingface", 0, int(getattr(given, "size_in_bytes", None) or 0)
        ),
    )
    return typed(source, choice.types)


def matches_huggingface(candidate: Candidate) -> bool:
    path = candidate.path
    return candidate.is_folder and (
        (path / DICT).is_file() or ((path / STATE).is_file() and (path / INFO).is_file())
    )


def is_huggingface_object(given: object) -> bool:
    """Whether an object is one of the library's datasets, told without importing it."""
    kinds = {f"{kind.__module__.split('.')[0]}.{kind.__name__}" for kind in type(given).__mro__}
    own = {"datasets.Dataset", "datasets.IterableDataset"}
    return bool(kinds & (own | {"datasets.DatasetDict", "datasets.IterableDatasetDict"}))


def _splits(path: Path, split: str | None) -> list[str]:
    """The folders to read, relative to `path`; "" is `path` itself."""
    if not (path / DICT).is_file():
        if split is not None:
            raise NotFoundError(f"{path} is one dataset without splits")
        return ["."]
    listed = _json(path / DICT, _Dict).splits
    for name in listed:
        _check_name(path / DICT, name)
    if split is not None and split not in listed:
        raise NotFoundError(f"{path} has no split {split!r}; there are {', '.join(listed)}")
    if not listed:
        raise damage(path, "lists no splits")
    return [split] if split is not None else listed


def _open_split(folder: Path) -> _Split:
    state = _json(folder / STATE, _State)
    if state.indices:
        raise UnsupportedError(
            f"{folder} is a choice of rows in the form of an old version of datasets. Save it again"
        )
    if not state.files:
        raise damage(folder / STATE, "names no files")
    for file in state.files:
        _check_name(folder / STATE, file.filename)
    opened = open_files("arrow", [folder / file.filename for file in state.files])
    schema = next(iter(opened.values())).schema
    for path, table in opened.items():
        if table.schema.names != schema.names or table.schema.types != schema.types:
            raise damage(path, "has other columns than the first file")
    info = _json(folder / INFO, _Info) if (folder / INFO).is_file() else _Info()
    return _Split(opened, schema, info.features or features_of(schema))


def _json(path: Path, kind: type[Any]) -> Any:
    with refusals(path, "JSON file"):
        text = read_text(path, "JSON file", _MAX_JSON_BYTES)
    return decode_json(path, text.encode(), kind)


def _check_name(where: Path, name: str) -> None:
    if not name or name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise damage(where, f"names {name!r}, which is no file or folder beside it")


def _adapt(
    arrow: pa.Schema, features: Mapping[str, Any], choice: ColumnChoice, *, follow: bool
) -> list[Adapted]:
    if twice := [name for name, count in Counter(arrow.names).items() if count > 1]:
        raise InvalidInputError(f"has two columns called {' and '.join(map(repr, twice))}")
    return each_column(
        choice.of(arrow.names, unnamed_index(arrow)),
        lambda name: adapt_feature(arrow.field(name), features.get(name), follow=follow),
    )


def with_split_column(schema: Schema, splits: Sequence[str]) -> Schema:
    if len(splits) < 2:
        return schema
    if "split" in schema:
        raise InvalidInputError("has a column 'split' besides its splits. Say one: split=...")
    return Schema((*schema.columns, Column("split", ClassLabel(tuple(splits)))))


def _object_batches(given: Any, adapted: Sequence[Adapted], what: str) -> Iterator[ColumnBatch]:
    """Rows as the library gives them, in steps of about `BATCH_BYTES`."""

    def tables() -> Iterator[pa.RecordBatch]:
        for table in given.with_format("arrow").iter(batch_size=_step(given)):
            yield from table.combine_chunks().to_batches()

    names = [item.column.name for item in adapted]
    opened = TableFile(pa.schema([]), None, tables)
    with refusals(what, "dataset", *ARROW_ERRORS):
        for batch in table_batches({Path(what): opened}, adapted):
            yield {name: batch[name] for name in names}


def _step(given: Any) -> int:
    """How many rows to ask for at once."""
    size = getattr(getattr(given, "data", None), "nbytes", None)
    rows = len(given) if hasattr(given, "__len__") else 0
    if not size or not rows:
        return 64
    return int(max(1, min(_MAX_ROWS, BATCH_BYTES * rows // size)))


SHARD_BYTES = 500_000_000
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@dataclass(frozen=True, slots=True)
class _Feature:
    """How a column is written: what the features say, Arrow's field, and its arrays."""

    form: dict[str, Any]
    field: pa.Field
    convert: Callable[[pa.Array], pa.Array]


@dataclass(frozen=True, slots=True)
class FeatureTable:
    """How rows are written for `datasets`.

    Attributes:
        features: form and conversion of each column.
        forms: description of each column in the words of `datasets`, by name.
        schema: schema of Arrow, with that description in its metadata.
        light: names of columns of small values, of which dictionaries and statistics pay.
    """

    features: tuple[_Feature, ...]
    forms: dict[str, Any]
    schema: pa.Schema
    light: list[str]

    def convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the dataset's own columns, as `schema` has them."""
        return _converted(batch, self.features, self.schema)


def feature_table(columns: Schema) -> FeatureTable:
    """How rows of these columns are written.

    Raises:
        InvalidInputError: complex numbers, floats of 8 or 16 bits that Arrow lacks, or tensors of
            more than 5 dimensions or with several unknown ones.
    """
    features = tuple(_feature(column) for column in columns.columns)
    forms = {column.name: f.form for column, f in zip(columns.columns, features, strict=True)}
    metadata = {"huggingface": json.dumps({"info": {"features": forms}})}
    schema = pa.schema([feature.field for feature in features], metadata=metadata)
    light = [column.name for column in columns.columns if isinstance(column.type, _LIGHT)]
    return FeatureTable(features, forms, schema, light)


def write_huggingface(table: ExportTable, path: Path, *, overwrite: bool = False) -> None:
    """A folder that `datasets.load_from_disk` opens. Raises as `feature_table` does."""
    made = feature_table(table.schema)
    features, forms, schema = made.features, made.forms, made.schema
    with new_folder(path, overwrite=overwrite) as folder:
        names, told = [], xxhash.xxh3_64(json.dumps(forms).encode())
        batches = (
            _converted(each, features, schema) for each in table.to_batches(max_bytes=BATCH_BYTES)
        )
        # `datasets` does not open a stream without any batch.
        first = next(batches, pa.RecordBatch.from_pylist([], schema))
        sized = ((batch, batch.nbytes) for batch in chain([first], batches))
        for number, shard in enumerate(streamed_groups(sized, SHARD_BYTES)):
            names.append(_write_shard(folder, number, shard, schema, told))
        count = len(names)
        final = [f"data-{at:05d}-of-{count:05d}.arrow" for at in range(count)]
        for name, wanted in zip(names, final, strict=True):
            (folder / name).rename(folder / wanted)
        _write_json(folder / INFO, {"citation": "", "description": "", "features": forms})
        _write_json(folder / STATE, _state(final, told.hexdigest()))


def _state(files: list[str], fingerprint: str) -> dict[str, Any]:
    return {
        "_data_files": [{"filename": name} for name in files],
        "_fingerprint": fingerprint,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }


def _write_json(path: Path, form: dict[str, Any]) -> None:
    path.write_text(json.dumps(form, indent=2), "utf-8")


def _write_shard(
    folder: Path,
    number: int,
    batches: Iterator[pa.RecordBatch],
    schema: pa.Schema,
    told: xxhash.xxh3_64,
) -> str:
    name = f"{number}.part"
    with pa.OSFile(str(folder / name), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
            told.update(f"{number} {batch.num_rows} {batch.nbytes}".encode())
    return name


def _converted(
    batch: pa.RecordBatch, features: Sequence[_Feature], schema: pa.Schema
) -> pa.RecordBatch:
    try:
        arrays = [
            feature.convert(array) for feature, array in zip(features, batch.columns, strict=True)
        ]
    except pa.ArrowException as problem:
        raise InvalidInputError(
            f"these rows cannot be written for datasets: {problem}"
        ) from problem
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _feature(column: Column) -> _Feature:
    match column.type:
        case ClassLabel(names=names):
            form = {"names": list(names), "_type": "ClassLabel"}
            return _plain(column, form, pa.int64())
        case Image():
            return _Feature({"_type": "Image"}, _field(column, _IMAGE), _pictures)
        case Bytes():
            return _plain(column, _value("binary"), pa.binary())
        case Text() | Json():
            return _plain(column, _value("string"), pa.string())
        case Timestamp(unit=unit, zone=zone):
            name = f"timestamp[{unit}, tz={zone}]" if zone else f"timestamp[{unit}]"
            return _plain(column, _value(name), pa.timestamp(unit, zone))
        case Scalar():
            return _plain(column, _value(_dtype(column)), _element(column))
    if isinstance(column.type, _AS_ARROW):
        kind = _short(arrow_type(column.type))
        return _Feature(_form(column, kind), _field(column, kind), lambda array: array.cast(kind))
    return _tensor(column)


_AS_ARROW = (Date, Time, Duration, Decimal, Null, *get_args(Nested))


def _short(kind: pa.DataType) -> pa.DataType:
    """A type with lists, text and bytes as `datasets` has them: with ends of 32 bits."""
    if pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_short(kind.value_type)))
    short = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    return short.get(kind) or _rebuilt(kind, _short)


def _form(column: Column, kind: pa.DataType) -> Any:
    """What the features say of an Arrow type, and of those inside of it."""
    types = pa.types
    if types.is_map(kind):
        raise column_refused(column, "datasets has no maps")
    if types.is_struct(kind):
        return {each.name: _form(column, each.type) for each in kind.fields}
    if is_any_list(kind):
        form = {"feature": _form(column, kind.value_type), "_type": "List"}
        if types.is_fixed_size_list(kind):
            return {**form, "length": kind.list_size}
        return form
    names = {pa.float16(): "float16", pa.float32(): "float32", pa.float64(): "float64"}
    plain = str(kind).replace("[day]", "")
    if types.is_fixed_size_binary(kind):
        raise column_refused(column, "datasets has no bytes of fixed size inside of others")
    if types.is_timestamp(kind) and kind.tz:
        return _value(f"timestamp[{kind.unit}, tz={kind.tz}]")
    return _value(names.get(kind, plain))


def _plain(column: Column, form: dict[str, Any], kind: pa.DataType) -> _Feature:
    return _Feature(form, _field(column, kind), lambda array: array.cast(kind))


def _field(column: Column, kind: pa.DataType, metadata: dict[str, str] | None = None) -> pa.Field:
    return pa.field(column.name, kind, column.nullable, metadata)


def _value(dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "_type": "Value"}


def _dtype(column: Column) -> str:
    dtype = column.storage.dtype
    if column.storage.layout not in (ColumnLayout.FIXED, ColumnLayout.RAGGED) or not _is_plain(
        dtype
    ):
        raise column_refused(column, f"datasets has no {dtype}")
    return dtype


def _is_plain(dtype: str) -> bool:
    try:
        return np.dtype(dtype).kind in "biuf"
    except TypeError:  # bfloat16 and its like are not numpy's own
        return False


def _element(column: Column) -> pa.DataType:
    return pa.from_numpy_dtype(np.dtype(_dtype(column)))


def _tensor(column: Column) -> _Feature:
    form: dict[str, Any]
    dtype, shape = _dtype(column), column.storage.shape
    if len(shape) > 5 or None in shape[1:] or 0 in shape or not shape:
        raise column_refused(
            column, f"datasets holds arrays of 1 to 5 dimensions, the first may vary; not {shape}"
        )
    kind = _element(column)
    inner = [dim for dim in shape[1:] if dim is not None]
    if len(shape) > 1:
        for _ in shape:
            kind = pa.list_(kind)
        array = f"Array{len(shape)}D"
        form = {"shape": list(shape), "dtype": dtype, "_type": array}
        # So `datasets` marks its own types; without the mark it does not take the file.
        metadata = {
            "ARROW:extension:name": f"datasets.features.features.{array}ExtensionType",
            "ARROW:extension:metadata": json.dumps([list(shape), dtype]),
        }
        field = _field(column, kind, metadata)
    else:
        (length,) = shape
        kind = pa.list_(kind) if length is None else pa.list_(kind, length)
        form = {"feature": _value(dtype), "_type": "List"}
        if length is not None:
            form["length"] = length
        field = _field(column, kind)
    return _Feature(form, field, lambda rows: _nested(column, rows, inner, kind))


def _nested(column: Column, array: pa.Array, inner: list[int], kind: pa.DataType) -> pa.Array:
    """Tensors as lists of lists; all rows have the inner dimensions."""
    values = from_arrow_array(column.type, array)
    if isinstance(values, FixedValues):
        rows, size = values.rows, int(np.prod(values.values.shape[1:]))
        ends = np.arange(rows + 1, dtype=np.int64) * size
        elements = np.ascontiguousarray(values.values).reshape(-1)
    elif isinstance(values, RaggedValues):
        ends, elements = values.offsets - values.offsets[0], values.elements
        elements = elements[int(values.offsets[0]) : int(values.offsets[-1])]
    else:
        raise column_refused(column, "its rows are no tensors")
    level = pa.array(np.ascontiguousarray(elements))
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(level, type=kind, mask=_mask(values.valid))
    step = int(np.prod(inner, dtype=np.int64))
    for dim in reversed(inner):
        level = pa.ListArray.from_arrays(_ends(np.arange(len(level) // dim + 1) * dim), level)
    return pa.ListArray.from_arrays(_ends(ends // step), level, mask=_mask(values.valid))


def _mask(valid: NDArray[np.bool_] | None) -> pa.Array | None:
    return None if valid is None else pa.array(~valid)


def _ends(ends: NDArray[np.int64]) -> pa.Array:
    if len(ends) and int(ends[-1]) >= 1 << 31:
        raise InvalidInputError("a batch has 2^31 values, more than lists of datasets hold")
    return pa.array(ends.astype(np.int32))


def _pictures(array: pa.Array) -> pa.Array:
    data = array.cast(pa.binary())
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(
        [data, pa.nulls(len(array), pa.string())], fields=list(_IMAGE), mask=mask
    )
