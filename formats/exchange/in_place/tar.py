"""WebDataset's tar archives adopted in place.

Columns are those of an import. Where each member lies is noted; members of at
most a few bytes, such as labels, are kept themselves, because what points at them would be larger.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.damage import damage, refusals
from tensorrepo.formats.dataset.external.foreign import (
    ForeignPlace,
    InlinePlace,
    MembersPlace,
    foreign_entries,
    place_type,
)
from tensorrepo.formats.dataset.pages.page import DIRECTORY, padded
from tensorrepo.formats.dataset.schema.schema import Column, ColumnLayout, Schema
from tensorrepo.formats.exchange.in_place.scan import (
    FRAGMENT_BYTES,
    FRAGMENT_ROWS,
    AdoptedFragment,
    AdoptedSource,
    page_bounds,
)
from tensorrepo.formats.exchange.records.samples import SAMPLES
from tensorrepo.formats.exchange.records.tar import read_member, walk_members
from tensorrepo.formats.exchange.records.webdataset import (
    CLASSES_MEMBER,
    KEY,
    PartColumn,
    PartKind,
    PartSurvey,
    head_bytes,
    parse_classes,
    split_name,
    stem_of,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import UnsupportedError

SMALL_BYTES = 256
MAX_CLASSES_BYTES = 16 << 20
_CONTENTS = {
    PartKind.IMAGE: "bytes",
    PartKind.BYTES: "bytes",
    PartKind.TEXT: "text",
    PartKind.JSON: "json",
    PartKind.INTEGER: "number",
    PartKind.ARRAY: "npy",
}


@dataclass(slots=True, eq=False)
class _Members:
    """The members of one part, by sample: `starts` 0 where there is none."""

    starts: array[int] = field(default_factory=lambda: array("q"))
    lengths: array[int] = field(default_factory=lambda: array("q"))
    small: list[bytes | None] = field(default_factory=list)

    def fill(self, samples: int) -> None:
        """Samples up to `samples` have no such part."""
        missing = samples - len(self.starts)
        if missing > 0:
            self.starts.extend([0] * missing)
            self.lengths.extend([0] * missing)
            self.small.extend([None] * missing)


@dataclass(slots=True, eq=False)
class AdoptedShard:
    """One archive, walked: its samples' keys, and where their parts lie."""

    source: AdoptedSource
    keys: list[str] = field(default_factory=list)
    parts: dict[str, _Members] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class TarSurvey(PartSurvey):
    """What all shards together say about their columns."""

    shards: list[AdoptedShard] = field(default_factory=list)


def survey_shard(source: AdoptedSource, survey: TarSurvey) -> None:
    """Walk one archive; its headers are read, and small members.

    Raises:
        InvalidInputError: no tar archive, cut short, or damaged.
        UnsupportedError: it is compressed.
    """
    shard = AdoptedShard(source)
    with source.open() as stream, refusals(source.url, "tar archive", OverflowError, ValueError):
        if stream.read(2) == b"\x1f\x8b":
            raise UnsupportedError(
                f"{source.url} is compressed: single members cannot be read. Uncompress it, or "
                "import it: tensorrepo add"
            )
        stream.seek(0)
        for member in walk_members(stream, source.url):
            if member.offset + member.bytes > source.version.size:
                raise damage(source.url, f"ends inside its member {member.name!r}")
            found = split_name(member.name)
            if found is None:
                if member.name == CLASSES_MEMBER and member.bytes <= MAX_CLASSES_BYTES:
                    data = read_member(stream, member, source.url)
                    survey.classes = parse_classes(data, f"{source.url}, {member.name!r}")
                continue
            key, part = found
            head = read_member(stream, member, source.url, max(SMALL_BYTES, head_bytes(part)))
            _note(shard, survey, key, part, (member.offset, member.bytes), head)
    survey.shards.append(shard)
    survey.samples += len(shard.keys)
    for members in shard.parts.values():
        members.fill(len(shard.keys))


