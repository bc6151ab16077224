"""Lance datasets through pylance: reader and writer.

Any version of a dataset is read; columns that Lance stores as blobs come as bytes. Data that lies
outside the folder, as Lance's references allow, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import pyarrow as pa

from tensorrepo.formats.common.damage import damage, sentence
from tensorrepo.formats.dataset.schema.arrow_types import (
    TYPE_KEY,
    FixedTensorType,
    RaggedTensorType,
    arrow_type,
)
from tensorrepo.formats.dataset.schema.schema import Column, Schema, formed, type_from_json
from tensorrepo.formats.exchange.base import (
    BATCH_BYTES,
    Candidate,
    ImportOrigin,
    OpenedSource,
    file_bytes,
)
from tensorrepo.formats.exchange.child import open_files
from tensorrepo.formats.exchange.child_main import LANCE_VERSION_KEY
from tensorrepo.formats.exchange.column_choice import ColumnChoice, each_column
from tensorrepo.formats.exchange.output import ExportTable, new_folder
from tensorrepo.formats.exchange.tables.files import Adapted, naming_file, table_batches
from tensorrepo.formats.exchange.tables.huggingface_features import adapt_feature
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError

SUFFIXES = (".lance",)
_VERSIONS = "_versions"


def read_lance(
    path: Path,
    *,
    columns: tuple[str, ...] | None = None,
    exclude: tuple[str, ...] = (),
    version: int | str | None = None,
) -> OpenedSource:
    """A Lance dataset as it is now, or as it was.

    Args:
        path: its folder.
        columns: only these.
        exclude: all but these.
        version: a version's number, or a tag; None: the latest.

    Raises:
        UnsupportedError: pylance is not installed, or a column that no column type holds.
        NotFoundError: no such version or column.
        InvalidInputError: no Lance dataset, a damaged one, or one that refers to other places.
    """
    if not (path / _VERSIONS).is_dir():
        raise damage(path, f"is no Lance dataset: it has no folder {_VERSIONS}")
    table = open_files("lance", [path], columns=columns, version=version)[path]
    with naming_file(path):
        chosen = ColumnChoice(exclude=exclude).of(table.schema.names)
        adapted = each_column(chosen, lambda name: _adapt(table.schema.field(name)))
    shown = (table.schema.metadata or {}).get(LANCE_VERSION_KEY, b"").decode()
    return OpenedSource(
        schema=Schema(tuple(item.column for item in adapted)),
        rows=table.rows,
        batches=table_batches({path: table}, adapted),
        origin=ImportOrigin(
            str(path),
            "lance",
            1,
            sum(file_bytes(file) for file in path.rglob("*") if file.is_file()),
        ),
        notes=(f"version {shown}",),
    )


def write_lance(table: ExportTable, path: Path, *, overwrite: bool = False) -> None:
    """A new Lance dataset with one version.

    Raises:
        UnsupportedError: pylance is not installed.
        InvalidInputError: rows that Lance does not take.
    """
    lance = _library()
    schema = pa.schema([_plain(field) for field in table.schema.without_ids().to_arrow()])
    batches = (
        pa.RecordBatch.from_arrays(
            [
                array.storage if array.type.id != field.type.id else array
                for array, field in zip(batch.columns, schema, strict=True)
            ],
            schema=schema,
        )
        for batch in table.to_batches(max_bytes=BATCH_BYTES)
    )
    failed: list[Exception] = []
    reader = pa.RecordBatchReader.from_batches(schema, _remembering(batches, failed))
    with new_folder(path, overwrite=overwrite) as folder:
        try:
            lance.write_dataset(reader, str(folder), schema=schema, mode="create")
        except (OSError, ValueError, pa.ArrowException, RuntimeError) as problem:
            if failed:  # what our own rows raised comes back as one of Lance's errors
                raise failed[0] from None
            raise InvalidInputError(
                f"Lance cannot hold these rows: {sentence(problem):.300}"
            ) from problem


def matches_lance(candidate: Candidate) -> bool:
    """A folder with versions of a Lance dataset."""
    versions = candidate.path / _VERSIONS
    return (
        candidate.is_folder
        and versions.is_dir()
        and any(name.suffix == ".manifest" for name in versions.iterdir())
    )


def _plain(field: pa.Field) -> pa.Field:
    """A field without our own extension types, which Lance does not keep exactly.

    The metadata still say which column type it is.
    """
    own = getattr(field.type, "extension_name", "").startswith("tensorrepo.")
    return field.with_type(field.type.storage_type) if own else field


def _adapt(field: pa.Field) -> Adapted:
    """How a field becomes a column; one that `write_lance` wrote becomes what it was."""
    form = (field.metadata or {}).get(TYPE_KEY)
    if form is None:
        return adapt_feature(field, None, follow=False)
    try:
        kind = type_from_json(json.loads(form))
        column = formed(Column(field.name, kind, field.nullable), field.type)
    except ValueError as problem:
        raise InvalidInputError(f"column {field.name!r}: {problem}") from problem
    wanted = arrow_type(column.type)
    if isinstance(wanted, RaggedTensorType):
        return Adapted(column, _ragged)
    if isinstance(wanted, FixedTensorType):
        return Adapted(column, lambda array: pa.ExtensionArray.from_storage(wanted, array))
    return Adapted(column, lambda array: array)


def _ragged(array: pa.Array) -> list[Any]:
    """Rows of elements and shape as arrays."""
    found: list[Any] = []
    for row in range(len(array)):
        item = array[row]
        if not item.is_valid:
            found.append(None)
            continue
        elements = item["data"].values.to_numpy(zero_copy_only=False)
        shape = item["shape"].as_py()
        if prod(shape) != len(elements):
            raise pa.ArrowInvalid(f"a row of shape {shape} has {len(elements)} elements")
        found.append(elements.reshape(shape))
    return found


def _library() -> Any:
    try:
        import lance
    except ImportError as problem:
        raise UnsupportedError(
            "Lance datasets need pylance, which is not installed: `pip install tensorrepo[lance]`"
        ) from problem
    return lance


def _remembering(
    batches: Iterator[pa.RecordBatch], failed: list[Exception]
) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except Exception as problem:
        failed.append(problem)
        raise
