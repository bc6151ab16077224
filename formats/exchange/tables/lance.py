"""Lance datasets through pylance: reader and writer.

Any version of a dataset is read; columns that Lance stores as blobs come as bytes. Data that lies
outside the folder, as Lance's references allow, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import pyarrow as pa

from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.dataset.schema.arrow_types import (
    TYPE_KEY,
    FixedTensorType,
    RaggedTensorType,
    arrow_type,
)
from tensorrepo.formats.dataset.schema.schema import Column, Schema, type_from_json
from tensorrepo.formats.exchange.base import (
    BATCH_BYTES,
    Candidate,
    ImportOrigin,
    OpenedSource,
    file_bytes,
)
from tensorrepo.formats.exchange.child_main import ARROW_ERRORS, TableFile
from tensorrepo.formats.exchange.output import ExportTable, new_folder
from tensorrepo.formats.exchange.tables.files import (
    Adapted,
    naming_file,
    table_batches,
)
from tensorrepo.formats.exchange.tables.huggingface import adapt_feature
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, UnsupportedError

SUFFIXES = (".lance",)
_VERSIONS = "_versions"
_BLOB_KEYS = (b"lance-encoding:blob", b"ARROW:extension:name")
_BUFFER_BYTES = 64 << 20


def read_lance(
    path: Path, *, columns: tuple[str, ...] | None = None, version: int | str | None = None
) -> OpenedSource:
    """A Lance dataset as it is now, or as it was.

    Args:
        path: its folder.
        columns: only these.
        version: a version's number, or a tag; None: the latest.

    Raises:
        UnsupportedError: pylance is not installed, or a column that no column type holds.
        NotFoundError: no such version or column.
        InvalidInputError: no Lance dataset, a damaged one, or one that refers to other places.
    """
    if not (path / _VERSIONS).is_dir():
        raise damage(path, f"is no Lance dataset: it has no folder {_VERSIONS}")
    with _failures(path):
        return _read(path, _opened(path, version), columns)


def _read(path: Path, opened: Any, columns: tuple[str, ...] | None) -> OpenedSource:
    stored = sum(file_bytes(file) for file in path.rglob("*") if file.is_file())
    _refuse_references(path, opened)
    names = opened.schema.names
    chosen = tuple(names) if columns is None else columns
    for name in chosen:
        if name not in names:
            raise NotFoundError(f"{path} has no column {name!r}; there are {', '.join(names)}")
    schema = _scanner(opened, chosen).projected_schema
    with naming_file(path):
        adapted = [_adapt(field) for field in schema]
    table = TableFile(schema, None, lambda: _scan(path, opened, chosen))
    return OpenedSource(
        schema=Schema(tuple(item.column for item in adapted)),
        rows=int(opened.count_rows()),
        bytes=stored,
        batches=table_batches({path: table}, adapted),
        origin=ImportOrigin(str(path), "lance", 1, stored),
        notes=(f"version {opened.version}",),
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
            raise InvalidInputError(f"Lance cannot hold these rows: {_first(problem)}") from problem


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
        column = Column(field.name, type_from_json(json.loads(form)), field.nullable)
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


def _opened(path: Path, version: int | str | None) -> Any:
    lance = _library()
    wanted = int(version) if isinstance(version, str) and version.isdigit() else version
    try:
        return lance.dataset(str(path), version=wanted)
    except ValueError as problem:
        if version is not None and "not found" in str(problem).lower():
            raise NotFoundError(f"{path} has no version {version!r}") from problem
        raise


def _refuse_references(path: Path, opened: Any) -> None:
    """Refuse data that a reader would fetch from elsewhere.

    A blob may be a place in any file that this process may read.
    """
    for fragment in opened.get_fragments():
        for file in fragment.data_files():
            name = Path(file.path)
            if (
                getattr(file, "base_id", None) is not None
                or name.is_absolute()
                or ".." in name.parts
            ):
                raise damage(path, f"refers to data outside of it: {file.path}")
    blobs = [
        field.name
        for field in opened.schema
        if any(key in (field.metadata or {}) for key in _BLOB_KEYS)
        or pa.types.is_struct(getattr(field.type, "storage_type", field.type))
    ]
    if not blobs:
        return
    for batch in opened.to_batches(columns=blobs, blob_handling="all_descriptions"):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if _refers(column):
                raise damage(path, f"column {name!r} refers to data outside of the dataset")


def _refers(column: pa.Array) -> bool:
    held = column.storage if isinstance(column, pa.ExtensionArray) else column
    if not pa.types.is_struct(held.type) or held.type.get_field_index("blob_uri") < 0:
        return False
    return any(uri for uri in held.field("blob_uri").to_pylist())


def _scanner(opened: Any, columns: tuple[str, ...]) -> Any:
    return opened.scanner(
        columns=list(columns),
        batch_size_bytes=BATCH_BYTES,
        io_buffer_size=_BUFFER_BYTES,
        batch_readahead=2,
        scan_in_order=True,
        blob_handling="all_binary",
    )


def _scan(path: Path, opened: Any, columns: tuple[str, ...]) -> Iterator[pa.RecordBatch]:
    batches = iter(_scanner(opened, columns).to_batches())
    while True:
        with _failures(path):
            batch = next(batches, None)
        if batch is None:
            return
        yield batch


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    """Lance's errors in our words. A panic of its core is no `Exception` in Python."""
    try:
        with refusals(path, "Lance dataset", RuntimeError, NotImplementedError, *ARROW_ERRORS):
            yield
    except BaseException as problem:
        if type(problem).__name__ != "PanicException":
            raise
        raise damage(path, f"not a readable Lance dataset: {_first(problem)}") from problem


def _remembering(
    batches: Iterator[pa.RecordBatch], failed: list[Exception]
) -> Iterator[pa.RecordBatch]:
    try:
        yield from batches
    except Exception as problem:
        failed.append(problem)
        raise


def _first(problem: BaseException) -> str:
    lines = str(problem).splitlines()
    return lines[0][:300] if lines else type(problem).__name__
