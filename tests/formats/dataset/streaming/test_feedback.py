"""Weights by reported losses: a pure function of reports, the same on all ranks, and resumed."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.streaming.mix.feed import mix
from tensorrepo.formats.dataset.streaming.order.feedback import Feedback, Reports, Scores
from tensorrepo.formats.dataset.streaming.order.items import EveryRow
from tensorrepo.formats.dataset.streaming.stream import BatchStream
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders.datasets import stored
from tests.support.builders.streams import COUNT, ROWS, SCHEMA, WINDOW, MappedObjects, stream

HARD = np.arange(COUNT) % 10 == 0
LOSSES = np.where(HARD, 4.0, 0.5)


@pytest.fixture(scope="module")
def local() -> StoredDataset:
    return stored(MappedObjects(), SCHEMA, [ROWS], page_bytes=8192)


def opened(ds: StoredDataset, feedback: Feedback | None = None, **options: Any) -> BatchStream:
    words = {"batch_size": 40, "window": WINDOW, "columns": ["y"]} | options
    return stream(ds, feedback=feedback or Feedback(), **words)


def trained(found: BatchStream) -> np.ndarray:
    """An epoch in which the losses of all batches are reported; how often each row came."""
    counts = np.zeros(COUNT, np.int64)
    for batch in found:
        found.report(batch, LOSSES[batch.rows])
        np.add.at(counts, batch.rows, 1)
    return counts


def weights_of(found: BatchStream) -> np.ndarray:
    return found.feed.plan.selection.weights.units / 2**32  # type: ignore[union-attr]


# ------------------------------------------------------------------------------ of one rank


def test_before_anything_is_reported_every_row_comes_once(local: StoredDataset) -> None:
    found = opened(local)
    assert trained(found).tolist() == [1] * COUNT
    alone = stream(local, batch_size=40, window=WINDOW, columns=["y"])
    assert [b.rows.tolist() for b in opened(local)] == [b.rows.tolist() for b in alone]


def test_rows_with_large_losses_come_more_often_and_none_is_left_out(local: StoredDataset) -> None:
    found = opened(local)
    trained(found)
    counts = sum((trained(found) for _ in range(4)), np.zeros(COUNT, np.int64))
    weights = weights_of(found)
    assert weights.sum() == pytest.approx(COUNT, rel=1e-6)
    mean = LOSSES.mean()
    expected = 0.2 + 0.8 * LOSSES / mean
    np.testing.assert_allclose(weights, expected, rtol=1e-5)
    assert counts[HARD].mean() > 3 * counts[~HARD].mean()
    assert abs(counts.sum() - 4 * COUNT) < 200


def test_weighted_losses_have_the_mean_of_all_rows(local: StoredDataset) -> None:
    found = opened(local)
    trained(found)
    values = []
    for epoch in range(1, 30):
        found.set_epoch(epoch)
        for batch in found:
            values.append(LOSSES[batch.rows] * found.importance(batch))
            found.report(batch, LOSSES[batch.rows])
    total = np.concatenate(values).sum() / 29 / COUNT
    assert total == pytest.approx(LOSSES.mean(), rel=0.02)


def test_a_score_follows_its_losses_slowly() -> None:
    scores = Scores.none(3)
    for loss in (8.0, 0.0, 0.0):
        reports = Reports()
        reports.add(np.array([1]), np.array([loss]))
        scores = scores.after(reports.of_all(None), 0.5)
    assert scores.values.tolist() == [-1.0, 2.0, -1.0]


def test_a_row_that_came_twice_has_the_mean_of_its_losses() -> None:
    reports = Reports()
    reports.add(np.array([0, 0, 1]), np.array([1.0, 3.0, 5.0]))
    assert Scores.none(2).after(reports.of_all(None), 0.5).values.tolist() == [2.0, 5.0]


def test_an_outlier_is_cut_and_a_floor_is_kept() -> None:
    reports = Reports()
    losses = np.ones(1000)
    losses[7] = 1e6
    reports.add(np.arange(1000), losses)
    scores = Scores.none(1000).after(reports.of_all(None), 0.5)
    how = Feedback(floor=0.3, most=10)
    weights = scores.weights(EveryRow(1000), 1000, how).units / 2**32
    assert weights.min() >= 0.3
    assert weights[7] <= 0.3 + 0.7 * 1000
    assert weights.sum() == pytest.approx(1000, rel=1e-6)
    equal = Feedback(floor=1.0)
    assert scores.weights(EveryRow(1000), 1000, equal).units.tolist() == [1 << 32] * 1000


def test_losses_that_are_all_zero_weigh_equally() -> None:
    reports = Reports()
    reports.add(np.arange(10), np.zeros(10))
    scores = Scores.none(10).after(reports.of_all(None), 1.0)
    weights = scores.weights(EveryRow(10), 20, Feedback())
    assert weights.units.tolist() == [2 << 32] * 10


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 19), st.floats(0, 1000, width=32)), min_size=1, max_size=60),
    st.randoms(use_true_random=False),
    st.integers(1, 5),
)
def test_the_order_of_reports_and_who_reported_means_nothing(
    told: list[tuple[int, float]], chance: Any, ranks: int
) -> None:
    def scores(pairs: Sequence[tuple[int, float]], parts: int) -> list[float]:
        every = []
        for part in range(parts):
            reports = Reports()
            own = pairs[part::parts]
            if own:
                reports.add(np.array([row for row, _ in own]), np.array([x for _, x in own]))
            every += reports.of_all(None)
        return Scores.none(20).after(every, 0.3).values.tolist()

    mixed = list(told)
    chance.shuffle(mixed)
    assert scores(mixed, ranks) == scores(told, 1)


# ------------------------------------------------------------------------------ states


@pytest.mark.parametrize("used", [0, 6, 1000])
def test_who_resumes_has_the_same_next_epochs(local: StoredDataset, used: int) -> None:
    whole, cut = opened(local), opened(local)
    expected = [trained(whole).tolist() for _ in range(4)]
    trained(cut)
    left = np.zeros(COUNT, np.int64)
    iterator = iter(cut)
    for batch in islice(iterator, used):
        cut.report(batch, LOSSES[batch.rows])
        np.add.at(left, batch.rows, 1)
    state = json.loads(json.dumps(cut.state_dict()))
    iterator.close()
    resumed = opened(local)
    resumed.load_state_dict(state)
    assert resumed.epoch == 1
    assert (left + trained(resumed)).tolist() == expected[1]
    assert [trained(resumed).tolist() for _ in range(2)] == expected[2:]


def test_states_of_other_feedback_are_refused(local: StoredDataset) -> None:
    state = opened(local).state_dict()
    with pytest.raises(InvalidInputError, match="Give the same to resume"):
        opened(local, Feedback(floor=0.5)).load_state_dict(state)
    plain = stream(local, batch_size=40, columns=["y"])
    with pytest.raises(InvalidInputError, match="saved with feedback="):
        plain.load_state_dict(state)
    with pytest.raises(InvalidInputError, match="saved without feedback="):
        opened(local).load_state_dict(plain.state_dict())


@pytest.mark.parametrize(
    ("field", "value"),
    [("scores", "????"), ("scores", ""), ("scores", 3), ("reports", "AAAA"), ("floor", "x")],
)
def test_a_damaged_state_is_refused(local: StoredDataset, field: str, value: Any) -> None:
    found = opened(local)
    state = found.state_dict()
    state["feedback"] = state["feedback"] | {field: value}
    with pytest.raises(InvalidInputError):
        opened(local).load_state_dict(state)
    assert trained(found).tolist() == [1] * COUNT


def test_a_state_of_scores_is_small() -> None:
    scores = Scores(np.random.default_rng(1).random(100_000).astype("f4"))
    from tensorrepo.formats.dataset.streaming.order.feedback import packed_array

    assert len(packed_array(scores.values)) < 6 * 100_000


# ------------------------------------------------------------------------------ several ranks


class Gathering:
    """Brings together what threads that stand for ranks give: each gets all of it."""

    def __init__(self, world: int) -> None:
        self._barrier = threading.Barrier(world)
        self._given: dict[int, bytes] = {}

    def of(self, rank: int) -> Any:
        def gather(own: bytes) -> list[bytes]:
            self._given[rank] = own
            self._barrier.wait(30)
            every = [self._given[each] for each in sorted(self._given)]
            self._barrier.wait(30)
            return every[rank:] + every[:rank]  # in whatever order

        return gather


def in_ranks(world: int, work: Any) -> list[Any]:
    results: list[Any] = [None] * world

    def run(rank: int) -> None:
        results[rank] = work(rank)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results


@pytest.mark.parametrize("world", [2, 3])
def test_all_ranks_have_the_same_weights_as_one(local: StoredDataset, world: int) -> None:
    one = opened(local, last="pad")
    expected = [trained(one) for _ in range(3)]
    together = Gathering(world)

    def work(rank: int) -> tuple[list[np.ndarray], dict[str, Any]]:
        feedback = Feedback(gather=together.of(rank))
        found = opened(local, feedback, rank=rank, world_size=world, last="pad")
        counts = []
        for _ in range(3):
            own = np.zeros(COUNT, np.int64)
            for batch in found:
                found.report(batch, LOSSES[batch.rows])
                np.add.at(own, batch.rows[: len(batch.rows) - batch.repeated], 1)
            counts.append(own)
        return counts, found.state_dict()

    results = in_ranks(world, work)
    for epoch in range(3):
        both = sum((counts[epoch] for counts, _ in results), np.zeros(COUNT, np.int64))
        once = opened(local)
        assert (both > 0).tolist() == (expected[epoch] > 0).tolist(), once
    states = [state for _, state in results]
    assert all(state == states[0] for state in states)
    assert states[0]["feedback"]["scores"] == one.state_dict()["feedback"]["scores"]


def test_a_state_of_two_ranks_goes_on_with_three(local: StoredDataset) -> None:
    def work(world: int, state: Any) -> list[Any]:
        together = Gathering(world)

        def run(rank: int) -> Any:
            feedback = Feedback(gather=together.of(rank))
            found = opened(local, feedback, rank=rank, world_size=world, last="pad")
            if state is not None:
                found.load_state_dict(state)
            iterator = iter(found)
            for batch in [next(iterator) for _ in range(5)]:
                found.report(batch, LOSSES[batch.rows])
            middle = found.state_dict()
            for batch in iterator:
                found.report(batch, LOSSES[batch.rows])
            found.set_epoch(found.epoch + 1)
            return middle, weights_of(found)

        return in_ranks(world, run)

    middle, weights = work(2, None)[0]
    resumed = work(3, middle)
    for _, its in resumed:
        np.testing.assert_array_equal(its, weights)


def test_ranks_without_a_way_together_are_refused(local: StoredDataset) -> None:
    with pytest.raises(InvalidInputError, match="gather="):
        opened(local, rank=0, world_size=2, last="pad")


# ------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        (np.ones(39), "one number for each of the 40 rows"),
        (1.0, "reduction='none'"),
        (np.full(40, np.nan), "losses are finite"),
        (np.full(40, -1.0), "at least 0"),
        (["x"] * 40, "one number for each row"),
    ],
)
def test_losses_that_are_none_are_refused(local: StoredDataset, losses: Any, told: str) -> None:
    found = opened(local)
    batch = next(iter(found))
    with pytest.raises(InvalidInputError, match=told):
        found.report(batch, losses)
    found.close()


def test_losses_of_torch_are_taken(local: StoredDataset) -> None:
    torch = pytest.importorskip("torch")
    found = opened(local)
    batch = next(iter(found))
    losses = torch.ones(40, dtype=torch.bfloat16, requires_grad=True)
    found.report(batch, losses)
    found.close()


def test_only_a_stream_with_feedback_takes_reports(local: StoredDataset) -> None:
    plain = stream(local, batch_size=40, columns=["y"])
    batch = next(iter(plain))
    with pytest.raises(InvalidInputError, match="Feedback"):
        plain.report(batch, np.ones(40))
    with pytest.raises(InvalidInputError, match="a batch as the stream gave it"):
        opened(local).report({"y": batch["y"]}, np.ones(40))
    plain.close()


@pytest.mark.parametrize(
    "options", [{"weights": "y"}, {"balance": "y"}, {"columns": ["r"], "pack": 4}]
)
def test_other_weights_beside_it_are_refused(local: StoredDataset, options: Any) -> None:
    with pytest.raises(InvalidInputError, match="feedback= makes the weights"):
        opened(local, **options)


@pytest.mark.parametrize(
    "words", [{"floor": 0}, {"floor": 1.5}, {"smoothing": 0}, {"most": 0.5}, {"gather": 3}]
)
def test_feedback_that_makes_no_sense_is_refused(words: Any) -> None:
    with pytest.raises(InvalidInputError):
        Feedback(**words)


def test_a_mix_takes_no_weights_of_rows(local: StoredDataset) -> None:
    with pytest.raises(InvalidInputError, match="weights of rows"):
        mix([opened(local), opened(local)])


def test_only_chosen_rows_are_weighed(local: StoredDataset) -> None:
    found = opened(local, rows=range(0, COUNT, 2))
    assert trained(found).tolist() == [1, 0] * (COUNT // 2)
    assert trained(found)[1::2].max() == 0
    assert weights_of(found).sum() == pytest.approx(COUNT // 2, rel=1e-6)


def test_an_epoch_may_be_shorter(local: StoredDataset) -> None:
    found = opened(local, epoch_rows=100)
    assert 50 < trained(found).sum() < 150
    assert 50 < trained(found).sum() < 150
