"""Sampled streams: views, weights, packed elements, rows of like length; resumed anywhere."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrepo.formats.common.buffer_codecs import Codec
from tensorrepo.formats.dataset.read import StoredDataset, column_index, open_dataset
from tensorrepo.formats.dataset.selecting.select_rows import ids_of_rows
from tensorrepo.formats.dataset.streaming.mix.feed import mix
from tensorrepo.formats.dataset.streaming.options import Sampling
from tensorrepo.repo.errors import CorruptError, InvalidInputError, NoSuchRowError, NotFoundError
from tests.support import effort
from tests.support.builders.changed import without
from tests.support.builders.sampling import (
    ROWS,
    SHUFFLES,
    changed,
    lengths_of,
    opened,
    packed,
    resumptions,
    rows,
    sampled,
)
from tests.support.builders.streams import stream, stream_threads
from tests.support.effort import sampled_product


@pytest.fixture(scope="module")
def dataset() -> StoredDataset:
    return sampled(ROWS)


@pytest.fixture(scope="module")
def edited() -> StoredDataset:
    return changed(ROWS)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Any:
    yield
    assert stream_threads() == []


# ------------------------------ views and weights


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("name", ["dataset", "edited"])
def test_a_view_hands_out_its_rows_and_no_others(
    name: str, shuffle: Any, request: pytest.FixtureRequest
) -> None:
    ds = request.getfixturevalue(name)
    found = list(opened(ds, Sampling(where=pc.field("split") == "test"), shuffle=shuffle))
    labels = ds["label"][:]
    assert sorted(rows(found)) == [at for at, split in enumerate(ds["split"]) if split == "test"]
    assert all(np.array_equal(batch["label"], labels[batch.rows]) for batch in found)


@pytest.mark.parametrize(
    "named",
    [
        slice(10, 60, 7),
        slice(59, 9, -7),
        range(10, 60, 7),
        np.arange(10, 60, 7)[::-1],
        [10, 17, 24, 31, 38, 45, 52, 59],
        [-(ROWS - 10), *range(17, 60, 7)],
        np.isin(np.arange(ROWS), range(10, 60, 7)),
    ],
)
def test_rows_are_named_in_any_way_and_the_digest_is_the_same(
    dataset: StoredDataset, named: Any
) -> None:
    found = opened(dataset, Sampling(rows=named))
    assert found.state_dict() == opened(dataset, Sampling(rows=slice(10, 60, 7))).state_dict()
    assert sorted(rows(found)) == list(range(10, 60, 7))


def test_rows_are_named_by_their_ids(edited: StoredDataset) -> None:
    found = opened(edited, Sampling(rows=ids_of_rows(edited, slice(10, 60, 7))))
    assert found.state_dict() == opened(edited, Sampling(rows=slice(10, 60, 7))).state_dict()
    assert sorted(rows(found)) == list(range(10, 60, 7))


def test_rows_and_where_choose_together(dataset: StoredDataset) -> None:
    found = opened(dataset, Sampling(rows=slice(0, 30), where="split == 'test'"))
    assert sorted(rows(found)) == list(range(0, 30, 3))


def test_only_runs_with_chosen_rows_are_read(dataset: StoredDataset) -> None:
    every, few = opened(dataset, Sampling()), opened(dataset, Sampling(rows=slice(0, 40)))
    assert len(rows(few)) == 40
    assert len(rows(every)) == 400
    assert few.stats().runs * 5 < every.stats().runs
    assert few.explain().requests * 2 < every.explain().requests


def test_a_view_of_all_rows_is_no_view(dataset: StoredDataset) -> None:
    plain = opened(dataset, Sampling()).state_dict()
    assert plain["items"]["selection"] == ""
    assert opened(dataset, Sampling(rows=slice(None))).state_dict() == plain


@sampled_product(
    "shuffle,nothing",
    SHUFFLES,
    [
        Sampling(where="split == 'none'"),
        Sampling(where="split == 'none'", bucket="tokens"),
        Sampling(where="split == 'none'", pack=8),
        Sampling(where="tokens is null", pack=8),
        Sampling(weights=np.full(ROWS, 1e-9)),
        Sampling(weights=np.full(ROWS, 1e-9), bucket="tokens"),
        Sampling(weights=np.full(ROWS, 1e-9), pack=8),
    ],
    dev=9,
)
def test_where_no_row_comes_there_are_no_batches(
    dataset: StoredDataset, nothing: Sampling, shuffle: Any
) -> None:
    found = opened(dataset, nothing, columns=["tokens"], shuffle=shuffle)
    assert (len(found), list(found), found.explain().rows) == (0, [], 0)
    again = opened(dataset, nothing, columns=["tokens"], shuffle=shuffle)
    again.load_state_dict(found.state_dict())
    assert list(again) == []


def test_an_explanation_tells_all_of_it(dataset: StoredDataset) -> None:
    wish = Sampling(where="split == 'test'", weights=np.full(ROWS, 1.5), bucket="tokens")
    told = str(opened(dataset, wish).explain())
    assert "134 of 400 rows where split == 'test', weighted" in told
    assert "201 rows on average" in told
    assert "like length of 'tokens' among 1,024, 64 steps of 16" in told
    assert "were read to know them, 1.6 KiB are kept" in told
    packed_told = str(packed(dataset, 8, wishes={"rows": [1, 2]}).explain())
    assert "items of 8 elements" in packed_told
    assert "were read to know them" in packed_told
    assert "2 of 400 rows" in repr(packed(dataset, 8, wishes={"rows": [1, 2]}))


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"rows": [3, 3]}, InvalidInputError, "given twice.*weights="),
        ({"rows": [400]}, NoSuchRowError, "400"),
        ({"rows": np.ones(3, np.bool_)}, InvalidInputError, "mask of 3"),
        ({"rows": "split == 'test'"}, InvalidInputError, "where="),
        ({"rows": pc.field("split") == "test"}, InvalidInputError, "where="),
        ({"rows": ["0123456789abcdef:7"]}, NotFoundError, "0123456789abcdef:7"),
        ({"where": "nothing == 1"}, (InvalidInputError, NotFoundError), "nothing"),
        ({"weights": np.ones(3)}, InvalidInputError, "400"),
        ({"weights": "tokens"}, InvalidInputError, "tokens"),
        ({"weights": "absent"}, NotFoundError, "absent"),
        ({"weights": {"label": "odd"}}, InvalidInputError, "balanced"),
        ({"weights": np.ones(400), "balance": "label"}, InvalidInputError, "one of them"),
        ({"balance": "tokens"}, InvalidInputError, "classes"),
        ({"epoch_rows": 10}, InvalidInputError, "weights= or balance="),
        ({"weights": np.ones(400), "epoch_rows": 0}, InvalidInputError, "epoch_rows"),
        ({"pack": 0}, InvalidInputError, "at least 1"),
        ({"pack": 8}, InvalidInputError, r"other columns cannot come along.*'tokens'"),
        ({"bucket": "x"}, InvalidInputError, "no lengths"),
        ({"bucket": "tokens", "bucket_steps": 1}, InvalidInputError, "bucket_steps"),
        ({"bucket": "tokens", "pack": 8}, InvalidInputError, "pack= or bucket="),
        ({"bucket": "tokens", "bucket_steps": 1 << 30}, InvalidInputError, "bucket_steps"),
    ],
)
def test_wishes_that_make_no_sense_are_refused(
    dataset: StoredDataset, wrong: dict[str, Any], error: Any, message: str
) -> None:
    with pytest.raises(error, match=message):
        opened(dataset, Sampling(**wrong))


def test_views_of_several_datasets_are_mixed(dataset: StoredDataset, edited: StoredDataset) -> None:
    wishes = [Sampling(rows=slice(300, 390, 3)), Sampling(where="split == 'test'")]
    views = [
        opened(ds, wish, columns=["x"]) for ds, wish in zip((dataset, edited), wishes, strict=True)
    ]
    batches = list(mix(views))
    source = np.concatenate([batch.source for batch in batches])
    found = np.concatenate([batch.rows for batch in batches])
    values = np.concatenate([batch["x"][:, 0] for batch in batches])
    firsts = [np.array([x[0] for x in ds["x"][:]]) for ds in (dataset, edited)]
    expected = np.where(source == 0, firsts[0][found], firsts[1][found % edited.rows])
    assert np.array_equal(values, expected)
    assert sorted(found[source == 0].tolist()) == sorted(rows(views[0]))
    assert sorted(found[source == 1].tolist()) == sorted(rows(views[1]))


# ------------------------------------------------------------------------------ weights


def test_weights_say_how_often_rows_come(dataset: StoredDataset) -> None:
    weights = np.zeros(400)
    weights[[3, 7, 390]] = [2, 5, 1]
    found = opened(dataset, Sampling(weights=weights))
    assert sorted(rows(found)) == [3] * 2 + [7] * 5 + [390]
    assert found.stats().runs <= 3


def test_the_length_of_an_epoch_is_known_before_it_is_read(dataset: StoredDataset) -> None:
    found = opened(dataset, Sampling(weights=np.full(400, 0.3)))
    lengths = []
    for epoch in range(3):
        found.set_epoch(epoch)
        steps = len(found)
        batches = list(found)
        assert (len(batches), len(rows(batches))) == (steps, found.rows)
        lengths.append(found.rows)
    assert len(set(lengths)) > 1
    assert found.explain().expected_items == 120


def test_a_column_may_hold_the_weights() -> None:
    ds = sampled(100)
    found = opened(ds, Sampling(weights="label"))
    assert np.array_equal(np.bincount(rows(found), minlength=100), ds["label"][:])


def test_balanced_classes_come_equally_often(dataset: StoredDataset) -> None:
    labels = dataset["label"][:]
    found = opened(dataset, Sampling(balance="label", epoch_rows=3000))
    of_class = np.bincount(labels[rows(found)])
    # A class has some 1,000 rows in an epoch; each of its rows adds a yes-or-no draw.
    assert np.abs(of_class - 1000).max() < 4 * 0.5 * np.sqrt(np.bincount(labels).max())


def test_balancing_is_the_same_as_weights_by_class(dataset: StoredDataset) -> None:
    one = opened(dataset, Sampling(balance="label"))
    two = opened(dataset, Sampling(weights={"label": "balanced"}))
    assert one.state_dict() == two.state_dict()
    assert rows(one) == rows(two)


def test_text_has_classes_too(dataset: StoredDataset) -> None:
    found = opened(dataset, Sampling(balance="split", where=pc.field("label") == 0))
    every = rows(found)
    tests = sum(row % 3 == 0 for row in every)
    assert set(dataset["label"][every].tolist()) == {0}
    assert abs(tests / len(every) - 0.5) < 0.05


# ------------------------------ packing and bucketing


@pytest.mark.parametrize("name", ["dataset", "edited"])
@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_packed_in_storage_order_are_all_elements_of_all_rows(
    name: str, size: int, request: pytest.FixtureRequest
) -> None:
    ds = request.getfixturevalue(name)
    found = list(packed(ds, size, shuffle=False, pad=-1))
    expected = np.concatenate([row for row in ds["tokens"] if row is not None])
    values = np.concatenate([batch["tokens"] for batch in found])
    used = np.concatenate([batch.segments["tokens"] for batch in found]) > 0
    lengths = np.concatenate([batch.lengths["tokens"] for batch in found])
    assert values.shape[1] == size
    assert values[used].tolist() == expected.tolist()
    assert set(values[~used].tolist()) <= {-1}
    assert lengths.tolist() == used.sum(axis=1).tolist()


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_segments_tell_the_rows_of_an_item_apart(dataset: StoredDataset, shuffle: Any) -> None:
    for batch in packed(dataset, 50, shuffle=shuffle):
        segments = batch.segments["tokens"]
        owner = np.where(segments > 0, batch["tokens"] // 100, -1)
        # Where the row changes, and only there, the next segment begins, or the padding.
        changes = np.diff(owner, axis=1) != 0
        assert np.array_equal(np.diff(segments, axis=1) != 0, changes)
        assert np.array_equal(
            np.diff(segments, axis=1)[changes & (owner[:, 1:] >= 0)],
            np.ones(int((changes & (owner[:, 1:] >= 0)).sum()), np.int32),
        )
        assert np.array_equal(segments[:, 0], np.ones(len(segments), np.int32))
        assert np.array_equal(batch.rows, owner[:, 0])


@pytest.mark.parametrize(
    "wishes", [{"where": "split == 'test'"}, {"weights": {"split": "balanced"}}]
)
@pytest.mark.parametrize("name", ["dataset", "edited"])
def test_a_selection_packs_its_rows_as_often_as_they_come(
    name: str, wishes: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    ds = request.getfixturevalue(name)
    elements = [0 if row is None else len(row) for row in ds["tokens"]]
    counts = np.bincount(rows(opened(ds, Sampling(**wishes), columns=["label"])), minlength=ds.rows)
    found = list(packed(ds, 16, wishes=wishes))
    assert sum(int(batch.lengths["tokens"].sum()) for batch in found) == int(counts @ elements)


def test_an_item_is_of_one_run_and_the_rest_is_padding(dataset: StoredDataset) -> None:
    explained = packed(dataset, 64).explain()
    assert 0.5 < explained.packed_share < 1
    assert "items of 64 elements" in str(explained)
    assert "no padding" in str(explained)


@pytest.mark.parametrize("column", ["x", "label", "split"])
def test_columns_without_elements_cannot_be_packed(dataset: StoredDataset, column: str) -> None:
    with pytest.raises(InvalidInputError, match=r"cannot be packed.*'tokens'"):
        packed(dataset, 8, columns=[column])


def test_packed_items_are_tensors_when_asked_for(dataset: StoredDataset) -> None:
    torch = pytest.importorskip("torch")
    batch = next(iter(packed(dataset, 8, output="torch")))
    assert (batch["tokens"].dtype, batch.segments["tokens"].dtype) == (torch.int32, torch.int32)
    with pytest.raises(InvalidInputError, match="packed items are arrays"):
        packed(dataset, 8, output="arrow")


def test_items_of_a_damaged_page_are_left_out_when_told() -> None:
    ds = sampled(ROWS)
    whole_run = list(packed(ds, 32))
    objects: Any = ds.objects
    digest = max(objects.stored, key=lambda each: len(objects.stored[each]))
    entry = column_index(ds, "tokens").entries[3]
    link = objects.links[digest]
    data = bytearray(objects.stored[digest])
    data[len(data) - objects.map(link).nbytes + int(entry["offset"]) + 300] ^= 1
    objects.stored[digest] = bytes(data)
    again = packed(open_dataset(objects, ds.digest), 32, on_error="skip")
    found = list(again)
    skipped = again.stats().skipped["page"]
    assert skipped > 0
    assert len(rows(found)) == len(rows(whole_run)) - skipped
    assert all(len(batch["tokens"]) == len(batch.segments["tokens"]) for batch in found)
    with pytest.raises(CorruptError, match="tokens"):
        list(packed(open_dataset(objects, ds.digest), 32))


# ------------------------------------------------------------------------------ buckets


def padding(ds: StoredDataset, sampling: Sampling, **options: Any) -> float:
    """The share of padding in the batches of an epoch."""
    batches = list(opened(ds, sampling, pad=0, columns=["tokens"], **options))
    shape = sum(batch["tokens"].size for batch in batches)
    return 1 - sum(int(batch.lengths["tokens"].sum()) for batch in batches) / shape


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_rows_of_like_length_come_together(dataset: StoredDataset, shuffle: Any) -> None:
    without = padding(dataset, Sampling(), shuffle=shuffle)
    bucketed = padding(dataset, Sampling(bucket="tokens", bucket_steps=8), shuffle=shuffle)
    assert without > 0.4
    assert bucketed < without / 3


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_lengths_are_known_from_row_tables(mapped: bool, codec: Codec) -> None:
    ds = sampled(mapped=mapped, codec=codec, page_bytes=4096)
    assert padding(ds, Sampling(bucket="tokens", bucket_steps=25)) < 0.1


def test_whole_numbers_may_say_the_lengths(dataset: StoredDataset) -> None:
    found = list(opened(dataset, Sampling(bucket="label", bucket_steps=25)))
    mixed = sum(len(set(batch["label"].tolist())) > 1 for batch in found)
    assert len(found) == 25
    assert mixed <= 2


def test_steps_of_a_block_come_in_random_order(dataset: StoredDataset) -> None:
    sampling = Sampling(bucket="tokens", bucket_steps=24)
    lengths = np.array(lengths_of(dataset))
    orders = []
    for epoch in range(2):
        found = opened(dataset, sampling, epoch=epoch)
        orders.append([int(lengths[batch.rows].max()) for batch in found])
    assert orders[0] != sorted(orders[0])
    assert orders[0] != orders[1]


# ------------------------------ whatever is sampled


SAMPLINGS = [
    Sampling(rows=slice(5, 300, 2)),
    Sampling(where=pc.field("split") == "test"),
    Sampling(weights={"label": "balanced"}),
    Sampling(weights="label", where=pc.field("split") == "train"),
    Sampling(bucket="tokens", bucket_steps=4),
    Sampling(bucket="tokens", bucket_steps=3, balance="split", epoch_rows=150),
    Sampling(pack=20),
    Sampling(pack=20, balance="split"),
]


def in_steps(ds: StoredDataset, sampling: Sampling, **options: Any) -> list[list[Any]]:
    """What each step hands out: rows, or the elements of each item."""
    name = "tokens" if sampling.pack else "label"
    found = opened(ds, sampling, columns=[name], seed=5, **options)
    return [_of(batch, sampling) for batch in found]


def _of(batch: Any, sampling: Sampling) -> list[Any]:
    if not sampling.pack:
        return batch.rows.tolist()
    return [tuple(item) for item in batch["tokens"].tolist()]


@pytest.fixture(scope="module")
def whole(dataset: StoredDataset, edited: StoredDataset) -> dict[Any, list[Any]]:
    """Every item of an epoch, in order, by dataset, sampling and shuffle."""
    return {
        (which, at, shuffle): [
            item for step in in_steps(ds, sampling, shuffle=shuffle) for item in step
        ]
        for which, ds in enumerate((dataset, edited))
        for at, sampling in enumerate(SAMPLINGS)
        for shuffle in SHUFFLES
    }


@settings(max_examples=effort.examples(5))
@given(
    st.integers(0, 1),
    st.integers(0, len(SAMPLINGS) - 1),
    st.sampled_from(SHUFFLES),
    resumptions(),
)
def test_any_sampling_goes_on_with_any_batch_size_and_number_of_ranks(
    dataset: StoredDataset,
    edited: StoredDataset,
    whole: dict[Any, list[Any]],
    which: int,
    at: int,
    shuffle: Any,
    resumed: tuple[int, int, int],
) -> None:
    ds, sampling = (dataset, edited)[which], SAMPLINGS[at]
    expected = whole[which, at, shuffle]
    steps, batch_size, world = resumed
    name = "tokens" if sampling.pack else "label"
    first = opened(ds, sampling, columns=[name], seed=5, shuffle=shuffle)
    seen = []
    with first:
        for _, batch in zip(range(steps), first, strict=False):
            seen += _of(batch, sampling)
    state = json.loads(json.dumps(first.state_dict()))
    ranks = []
    for rank in range(world):
        again = opened(
            ds,
            sampling,
            columns=[name],
            shuffle=shuffle,
            batch_size=batch_size * world,
            rank=rank,
            world_size=world,
            last="drop",
        )
        again.load_state_dict(state)
        ranks.append([_of(batch, sampling) for batch in again])
    left = expected[len(seen) :]
    assert seen == expected[: len(seen)]
    assert {len(each) for each in ranks} == {len(left) // (batch_size * world)}
    for step, shares in enumerate(zip(*ranks, strict=True)):
        low = step * batch_size * world
        together = sorted(item for share in shares for item in share)
        assert together == sorted(left[low : low + batch_size * world])


@st.composite
def tables(draw: st.DrawFn) -> tuple[StoredDataset, list[int], list[int]]:
    """A dataset, the numbers that its rows had before some were deleted, and a count for each."""
    count = draw(st.integers(2, 150))
    dead = sorted(draw(st.sets(st.integers(0, count - 1), max_size=count - 1)))
    ds = sampled(count, page_bytes=draw(st.sampled_from([128, 512, 4096])))
    left = [row for row in range(count) if row not in dead]
    counts = draw(st.lists(st.integers(0, 3), min_size=len(left), max_size=len(left)).filter(any))
    return without(ds.objects, ds, dead) if dead else ds, left, counts


@settings(max_examples=effort.examples(5))
@given(
    tables(),
    st.sampled_from(SHUFFLES),
    st.integers(1, 30),
    st.integers(1, 20_000),
    st.sampled_from([{}, {"bucket": "tokens", "bucket_steps": 3}]),
)
def test_every_row_of_any_table_comes_as_often_as_it_should_and_as_stored(
    table: tuple[StoredDataset, list[int], list[int]],
    shuffle: Any,
    batch_size: int,
    window_bytes: int,
    more: dict[str, Any],
) -> None:
    ds, left, counts = table
    chosen = np.array(counts) > 0
    weighted, view = (
        list(
            stream(
                ds,
                batch_size=batch_size,
                shuffle=shuffle,
                window=window_bytes,
                sampling=Sampling(**wish, **more),
            )
        )
        for wish in ({"weights": counts}, {"rows": chosen})
    )
    assert np.bincount(rows(weighted), minlength=ds.rows).tolist() == counts
    assert np.bincount(rows(view), minlength=ds.rows).tolist() == chosen.astype(int).tolist()
    stored_rows = [int(x) for batch in (*weighted, *view) for x in batch["x"][:, 0]]
    assert stored_rows == [left[row] for row in rows([*weighted, *view])]


@pytest.mark.soak
@pytest.mark.parametrize("at", range(len(SAMPLINGS)))
def test_a_run_that_was_not_interrupted_hands_out_the_same_steps(
    edited: StoredDataset, at: int
) -> None:
    sampling = SAMPLINGS[at]
    whole_run = in_steps(edited, sampling)
    first = opened(edited, sampling, columns=["tokens" if sampling.pack else "label"], seed=5)
    with first:
        for _ in zip(range(3), first, strict=False):
            pass
    again = opened(edited, sampling, columns=["tokens" if sampling.pack else "label"])
    again.load_state_dict(first.state_dict())
    assert [_of(batch, sampling) for batch in again] == whole_run[3:]


@pytest.mark.soak
@pytest.mark.parametrize("at", range(len(SAMPLINGS)))
def test_a_store_gives_what_a_local_disk_gives(dataset: StoredDataset, at: int) -> None:
    remote = sampled(ROWS, mapped=False)
    assert in_steps(remote, SAMPLINGS[at]) == in_steps(dataset, SAMPLINGS[at])


@pytest.mark.parametrize(
    ("one", "other"), effort.sampled(list(permutations(range(len(SAMPLINGS)), 2)), 12)
)
def test_a_state_of_another_sampling_is_refused_and_both_are_named(
    dataset: StoredDataset, one: int, other: int
) -> None:
    saved = opened(dataset, SAMPLINGS[one], columns=["tokens"]).state_dict()
    here = opened(dataset, SAMPLINGS[other], columns=["tokens"])
    with pytest.raises(InvalidInputError, match=r"saved for .*, this stream has .*"):
        here.load_state_dict(saved)
