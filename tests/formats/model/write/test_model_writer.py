from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.common.provenance import ProvenanceEdge
from tensorrepo.formats.common.tensors import tensor_of
from tensorrepo.formats.model.delta.registry import DELTA
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.model.write.encoding import SAMPLES
from tensorrepo.formats.model.write.model_source import FileStretch, ModelSource, OriginalFile
from tensorrepo.formats.model.write.model_writer import SMALLEST_BUDGET_BYTES, write_model
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tests.support.builders.models import (
    ChangingTensor,
    CountingObjects,
    CountingTensor,
    kinds,
    noise,
    pack_bytes,
    stored,
)
from tests.support.builders.objects import MemoryObjects

KIB = 1024


def random(name: str, size_bytes: int) -> Any:
    return np.random.default_rng(sum(name.encode())).integers(0, 256, size_bytes, "u1")


BASE = {name: random(name, 200 * KIB) for name in ("a", "b", "c")} | {"small": random("s", 500)}


def test_what_is_known_is_not_stored_again() -> None:
    objects = MemoryObjects()
    first = stored(BASE, objects)
    before = dict(objects.links)
    copies = {name: tensor.copy() for name, tensor in BASE.items()}
    again = stored(copies, objects, known=[first.entry], metrics={"loss": 1})
    assert kinds(objects, before) == {"model": 1}
    assert again.entry.storage == first.entry.storage


def test_the_same_model_has_the_same_name_whatever_the_order() -> None:
    objects = MemoryObjects()
    first = write_model(objects, BASE)
    assert write_model(objects, dict(reversed(BASE.items()))).digest == first.digest


def test_a_changed_tensor_alone_is_stored() -> None:
    objects = MemoryObjects()
    first = stored(BASE, objects)
    before = dict(objects.links)
    tuned = BASE | {"b": BASE["b"] ^ 1}
    second = stored(tuned, objects, known=[first.entry])
    assert kinds(objects, before) == {"pack": 1, "model": 1, "placement": 1}
    assert pack_bytes(objects, before) < 50 * KIB
    assert all(np.array_equal(second[name], tuned[name]) for name in tuned)


def test_a_small_tensor_is_stored_again_rather_than_keep_a_foreign_pack() -> None:
    objects = MemoryObjects()
    other = stored({f"n{number}": random(f"n{number}", 500) for number in range(20)}, objects)
    before = dict(objects.links)
    mine = stored({"mine": other["n3"]}, objects, known=[other.entry])
    assert 500 < pack_bytes(objects, before) < 6 * KIB
    assert np.array_equal(mine["mine"], other["n3"])


def test_a_large_tensor_is_taken_from_a_foreign_pack() -> None:
    objects = MemoryObjects()
    other = stored(BASE, objects)
    before = dict(objects.links)
    mine = stored({"mine": BASE["a"]}, objects, known=[other.entry])
    assert pack_bytes(objects, before) == 0
    assert np.array_equal(mine["mine"], BASE["a"])


def test_equal_tensors_are_stored_once() -> None:
    objects = MemoryObjects()
    stored({name: np.ones(100_000, "u1") for name in "abc"}, objects)
    assert pack_bytes(objects) < 110_000


def test_only_what_a_known_placement_holds_is_known() -> None:
    objects = MemoryObjects()
    stored(BASE, objects)
    before = dict(objects.links)
    stored(BASE | {"d": BASE["a"][:1000]}, objects)
    assert kinds(objects, before) == {"pack": 1, "model": 1, "placement": 1}


def test_one_tensor_under_two_names_is_a_tensor_and_its_alias() -> None:
    weight = random("w", 1000)
    model = stored({"lm_head": weight, "embed": weight, "apart": weight.copy()})
    loaded = model.load()
    assert model.spec("lm_head").alias_of == "embed"
    assert loaded["lm_head"] is loaded["embed"]
    assert not np.shares_memory(loaded["apart"], loaded["embed"])


def test_equal_fingerprints_are_never_ties() -> None:
    model = stored({"bias.0": np.zeros(1000), "bias.1": np.zeros(1000)})
    loaded = model.load()
    assert model.spec("bias.0").fingerprint == model.spec("bias.1").fingerprint
    assert model.spec("bias.1").alias_of is None
    assert not np.shares_memory(loaded["bias.0"], loaded["bias.1"])


