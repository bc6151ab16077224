"""Mixes: rows of several datasets in one batch, resumable anywhere, on any ranks."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import Schema, Tensor
from tensorrepo.formats.dataset.streaming.mix.feed import mix as mix_of
from tensorrepo.formats.dataset.streaming.options import Sampling
from tensorrepo.formats.dataset.streaming.stream import BatchStream
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.changed import without
from tests.support.builders.datasets import same_rows, stored
from tests.support.builders.objects import MemoryObjects
from tests.support.builders.streams import (
    ROWS,
    SCHEMA,
    WINDOW,
    MappedObjects,
    lasting_stream_threads,
    rows_of,
    stream,
    stream_threads,
)
from tests.support.effort import sampled_product

LARGE, SMALL = 1000, 90


@pytest.fixture(scope="module")
def large() -> StoredDataset:
    return stored(MappedObjects(), SCHEMA, [ROWS], page_bytes=8192)


@pytest.fixture(scope="module")
def small() -> StoredDataset:
    return stored(MemoryObjects(), SCHEMA, [ROWS[:SMALL]], page_bytes=2048)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    yield
    assert lasting_stream_threads() == []


@pytest.fixture(scope="module")
def mixed(large: StoredDataset, small: StoredDataset) -> Any:
    def mix(wish: dict[str, Any] | None = None, **options: Any) -> BatchStream:
        options = {"batch_size": 32, "window": WINDOW} | options
        return mix_of([stream(ds, **options) for ds in (large, small)], **(wish or {}))

    return mix


def told(batches: Any) -> list[list[tuple[int, int]]]:
    """Source and row of every row of each batch."""
    return [list(zip(batch.source.tolist(), batch.rows.tolist(), strict=True)) for batch in batches]


def flat(steps: list[list[tuple[int, int]]]) -> list[tuple[int, int]]:
    return [row for step in steps for row in step]


def test_rows_come_as_they_are_stored_with_their_sources(mixed: Any, small: StoredDataset) -> None:
    batches = list(mixed())
    numbers = [row for batch in batches for row in batch.rows.tolist()]
    assert same_rows(
        [row for batch in batches for row in rows_of(batch)], [ROWS[number] for number in numbers]
    )
    batch = batches[3]
    first, second = batch.source == 0, batch.source == 1
    assert 0 < second.sum() < first.sum()
    ids = batch.row_ids
    assert len(set(ids.tolist())) == 32
    assert small[batch.rows[second]]["y"].tolist() == batch["y"][second].tolist()


def test_chance_differs_by_source_and_by_pass_and_not_by_rank(mixed: Any) -> None:
    def draws(**options: Any) -> list[tuple[tuple[int, int], int]]:
        batches = list(mixed({"repeat": [0.2, 3]}, **options))
        return [
            pair
            for batch, rows in zip(batches, told(batches), strict=True)
            for pair in zip(rows, batch.draws.tolist(), strict=True)
        ]

    found = draws()
    assert len({draw for _, draw in found}) >= len(found) - 64  # steps where a source begins anew
    ranks = [pair for rank in range(2) for pair in draws(rank=rank, world_size=2, last="drop")]
    assert set(ranks) <= set(found)


def test_a_part_of_a_batch_knows_its_rows(mixed: Any) -> None:
    batch = next(iter(mixed()))
    places = np.array([1, 5, 30])
    part = batch.part(places)
    assert part.row_ids.tolist() == batch.row_ids[places].tolist()
    assert part.draws.tolist() == batch.draws[places].tolist()


def test_an_epoch_has_every_row_of_every_source_once(mixed: Any) -> None:
    rows = Counter(flat(told(mixed())))
    assert set(rows.values()) == {1}
    assert len(rows) == LARGE + SMALL


@pytest.mark.parametrize("batching", ["random", "stratified"])
def test_sources_are_repeated_as_often_as_was_said(mixed: Any, batching: str) -> None:
    rows = Counter(flat(told(mixed({"repeat": [0.5, 3], "batching": batching}))))
    assert {times for (source, _), times in rows.items() if source == 0} == {1}
    assert {times for (source, _), times in rows.items() if source == 1} == {3}
    assert len(rows) == LARGE // 2 + SMALL


def test_every_time_a_source_comes_in_another_order(mixed: Any) -> None:
    rows = [row for source, row in flat(told(mixed({"repeat": [0.1, 2]}))) if source == 1]
    assert sorted(rows[:SMALL]) == sorted(rows[SMALL:]) == list(range(SMALL))
    assert rows[:SMALL] != rows[SMALL:]


def test_weights_decide_and_the_epoch_is_as_long_as_all_sources(mixed: Any) -> None:
    found = mixed({"weights": [1, 1]})
    sources = [source for source, _ in flat(told(found))]
    assert (len(found), len(sources)) == (35, LARGE + SMALL)
    assert sum(sources) == (LARGE + SMALL) // 2


def test_stratified_steps_have_as_much_of_each_source(mixed: Any) -> None:
    steps = told(mixed({"weights": [3, 1], "steps": 10, "batching": "stratified"}))
    assert [sum(source for source, _ in step) for step in steps] == [8] * 10


def test_steps_of_one_source_are_of_one_source(mixed: Any) -> None:
    steps = told(mixed({"weights": [3, 1], "steps": 16, "batching": "per_source"}))
    assert [len({source for source, _ in step}) for step in steps] == [1] * 16
    assert {step[0][0] for step in steps} == {0, 1}


@pytest.mark.soak
@pytest.mark.parametrize("batch_size", [32, 45, 90, 91, 700, 2000])
def test_steps_of_one_source_have_every_row_once_and_end_with_what_is_left(
    mixed: Any, batch_size: int
) -> None:
    found = mixed({"batching": "per_source"}, batch_size=batch_size)
    steps = told(found)
    rows = Counter(flat(steps))
    assert (set(rows.values()), len(rows)) == ({1}, LARGE + SMALL)
    whole = LARGE // batch_size + SMALL // batch_size
    assert [len({source for source, _ in step}) for step in steps[:whole]] == [1] * whole
    assert sum(map(len, steps[whole:])) == found.explain().rest_rows


def test_steps_of_one_source_keep_repeats_and_choices_to_the_row(mixed: Any) -> None:
    repeated = Counter(flat(told(mixed({"repeat": [0.5, 3], "batching": "per_source"}))))
    assert {times for (source, _), times in repeated.items() if source == 0} == {1}
    assert [times for (source, _), times in repeated.items() if source == 1] == [3] * SMALL
    chosen = [
        source for source, _ in flat(told(mixed({"choose": [77, 5], "batching": "per_source"})))
    ]
    assert (chosen.count(0), chosen.count(1)) == (77, 5)


@pytest.mark.soak
@sampled_product("after,batch_size", [5, 33, 34], [32, 20], dev=3)
def test_reading_resumes_within_what_is_left_of_the_sources(
    mixed: Any, after: int, batch_size: int
) -> None:
    first = mixed({"batching": "per_source"})
    rest = flat(told(first))[32 * after :]
    ranks = []
    for rank in range(2):
        resumed = mixed({"batching": "per_source"}, batch_size=batch_size, rank=rank, world_size=2)
        resumed.load_state_dict(json.loads(json.dumps(first.state_dict(position=32 * after))))
        ranks += flat(told(resumed))
    assert sorted(ranks) == sorted(rest)


def test_another_epoch_goes_on_where_the_sources_were(mixed: Any) -> None:
    found = mixed({"choose": [200, 40], "seed": 4})
    first = told(found)
    found.set_epoch(1)
    both = flat(first) + flat(told(found))
    large = [row for source, row in both if source == 0]
    assert len(set(large)) == len(large) == 400
    small = [row for source, row in both if source == 1]
    assert len(set(small)) == len(small) == 80


@sampled_product("batching,after", ["random", "stratified", "per_source"], [0, 3, 17], dev=5)
def test_reading_resumes_where_it_was(mixed: Any, batching: str, after: int) -> None:
    wish = {"repeat": [0.3, 4], "batching": batching, "seed": 9}
    first = mixed(wish)
    first.set_epoch(2)
    batches = iter(first)
    list(islice(batches, after))
    state = json.loads(json.dumps(first.state_dict()))
    rest = told(batches)
    resumed = mixed(wish | {"seed": 0})  # the state has its own
    resumed.load_state_dict(state)
    assert told(resumed) == rest


def test_reading_resumes_with_another_batch_size_and_world(mixed: Any) -> None:
    first = mixed({"weights": [1, 2]})
    rest = flat(told(first))[160:]
    state = first.state_dict(position=160)
    ranks = []
    for rank in range(3):
        resumed = mixed({"weights": [1, 2]}, batch_size=50, rank=rank, world_size=3)
        resumed.load_state_dict(state)
        ranks.append(told(resumed))
    steps = [sorted(row for part in parts for row in part) for parts in zip(*ranks, strict=True)]
    assert steps == [sorted(rest[start : start + 50]) for start in range(0, len(rest), 50)]


@pytest.mark.soak
@pytest.mark.parametrize("world", [2, 3, 8])
def test_ranks_share_every_step_and_every_source(mixed: Any, world: int) -> None:
    wish = {"weights": [2, 1], "batching": "stratified", "steps": 30}
    whole = told(mixed(wish))
    ranks = [told(mixed(wish, rank=rank, world_size=world)) for rank in range(world)]
    together = list(zip(*ranks, strict=True))
    assert [sorted(flat(list(parts))) for parts in together] == [sorted(step) for step in whole]
    sizes = [[sum(source for source, _ in part) for part in parts] for parts in together[:-1]]
    assert max(max(size) - min(size) for size in sizes) <= 1


def test_transforms_and_torch_work_on_mixed_batches(
    large: StoredDataset, small: StoredDataset
) -> None:
    torch = pytest.importorskip("torch")
    options: dict[str, Any] = {"batch_size": 32, "window": WINDOW, "output": "torch"}
    total = sum_of_rows
    mix = mix_of([stream(ds, **options, transform=total) for ds in (large, small)])
    assert sum(mix) == sum(range(LARGE)) + sum(range(SMALL))
    assert torch


def sum_of_rows(batch: Any) -> int:
    return int(batch["y"].sum())


@pytest.mark.parametrize("prefetch", [0, 3])
def test_an_abandoned_mix_leaves_no_thread(mixed: Any, prefetch: int) -> None:
    with mixed(prefetch=prefetch) as found:
        batches = iter(found)
        next(batches)
        assert stream_threads()
    assert list(batches) == []


def test_last_pad_repeats_rows_of_the_last_step(mixed: Any) -> None:
    ranks = [list(mixed(last="pad", rank=rank, world_size=4)) for rank in range(4)]
    assert {len(batch["y"]) for rank in ranks for batch in rank} == {8}
    assert sum(rank[-1].repeated for rank in ranks) == 32 - (LARGE + SMALL) % 32


def test_a_mix_explains_itself(mixed: Any) -> None:
    explained = mixed({"repeat": [1, 3]}).explain()
    assert explained.source_rows == (LARGE, 3 * SMALL)
    assert explained.passes == (1.0, 3.0)
    assert "source 1: 270 rows an epoch, 3.00 of its own" in str(explained)
    assert json.dumps(explained.to_dict())
    assert "2 sources" in repr(mixed())


def packed_streams(sizes: tuple[int, ...] = (16, 16)) -> list[BatchStream]:
    schema = Schema.of({"t": Tensor("int32", (None,))})
    parts = [[np.full(1 + at % 40, at, "i4") for at in range(low, low + 200)] for low in (0, 1000)]
    stores = [stored(MappedObjects(), schema, [{"t": rows}], page_bytes=512) for rows in parts]
    return [
        stream(ds, batch_size=8, sampling=Sampling(pack=size), window=4000, pad=-1)
        for ds, size in zip(stores, sizes, strict=True)
    ]


def test_packed_texts_of_several_datasets_come_in_one_batch() -> None:
    elements: Counter[int] = Counter()
    batches = list(mix_of(packed_streams()))
    for batch in batches:
        assert ((batch["t"] >= 1000).any(axis=1) == (batch.source == 1)).all()
        elements.update(batch["t"][batch["t"] >= 0].tolist())
    assert elements == Counter(
        {at: 1 + at % 40 for low in (0, 1000) for at in range(low, low + 200)}
    )
    assert all(len(batch["t"]) == 8 for batch in batches[:-1])


def test_a_mix_says_why_it_packs_no_rows_of_which_some_are_deleted() -> None:
    schema, objects = Schema.of({"t": Tensor("int32", (None,))}), MappedObjects()
    rows = stored(objects, schema, [{"t": [np.full(3, at, "i4") for at in range(20)]}])
    packed = stream(without(objects, rows, [4]), batch_size=8, sampling=Sampling(pack=16), pad=-1)
    with pytest.raises(InvalidInputError, match=r"source 1 .* packs rows of which some were del"):
        mix_of([packed_streams()[0], packed])


def test_packed_mixes_resume() -> None:
    first = mix_of(packed_streams(), weights=[1, 3], steps=40)
    whole = [batch["t"].tolist() for batch in first]
    resumed = mix_of(packed_streams(), weights=[1, 3], steps=40)
    resumed.load_state_dict(first.state_dict(position=80))
    assert [batch["t"].tolist() for batch in resumed] == whole[10:]


def test_packs_of_different_sizes_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"same pack=: it is 16 .* 8 in source 1"):
        mix_of(packed_streams((16, 8)))


@pytest.mark.soak
@sampled_product(
    "objects,shuffle,order",
    [MappedObjects, MemoryObjects],
    ["pages", "global"],
    [slice(None), slice(None, None, -1)],
    dev=3,
)
def test_columns_that_are_nullable_in_some_sources_are_nullable_in_the_mix(
    objects: type[MemoryObjects], shuffle: Any, order: slice
) -> None:
    strict = Schema(tuple(replace(column, nullable=False) for column in SCHEMA.columns))
    full = [row for row in ROWS if row["t"] is not None and row["n"] is not None]
    given = [(SCHEMA, ROWS), (strict, full)][order]
    batches = list(
        mix_of(
            [
                stream(
                    stored(objects(), schema, [rows], page_bytes=8192),
                    batch_size=32,
                    window=WINDOW,
                    shuffle=shuffle,
                )
                for schema, rows in given
            ]
        )
    )
    assert same_rows(
        [row for batch in batches for row in rows_of(batch)],
        [given[source][1][row] for source, row in flat(told(batches))],
    )
    assert {tuple(sorted(batch.valid)) for batch in batches} == {("n", "t")}
    assert all(
        np.array_equal(~np.ma.getmaskarray(batch["n"]), batch.valid["n"]) for batch in batches
    )


def test_chosen_rows_are_mixed(large: StoredDataset, small: StoredDataset) -> None:
    options: dict[str, Any] = {"batch_size": 32, "window": WINDOW}
    some = Sampling(rows=range(100, 200))
    chosen = stream(large, **options, sampling=some)
    batches = list(mix_of([chosen, stream(small, **options)]))
    found = [batch["y"][batch.source == 0].tolist() for batch in batches]
    assert sorted(value for values in found for value in values) == list(range(100, 200))
    assert sum(len(batch.rows) for batch in batches) == 100 + SMALL


def test_weighted_rows_are_refused(large: StoredDataset, small: StoredDataset) -> None:
    weighted = stream(large, batch_size=8, sampling=Sampling(weights=np.ones(LARGE)))
    with pytest.raises(InvalidInputError, match="source 1 of the mix has weights"):
        mix_of([stream(small, batch_size=8), weighted])


# ------------------------------------------------------------------------------ refusals


def test_the_window_is_divided_by_bytes(mixed: Any) -> None:
    found = mixed({"weights": [3, 1]})
    windows = [source.plan.window_bytes for source in found.feed.sources]
    assert sum(windows) <= WINDOW
    assert 2.5 < windows[0] / windows[1] < 3.5


def test_a_mix_of_nothing_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="at least one stream"):
        mix_of([])


def test_options_that_differ_are_named(large: StoredDataset, small: StoredDataset) -> None:
    with pytest.raises(InvalidInputError, match=r"batch_size is 8 .* and 9 in source 1"):
        mix_of([stream(large, batch_size=8), stream(small, batch_size=9)])


def test_columns_that_differ_are_named(large: StoredDataset, small: StoredDataset) -> None:
    with pytest.raises(InvalidInputError, match=r"same columns: .*\['x'\], source 1 \['y'\]"):
        mix_of(
            [stream(large, batch_size=8, columns=["x"]), stream(small, batch_size=8, columns=["y"])]
        )


def test_types_that_differ_are_named(large: StoredDataset) -> None:
    other = stored(
        MappedObjects(),
        Schema.of({"x": Tensor("float32", (99,))}),
        [{"x": np.zeros((5, 99), np.float32)}],
    )
    with pytest.raises(InvalidInputError, match=r"column 'x' is .* source 1"):
        mix_of([stream(ds, batch_size=8, columns=["x"]) for ds in (large, other)])


@pytest.mark.parametrize(
    "change",
    [
        {"format": "tensorrepo stream state v1"},
        {"sources": []},
        {"shares": [1]},
        {"position": 10_000},
        {"rows": -1},
        {"seed": "1"},
        {"more": 1},
    ],
)
def test_a_state_of_something_else_is_refused(mixed: Any, change: dict[str, Any]) -> None:
    found = mixed()
    with pytest.raises(InvalidInputError):
        found.load_state_dict(found.state_dict() | change)


@pytest.mark.parametrize(
    ("saved", "here", "message"),
    [
        ({"weights": [3, 1]}, {}, r"weights=\[3, 1\], this one has batching='random'"),
        ({}, {"weights": [3, 1]}, r"with batching='random', .* weights=\[3, 1\]"),
        ({"batching": "stratified"}, {}, r"batching='stratified', .* batching='random'"),
        ({"choose": [9, 9]}, {"choose": [9, 8]}, r"choose=\[9, 9\], .* choose=\[9, 8\]"),
        (
            {"repeat": [1, 2.5]},
            {"repeat": [1, 3]},
            r"repeat=\[1, 2.5\], this one .*repeat=\[1, 3\]",
        ),
        ({"steps": 5}, {"steps": 6}, r"steps=5, .* steps=6"),
    ],
)
def test_a_state_of_another_blend_is_refused_and_both_are_named(
    mixed: Any, saved: dict[str, Any], here: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInputError, match=message):
        mixed(here).load_state_dict(mixed(saved).state_dict())


def test_wishes_in_other_words_that_mean_the_same_are_the_same(mixed: Any) -> None:
    resumed = mixed({"weights": [6, 2], "rows": 64})
    resumed.load_state_dict(mixed({"weights": [3, 1], "steps": 2}).state_dict(position=32))
    assert len(resumed) == 1


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"weights": "ab"}, "weights of a mix is a list of numbers, .* got 'ab'"),
        ({"weights": {0: 1, 1: 2}}, "weights of a mix is a list"),
        ({"weights": [float("nan"), 1]}, "each number of weights .* above 0 and finite, got nan"),
        ({"repeat": [-1, 1]}, "each number of repeat .* got -1"),
        ({"repeat": ["1", 1]}, "each number of repeat .* got '1'"),
        ({"choose": [1.5, 2]}, "each number of choose of a mix is a whole number, .* got 1.5"),
        ({"choose": 5}, "choose of a mix is a list of numbers, .* got 5"),
        ({"rows": 0}, "rows of a mix is a whole number, at least 1, got 0"),
        ({"steps": 1.5}, "steps of a mix is a whole number, at least 1, got 1.5"),
        ({"seed": -1}, "seed is a whole number"),
    ],
)
def test_a_wish_that_is_none_is_named(mixed: Any, wish: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        mixed(wish)


@pytest.mark.parametrize("position", [-1, LARGE + SMALL + 1, 1.5])
def test_no_state_is_made_of_a_position_that_is_none(mixed: Any, position: Any) -> None:
    with pytest.raises(InvalidInputError, match="position is a whole number"):
        mixed().state_dict(position)


def test_a_mix_of_a_mix_is_refused(mixed: Any, small: StoredDataset) -> None:
    other = stream(small, batch_size=32, window=WINDOW)
    with pytest.raises(InvalidInputError, match="source 1 of the mix is a mix itself"):
        mix_of([other, mixed()])


def test_a_state_of_sources_in_another_order_is_refused(
    large: StoredDataset, small: StoredDataset
) -> None:
    options: dict[str, Any] = {"batch_size": 8, "window": WINDOW}
    one, other = (
        mix_of([stream(ds, **options) for ds in both]) for both in ((large, small), (small, large))
    )
    with pytest.raises(InvalidInputError, match="belongs to dataset"):
        other.load_state_dict(one.state_dict())
