"""Which stored models are like one, and what it was encoded against."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorrepo.formats.model.maintenance.similar_models import similar_models
from tensorrepo.formats.model.maintenance.usage import Reached
from tensorrepo.formats.model.write.base_choice import DeltaOptions
from tensorrepo.formats.model.write.model_writer import write_model
from tensorrepo.repo.history.trees import Entry
from tests.support.builders.objects import MemoryObjects


def weights(seed: int, shape: tuple[int, ...] = (300, 400)) -> Any:
    return np.random.default_rng(seed).normal(0, 0.02, shape).astype("f4")


def near(value: Any, size: float) -> Any:
    moved = np.random.default_rng(9).normal(0, size, value.shape)
    return (value + moved).astype("f4")


def reached(entry: Entry) -> Reached:
    return Reached(entry.digest, (entry,), (("main", f"models/{entry.digest:.8}"),))


def test_the_nearest_model_comes_first() -> None:
    objects = MemoryObjects()
    far = write_model(objects, {"w": weights(2)})
    close = write_model(objects, {"w": near(weights(1), 1e-6)})
    model = write_model(objects, {"w": weights(1)}, known=[far, close])
    found = similar_models(objects, model, [reached(one) for one in (far, model, close)])
    assert [one.model.digest for one in found.ranking] == [close.digest, far.digest]
    assert [one.is_alike for one in found.ranking] == [True, False]
    assert [one.base for one in found.ranking] == ["similar", None]


def test_a_declared_base_is_told_even_where_it_is_not_among_the_models() -> None:
    objects = MemoryObjects()
    base = write_model(objects, {"w": weights(1)})
    tuned = write_model(objects, {"w": near(weights(1), 1e-6)}, against=DeltaOptions(base))
    found = similar_models(objects, tuned, [])
    (told,) = found.to_json()["bases"]
    assert (told["digest"], told["why"], told["tensors"]) == (base.digest, "declared", 1)


def test_another_architecture_is_told_apart_and_one_without_half_is_unlike() -> None:
    objects = MemoryObjects()
    model = write_model(objects, {"w": weights(1), "head": weights(2, (300, 10))})
    other = write_model(objects, {"w": weights(1), "head": weights(3, (300, 20))})
    alien = write_model(objects, {"x": weights(1)})
    found = similar_models(objects, model, [reached(other), reached(alien)])
    (one,) = found.ranking
    assert (one.same_architecture, one.bits) == (False, 0)
    assert found.unlike == 1


def test_no_tensor_is_read_for_it(monkeypatch: Any) -> None:
    from tensorrepo.formats.model.read.members import MemberReader

    objects = MemoryObjects()
    model, other = (write_model(objects, {"w": weights(seed)}) for seed in (1, 2))
    monkeypatch.delattr(MemberReader, "frames_into")
    assert len(similar_models(objects, model, [reached(other)]).ranking) == 1
