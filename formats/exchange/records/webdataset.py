"""WebDataset shards: parts of samples, reader and writer.

``train/00042.left.jpg`` is part ``left.jpg`` of sample ``train/00042``. The last suffix says what
the bytes are; a part with a name of its own before the suffix becomes the column of that name, one
without is called by its suffix. Nothing is unpickled: parts such as ``.pth`` stay bytes.

Members in a row whose names differ only behind the first dot are one sample. Their parts become
columns, column `__key__` keeps the name of the sample. The headers of plain
archives are all looked at before the first row is read, so which parts are missing somewhere is
known; of gzipped ones only the first samples are, and option `nullable` says the rest.

Images stay the encoded bytes that they are. Whole numbers and class labels are written as text
(`.cls`), other numbers and tensors as `.npy`. The names of classes go into a member that
WebDataset's own readers skip. The same rows make the same bytes.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field, replace
from enum import Enum
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.dataset.schema.schema import (
    Bytes,
    ClassLabel,
    Column,
    ColumnType,
    Embedding,
    Image,
    Json,
    Scalar,
    Schema,
    Tensor,
    Text,
)
from tensorrepo.formats.exchange.arrays.npy import read_header
from tensorrepo.formats.exchange.base import (
    BATCH_BYTES,
    MAX_NOTES,
    Candidate,
    OpenedSource,
    origin_of,
    source_files,
    streamed_groups,
)
from tensorrepo.formats.exchange.output import (
    ExportTable,
    column_refused,
    compressed,
    new_file,
    new_folder,
)
from tensorrepo.formats.exchange.records.samples import (
    SAMPLES,
    SampleRecord,
    array_type,
    batches_of,
    check_array,
    check_bytes,
    check_json,
    choose,
    image_type,
    plain_array,
    row_values,
)
from tensorrepo.formats.exchange.records.tar import TarMember, read_member, walk_members
from tensorrepo.formats.exchange.tables.csv import open_text
from tensorrepo.formats.exchange.tables.files import has_table_files
from tensorrepo.formats.images.headers import HEAD_BYTES, codec_of
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import InvalidInputError

KEY = "__key__"
# Lists the names of classes by column; the webdataset package skips members called like this.
CLASSES_MEMBER = "__classes__"
_NAME = re.compile(r"((?:.*/|)[^.]+)[.]([^/]+)")  # as webdataset cuts names
_INTEGER = re.compile(rb"\s*[+-]?[0-9]{1,20}\s*")


class PartKind(Enum):
    """How the bytes of a part are understood."""

    IMAGE = "an image"
    INTEGER = "a whole number"
    TEXT = "text"
    JSON = "JSON"
    ARRAY = "a numpy array"
    BYTES = "bytes"


KINDS = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff"), PartKind.IMAGE),
    **dict.fromkeys(("cls", "cls2", "class", "count", "index", "inx", "id"), PartKind.INTEGER),
    **dict.fromkeys(("txt", "text", "transcript"), PartKind.TEXT),
    **dict.fromkeys(("json", "jsn"), PartKind.JSON),
    "npy": PartKind.ARRAY,
}
# How much of a part is looked at to infer its type; of an npy file at most its header.
_HEADS = {PartKind.IMAGE: 32, PartKind.INTEGER: 64, PartKind.ARRAY: 70_000}
_NAMED = (*KINDS, "bin")  # suffixes that fall away behind a name


@dataclass(frozen=True, slots=True)
class PartColumn:
    """The column that a part becomes, and how its bytes are read."""

    column: Column
    kind: PartKind


def split_name(name: str) -> tuple[str, str] | None:
    """(key, part) of a member's name; None for a file that belongs to no sample."""
    found = _NAME.fullmatch(name)
    return (found[1], found[2]) if found else None


def kind_of(part: str) -> PartKind:
    return KINDS.get(part.rpartition(".")[2].lower(), PartKind.BYTES)


def head_bytes(part: str) -> int:
    """How many bytes of a part its type is inferred from."""
    return _HEADS.get(kind_of(part), 0)


