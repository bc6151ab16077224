"""Deletion maps, and row numbers that leave deleted rows out.

A deletion map covers a run of fragments: for each with deleted rows either their offsets, or a bit
for each row, whichever is smaller. It is small, so planning may read it as it reads page indexes.
Pages keep deleted rows until compaction; `LiveRows` maps physical rows to row numbers and back.

Source:
    docs/spec/dataset.md, section "Deletion map".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.pages.sections import (
    decode_sections,
    encode_sections,
    section_array,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.ids import Buffer

DELETION_MAGIC = b"TRPD"
RECORDS, DATA = 1, 2
OFFSETS, BITMAP = 0, 1

RECORD = np.dtype(
    [
        ("fragment", "<u4"),  # counted within the span
        ("deleted", "<u4"),
        ("form", "<u4"),  # OFFSETS or BITMAP
        ("bytes", "<u4"),  # in DATA, one after the other
    ]
)
assert RECORD.itemsize == 16, "docs/spec/dataset.md promises 16-byte deletion records"


@dataclass(frozen=True, slots=True)
class Deletions:
    """The deleted rows of one fragment, packed: at least one."""

    deleted: int
    form: int
    data: bytes

    @property
    def map_bytes(self) -> int:
        """What it takes in a deletion map."""
        return RECORD.itemsize + len(self.data)


def pack_deletions(offsets: NDArray[np.integer[Any]], rows: int) -> Deletions:
    """Pack `offsets`, ascending and each once, of a fragment of so many rows."""
    if 4 * len(offsets) <= -(-rows // 8):
        return Deletions(len(offsets), OFFSETS, offsets.astype("<u4").tobytes())
    bits = np.zeros(rows, np.bool_)
    bits[offsets] = True
    return Deletions(len(offsets), BITMAP, np.packbits(bits, bitorder="little").tobytes())


def unpack_deletions(deletions: Deletions, rows: int) -> Ints:
    """The deleted offsets, int64, ascending.

    Raises:
        CorruptError: not so many, not ascending, or beyond the fragment's `rows`.
    """
    if deletions.form == OFFSETS:
        if len(deletions.data) % 4:
            raise CorruptError(
                f"deletion map: offsets of {len(deletions.data)} bytes, not of 4 each"
            )
        found = np.frombuffer(deletions.data, "<u4").astype(np.int64)
        ascending = bool((np.diff(found) > 0).all()) and (not len(found) or found[-1] < rows)
    else:
        packed = np.frombuffer(deletions.data, np.uint8)
        bits = np.unpackbits(packed, bitorder="little").view(np.bool_)
        found = np.flatnonzero(bits)
        ascending = len(packed) == -(-rows // 8) and not bits[rows:].any()
    if not ascending or len(found) != deletions.deleted:
        raise CorruptError(
            f"deletion map: {len(found)} rows of a fragment of {rows}, expected "
            f"{deletions.deleted} in ascending order"
        )
    return found


def encode_deletion_map(deletions: Mapping[int, Deletions]) -> bytes:
    """The payload of a deletion map; keys are fragments, counted within its span."""
    records = np.array(
        [
            (fragment, each.deleted, each.form, len(each.data))
            for fragment, each in sorted(deletions.items())
        ],
        RECORD,
    )
    data = b"".join(each.data for _, each in sorted(deletions.items()))
    return encode_sections(DELETION_MAGIC, {RECORDS: records, DATA: np.frombuffer(data, np.uint8)})


def decode_deletion_map(payload: Buffer, what: str) -> dict[int, Deletions]:
    """Parse the payload of a deletion map; `what` names it in errors.

    Raises:
        CorruptError: the parts contradict each other.
    """
    sections = decode_sections(DELETION_MAGIC, payload, what)
    records = section_array(sections, RECORDS, RECORD, what)
    data = sections.get(DATA, memoryview(b""))
    if int(records["bytes"].sum(dtype=np.int64)) != data.nbytes or sections.keys() - {1, 2}:
        raise CorruptError(f"{what}: records and data do not have the same bytes")
    if (records["form"] > BITMAP).any() or (np.diff(records["fragment"].astype(int)) <= 0).any():
        raise CorruptError(f"{what}: a record of unknown form, or out of order")
    found: dict[int, Deletions] = {}
    at = 0
    for fragment, deleted, form, size in records.tolist():
        found[fragment] = Deletions(deleted, form, data[at : at + size].tobytes())
        at += size
    return found


@dataclass(frozen=True, slots=True, eq=False)
class LiveRows:
    """A dataset of `total` rows of which `dead`, int64 ascending, are deleted, if any.

    A *physical* row counts deleted ones, a *live* row does not.
    """

    total: int
    dead: Ints

    @property
    def rows(self) -> int:
        """Live ones."""
        return self.total - len(self.dead)

    def physical(self, live: Ints) -> Ints:
        """Physical numbers of live rows, in the same order."""
        if not len(self.dead):
            return live
        before = self.dead - np.arange(len(self.dead))  # live rows before each deleted one
        return live + np.searchsorted(before, live, side="right")

    def live(self, physical: Ints) -> Ints:
        """Live numbers of physical rows; -1 where deleted, or where a number is -1."""
        if not len(self.dead):
            return physical
        before = np.searchsorted(self.dead, physical)
        is_dead = self.dead[np.minimum(before, len(self.dead) - 1)] == physical
        return np.where(is_dead, -1, physical - before)

    def live_bounds(self, physical_bounds: Ints) -> Ints:
        """How many live rows lie before each physical bound: live rows of ranges by difference."""
        return physical_bounds - np.searchsorted(self.dead, physical_bounds)

    def alive(self, start: int, stop: int) -> Ints | None:
        """Live physical rows in ``[start, stop)``, counted from `start`; None: all of them."""
        low, high = np.searchsorted(self.dead, [start, stop]) if len(self.dead) else (0, 0)
        if low == high:
            return None
        keep = np.ones(stop - start, np.bool_)
        keep[self.dead[low:high] - start] = False
        return np.flatnonzero(keep)
