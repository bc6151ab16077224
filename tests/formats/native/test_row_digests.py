"""Digests of rows: in C and in numpy, with identical results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.native.row_digests import NATIVE, NUMPY, CellMixer, new_lanes
from tests.support.builders.native import needs_native

MIXERS: list[Any] = [
    pytest.param(NUMPY, id="numpy"),
    pytest.param(NATIVE, id="native", marks=needs_native),
]
EVERY = pytest.mark.parametrize("mixer", MIXERS)


Cells = list[bytes | None]


def _digests(mixer: CellMixer, *columns: Cells) -> list[tuple[int, int]]:
    lanes = new_lanes(len(columns[0]))
    for cells in columns:
        # What lies where a cell is null means nothing.
        filled = [b"?" * at if cell is None else cell for at, cell in enumerate(cells)]
        data = np.frombuffer(b"".join(filled), np.uint8)
        offsets = np.cumsum([0, *map(len, filled)], dtype=np.int64)
        valid = np.array([cell is not None for cell in cells])
        mixer.mix(data, offsets, None if valid.all() else valid, lanes)
    return [tuple(row) for row in lanes.tolist()]


@EVERY
def test_equal_rows_have_equal_digests_and_others_have_not(mixer: CellMixer) -> None:
    cells: Cells = [
        b"",
        b"\0",
        b"\0" * 8,
        b"\0" * 9,
        b"a",
        b"b",
        b"a" * 100,
        b"a" * 99 + b"b",
        b"a",
        None,
        None,
    ]
    digests = _digests(mixer, cells)
    assert digests[4] == digests[8]
    assert digests[9] == digests[10]
    assert len(set(digests)) == len(set(cells))
    assert len({first for first, _ in digests}) == len({second for _, second in digests})


@EVERY
def test_where_one_cell_ends_and_the_next_begins_counts(mixer: CellMixer) -> None:
    one, other = _digests(mixer, [b"ab", b"a"], [b"c", b"bc"])
    assert one != other


@EVERY
def test_the_order_of_columns_counts(mixer: CellMixer) -> None:
    one, other = _digests(mixer, [b"1", b"2"], [b"2", b"1"])
    assert one != other


@EVERY
@pytest.mark.parametrize("offsets", [[0, 3], [2, 1, 3], [-1, 1, 2], [0, 1, 4]])
def test_offsets_that_do_not_fit_are_refused(mixer: CellMixer, offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="offsets"):
        mixer.mix(np.zeros(3, np.uint8), np.array(offsets), None, new_lanes(2))


@needs_native
@given(st.lists(st.tuples(st.binary(max_size=40), st.none() | st.binary(max_size=40)), max_size=20))
def test_both_mix_alike(rows: list[tuple[bytes, bytes | None]]) -> None:
    assert NATIVE is not None
    columns = [[row[at] for row in rows] for at in range(2)]
    assert _digests(NATIVE, *columns) == _digests(NUMPY, *columns)
