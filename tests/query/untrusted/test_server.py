"""Scans of an untrusted query are served as they are asked, and the oldest are given up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tensorrepo as tr
from tensorrepo.query.sql.pushdown import Scanned
from tensorrepo.query.untrusted.pipe import Next, ScanRequest, packed_filter, unpacked
from tensorrepo.query.untrusted.sandbox import CATALOG_COLUMNS, MOST_COLUMNS, Serving

ROWS = pa.record_batch({"n": [1, 2, 3], "t": ["a", "b", None]})
MOST_SCANS = MOST_COLUMNS // CATALOG_COLUMNS


@dataclass
class _Plain:
    """A table in memory, which counts how many of its scans are open."""

    schema: pa.Schema = ROWS.schema
    shown: tuple[str, ...] = ("n", "t")
    open: list[int] = field(default_factory=lambda: [0])

    def reader(self, columns: list[str], where: pc.Expression | None) -> pa.RecordBatchReader:
        batch = ROWS.select(columns)
        return pa.RecordBatchReader.from_batches(batch.schema, self._batches(batch, where))

    def _batches(
        self, batch: pa.RecordBatch, where: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        self.open[0] += 1
        try:
            for at in range(3):
                one = batch.slice(at, 1)
                yield one if where is None else one.filter(where)
        finally:
            self.open[0] -= 1


@pytest.fixture
def table() -> _Plain:
    return _Plain()


@pytest.fixture
def serving(table: _Plain) -> Serving:
    return Serving([table], Scanned(), 1 << 30)


def _scan(number: int, columns: tuple[str, ...] = ("n",)) -> ScanRequest:
    return ScanRequest(scan=number, table=0, columns=list(columns), ended=[])


def _next(serving: Serving, number: int, ended: tuple[int, ...] = ()) -> list[dict[str, object]]:
    head, body = serving.next(Next(scan=number, ended=list(ended)))
    assert head == {}
    return [row for batch in unpacked(body).batches for row in batch.to_pylist()]


def test_rows_come_batch_by_batch_and_then_nothing(serving: Serving) -> None:
    serving.begin(_scan(0), b"")
    assert [_next(serving, 0) for _ in range(3)] == [[{"n": 1}], [{"n": 2}], [{"n": 3}]]
    assert serving.next(Next(scan=0, ended=[])) == ({}, b"")


def test_filters_are_applied(serving: Serving) -> None:
    body = packed_filter(pc.field("n") == 2)
    assert body is not None
    serving.begin(_scan(0), body.to_pybytes())
    assert [_next(serving, 0) for _ in range(3)] == [[], [{"n": 2}], []]


def test_a_filter_that_fits_no_column_is_told_in_our_words(serving: Serving) -> None:
    body = packed_filter(pc.field("elsewhere") == 2)
    assert body is not None
    serving.begin(_scan(0), body.to_pybytes())
    assert serving.next(Next(scan=0, ended=[])) == ({"failed": True}, b"")
    assert isinstance(serving.scanned.failed, tr.InvalidInputError)


def test_scans_that_wait_the_longest_are_given_up(serving: Serving, table: _Plain) -> None:
    for number in range(3 * MOST_SCANS):
        serving.begin(_scan(number), b"")
        assert _next(serving, number) == [{"n": 1}]
    assert table.open == [MOST_SCANS]
    assert _next(serving, 3 * MOST_SCANS - 1) == [{"n": 2}]


def test_a_scan_that_was_given_up_says_what_to_do(serving: Serving) -> None:
    for number in range(MOST_SCANS + 1):
        serving.begin(_scan(number), b"")
    assert serving.next(Next(scan=0, ended=[])) == ({"failed": True}, b"")
    with pytest.raises(tr.InvalidInputError, match="name fewer columns or tables"):
        raise serving.scanned.failed  # type: ignore[misc]


def test_scans_that_ended_make_room(serving: Serving, table: _Plain) -> None:
    for number in range(MOST_SCANS):
        serving.begin(_scan(number), b"")
        _next(serving, number)
    _next(serving, MOST_SCANS - 1, ended=tuple(range(1, MOST_SCANS - 1)))
    assert table.open == [2]
    serving.begin(_scan(MOST_SCANS), b"")
    assert _next(serving, 0) == [{"n": 2}]


@pytest.mark.parametrize(
    "asked",
    [
        ScanRequest(scan=0, table=1, columns=["n"], ended=[]),
        ScanRequest(scan=0, table=0, columns=["elsewhere"], ended=[]),
        ScanRequest(scan=0, table=0, columns=["n", "n"], ended=[]),
    ],
)
def test_scans_of_what_is_not_there_are_refused(serving: Serving, asked: ScanRequest) -> None:
    with pytest.raises(tr.InvalidInputError, match="untrusted query was stopped"):
        serving.begin(asked, b"")


def test_a_scan_begins_once(serving: Serving) -> None:
    serving.begin(_scan(0), b"")
    with pytest.raises(tr.InvalidInputError, match="began scan 0 after 0"):
        serving.begin(_scan(0), b"")


def test_a_scan_that_never_began_has_no_rows(serving: Serving) -> None:
    with pytest.raises(tr.InvalidInputError, match="scan 7, which is none"):
        serving.next(Next(scan=7, ended=[]))


def test_a_body_that_is_no_filter_is_refused(serving: Serving) -> None:
    with pytest.raises(tr.InvalidInputError, match="a filter that cannot be read"):
        serving.begin(_scan(0), b"no filter")
