"""Lasting row ids, and the runs of them that a fragment stores.

The id of a row is the uid of the fragment that it was written in and its offset there. It never
changes its meaning: not when the dataset grows, nor when compaction moves the row. The new fragment
then says, as runs, which ids its rows have.

Source:
    docs/spec/dataset.md, section "Row runs".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.formats.common.dtypes import Ints
from tensorrepo.formats.dataset.pages.sections import (
    decode_sections,
    encode_sections,
    join_records,
    section_array,
)
from tensorrepo.repo.deferred_dataclass import dataclass
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.ids import Buffer

RUNS_MAGIC = b"TRPW"
RECORDS, RUNS = 1, 2

RECORD = np.dtype([("fragment", "<u4"), ("runs", "<u4")])
RUN = np.dtype([("uid", "<u8"), ("first", "<u4"), ("rows", "<u4")])
assert RUN.itemsize == 16, "docs/spec/dataset.md promises 16-byte runs"

# What names a row for good: the fragment that it was written in, and its offset there.
ROW_ID = np.dtype([("fragment", "<u8"), ("offset", "<u4")])


def plain_run(uid: int, rows: int) -> NDArray[Any]:
    """The runs of a fragment whose rows were written in it: RUN ``(1,)``."""
    return np.array([(uid, 0, rows)], RUN)


def ids_of_runs(runs: NDArray[Any]) -> NDArray[Any]:
    """The id of every row: ROW_ID ``(rows,)``."""
    counts = runs["rows"].astype(np.int64)
    found = np.empty(int(counts.sum()), ROW_ID)
    found["fragment"] = np.repeat(runs["uid"], counts)
    starts = np.cumsum(counts) - counts
    within = np.arange(len(found)) - np.repeat(starts, counts)
    found["offset"] = np.repeat(runs["first"].astype(np.int64), counts) + within
    return found


def runs_of_ids(ids: NDArray[Any]) -> NDArray[Any]:
    """The fewest runs that give these ids in this order: RUN ``(n,)``."""
    if not len(ids):
        return np.zeros(0, RUN)
    follows = (ids["fragment"][1:] == ids["fragment"][:-1]) & (
        ids["offset"][1:].astype(np.int64) == ids["offset"][:-1].astype(np.int64) + 1
    )
    starts = np.concatenate([[0], np.flatnonzero(~follows) + 1])
    found = np.empty(len(starts), RUN)
    found["uid"], found["first"] = ids["fragment"][starts], ids["offset"][starts]
    found["rows"] = np.diff(np.append(starts, len(ids)))
    return found


def join_runs(pieces: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """All runs of `pieces` in order, those that go on from the one before joined with it."""
    runs = join_records([np.zeros(0, RUN), *pieces])
    if not len(runs):
        return runs
    stops = runs["first"].astype(np.int64) + runs["rows"]
    begins = np.ones(len(runs), np.bool_)
    begins[1:] = (runs["uid"][1:] != runs["uid"][:-1]) | (runs["first"][1:] != stops[:-1])
    starts = np.flatnonzero(begins)
    joined = runs[starts].copy()
    joined["rows"] = np.add.reduceat(runs["rows"].astype(np.int64), starts)
    return joined


def encode_row_runs(runs: Mapping[int, NDArray[Any]]) -> bytes:
    """The payload of row runs; keys are fragments, counted within the span."""
    ordered = sorted(runs.items())
    records = np.array([(fragment, len(each)) for fragment, each in ordered], RECORD)
    every = join_records([np.zeros(0, RUN), *(each for _, each in ordered)])
    return encode_sections(RUNS_MAGIC, {RECORDS: records, RUNS: every})


def decode_row_runs(payload: Buffer, what: str) -> dict[int, NDArray[Any]]:
    """Parse the payload of row runs: RUN arrays by fragment, counted within the span.

    Raises:
        CorruptError: the parts contradict each other.
    """
    sections = decode_sections(RUNS_MAGIC, payload, what)
    records = section_array(sections, RECORDS, RECORD, what)
    runs = section_array(sections, RUNS, RUN, what)
    counts = records["runs"].astype(np.int64)
    if int(counts.sum()) != len(runs) or sections.keys() - {RECORDS, RUNS}:
        raise CorruptError(f"{what}: records and runs do not have the same count")
    if (np.diff(records["fragment"].astype(np.int64)) <= 0).any() or (runs["rows"] == 0).any():
        raise CorruptError(f"{what}: fragments out of order, or an empty run")
    pieces = np.split(runs, np.cumsum(counts))[: len(records)]
    return dict(zip(records["fragment"].tolist(), pieces, strict=True))


ROW_ID_TEXT = re.compile(r"([0-9a-f]{16}):(\d{1,10})")


def format_row_id(row_id: Any) -> str:
    """``0123456789abcdef:42``: how a row id is shown."""
    return f"{int(row_id['fragment']):016x}:{int(row_id['offset'])}"


def parse_row_id(text: str) -> NDArray[Any]:
    """The row id that `format_row_id` wrote: a ROW_ID record."""
    found = ROW_ID_TEXT.fullmatch(text)
    if not found or int(found[2]) >> 32:
        raise InvalidInputError(
            f"{text!r} is no row id: expected 16 hex digits, a colon and an offset"
        )
    return np.array((int(found[1], 16), int(found[2])), ROW_ID)


def row_ids(ids: Iterable[Any] | NDArray[Any]) -> NDArray[Any]:
    """Row ids given as text, pairs or ROW_ID records, as ROW_ID ``(n,)``."""
    if isinstance(ids, np.ndarray) and ids.dtype == ROW_ID:
        return ids.reshape(-1)
    pairs = (parse_row_id(each).item() if isinstance(each, str) else tuple(each) for each in ids)
    return np.array(list(pairs), ROW_ID)


@dataclass(frozen=True, slots=True, eq=False)
class RowIdTable:
    """Ids of all physical rows of a dataset, as runs.

    Attributes:
        runs: RUN ``(n,)``, in the order of the rows.
        first_row: int64 ``(n,)``: the physical row that each run begins with.
    """

    runs: NDArray[Any]
    first_row: Ints

    def of(self, rows: Ints) -> NDArray[Any]:
        """Ids of physical rows: ROW_ID ``(len(rows),)``."""
        at = np.searchsorted(self.first_row, rows, side="right") - 1
        found = np.empty(len(rows), ROW_ID)
        found["fragment"] = self.runs["uid"][at]
        first: NDArray[np.uint32] = self.runs["first"][at]
        found["offset"] = first + (rows - self.first_row[at])
        return found

    def find(self, ids: NDArray[Any]) -> Ints:
        """Physical rows that have these ids; -1 where there is none."""
        if not len(self.runs):
            return np.full(len(ids), -1, np.int64)
        order = np.lexsort((self.runs["first"], self.runs["uid"]))
        sorted_runs = self.runs[order]
        at = _place(sorted_runs, ids)
        inside = np.maximum(at, 0)
        run = sorted_runs[inside]
        past = ids["offset"].astype(np.int64) - run["first"].astype(np.int64)
        hit = (at >= 0) & (run["uid"] == ids["fragment"]) & (past >= 0) & (past < run["rows"])
        return np.where(hit, self.first_row[order][inside] + past, -1)


def _place(runs: NDArray[Any], ids: NDArray[Any]) -> Ints:
    """The last run, ordered by uid and first offset, that does not begin behind each id."""
    # Uids to small numbers, so that uid and offset fit into one key.
    uids, rank = np.unique(runs["uid"], return_inverse=True)
    keys = rank.astype(np.int64) << 32 | runs["first"].astype(np.int64)
    wanted = np.searchsorted(uids, ids["fragment"])
    wanted_keys = wanted.astype(np.int64) << 32 | ids["offset"].astype(np.int64)
    return np.searchsorted(keys, wanted_keys, side="right") - 1


def id_table(
    uids: NDArray[np.uint64], rows: NDArray[np.uint32], moved: dict[int, NDArray[Any]]
) -> RowIdTable:
    """The ids of a dataset.

    `moved` has the RUN arrays of fragments, by number, whose rows were written elsewhere.
    """
    plain = np.zeros(len(uids), RUN)
    plain["uid"], plain["rows"] = uids, rows
    pieces = []
    done = 0
    for at in sorted(moved):
        pieces += [plain[done:at], moved[at]]
        done = at + 1
    runs = join_records([*pieces, plain[done:]])
    counts = runs["rows"].astype(np.int64)
    return RowIdTable(runs, np.cumsum(counts) - counts)