def test_arrays_made_on_demand_are_never_tied() -> None:
    class Lazy:
        def __init__(self) -> None:
            self.names = ("a", "b")

        def __iter__(self) -> Any:
            return iter(self.names)

        def __getitem__(self, name: str) -> Any:
            return np.full(1000, self.names.index(name))

    model = stored(Lazy())
    assert [model[name][0] for name in model] == [0, 1]
    assert model.aliases == {}


def test_torch_state_dicts_keep_their_ties() -> None:
    torch = pytest.importorskip("torch")
    embed = torch.nn.Embedding(40, 8)
    head = torch.nn.Linear(8, 40, bias=False)
    head.weight = embed.weight
    module = torch.nn.ModuleDict({"embed": embed, "head": head})
    model = stored(module.state_dict())
    loaded = model.load(output="torch")
    assert model.aliases == {"head.weight": "embed.weight"}
    assert loaded["head.weight"].data_ptr() == loaded["embed.weight"].data_ptr()
    assert torch.equal(loaded["head.weight"], embed.weight)


def test_a_tensor_larger_than_a_pack_lies_in_several() -> None:
    objects = MemoryObjects()
    model = stored({"big": CountingTensor(2_600_000)}, objects, budget_bytes=SMALLEST_BUDGET_BYTES)
    assert kinds(objects)["pack"] == 3
    assert np.array_equal(model["big"], noise(0, 2_600_000))


def test_a_large_tensor_that_is_known_is_hashed_and_not_stored() -> None:
    objects = MemoryObjects()
    options: dict[str, Any] = {"budget_bytes": SMALLEST_BUDGET_BYTES}
    first = stored({"big": CountingTensor(2_600_000)}, objects, **options)
    before = dict(objects.links)
    again = CountingTensor(2_600_000)
    stored({"other": again}, objects, known=[first.entry], **options)
    assert pack_bytes(objects, before) == 0
    assert again.bytes_read == 2_600_000 * 8


def test_two_equal_tensors_larger_than_a_pack_are_stored_once() -> None:
    objects = MemoryObjects()
    pair = {"x": CountingTensor(2_600_000), "y": CountingTensor(2_600_000)}
    model = stored(pair, objects, budget_bytes=SMALLEST_BUDGET_BYTES)
    assert kinds(objects)["pack"] == 3
    assert model.spec("x").fingerprint == model.spec("y").fingerprint


def test_memory_is_bounded_by_the_budget_whatever_the_size_of_a_tensor() -> None:
    objects = CountingObjects()
    tracemalloc.start()
    write_model(
        objects,
        {"big": CountingTensor(25_000_000), "large": CountingTensor(900_000, salt=1)},
        budget_bytes=SMALLEST_BUDGET_BYTES,
    )
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Frames made by this test's own tensor come on top: 4 MiB for each thread.
    assert peak_bytes < SMALLEST_BUDGET_BYTES + (24 << 20) < 200_000_000


@pytest.mark.parametrize("budget_bytes", [0, SMALLEST_BUDGET_BYTES - 1])
def test_a_budget_below_a_few_frames_is_refused(budget_bytes: int) -> None:
    with pytest.raises(InvalidInputError, match="budget"):
        write_model(MemoryObjects(), BASE, budget_bytes=budget_bytes)


@pytest.mark.parametrize("known", [[], ["first"]])
def test_a_tensor_that_changes_while_it_is_hashed_and_stored_is_refused(known: list[str]) -> None:
    objects = MemoryObjects()
    first = stored(BASE, objects)
    pair = {"x": CountingTensor(2_600_000), "y": ChangingTensor(2_600_000)}
    with pytest.raises(InvalidInputError, match="'y' changed"):
        write_model(
            objects,
            pair,
            known=[first.entry for _ in known],
            budget_bytes=SMALLEST_BUDGET_BYTES,
        )


