"""A plan of a pipeline measures what there is, and advises what follows from its numbers."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.dataset.read import StoredDataset
from tensorrepo.formats.dataset.schema.schema import Column, Image, Scalar, Schema, Tensor
from tensorrepo.formats.dataset.streaming.collate.decode import Decode
from tensorrepo.formats.dataset.streaming.pipeline_plan import PipelinePlan, plan_pipeline
from tests.support.builders.datasets import stored
from tests.support.builders.pictures import jpeg, smooth
from tests.support.builders.streams import MappedObjects, options_of

NUMBERS = Schema((Column("x", Tensor("float32", (256,))), Column("y", Scalar("int64"))))
NUMBER_ROWS = [{"x": np.full(256, at, "f4"), "y": np.int64(at)} for at in range(300)]
PICTURES = Schema((Column("photo", Image()), Column("y", Scalar("int64"))))


@pytest.fixture(scope="module")
def numbers() -> StoredDataset:
    return stored(MappedObjects(), NUMBERS, [NUMBER_ROWS])


@pytest.fixture(scope="module")
def pictures() -> StoredDataset:
    pytest.importorskip("cv2")
    pytest.importorskip("simplejpeg")
    rows = [{"photo": jpeg(smooth(300, 400, seed=at)), "y": np.int64(at)} for at in range(40)]
    return stored(MappedObjects(), PICTURES, [rows])


def planned(ds: StoredDataset, **words: Any) -> PipelinePlan:
    limits = {
        name: words.pop(name)
        for name in ("link_bytes_per_second", "step_seconds", "cores")
        if name in words
    }
    return plan_pipeline(ds, options_of(batch_size=32, **words), seconds=0.2, **limits)


def slow(batch: Any) -> Any:
    time.sleep(0.002 * len(batch.rows))
    return {"small": batch["x"][:, :2]}


def test_the_present_way_is_what_was_measured(numbers: StoredDataset) -> None:
    plan = planned(numbers, transform=slow, cores=2, link_bytes_per_second=1e9)
    now, made = plan.ways
    assert now.name == "as it is"
    assert now.row_bytes == pytest.approx(numbers.stored_bytes / 300, rel=0.3)
    assert now.transform_seconds == pytest.approx(0.002, rel=0.5)
    assert now.waits_for == "processor"
    assert now.rows_per_second == pytest.approx(2 / now.transform_seconds)
    assert (made.name, made.row_bytes, made.waits_for) == ("transformed", 8.0, "storage")
    assert plan.advice is made
    assert "tx.derive" in str(plan)


def test_a_loop_that_takes_longer_than_its_input_needs_nothing(numbers: StoredDataset) -> None:
    plan = planned(numbers, transform=slow, cores=2, link_bytes_per_second=1e9, step_seconds=10.0)
    assert plan.advised == 0
    assert plan.ways[0].waits_for == "step"
    assert "Leave it as it is" in str(plan)


def test_a_slow_link_asks_for_fewer_bytes(pictures: StoredDataset) -> None:
    how = Decode(size=32)
    plan = planned(pictures, decode=how, link_bytes_per_second=20e3, cores=8)
    by_name = {way.name: way for way in plan.ways}
    smaller, decoded = by_name["photo resized to 32"], by_name["decoded photo"]
    assert smaller.row_bytes < decoded.row_bytes < by_name["as it is"].row_bytes
    assert decoded.decode_seconds < 1e-9 < smaller.decode_seconds
    assert smaller.decode_seconds < by_name["as it is"].decode_seconds
    assert plan.advice is smaller
    assert plan.ways[0].waits_for == "storage"


def test_a_fast_link_and_few_cores_ask_for_less_decoding(pictures: StoredDataset) -> None:
    plan = planned(pictures, decode=Decode(size=32), link_bytes_per_second=1e12, cores=1)
    assert plan.advice.name == "decoded photo"
    assert plan.ways[0].waits_for == "processor"


@pytest.mark.soak
def test_what_is_cut_at_random_keeps_room_and_is_not_stored_decoded(
    pictures: StoredDataset,
) -> None:
    plan = planned(pictures, decode=Decode(size=224, fit="random"), link_bytes_per_second=1e6)
    assert [way.name for way in plan.ways] == [
        "as it is", "photo resized to 256", "photo recompressed",
    ]  # fmt: skip


def test_the_link_is_measured_unless_it_is_given(numbers: StoredDataset) -> None:
    measured, given = planned(numbers), planned(numbers, link_bytes_per_second=5.0)
    assert measured.link_measured
    assert measured.link_bytes_per_second > 1e6
    assert not given.link_measured
    assert given.ways[0].rows_per_second < 0.01


def test_it_is_json_and_a_table(pictures: StoredDataset) -> None:
    plan = planned(pictures, decode=Decode(size=32), link_bytes_per_second=1e6)
    value = json.loads(json.dumps(plan.to_dict()))
    assert value["advice"]["name"] == plan.advice.name
    assert [way["name"] for way in value["ways"]] == [way.name for way in plan.ways]
    lines = str(plan).splitlines()
    assert sum(line.startswith("*") for line in lines) == 1
    assert all(way.name in str(plan) for way in plan.ways)


def test_only_chosen_rows_count(numbers: StoredDataset) -> None:
    plan = planned(numbers, rows=range(10), link_bytes_per_second=1e9)
    assert (plan.rows, plan.sampled_rows) == (10, 10)
