"""`model export`: models out of a repository as files, from the command line and in Python."""

from __future__ import annotations

import json

import pytest

import tensorrepo as tr
from tensorrepo.repo.errors import InvalidInputError
from tests.support.builders import model_files
from tests.support.processes.shell import Shell


@pytest.mark.parametrize(
    ("name", "form"),
    [("net.gguf", "gguf"), ("net.onnx", "onnx"), ("net.npz", "npz"), ("net.pt", "torch")],
)
def test_what_was_added_comes_out_byte_for_byte(shell: Shell, name: str, form: str) -> None:
    path = getattr(model_files, f"write_{form}")(shell.folder / name)
    shell("add", name, "--model", "net")
    shell("commit", "-m", "A model")
    out = shell("model", "export", "net", "--to", f"out-{name}")
    assert f"wrote out-{name}" in out
    assert (shell.folder / f"out-{name}").read_bytes() == path.read_bytes()
    shell("model", "export", "net", "--format", form, "--to", "named")
    assert (shell.folder / "named").read_bytes() == path.read_bytes()


def test_an_older_model_is_exported_as_a_folder_of_shards(shell: Shell) -> None:
    model_files.write_npz(shell.folder / "net.npz")
    shell("add", "net.npz", "--model", "net")
    shell("commit", "-m", "A model")
    shell("tag", "v1")
    told = shell(
        "model", "export", "v1:net", "--format", "hf", "--shard-bytes", "3000", "--to", "hf",
        "--json",
    )  # fmt: skip
    assert json.loads(told)["format"] == "hf"
    assert (shell.folder / "hf/model.safetensors.index.json").exists()


def test_what_is_there_is_kept_unless_forced(shell: Shell) -> None:
    model_files.write_npz(shell.folder / "net.npz")
    shell("add", "net.npz", "--model", "net")
    shell("commit", "-m", "A model")
    (shell.folder / "mine.npz").write_bytes(b"mine")
    assert "exists" in shell.fails(2, "model", "export", "net", "--to", "mine.npz")
    assert (shell.folder / "mine.npz").read_bytes() == b"mine"
    shell("model", "export", "net", "--to", "mine.npz", "--force")


def test_formats_and_options_that_models_lack_are_refused(shell: Shell) -> None:
    model_files.write_npz(shell.folder / "net.npz")
    shell("add", "net.npz", "--model", "net")
    shell("commit", "-m", "A model")
    said = shell.fails(2, "model", "export", "net", "--format", "parquet", "--to", "x")
    assert "known are safetensors" in said
    said = shell.fails(2, "model", "export", "net", "--to", "x.npz", "--shard-bytes", "5")
    assert "only hf" in said
    model = tr.open(shell.folder / ".tensorrepo/store").model("net")
    with pytest.raises(InvalidInputError, match="shard_bytes"):
        model.export(shell.folder / "x.npz", depth=3)
    assert model.export(shell.folder / "x.npz").exists()


def test_what_is_no_model_is_refused(shell: Shell) -> None:
    (shell.folder / "points.csv").write_text("x,y\n1,2\n")
    shell("add", "points.csv", "--dataset", "points")
    shell("commit", "-m", "points")
    said = shell.fails(2, "model", "export", "points", "--to", "x.npz")
    assert "not a model" in said
