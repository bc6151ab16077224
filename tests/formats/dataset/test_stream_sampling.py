"""Views and weights: the rows that were chosen, as often as they should come."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.selecting.select_rows import ids_of_rows
from tensorrepo.formats.dataset.streaming.mix.feed import mix
from tensorrepo.formats.dataset.streaming.options import Sampling
from tensorrepo.repo.errors import InvalidInputError, NoSuchRowError, NotFoundError
from tests.support.builders.sampling import ROWS, SHUFFLES, changed, opened, packed, rows, sampled
from tests.support.builders.streams import stream_threads


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


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize(
    "nothing",
    [
        Sampling(where="split == 'none'"),
        Sampling(where="split == 'none'", bucket="tokens"),
        Sampling(where="split == 'none'", pack=8),
        Sampling(where="tokens is null", pack=8),
        Sampling(weights=np.full(ROWS, 1e-9)),
        Sampling(weights=np.full(ROWS, 1e-9), bucket="tokens"),
        Sampling(weights=np.full(ROWS, 1e-9), pack=8),
    ],
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
