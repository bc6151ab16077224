"""TFRecord files of `tf.train.Example`: checksummed records, inferred columns, reader and writer.

A file is records one after another, plain or as one gzip or zlib stream. Both the length of a
record and its bytes have a checksum, which is checked before either is believed.

Layout of a record: length u64 | masked CRC-32C of the length u32 | bytes | masked CRC-32C of
them.

An example is a map from names to lists of bytes, of float32 or of int64, and nothing says which
lists are tensors or what bytes mean. The first examples tell: always one value is a scalar, always
as many a tensor, sometimes more a ragged one; bytes that all begin like images are images, bytes
that are all text are text. A later example that disagrees is an error; options say it outright.

The first examples tell the columns; after that files are read once, front to
back, every checksum checked.

Whole numbers, bools, class labels and moments become lists of int64, other numbers lists of
float32, everything else a list of one value of bytes. Lists are flat, as TensorFlow keeps them: the
shape of a tensor is said when the file is parsed. A null is a feature that the example lacks.

Source:
    TensorFlow's tutorial "TFRecord and tf.train.Example", "TFRecords format details".
    tensorflow/core/example/example.proto and feature.proto.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from math import prod
from pathlib import Path
from struct import Struct
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.common.protobuf import write_field, write_varints
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    Column,
    ColumnLayout,
    ColumnType,
    Decimal,
    Image,
    Json,
    Null,
    Scalar,
    Schema,
    Tensor,
    Text,
)
from tensorrepo.formats.dataset.schema.types import Nested
from tensorrepo.formats.exchange.base import (
    BATCH_BYTES,
    Candidate,
    OpenedSource,
    first_of,
    origin_of,
    source_files,
)
from tensorrepo.formats.exchange.column_choice import each_column
from tensorrepo.formats.exchange.output import ExportTable, column_refused, compressed, new_file
from tensorrepo.formats.exchange.records.samples import (
    SAMPLES,
    SampleRecord,
    batches_of,
    check_bytes,
    check_text,
    choose,
    ends_early,
    image_type,
    is_text,
    parse_message,
    read_exactly,
    row_values,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError, UnsupportedError

NAME = re.compile(r".*\.tfrecords?(-\d+-of-\d+)?(\.gz|\.zlib|\.z)?")
_HEAD = Struct("<QI")
_CRC = Struct("<I")
_BLOCK_BYTES = 1 << 20
Checksum = Callable[[bytes], int]


def masked_crc() -> Checksum:
    """The checksum function: CRC-32C, rotated and moved so that it may be stored beside its data.

    Raises:
        UnsupportedError: its library is not installed. In Python a table does 12 MB/s.
    """
    try:
        import google_crc32c  # an optional library
    except ImportError as problem:
        raise UnsupportedError(
            "TFRecord files have CRC-32C checksums, which need google-crc32c: "
            "pip install 'tensorrepo[tfrecord]'"
        ) from problem

    def masked(data: bytes) -> int:
        crc: int = google_crc32c.value(data)
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    return masked


def begins_with_record(head: bytes) -> bool:
    """Whether these are the first bytes of a plain file: a length and its checksum agree."""
    if len(head) < _HEAD.size:
        return False
    crc: int = _HEAD.unpack_from(head)[1]
    try:
        return masked_crc()(head[:8]) == crc
    except UnsupportedError:
        return False


def walk_records(file: Path) -> Iterator[tuple[int, bytes]]:
    """(number from 0, bytes) of each record of a file.

    Raises:
        InvalidInputError: cut short, or a checksum that disagrees; names the record.
        UnsupportedError: the checksum's library is not installed.
    """
    crc = masked_crc()
    number = 0
    with refusals(file, "TFRecord file"), _opened(file) as stream:
        while head := stream.read(_HEAD.size):
            where = f"{file}, record {number}"
            yield number, _read_record(stream, head, where, crc)
            number += 1


def write_record(stream: IO[bytes], data: bytes, crc: Checksum) -> None:
    length = len(data).to_bytes(8, "little")
    stream.write(length + _CRC.pack(crc(length)) + data + _CRC.pack(crc(data)))


def _read_record(stream: IO[bytes], head: bytes, where: str, crc: Checksum) -> bytes:
    if len(head) < _HEAD.size:
        raise ends_early(where, _HEAD.size - len(head))
    length, expected = _HEAD.unpack(head)
    if crc(head[:8]) != expected:
        raise damage(where, "is damaged, or no TFRecord at all: its length fails its checksum")
    data = read_exactly(stream, length + _CRC.size, where)
    content = data[: -_CRC.size]
    if crc(content) != _CRC.unpack(data[-_CRC.size :])[0]:
        raise damage(where, f"is damaged: its {length} bytes fail their checksum")
    return content


@contextmanager
def _opened(file: Path) -> Iterator[IO[bytes]]:
    """The records of a file, decompressed when they are a gzip or zlib stream."""
    with file.open("rb") as raw:
        head = raw.read(_HEAD.size)
        raw.seek(0)
        is_zlib = len(head) > 1 and head[0] & 15 == 8 and int.from_bytes(head[:2], "big") % 31 == 0
        if head[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=raw) as inner:
                yield inner  # type: ignore[misc]  # a binary stream in all but name
        elif is_zlib and not begins_with_record(head):
            yield _Inflated(raw)  # type: ignore[misc]  # the one method that is used
        else:
            yield raw


class _Inflated:
    """The content of a zlib stream, decompressed as far as it is asked for."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self._inflate = zlib.decompressobj()
        self._ready = bytearray()

    def read(self, size: int) -> bytes:
        while len(self._ready) < size and not self._inflate.eof:
            block = self._inflate.unconsumed_tail or self._raw.read(_BLOCK_BYTES)
            if not block:
                raise EOFError("the zlib stream ends before its end mark")
            self._ready += self._inflate.decompress(block, _BLOCK_BYTES)
        if self._inflate.eof and (self._inflate.unused_data or self._raw.read(1)):
            raise zlib.error("bytes follow the end of the zlib stream")
        data = bytes(self._ready[:size])
        del self._ready[:size]
        return data


BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3
WORDS = ("bytes", "text", "image", "json", "scalar", "ragged")
MAX_BYTES_VALUES = 1 << 20  # two bytes may stand for one that takes forty in memory
_DTYPES = {FLOAT_LIST: "float32", INT64_LIST: "int64"}
_KIND_NAMES = {BYTES_LIST: "bytes", FLOAT_LIST: "float", INT64_LIST: "int64"}


@dataclass(frozen=True, slots=True)
class ExampleFeature:
    """One list: `kind` is the field of `tf.train.Feature`, 0 where none is set."""

    kind: int
    values: NDArray[Any] | list[bytes]

    def __len__(self) -> int:
        return len(self.values)


_NONE = ExampleFeature(0, [])
Example = dict[str, ExampleFeature]


@dataclass(frozen=True, slots=True)
class FeatureColumn:
    """The column that a feature becomes, and the kind of list that it must be."""

    column: Column
    kind: int


# ------------------------------------------------------------------------------ one example


def parse_example(record: bytes, where: str) -> Example:
    """The features of a serialised `tf.train.Example`. Raises InvalidInputError."""
    example: Example = {}
    message = parse_message("Example", record, where, "tf.train.Example (a SequenceExample?)")
    for entry in message.features.feature:
        name = check_text(entry.key, f"{where}, name of a feature")
        example[name] = _feature(entry.value, f"{where}, feature {name!r}")
    return example


def _feature(message: Any, where: str) -> ExampleFeature:
    match message.WhichOneof("kind"):
        case "bytes_list":
            values = message.bytes_list.value
            if len(values) > MAX_BYTES_VALUES:
                raise damage(where, f"has more than {MAX_BYTES_VALUES} values of bytes")
            return ExampleFeature(BYTES_LIST, list(values))
        case "float_list":
            return ExampleFeature(FLOAT_LIST, np.array(message.float_list.value, "<f4"))
        case "int64_list":
            return ExampleFeature(INT64_LIST, np.array(message.int64_list.value, "<i8"))
        case _:
            return _NONE


# ------------------------------------------------------------------------------ columns


