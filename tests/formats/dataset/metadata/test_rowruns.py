"""Ids of rows survive their packing into runs, which are as few as can be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tensorrepo.formats.dataset.metadata.row_ids import (
    RECORD,
    RECORDS,
    ROW_ID,
    RUN,
    RUNS,
    RUNS_MAGIC,
    decode_row_runs,
    encode_row_runs,
    ids_of_runs,
    join_runs,
    plain_run,
    runs_of_ids,
)
from tensorrepo.formats.dataset.pages.sections import encode_sections
from tensorrepo.repo.errors import CorruptError

# Few fragments and offsets, so that ids follow each other by chance; and the last ones there are.
OFFSETS = st.integers(0, 6) | st.integers(2**32 - 3, 2**32 - 1)
IDS = st.lists(st.tuples(st.sampled_from([0, 1, 2**64 - 1]), OFFSETS), max_size=30)


def _ids(pairs: list[tuple[int, int]]) -> NDArray[Any]:
    return np.array(pairs, ROW_ID)


def _runs(pairs: list[tuple[int, int]]) -> int:
    """How many runs there are, counted one by one."""
    before = zip([None, *pairs], pairs, strict=False)
    return sum(one is None or (one[0], one[1] + 1) != two for one, two in before)


@given(IDS)
def test_ids_are_those_that_runs_were_made_of(pairs: list[tuple[int, int]]) -> None:
    runs = runs_of_ids(_ids(pairs))
    assert ids_of_runs(runs).tolist() == pairs
    assert len(runs) == _runs(pairs)


@given(st.lists(IDS, max_size=4))
def test_joined_runs_are_those_of_all_ids_together(pieces: list[list[tuple[int, int]]]) -> None:
    joined = join_runs([runs_of_ids(_ids(pairs)) for pairs in pieces])
    every = [pair for pairs in pieces for pair in pairs]
    assert joined.tolist() == runs_of_ids(_ids(every)).tolist()


def test_a_plain_run_names_all_rows_of_a_fragment() -> None:
    assert ids_of_runs(plain_run(7, 3)).tolist() == [(7, 0), (7, 1), (7, 2)]


@given(st.dictionaries(st.integers(0, 2**32 - 1), IDS.filter(bool), max_size=4))
def test_row_runs_hold_those_of_all_fragments(drawn: dict[int, list[tuple[int, int]]]) -> None:
    runs = {at: runs_of_ids(_ids(pairs)) for at, pairs in drawn.items()}
    found = decode_row_runs(encode_row_runs(runs), "row runs")
    assert list(found) == sorted(runs)
    assert all(found[at].tolist() == runs[at].tolist() for at in runs)


@pytest.mark.parametrize(
    ("records", "runs", "reason"),
    [
        ([(0, 1)], [(7, 0, 0)], "empty run"),
        ([(0, 2)], [(7, 0, 3)], "same count"),
        ([(0, 1)], [(7, 0, 3), (8, 0, 3)], "same count"),
        ([(1, 1), (0, 1)], [(7, 0, 3), (8, 0, 3)], "out of order"),
        ([(1, 1), (1, 1)], [(7, 0, 3), (8, 0, 3)], "out of order"),
    ],
)
def test_row_runs_that_contradict_themselves_are_corrupt(
    records: list[tuple[int, int]], runs: list[tuple[int, int, int]], reason: str
) -> None:
    sections = {RECORDS: np.array(records, RECORD), RUNS: np.array(runs, RUN)}
    with pytest.raises(CorruptError, match=reason):
        decode_row_runs(encode_sections(RUNS_MAGIC, sections), "row runs")
