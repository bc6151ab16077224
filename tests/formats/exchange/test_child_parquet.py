"""Parquet is read ahead: each byte of each column is asked for once, in time, and not too soon."""

from __future__ import annotations

import os
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.exchange import child_parquet
from tensorrepo.formats.exchange.child_parquet import ReadAhead, column_ranges, read_row_groups

SIZES = st.lists(st.lists(st.integers(0, 300), max_size=4), max_size=6)


def _laid_out(sizes: list[list[int]]) -> list[list[tuple[int, int]]]:
    """Columns of so many bytes, one behind the other from byte 4 on."""
    at, groups = 4, []
    for group in sizes:
        groups.append([(at + sum(group[:place]), size) for place, size in enumerate(group)])
        at += sum(group)
    return groups


@given(SIZES, st.lists(st.integers(1, 400), max_size=30))
def test_what_comes_next_is_asked_for_once(sizes: list[list[int]], steps: list[int]) -> None:
    groups = _laid_out(sizes)
    total = sum(map(sum, sizes))
    ahead, stop, asked = ReadAhead(iter(groups), step_bytes=50), 0, 0
    ranges: list[tuple[int, int]] = []
    for step in [*steps, total + 50]:
        stop += step
        ranges += ahead.ranges(stop)
        asked = sum(end - start for start, end in ranges)
        assert min(total, stop) - 50 - 4 <= asked <= stop  # each of four columns is cut to a byte
    assert asked == total
    ordered = sorted(ranges)
    assert all(start < end for start, end in ordered)
    assert all(one[1] <= other[0] for one, other in pairwise(ordered))
    assert not ordered or (ordered[0][0], ordered[-1][1]) == (4, 4 + total)


def _written(path: Path, columns: int) -> pq.FileMetaData:
    table = pa.table({f"c{at}": list(range(1000)) for at in range(columns)})
    pq.write_table(table, path, row_group_size=100)
    return pq.read_metadata(path)


def _read(path: Path, monkeypatch: pytest.MonkeyPatch, told: Any = None) -> list[Any]:
    """What is asked of the kernel, and None for each batch of rows."""
    seen: list[Any] = []

    def advise(_file: int, start: int, size: int, _advice: int) -> None:
        seen.append((start, start + size))
        if told is not None:
            raise told

    monkeypatch.setattr(os, "posix_fadvise", advise, raising=False)
    rows = 0
    for batch in read_row_groups(str(path), batch_bytes=400, least_bytes=8, most_rows=1000):
        seen.append(None)
        rows += batch.num_rows
    assert rows == 1000
    return seen


def test_a_file_is_asked_for_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_parquet, "AHEAD_BYTES", 2000)
    monkeypatch.setattr(child_parquet, "STEP_BYTES", 500)
    metadata = _written(tmp_path / "x.parquet", 2)
    seen = _read(tmp_path / "x.parquet", monkeypatch)
    total = sum(size for at in range(10) for _, size in column_ranges(metadata.row_group(at)))
    asked = list(accumulate(each[1] - each[0] if each else 0 for each in seen))
    taken = list(accumulate(each is None for each in seen))
    assert asked[-1] == total
    assert 0 < asked[seen.index(None)] <= 2000
    share = total / taken[-1]  # of a batch, nearly
    assert all(have >= share * count for have, count in zip(asked, taken, strict=True))
    assert all(have <= share * count + 2100 for have, count in zip(asked, taken, strict=True))


@pytest.mark.parametrize("refusal", [OSError(22, "no such place"), OverflowError()])
def test_places_that_are_none_are_passed_over(
    refusal: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_parquet, "STEP_BYTES", 1)
    _written(tmp_path / "x.parquet", 2)
    assert any(_read(tmp_path / "x.parquet", monkeypatch, refusal))


def test_a_file_of_very_many_columns_is_read_as_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_parquet, "STEP_BYTES", 1)
    monkeypatch.setattr(child_parquet, "MOST_COLUMNS", 2)
    _written(tmp_path / "x.parquet", 3)
    assert not any(_read(tmp_path / "x.parquet", monkeypatch))
