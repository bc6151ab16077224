"""A run's document: what is refused, and what metrics come to."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common.provenance import USED, ProvenanceEdge
from tensorrepo.formats.runs import metrics as logbook
from tensorrepo.formats.runs.metrics import Logbook
from tensorrepo.formats.runs.run_record import (
    FINISHED,
    RUNNING,
    Metric,
    MetricPoint,
    RunDocument,
    RunOutput,
    decode_run,
    encode_run,
)
from tensorrepo.repo.errors import CorruptError, InvalidInputError
from tensorrepo.repo.ids import Digest
from tests.support.builders.objects import MemoryObjects
from tests.support.faults.damage import survivors
from tests.support.golden.run import golden_run
from tests.support.processes.interrupts import interrupted_after

NAN = partial(Metric, points=1, not_finite=1, last=MetricPoint(0, math.nan))
RUN = RunDocument("exp1", "a" * 64, RUNNING, "Ada <a@b.c>", 1, 2, 3)

REFUSED: dict[str, dict[str, Any]] = {
    "a name with a slash": {"name": "a/b"},
    "an id that is none": {"id": "12"},
    "another status": {"status": "dreaming"},
    "an end while it is running": {"ended_ns": 4},
    "no end when it is finished": {"status": FINISHED},
    "an edge that is none": {"inputs": (ProvenanceEdge(USED, "x", "12"),)},
    "an output without a digest": {"outputs": (RunOutput("models/m", "", "1" * 64),)},
    "a parameter that is no JSON": {"params": {"a": {1: 2}}},
    "metrics out of order": {"metrics": (NAN("b"), NAN("a"))},
    "more bad points than points": {"metrics": (Metric("a", 1, 2, MetricPoint(0, 0.0)),)},
    "finite points without bounds": {"metrics": (Metric("a", 2, 1, MetricPoint(0, 0.0)),)},
    "a chunk that is no digest": {"chunks": (b"12",)},
}  # fmt: skip


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED)
def test_what_no_run_may_have_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        encode_run(msgspec.structs.replace(RUN, **changes))


def test_no_flipped_byte_is_taken_for_something_that_cannot_be() -> None:
    objects = MemoryObjects()
    payload = encode_run(golden_run(objects))

    def read(data: bytes) -> bool:
        return encode_run(decode_run(data, Digest("0" * 64))) == data

    assert set(survivors(payload, 0x01, read).values()) <= {True}


def test_a_run_that_is_cut_short_is_told() -> None:
    with pytest.raises(CorruptError, match="run 000000000000"):
        decode_run(encode_run(RUN)[:-1], Digest("0" * 64))


@given(st.lists(st.tuples(st.integers(-5, 5), st.floats()), min_size=1, max_size=30))
def test_a_metric_in_short_says_what_its_points_say(points: list[tuple[int, float]]) -> None:
    book = Logbook()
    for step, value in points:
        book.add({"loss": value}, step, 0)
    (metric,) = book.take().metrics
    finite = [(step, value) for step, value in points if np.isfinite(value)]
    assert (metric.points, metric.not_finite) == (len(points), len(points) - len(finite))
    assert str(metric.last.value) == str(points[-1][1])
    assert (metric.min is None) == (not finite)
    assert metric.min is None or metric.min.value == min(value for _, value in finite)
    assert metric.max is None or metric.max.value == max(value for _, value in finite)


def test_without_a_step_points_are_counted_also_when_a_run_goes_on() -> None:
    book = Logbook()
    book.add({"a": 1.0}, None, 0)
    book.add({"a": 2.0, "b": 3.0}, None, 0)
    taken = book.take()
    resumed = Logbook(taken.metrics)
    resumed.add({"a": 0.5}, None, 0)
    again = resumed.take()
    first = again.metrics[0]
    assert (taken.points["a"].steps.tolist(), again.points["a"].steps.tolist()) == ([0, 1], [2])
    assert (first.points, first.min, first.max) == (3, MetricPoint(2, 0.5), MetricPoint(1, 2.0))


def test_what_was_taken_stays_until_it_is_forgotten_and_is_taken_once_more() -> None:
    book = Logbook()
    book.add({"a": 2.0}, 5, 0)
    first = book.take()
    book.add({"a": 1.0}, 6, 0)
    assert [len(book.take(after).points["a"]) for after in (None, first)] == [2, 1]
    book.forget(first)
    book.forget(first)
    second = book.take(first)
    (metric,) = second.metrics
    assert (second.points["a"].steps.tolist(), metric.points, book.waiting) == ([6], 2, 1)
    assert (metric.min, metric.max) == (MetricPoint(6, 1.0), MetricPoint(5, 2.0))


@pytest.mark.parametrize("at", range(20))
def test_an_interrupt_between_two_calls_leaves_whole_points(at: int) -> None:
    book = Logbook()
    book.add({"a": 1.0}, 0, 0)
    with interrupted_after(at, "formats/runs/metrics.py"):
        book.add({"a": 2.0, "b": 3.0}, 1, 0)
    book.add({"a": 4.0}, 2, 0)
    taken = book.take()
    for metric in taken.metrics:
        points = taken.points[metric.name]
        assert {metric.points} == {len(points.steps), len(points.values), len(points.times_ms)}
    assert taken.points["a"].steps.tolist() in ([0, 2], [0, 1, 2])


@pytest.mark.parametrize("step", [1 << 63, -(1 << 63) - 1])
def test_a_step_of_more_than_64_bits_is_refused_and_nothing_logged(step: int) -> None:
    book = Logbook()
    with pytest.raises(InvalidInputError, match="64 bits"):
        book.add({"a": 1.0, "b": 1.0}, step, 0)
    taken = book.take()
    assert (taken.points, taken.metrics) == ({}, ())


def test_more_metrics_than_a_run_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logbook, "MAX_METRICS", 1)
    book = Logbook()
    book.add({"a": 1.0}, 0, 0)
    with pytest.raises(InvalidInputError, match="1 metrics at most"):
        book.add({"b": 1.0}, 0, 0)
