"""Streams whose groups are read when lanes reach them: the rows and order of a plan of all runs."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.metadata import boundaries
from tensorrepo.formats.dataset.metadata.boundaries import ColumnPart, FragmentPart
from tensorrepo.formats.dataset.metadata.index import ColumnPages
from tensorrepo.formats.dataset.metadata.span_write import Fragment
from tensorrepo.formats.dataset.metadata.tree_write import TreeWriter
from tensorrepo.formats.dataset.pages.page import encode_page
from tensorrepo.formats.dataset.read import StoredDataset, open_dataset
from tensorrepo.formats.dataset.schema.schema import Column, Schema, Tensor
from tensorrepo.formats.dataset.schema.values import FixedValues
from tensorrepo.formats.dataset.streaming.feed import DatasetFeed
from tensorrepo.formats.dataset.streaming.mix import feed as mix_feed
from tensorrepo.formats.dataset.streaming.mix.feed import mix
from tensorrepo.formats.dataset.streaming.options import Ranks, Sampling
from tensorrepo.formats.dataset.streaming.plan import build
from tensorrepo.formats.dataset.streaming.plan.build import (
    choose,
    group_packing,
    lengths_in_parts,
    row_lengths,
)
from tensorrepo.formats.dataset.streaming.plan.grouped import GroupedPlan, plan_groups
from tensorrepo.formats.dataset.streaming.plan.pages import StreamPlan
from tensorrepo.formats.dataset.streaming.stream import BatchStream
from tensorrepo.formats.dataset.update import delete_rows, update_rows
from tensorrepo.formats.dataset.write import column_id, write_dataset
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.streams import ROWS, SCHEMA, MappedObjects, rows_of, stream
from tests.support.effort import sampled, soaking

pytestmark = pytest.mark.long

STORES = [MappedObjects, MemoryObjects]
NAMES = tuple(column.name for column in SCHEMA.columns)


@cache
def made(store: type[MemoryObjects]) -> StoredDataset:
    """Twenty fragments of ten pages each, in several leaves."""
    objects, base = store(), None
    with pytest.MonkeyPatch.context() as patched:
        for name, size in (("MIN_BYTES", 64), ("MEAN_BYTES", 128), ("MAX_BYTES", 256)):
            patched.setattr(boundaries, name, size)
        for at in range(0, len(ROWS), 50):
            link = write_dataset(objects, SCHEMA, [ROWS[at : at + 50]], base=base, page_bytes=2048)
            base = open_dataset(objects, link.digest)
    assert base is not None
    assert len(base.root.leaves) > 2
    return base


def grouped(dataset: StoredDataset, **options: Any) -> BatchStream:
    """A stream by groups, however few runs it has."""
    found = stream(dataset, batch_size=16, window=40_000, seed=3, **options)
    sampling = found.options.sampling
    plan = plan_groups(
        dataset,
        ("x", "y", "t", "r", "n"),
        lambda: plan_of(found),
        batch_size=16,
        window_bytes=40_000,
        choose=partial(choose, dataset, sampling),
        lengths=partial(lengths_in_parts, dataset, sampling.bucket) if sampling.bucket else None,
        bucket_steps=sampling.bucket_steps if sampling.bucket else 0,
        echo=sampling.echo,
        most_runs=8,
        least_bytes=0,
        group_runs=6,
    )
    assert plan is not None
    return planned(found, plan)


def planned(found: BatchStream, plan: StreamPlan) -> BatchStream:
    """The same stream by another plan."""
    return BatchStream(replace(found.feed, plan=plan), found.setup)  # type: ignore[type-var]


def whole(found: BatchStream) -> BatchStream:
    """The same order, planned run by run."""
    plan = plan_of(found)
    return planned(found, replace(plan.whole(), arrangement=plan.arrangement))


def dataset_of(found: BatchStream) -> StoredDataset:
    assert isinstance(found.feed, DatasetFeed)
    return found.feed.dataset


def plan_of(found: BatchStream) -> StreamPlan:
    assert isinstance(found.feed, DatasetFeed)
    return found.feed.plan


@pytest.mark.parametrize("store", sampled(STORES, 1))
def test_the_order_and_the_values_are_those_of_a_plan_of_all_runs(
    store: type[MemoryObjects],
) -> None:
    found = grouped(made(store))
    expected = values_of(whole(found))
    assert values_of(found) == expected


def test_each_row_comes_once_with_its_number() -> None:
    batches = list(grouped(made(MemoryObjects)))
    numbers = np.concatenate([batch.rows for batch in batches])
    assert sorted(numbers.tolist()) == list(range(len(ROWS)))
    assert all((batch["y"] == batch.rows).all() for batch in batches)


@pytest.mark.parametrize("store", sampled(STORES, 1))
def test_deleted_rows_are_left_out_as_elsewhere(store: type[MemoryObjects]) -> None:
    dataset = made(store)
    gone = [*range(100, 300), 0, 7, 512, 999]
    link = delete_rows(dataset.objects, dataset, np.array(gone))  # type: ignore[arg-type]
    found = grouped(open_dataset(dataset.objects, link.digest))
    expected = values_of(whole(found))
    assert values_of(found) == expected
    assert sum(map(len, expected)) == len(ROWS) - len(gone) == found.rows


def values_of(found: BatchStream) -> list[list[tuple[Any, ...]]]:
    """All values of each batch, such as can be compared."""
    return [
        [(row["x"].tobytes(), row["y"], row["t"], row["r"].tobytes(), row["n"]) for row in rows]
        for rows in map(rows_of, found)
    ]


def shares(found: BatchStream, world: int) -> Iterator[list[int]]:
    for rank in range(world):
        options = replace(found.options, ranks=Ranks(rank=rank, world_size=world))
        one = BatchStream(found.feed, replace(found.setup, options=options))
        yield [row for batch in one for row in batch.rows.tolist()]


@pytest.mark.soak
@pytest.mark.parametrize("world", sampled([3, 2], 1))
def test_ranks_share_each_row(world: int) -> None:
    found = grouped(made(MappedObjects), last="short")
    rows = [row for share in shares(found, world) for row in share]
    assert sorted(rows) == list(range(len(ROWS)))


@pytest.mark.soak
def test_workers_take_turns_at_all_steps() -> None:
    found = grouped(made(MappedObjects))
    parts = [[batch.rows.tolist() for batch in found.in_turn(at, 3)] for at in range(3)]
    found.set_epoch(0)
    steps = [batch.rows.tolist() for batch in found]
    assert [step for at in range(len(steps)) for step in [parts[at % 3][at // 3]]] == steps


@pytest.mark.soak
def test_a_state_is_gone_on_with_by_groups_and_by_a_plan_of_all_runs() -> None:
    found = grouped(made(MappedObjects))
    batches = iter(found)
    for _ in range(20):
        next(batches)
    state = found.state_dict()
    rest = [batch.rows.tolist() for batch in batches]
    for again in (grouped(dataset_of(found)), stream(dataset_of(found), batch_size=16)):
        again.load_state_dict(state)
        assert [batch.rows.tolist() for batch in again] == rest


def test_a_stream_by_groups_goes_on_in_the_order_of_another_state() -> None:
    found = grouped(made(MappedObjects))
    plain = stream(dataset_of(found), batch_size=16, shuffle=False)
    found.load_state_dict(plain.state_dict(160))
    assert next(iter(found)).rows.tolist() == list(range(160, 176))


def test_groups_are_explained_by_what_one_of_them_lets_expect() -> None:
    found = grouped(made(MappedObjects))
    told, exact = found.explain(), whole(found).explain()
    assert (told.order, told.rows, told.steps) == ("pages", exact.rows, exact.steps)
    assert told.runs == pytest.approx(exact.runs, rel=0.3)
    assert told.read_bytes == pytest.approx(exact.read_bytes, rel=0.3)
    assert str(told)


def test_a_mix_of_a_stream_by_groups_has_all_of_its_rows() -> None:
    found = grouped(made(MappedObjects))
    rows = [row for batch in mix([found]) for row in batch["y"].tolist()]
    assert sorted(rows) == list(range(len(ROWS)))


def test_a_mix_has_the_rows_of_groups_in_the_order_of_plans_of_all_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("STRETCH_ROWS", "FIRST_ROWS"):
        monkeypatch.setattr(mix_feed, name, 32)  # so that an epoch has many stretches
    dataset, wish = made(MappedObjects), {"repeat": [1.2, 0.4] if soaking() else [0.5, 0.3]}
    options: list[dict[str, Any]] = [{}, {"rows": slice(0, 900)}]
    found = mix([grouped(dataset, **each) for each in options], **wish)
    assert isinstance(found.feed, mix_feed.MixFeed)
    assert all(isinstance(source.plan, GroupedPlan) for source in found.feed.sources)
    every = [stream(dataset, batch_size=16, window=40_000, seed=3, **each) for each in options]
    whole_mix = mix(every, **wish)
    whole_mix.load_state_dict(found.state_dict())
    batches = iter(found)
    head = [next(batches) for _ in range(30)]
    state = found.state_dict()
    expected = [(batch.source.tolist(), batch.rows.tolist()) for batch in whole_mix]
    assert [(each.source.tolist(), each.rows.tolist()) for each in [*head, *batches]] == expected
    assert all((batch["y"] == batch.rows).all() for batch in head)
    again = mix([grouped(dataset, **each) for each in options], **wish)
    again.load_state_dict(state)
    assert [(each.source.tolist(), each.rows.tolist()) for each in again] == expected[30:]
    halves = [[batch.rows.tolist() for batch in again.in_turn(at, 2)] for at in range(2)]
    assert halves == [[rows for _, rows in expected[at::2]] for at in range(2)]


def test_damaged_pages_are_left_out_where_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dataset = made(MappedObjects)
    found = grouped(dataset, on_error="skip")
    index = plan_of(found).whole().leading.index
    link, at = index.chunks[int(index.chunk[30])], int(index.entries["offset"][30])
    data = bytearray(dataset.objects.stored[link.digest])  # type: ignore[attr-defined, union-attr]
    data[len(data) - int.from_bytes(data[16:24], "little") + at + 100] ^= 1
    monkeypatch.setitem(dataset.objects.stored, link.digest, bytes(data))  # type: ignore[attr-defined, union-attr]
    rows = {row for batch in found for row in batch.rows.tolist()}
    low, high = index.first_row[30:32].tolist()
    assert rows == set(range(len(ROWS))) - set(range(low, high))


@pytest.mark.soak
def test_values_that_were_set_later_come_from_groups_by_weight_too() -> None:
    dataset, weights = made(MappedObjects), np.full(len(ROWS), 0.2)
    rows = [7, 8, 49, 50, 333, 998]
    values = {"x": np.full((6, 100), -1, np.float32), "t": [None, *"abcde"]}
    link = update_rows(dataset.objects, dataset, rows, values)  # type: ignore[arg-type]
    dataset = open_dataset(dataset.objects, link.digest)
    link = update_rows(dataset.objects, dataset, [8, 500], {"n": [3, None]})  # type: ignore[arg-type]
    weights[[*rows, 500]] = 1  # each comes exactly once
    found = grouped(open_dataset(dataset.objects, link.digest), weights=weights)
    expected = values_of(whole(found))
    assert values_of(found) == expected
    assert sum(row[2] in {*"abcde"} for batch in expected for row in batch) == 5


ROW_WEIGHTS = np.random.default_rng(7).random(len(ROWS)) * (np.arange(len(ROWS)) % 3 > 0)
SAMPLINGS: dict[str, dict[str, Any]] = {
    "some rows": {"rows": [*range(0, 400, 3), *range(700, 1000, 2)]},
    "rows that fit": {"where": "y < 300 or y > 640"},
    "weights": {"weights": ROW_WEIGHTS, "epoch_rows": 700},
    "more than once": {"weights": 3 * ROW_WEIGHTS},
    "classes": {"balance": "n", "where": "n is not null"},
    "echo": {"echo": 3},
    "echo of some rows": {"echo": 2, "rows": slice(100, 900, 2)},
    "buckets": {"bucket": "r", "bucket_steps": 3},
    "large buckets of weights": {"bucket": "n", "where": "n is not null", "weights": ROW_WEIGHTS},
}


@pytest.mark.parametrize("sampling", sampled([*SAMPLINGS.values()], 2))
def test_chosen_rows_come_as_often_and_in_the_order_of_a_plan_of_all_runs(
    sampling: dict[str, Any],
) -> None:
    found = grouped(made(MappedObjects), **sampling)
    for epoch in (0, 1) if soaking() else (1,):
        found.set_epoch(epoch)
        every = whole(found)
        every.set_epoch(epoch)
        assert values_of(found) == values_of(every)
        assert found.rows == every.rows


@pytest.mark.soak
def test_a_state_of_chosen_rows_is_gone_on_with_by_groups() -> None:
    found = grouped(made(MappedObjects), **SAMPLINGS["weights"])
    batches = iter(found)
    for _ in range(12):
        next(batches)
    again = grouped(dataset_of(found), **SAMPLINGS["weights"])
    again.load_state_dict(found.state_dict())
    assert [batch.rows.tolist() for batch in again] == [batch.rows.tolist() for batch in batches]


def test_lengths_are_read_some_pages_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_PART_ROWS", 70)
    dataset = made(MappedObjects)
    link = delete_rows(dataset.objects, dataset, [0, 7, *range(60, 260)])
    dataset = open_dataset(dataset.objects, link.digest)
    found, expected = lengths_in_parts(dataset, "r"), row_lengths(dataset, "r")
    assert found.values.tolist() == expected.values.tolist()
    assert 0 < found.read_bytes < expected.read_bytes  # parts without a live row are left out


def packed(dataset: StoredDataset, **options: Any) -> BatchStream:
    """A stream of packed items by groups."""
    options = {"columns": ["r"], "pack": 3, "window": 600, "seed": 3} | options
    found = stream(dataset, batch_size=4, **options)
    plan = plan_groups(
        dataset,
        ("r",),
        lambda: plan_of(found),
        batch_size=4,
        window_bytes=600,
        choose=partial(choose, dataset, found.options.sampling),
        pack=partial(group_packing, dataset, "r", 3),
        most_runs=8,
        least_bytes=0,
        group_runs=6,
    )
    assert plan is not None
    return planned(found, plan)


def items_of(found: BatchStream) -> list[tuple[list[list[int]], ...]]:
    """Elements, segments and rows of each batch."""
    return [
        (batch["r"].tolist(), batch.segments["r"].tolist(), batch.rows.tolist()) for batch in found
    ]


@pytest.mark.soak
@pytest.mark.parametrize(
    "how", [{}, {"rows": range(0, 1000, 3)}, {"weights": np.arange(1000) % 4 / 2}]
)
def test_packed_items_are_those_of_a_plan_of_all_runs(how: dict[str, Any]) -> None:
    found = packed(made(MappedObjects), **how)
    assert (found.feed.plan.packing.lengths is None) == (not how)  # type: ignore[union-attr]
    assert found.rows == whole(found).rows
    assert found.explain().packed_share == whole(found).explain().packed_share
    state, expected = found.state_dict(80), items_of(whole(found))
    assert items_of(found) == expected
    again = stream(made(MappedObjects), batch_size=4, columns=["r"], pack=3, **how)
    for each in (packed(made(MappedObjects), **how), again):
        each.load_state_dict(state)
        assert items_of(each) == expected[20:]


def test_runs_without_elements_and_deleted_rows_pack_as_elsewhere() -> None:
    dataset = made(MappedObjects)
    gone = [row for row in range(100, 400) if row % 5]
    link = delete_rows(dataset.objects, dataset, np.array([*gone, 0, 7]))  # type: ignore[arg-type]
    found = packed(open_dataset(dataset.objects, link.digest))
    assert items_of(found) == items_of(whole(found))


def test_few_rows_of_many_runs_are_planned_run_by_run() -> None:
    dataset = made(MappedObjects)
    few = partial(choose, dataset, Sampling(rows=range(0, 1000, 50)))
    options: dict[str, Any] = {"batch_size": 16, "window_bytes": 40_000, "group_runs": 6}
    options |= {"most_runs": 8, "least_bytes": 0}
    found = plan_groups(dataset, NAMES, lambda: plan_of(grouped(dataset)), choose=few, **options)
    assert found is None


@pytest.mark.parametrize("option", [{"most_runs": 1 << 20}, {"least_bytes": 1 << 30}])
def test_few_runs_are_planned_one_by_one(option: dict[str, int]) -> None:
    options = {"most_runs": 8, "least_bytes": 0} | option
    dataset = made(MappedObjects)
    found = plan_groups(dataset, NAMES, lambda: None, batch_size=16, window_bytes=1, **options)  # type: ignore[arg-type, return-value]
    assert not isinstance(found, GroupedPlan)


# ------------------------------------------------------------------------------ memory


def repeated_pages(fragments: int) -> StoredDataset:
    """So many fragments of the same four pages of eight rows."""
    objects, ids = MappedObjects(), random.Random(7)
    column = Column("x", Tensor("uint8", (16,)))
    column = replace(column, id=column_id(None, column))
    page = encode_page(FixedValues(np.zeros((8, 16), np.uint8)), column.storage)
    chunk = objects.put(Kind.CHUNK, page.data.tobytes()).digest
    entries = np.repeat(page.entry.reshape(1), 4)
    entries["first_row"] = 8 * np.arange(4)
    tags = np.tile(np.frombuffer(page.tag, np.uint8), (4, 1))
    pages = ColumnPages(column.id, column.storage, entries, tags, np.zeros(4, np.uint32))
    part = FragmentPart((ColumnPart(column.id, column.storage, pages, (chunk,)),))
    with ThreadPoolExecutor(1) as storers:
        tree = TreeWriter(objects, Schema((column,)), ((column.id,),), None, storers, 1 << 20)
        for _ in range(fragments):
            one = Fragment(ids.getrandbits(64), 32, {column.id: part}, stored_bytes=1)
            tree.add_known(one, counted=False)
        return open_dataset(objects, tree.finish({}).digest)


def peak_bytes(fragments: int) -> int:
    """What planning, the first batch and some more take at most."""
    dataset, sizes = repeated_pages(fragments), {"batch_size": 8, "window_bytes": 2000}
    # Batches made ahead lay out the next stretch (0.4 MB) while the one before is still held, or
    # after it is let go, as the thread that makes them is fast or slow.
    setup = stream(made(MappedObjects), batch_size=8, seed=3, prefetch=0).setup
    tracemalloc.start()
    try:
        plan = plan_groups(
            dataset, ("x",), lambda: None, **sizes, most_runs=1, least_bytes=1, group_runs=32  # type: ignore[arg-type, return-value]
        )  # fmt: skip
        assert plan is not None
        batches = iter(BatchStream(DatasetFeed(dataset, plan, ("x",)), setup))
        for _ in range(60):
            next(batches)
        batches.close()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.soak
def test_four_times_the_pages_take_no_more_memory() -> None:
    few, many = peak_bytes(500), peak_bytes(2000)
    # Their page entries alone would take more than half a megabyte.
    assert many - few < 1 << 18