def test_progress_counts_tensors_and_their_bytes() -> None:
    seen: list[tuple[int, int]] = []
    write_model(
        MemoryObjects(),
        {"a": np.zeros(10, "u1"), "b": np.zeros(1000, "u1")},
        progress=lambda tensors, size: seen.append((tensors, size)),
    )
    assert seen == [(1, 10), (2, 1010)]


@pytest.mark.parametrize("name", ["", "x" * 4097, "\ud800"])
def test_a_name_that_cannot_be_stored_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError, match="name"):
        write_model(MemoryObjects(), {name: np.zeros(3)})


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="not text"):
        write_model(MemoryObjects(), {3: np.zeros(3)})  # type: ignore[dict-item]  # what is tested


def test_a_model_may_have_no_tensors() -> None:
    model = stored({}, metrics={"loss": 1.5})
    assert (len(model), model.metrics) == (0, {"loss": 1.5})


def test_files_come_along_from_memory_and_from_disk(tmp_path: Path) -> None:
    large = random("f", 20 << 20).tobytes()
    (tmp_path / "vocab").write_bytes(large)
    files: dict[str, bytes | Path] = {"config.json": b"{}", "tok/vocab": tmp_path / "vocab"}
    model = stored({}, files=files)
    read = {name: b"".join(map(bytes, model.file_chunks(name))) for name in model.files}
    assert read == {"config.json": b"{}", "tok/vocab": large}
    assert model.files["tok/vocab"].size_bytes == len(large)


@pytest.mark.parametrize("name", ["../x", "/x", "a\\b", "a/../b", "C:x", "nul\0", ""])
def test_a_file_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(InvalidInputError):
        write_model(MemoryObjects(), {}, files={name: b""})


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="config"):
        write_model(MemoryObjects(), {}, files={"config.json": tmp_path / "config.json"})


def test_lineage_metrics_and_metadata_are_kept() -> None:
    edge = ProvenanceEdge("trained_on", "datasets/x", "1" * 64, None, {"seed": 3, "position": 12})
    options: dict[str, Any] = {"metrics": {"acc": 0.9}, "metadata": {"epoch": 3}}
    model = stored({}, lineage=[edge], **options)
    assert (model.lineage, model.metrics, model.metadata) == ((edge,), *options.values())


def original(path: Path, *parts: bytes | FileStretch | str) -> ModelSource:
    tensors = {"w": tensor_of("w", np.arange(100, dtype="u1"))}
    return ModelSource(tensors, originals=(OriginalFile("m.bin", "test", path, parts),))


def test_an_original_is_made_of_its_parts_again(tmp_path: Path) -> None:
    data = b"head" + bytes(range(100)) + b"tail"
    (tmp_path / "m.bin").write_bytes(data)
    model = stored(original(tmp_path / "m.bin", b"head", "w", b"tail"))
    assert b"".join(map(bytes, model.file_chunks("m.bin"))) == data


@pytest.mark.parametrize(
    "parts",
    [
        (FileStretch(0, 4), "w", FileStretch(104, 108)),
        (b"he", FileStretch(2, 3), b"", b"d", "w", b"tail"),
        (b"head", FileStretch(4, 108)),
    ],
)
def test_what_is_no_tensor_may_be_stretches_of_the_file(
    tmp_path: Path, parts: tuple[bytes | FileStretch | str, ...]
) -> None:
    data = b"head" + bytes(range(100)) + b"tail"
    (tmp_path / "m.bin").write_bytes(data)
    model = stored(original(tmp_path / "m.bin", *parts))
    assert b"".join(map(bytes, model.file_chunks("m.bin"))) == data


@pytest.mark.parametrize(
    "data",
    [
        b"head" + bytes(range(100)),
        b"head" + bytes(range(1, 101)) + b"tail",
        b"head" + bytes(range(100)) + b"tail.",
        b"HEAD" + bytes(range(100)) + b"tail",
        b"",
    ],
    ids=["cut short", "other values", "longer", "another head", "empty"],
)
def test_an_original_that_does_not_come_out_again_fails_the_import(
    tmp_path: Path, data: bytes
) -> None:
    (tmp_path / "m.bin").write_bytes(data)
    objects = MemoryObjects()
    with pytest.raises(InvalidInputError, match=r"m\.bin"):
        write_model(objects, original(tmp_path / "m.bin", b"head", "w", b"tail"))
    assert kinds(objects)["model"] == 0