def _note(
    shard: AdoptedShard, survey: TarSurvey, key: str, part: str, place: tuple[int, int], head: bytes
) -> None:
    if not shard.keys or shard.keys[-1] != key:
        shard.keys.append(key)
    sample = len(shard.keys) - 1
    members = shard.parts.setdefault(part, _Members())
    if len(members.starts) > sample:
        raise damage(f"{shard.source.url}, sample {key!r}", f"has part {part!r} twice")
    stem = stem_of(part)
    if any(stem_of(other) == stem and len(found.starts) > sample
           for other, found in shard.parts.items() if other != part):  # fmt: skip
        survey.clashes.add(stem)
    members.fill(sample)
    members.starts.append(place[0])
    members.lengths.append(place[1])
    members.small.append(head if len(head) == place[1] <= SMALL_BYTES else None)
    survey.counts[part] += 1
    heads = survey.heads.setdefault(part, [])
    if len(heads) < SAMPLES:
        heads.append(head[: head_bytes(part)])


def shard_fragments(
    shard: AdoptedShard, planned: dict[str, PartColumn], schema: Schema
) -> Iterator[AdoptedFragment]:
    """Runs of about 64 MiB of the samples of one archive."""
    columns = [_column(shard, planned, column) for column in schema.columns]
    if not shard.keys:
        return
    sizes = np.stack([column.lengths for column in columns], axis=1)
    ends = np.cumsum(sizes.sum(axis=1))
    at = 0
    while at < len(ends):
        before = int(ends[at - 1]) if at else 0
        full = int(np.searchsorted(ends, before + FRAGMENT_BYTES, side="right"))
        stop = min(max(at + 1, full), at + FRAGMENT_ROWS)
        yield _fragment(shard.source, columns, slice(at, stop), sizes[at:stop])
        at = stop


@dataclass(frozen=True, slots=True, eq=False)
class _Column:
    """One column of one archive. `small` has the bytes of those members that were kept."""

    column: Column
    content: str
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    small: Sequence[bytes | None]

    def place(self, rows: slice) -> ForeignPlace:
        starts, lengths, small = self.starts[rows], self.lengths[rows], self.small[rows]
        kind = place_type(self.column.type)
        there = starts > 0
        kept = [data for data in small if data is not None]
        if len(kept) < np.count_nonzero(there):
            return MembersPlace(
                kind, self.column.nullable, self.content, starts.tobytes(), lengths.tobytes()
            )
        stored = np.where(there, lengths, -1)
        return InlinePlace(
            kind, self.column.nullable, self.content, stored.tobytes(), b"".join(kept)
        )

    def entries(self, rows: slice, bounds: NDArray[np.int64]) -> NDArray[Any]:
        there = self.starts[rows] > 0
        ends = np.append(0, np.cumsum(self.lengths[rows]))
        counts = np.diff(bounds)
        stored = np.diff(ends[bounds])
        nulls = counts - np.diff(np.append(0, np.cumsum(there))[bounds])
        storage = self.column.storage
        fixed = storage.layout is ColumnLayout.FIXED
        plain = counts * storage.row_bytes if fixed else stored + 8 * counts
        raw = [DIRECTORY.size + padded(size) for size in plain.tolist()]
        first = bounds[:-1]
        return foreign_entries(first, counts, first, stored, raw, nulls)


def _column(shard: AdoptedShard, planned: dict[str, PartColumn], column: Column) -> _Column:
    if column.name == KEY:
        keys = [key.encode() for key in shard.keys]
        lengths = np.array([len(key) for key in keys], np.int64)
        return _Column(column, "text", np.ones(len(keys), np.int64), lengths, keys)
    parts = [part for part, found in planned.items() if found.column.name == column.name]
    samples = len(shard.keys)
    starts, lengths = np.zeros(samples, np.int64), np.zeros(samples, np.int64)
    small: list[bytes | None] = [None] * samples
    for members in (shard.parts[part] for part in parts if part in shard.parts):
        there = np.frombuffer(members.starts, np.int64) > 0
        starts[there] = np.frombuffer(members.starts, np.int64)[there]
        lengths[there] = np.frombuffer(members.lengths, np.int64)[there]
        for at in np.flatnonzero(there).tolist():
            small[at] = members.small[at]
    return _Column(column, _CONTENTS[planned[parts[0]].kind], starts, lengths, small)


def _fragment(
    source: AdoptedSource, columns: list[_Column], rows: slice, sizes: NDArray[np.int64]
) -> AdoptedFragment:
    bounds = np.array(page_bounds(sizes), np.int64)
    places = {each.column.id: each.place(rows) for each in columns}
    entries = {each.column.id: each.entries(rows, bounds) for each in columns}
    return AdoptedFragment(rows.stop - rows.start, source.describe("tar", places), entries)
