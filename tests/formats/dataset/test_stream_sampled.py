"""Whatever is sampled: every item as often as it should come, resumed anywhere."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.streaming.options import Sampling
from tensorrepo.formats.dataset.streaming.stream import stream
from tensorrepo.repo.errors import InvalidInputError
from tests.support import effort
from tests.support.builders.changed import without
from tests.support.builders.sampling import (
    ROWS,
    SHUFFLES,
    changed,
    opened,
    resumptions,
    rows,
    sampled,
)
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
            world=world,
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
                window_bytes=window_bytes,
                sampling=Sampling(**wish, **more),
            )
        )
        for wish in ({"weights": counts}, {"rows": chosen})
    )
    assert np.bincount(rows(weighted), minlength=ds.rows).tolist() == counts
    assert np.bincount(rows(view), minlength=ds.rows).tolist() == chosen.astype(int).tolist()
    stored_rows = [int(x) for batch in (*weighted, *view) for x in batch["x"][:, 0]]
    assert stored_rows == [left[row] for row in rows([*weighted, *view])]


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
