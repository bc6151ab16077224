"""Read WebDataset: tar archives of samples, a file or a folder of shards, gzipped or not.

Members in a row whose names differ only behind the first dot are one sample. Their parts become
columns (`webdatasetparts`), column `__key__` keeps the name of the sample. The headers of plain
archives are all looked at before the first row is read, so which parts are missing somewhere is
known; of gzipped ones only the first samples are, and option `nullable` says the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tensorrepo.formats.damage import damage, refusals
from tensorrepo.formats.dataset.columns.schema import Column, Schema, Text
from tensorrepo.formats.exchange.base import MAX_NOTES, Candidate, Origin, Reading, file_bytes
from tensorrepo.formats.exchange.shards.records import (
    SAMPLES,
    Record,
    batches_of,
    choose,
    record_files,
)
from tensorrepo.formats.exchange.shards.webdatasetparts import (
    CLASSES_MEMBER,
    KEY,
    PartColumn,
    column_names,
    decode_part,
    head_bytes,
    parse_classes,
    part_column,
    split_name,
    stem_of,
)
from tensorrepo.formats.exchange.shards.webdatasettar import Member, read_member, walk_members
from tensorrepo.formats.exchange.tabular.csv import open_text
from tensorrepo.formats.exchange.tabular.tables import has_table_files

if TYPE_CHECKING:
    from tensorrepo.formats.dataset.columns.schema import Batch

SUFFIXES = (".tar", ".tar.gz", ".tgz")
MAX_CLASSES_BYTES = 16 << 20
# A lying size seeks to where no file can be.
_TAR_ERRORS = (OverflowError, ValueError)


@dataclass(slots=True)
class _Survey:
    """What a look at the shards before reading them finds.

    `heads` are the beginnings of the first values of each part, `counts` in how many samples it
    is; `others` counts files that belong to no sample, the first of which are `passed_over`;
    `clashes` are stems that several parts of one sample have;
    `complete` unless only the first samples of gzipped shards were looked at.
    """

    samples: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    heads: dict[str, list[bytes]] = field(default_factory=dict)
    classes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    passed_over: list[str] = field(default_factory=list)
    others: int = 0
    clashes: set[str] = field(default_factory=set)
    complete: bool = True


@dataclass(frozen=True, slots=True)
class _Part:
    """One part of a sample, met while a shard is walked."""

    key: str
    name: str
    member: Member
    first: bool


def read_webdataset(
    path: Path,
    *,
    columns: tuple[str, ...] | None = None,
    nullable: tuple[str, ...] = (),
    samples: int = SAMPLES,
) -> Reading:
    """One tar archive, or all those of a folder in the order of their names.

    Args:
        path: file or folder; gzip is told by content.
        columns: only these, in this order.
        nullable: columns that a sample may lack, where that cannot be seen beforehand.
        samples: from how many samples of each part types are inferred.

    Raises:
        InvalidInputError: damaged archives, no samples, or a part that is not what it is called.
    """
    shards = record_files(path, lambda name: name.endswith(SUFFIXES), f"files {SUFFIXES}")
    survey = _Survey()
    for shard in shards:
        _survey_shard(shard, survey, samples)
    if not survey.samples:
        raise damage(path, "holds no samples: files named <key>.<part>, as 000.jpg and 000.cls")
    parts = _plan(path, survey, nullable)
    schema = _schema(parts).select(choose(path, _schema(parts).names, columns))
    wanted = {name: part for name, part in parts.items() if part.column.name in schema}
    stored = sum(map(file_bytes, shards))
    return Reading(
        schema=schema,
        rows=survey.samples if survey.complete else None,
        bytes=stored,
        batches=_batches(shards, schema, wanted),
        origin=Origin(str(path), "webdataset", len(shards), stored),
        notes=_notes(survey),
    )


def matches_webdataset(candidate: Candidate) -> bool:
    """A tar archive, or a folder of files called so."""
    if candidate.is_folder:
        return has_table_files(candidate, SUFFIXES)
    return candidate.head[257:262] == b"ustar"


# ------------------------------------------------------------------------------ the look before


def _survey_shard(shard: Path, survey: _Survey, samples: int) -> None:
    with refusals(shard, "tar archive", *_TAR_ERRORS), open_text(shard) as stream:
        compressed = _is_compressed(shard)
        if compressed and survey.samples >= samples:
            survey.complete = False
            return
        stems: set[str] = set()
        for part in _parts(stream, shard, survey):
            if part.first and compressed and survey.samples >= samples:
                survey.complete = False
                return
            survey.samples += part.first
            survey.counts[part.name] += 1
            stems = set() if part.first else stems
            survey.clashes |= {stem_of(part.name)} & stems
            stems.add(stem_of(part.name))
            heads = survey.heads.setdefault(part.name, [])
            if len(heads) < samples:
                head = read_member(stream, part.member, str(shard), head_bytes(part.name))
                heads.append(head)


def _is_compressed(shard: Path) -> bool:
    with shard.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


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


def _note_other(stream: IO[bytes], shard: Path, member: Member, survey: _Survey) -> None:
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


def _plan(path: Path, survey: _Survey, nullable: Sequence[str]) -> dict[str, PartColumn]:
    """The column of each part."""
    names = column_names(survey.counts, survey.clashes)
    by_column: dict[str, list[str]] = {}
    for part, name in names.items():
        by_column.setdefault(name, []).append(part)
    choose(path, list(by_column), nullable)
    plan: dict[str, PartColumn] = {}
    for name, parts in by_column.items():
        heads = [head for part in parts for head in survey.heads[part]]
        found = part_column(name, parts, heads, survey.classes, str(path))
        lacking = sum(survey.counts[part] for part in parts) < survey.samples
        column = replace(found.column, nullable=lacking or name in nullable)
        plan |= dict.fromkeys(parts, replace(found, column=column))
    return plan


def _notes(survey: _Survey) -> tuple[str, ...]:
    more = survey.others - len(survey.passed_over)
    return (*survey.passed_over, *([f"and {more} more"] if more else []))


def _schema(parts: Mapping[str, PartColumn]) -> Schema:
    columns = dict.fromkeys(part.column for part in parts.values())
    return Schema((Column(KEY, Text()), *columns))


# ------------------------------------------------------------------------------ reading


def _batches(
    shards: Iterable[Path], schema: Schema, wanted: Mapping[str, PartColumn]
) -> Iterator[Batch]:
    return batches_of(
        (record for shard in shards for record in _records(shard, schema, wanted)), schema.names
    )


def _records(shard: Path, schema: Schema, wanted: Mapping[str, PartColumn]) -> Iterator[Record]:
    """The samples of one shard, each checked to have every column that is not nullable."""
    with refusals(shard, "tar archive", *_TAR_ERRORS), open_text(shard) as stream:
        values: dict[str, Any] = {}
        held = 0
        for part in _parts(stream, shard, None):
            if part.first and values:
                yield _record(shard, schema, values, held)
                values, held = {}, 0
            values[KEY] = part.key
            if part.name in wanted:
                _put(stream, shard, part, wanted[part.name], values)
                held += part.member.bytes
        if values:
            yield _record(shard, schema, values, held)


def _put(
    stream: IO[bytes], shard: Path, part: _Part, column: PartColumn, values: dict[str, Any]
) -> None:
    where = f"{shard}, sample {part.key!r}, part {part.name!r}"
    if column.column.name in values:
        raise damage(where, f"is a second value for column {column.column.name!r}")
    data = read_member(stream, part.member, str(shard))
    values[column.column.name] = decode_part(column, data, where)


def _record(shard: Path, schema: Schema, values: dict[str, Any], held: int) -> Record:
    for column in schema.columns:
        if values.get(column.name) is None and not column.nullable:
            raise damage(
                f"{shard}, sample {values[KEY]!r}",
                f"has nothing for column {column.name!r}, which the first samples have. "
                f"If samples may lack it: nullable={column.name}",
            )
    return Record({name: values.get(name) for name in schema.names}, held)
