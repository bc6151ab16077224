"""Small tensors that are encoded together are stored as those that are encoded one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.common.tensors import TYPES, tensor_of
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.model.write import chunk_encoder
from tensorrepo.formats.model.write.base_choice import DeltaOptions
from tensorrepo.formats.model.write.model_writer import WrittenModel, store_model
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.models import MappedObjects, flip, payload_start
from tests.support.builders.objects import MemoryObjects

Model = dict[str, Any]


def small_tensors(seed: int) -> Model:
    """Four kinds of floats, numbers of eight bytes, bytes, and tensors too small to be encoded."""
    rng = np.random.default_rng(seed)
    model: Model = {}
    for at in range(12):
        weights = rng.standard_normal(1024, dtype="f4")
        model |= {
            f"{at}.weight": weights,
            f"{at}.scale": rng.standard_normal((32, 33), dtype="f4").T,
            f"{at}.mask": np.where(weights > 0, weights[0], weights[1]),
            f"{at}.zero": np.zeros(1024, "f4"),
            f"{at}.half": weights.repeat(2).astype("f2"),
            f"{at}.count": rng.integers(0, 1 << 40, 600),
            f"{at}.bytes": rng.integers(0, 9 + 300 * (at % 2), 4096).astype("u1"),
            f"{at}.bias": weights[:100],
        }
    return model


def moved(model: Model, seed: int) -> Model:
    """Most tensors a little further, as a step of training moves them; some far, some not."""
    rng = np.random.default_rng(seed)
    found: Model = {}
    for at, (name, value) in enumerate(model.items()):
        by = [0, 1e-3, 1e-3, 1e-3, 1e-3, 1e-3, 30][at % 7]
        step = rng.standard_normal(value.shape) * by
        found[name] = (value + step).astype(value.dtype)
    return found


def saved(objects: MappedObjects, model: Model, base: WrittenModel | None = None) -> WrittenModel:
    return store_model(objects, model, against=DeltaOptions(base.entry if base else None))


def chain() -> list[WrittenModel]:
    """Models against which the next one is stored: alone, against a base, against that one's."""
    objects, value = MappedObjects(), small_tensors(1)
    made = [saved(objects, value)]
    for seed in (2, 3, 4):
        value = moved(value, seed)
        made.append(saved(objects, value, made[-1]))
    stored = open_model(objects, made[-1].entry)
    assert all(np.array_equal(stored[name], tensor) for name, tensor in value.items())
    return made


def test_what_is_encoded_together_is_what_is_encoded_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    together = chain()
    monkeypatch.setattr(chunk_encoder, "is_bundled", lambda _part: False)
    assert [one.entry for one in chain()] == [one.entry for one in together]
    assert together[1].report.codecs["delta"].tensors > 12


def test_a_damaged_base_of_many_spoils_none_but_its_own() -> None:
    objects, value = MappedObjects(), small_tensors(1)
    base, new = saved(objects, value), moved(value, 2)
    (pack,) = [digest for digest in objects.stored if objects.describe(digest).kind == Kind.PACK]
    flip(objects, pack, payload_start(objects, pack) + 20_000)
    written = saved(objects, new, base)
    assert len(written.report.notes) == 1
    stored = open_model(objects, written.entry)
    assert all(np.array_equal(stored[name], tensor) for name, tensor in new.items())


class Unreadable:
    """A tensor whose file is gone."""

    type, shape = TYPES["F32"], (1024,)

    def read_into(self, start_byte: int, buffer: memoryview) -> None:
        raise InvalidInputError(f"gone: {buffer.nbytes} bytes from {start_byte}")


def test_a_tensor_among_many_that_cannot_be_read_is_named() -> None:
    model = {f"{at}.weight": tensor_of("w", np.full(1024, at, "f4")) for at in range(9)}
    with pytest.raises(InvalidInputError, match=r"'5\.weight': gone: 4096 bytes"):
        store_model(MemoryObjects(), model | {"5.weight": Unreadable()})