def test_a_stored_model_can_be_stored_again_as_it_is() -> None:
    objects = MemoryObjects()
    model = stored(BASE, objects)
    again = write_model(objects, {name: model.tensor(name) for name in model})
    assert again.digest == model.entry.digest
    assert open_model(objects, again).keys() == model.keys()


@pytest.mark.parametrize(
    ("given", "told"),
    [("model.safetensors", "tensorrepo model add"), (Path("model.pt"), "tensorrepo model add"),
     ([np.zeros(3)], "by name, got list"), (b"x", "by name, got bytes")],
)  # fmt: skip
def test_what_is_no_tensors_by_name_is_refused(given: Any, told: str) -> None:
    with pytest.raises(InvalidInputError, match=told):
        stored(given)


LARGE = np.random.default_rng(5).standard_normal((5, 1 << 19), dtype="f4")  # a frame a row


def test_a_large_tensor_that_is_known_is_read_and_not_stored() -> None:
    objects = MemoryObjects()
    first = stored({"w": LARGE}, objects)
    before = dict(objects.links)
    again = stored({"w": LARGE.copy()}, objects, known=[first.entry])
    assert kinds(objects, before) == {}
    assert again.entry == first.entry


@pytest.mark.parametrize("row", range(len(LARGE)))
def test_a_large_tensor_of_which_one_frame_differs_is_stored_right(row: int) -> None:
    """Samples lie in some frames: whether they differ must not matter."""
    objects = MemoryObjects()
    first = stored({"w": LARGE}, objects)
    tuned = LARGE.copy()
    tuned[row, 7] += 1
    second = stored({"w": tuned}, objects, known=[first.entry])
    assert np.array_equal(second["w"], tuned)


def test_a_large_tensor_that_is_known_by_another_name_is_not_stored() -> None:
    objects = MemoryObjects()
    other = stored({"w": LARGE, "v": LARGE[::-1].copy()}, objects)
    before = dict(objects.links)
    mine = stored({"w": LARGE[::-1].copy(), "v": LARGE + 1}, objects, known=[other.entry])
    assert pack_bytes(objects, before) < LARGE.nbytes
    assert np.array_equal(mine["w"], LARGE[::-1])


def test_equal_large_tensors_are_stored_once() -> None:
    objects = MemoryObjects()
    model = stored({name: LARGE.copy() for name in "abc"}, objects)
    assert pack_bytes(objects) < LARGE.nbytes * 1.1
    assert np.array_equal(model["c"], LARGE)


@pytest.mark.parametrize("side", [300, 730], ids=["one frame", "two frames"])
def test_tensors_like_the_first_of_their_group_are_encoded_without_samples(
    side: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    looks: list[Any] = []
    base = {f"layers.{at}.w": rng.standard_normal((side, side), "f4") for at in range(4)}
    tuned = {name: one + np.float32(1e-4) * one.T for name, one in base.items()}
    expected = type(DELTA).expected_bytes

    def counted(*of: Any) -> Any:
        looks.append(of)
        return expected(*of)

    monkeypatch.setattr(type(DELTA), "expected_bytes", counted)
    objects = MemoryObjects()
    model = stored(tuned, objects, known=[stored(base, objects).entry])
    assert len(looks) == SAMPLES
    assert all(np.array_equal(model[name], one) for name, one in tuned.items())


@pytest.mark.parametrize("turned", [False, True])
def test_a_tensor_of_two_frames_is_encoded_whichever_of_them_pays(turned: bool) -> None:
    noise = np.random.default_rng(0).integers(0, 1 << 32, 1 << 19, dtype="u4")
    array = np.concatenate([noise, np.zeros(1 << 18, "u4")][:: -1 if turned else 1])
    objects = MemoryObjects()
    model = open_model(objects, write_model(objects, {"w": array}))
    np.testing.assert_array_equal(model.load()["w"], array)
    (member,) = model.packs.stored[model.content("w")].members
    assert member.stored_bytes < 0.7 * array.nbytes
