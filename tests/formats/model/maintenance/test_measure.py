"""Which tensors are tried as bases: the present one, and the nearest of the same kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.model.delta.similarity import SIGNATURE_ITEMS, distance
from tensorrepo.formats.model.maintenance import repack_stock
from tensorrepo.formats.model.maintenance.repack_plan import (
    CANDIDATES,
    likely_bases,
)
from tensorrepo.formats.model.maintenance.repack_stock import (
    Inventory,
    InventoryTensor,
    take_stock,
)
from tensorrepo.formats.model.write.model_writer import write_model
from tensorrepo.repo.history.trees import Entry
from tests.support.builders.objects import MemoryObjects


def holding(number: int, *, signed: bool = True) -> InventoryTensor:
    rng = np.random.default_rng(number)
    name = f"layer{number % 2}"
    return InventoryTensor(
        bytes([number]),
        number,
        (name, "F32", (256, 256)),
        1 << 18 if signed else 2048,  # one that is too small to be read for a signature
        1 << 18 if signed else 2048,
        rng.integers(0, 1 << 16, SIGNATURE_ITEMS).astype(np.uint16) if signed else None,
        "raw",
        b"",
        (),
    )


def stock_of(holdings: list[InventoryTensor]) -> Inventory:
    numbers = {one.fingerprint: number for number, one in enumerate(holdings)}
    return Inventory(MemoryObjects(), tensors=holdings, numbers=numbers)


def nearest(tensors: list[InventoryTensor], number: int) -> list[int]:
    """One by one, as the signatures' own measure says."""
    one = tensors[number]
    others = [at for at, other in enumerate(tensors) if other.kind == one.kind and at != number]

    def far(at: int) -> tuple[float, int]:
        its = tensors[at].signature
        both = its is not None and one.signature is not None
        return distance(one.signature, its) if both else 0.0, abs(at - number)

    return sorted(others, key=far)[:CANDIDATES]


def test_those_are_tried_whose_signatures_differ_least() -> None:
    stock = stock_of([holding(number) for number in range(40)])
    assert likely_bases(stock) == [nearest(stock.tensors, number) for number in range(40)]


def test_of_tensors_without_signatures_neighbours_are_tried() -> None:
    stock = stock_of([holding(number, signed=False) for number in range(20)])
    assert likely_bases(stock)[0] == [2, 4, 6]


def test_the_present_base_comes_first() -> None:
    """It lies in another model's pack, and nine others differ as little from each."""
    objects, rng = MemoryObjects(), np.random.default_rng(1)
    published = rng.normal(0, 0.02, (256, 256)).astype("f4")
    entries = [write_model(objects, {"w": published})]
    for _ in range(9):
        tuned = published + rng.normal(0, 1e-6, published.shape).astype("f4")
        entries.append(write_model(objects, {"w": tuned}, known=entries[:1]))
    stock = take_stock(objects, entries)
    assert [stock.bases(number) for number in range(10)] == [(), *[(0,)] * 9]
    assert [near[0] for near in likely_bases(stock)[1:]] == [0] * 9
    assert take_stock(objects, entries[1:]).bases(0) is None


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_few_tensors_have_few_candidates(count: int) -> None:
    kinds = [holding(2 * number) for number in range(count)]
    assert [len(one) for one in likely_bases(stock_of(kinds))] == [max(0, count - 1)] * count


@pytest.fixture
def tuned() -> tuple[MemoryObjects, list[Entry], list[dict[str, np.ndarray[Any, Any]]]]:
    """Six models of two tensors: each encoded against the one before, or whole."""
    objects, rng = MemoryObjects(), np.random.default_rng(2)
    models = [{name: rng.normal(0, 0.02, (64, 64)).astype("f4") for name in "ab"}]
    for _ in range(5):
        step = {name: rng.normal(0, 1e-6, (64, 64)).astype("f4") for name in "ab"}
        models.append({name: models[-1][name] + step[name] for name in "ab"})
    entries: list[Entry] = []
    for model in models:
        entries.append(write_model(objects, model, known=entries[-1:]))
    return objects, entries, models


def test_a_plan_opens_each_model_and_decodes_each_frame_once(tuned: Any) -> None:
    objects, entries, _ = tuned
    stock = take_stock(objects, entries)
    first = [read_all(stock, number) for number in range(12)]
    objects.reads.clear()
    assert [read_all(stock, number) for number in range(12)] == first
    assert objects.reads == []


@pytest.mark.parametrize("limit", ["OPEN_FRAMES", "KEPT_BYTES"])
def test_tensors_are_read_with_room_for_nothing(
    tuned: Any, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repack_stock, limit, 4)
    objects, entries, models = tuned
    stock = take_stock(objects, entries)
    expected = [model[name].tobytes() for model in models for name in "ab"]
    assert [read_all(stock, number) for number in range(12)] == expected
    objects.reads.clear()
    read_all(stock, 0)
    assert objects.reads  # it was let go of


def read_all(stock: Inventory, number: int) -> bytes:
    room = bytearray(stock.tensors[number].size_bytes)
    stock.reader(number).read_into(0, memoryview(room))
    return bytes(room)
