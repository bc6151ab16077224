"""What every codec of models must do: a further one is a parameter more."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.common.tensors import TYPES, ArrayTensor
from tensorrepo.formats.model.delta.registry import CODECS
from tensorrepo.formats.model.layout.placement import decode_placement
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.base_choice import DeltaOptions
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.formats.model.write.model_writer import store_model
from tensorrepo.repo.errors import Error, InvalidInputError
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.models import MappedObjects, copy_of, flip, payload_start, stored
from tests.support.builders.objects import MemoryObjects
from tests.support.effort import sampled, sampled_product
from tests.support.faults.damage import unrefused

FRAME = 1 << 19
NAMES = ["raw", *(name for name, codec in CODECS.items() if codec.bases < 2)]
SINKS = [MemoryObjects, MappedObjects]
FITTING = [
    pytest.param(codec, element, id=f"{codec}-{element}")
    for codec in NAMES
    for element, kind in TYPES.items()
    if codec == "raw" or CODECS[codec].fits(kind, (8, 750 * kind.block_elements))
]
FEW = ("F32", "BF16", "I64", "C64", "U8")


@cache
def pair(name: str, blocks: int, *, few: bool) -> tuple[ArrayTensor, ArrayTensor]:
    """A tensor and another one near it, of any bits; with `few` values, where palettes fit."""
    element, random = TYPES[name], np.random.default_rng(blocks)
    base = random.integers(0, 256, (5 if few else blocks, element.block_bytes), "u1")
    base = base[random.integers(0, 5, blocks)] if few else base
    near = base.copy()
    near[:: 1 + blocks // 9, 0] ^= 1
    rows = blocks // 8 * element.block_elements
    shape = (8, rows) if not blocks % 8 else (blocks * element.block_elements,)
    unit = np.dtype((np.void, element.block_bytes))
    first, second = (np.ascontiguousarray(one).view(unit)[:, 0] for one in (base, near))
    return ArrayTensor(first, element, shape), ArrayTensor(second, element, shape)


def written(
    objects: MemoryObjects, codec: str, old: Any, new: Any, **options: Any
) -> tuple[StoredModel, str]:
    """A model that is stored by `codec`, as far as that can, and the codec that it was."""
    base = stored(
        ModelSource({"x": as_base(codec, old)}),
        objects,
        against=DeltaOptions(codecs=frozenset()),
        **options,
    )
    wanted = frozenset({codec} - {"raw"})
    made = store_model(
        objects,
        ModelSource({"x": new}),
        against=DeltaOptions(base.entry, codecs=wanted),
        **options,
    )
    (used,) = made.report.codecs
    return open_model(objects, made.entry), used


def as_base(codec: str, old: ArrayTensor) -> ArrayTensor:
    """`old`; where the codec takes a base of F32, the numbers whose highest bits are those."""
    if codec == "raw" or not CODECS[codec].base_type:
        return old
    wide = np.frombuffer(bits(old), "<u2").astype("<u4") << 16
    return ArrayTensor(wide.view("<f4").reshape(old.shape), TYPES["F32"], old.shape)


def element_of(codec: str, usual: str) -> str:
    """A type that the codec takes."""
    return "BF16" if codec != "raw" and CODECS[codec].base_type else usual


def bits(tensor: ArrayTensor) -> bytes:
    data = bytearray(tensor.type.bytes_of(tensor.shape))
    tensor.read_into(0, memoryview(data))
    return bytes(data)


@pytest.mark.parametrize(
    ("codec", "element", "sink"),
    sampled([(*case.values, sink) for case in FITTING for sink in SINKS], 20),
)
def test_every_bit_of_every_type_comes_back(codec: str, element: str, sink: Any) -> None:
    old, new = pair(element, 6000, few=True)
    model, used = written(sink(), codec, old, new)
    assert used == codec
    assert model.load()["x"].tobytes() == bits(new)
    assert model["x"].tobytes() == bits(new)


def test_a_codec_that_does_not_fit_is_not_used() -> None:
    old, new = pair("I32", 6000, few=True)
    model, used = written(MemoryObjects(), "low-rank", old, new)
    assert used == "raw"
    assert model.load()["x"].tobytes() == bits(new)


@pytest.mark.parametrize("codec", NAMES)
def test_random_bits_come_back(codec: str) -> None:
    old, new = pair(element_of(codec, "F32"), 6001, few=False)
    model, _ = written(MemoryObjects(), codec, old, new)
    assert model.load()["x"].tobytes() == bits(new)


@pytest.mark.parametrize(("codec", "sink"), sampled([*product(NAMES, SINKS)], 2))
def test_a_tensor_of_many_frames_and_groups_comes_back(codec: str, sink: Any) -> None:
    old, new = pair(element_of(codec, "F8_E4M3"), 18 * FRAME + 800, few=True)
    model, _ = written(sink(), codec, old, new)
    flat = np.frombuffer(bits(new), f"u{new.type.block_bytes}")
    assert np.array_equal(model.load()["x"].reshape(-1), flat)
    rows = flat.reshape(8, -1)
    part = model.slice("x", np.s_[1:7:2, FRAME - 5 : 2 * FRAME : 7])
    assert np.array_equal(part, rows[1:7:2, FRAME - 5 : 2 * FRAME : 7])
    high = flat if new.type.block_bytes == 1 else flat & 0xFF00
    assert np.array_equal(model.load(planes=1)["x"].reshape(-1), high)


@pytest.mark.parametrize("codec", NAMES)
@given(data=st.data())
def test_every_slice_is_the_slice_of_the_whole(codec: str, data: Any) -> None:
    old, new = pair("BF16", 6000, few=True)
    model, _ = MODELS.setdefault(codec, written(MemoryObjects(), codec, old, new))
    whole = np.frombuffer(bits(new), "u2").reshape(new.shape)
    low, high, step = data.draw(st.tuples(*[st.integers(0, 750)] * 2, st.integers(1, 9)))
    index = np.s_[low % 8 :, low:high:step]
    assert np.array_equal(model.slice("x", index), whole[index])


MODELS: dict[str, tuple[StoredModel, str]] = {}


@sampled_product(
    "case,planes", [one.values for one in FITTING if one.values[1] in FEW], [1, 2, 3], dev=14
)
def test_planes_are_the_high_bytes_of_numbers(case: tuple[str, str], planes: int) -> None:
    codec, element = case
    old, new = pair(element, 6000, few=True)
    model, _ = written(MemoryObjects(), codec, old, new)
    number_bytes = TYPES[element].block_bytes // (2 if element.startswith("C") else 1)
    expected = np.frombuffer(bits(new), "u1").reshape(-1, number_bytes).copy()
    expected[:, : max(0, number_bytes - planes)] = 0
    assert model.load(planes=planes)["x"].tobytes() == expected.tobytes()


def packs(objects: MemoryObjects) -> list[Digest]:
    return [digest for digest, link in objects.links.items() if link.kind is Kind.PACK]


@pytest.mark.parametrize("codec", NAMES)
def test_no_flipped_byte_of_a_pack_or_a_base_gives_a_wrong_tensor(codec: str) -> None:
    objects = MemoryObjects()
    element = element_of(codec, "F32")
    # A smaller tensor is stored raw whatever is asked for.
    count = 400 if codec == "raw" else 4800 // TYPES[element].block_bytes
    old, new = pair(element, count, few=True)
    model, used = written(objects, codec, old, new)
    base, own = packs(objects)

    def load(place: tuple[Digest, int]) -> bytes:
        damaged = copy_of(objects)
        flip(damaged, *place)
        return open_model(damaged, model.entry).load()["x"].tobytes()

    # Every byte of a pack; but of raw bytes, which nothing decodes, one in three, in a base seven.
    places = [
        (pack, at)
        for pack, step in ((own, 3 if codec == "raw" else 1), (base, 7))
        for at in range(payload_start(objects, pack), len(objects.stored[pack]), step)
    ]
    assert used == codec
    assert set(unrefused(sampled(places, 40), load).values()) <= {bits(new)}


@pytest.mark.parametrize("at", sampled(range(0, 4800, 480), 3))
@pytest.mark.parametrize("codec", [name for name in NAMES if name != "raw"])
def test_planes_of_other_bytes_are_an_error_and_nothing_else(codec: str, at: int) -> None:
    """Whoever makes a pack can make its tags, too: only the frame's digest is left."""
    objects = MappedObjects()
    element = element_of(codec, "F32")
    old, new = pair(element, 4800 // TYPES[element].block_bytes, few=False)
    model, _ = written(objects, codec, old, new)
    own = decode_placement(
        objects.get(model.entry.storage or "").payload, model.entry.storage or ""
    ).packs
    damaged = MappedObjects()
    damaged.stored, damaged.links = dict(objects.stored), dict(objects.links)
    for entry in own:
        start = payload_start(objects, entry.digest)
        # The highest byte of a number: a cast of the base has nothing of the lowest ones.
        flip(damaged, entry.digest, start + (at % entry.directory_start | 3))
    with pytest.raises(Error):
        open_model(damaged, model.entry).load()


def test_a_codec_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="'quantum'"):
        DeltaOptions(codecs=frozenset({"quantum"}))
