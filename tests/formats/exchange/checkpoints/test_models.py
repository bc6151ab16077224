"""Models come in and go out as a file or as a folder, and are told by content."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tensorrepo.formats.exchange.checkpoints.models import (
    export_model,
    model_file_name,
    read_model,
    usual_format,
)
from tensorrepo.formats.model.stored_model import StoredModel, open_model
from tensorrepo.formats.model.write.model_writer import write_model
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tests.support.builders.objects import MemoryObjects

FIRST = {"a.weight": np.arange(12, dtype="f4").reshape(3, 4), "a.bias": np.ones(3, "f4")}
SECOND = {"b.weight": np.arange(6, dtype="i8")}


def through_the_store(path: Path, format_name: str | None = None) -> StoredModel:
    objects = MemoryObjects()
    return open_model(objects, write_model(objects, read_model(path, format_name)))


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """Weights in two files, beside a config, a tokenizer in a folder, and something ignored."""
    folder = tmp_path / "net"
    (folder / "tokenizer").mkdir(parents=True)
    save_file(FIRST, folder / "model-1.safetensors")
    save_file(SECOND, folder / "model-2.safetensors")
    (folder / "config.json").write_text('{"layers": 2}')
    (folder / "tokenizer/merges.txt").write_text("a b\n")
    (folder / "optimizer.log").write_text("long")
    (folder / ".tensorrepoignore").write_text("*.log\n")
    return folder


def test_a_folder_comes_back_byte_for_byte_without_what_was_ignored(
    snapshot: Path, tmp_path: Path
) -> None:
    model = through_the_store(snapshot)
    export_model(model, tmp_path / "out", "snapshot")
    expected = contents(snapshot)
    del expected["optimizer.log"]
    assert contents(tmp_path / "out") == expected


def test_a_folder_is_one_model_of_all_its_weights(snapshot: Path) -> None:
    model = through_the_store(snapshot)
    assert set(model.keys()) == {*FIRST, *SECOND}
    assert usual_format(model) == "snapshot"


def test_tensors_that_two_files_have_are_named_after_their_file(
    snapshot: Path, tmp_path: Path
) -> None:
    save_file(SECOND, snapshot / "model-3.safetensors")
    model = through_the_store(snapshot)
    assert set(model.keys()) == {*FIRST, *SECOND, "model-3.safetensors/b.weight"}
    export_model(model, tmp_path / "out")
    assert contents(tmp_path / "out").items() < contents(snapshot).items()


def test_a_folder_without_weights_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("nothing here")
    with pytest.raises(InvalidInputError, match="no weights"):
        read_model(tmp_path)


def test_safetensors_are_taken_where_the_same_weights_lie_as_torch_too(snapshot: Path) -> None:
    (snapshot / "pytorch_model.bin").write_bytes(b"the same weights, as torch has them")
    model = through_the_store(snapshot)
    assert set(model.keys()) == {*FIRST, *SECOND}
    assert "pytorch_model.bin" in model.files


def test_links_in_a_folder_are_not_followed(snapshot: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("secret")
    (snapshot / "link.txt").symlink_to(tmp_path / "secret.txt")
    assert "link.txt" not in read_model(snapshot).files


@pytest.mark.parametrize("name", ["model.safetensors", "model.weights", "model"])
def test_a_file_is_told_by_its_content(tmp_path: Path, name: str) -> None:
    save_file(FIRST, tmp_path / name)
    assert set(through_the_store(tmp_path / name).keys()) == set(FIRST)


def test_npz_is_read_as_weights(tmp_path: Path) -> None:
    np.savez(tmp_path / "weights.npz", **FIRST)
    model = through_the_store(tmp_path / "weights.npz")
    assert np.array_equal(model["a.weight"], FIRST["a.weight"])


def test_a_model_with_files_is_written_as_a_folder_with_new_weights(tmp_path: Path) -> None:
    objects = MemoryObjects()
    files = {"config.json": b"{}"}
    model = open_model(objects, write_model(objects, dict(FIRST), files=files))
    export_model(model, tmp_path / "out", "snapshot")
    assert set(contents(tmp_path / "out")) == {"config.json", "model.safetensors"}
    assert set(through_the_store(tmp_path / "out").keys()) == set(FIRST)


@pytest.mark.parametrize(
    ("format_name", "name"),
    [
        ("safetensors", "net.safetensors"),
        ("torch", "net.pt"),
        ("gguf", "net.gguf"),
        ("onnx", "net.onnx"),
        ("npz", "net.npz"),
        ("snapshot", "net"),
        ("hf", "net"),
    ],
)
def test_a_written_model_is_called_by_its_format(format_name: str, name: str) -> None:
    assert model_file_name("net", format_name) == name


@pytest.mark.parametrize("format_name", ["safetensor", "keras", "h5"])
def test_an_unknown_format_names_those_that_are_written(tmp_path: Path, format_name: str) -> None:
    objects = MemoryObjects()
    model = open_model(objects, write_model(objects, dict(FIRST)))
    with pytest.raises(InvalidInputError, match="known are safetensors, gguf, onnx, torch, npz"):
        export_model(model, tmp_path / "net", format_name)


def test_an_export_overwrites_only_when_told(tmp_path: Path) -> None:
    objects = MemoryObjects()
    model = open_model(objects, write_model(objects, dict(FIRST)))
    target = tmp_path / "net.safetensors"
    target.write_bytes(b"mine")
    with pytest.raises(InvalidInputError, match="exists"):
        export_model(model, target)
    assert target.read_bytes() == b"mine"
    export_model(model, target, overwrite=True)
    assert set(through_the_store(target).keys()) == set(FIRST)


def test_what_is_not_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        read_model(tmp_path / "nothing.safetensors")


@pytest.mark.parametrize("format_name", ["safetensors", "torch"])
def test_a_folder_is_no_single_file(snapshot: Path, format_name: str) -> None:
    with pytest.raises(InvalidInputError, match="is a folder"):
        read_model(snapshot, format_name)


def test_a_suffix_of_no_format_is_refused_with_those_there_are(tmp_path: Path) -> None:
    objects = MemoryObjects()
    model = open_model(objects, write_model(objects, dict(FIRST)))
    with pytest.raises(InvalidInputError, match=r"'\.foo'.*\.safetensors.*--format.*snapshot"):
        export_model(model, tmp_path / "net.foo")
    assert not list(tmp_path.iterdir())
    export_model(model, tmp_path / "net.foo", "npz")
    export_model(model, tmp_path / "net")
    assert through_the_store(tmp_path / "net", "safetensors").keys() == ("a.bias", "a.weight")
