"""Streams: every row once and as stored, the same order everywhere, resumable."""

from __future__ import annotations

import json
import pickle
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrepo.formats.common.buffer_codecs import Codec
from tensorrepo.formats.dataset.read import StoredDataset, column_index
from tensorrepo.formats.dataset.schema.schema import Column, Json, Schema, Tensor, Timestamp
from tests.support.builders.datasets import Rows, datasets, same_rows, stored
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.streams import (
    COUNT,
    ROWS,
    SCHEMA,
    WINDOW,
    MappedObjects,
    lasting_stream_threads,
    row_numbers,
    rows_of,
    stream,
)
from tests.support.effort import examples

STORES = [MappedObjects, MemoryObjects]
SHUFFLES = ["pages", "global", "buffer", False]


@pytest.fixture(scope="module")
def dataset() -> StoredDataset:
    return stored(MappedObjects(), SCHEMA, [ROWS], page_bytes=8192)


@pytest.fixture(scope="module")
def remote() -> StoredDataset:
    return stored(MemoryObjects(), SCHEMA, [ROWS], page_bytes=8192)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    yield
    assert lasting_stream_threads() == []


# ------------------------------------------------------------------------------ rows


@settings(max_examples=examples(6))
@given(
    datasets(max_rows=60),
    st.sampled_from(STORES),
    st.sampled_from(SHUFFLES),
    st.sampled_from(Codec),
    st.integers(1, 20),
    st.integers(1, 5000),
    st.integers(0, 2),
)
def test_every_row_of_any_schema_comes_once_and_as_stored(
    drawn: tuple[Schema, Rows],
    store: type[MemoryObjects],
    shuffle: Any,
    codec: Codec,
    batch_size: int,
    window_bytes: int,
    prefetch: int,
) -> None:
    schema, rows = drawn
    ds = stored(store(), schema, [rows], page_bytes=512, codec=codec)
    found = list(
        stream(
            ds,
            batch_size=batch_size,
            shuffle=shuffle,
            window=window_bytes,
            prefetch=prefetch,
        )
    )
    numbers = [row for batch in found for row in batch.rows.tolist()]
    assert sorted(numbers) == list(range(len(rows)))
    assert same_rows(
        [row for batch in found for row in rows_of(batch)], [rows[number] for number in numbers]
    )


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_batches_are_whole_but_for_the_last(dataset: StoredDataset, shuffle: Any) -> None:
    found = stream(dataset, batch_size=64, shuffle=shuffle, window=WINDOW)
    assert len(found) == 16
    assert [len(batch["y"]) for batch in found] == [64] * 15 + [1000 - 15 * 64]


def test_last_drop_leaves_the_short_batch_out(dataset: StoredDataset) -> None:
    found = stream(dataset, batch_size=64, last="drop", window=WINDOW)
    assert len(found) == 15
    assert [len(batch["y"]) for batch in found] == [64] * 15


