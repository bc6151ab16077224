"""Hundreds of small tensors in one load: as they were, the caller's own, named where damaged."""

from __future__ import annotations

import gc
import shutil
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.formats.model.read import frames
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.base_choice import DeltaOptions
from tensorrepo.formats.model.write.model_writer import write_model
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.errors import CorruptError
from tensorrepo.repo.hashing.hasher import PYTHON
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.store import ObjectStore
from tensorrepo.repo.objects.writer import ObjectWriter

RNG = np.random.default_rng(4)
TENSORS = {
    **{f"{at}.w": RNG.normal(size=(at % 7 + 1, 50 + at)).astype("f4") for at in range(300)},
    "half": RNG.normal(size=(3, 40)).astype("f2"),
    "mask": RNG.integers(0, 2, 500).astype(bool),
    "none": np.zeros((0, 4), "f4"),
    "steps": np.array(7),
}
STEPS = [
    {
        name: (array + step * 1e-4).astype(array.dtype) if array.dtype.kind == "f" else array
        for name, array in TENSORS.items()
    }
    for step in range(4)
]
RAW, PLANES, DELTA = (
    DeltaOptions(codecs=frozenset(names)) for names in ((), ("planes",), ("delta",))
)


def put(folder: Path, tensors: Mapping[str, Any], against: DeltaOptions) -> Entry:
    writer = ObjectWriter(ObjectStore(LocalBackend(folder)), ())
    entry = write_model(writer, tensors, against=against)
    writer.flush()
    return entry


def opened(folder: Path, entry: Entry) -> StoredModel:
    return open_model(ObjectStore(LocalBackend(folder)), entry)


def chain(folder: Path, first: DeltaOptions) -> list[Entry]:
    """Models of which each is stored as what moved from the one before."""
    entries = [put(folder, STEPS[0], first)]
    for tensors in STEPS[1:]:
        against = DeltaOptions(entries[-1], depth=8, codecs=frozenset({"delta"}), worth=2.0)
        entries.append(put(folder, tensors, against))
    return entries


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Entry]]:
    """A chain that begins without any codec; nobody may write into its folder."""
    folder = tmp_path_factory.mktemp("raw")
    return folder, chain(folder, RAW)


@pytest.mark.parametrize("step", range(len(STEPS)))
def test_a_part_of_a_small_tensor_is_read_alone(raw: tuple[Path, list[Entry]], step: int) -> None:
    folder, entries = raw
    part = opened(folder, entries[step]).slice("2.w", np.s_[1:, 3:9])
    assert np.array_equal(part, STEPS[step]["2.w"][1:, 3:9])


@pytest.mark.parametrize("first", [RAW, PLANES], ids=["raw", "planes"])
def test_small_tensors_come_back_through_any_number_of_bases(tmp_path: Path, first: Any) -> None:
    entries = chain(tmp_path, first)
    depths = {one.depth for one in opened(tmp_path, entries[3]).packs.members.entries.values()}
    assert max(depths) == 3
    for entry, tensors in zip(entries, STEPS, strict=True):
        loaded = opened(tmp_path, entry).load()
        assert loaded.keys() == tensors.keys()
        assert all(np.array_equal(loaded[name], array) for name, array in tensors.items())
        assert all(loaded[name].dtype == array.dtype for name, array in tensors.items())


def test_what_python_verifies_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "BEST", PYTHON)
    loaded = opened(tmp_path, put(tmp_path, TENSORS, RAW)).load()
    assert all(np.array_equal(loaded[name], array) for name, array in TENSORS.items())


@pytest.mark.parametrize(
    "options", [{"output": "torch"}, {"dtype": "f8"}, {"copy": False}], ids=str
)
def test_small_tensors_come_in_every_form(
    raw: tuple[Path, list[Entry]], options: dict[str, Any]
) -> None:
    folder, entries = raw
    loaded = opened(folder, entries[1]).load(**options)
    assert all(
        np.array_equal(np.asarray(loaded[name]), array.astype(np.asarray(loaded[name]).dtype))
        for name, array in STEPS[1].items()
    )
    writable = {array.flags.writeable for array in loaded.values() if hasattr(array, "flags")}
    assert writable <= ({False} if "copy" in options else {True})


@pytest.mark.parametrize("budget_bytes", [1, 1000, 100_000])
def test_any_budget_gives_every_tensor_once(tmp_path: Path, budget_bytes: int) -> None:
    model = opened(tmp_path, put(tmp_path, TENSORS, RAW))
    found = list(model.iter_tensors(model.keys(), budget_bytes=budget_bytes))
    assert sorted(name for name, _ in found) == sorted(TENSORS)
    assert all(np.array_equal(array, TENSORS[name]) for name, array in found)


def owner(array: Any) -> Any:
    """The last array of those through which one has its memory."""
    while isinstance(under := getattr(array, "base", None), np.ndarray | memoryview):
        array = under.obj if isinstance(under, memoryview) else under
    return array


def test_memory_is_free_as_soon_as_the_caller_lets_go_of_it(tmp_path: Path) -> None:
    model = opened(tmp_path, put(tmp_path, {**TENSORS, "large": np.zeros(3 << 20)}, RAW))
    gc.disable()
    try:
        loaded = model.load()
        left = [weakref.ref(owner(array)) for array in loaded.values()]
        del loaded
        assert not any(one() is not None for one in left)
    finally:
        gc.enable()


def damage(folder: Path, model: StoredModel, name: str) -> None:
    """Flip a bit of what is stored of a tensor."""
    placed = model.tensor(name).frames[0]
    path = next(one for one in folder.rglob("*") if placed.pack.digest[4:] in one.name)
    assert placed.pack.payload_start is not None
    data = bytearray(path.read_bytes())
    data[placed.pack.payload_start + placed.frame.planes[0].offset + 9] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


@pytest.mark.parametrize("copy", [True, False])
def test_one_damaged_tensor_of_many_is_named(tmp_path: Path, copy: bool) -> None:
    model = opened(tmp_path, put(tmp_path, TENSORS, RAW))
    damage(tmp_path, model, "123.w")
    with pytest.raises(CorruptError, match=r"tensor '123\.w', frame 0 .*fsck"):
        opened(tmp_path, model.entry).load(copy=copy)


def test_a_damaged_base_of_one_tensor_of_many_is_named(
    raw: tuple[Path, list[Entry]], tmp_path: Path
) -> None:
    entries = raw[1]
    shutil.copytree(raw[0], tmp_path, dirs_exist_ok=True)
    model = opened(tmp_path, entries[1])
    members = model.packs.members.entries
    name = next(
        name
        for name in TENSORS
        for placed in model.tensor(name).frames
        if members[placed.place].bases
    )
    damage(tmp_path, opened(tmp_path, entries[0]), name)
    with pytest.raises(CorruptError, match=f"tensor '{name}'.*its base, .*is damaged"):
        opened(tmp_path, entries[1]).load()
