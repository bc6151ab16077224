"""What of a stored model is read when less than all of it is wanted, or another form of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tensorrepo.formats.common.tensors import TYPES, ArrayTensor
from tensorrepo.formats.model.layout.manifest import (
    Manifest,
    TensorEntry,
    TensorPiece,
    TypeEntry,
    encode_manifest,
)
from tensorrepo.formats.model.layout.placement import decode_placement, encode_placement
from tensorrepo.formats.model.read.loading import open_tensors
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.formats.model.write.model_writer import write_model
from tensorrepo.formats.model.write.packing import build_placement, known_tensors
from tensorrepo.repo.errors import InvalidInputError
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import Kind
from tests.support.builders.models import MappedObjects, stored
from tests.support.builders.objects import MemoryObjects

FRAME = 1 << 19
WEIGHTS = np.random.default_rng(7).normal(0, 0.02, (40, FRAME // 16)).astype("f4")
TUNED = WEIGHTS + np.random.default_rng(8).normal(0, 1e-5, WEIGHTS.shape).astype("f4")
SINKS = [MemoryObjects, MappedObjects]


def tuned(objects: MemoryObjects, **options: Any) -> StoredModel:
    """A model that is stored as the difference from another one."""
    base = stored({"w": WEIGHTS}, objects, **options)
    return stored({"w": TUNED}, objects, known=[base.entry], **options)


def bytes_read(objects: MemoryObjects) -> int:
    return sum(stop - start for _, start, stop in objects.reads)


@pytest.mark.parametrize(
    ("sink", "order"), [(MemoryObjects, "a z large"), (MappedObjects, "large a z")]
)
def test_what_is_decoded_here_begins_with_tensors_of_several_frames(sink: Any, order: str) -> None:
    model = stored({"a": WEIGHTS[0], "large": WEIGHTS, "z": WEIGHTS[1]}, sink())
    with ThreadPoolExecutor(1) as pool:
        found = open_tensors(model.packs, model.tensors, model.manifest.type_table(), pool)
        assert " ".join(key for key, _ in found) == order


@pytest.mark.parametrize("sink", SINKS)
def test_two_planes_of_a_float_are_its_bf16_truncation(sink: Any) -> None:
    opened = stored({"w": WEIGHTS}, sink())
    found = opened.load(planes=2)["w"]
    assert np.array_equal(found.view("u4"), WEIGHTS.view("u4") & 0xFFFF0000)


@pytest.mark.parametrize("planes", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("make", [lambda o: stored({"w": TUNED}, o), tuned], ids=["alone", "delta"])
def test_planes_are_the_high_bytes_however_a_tensor_is_stored(make: Any, planes: int) -> None:
    found = make(MemoryObjects()).load(planes=planes)["w"]
    mask = np.uint32(0xFFFFFFFF << 8 * max(0, 4 - planes) & 0xFFFFFFFF)
    assert np.array_equal(found.view("u4"), TUNED.view("u4") & mask)


def test_two_planes_of_four_are_less_than_half_of_what_is_stored() -> None:
    objects = MemoryObjects()
    opened = stored({"w": WEIGHTS}, objects)
    reader = opened.tensor("w")
    objects.reads.clear()
    opened.load(planes=2)
    assert bytes_read(objects) < 0.5 * reader.stored_bytes


def test_planes_of_a_slice_are_planes_of_the_tensor() -> None:
    opened = stored({"w": WEIGHTS, "tiny": np.float32([1.2345])}, MemoryObjects())
    part = opened.slice("w", np.s_[3:5, 10:20], planes=2)
    assert np.array_equal(part.view("u4"), WEIGHTS[3:5, 10:20].view("u4") & 0xFFFF0000)
    assert opened.load(["tiny"], planes=2)["tiny"].view("u4")[0] & 0xFFFF == 0


@pytest.mark.parametrize("planes", [0, -1])
def test_no_planes_at_all_are_refused(planes: int) -> None:
    with pytest.raises(InvalidInputError, match="planes"):
        stored({"w": WEIGHTS[:1]}, MemoryObjects()).load(planes=planes)


@pytest.mark.soak
def test_a_tenth_of_the_rows_reads_about_a_tenth_of_what_is_stored() -> None:
    objects = MemoryObjects()
    wide = np.tile(WEIGHTS, (8, 1)) * np.linspace(1, 2, 320, dtype="f4")[:, None]
    base = stored({"w": wide}, objects)
    near = wide + np.float32(1e-5) * np.sign(wide)
    opened = stored({"w": near}, objects, known=[base.entry])
    reader = opened.tensor("w")
    whole_stored = reader.stored_bytes + base.tensor("w").stored_bytes
    objects.reads.clear()
    part = opened.slice("w", np.s_[100:132])
    assert np.array_equal(part, near[100:132])
    assert bytes_read(objects) < 1.2 * whole_stored / 10 + 2 * whole_stored / 20


def test_one_tensor_reads_little_more_than_its_stored_bytes() -> None:
    objects = MemoryObjects()
    opened = stored({"w": WEIGHTS, "x": TUNED}, objects)
    reader = opened.tensor("w")
    objects.reads.clear()
    opened.load(["w"])
    assert bytes_read(objects) <= 1.2 * reader.stored_bytes


@pytest.mark.parametrize("make", [lambda o: stored({"w": TUNED}, o), tuned], ids=["alone", "delta"])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("world", [1, 3, 7])
def test_the_shards_of_all_ranks_are_the_tensor(make: Any, dim: int, world: int) -> None:
    opened = make(MemoryObjects())
    parts = [opened.load(shard=(dim, rank, world))["w"] for rank in range(world)]
    assert np.array_equal(np.concatenate(parts, axis=dim), TUNED)


def test_a_shard_is_what_torch_calls_a_chunk() -> None:
    torch = pytest.importorskip("torch")
    opened = stored({"w": WEIGHTS[:, :100].copy(), "scalar": np.float32(3.0)}, MemoryObjects())
    chunks = torch.chunk(torch.from_numpy(WEIGHTS[:, :100].copy()), 7, dim=0)
    loaded = [opened.load(shard=(0, rank, 7), output="torch") for rank in range(7)]
    assert all(torch.equal(one["w"], chunk) for one, chunk in zip(loaded, chunks, strict=False))
    assert [len(one["w"]) for one in loaded[len(chunks) :]] == [0] * (7 - len(chunks))
    assert all(one["scalar"] == 3 for one in loaded)


@pytest.mark.parametrize("shard", [(0, 2, 2), (0, -1, 2), (-1, 0, 2), (0, 0, 0)])
def test_a_shard_of_no_rank_is_refused(shard: Any) -> None:
    with pytest.raises(InvalidInputError, match="shard"):
        stored({"w": WEIGHTS[:1]}, MemoryObjects()).load(shard=shard)


def test_floats_are_converted_and_nothing_else() -> None:
    opened = stored({"w": WEIGHTS[:2], "n": np.arange(100)}, MemoryObjects())
    loaded = opened.load(dtype="f8")
    assert (loaded["w"].dtype, loaded["n"].dtype) == (np.dtype("f8"), np.dtype("i8"))
    assert np.array_equal(loaded["w"], WEIGHTS[:2].astype("f8"))


def test_torch_tensors_come_in_the_type_and_on_the_device_that_is_asked_for() -> None:
    torch = pytest.importorskip("torch")
    opened = stored({"w": WEIGHTS[:2], "n": np.arange(100)}, MemoryObjects())
    loaded = opened.load(output="torch", dtype=torch.bfloat16, device="cpu")
    assert (loaded["w"].dtype, loaded["n"].dtype) == (torch.bfloat16, torch.int64)
    with pytest.raises(InvalidInputError, match="torch"):
        opened.load(device="cpu")


@pytest.mark.parametrize("sink", SINKS)
def test_a_module_is_filled_where_its_memory_lies(sink: Any) -> None:
    torch = pytest.importorskip("torch")
    source, target = torch.nn.Linear(700, 900), torch.nn.Linear(700, 900)
    opened = stored(source.state_dict(), sink())
    places = [parameter.data_ptr() for parameter in target.parameters()]
    opened.load_state_dict(target)
    assert [parameter.data_ptr() for parameter in target.parameters()] == places
    assert torch.equal(target.weight, source.weight)
    assert torch.equal(target.bias, source.bias)


def test_a_module_of_another_type_or_layout_is_filled_by_copying() -> None:
    torch = pytest.importorskip("torch")
    source = torch.nn.Linear(70, 90, bias=False)
    target = torch.nn.Linear(90, 70, bias=False, dtype=torch.bfloat16)
    target.weight = torch.nn.Parameter(target.weight.T)
    opened = stored(source.state_dict(), MemoryObjects())
    with pytest.raises(InvalidInputError, match="stored as float32, the module's is bfloat16"):
        opened.load_state_dict(target)
    opened.load_state_dict(target, strict=False)
    assert torch.equal(target.weight, source.weight.to(torch.bfloat16))


def test_tied_weights_of_a_module_are_filled_once() -> None:
    torch = pytest.importorskip("torch")
    embed, head = torch.nn.Embedding(40, 8), torch.nn.Linear(8, 40, bias=False)
    head.weight = embed.weight
    module = torch.nn.ModuleDict({"embed": embed, "head": head})
    opened = stored({name: value.clone() for name, value in module.state_dict().items()})
    with torch.no_grad():
        embed.weight.zero_()
    opened.load_state_dict(module)
    assert head.weight.data_ptr() == embed.weight.data_ptr()
    assert embed.weight.abs().sum() > 0


def test_a_module_that_does_not_fit_is_refused_before_anything_is_read() -> None:
    torch = pytest.importorskip("torch")
    opened = stored({"weight": np.zeros((3, 4), "f4"), "more": np.zeros(3)}, MemoryObjects())
    target = torch.nn.Linear(4, 3)
    before = target.weight.clone()
    with pytest.raises(InvalidInputError, match=r"missing, .*: 'bias'; unexpected, .*: 'more'"):
        opened.load_state_dict(target)
    with pytest.raises(InvalidInputError, match=r"'weight'.*\(3, 4\)"):
        opened.load_state_dict(torch.nn.Linear(5, 3), strict=False)
    assert torch.equal(target.weight, before)
    opened.load_state_dict(target, strict=False)
    assert target.weight.abs().sum() == 0


def pieced(
    objects: MemoryObjects, tensor: ArrayTensor, cuts: list[list[int]], items: Any
) -> StoredModel:
    """A model of one tensor that every rank of a grid saved a box of."""
    element, boxes = tensor.type, []
    for place in np.ndindex(*(len(one) - 1 for one in cuts)):
        spans = [(cuts[dim][at], cuts[dim][at + 1]) for dim, at in enumerate(place)]
        boxes.append(spans)
    parts, placements = [], []
    for spans in boxes:
        shape = tuple(high - low for low, high in spans)
        *outer, (low, high) = spans
        block = element.block_elements
        place = (*(slice(*span) for span in outer), slice(low // block, high // block))
        box = ArrayTensor(np.ascontiguousarray(items[place]), element, shape)
        model = stored(ModelSource({"x": box}), objects)
        assert model.entry.storage is not None
        placements.append(
            decode_placement(objects.get(model.entry.storage).payload, model.entry.storage)
        )
        (piece,) = model.manifest.tensors[0].pieces
        offset = tuple(low for low, _ in spans)
        parts.append(msgspec.structs.replace(piece, offset=offset))
    return assembled(objects, tensor, parts, placements)


def assembled(
    objects: MemoryObjects, tensor: ArrayTensor, parts: list[TensorPiece], placements: list[Any]
) -> StoredModel:
    element = tensor.type
    row = TypeEntry(element.name, element.block_elements, element.block_bytes)
    entry = TensorEntry("x", element.name, tensor.shape, tuple(parts))
    manifest = Manifest(types=(row,), tensors=(entry,))
    digest = objects.put(Kind.MODEL, encode_manifest(manifest)).digest
    placement = build_placement(known_tensors(placements))
    storage = objects.put(Kind.PLACEMENT, encode_placement(placement), placement.links()).digest
    return open_model(objects, Entry(Kind.MODEL, digest, storage))


@st.composite
def grids(draw: st.DrawFn) -> tuple[tuple[int, ...], list[list[int]]]:
    shape = draw(arrays.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=9))
    cuts = [
        [0, *sorted(draw(st.sets(st.integers(1, dim - 1), max_size=2)) if dim > 1 else []), dim]
        for dim in shape
    ]
    return shape, cuts


@given(grids(), st.data())
def test_a_tensor_of_many_pieces_is_read_as_the_one_that_it_is(grid: Any, data: Any) -> None:
    shape, cuts = grid
    values = np.random.default_rng(3).integers(0, 1 << 62, shape)
    opened = pieced(MemoryObjects(), ArrayTensor(values, TYPES["I64"], shape), cuts, values)
    index = data.draw(arrays.basic_indices(shape).filter(forward))
    assert np.array_equal(opened.load()["x"], values)
    assert np.array_equal(opened["x"], values)
    assert np.array_equal(opened.slice("x", index), values[index])
    ids = data.draw(st.lists(st.integers(-shape[0], shape[0] - 1), max_size=9))
    assert np.array_equal(opened.rows("x", ids), values[np.array(ids, int)])
    assert b"".join(map(bytes, opened.tensor_chunks("x"))) == values.tobytes()
    again = write_model(MemoryObjects(), {"x": opened.tensor("x")})
    assert again.digest == stored({"x": values}).entry.digest


def forward(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return all(not isinstance(part, slice) or (part.step or 1) > 0 for part in parts)


def test_pieces_of_packed_types_are_joined_between_blocks() -> None:
    raw = np.random.default_rng(3).integers(0, 256, (6, 50), dtype="u1")
    tensor = ArrayTensor(raw, TYPES["F4"], (6, 100))
    opened = pieced(MemoryObjects(), tensor, [[0, 2, 6], [0, 40, 100]], raw)
    assert opened["x"].tobytes() == raw.tobytes()
    assert opened.slice("x", np.s_[1:5, 30:60]).tobytes() == raw[1:5, 15:30].tobytes()
    assert opened.rows("x", [5, 0, 5]).tobytes() == raw[[5, 0, 5]].tobytes()


def test_large_pieces_are_read_frame_by_frame() -> None:
    values = np.random.default_rng(3).normal(size=(1030, 1100)).astype("f4")
    tensor = ArrayTensor(values, TYPES["F32"], values.shape)
    opened = pieced(MemoryObjects(), tensor, [[0, 1030], [0, 550, 1100]], values)
    assert np.array_equal(opened.load()["x"], values)
    assert np.array_equal(opened.load(shard=(1, 1, 3))["x"], values[:, 367:734])
    assert np.array_equal(
        opened.load(planes=2)["x"].view("u4"), values.view("u4") & np.uint32(0xFFFF0000)
    )