def infer_columns(
    examples: Sequence[Example],
    words: Mapping[str, str],
    shapes: Mapping[str, tuple[int, ...]],
    where: str,
) -> dict[str, FeatureColumn]:
    """The column of each feature of the first examples.

    Args:
        examples: at least one.
        words: what features are, of `WORDS`, where that shall not be inferred.
        shapes: dimensions of tensors, whose lists are flat.
        where: names the source in messages.

    Raises:
        InvalidInputError: a feature that no column holds, an unknown word or feature.
    """
    names = dict.fromkeys(name for example in examples for name in example)
    for name in (*words, *shapes):
        if name not in names:
            there = ", ".join(map(repr, names))
            raise damage(where, f"has no feature {name!r}; there are {there}")

    def infer(name: str) -> FeatureColumn:
        features = [example.get(name, _NONE) for example in examples]
        spot = f"{where}, feature {name!r}"
        return _infer(name, features, words.get(name), shapes.get(name), spot)

    return dict(zip(names, each_column(names, infer, can_cast=False), strict=True))


def _infer(
    name: str,
    features: Sequence[ExampleFeature],
    word: str | None,
    shape: tuple[int, ...] | None,
    where: str,
) -> FeatureColumn:
    kinds = {feature.kind for feature in features if feature.kind}
    if len(kinds) > 1:
        listed = " and ".join(sorted(_KIND_NAMES[kind] for kind in kinds))
        raise damage(where, f"is a list of {listed} in one file")
    if not kinds:
        raise damage(where, "is empty in the first examples. Look at more: samples=N")
    (kind,) = kinds
    lengths = {len(feature) for feature in features if feature.kind}
    if kind == BYTES_LIST:
        values = [value for feature in features for value in feature.values]
        found = _bytes_type(values, max(lengths), word, where)
    else:
        found = _number_type(_DTYPES[kind], lengths, word, shape, where)
    missing = any(not feature.kind for feature in features)
    empty = 0 in lengths and not isinstance(found, Json | Tensor)
    return FeatureColumn(Column(name, found, nullable=missing or empty), kind)


def _number_type(
    dtype: str, lengths: set[int], word: str | None, shape: tuple[int, ...] | None, where: str
) -> ColumnType:
    if word not in (None, "scalar", "ragged"):
        raise damage(where, f"holds numbers; it can be scalar or ragged, not {word!r}")
    if shape is not None:
        return Tensor(dtype, shape)
    if word == "scalar" or (word is None and lengths == {1}):
        return Scalar(dtype)
    constant = len(lengths) == 1 and 0 not in lengths and word is None
    return Tensor(dtype, tuple(lengths) if constant else (None,))


def _bytes_type(values: list[Any], most: int, word: str | None, where: str) -> ColumnType:
    """`most` is the largest number of values that one example has."""
    if word == "json" or (word is None and most > 1):
        if not all(map(is_text, values)):
            raise damage(
                where,
                "holds several values of bytes in one example; only lists of text are read, as "
                "JSON",
            )
        return Json()
    if word in ("scalar", "ragged") or most > 1:
        raise damage(where, f"holds bytes, up to {most} values an example; it cannot be {word!r}")
    image = image_type(values)
    if word in (None, "image") and image is not None:
        return image
    known: dict[str, ColumnType] = {"bytes": Bytes(), "text": Text(), "image": Image()}
    if word is not None:
        return known[word]
    return Text() if values and all(map(is_text, values)) else Bytes()


def value_of(part: FeatureColumn, feature: ExampleFeature | None, where: str) -> Any:
    """What a feature says in its column; None where the example lacks it.

    Raises:
        InvalidInputError: another kind of list, or another length, than the column's.
    """
    column = part.column
    if feature is None or not feature.kind:
        return _missing(column, where)
    if feature.kind != part.kind:
        found, expected = _KIND_NAMES[feature.kind], _KIND_NAMES[part.kind]
        raise damage(where, f"is a list of {found}; the first examples have one of {expected}")
    if not len(feature) and not isinstance(column.type, Json | Tensor):
        return _missing(column, where)
    if part.kind == BYTES_LIST:
        return _bytes_value(column, feature, where)
    values = np.asarray(feature.values)
    wanted = column.type.shape if isinstance(column.type, Tensor) else ()
    if None in wanted:
        return values
    if len(values) != prod(dim for dim in wanted if dim is not None):
        raise _other_length(column.name, len(values), f"shape {wanted}", where, "ragged")
    return values.reshape(wanted)


