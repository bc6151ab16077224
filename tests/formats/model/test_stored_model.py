from __future__ import annotations

from math import prod
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tensorrepo.formats.common.tensors import TYPES, ArrayTensor, TensorType
from tensorrepo.formats.model.layout.manifest import Manifest, encode_manifest
from tensorrepo.formats.model.layout.placement import Placement, decode_placement, encode_placement
from tensorrepo.formats.model.read.frames import StoredFrames
from tensorrepo.formats.model.read.members import MemberCache
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.formats.model.write.model_writer import SMALLEST_BUDGET_BYTES, write_model
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.errors import (
    CorruptError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.ids import Digest
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter
from tests.support.builders.models import MappedObjects, copy_of, flip, noise, payload_start, stored
from tests.support.builders.objects import MemoryObjects
from tests.support.faults.damage import flipped, survivors, unrefused

SINKS = [MemoryObjects, MappedObjects]
FRAME = 1 << 19
ONE_BY_ONE = tuple(name for name in TYPES if TYPES[name].block_elements == 1)


@st.composite
def tensors(draw: st.DrawFn, names: tuple[str, ...] = tuple(TYPES)) -> ArrayTensor:
    """A tensor of any type and shape, of any bits: NaN payloads and bools of 2 included."""
    element = TYPES[draw(st.sampled_from(names))]
    shape = draw(arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=12))
    if element.block_elements > 1:
        shape = (*shape, draw(st.integers(0, 3)) * element.block_elements)
    # From a seed: drawing each byte takes longer than storing and reading them.
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    bits = random.integers(0, 256, element.bytes_of(shape), np.uint8)
    return ArrayTensor(bits.view(np.dtype((np.void, element.block_bytes))), element, shape)


def bits(tensor: Any) -> bytes:
    data = bytearray(tensor.type.bytes_of(tensor.shape))
    tensor.read_into(0, memoryview(data))
    return bytes(data)


NAMED = st.dictionaries(st.text(st.characters(codec="utf-8"), min_size=1, max_size=5), tensors())


@given(st.sampled_from(SINKS), NAMED)
def test_every_bit_of_every_type_comes_back(sink: Any, model: dict[str, ArrayTensor]) -> None:
    opened = stored(ModelSource(model), sink())
    loaded, viewed = opened.load(), opened.load(copy=False)
    assert opened.keys() == tuple(sorted(model))
    for name, tensor in model.items():
        assert opened.spec(name).shape == tensor.shape
        assert loaded[name].tobytes() == viewed[name].tobytes() == bits(tensor)


@given(st.data(), tensors(ONE_BY_ONE))
def test_every_slice_is_the_slice_of_the_whole(data: st.DataObject, tensor: ArrayTensor) -> None:
    opened = stored(ModelSource({"x": tensor}))
    whole = opened["x"]
    # A bool that numpy takes out of an array is 0 or 1, whatever its byte was.
    whole = whole.view(np.uint8) if whole.dtype == np.bool_ else whole
    index = data.draw(arrays.basic_indices(tensor.shape).filter(forward))
    assert opened.slice("x", index).tobytes() == whole[index].tobytes()


def forward(index: Any) -> bool:
    parts = index if isinstance(index, tuple) else (index,)
    return all(not isinstance(part, slice) or (part.step or 1) > 0 for part in parts)


@pytest.mark.parametrize("sink", SINKS)
def test_a_tensor_of_many_frames_and_members_comes_back(sink: Any) -> None:
    tensor = np.random.default_rng(0).integers(0, 1 << 62, (1300, 2001))
    opened = stored({"x": tensor}, sink(), budget_bytes=SMALLEST_BUDGET_BYTES)
    assert np.array_equal(opened.load()["x"], tensor)
    assert np.array_equal(opened["x"], tensor)
    assert np.array_equal(opened.slice("x", np.s_[100:1290:3, 7:1999]), tensor[100:1290:3, 7:1999])


def test_a_slice_reads_the_frames_that_it_touches_and_no_others() -> None:
    objects = MemoryObjects()
    whole = noise(0, 4 * FRAME).view("i4").reshape(8, FRAME)
    opened = stored({"x": whole}, objects)
    opened.slice("x", 0)  # reads the directory
    objects.reads.clear()
    part = opened.slice("x", np.s_[3:5, 10:20])
    assert [stop - start for _, start, stop in objects.reads] == [FRAME * 4] * 2
    assert np.array_equal(part, whole[3:5, 10:20])


