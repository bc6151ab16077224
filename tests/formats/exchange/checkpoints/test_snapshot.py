"""Folders of weights as Hugging Face's libraries write and load them."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tensorrepo.formats.common.tensors import TYPES, ArrayTensor
from tensorrepo.formats.exchange.checkpoints.models import export_model, read_model
from tensorrepo.formats.model.write.model_source import ModelSource
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tests.support.builders import model_files
from tests.support.builders.models import stored

INDEX = "model.safetensors.index.json"


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model as transformers saves it, in shards, with a card and a tokenizer."""
    torch = pytest.importorskip("torch")
    from transformers import BertConfig, BertModel

    torch.manual_seed(7)
    config = BertConfig(
        vocab_size=200, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=32,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("net")
    BertModel(config).save_pretrained(folder, max_shard_size="60KB")
    (folder / "README.md").write_text("# A card\n")
    (folder / "tokenizer.json").write_text('{"model": {}}')
    return folder


@pytest.mark.soak
def test_a_sharded_model_comes_out_with_equal_sha256_of_every_file(
    saved: Path, tmp_path: Path
) -> None:
    assert (saved / INDEX).exists(), "transformers wrote shards"
    model = stored(read_model(saved))
    export_model(model, tmp_path / "snapshot", "snapshot")
    export_model(model, tmp_path / "hf", "hf")
    assert digests(tmp_path / "snapshot") == digests(tmp_path / "hf") == digests(saved)


@pytest.mark.soak
def test_what_was_written_anew_is_loaded_by_transformers(saved: Path, tmp_path: Path) -> None:
    from transformers import BertModel

    model = stored(read_model(saved))
    tensors = {name: model.tensor(name) for name in model.tensors}
    config = {"config.json": (saved / "config.json").read_bytes()}
    new = stored(ModelSource(tensors, files=config))
    export_model(new, tmp_path / "new", "hf", shard_bytes=50_000)
    index = json.loads((tmp_path / "new" / INDEX).read_text())
    assert len(set(index["weight_map"].values())) > 1
    assert index["metadata"]["total_size"] == model.size_bytes
    ours, theirs = (BertModel.from_pretrained(each) for each in (tmp_path / "new", saved))
    for name, value in theirs.state_dict().items():
        assert value.equal(ours.state_dict()[name])


def test_an_index_alone_opens_its_shards(saved: Path) -> None:
    source = read_model(saved / INDEX)
    assert source.tensors.keys() == read_model(saved).tensors.keys()
    assert set(source.files) == {INDEX}


def sharded(folder: Path, weight_map: Any) -> Path:
    folder.mkdir()
    save_file({"a": np.ones(3, "f4")}, folder / "one.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


@pytest.mark.parametrize("name", ["../two.safetensors", "/tmp/two.safetensors", "..", "x\\..\\y"])
@pytest.mark.parametrize("alone", [True, False])
def test_an_index_that_leads_out_of_its_folder_is_refused(
    name: str, alone: bool, tmp_path: Path
) -> None:
    save_file({"b": np.ones(3, "f4")}, tmp_path / "two.safetensors")
    folder = sharded(tmp_path / "net", {"a": "one.safetensors", "b": name})
    with pytest.raises(InvalidInputError, match="not in its folder"):
        read_model(folder / INDEX if alone else folder)


def test_an_index_does_not_follow_links(tmp_path: Path) -> None:
    save_file({"b": np.ones(3, "f4")}, tmp_path / "two.safetensors")
    folder = sharded(tmp_path / "net", {"b": "two.safetensors"})
    (folder / "two.safetensors").symlink_to(tmp_path / "two.safetensors")
    with pytest.raises(InvalidInputError, match="not in its folder"):
        read_model(folder)


def test_a_missing_shard_is_said_to_be_missing(tmp_path: Path) -> None:
    folder = sharded(tmp_path / "net", {"a": "one.safetensors", "b": "two.safetensors"})
    with pytest.raises(NotFoundError, match=r"two\.safetensors.*missing"):
        read_model(folder)


def test_tensors_that_an_index_promises_and_no_file_has_are_told(tmp_path: Path) -> None:
    source = read_model(sharded(tmp_path / "net", {"a": "one.safetensors", "b": "one.safetensors"}))
    assert any("'b'" in note for note in source.notes)


@pytest.mark.parametrize("text", ["[]", "{}", '{"weight_map": {"a": 1}}', "[" * 100_000, "\xff"])
def test_an_index_that_is_none_is_kept_with_a_note(text: str, tmp_path: Path) -> None:
    folder = sharded(tmp_path / "net", {})
    (folder / INDEX).write_text(text, encoding="latin-1")
    source = read_model(folder)
    assert set(source.tensors) == {"a"}
    assert "kept as a file" in source.notes[0]


def test_networks_in_subfolders_have_names_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "pipeline"
    for at, name in enumerate(["text", "unet"]):
        (folder / name).mkdir(parents=True)
        save_file({"w": np.full(30, at, "f4")}, folder / name / "model.safetensors")
    model = stored(read_model(folder))
    assert set(model.keys()) == {"w", "unet/model.safetensors/w"}
    export_model(model, tmp_path / "out")
    assert digests(tmp_path / "out") == digests(folder)


def test_a_pickle_of_arguments_beside_weights_is_a_file(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    folder.mkdir()
    model_files.write_torch(folder / "pytorch_model.bin")
    (folder / "training_args.bin").write_bytes(b"\x80\x02cposix\nsystem\nX\x01\0\0\0x\x85R.")
    source = read_model(folder)
    assert "model.weight" in source.tensors
    assert set(source.files) == {"training_args.bin"}
    assert "training_args.bin is kept as a file" in source.notes[0]


def test_a_folder_of_pickles_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "training_args.bin").write_bytes(b"\x80\x02cposix\nsystem\nX\x01\0\0\0x\x85R.")
    with pytest.raises(InvalidInputError, match="no weights in it that can be read"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (model_files.write_gguf, "model.gguf"),
        (model_files.write_onnx_outside, "onnx/model.onnx"),
        (model_files.write_npz, "model.npz"),
    ],
)
def test_other_weights_come_out_of_a_folder_as_they_were(
    write: Any, name: str, tmp_path: Path
) -> None:
    folder = tmp_path / "net"
    (folder / name).parent.mkdir(parents=True)
    write(folder / name)
    (folder / "config.json").write_text("{}")
    model = stored(read_model(folder))
    assert set(model.files) == {"config.json"}
    export_model(model, tmp_path / "out")
    assert digests(tmp_path / "out") == digests(folder)


def test_weights_of_another_format_become_safetensors_of_an_hf_folder(tmp_path: Path) -> None:
    folder = tmp_path / "net"
    folder.mkdir()
    model_files.write_torch(folder / "pytorch_model.bin")
    (folder / "config.json").write_text("{}")
    export_model(stored(read_model(folder)), tmp_path / "out", "hf")
    assert set(digests(tmp_path / "out")) == {"config.json", "model.safetensors"}
    assert "model.weight" in load_file(tmp_path / "out/model.safetensors")


def test_a_shard_cut_short_is_refused(saved: Path, tmp_path: Path) -> None:
    shutil.copytree(saved, tmp_path / "net")
    shard = min((tmp_path / "net").glob("*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(InvalidInputError, match="cut short"):
        read_model(tmp_path / "net")


def test_a_type_that_safetensors_lacks_leaves_no_folder(tmp_path: Path) -> None:
    blocks = ArrayTensor(np.zeros(34, "u1").view("V34"), TYPES["Q8_0"], (32,))
    with pytest.raises(InvalidInputError, match=r"'w'.*Q8_0"):
        export_model(stored(ModelSource({"w": blocks})), tmp_path / "out", "hf")
    assert list(tmp_path.iterdir()) == []