def column_names(parts: Iterable[str], clashes: AbstractSet[str] = frozenset()) -> dict[str, str]:
    """The column of each part.

    ``left.jpg`` becomes ``left``. Where several parts would, they share the column only if all are
    images and no sample has two: ``left.jpg`` here and ``left.png`` there.

    Args:
        parts: parts of all samples, each once.
        clashes: stems that several parts of one sample have.
    """
    by_stem: dict[str, list[str]] = {}
    for part in parts:
        by_stem.setdefault(stem_of(part), []).append(part)
    names: dict[str, str] = {}
    for stem, group in by_stem.items():
        images = all(kind_of(part) is PartKind.IMAGE for part in group)
        alone = stem != KEY and stem not in clashes and (len(group) == 1 or images)
        names |= {part: stem if alone else part for part in group}
    return names


def part_column(
    name: str,
    parts: Sequence[str],
    heads: Sequence[bytes],
    classes: Mapping[str, tuple[str, ...]],
    where: str,
) -> PartColumn:
    """The column `name`, its type as the first of its values say.

    `parts` become it, several only if they are images; `heads` are how its first values begin, up
    to `head_bytes` each, at least one.
    """
    kind = kind_of(parts[0])
    if kind is PartKind.INTEGER and not all(map(_INTEGER.fullmatch, heads)):
        kind = PartKind.TEXT
    if kind is PartKind.INTEGER and name in classes:
        return PartColumn(Column(name, ClassLabel(classes[name])), kind)
    simple: dict[PartKind, ColumnType] = {
        PartKind.INTEGER: Scalar("int64"),
        PartKind.TEXT: Text(),
        PartKind.JSON: Json(),
        PartKind.BYTES: Bytes(),
    }
    found = simple.get(kind)
    if kind is PartKind.IMAGE:
        found = image_type(heads)
        if found is None:
            raise damage(where, f"has a part {parts[0]!r} that is no image")
    if kind is PartKind.ARRAY:
        headers = [read_header(BytesIO(head), where) for head in heads]
        forms = [(header.dtype, header.shape) for header in headers]
        found = array_type(forms, f"{where}, part {parts[0]!r}")
    assert found is not None, kind
    return PartColumn(Column(name, found), kind)


def decode_part(part: PartColumn, data: bytes, where: str) -> Any:
    """The value that the bytes of one part say. Raises InvalidInputError, which says `where`."""
    match part.kind:
        case PartKind.INTEGER:
            return _integer(part.column, data, where)
        case PartKind.JSON:
            return check_json(data, where, _refuse_constant)
        case PartKind.ARRAY:
            return check_array(part.column.type, _npy_array(data, where), where)
        case _:
            return check_bytes(part.column.type, data, where)


def parse_classes(data: bytes, where: str) -> dict[str, tuple[str, ...]]:
    """What the member `CLASSES_MEMBER` says: names of classes by column."""
    form = check_json(data, where, _refuse_constant)
    fits = isinstance(form, dict) and all(
        isinstance(names, list) and all(isinstance(name, str) for name in names)
        for names in form.values()
    )
    if not fits:
        raise damage(where, 'is not names of classes by column: {"label": ["cat", "dog"]}')
    return {column: tuple(names) for column, names in form.items()}


def _refuse_constant(word: str) -> None:
    raise ValueError(f"{word} is no JSON value")


def stem_of(part: str) -> str:
    """A part without the suffix that says its kind, if anything is left."""
    stem, _, suffix = part.rpartition(".")
    return stem if stem and suffix.lower() in _NAMED else part


def _integer(column: Column, data: bytes, where: str) -> int:
    if not _INTEGER.fullmatch(data):
        raise damage(where, f"is {data[:40]!r}, expected a whole number as in the first samples")
    number = int(data)
    classes = column.type.names if isinstance(column.type, ClassLabel) else None
    if classes is not None and not 0 <= number < len(classes):
        raise damage(where, f"is class {number}; {CLASSES_MEMBER} names {len(classes)} classes")
    if not -(1 << 63) <= number < 1 << 63:
        raise damage(where, f"is {number}, which does not fit into 64 bits")
    return number


