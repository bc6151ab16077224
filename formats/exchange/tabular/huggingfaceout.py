"""Write a dataset as `save_to_disk` of Hugging Face's `datasets` does, without that library.

Arrow streams of about half a gigabyte, whose metadata and `dataset_info.json` say the features.
Images stay encoded; JSON and moments go as text and as Arrow's timestamps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from tensorrepo.formats.dataset.columns.arrow import from_arrow_array
from tensorrepo.formats.dataset.columns.schema import (
    Bytes,
    ClassLabel,
    Column,
    Image,
    Json,
    Layout,
    Scalar,
    Text,
    Timestamp,
)
from tensorrepo.formats.dataset.columns.values import FixedValues, RaggedValues
from tensorrepo.formats.exchange.base import BATCH_BYTES
from tensorrepo.formats.exchange.output import Table, column_refused, new_folder
from tensorrepo.formats.exchange.tabular.huggingface import INFO, STATE
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHARD_BYTES = 500_000_000
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@dataclass(frozen=True, slots=True)
class _Feature:
    """How a column is written: what the features say, Arrow's field, and its arrays."""

    form: dict[str, Any]
    field: pa.Field
    convert: Callable[[pa.Array], pa.Array]


def write_huggingface(table: Table, path: Path, *, overwrite: bool = False) -> None:
    """A folder that `datasets.load_from_disk` opens.

    Raises:
        InvalidInputError: complex numbers, floats of 8 or 16 bits that Arrow lacks, or tensors of
            more than 5 dimensions or with several unknown ones.
    """
    features = [_feature(column) for column in table.schema.columns]
    forms = {column.name: f.form for column, f in zip(table.schema.columns, features, strict=True)}
    metadata = {"huggingface": json.dumps({"info": {"features": forms}})}
    schema = pa.schema([feature.field for feature in features], metadata=metadata)
    with new_folder(path, overwrite=overwrite) as folder:
        names, told = [], xxhash.xxh3_64(json.dumps(forms).encode())
        for number, shard in enumerate(_shards(table, features, schema)):
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


def _shards(
    table: Table, features: list[_Feature], schema: pa.Schema
) -> Iterator[Iterator[pa.RecordBatch]]:
    """Batches in groups of about `SHARD_BYTES`.

    A group must be walked before the next one is asked for.
    """
    batches = (
        _converted(batch, features, schema) for batch in table.to_batches(max_bytes=BATCH_BYTES)
    )
    # `datasets` does not open a stream without any batch.
    following = list(islice(batches, 1)) or [_without_rows(schema)]

    def group() -> Iterator[pa.RecordBatch]:
        held = 0
        while following and held < SHARD_BYTES:
            batch = following.pop()
            held += batch.nbytes
            yield batch
            following.extend(islice(batches, 1))

    yield group()
    while following:
        yield group()


def _without_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def _converted(
    batch: pa.RecordBatch, features: list[_Feature], schema: pa.Schema
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
    return _tensor(column)


def _plain(column: Column, form: dict[str, Any], kind: pa.DataType) -> _Feature:
    return _Feature(form, _field(column, kind), lambda array: array.cast(kind))


def _field(column: Column, kind: pa.DataType, metadata: dict[str, str] | None = None) -> pa.Field:
    return pa.field(column.name, kind, column.nullable, metadata)


def _value(dtype: str) -> dict[str, Any]:
    return {"dtype": dtype, "_type": "Value"}


def _dtype(column: Column) -> str:
    dtype = column.storage.dtype
    if column.storage.layout not in (Layout.FIXED, Layout.RAGGED) or not _is_plain(dtype):
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
