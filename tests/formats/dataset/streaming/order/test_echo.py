"""Data echoing: each row is read once and given several times, in the order of the spec."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import Column, Image, Scalar, Schema
from tensorrepo.formats.dataset.streaming.collate.decode import Decode
from tensorrepo.formats.dataset.streaming.mix.feed import mix
from tensorrepo.formats.dataset.streaming.stream import BatchStream
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.changed import without
from tests.support.builders.datasets import stored
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.pictures import encoded, smooth
from tests.support.builders.streams import COUNT, ROWS, SCHEMA, WINDOW, MappedObjects, stream
from tests.support.second_readers.order import Lanes, number


@pytest.fixture(scope="module")
def local() -> StoredDataset:
    return stored(MappedObjects(), SCHEMA, [ROWS], page_bytes=8192)


def opened(ds: StoredDataset, **options: Any) -> BatchStream:
    return stream(ds, **({"batch_size": 40, "window": WINDOW, "columns": ["x", "y"]} | options))


def given(found: BatchStream) -> tuple[list[int], list[int]]:
    """Every row as it comes, and which time it does."""
    batches = list(found)
    rows = [row for batch in batches for row in batch.rows.tolist()]
    assert [row for batch in batches for row in batch["y"].tolist()] == rows
    return rows, [time for batch in batches for time in batch.echo.tolist()]


@pytest.mark.parametrize("shuffle", ["pages", "buffer", False])
@pytest.mark.parametrize("echo", [2, 3])
def test_each_row_comes_so_often_and_is_read_once(
    local: StoredDataset, shuffle: Any, echo: int
) -> None:
    found = opened(local, echo=echo, shuffle=shuffle)
    rows, times = given(found)
    assert sorted(zip(rows, times, strict=True)) == [
        (row, time) for row in range(COUNT) for time in range(echo)
    ]
    assert found.stats().runs == found.feed.plan.runs


@pytest.mark.parametrize("epoch", [0, 3])
def test_the_order_is_that_of_the_specification(local: StoredDataset, epoch: int) -> None:
    found = opened(local, echo=2, seed=7, epoch=epoch)
    arrangement, plan = found.feed.plan.arrangement, found.feed.plan
    live = [2 * rows for rows in plan.live.tolist()]
    order = Lanes(live, 7, epoch, arrangement.lanes, arrangement.bands)
    items = order.sequence()
    rows, times = given(found)
    assert rows == [plan.first_row[run] + item // 2 for run, item in items]
    assert times == [item % 2 for _, item in items]


@pytest.mark.parametrize("world", [1, 2, 3])
def test_all_ranks_together_give_what_one_gives(local: StoredDataset, world: int) -> None:
    one = opened(local, echo=2)
    expected = [sorted(zip(batch.rows.tolist(), batch.echo.tolist(), strict=True)) for batch in one]
    ranks = [list(opened(local, echo=2, rank=rank, world_size=world)) for rank in range(world)]
    steps = [
        sorted(
            pair
            for batch in step
            for pair in zip(batch.rows.tolist(), batch.echo.tolist(), strict=True)
        )
        for step in zip(*ranks, strict=True)
    ]
    assert steps == expected


@pytest.mark.parametrize("used", [0, 1, 13, 50])
def test_a_resumed_stream_goes_on_exactly(local: StoredDataset, used: int) -> None:
    whole = opened(local, echo=2, epoch=2)
    batches = [(b.rows.tolist(), b.echo.tolist(), b.position) for b in whole]
    begun = opened(local, echo=2, epoch=2)
    iterator = iter(begun)
    for _ in range(used):
        next(iterator)
    state = json.loads(json.dumps(begun.state_dict()))
    iterator.close()
    assert state["items"]["echo"] == 2
    resumed = opened(local, echo=2)
    resumed.load_state_dict(state)
    assert [(b.rows.tolist(), b.echo.tolist(), b.position) for b in resumed] == batches[used:]


def test_positions_of_another_echo_are_refused(local: StoredDataset) -> None:
    state = opened(local, echo=2).state_dict()
    with pytest.raises(InvalidInputError, match=r"echo=2, this stream has every row once"):
        opened(local).load_state_dict(state)
    assert "echo" not in opened(local).state_dict()["items"]  # as readers before it know it


def test_selections_and_weights_are_given_so_often(local: StoredDataset) -> None:
    rows, _ = given(opened(local, echo=2, rows=range(0, COUNT, 3)))
    assert sorted(rows) == sorted(list(range(0, COUNT, 3)) * 2)
    weights = np.zeros(COUNT)
    weights[[5, 900]] = 1, 3
    rows, times = given(opened(local, echo=2, weights=weights))
    assert np.bincount(rows, minlength=COUNT)[[5, 900]].tolist() == [2, 6]
    assert sum(times) == 4


def test_deleted_rows_do_not_come() -> None:
    objects = MemoryObjects()
    ds = without(objects, stored(objects, SCHEMA, [ROWS], page_bytes=8192), [3, 17, *range(40, 90)])
    found = opened(ds, echo=2)
    rows = [row for batch in found for row in batch.rows.tolist()]
    assert np.bincount(rows).tolist() == [2] * (COUNT - 52)


def test_rows_that_come_again_are_apart(local: StoredDataset) -> None:
    rows, _ = given(opened(local, echo=2))
    places: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(row, []).append(place)
    gaps = np.array([second - first for first, second in places.values()])
    # A run of 20 rows is 40 items of one of 4 lanes, or of the two of a ring where they meet.
    assert np.median(gaps) > 20
    assert (gaps < 4).mean() < 0.1


def test_a_window_that_holds_everything_scatters_them(local: StoredDataset) -> None:
    found = opened(local, echo=2, window=1 << 30)
    assert found.feed.plan.arrangement.kind == "resident"
    rows, _ = given(found)
    assert np.bincount(rows).tolist() == [2] * COUNT
    assert found.stats().runs == found.feed.plan.runs


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"shuffle": "global"}, "shuffle='pages'"),
        ({"columns": ["r"], "pack": 4}, "pack= or echo="),
        ({"echo": 0}, "echo is at least 1|echo"),
    ],
)
def test_what_would_read_rows_again_is_refused(
    local: StoredDataset, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidInputError, match=told):
        opened(local, **({"echo": 2} | options))


def test_a_mix_says_what_it_has_instead(local: StoredDataset) -> None:
    with pytest.raises(InvalidInputError, match="repeat="):
        mix([opened(local, echo=2), opened(local, echo=2)])


def test_what_it_means_is_explained(local: StoredDataset) -> None:
    plan = opened(local, echo=2).explain()
    assert (plan.rows, plan.echo) == (2 * COUNT, 2)
    assert "2 times each row, read once" in str(plan)
    once = opened(local).explain()
    assert (once.read_bytes, once.requests) == (plan.read_bytes, plan.requests)


def test_chance_differs_from_time_to_time() -> None:
    pytest.importorskip("cv2")
    pytest.importorskip("simplejpeg")
    schema = Schema((Column("photo", Image()), Column("y", Scalar("int64"))))
    rows = [
        {"photo": encoded(smooth(40, 50, seed=at), "PNG"), "y": np.int64(at)} for at in range(8)
    ]
    ds = stored(MappedObjects(), schema, [rows])
    decode = Decode(size=16, fit="random", flip=True)
    (batch,) = list(stream(ds, batch_size=16, decode=decode, echo=2))
    pictures: dict[tuple[int, int], Any] = {}
    for row, time, photo in zip(batch.rows, batch.echo, batch["photo"], strict=True):
        pictures[int(row), int(time)] = photo
    assert all((pictures[row, 0] != pictures[row, 1]).any() for row in range(8))
    (once,) = list(stream(ds, batch_size=16, decode=decode))
    for row, photo in zip(once.rows.tolist(), once["photo"], strict=True):
        np.testing.assert_array_equal(photo, pictures[row, 0])
    drawn = dict(zip(zip(batch.rows, batch.echo, strict=True), batch.draws, strict=True))
    assert all(drawn[row, 1] == number(1, row) for row in range(8))