def _npy_array(data: bytes, where: str) -> NDArray[Any]:
    header = read_header(BytesIO(data), where)
    header.check_bytes(where, len(data), "there are {}")
    flat = np.frombuffer(data, header.dtype, offset=header.bytes)
    return plain_array(flat.reshape(header.shape, order="F" if header.fortran_order else "C"))


SUFFIXES = (".tar", ".tar.gz", ".tgz")
MAX_CLASSES_BYTES = 16 << 20
WALKED_BYTES = 128 << 20  # of parts that are remembered from the look before
# A lying size seeks to where no file can be.
_TAR_ERRORS = (OverflowError, ValueError)


@dataclass(slots=True)
class PartSurvey:
    """What a look at the shards before reading them tells about their parts.

    Attributes:
        samples: samples looked at.
        counts: in how many of them each part is.
        heads: beginnings of the first values of each part.
        classes: class names by column.
        clashes: stems that several parts of one sample have.
    """

    samples: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    heads: dict[str, list[bytes]] = field(default_factory=dict)
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    clashes: set[str] = field(default_factory=set)

    def plan(self, where: str, nullable: Sequence[str] = ()) -> dict[str, PartColumn]:
        """The column of each part.

        Raises:
            InvalidInputError: no samples, or a part that is not what it is called.
            NotFoundError: one of `nullable` is not there.
        """
        if not self.samples:
            raise damage(
                where, "holds no samples: files named <key>.<part>, as 000.jpg and 000.cls"
            )
        by_column: dict[str, list[str]] = {}
        for part, name in column_names(self.counts, self.clashes).items():
            by_column.setdefault(name, []).append(part)
        choose(where, list(by_column), nullable)
        planned: dict[str, PartColumn] = {}
        for name, parts in by_column.items():
            heads = [head for part in parts for head in self.heads[part]]
            chosen = part_column(name, parts, heads, self.classes, where)
            lacking = sum(self.counts[part] for part in parts) < self.samples
            column = replace(chosen.column, nullable=lacking or name in nullable)
            planned |= dict.fromkeys(parts, replace(chosen, column=column))
        return planned


