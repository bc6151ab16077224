"""Rows without a key are aligned by what they hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.versions.align import Alignment, ContentTable, align_rows


def _align(old: Sequence[object], new: Sequence[object]) -> Alignment:
    content = sorted(set(old), key=str)
    one = np.array([content.index(each) for each in old], np.int64)
    two = np.array([content.index(each) if each in content else -1 for each in new], np.int64)
    return align_rows(one, two)


@pytest.mark.parametrize(
    ("old", "new", "partner", "deleted"),
    [
        ("", "", [], []),
        ("", "ab", [-1, -1], []),
        ("ab", "", [], [0, 1]),
        ("abcd", "abcd", [0, 1, 2, 3], []),
        ("abcd", "abXd", [0, 1, 2, 3], []),  # as many between aligned rows: changed
        ("abcd", "abXYcd", [0, 1, -1, -1, 2, 3], []),
        ("abcd", "acd", [0, 2, 3], [1]),
        ("abcd", "Xabcd", [-1, 0, 1, 2, 3], []),
        ("abcd", "aXYZd", [0, -1, -1, -1, 3], [1, 2]),  # not as many: came and went
        ("abcd", "dcba", [3, 2, 1, 0], []),  # a source in another order changes nothing
        ("aaab", "aab", [0, 1, 3], [2]),
        ("xaax", "xaaax", [0, 1, 2, -1, 3], []),
        ("ab", "XY", [0, 1], []),
        ("aab", "abX", [0, 2, -1], [1]),
    ],
)
def test_which_row_is_which(old: str, new: str, partner: list[int], deleted: list[int]) -> None:
    aligned = _align(old, new)
    assert aligned.partner.tolist() == partner
    assert aligned.deleted.tolist() == deleted


ROWS = st.lists(st.integers(0, 12), max_size=30)


@given(ROWS, ROWS)
def test_every_row_has_one_partner_at_most_and_equal_rows_are_paired_first(
    old: list[int], new: list[int]
) -> None:
    aligned = _align(old, new)
    paired = aligned.partner[aligned.partner >= 0].tolist()
    assert sorted([*paired, *aligned.deleted.tolist()]) == list(range(len(old)))
    for row, partner in enumerate(aligned.partner.tolist()):
        assert bool(aligned.is_equal[row]) == (partner >= 0 and old[partner] == new[row])
    common = sum(min(old.count(each), new.count(each)) for each in set(old))
    assert int(aligned.is_equal.sum()) == common


@given(ROWS, st.integers(0, 30), ROWS)
def test_rows_put_between_others_leave_them_alone(old: list[int], at: int, more: list[int]) -> None:
    rows = np.arange(len(old), dtype=np.int64)
    put = np.insert(rows, min(at, len(old)), [-1] * len(more))
    aligned = align_rows(rows, put)
    assert aligned.partner.tolist() == put.tolist()
    assert aligned.moved == 0


@given(
    st.lists(st.integers(0, 5), max_size=20),
    st.lists(st.integers(0, 6), max_size=20),
)
def test_digests_are_numbered_alike(old: list[int], new: list[int]) -> None:
    digests = [np.array([[each, ~each & 7] for each in side], np.uint64) for side in (old, new)]
    table = ContentTable.of(digests[0].reshape(-1, 2))
    one, two = table.numbers, table.find(digests[1].reshape(-1, 2))
    for row, value in enumerate(new):
        expected = one[old.index(value)] if value in old else -1
        assert two[row] == expected
    assert len(set(one.tolist())) == len(set(old))