def test_rows_read_their_frames_and_those_of_a_base_once_and_no_others() -> None:
    objects = MemoryObjects()
    base = np.random.default_rng(5).normal(size=(4096, 1024)).astype("f4")
    tuned = base * (1 + np.float32(1e-6) * np.random.default_rng(6).random(base.shape, "f4"))
    known = stored({"table": base}, objects).entry
    opened = stored({"table": tuned}, objects, known=[known])
    opened.rows("table", [-1])  # reads the directories
    objects.reads.clear()
    ids = np.array([[3000, 5, -1096], [3001, 5, 4]])
    found = opened.rows("table", ids)
    assert np.array_equal(found, tuned[ids])
    tensor = opened.tensor("table")
    assert isinstance(tensor, StoredFrames)
    (base_of,) = opened.packs.members.entries[tensor.frames[0].place].bases
    under = opened.packs.members.placed(base_of)
    rows = tensor.frames[0].frame.size_bytes // (1024 * 4)
    numbers = {4 // rows, 3000 // rows}
    needed = [one.frame for at in numbers for one in (tensor.frames[at], under[at])]
    stored_bytes = sum(plane.size_bytes for frame in needed for plane in frame.planes)
    assert sum(stop - start for _, start, stop in objects.reads) == stored_bytes
    assert stored_bytes < tuned.nbytes / 3


def test_parts_of_a_frame_are_read_once_while_it_stays_in_memory() -> None:
    objects = MemoryObjects()
    whole = noise(0, 3 * FRAME // 2).view("i4").reshape(24, FRAME // 8)
    entry = stored({"x": whole}, objects).entry
    opened = open_model(objects, entry, MemberCache(2 * 4 * FRAME))
    opened.slice("x", np.s_[:8])  # a whole frame, which nobody keeps, nor those of shards
    assert np.array_equal(opened.load(["x"], shard=(1, 0, 2))["x"], np.split(whole, 2, axis=1)[0])
    objects.reads.clear()

    def read(row: int) -> int:
        before = len(objects.reads)
        assert np.array_equal(opened.rows("x", [row])[0], whole[row])
        assert np.array_equal(opened.slice("x", np.s_[row, 7:99]), whole[row, 7:99])
        return len(objects.reads) - before

    rows = (20, 23, 3, 7, 12, 0, 20, 8, 1, 23)
    assert [read(row) for row in rows] == [1, 0, 1, 0, 1, 0, 1, 1, 1, 1]


def test_a_frame_that_is_damaged_does_not_stay_in_memory() -> None:
    objects = MemoryObjects()
    opened = stored({"x": noise(0, 2 * FRAME)}, objects)
    (pack,) = (digest for digest, link in objects.links.items() if link.kind is Kind.PACK)
    opened.tensor("x")  # reads the directory
    sound = objects.stored[pack]
    objects.stored[pack] = flipped(sound, payload_start(objects, pack) + 100, 1)
    for _ in range(2):
        with pytest.raises(CorruptError):
            opened.rows("x", [5])
    objects.stored[pack] = sound
    assert opened.rows("x", [5])[0] == opened["x"][5]


@pytest.mark.parametrize("damaged", ["base", "own"])
def test_a_plane_that_does_not_decode_is_told_with_the_pack_that_is_damaged(damaged: str) -> None:
    objects, chance = MemoryObjects(), np.random.default_rng(7)
    values = chance.normal(0, 0.02, (64, 1024)).astype("f4")
    base = stored({"w": values}, objects)
    near = values + chance.normal(0, 1e-5, values.shape).astype("f4")
    own = stored({"w": near}, objects, known=[base.entry])
    (placed,) = {"base": base, "own": own}[damaged].tensor("w").frames
    plane = payload_start(objects, placed.pack.digest) + placed.frame.planes[0].offset

    def read(at: int) -> object:
        broken = copy_of(objects)
        flip(broken, placed.pack.digest, plane + at)
        return open_model(broken, own.entry).load()

    message = rf"^tensor 'w', frame 0.* pack {placed.pack.digest:.12}\b.*fsck"
    assert unrefused([0, 9, 40, 100, 300, 5000], read, match=message) == {}


@pytest.mark.parametrize("sink", SINKS)
def test_damage_is_noticed_by_who_reads_it_and_names_the_tensor(sink: Any) -> None:
    objects = sink()
    opened = stored({"layer.w": noise(0, 3 * FRAME).reshape(3, FRAME)}, objects)
    (pack,) = [digest for digest, link in objects.links.items() if link.kind is Kind.PACK]
    flip(objects, pack, payload_start(objects, pack) + 2 * FRAME * 8)
    assert opened.slice("layer.w", np.s_[:2]).shape == (2, FRAME)
    for read in (lambda: opened.slice("layer.w", 2), opened.load, lambda: opened["layer.w"]):
        with pytest.raises(CorruptError, match=r"'layer\.w'"):
            read()


def small_model(objects: MemoryObjects) -> Any:
    tensors = {"a": np.arange(30.0), "b": np.arange(100, dtype="u1"), "tiny": np.arange(3)}
    return stored(tensors, objects, files={"f": b"text"}, metrics={"acc": 0.5})


SMALL = MemoryObjects()
ENTRY = small_model(SMALL).entry
METADATA = [
    pytest.param(digest, id=link.kind.label)
    for digest, link in SMALL.links.items()
    if link.kind is not Kind.PACK
]
(PACK,) = [digest for digest, link in SMALL.links.items() if link.kind is Kind.PACK]
EXPECTED = open_model(SMALL, ENTRY).load()


def small_with(digest: Digest, data: bytes) -> StoredModel:
    """The small model with other bytes for one object."""
    objects = copy_of(SMALL)
    objects.stored[digest] = data
    return open_model(objects, ENTRY)


@pytest.mark.parametrize("digest", METADATA)
def test_no_flipped_byte_of_metadata_or_a_file_goes_unnoticed(digest: Digest) -> None:
    found = survivors(
        SMALL.stored[digest],
        0xFF,
        lambda damaged: b"".join(map(bytes, small_with(digest, damaged).file_chunks("f"))),
        (CorruptError,),
    )
    assert found == {}


def test_no_flipped_byte_of_a_pack_gives_a_wrong_tensor() -> None:
    data, start = SMALL.stored[PACK], payload_start(SMALL, PACK)
    found = unrefused(
        range(start, len(data)),
        lambda at: small_with(PACK, flipped(data, at, 0xFF)).load(),
        match=r"tensor '[ab]'",
    )
    # Ranged reads see neither padding nor footer: damage there is for fsck to find.
    unseen = {*range(240, 256), *range(356, 384), *range(len(data) - start - 32, len(data) - start)}
    assert found.keys() == {start + at for at in unseen}
    loaded = {name: np.stack([tensors[name] for tensors in found.values()]) for name in EXPECTED}
    assert all((loaded[name] == EXPECTED[name]).all() for name in EXPECTED)


def test_views_of_a_local_model_cannot_be_written() -> None:
    objects = MappedObjects()
    opened = stored({"x": noise(0, 1000)}, objects)
    view = opened["x"]
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 7
    with pytest.raises(ValueError, match="WRITEABLE"):
        view.flags.writeable = True
    (pack,) = [link for link in objects.links.values() if link.kind is Kind.PACK]
    assert np.shares_memory(view, np.frombuffer(objects.map(pack) or b"", "u1"))


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("output", ["numpy", "torch"])
def test_what_is_loaded_is_the_callers_own(sink: Any, output: Any) -> None:
    if output == "torch":
        pytest.importorskip("torch")
    opened = stored({"x": np.arange(1000.0), "tiny": np.arange(2.0)}, sink())
    loaded = opened.load(output=output)
    loaded["x"][:] = 7
    loaded["tiny"][:] = 7
    assert opened["x"][1] == opened["tiny"][1] == 1


def test_an_alias_is_the_same_object_as_its_tensor_also_in_torch() -> None:
    pytest.importorskip("torch")
    weight = np.arange(1000.0)
    loaded = stored({"a": weight, "b": weight}).load(["b", "a"], output="torch")
    assert list(loaded) == ["b", "a"]
    assert loaded["a"] is loaded["b"]


@pytest.mark.parametrize("name", ["BF16", "F8_E4M3", "F8_E5M2", "F4", "C64", "BOOL"])
def test_torch_gets_its_own_types(name: str) -> None:
    torch = pytest.importorskip("torch")
    element = TYPES[name]
    raw = np.arange(64 * element.block_bytes, dtype="u1") % 2
    tensor = ArrayTensor(raw.view(np.dtype((np.void, element.block_bytes))), element, (
        8, 8 * element.block_elements,
    ))  # fmt: skip
    loaded = stored(ModelSource({"x": tensor})).load(output="torch")["x"]
    assert loaded.shape == (8, 8)
    assert loaded.contiguous().view(torch.uint8).numpy().tobytes() == raw.tobytes()


def test_types_that_numpy_lacks_come_as_bits() -> None:
    tensor = ArrayTensor(np.arange(40, dtype="<u2"), TYPES["BF16"], (4, 10))
    opened = stored(ModelSource({"x": tensor}))
    assert (opened["x"].dtype, opened["x"].shape) == (np.dtype("<u2"), (4, 10))
    assert opened.spec("x").type.name == "BF16"


def test_a_type_of_a_newer_version_is_copied_sliced_and_verified() -> None:
    later = TensorType("Q4_K", 256, 144)
    raw = np.arange(6 * 144 * 2, dtype="u1")
    tensor = ArrayTensor(raw.view("V144"), later, (6, 512))
    opened = stored(ModelSource({"x": tensor}))
    assert opened["x"].tobytes() == raw.tobytes()
    assert opened.slice("x", np.s_[2:4, 256:]).tobytes() == (
        raw.reshape(6, 288)[2:4, 144:].tobytes()
    )
    with pytest.raises(InvalidInputError, match="'x'"):
        opened.slice("x", np.s_[:, 1:])


def test_tensors_come_one_after_the_other_with_little_read_ahead() -> None:
    objects = MemoryObjects()
    opened = stored({f"t{number}": np.full(FRAME, number) for number in range(8)}, objects)
    objects.reads.clear()
    tensors = opened.iter_tensors(opened.keys(), budget_bytes=FRAME * 8)
    first = next(tensors)[1][0]
    assert sum(stop - start for _, start, stop in objects.reads) < 4 * FRAME * 8
    assert {first, *(array[0] for _, array in tensors)} == set(range(8))


def test_names_that_are_not_there_are_refused_with_near_ones() -> None:
    opened = stored({"encoder.weight": np.zeros(3)})
    with pytest.raises(NotFoundError, match=r"'encoder\.wieght'\. Did you mean encoder\.weight"):
        opened["encoder.wieght"]
    with pytest.raises(NotFoundError, match=r"'config\.json'"):
        next(opened.file_chunks("config.json"))


def test_another_output_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="'jax'"):
        stored({"x": np.zeros(3)}).load(output="jax")  # type: ignore[arg-type]  # what is tested


def test_a_type_that_torch_lacks_is_refused_by_name() -> None:
    pytest.importorskip("torch")
    six_bit = ArrayTensor(np.zeros(10, "V3"), TYPES["F6_E2M3"], (40,))
    with pytest.raises(UnsupportedError, match="'x': torch has no type F6_E2M3"):
        stored(ModelSource({"x": six_bit})).load(output="torch")


def test_what_is_no_model_is_refused() -> None:
    objects = MemoryObjects()
    opened = stored({"x": np.zeros(300)}, objects)
    blob = objects.put(Kind.BLOB, b"x").digest
    with pytest.raises(InvalidInputError):
        open_model(objects, Entry(Kind.BLOB, blob))
    with pytest.raises(InvalidInputError):
        open_model(objects, Entry(Kind.MODEL, opened.entry.digest))
    with pytest.raises(CorruptError, match="expected a model"):
        open_model(objects, Entry(Kind.MODEL, blob, opened.entry.storage))
    with pytest.raises(CorruptError, match="expected a placement"):
        open_model(objects, Entry(Kind.MODEL, opened.entry.digest, opened.entry.digest))


def entry_of(objects: MemoryObjects, model: Any, placement: Placement) -> Entry:
    storage = objects.put(Kind.PLACEMENT, encode_placement(placement), placement.links())
    return Entry(Kind.MODEL, model.entry.digest, storage.digest)


def placement_of(objects: MemoryObjects, model: Any) -> Placement:
    return decode_placement(objects.get(model.entry.storage).payload, model.entry.storage)


def test_a_placement_of_other_tensors_is_noticed() -> None:
    objects = MemoryObjects()
    mine = stored({"x": np.zeros(300), "y": np.ones(300)}, objects)
    other = stored({"x": np.full(300, 2.0)}, objects)
    with pytest.raises(CorruptError, match="'x': the placement does not say"):
        open_model(objects, Entry(Kind.MODEL, mine.entry.digest, other.entry.storage)).load()


def test_a_placement_that_swaps_tensors_is_noticed() -> None:
    objects = MemoryObjects()
    model = stored({"x": np.zeros(300), "y": np.ones(300)}, objects)
    honest = placement_of(objects, model)
    one, two = honest.tensors
    swapped = (type(one)(one.fingerprint, two.members), type(two)(two.fingerprint, one.members))
    entry = entry_of(objects, model, Placement(honest.packs, swapped))
    with pytest.raises(CorruptError, match="fingerprint"):
        open_model(objects, entry)["x"]


@pytest.mark.parametrize(
    "changes",
    [{"codec": "quantum"}, {"codec": "planes"}, {"stored_bytes": 10}, {"member": 1}],
    ids=["another codec", "a codec that is not the pack's", "other bytes", "no such member"],
)
def test_a_placement_that_its_pack_contradicts_is_damage_and_names_the_tensor(
    changes: dict[str, Any],
) -> None:
    objects = MemoryObjects()
    model = stored({"x": noise(0, 300)}, objects)
    honest = placement_of(objects, model)
    (tensor,) = honest.tensors
    member = msgspec.structs.replace(tensor.members[0], **changes)
    other = Placement(honest.packs, (type(tensor)(tensor.fingerprint, (member,)),))
    with pytest.raises(CorruptError, match="'x'"):
        open_model(objects, entry_of(objects, model, other)).load()


def test_links_that_are_not_what_a_manifest_names_are_noticed() -> None:
    objects = MemoryObjects()
    model = stored({"x": np.zeros(300)}, objects)
    blob = objects.put(Kind.BLOB, b"x").digest
    more = objects.put(Kind.MODEL, encode_manifest(Manifest()), [blob]).digest
    with pytest.raises(CorruptError, match="links"):
        open_model(objects, Entry(Kind.MODEL, more, model.entry.storage))


def repository(backend: Any) -> tuple[ObjectStore, Entry]:
    """The small model, durable in a store."""
    writer = ObjectWriter(ObjectStore(backend), ())
    entry = write_model(writer, {"a": np.arange(30.0), "big": noise(0, 3 * FRAME)})
    writer.flush()
    return ObjectStore(backend), entry


@pytest.mark.parametrize("local", [False, True])
def test_a_model_is_read_from_a_store(tmp_path: Path, *, local: bool) -> None:
    backend = LocalBackend(tmp_path) if local else MemoryBackend("memory://models")
    store, entry = repository(backend)
    model = open_model(store, entry)
    assert np.array_equal(model["a"], np.arange(30.0))
    assert np.array_equal(model.load()["big"], noise(0, 3 * FRAME))
    part = model.slice("big", np.s_[FRAME - 1 : FRAME + 2])
    assert np.array_equal(part, noise(FRAME - 1, FRAME + 2))


def test_a_missing_pack_is_said_with_the_tensor_that_it_holds(tmp_path: Path) -> None:
    store, entry = repository(LocalBackend(tmp_path))
    (large,) = [
        path for path in tmp_path.rglob("*") if path.is_file() and path.stat().st_size > FRAME
    ]
    large.unlink()
    with pytest.raises(NotFoundError, match="tensor 'big'"):
        open_model(store, entry).load()


def test_a_model_says_what_it_is() -> None:
    model = stored({"x": np.zeros((10, 3)), "y": np.zeros((), "u1")})
    assert "2 tensors, 241 bytes" in repr(model)
    assert ("x" in model, "z" in model, len(model)) == (True, False, 2)
    assert prod(model.spec("x").shape) == 30


def test_a_shape_that_only_claims_to_be_large_is_damage_and_takes_no_memory() -> None:
    objects = MemoryObjects()
    model = stored({"x": np.arange(300, dtype="f4")}, objects)
    (honest,) = model.manifest.tensors
    claimed = (1 << 60,)
    piece = msgspec.structs.replace(honest.pieces[0], shape=claimed)
    tensor = msgspec.structs.replace(honest, shape=claimed, pieces=(piece,))
    manifest = msgspec.structs.replace(model.manifest, tensors=(tensor,))
    link = objects.put(Kind.MODEL, encode_manifest(manifest), manifest.links())
    with pytest.raises(CorruptError, match="tensor 'x': expected 2199023255552 frames"):
        open_model(objects, Entry(Kind.MODEL, link.digest, model.entry.storage))["x"]


@pytest.mark.parametrize(("sink", "expected"), [(MemoryObjects, False), (MappedObjects, True)])
def test_a_model_that_is_decoded_from_a_disk_is_read_by_no_more_threads_than_cores(
    sink: Any, *, expected: bool
) -> None:
    encoded = {"t": np.arange(FRAME // 8, dtype="f4")}
    raw = {"t": noise(0, FRAME // 8)}
    assert stored(encoded, sink()).packs.is_decoded_here is expected
    assert stored(raw, sink()).packs.is_decoded_here is False
