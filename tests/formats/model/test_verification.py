from __future__ import annotations

from pathlib import Path

import numpy as np

from tensorrepo.formats.common.tensors import tensor_of
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.model.verification import verify_model
from tensorrepo.formats.model.write.model_source import ModelSource, OriginalFile
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.models import copy_of, flip, payload_start, stored
from tests.support.builders.objects import MemoryObjects


def test_everything_is_read_once() -> None:
    weights = np.random.default_rng(0).normal(size=100_000)
    model = stored({"a": weights, "b": weights, "c": np.zeros(3)}, files={"x": b"1"})
    told: list[int] = []
    found = verify_model(model, told.append)
    assert (found.tensors, found.files, found.faults) == (2, 1, ())
    assert found.bytes == told[-1] == weights.nbytes + 24


def test_one_fault_does_not_hide_another() -> None:
    objects = MemoryObjects()
    random = np.random.default_rng(0)
    tensors = {name: random.bytes(100_000) for name in "abc"}
    model = stored({name: np.frombuffer(data, "u1") for name, data in tensors.items()}, objects)
    damaged = copy_of(objects)
    packs = [link.digest for link in objects.links.values() if link.kind is Kind.PACK]
    start = payload_start(objects, packs[0])
    whole = objects.stored[packs[0]]
    flip(damaged, packs[0], whole.index(tensors["a"][50:90], start))
    flip(damaged, packs[0], whole.index(tensors["c"][50:90], start))
    found = verify_model(open_model(damaged, model.entry))
    assert ["'a'" in found.faults[0], "'c'" in found.faults[1]] == [True, True]
    assert len(found.faults) == 2


def test_a_fault_that_a_file_of_the_tensors_has_as_well_is_told_once(tmp_path: Path) -> None:
    path, objects = tmp_path / "model.bin", MemoryObjects()
    data = np.random.default_rng(0).bytes(100_000)
    path.write_bytes(b"head" + data)
    original = OriginalFile("model.bin", "test", path, (b"head", "a"))
    reader = tensor_of("a", np.frombuffer(data, "u1"))
    model = stored(ModelSource({"a": reader}, originals=(original,)), objects)
    (pack,) = (link.digest for link in objects.links.values() if link.kind is Kind.PACK)
    damaged = copy_of(objects)
    flip(damaged, pack, objects.stored[pack].index(data[50:90], payload_start(objects, pack)))
    assert len(verify_model(open_model(damaged, model.entry)).faults) == 1
