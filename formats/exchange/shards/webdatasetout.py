"""Write a dataset as WebDataset: one tar archive, or a folder of shards of bounded bytes.

Images stay the encoded bytes that they are. Whole numbers and class labels are written as text
(`.cls`), other numbers and tensors as `.npy`. The names of classes go into a member that
WebDataset's own readers skip. The same rows make the same bytes.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.columns.arrow import from_arrow_array
from tensorrepo.formats.dataset.columns.schema import (
    Bytes,
    ClassLabel,
    Column,
    Embedding,
    Image,
    Json,
    Scalar,
    Tensor,
    Text,
)
from tensorrepo.formats.dataset.columns.values import BinaryValues, FixedValues, RaggedValues
from tensorrepo.formats.exchange.base import BATCH_BYTES
from tensorrepo.formats.exchange.imagery.imagebytes import HEAD_BYTES, codec_of
from tensorrepo.formats.exchange.output import (
    Table,
    column_refused,
    compressed,
    new_file,
    new_folder,
)
from tensorrepo.formats.exchange.shards.webdatasetparts import (
    CLASSES_MEMBER,
    KEY,
    Kind,
    column_names,
    kind_of,
    split_name,
)
from tensorrepo.repo.errors import InvalidInputError

if TYPE_CHECKING:
    import pyarrow as pa


SHARD_BYTES = 1 << 30
_END = bytes(2 * tarfile.BLOCKSIZE)
_IMAGE_SUFFIXES = {"jpeg": "jpg", "tiff": "tif"}


@dataclass(frozen=True, slots=True)
class _Writer:
    """How one column is written: the suffix of its parts, and the bytes of a value."""

    column: Column
    part: str
    encode: Callable[[Any], bytes]

    def part_of(self, data: bytes) -> str:
        """The part's name; where a column mixes image formats, each says its own."""
        if self.part:
            return self.part
        codec = codec_of(data[:HEAD_BYTES]) or "bin"
        return f"{self.column.name}.{_IMAGE_SUFFIXES.get(codec, codec)}"


def write_webdataset(
    table: Table,
    path: Path,
    *,
    overwrite: bool = False,
    shard_bytes: int = SHARD_BYTES,
    compress: bool | None = None,
) -> None:
    """One archive when `path` ends in ``.tar``, ``.tar.gz`` or ``.tgz``, else a folder of shards.

    Args:
        table: a column `__key__` names the samples; without one their numbers do.
        path: file or folder to make.
        overwrite: replace what is there.
        shard_bytes: where a folder's next shard begins; a sample is never cut.
        compress: gzip; by default when `path` ends like that.

    Raises:
        InvalidInputError: a column that has no place in a sample, a key that cannot name one, or a
            sample with nothing but nulls.
    """
    writers = [_writer(column) for column in table.schema.columns if column.name != KEY]
    _check_keys(table)
    gzipped = path.name.endswith(("gz",)) if compress is None else compress
    samples = _samples(table, writers)
    if path.name.lower().endswith((".tar", ".tar.gz", ".tgz")):
        with new_file(path, overwrite=overwrite) as temporary:
            _write_shard(temporary, table, samples, gzipped=gzipped)
        return
    suffix = ".tar.gz" if gzipped else ".tar"
    with new_folder(path, overwrite=overwrite) as folder:
        for number, shard in enumerate(_shards(samples, shard_bytes)):
            target = folder / f"{path.name}-{number:06}{suffix}"
            _write_shard(target, table, shard, gzipped=gzipped)


def _writer(column: Column) -> _Writer:
    suffix, encode = _encoder(column)
    if not suffix:
        return _Writer(column, "", encode)
    part = column.name
    if kind_of(part) is not kind_of(suffix) or kind_of(suffix) is Kind.BYTES:
        part = f"{column.name}.{suffix}"
    read_back = split_name(f"0.{part}")
    if read_back != ("0", part) or column_names([part]) != {part: column.name}:
        raise column_refused(column, f"a part called {part!r} reads as another column. Rename it")
    return _Writer(column, part, encode)


def _encoder(column: Column) -> tuple[str, Callable[[Any], bytes]]:
    """The suffix that says what the bytes of a column are, and how a value becomes them."""
    match column.type:
        case Image(codec=None):
            return "", bytes
        case Image(codec=str(codec)):
            return _IMAGE_SUFFIXES.get(codec, codec), bytes
        case Text():
            return "txt", bytes
        case Json():
            return "json", bytes
        case Bytes():
            return "bin", bytes
        case ClassLabel() | Scalar(dtype="int64"):
            return "cls", lambda value: str(int(value)).encode()
        case Scalar(dtype=dtype) | Tensor(dtype=dtype) | Embedding(dtype=dtype):
            if column.storage.element.kind == "V" or np.dtype(column.storage.element).name != dtype:
                raise column_refused(column, f"an npy file holds no {dtype}")
            return "npy", _npy
    raise column_refused(column, "a sample has no form for it")