def _bytes_value(column: Column, feature: ExampleFeature, where: str) -> Any:
    if isinstance(column.type, Json):
        return [check_text(value, where) for value in feature.values]
    if len(feature) != 1:
        raise _other_length(column.name, len(feature), "one", where, "json")
    (value,) = feature.values
    try:
        return check_bytes(column.type, value, where)
    except InvalidInputError as problem:
        raise InvalidInputError(f"{problem}. Or keep it as it is: types={column.name}:bytes") from (
            problem
        )


def _missing(column: Column, where: str) -> None:
    if not column.nullable:
        raise damage(where, "is missing; the first examples have it. Look at more: samples=N")


def _other_length(name: str, found: int, expected: str, where: str, word: str) -> InvalidInputError:
    return damage(
        where,
        f"has {found} values; the first examples have {expected}. Look at more of them, samples=N, "
        f"or say types={name}:{word}",
    )


SUFFIXES = (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz", ".tfrecord.zlib")
_SAMPLE_BYTES = 64 << 20  # of examples that are held to infer types from


def read_tfrecord(
    path: Path,
    *,
    columns: tuple[str, ...] | None = None,
    exclude: tuple[str, ...] = (),
    samples: int = SAMPLES,
    types: Mapping[str, str] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> OpenedSource:
    """One file, or all those of a folder in the order of their names.

    Args:
        path: file or folder; gzip and zlib are told by content.
        columns: only these features.
        exclude: all features but these.
        samples: from how many examples types are inferred.
        types: what features are, one of bytes, text, image, json, scalar, ragged.
        shapes: dimensions of features that are tensors of more than one dimension.

    Raises:
        InvalidInputError: damaged files, records that are no examples, or features that change.
        UnsupportedError: the library for checksums is not installed.
    """
    files = source_files(path, _is_called_so, "TFRecord files: *.tfrecord, *.tfrecord-00000-of-9")
    first = _first_examples(files, samples)
    if not any(first):
        raise damage(path, "holds no examples with features")
    every = list(dict.fromkeys(name for each in first for name in each))
    names = choose(path, every, columns, exclude=exclude)
    first = [{name: each[name] for name in names if name in each} for each in first]
    found = infer_columns(first, types or {}, shapes or {}, str(path))
    chosen = {name: found[name] for name in names}
    known = None if columns is not None else {*chosen, *exclude}
    records = (record for file in files for record in _rows(file, chosen, known))
    return OpenedSource(
        schema=Schema(tuple(part.column for part in chosen.values())),
        rows=None,
        batches=batches_of(records, list(chosen)),
        origin=origin_of(path, "tfrecord", files),
    )


def matches_tfrecord(candidate: Candidate) -> bool:
    """A file that begins with a record, or a folder of files called so."""
    if candidate.is_folder:
        return any(
            _is_called_so(name.name.lower()) and not name.name.startswith(".")
            for name in candidate.names
        )
    return begins_with_record(candidate.head)


def parse_types(value: object) -> dict[str, str]:
    """What features are: a mapping, or text such as ``caption:text,thumb:bytes``."""
    types = {str(name): str(word) for name, word in _pairs(value).items()}
    for name, word in types.items():
        if word not in WORDS:
            raise InvalidInputError(f"{name!r} cannot be {word!r}, only {', '.join(WORDS)}")
    return types


def parse_shapes(value: object) -> dict[str, tuple[int, ...]]:
    """Shapes of features: a mapping to sizes, or text such as ``image:28x28x1``."""
    shapes = {}
    for name, shape in _pairs(value).items():
        sizes = list(shape) if isinstance(shape, list | tuple) else str(shape).split("x")
        if not all(str(size).isdigit() and len(str(size)) < 10 for size in sizes):
            raise InvalidInputError(f"{name!r} needs a shape such as 28x28x1, got {shape!r}")
        shapes[str(name)] = tuple(int(size) for size in sizes)
    return shapes


def _pairs(value: object) -> Mapping[str, object]:
    if isinstance(value, Mapping):
        return value
    parts = [part.strip().rpartition(":") for part in str(value).split(",")]
    if not all(name for name, _, _ in parts):
        raise InvalidInputError(f"expected name:what, separated by commas, got {value!r}")
    return {name: what for name, _, what in parts}


def _is_called_so(name: str) -> bool:
    return NAME.fullmatch(name) is not None


def _first_examples(files: Sequence[Path], samples: int) -> list[Example]:
    sized = (
        (parse_example(record, f"{file}, record {number}"), len(record))
        for file in files
        for number, record in walk_records(file)
    )
    return first_of(sized, samples, _SAMPLE_BYTES)


def _rows(
    file: Path, columns: Mapping[str, FeatureColumn], known: AbstractSet[str] | None
) -> Iterator[SampleRecord]:
    """The examples of one file; a feature that is none of the `known` is refused; None: all are."""
    for number, record in walk_records(file):
        where = f"{file}, record {number}"
        example = parse_example(record, where)
        if known is not None and (new := example.keys() - known):
            raise damage(
                where,
                f"has a new feature {min(new)!r}. Look at more examples, samples=N, or choose "
                "features: columns=...",
            )
        values = {
            name: value_of(part, example.get(name), f"{where}, feature {name!r}")
            for name, part in columns.items()
        }
        # A number of one byte takes eight in memory.
        arrays = sum(value.nbytes for value in values.values() if isinstance(value, np.ndarray))
        yield SampleRecord(values, len(record) + arrays)


def write_tfrecord(
    table: ExportTable, path: Path, *, overwrite: bool = False, compress: bool | None = None
) -> None:
    """One file, gzipped when asked or when `path` ends in ``.gz``.

    Raises:
        InvalidInputError: a column that examples have no list for, or a number that would not come
            back as it is.
        UnsupportedError: the library for checksums is not installed.
    """
    crc = masked_crc()
    kinds = {column.name: _kind(column) for column in table.schema.columns}
    gzipped = path.suffix == ".gz" if compress is None else compress
    with (
        new_file(path, overwrite=overwrite) as temporary,
        temporary.open("xb") as raw,
        compressed(raw, gzipped=gzipped) as file,
    ):
        for record in _records(table, kinds):
            write_record(file, record, crc)


def _kind(column: Column) -> int:
    """The field of `tf.train.Feature` for a column."""
    storage = column.storage
    if isinstance(column.type, Decimal | Null | Nested):
        raise column_refused(column, "TFRecord has numbers and bytes alone")
    if storage.layout is ColumnLayout.BINARY:
        return BYTES_LIST
    if storage.unknown_dims > 1:
        raise column_refused(column, "lists are flat, so that its shapes would be lost")
    if storage.element.kind in "iub":
        return INT64_LIST
    if storage.element.kind == "c":
        raise column_refused(column, "TFRecord has no complex numbers")
    return FLOAT_LIST


def _records(table: ExportTable, kinds: dict[str, int]) -> Iterator[bytes]:
    first = 0
    for batch in table.to_batches(max_bytes=BATCH_BYTES):
        features = {
            column.name: _features(column, kinds[column.name], batch.column(at), first)
            for at, column in enumerate(table.schema.columns)
        }
        for at in range(batch.num_rows):
            entries = (
                write_field(1, write_field(1, name.encode()) + write_field(2, feature))
                for name, of_row in features.items()
                if (feature := of_row(at)) is not None
            )
            yield write_field(1, b"".join(entries))
        first += batch.num_rows


def _features(column: Column, kind: int, array: Any, first: int) -> Callable[[int], bytes | None]:
    """The serialised `tf.train.Feature` of a row of a batch; None where it is null."""
    value = row_values(column, array)
    encode = _integers if kind == INT64_LIST else _floats

    def feature(at: int) -> bytes | None:
        row = value(at)
        if row is None:
            return None
        if kind != BYTES_LIST:
            row = encode(column, np.asarray(row).reshape(-1), first + at)
        return write_field(kind, write_field(1, row))

    return feature


def _integers(column: Column, numbers: NDArray[Any], row: int) -> bytes:
    if numbers.dtype == np.uint64 and (numbers >> np.uint64(63)).any():
        raise column_refused(column, f"row {row} holds {numbers.max()}, more than an int64 can say")
    return write_varints(numbers.astype(np.int64))


def _floats(column: Column, numbers: NDArray[Any], row: int) -> bytes:
    with np.errstate(over="ignore"):
        narrow = numbers.astype("<f4")
    if numbers.dtype == np.float64:
        lost = (narrow != numbers) & ~np.isnan(numbers)
        if lost.any():
            raise column_refused(
                column,
                f"row {row} holds {numbers[lost][0]}, which TFRecord's float32 would round",
            )
    return narrow.tobytes()
