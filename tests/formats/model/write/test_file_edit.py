from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import xxhash
from numpy.typing import NDArray
from safetensors.numpy import save_file

from tensorrepo.formats.exchange.checkpoints.safetensors import read_safetensors
from tensorrepo.formats.exchange.checkpoints.torch import read_torch
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.file_edit import FileEdit, KeptFile, edit_files
from tests.support.builders.objects import MemoryObjects

Tensors = dict[str, NDArray[np.float32]]


def tensors(seed: int, *names: str) -> Tensors:
    numbers = np.random.default_rng(seed)
    return {name: numbers.standard_normal((64, 32)).astype("f4") for name in names}


class Edited:
    """A model that is changed by its files, and what its files should be."""

    def __init__(self, folder: Path) -> None:
        self.objects = MemoryObjects()
        self.model: StoredModel | None = None
        self.expected: dict[str, bytes] = {}
        self._folder = folder

    def edit(self, **weights: Tensors) -> None:
        """Bring files of weights; their names end in ``.safetensors``."""
        parsed = {}
        for name, held in weights.items():
            path = self._folder / f"{name}.safetensors"
            save_file(held, path)
            parsed[path.name] = read_safetensors(path)
            self.expected[path.name] = path.read_bytes()
        self.apply(FileEdit(weights=parsed))

    def files(self, **files: bytes) -> None:
        self.expected |= files
        self.apply(FileEdit(files=files))

    def remove(self, *names: str) -> None:
        for name in names:
            del self.expected[name]
        self.apply(FileEdit(removed=frozenset(names)))

    def copy(self, old: str, new: str, model: StoredModel | None = None) -> None:
        source = model or self.held
        self.expected[new] = b"".join(map(bytes, source.file_chunks(old)))
        self.apply(FileEdit(copies={new: KeptFile(source, old)}))

    def apply(self, edit: FileEdit) -> None:
        written = edit_files(self.objects, self.model, edit)
        self.model = open_model(self.objects, written.entry)

    @property
    def held(self) -> StoredModel:
        assert self.model is not None, "something was stored"
        return self.model

    def check(self) -> None:
        """All files come out as they went in, by hash and by byte."""
        model = self.held
        listed = {**model.files, **model.originals}
        assert {name: one.sha256 for name, one in listed.items()} == {
            name: hashlib.sha256(data).digest() for name, data in self.expected.items()
        }
        for name, data in self.expected.items():
            assert b"".join(map(bytes, model.file_chunks(name))) == data


@pytest.fixture
def edited(tmp_path: Path) -> Edited:
    return Edited(tmp_path)


def test_a_model_of_no_files_is_one(edited: Edited) -> None:
    edited.apply(FileEdit())
    assert (len(edited.held), dict(edited.held.files)) == (0, {})


def test_files_come_change_and_go(edited: Edited) -> None:
    edited.edit(one=tensors(0, "a", "b"), two=tensors(1, "c"))
    edited.files(card=b"# words")
    edited.edit(two=tensors(2, "c", "d"))
    edited.files(card=b"# other words", config=b"{}")
    edited.remove("one.safetensors", "config")
    edited.check()
    assert edited.held.keys() == ("c", "d")


def test_a_change_of_a_card_reads_no_tensor_and_stores_none(edited: Edited) -> None:
    edited.edit(one=tensors(0, "a", "b"))
    stored = set(edited.objects.stored)
    edited.objects.reads.clear()
    edited.files(card=b"# words")
    packs = {entry.digest for entry in edited.held.packs.placement.packs}
    assert packs & {digest for digest, _, _ in edited.objects.reads} == set()
    assert packs <= stored
    edited.check()


def test_tensors_of_a_file_that_was_proved_are_read_once(tmp_path: Path) -> None:
    """Those that are stored as they are; the file itself is what says that it is the same."""
    bits = np.random.default_rng(0).integers(0, 256, (1 << 20,), np.uint8)
    save_file({"noise": bits, "zeros": np.zeros_like(bits)}, tmp_path / "one.safetensors")
    content = (tmp_path / "one.safetensors").read_bytes()
    source = read_safetensors(tmp_path / "one.safetensors")
    proof = {
        "sha256": hashlib.sha256(content).digest(),
        "checksum": xxhash.xxh3_128_digest(content),
    }
    source = replace(source, originals=tuple(replace(one, **proof) for one in source.originals))
    objects = MemoryObjects()
    written = edit_files(objects, None, FileEdit(weights={"one.safetensors": source}))
    read = sum(stop - start for _, start, stop in objects.reads)
    assert 0 < read < bits.nbytes
    model = open_model(objects, written.entry)
    assert b"".join(map(bytes, model.file_chunks("one.safetensors"))) == content


def test_tensors_of_one_name_in_two_files_stay_apart(edited: Edited) -> None:
    edited.edit(one=tensors(0, "a"))
    edited.edit(two=tensors(1, "a"))
    edited.check()
    assert edited.held.keys() == ("a", "two.safetensors/a")


def test_a_copy_shares_its_tensors(edited: Edited) -> None:
    edited.edit(one=tensors(0, "a", "b"))
    edited.copy("one.safetensors", "two.safetensors")
    edited.check()
    assert edited.held.keys() == ("a", "b")


def test_a_copy_of_before_lies_beside_what_took_its_place(edited: Edited) -> None:
    edited.edit(one=tensors(0, "a"))
    before = edited.held
    edited.edit(one=tensors(1, "a"))
    edited.copy("one.safetensors", "old.safetensors", before)
    edited.check()


def test_other_names_of_a_tensor_come_and_go_with_its_file(edited: Edited, tmp_path: Path) -> None:
    weight = torch.arange(64.0)
    torch.save({"head": weight, "embed": weight}, tmp_path / "tied.bin")
    edited.expected["tied.bin"] = (tmp_path / "tied.bin").read_bytes()
    edited.apply(FileEdit(weights={"tied.bin": read_torch(tmp_path / "tied.bin")}))
    edited.files(card=b"# words")
    edited.check()
    assert (edited.held.keys(), edited.held.loose) == (("embed", "head"), ())
    edited.remove("tied.bin")
    edited.check()
    assert edited.held.keys() == ()


def test_metrics_of_weights_that_went_go_with_them(edited: Edited) -> None:
    edited.edit(one=tensors(0, "a"))
    edited.edit(one=tensors(1, "a"))
    assert edited.held.metrics == {}
