"""Where did the rows of a fragment come from?

A row's id is the uid of the fragment that it was written in, and its offset there. It stays the
same when compaction moves the row: the new fragment then says, as runs, which ids its rows have.

Source:
    docs/spec/dataset.md, section "Row runs".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.dataset.pages.sections import (
    decode_sections,
    encode_sections,
    section_array,
)
from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

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
    runs = np.concatenate([np.zeros(0, RUN), *pieces])
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
    every = np.concatenate([np.zeros(0, RUN), *(each for _, each in ordered)])
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