@dataclass(slots=True)
class _Survey(PartSurvey):
    """The survey of an import.

    Attributes:
        passed_over: notes of the first files that belong to no sample.
        others: how many such files there are.
        complete: whether more than the first samples of gzipped shards were looked at.
        walked: plain shards whose parts are remembered, so that headers are parsed once.
        room_bytes: memory that is left for more of them.
    """

    passed_over: list[str] = field(default_factory=list)
    others: int = 0
    complete: bool = True
    walked: dict[Path, _WalkedShard] = field(default_factory=dict)
    room_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a sample, met while a shard is walked."""

    key: str
    name: str
    member: TarMember
    first: bool

    @property
    def memory_bytes(self) -> int:
        """What it takes to remember it, about."""
        return 512 + len(self.key) + len(self.name) + len(self.member.name)


@dataclass(frozen=True, slots=True)
class _WalkedShard:
    """The parts of a shard, and which file it was: another one is walked again."""

    stamp: tuple[int, ...]
    parts: Sequence[_Part]


def read_webdataset(
    path: Path,
    *,
    columns: tuple[str, ...] | None = None,
    nullable: tuple[str, ...] = (),
    samples: int = SAMPLES,
) -> OpenedSource:
    """One tar archive, or all those of a folder in the order of their names.

    Args:
        path: file or folder; gzip is told by content.
        columns: only these, in this order.
        nullable: columns that a sample may lack, where that cannot be seen beforehand.
        samples: from how many samples of each part types are inferred.

    Raises:
        InvalidInputError: damaged archives, no samples, or a part that is not what it is called.
    """
    shards = source_files(path, lambda name: name.endswith(SUFFIXES), f"files {SUFFIXES}")
    survey = _Survey(room_bytes=WALKED_BYTES)
    for shard in shards:
        _survey_shard(shard, survey, samples)
    parts = survey.plan(str(path), nullable)
    every = schema_of(parts)
    schema = every.select(choose(path, every.names, columns))
    wanted = {name: part for name, part in parts.items() if part.column.name in schema}
    records = (record for shard in shards for record in _records(shard, schema, wanted, survey))
    return OpenedSource(
        schema=schema,
        rows=survey.samples if survey.complete else None,
        batches=batches_of(records, schema.names),
        origin=origin_of(path, "webdataset", shards),
        notes=_notes(survey),
        key=(KEY,),
    )


def matches_webdataset(candidate: Candidate) -> bool:
    """A tar archive, or a folder of files called so."""
    if candidate.is_folder:
        return has_table_files(candidate, SUFFIXES)
    return candidate.head[257:262] == b"ustar"


# ------------------------------------------------------------------------------ the look before


def _survey_shard(shard: Path, survey: _Survey, samples: int) -> None:
    with refusals(shard, "tar archive", *_TAR_ERRORS), open_text(shard) as stream:
        gzipped = isinstance(stream, gzip.GzipFile)
        if gzipped and survey.samples >= samples:
            survey.complete = False
            return
        stems: set[str] = set()
        walked: list[_Part] = []
        for part in _parts(stream, shard, survey):
            if part.first and gzipped and survey.samples >= samples:
                survey.complete = False
                return
            if part.first:
                survey.samples += 1
                stems = set()
            survey.counts[part.name] += 1
            stem = stem_of(part.name)
            if stem in stems:
                survey.clashes.add(stem)
            stems.add(stem)
            heads = survey.heads.setdefault(part.name, [])
            if len(heads) < samples:
                head = read_member(stream, part.member, str(shard), head_bytes(part.name))
                heads.append(head)
            survey.room_bytes -= part.memory_bytes
            if survey.room_bytes >= 0 and not gzipped:
                walked.append(part)
        if survey.room_bytes >= 0 and not gzipped:
            survey.walked[shard] = _WalkedShard(_stamp(stream), walked)


def _stamp(stream: IO[bytes]) -> tuple[int, ...]:
    """Which file it is, and when its bytes were written last."""
    status = os.fstat(stream.fileno())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _parts(stream: IO[bytes], shard: Path, survey: _Survey | None) -> Iterator[_Part]:
    """The parts of a shard's samples in order, no part twice in a sample.

    With a `survey`, what is no part is noted there.
    """
    key: str | None = None
    names: set[str] = set()
    for member in walk_members(stream, str(shard)):
        found = split_name(member.name)
        if found is None:
            if survey is not None:
                _note_other(stream, shard, member, survey)
            continue
        first = found[0] != key
        key, names = found[0], set() if first else names
        if found[1] in names:
            raise damage(f"{shard}, sample {key!r}", f"has part {found[1]!r} twice")
        names.add(found[1])
        yield _Part(key, found[1], member, first)


def _note_other(stream: IO[bytes], shard: Path, member: TarMember, survey: _Survey) -> None:
    if member.name != CLASSES_MEMBER:
        survey.others += 1
        if len(survey.passed_over) < MAX_NOTES:
            survey.passed_over.append(f"passed over {shard.name}: {member.name}")
        return
    if member.bytes > MAX_CLASSES_BYTES:
        raise damage(f"{shard}, member {member.name!r}", f"has {member.bytes} bytes")
    data = read_member(stream, member, str(shard))
    classes = parse_classes(data, f"{shard}, member {member.name!r}")
    if survey.classes not in ({}, classes):
        raise damage(f"{shard}, member {member.name!r}", "names other classes than earlier shards")
    survey.classes = classes


def _notes(survey: _Survey) -> tuple[str, ...]:
    more = survey.others - len(survey.passed_over)
    return (*survey.passed_over, *([f"and {more} more"] if more else []))


def schema_of(parts: Mapping[str, PartColumn]) -> Schema:
    """The key and the columns that parts become."""
    columns = dict.fromkeys(part.column for part in parts.values())
    return Schema((Column(KEY, Text()), *columns))


# ------------------------------------------------------------------------------ reading


def _records(
    shard: Path, schema: Schema, wanted: Mapping[str, PartColumn], survey: _Survey
) -> Iterator[SampleRecord]:
    """The samples of one shard, each checked to have every column that is not nullable."""
    walked = survey.walked.pop(shard, None)
    with refusals(shard, "tar archive", *_TAR_ERRORS), open_text(shard) as stream:
        values: dict[str, Any] = {}
        held = 0
        known = walked is not None and walked.stamp == _stamp(stream)
        for part in _at(stream, walked.parts) if walked and known else _parts(stream, shard, None):
            if part.first and values:
                yield _record(shard, schema, values, held)
                values, held = {}, 0
            values[KEY] = part.key
            if part.name in wanted:
                _put(stream, shard, part, wanted[part.name], values)
                held += part.member.bytes
        if values:
            yield _record(shard, schema, values, held)


def _at(stream: IO[bytes], parts: Iterable[_Part]) -> Iterator[_Part]:
    """Parts that are known already; `stream` stands at the bytes of the one yielded."""
    for part in parts:
        stream.seek(part.member.offset)
        yield part


def _put(
    stream: IO[bytes], shard: Path, part: _Part, column: PartColumn, values: dict[str, Any]
) -> None:
    where = f"{shard}, sample {part.key!r}, part {part.name!r}"
    if column.column.name in values:
        raise damage(where, f"is a second value for column {column.column.name!r}")
    data = read_member(stream, part.member, str(shard))
    values[column.column.name] = decode_part(column, data, where)


def _record(shard: Path, schema: Schema, values: dict[str, Any], held: int) -> SampleRecord:
    for column in schema.columns:
        if values.get(column.name) is None and not column.nullable:
            raise damage(
                f"{shard}, sample {values[KEY]!r}",
                f"has nothing for column {column.name!r}, which the first samples have. "
                f"If samples may lack it: nullable={column.name}",
            )
    return SampleRecord({name: values.get(name) for name in schema.names}, held)


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
    table: ExportTable,
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
    sized = (
        (sample, sum(len(data) + 2 * tarfile.BLOCKSIZE for _, data in sample[1]))
        for sample in samples
    )
    with new_folder(path, overwrite=overwrite) as folder:
        for number, shard in enumerate(streamed_groups(sized, shard_bytes)):
            target = folder / f"{path.name}-{number:06}{suffix}"
            _write_shard(target, table, shard, gzipped=gzipped)


def _writer(column: Column) -> _Writer:
    suffix, encode = _encoder(column)
    if not suffix:
        return _Writer(column, "", encode)
    part = column.name
    if kind_of(part) is not kind_of(suffix) or kind_of(suffix) is PartKind.BYTES:
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


def _check_keys(table: ExportTable) -> None:
    if KEY in table.schema and not isinstance(table.schema.column(KEY).type, Text):
        raise column_refused(table.schema.column(KEY), "the names of samples are text")
    if table.schema.names == (KEY,):
        raise column_refused(table.schema.column(KEY), "samples need a part besides their name")


# ------------------------------------------------------------------------------ samples


_Sample = tuple[str, list[tuple[str, bytes]]]


def _samples(table: ExportTable, writers: list[_Writer]) -> Iterator[_Sample]:
    """(key, parts) of each row."""
    row, last = 0, ""
    for batch in table.to_batches(max_bytes=BATCH_BYTES):
        keys = batch.column(KEY).to_pylist() if KEY in table.schema else None
        values = [row_values(each.column, batch.column(each.column.name)) for each in writers]
        for at in range(batch.num_rows):
            key = f"{row:09}" if keys is None else keys[at]
            parts = [
                (writer.part_of(data), data)
                for writer, value_of in zip(writers, values, strict=True)
                if (value := value_of(at)) is not None
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


# ------------------------------------------------------------------------------ archives


def _write_shard(
    path: Path, table: ExportTable, samples: Iterator[_Sample], *, gzipped: bool
) -> None:
    classes = {
        column.name: list(column.type.names)
        for column in table.schema.columns
        if isinstance(column.type, ClassLabel)
    }
    with path.open("xb") as raw, compressed(raw, gzipped=gzipped) as file:
        if classes:
            _write_member(file, CLASSES_MEMBER, json.dumps(classes, ensure_ascii=False).encode())
        for key, parts in samples:
            for part, data in parts:
                _write_member(file, f"{key}.{part}", data)
        file.write(_END)


def _write_member(file: IO[bytes], name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)  # no time, no owner: the same rows make the same file
    file.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))
    file.write(data)
    file.write(bytes(-len(data) % tarfile.BLOCKSIZE))