@pytest.mark.parametrize("world", [1, 2, 8])
def test_last_pad_repeats_rows_of_the_last_step(dataset: StoredDataset, world: int) -> None:
    options = {"batch_size": 64, "window": WINDOW}
    whole = stream(dataset, **options)
    short = row_numbers(list(whole))
    ranks = [
        list(stream(dataset, **options, last="pad", rank=rank, world_size=world))
        for rank in range(world)
    ]
    assert {len(batch["y"]) for rank in ranks for batch in rank} == {64 // world}
    assert all(np.array_equal(batch["y"], batch.rows) for rank in ranks for batch in rank)
    last = [rank[-1] for rank in ranks]
    own = [row for batch in last for row in batch.rows[: len(batch.rows) - batch.repeated].tolist()]
    assert sorted(own) == sorted(short[-1])
    assert sum(batch.repeated for batch in last) == 64 - len(short[-1])
    assert {batch.position for batch in last} == {COUNT}
    assert not any(batch.repeated for rank in ranks for batch in rank[:-1])


def test_replicated_ranks_get_the_same_share(dataset: StoredDataset) -> None:
    options = {"batch_size": 40, "window": WINDOW}
    ranks = [
        row_numbers(list(stream(dataset, **options, rank=rank, world_size=6, replicate=3)))
        for rank in range(6)
    ]
    halves = [
        row_numbers(list(stream(dataset, **options, rank=rank, world_size=2))) for rank in range(2)
    ]
    assert ranks == [halves[0]] * 3 + [halves[1]] * 3


def test_only_the_columns_asked_for_come_and_in_that_order(dataset: StoredDataset) -> None:
    batch = next(iter(stream(dataset, batch_size=8, columns=["t", "y"])))
    assert list(batch) == ["t", "y"]


def test_storage_order_is_storage_order(dataset: StoredDataset) -> None:
    found = row_numbers(list(stream(dataset, batch_size=300, shuffle=False)))
    assert found == [list(range(start, min(start + 300, COUNT))) for start in (0, 300, 600, 900)]


def test_a_page_shuffle_reads_every_run_once_and_mixes_them(dataset: StoredDataset) -> None:
    found = stream(dataset, batch_size=4, window=WINDOW)
    batches = list(found)
    assert found.stats().runs == column_index(dataset, "x").pages
    runs = column_index(dataset, "x").page_of(batches[100].rows)
    assert len(set(runs.tolist())) == 4


def test_what_fits_the_window_is_shuffled_as_a_whole(dataset: StoredDataset) -> None:
    assert stream(dataset, batch_size=8).explain().order == "resident"


def test_empty_datasets_have_no_batches() -> None:
    empty = stored(MappedObjects(), SCHEMA, [])
    found = stream(empty, batch_size=8)
    assert (len(found), list(found), found.explain().rows) == (0, [], 0)


def test_large_rows_are_streamed() -> None:
    schema = Schema.of({"x": Tensor("uint8", (40_000,)), "y": "int64"})
    data = np.random.default_rng(0).integers(0, 255, (30, 40_000), dtype=np.uint8)
    ds = stored(MappedObjects(), schema, [{"x": data, "y": np.arange(30)}], page_bytes=1 << 17)
    for batch in stream(ds, batch_size=7, window=300_000):
        assert np.array_equal(batch["x"], data[batch["y"]])


def test_columns_whose_pages_hold_several_runs_are_read_for_each(remote: StoredDataset) -> None:
    found = stream(remote, batch_size=4, window=20_000, columns=["x", "t"])
    planned = {column.name: column.reading for column in found.explain().columns}
    assert planned == {"x": "leading", "t": "page"}
    rows = [row for batch in found for row in rows_of(batch)]
    numbers = [int(row["x"][0]) for row in rows]
    assert same_rows(
        rows, [{name: ROWS[number][name] for name in ("x", "t")} for number in numbers]
    )


# ------------------------------------------------------------------------------ order


def test_the_same_seed_and_epoch_give_the_same_batches(
    dataset: StoredDataset, remote: StoredDataset
) -> None:
    one, two = (
        row_numbers(list(stream(ds, batch_size=32, window=WINDOW, seed=5, prefetch=ahead)))
        for ds, ahead in ((dataset, 0), (remote, 3))
    )
    assert one == two


def test_another_epoch_or_seed_gives_another_order(dataset: StoredDataset) -> None:
    found = stream(dataset, batch_size=COUNT, window=WINDOW)
    orders = [row_numbers(list(found))]
    found.set_epoch(1)
    orders.append(row_numbers(list(found)))
    orders.append(row_numbers(list(stream(dataset, batch_size=COUNT, window=WINDOW, seed=1))))
    assert orders[0] != orders[1] != orders[2] != orders[0]


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("world", [2, 3, 8])
def test_ranks_share_every_step(dataset: StoredDataset, shuffle: Any, world: int) -> None:
    options = {"batch_size": 40, "shuffle": shuffle, "window": WINDOW}
    whole = row_numbers(list(stream(dataset, **options)))
    ranks = [
        row_numbers(list(stream(dataset, **options, rank=rank, world_size=world)))
        for rank in range(world)
    ]
    steps = [sorted(row for part in parts for row in part) for parts in zip(*ranks, strict=True)]
    assert steps == [sorted(step) for step in whole]
    sizes = [len(part) for rank in ranks for part in rank[:-1]]
    assert max(sizes) - min(sizes) <= 1


# ------------------------------------------------------------------------------ resume


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("after", [0, 1, 7, 31, 32])
def test_reading_resumes_where_it_was(dataset: StoredDataset, shuffle: Any, after: int) -> None:
    options = {"batch_size": 32, "shuffle": shuffle, "window": WINDOW, "seed": 3, "epoch": 2}
    first = stream(dataset, **options)
    batches = iter(first)
    before = list(islice(batches, after))
    state = json.loads(json.dumps(first.state_dict()))
    rest = list(batches)
    resumed = stream(dataset, batch_size=32)  # what the order needs is in the state
    resumed.load_state_dict(state)
    assert len(resumed) == 32 - len(before)
    assert row_numbers(list(resumed)) == row_numbers(rest)


def test_reading_resumes_with_another_batch_size_and_world(dataset: StoredDataset) -> None:
    first = stream(dataset, batch_size=32, window=WINDOW)
    batches = iter(first)
    for _ in range(5):
        next(batches)
    rest = [row for batch in batches for row in batch.rows.tolist()]
    state = first.state_dict(position=160)
    ranks = []
    for rank in range(3):
        resumed = stream(dataset, batch_size=50, rank=rank, world_size=3)
        resumed.load_state_dict(state)
        ranks.append(row_numbers(list(resumed)))
    steps = [sorted(row for part in parts for row in part) for parts in zip(*ranks, strict=True)]
    assert steps == [sorted(rest[start : start + 50]) for start in range(0, len(rest), 50)]


def test_grouped_runs_resume_and_have_every_row_once(dataset: StoredDataset) -> None:
    options = {"batch_size": 32, "window": WINDOW}
    grouped = {"group_rows": 100, "run_rows": 19}
    first = stream(dataset, **options)
    first.load_state_dict(first.state_dict() | grouped)
    assert first.state_dict().items() >= grouped.items()
    rows = row_numbers(list(first))
    assert sorted(row for step in rows for row in step) == list(range(COUNT))
    assert rows != row_numbers(list(stream(dataset, **options)))
    resumed = stream(dataset, **options)
    resumed.load_state_dict(first.state_dict(position=320))
    assert row_numbers(list(resumed)) == rows[10:]


def test_the_state_follows_the_batches_handed_out_and_not_those_made_ahead(
    dataset: StoredDataset,
) -> None:
    found = stream(dataset, batch_size=32, prefetch=8)
    batches = iter(found)
    positions = [(next(batches).position, found.state_dict()["position"]) for _ in range(4)]
    assert positions == [(32, 32), (64, 64), (96, 96), (128, 128)]


def test_a_finished_epoch_resumes_with_nothing_and_the_next_with_everything(
    dataset: StoredDataset,
) -> None:
    first = stream(dataset, batch_size=32)
    list(first)
    resumed = stream(dataset, batch_size=32)
    resumed.load_state_dict(first.state_dict())
    assert list(resumed) == []
    resumed.set_epoch(1)
    assert len(list(resumed)) == 32


def test_setting_the_same_epoch_keeps_the_place(dataset: StoredDataset) -> None:
    first = stream(dataset, batch_size=32)
    resumed = stream(dataset, batch_size=32)
    resumed.load_state_dict(first.state_dict(position=320))
    resumed.set_epoch(0)
    assert len(resumed) == 22


def test_iterating_again_reads_the_next_epoch(dataset: StoredDataset) -> None:
    found = stream(dataset, batch_size=32, window=WINDOW)
    loops = [row_numbers(list(found)), row_numbers(list(found))]
    epochs = [stream(dataset, batch_size=32, window=WINDOW, epoch=epoch) for epoch in (0, 1)]
    assert loops == [row_numbers(list(each)) for each in epochs]
    found.set_epoch(1)
    assert row_numbers(list(found)) == loops[1]


def test_a_loop_that_is_left_early_is_over(dataset: StoredDataset) -> None:
    found = stream(dataset, batch_size=32, window=WINDOW)
    list(islice(found, 3))
    assert (found.epoch, found.state_dict()["position"]) == (0, 96)
    upcoming = found.next_state()
    assert (upcoming["epoch"], upcoming["position"]) == (1, 0)
    assert len(list(found)) == 32
    assert found.epoch == 1


def test_a_finished_epoch_that_is_resumed_has_nothing_left_and_the_next_one_follows(
    dataset: StoredDataset,
) -> None:
    first = stream(dataset, batch_size=32, window=WINDOW)
    list(first)
    again = stream(dataset, batch_size=32, window=WINDOW)
    again.load_state_dict(first.state_dict())
    assert list(again) == []
    assert row_numbers(list(again)) == row_numbers(list(first))
    for each in (first, again):  # their next epochs are on their way
        each.close()


def test_the_state_is_that_of_the_newest_iteration(dataset: StoredDataset) -> None:
    found = stream(dataset, batch_size=32)
    old = iter(found)
    next(iter(found))
    list(islice(old, 5))
    assert found.state_dict()["position"] == 32


def test_one_stream_is_iterated_twice_at_the_same_time(dataset: StoredDataset) -> None:
    found = stream(dataset, batch_size=32, window=WINDOW)
    pairs = list(zip(found, found, strict=True))
    epochs = [
        row_numbers(list(stream(dataset, batch_size=32, window=WINDOW, epoch=epoch)))
        for epoch in (0, 1)
    ]
    assert [row_numbers(list(each)) for each in zip(*pairs, strict=True)] == epochs


# ------------------------------------------------------------------------------ output


def test_row_numbers_find_the_same_rows_again(dataset: StoredDataset) -> None:
    batch = next(iter(stream(dataset, batch_size=32, window=WINDOW)))
    again = dataset[batch.rows]
    assert np.array_equal(batch["x"], again["x"])
    assert batch["t"] == again["t"]
    assert np.ma.allequal(batch["n"], again["n"])


def test_row_ids_stay_when_the_dataset_grows() -> None:
    objects = MappedObjects()
    schema = Schema.of({"y": "int64"})
    first = stored(objects, schema, [{"y": np.arange(50)}])
    grown = stored(objects, schema, [{"y": np.arange(50, 90)}], seed=1, base=first)
    ids = [
        dict(zip(batch["y"].tolist(), batch.row_ids.tolist(), strict=True))
        for ds in (first, grown)
        for batch in stream(ds, batch_size=90)
    ]
    assert ids[0].items() <= ids[1].items()
    assert len(set(ids[1].values())) == 90


def test_nulls_are_masked_and_marked(dataset: StoredDataset) -> None:
    batch = next(iter(stream(dataset, batch_size=50, window=WINDOW)))
    there = batch["y"] % 3 != 0
    assert np.array_equal(batch.valid["n"], there)
    assert np.array_equal(np.ma.getmaskarray(batch["n"]), ~there)
    assert [text is not None for text in batch["t"]] == (batch["y"] % 7 != 0).tolist()
    assert set(batch.valid) == {"n", "t"}


def test_torch_tensors_come_from_the_same_values(dataset: StoredDataset) -> None:
    torch = pytest.importorskip("torch")
    options = {"batch_size": 50, "window": WINDOW}
    for plain, batch in zip(
        stream(dataset, **options), stream(dataset, **options, output="torch"), strict=True
    ):
        assert batch["x"].dtype == torch.float32
        assert np.array_equal(batch["x"].numpy(), plain["x"])
        assert all(
            np.array_equal(one.numpy(), two)
            for one, two in zip(batch["r"], plain["r"], strict=True)
        )
        assert batch["t"] == plain["t"]
        assert np.array_equal(batch["n"].numpy(), plain["n"].filled(0))
        assert np.array_equal(batch.valid["n"].numpy(), ~np.ma.getmaskarray(plain["n"]))


def test_arrow_arrays_make_a_record_batch(dataset: StoredDataset) -> None:
    batch = next(iter(stream(dataset, batch_size=50, window=WINDOW, output="arrow")))
    table = pa.RecordBatch.from_pydict(dict(batch), schema=dataset.schema.to_arrow())
    expected = dataset.to_arrow().take(pa.array(batch.rows))
    assert table.column("t").to_pylist() == expected.column("t").to_pylist()
    assert table.column("n").to_pylist() == expected.column("n").to_pylist()


def test_other_types_come_as_a_dataset_gives_them() -> None:
    schema = Schema((Column("when", Timestamp("s")), Column("what", Json(), nullable=True)))
    when = np.array([5, 6, 7], "M8[s]")
    what = [{"a": 1}, None, [2]]
    ds = stored(MappedObjects(), schema, [{"when": when, "what": what}])
    batch = next(iter(stream(ds, batch_size=3, shuffle=False)))
    assert batch["when"].dtype == when.dtype
    assert batch["when"].tolist() == when.tolist()
    assert batch["what"] == what


def test_ragged_rows_are_padded_when_asked_for(dataset: StoredDataset) -> None:
    batch = next(iter(stream(dataset, batch_size=50, window=WINDOW, pad=-1)))
    expected = np.full((50, 4), -1, np.int16)
    for at, number in enumerate(batch.rows.tolist()):
        expected[at, : number % 5] = np.arange(number % 5)
    assert np.array_equal(batch["r"], expected)
    assert batch.lengths["r"].tolist() == (batch.rows % 5).tolist()


def test_padding_works_in_several_dimensions() -> None:
    schema = Schema.of({"r": Tensor("uint8", (None, 2, None))})
    rows = [np.full((at % 3, 2, at % 4), at, np.uint8) for at in range(12)]
    ds = stored(MappedObjects(), schema, [{"r": rows}])
    batch = next(iter(stream(ds, batch_size=12, shuffle=False, pad=99)))
    assert batch["r"].shape == (12, 2, 2, 3)
    assert batch.lengths["r"].tolist() == [[at % 3, at % 4] for at in range(12)]
    for at, row in enumerate(rows):
        assert np.array_equal(batch["r"][at, : at % 3, :, : at % 4], row)
        assert int((batch["r"][at] == 99).sum()) == 12 - row.size


def test_batches_can_be_changed_and_kept(dataset: StoredDataset) -> None:
    kept = []
    for batch in stream(dataset, batch_size=100, window=WINDOW, columns=["x", "y"]):
        batch["x"] += 1
        kept.append(batch)
    assert all(np.array_equal(batch["x"][:, 0], batch["y"] + 1) for batch in kept)
    again = next(iter(stream(dataset, batch_size=100, window=WINDOW, columns=["x", "y"])))
    assert np.array_equal(again["x"][:, 0], again["y"])


def test_batches_survive_pickling(dataset: StoredDataset) -> None:
    batch = next(iter(stream(dataset, batch_size=20, pad=0)))
    again = pickle.loads(pickle.dumps(batch))
    assert list(again) == list(batch)
    assert np.array_equal(again["x"], batch["x"])
    assert (again.position, again.rows.tolist()) == (batch.position, batch.rows.tolist())
    assert again.row_ids.tolist() == batch.row_ids.tolist()
    assert again.lengths["r"].tolist() == batch.lengths["r"].tolist()


@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_what_transforms_return_replaces_the_batches_in_order(
    dataset: StoredDataset, prefetch: int
) -> None:
    seen: list[int] = []

    def transform(batch: Any) -> int:
        seen.append(batch.position)
        return -batch.position

    found = list(stream(dataset, batch_size=64, transform=transform, prefetch=prefetch))
    # Several threads call it, each with the next batch: that alone is not in order.
    assert found == [-position for position in sorted(seen)]
