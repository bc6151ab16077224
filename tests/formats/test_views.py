"""Views hold which rows a query chose, and come back as a dataset of these rows."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.compact import compact_dataset
from tensorrepo.formats.dataset.metadata.row_ids import ROW_ID, RUN
from tensorrepo.formats.dataset.read import StoredDataset, live_rows, open_dataset, row_id_table
from tensorrepo.formats.dataset.schema.schema import Schema
from tensorrepo.formats.dataset.update import delete_rows
from tensorrepo.formats.views import (
    StoredView,
    diff_views,
    make_view,
    open_rows,
    open_view,
    write_view,
)
from tensorrepo.repo.errors import CorruptError, Error, InvalidInputError, UnsupportedError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects

COMMIT = Digest("ab" * 32)
COUNT = 40


def _made(objects: MemoryObjects) -> StoredDataset:
    """Rows 0 to 39, of which 3 was deleted and all were moved to other fragments."""
    first = stored(objects, Schema.of({"n": "int64"}), [{"n": np.arange(COUNT)}])
    gone = open_dataset(objects, delete_rows(objects, first, [3]).digest)
    return open_dataset(objects, compact_dataset(objects, gone).digest)


def _ids(dataset: StoredDataset, rows: Any) -> Any:
    return row_id_table(dataset).of(live_rows(dataset).physical(np.array(rows, np.int64)))


def _view(dataset: StoredDataset, rows: Any) -> Any:
    return make_view(dataset, _ids(dataset, rows), "SELECT", "datasets/d", COMMIT)


@given(rows=st.lists(st.integers(0, COUNT - 2)))
def test_rows_come_back_in_the_order_of_the_dataset(rows: list[int]) -> None:
    objects = MemoryObjects()
    dataset = _made(objects)
    link = write_view(objects, _view(dataset, rows))
    view = open_view(objects, link.digest)
    _, found = open_rows(objects, view)
    assert found["n"][:].tolist() == dataset["n"][sorted(set(rows))].tolist()
    assert len(found) == view.rows == len(set(rows))


def test_a_view_links_to_its_dataset_and_to_nothing_else() -> None:
    objects = MemoryObjects()
    dataset = _made(objects)
    link = write_view(objects, _view(dataset, [1, 2, 3]))
    assert [each.digest for each in objects.get(link.digest).links] == [dataset.digest]
    assert link.kind is Kind.VIEW


def test_neighbouring_rows_take_one_run() -> None:
    dataset = _made(MemoryObjects())
    assert len(_view(dataset, range(10, 30)).runs) == 1


def test_views_differ_in_rows_by_their_ids() -> None:
    dataset = _made(MemoryObjects())
    found = diff_views(_view(dataset, [1, 2, 9]), _view(dataset, [2, 9, 10, 11]))
    assert found.added.tolist() == _ids(dataset, [10, 11]).tolist()
    assert found.removed.tolist() == _ids(dataset, [1]).tolist()
    assert found.summary == "2 rows in, 1 row out"
    assert len(diff_views(_view(dataset, []), _view(dataset, [])).added) == 0


def test_ids_of_no_row_are_refused() -> None:
    dataset = _made(MemoryObjects())
    with pytest.raises(InvalidInputError, match="1 of 1 row ids are of no row"):
        make_view(dataset, np.array([(1, 2)], ROW_ID), "", "datasets/d", COMMIT)


def _root(**changes: Any) -> bytes:
    fields = {
        "version": 1, "features": [], "sql": "", "path": "", "dataset": bytes(32),
        "commit": bytes(32), "rows": 0, "runs": b"",
    }  # fmt: skip
    return msgspec.msgpack.encode(fields | changes)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"version": 2}, UnsupportedError),
        ({"features": ["x"]}, UnsupportedError),
        ({"rows": 1}, CorruptError),
        ({"runs": b"123"}, CorruptError),
        ({"dataset": b"12"}, CorruptError),
        ({"sql": 3}, CorruptError),
        ({"more": 3}, CorruptError),
        ({"rows": 0, "runs": np.zeros(1, RUN).tobytes()}, CorruptError),
        ({"rows": 5, "runs": np.array([(7, 0, 5)], RUN).tobytes()}, CorruptError),
    ],
)
def test_views_that_contradict_themselves_are_refused(
    changes: dict[str, Any], error: type[Error]
) -> None:
    objects = MemoryObjects()
    dataset = _made(objects)
    payload = _root(**{"dataset": bytes.fromhex(dataset.digest)} | changes)
    link = objects.put(Kind.VIEW, payload, [dataset.digest])
    with pytest.raises(error):
        open_rows(objects, open_view(objects, link.digest))


# What version 1 writes: a view of rows 5, 6 and 9 of fragment 7. Changing it is a new version.
GOLDEN = (
    "88a776657273696f6e01a8666561747572657390a373716ca653454c454354a470617468aa64617461736574732f64"
    f"a764617461736574c420{'00' * 32}a6636f6d6d6974c420{'ab' * 32}a4726f777303a472756e73c420"
    "07000000000000000500000002000000" "07000000000000000900000001000000"
)  # fmt: skip


def test_the_bytes_of_a_view_stay_what_they_are() -> None:
    objects = MemoryObjects()
    dataset = _made(objects)
    runs = np.array([(7, 5, 2), (7, 9, 1)], RUN)
    link = write_view(objects, StoredView("SELECT", "datasets/d", dataset.digest, COMMIT, runs))
    found = bytes(objects.get(link.digest).payload).hex()
    assert found.replace(dataset.digest, "00" * 32) == GOLDEN


def test_another_kind_of_object_is_no_view() -> None:
    objects = MemoryObjects()
    with pytest.raises(InvalidInputError, match="is a dataset, not a view"):
        open_view(objects, _made(objects).digest)