def _npy(value: Any) -> bytes:
    file = BytesIO()
    np.lib.format.write_array(file, np.asarray(value), allow_pickle=False)
    return file.getvalue()


def _check_keys(table: Table) -> None:
    if KEY in table.schema and not isinstance(table.schema.column(KEY).type, Text):
        raise column_refused(table.schema.column(KEY), "the names of samples are text")
    if table.schema.names == (KEY,):
        raise column_refused(table.schema.column(KEY), "samples need a part besides their name")


# ------------------------------------------------------------------------------ samples


_Sample = tuple[str, list[tuple[str, bytes]]]


def _samples(table: Table, writers: list[_Writer]) -> Iterator[_Sample]:
    """(key, parts) of each row."""
    row, last = 0, ""
    for batch in table.to_batches(max_bytes=BATCH_BYTES):
        keys = batch.column(KEY).to_pylist() if KEY in table.schema else None
        values = {writer.column.name: _values(batch, writer.column) for writer in writers}
        for at in range(batch.num_rows):
            key = f"{row:09}" if keys is None else keys[at]
            parts = [
                (writer.part_of(data), data)
                for writer in writers
                if (value := values[writer.column.name](at)) is not None
                for data in [writer.encode(value)]
            ]
            _check_sample(row, key, last, parts)
            yield key, parts
            row, last = row + 1, key


def _check_sample(row: int, key: str | None, last: str, parts: list[tuple[str, bytes]]) -> None:
    shown = "null" if key is None else repr(key)
    if key is None or split_name(f"{key}.x") != (key, "x") or key.startswith("/"):
        raise InvalidInputError(
            f"row {row}, column {KEY!r}: {shown} cannot name a sample: it needs text without a dot "
            "in its last part. Leave the column out, and rows are named by their numbers"
        )
    if key == last:
        raise InvalidInputError(
            f"row {row}, column {KEY!r}: {key!r} names the row before too, so they would read as "
            "one sample. Leave the column out, and rows are named by their numbers"
        )
    if not parts:
        raise InvalidInputError(
            f"row {row}: every column is null, so that the sample would have no parts. "
            "Leave the row out, or export to parquet"
        )


def _values(batch: pa.RecordBatch, column: Column) -> Callable[[int], Any]:
    """The value of a column by row, None where it is null."""
    values = from_arrow_array(column.type, batch.column(column.name))
    valid = None if values is None else values.valid

    def value(at: int) -> Any:
        if valid is not None and not valid[at]:
            return None
        if isinstance(values, BinaryValues):
            return values.data[values.offsets[at] : values.offsets[at + 1]].tobytes()
        if isinstance(values, RaggedValues):
            return values.row(at)
        assert isinstance(values, FixedValues), column
        return values.values[at]

    return value


def _shards(samples: Iterator[_Sample], shard_bytes: int) -> Iterator[Iterator[_Sample]]:
    """Samples in runs of about `shard_bytes`, at least one run; each is walked before the next."""

    def run(sample: _Sample | None) -> Iterator[_Sample]:
        held = 0
        while sample is not None:
            yield sample
            held += sum(len(data) + 2 * tarfile.BLOCKSIZE for _, data in sample[1])
            sample = next(samples, None) if held < shard_bytes else None

    first = next(samples, None)
    yield run(first)
    while (first := next(samples, None)) is not None:
        yield run(first)


# ------------------------------------------------------------------------------ archives


def _write_shard(path: Path, table: Table, samples: Iterator[_Sample], *, gzipped: bool) -> None:
    classes = {
        column.name: list(column.type.names)
        for column in table.schema.columns
        if isinstance(column.type, ClassLabel)
    }
    with path.open("xb") as raw, _closing(raw, gzipped=gzipped) as file:
        if classes:
            _write_member(file, CLASSES_MEMBER, json.dumps(classes, ensure_ascii=False).encode())
        for key, parts in samples:
            for part, data in parts:
                _write_member(file, f"{key}.{part}", data)
        file.write(_END)


@contextmanager
def _closing(raw: IO[bytes], *, gzipped: bool) -> Iterator[IO[bytes]]:
    with ExitStack() as stack:
        yield stack.enter_context(compressed(raw, gzipped=True)) if gzipped else raw


def _write_member(file: IO[bytes], name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)  # no time, no owner: the same rows make the same file
    file.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))
    file.write(data)
    file.write(bytes(-len(data) % tarfile.BLOCKSIZE))
