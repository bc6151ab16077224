"""The commands about models, as somebody types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.formats.exchange.checkpoints.safetensors import write_safetensors
from tensorrepo.formats.model.write.model_source import ModelSource
from tests.support.builders.models import stored
from tests.support.faults.damage import flipped
from tests.support.processes.shell import Shell


def tensors(value: float) -> dict[str, Any]:
    layers = {f"layers.{at}.weight": np.full((40, 40), value, "f4") for at in range(3)}
    return {**layers, "steps": np.array([int(value)])}


def damage_packs(store: Path) -> None:
    """Flip the last byte before the directory's footer in every pack."""
    for file in store.rglob("*"):
        data = file.read_bytes() if file.is_file() else b""
        if data[-32:-28] == b"TRPK":
            file.chmod(0o644)
            file.write_bytes(flipped(data, len(data) - 40, 0xFF))


@pytest.fixture
def models(shell: Shell) -> Shell:
    """A workspace with models a, b and base, full of 1, 3 and 0."""
    for name, value in {"a": 1, "b": 3, "base": 0}.items():
        write_safetensors(stored(tensors(value)), shell.folder / f"{name}.safetensors")
        shell("model", "add", f"{name}.safetensors", name)
    shell("commit", "-m", "Models")
    return shell


def test_models_are_listed_and_described(models: Shell) -> None:
    assert [one["path"] for one in models.records("model", "ls")] == [
        "models/a", "models/b", "models/base",
    ]  # fmt: skip
    shown = models("model", "desc", "a")
    assert "4 tensors, 4,801 parameters (F32 4,800, I64 1)" in shown
    assert "layers.1" in shown
    described = models.json("model", "desc", "a")
    assert described["layers"][0] == {
        "name": "layers.0", "tensors": 1, "parameters": 1600, "bytes": 6400,
    }  # fmt: skip
    assert "linear" in models("model", "desc", "a", "--nodes")
    graph = models.json("model", "desc", "a", "--nodes")
    assert (graph["source"], len(graph["nodes"])) == ("names", 5)


def test_how_much_a_model_holds_is_not_counted_for_each_of_its_tensors(
    models: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    size = ModelSource.tensor_bytes.fget
    assert size is not None
    monkeypatch.setattr(
        ModelSource, "tensor_bytes", property(lambda source: asked.append(1) or size(source))
    )
    np.savez(models.folder / "many.npz", **{f"w{at}": np.zeros(1) for at in range(50)})
    models("add", "many.npz", "--model", "many")
    assert len(asked) <= 2


def test_a_file_without_tensors_is_no_model(models: Shell) -> None:
    (models.folder / "empty.safetensors").write_bytes(b"\x02" + bytes(7) + b"{}")
    words = ("model", "add", "empty.safetensors", "empty")
    assert "empty.safetensors holds no tensors" in models.fails(2, *words)


def test_a_tensor_of_another_type_is_not_called_reshaped(models: Shell) -> None:
    changed = {**tensors(1), "layers.0.weight": np.ones((40, 40), "f2"),
               "layers.1.weight": np.ones((8, 8), "f2")}  # fmt: skip
    write_safetensors(stored(changed), models.folder / "a.safetensors", overwrite=True)
    models("model", "add", "a.safetensors", "a", "--replace")
    models("commit", "-m", "Half")
    assert "1 tensor reshaped, 1 retyped" in models("model", "diff", "HEAD~1:a", "a")


def test_the_folder_of_a_workspace_stands_for_its_repository(models: Shell) -> None:
    listed = models("model", "ls")
    assert models("model", "ls", "--repo", str(models.folder)) == listed
    opened = tr.open(models.folder)
    assert opened.url == str(models.folder / ".tensorrepo/store")
    assert "base" in opened.models()
    (models.folder / "inner").mkdir()
    told = models.fails(3, "model", "ls", "--repo", str(models.folder / "inner"))
    assert f"whose repository is {models.folder / '.tensorrepo/store'}" in " ".join(told.split())


def test_a_diff_tells_how_far_layers_moved(models: Shell) -> None:
    shown = models("model", "diff", "a", "b")
    assert "4 tensors changed" in shown
    assert "cosine 1.000000" in shown
    assert "layers by movement:" in shown
    found = models.json("model", "diff", "base", "a")
    assert found["layers"][0]["l2"] == 40
    assert models.run("model", "diff", "a", "b", "--exit-code").exit_code == 1
    assert models.run("model", "diff", "a", "a", "--exit-code").exit_code == 0
    assert "cosine" not in models("model", "diff", "a", "b", "--names-only")


def test_of_many_tensors_the_first_are_shown_and_the_rest_counted(models: Shell) -> None:
    for name, value in ("many", 0), ("moved", 1):
        arrays = {f"w{at:02}.weight": np.full((2, 2), value, "f4") for at in range(40)}
        np.savez(models.folder / f"{name}.npz", **arrays)
        models("add", f"{name}.npz", "--model", name)
    models("commit", "-m", "Many")
    compare = ("model", "diff", "many", "moved")
    shown, full = models(*compare), models(*compare, "--full")
    assert shown.count("~ w") == 20
    assert "... and 20 more (--full)" in shown
    assert "and 30 more" in shown  # layers
    assert (full.count("~ w"), full.count("  w"), "more" in full) == (40, 40, False)
    assert len(models.json(*compare)["changed"]) == 40
    assert models(*compare, "--names-only", "--full").count("~ w") == 40
    described, whole = models("model", "desc", "many"), models("model", "desc", "many", "--full")
    assert "w19" in described
    assert "w20" not in described
    assert described.splitlines()[-1] == "... and 20 more (--full)"
    assert "w39" in whole
    assert len(models.json("model", "desc", "many")["layers"]) == 40


def test_a_model_is_cut_and_committed(models: Shell) -> None:
    words = ("model", "slice", "a", "--first", "layers.0", "--last", "layers.1")
    assert "2 tensors" in models(*words, "--as", "half")
    assert "exists" in models.fails(4, *words, "--as", "half")
    assert "is that already" in models(*words, "--as", "half", "--replace")
    assert models.json("model", "desc", "half", "--staged")["tensors"] == 2
    models("commit", "-m", "Half")
    (edge,) = models.json("model", "desc", "half")["lineage"]
    assert (edge["relation"], edge["path"]) == ("sliced-from", "models/a")
    assert "no node 'layers.9'" in models.fails(
        3, "model", "slice", "a", "--first", "layers.9", "--last", "layers.1", "--as", "x"
    )


@pytest.mark.parametrize(
    ("words", "value"),
    [
        (("a", "b"), 2),
        (("a", "b", "--weights", "3,1"), 1.5),
        (("a", "b", "--method", "slerp"), 2),
        (("a", "b", "--method", "ties", "--base", "base", "--density", "1"), 2),
        (("a", "b", "--method", "task-arithmetic", "--base", "base", "--scale", "0.5"), 2),
    ],
)
def test_models_are_merged_and_made_again(
    models: Shell, words: tuple[str, ...], value: float
) -> None:
    told = models.run("model", "merge", *words, "--as", "mix")
    assert told.exit_code == 0
    assert "1 tensor without a mean taken from the first model: steps" in told.stderr
    models("commit", "-m", "Mix")
    mix = models.repository().model("mix")
    assert mix["layers.0.weight"][0, 0] == value
    assert mix["steps"][0] == 1
    assert "all tensors are equal" in models("model", "merge", "--remake", "mix")
    assert models.json("model", "merge", "--remake", "mix")["equal"] is True


def test_an_adapter_is_kept_with_its_base_and_put_into_it(models: Shell) -> None:
    low, high = np.ones((2, 40), "f4"), np.full((40, 2), 3, "f4")
    tensors = {"layers.1.lora_A.weight": low, "layers.1.lora_B.weight": high}
    write_safetensors(stored(tensors), models.folder / "lora.safetensors")
    words = ("model", "add", "lora.safetensors", "lora", "--adapter-of", "a")
    assert "--adapter-scale" in models.fails(2, *words)
    models(*words, "--adapter-scale", "0.5")
    models("commit", "-m", "Adapter")
    shown = models("model", "desc", "lora")
    assert "adapter-of models/a" in shown
    assert "lora, rank 2, scale 0.5, 1 tensor of layers" in shown
    models("model", "merge", "--adapter", "lora", "--as", "tuned")
    models("commit", "-m", "Tuned")
    tuned = models.repository().model("tuned")
    assert (tuned["layers.1.weight"][0, 0], tuned["layers.0.weight"][0, 0]) == (4, 1)
    assert "made again by adapter" in models("model", "merge", "--remake", "tuned")
    assert "is no adapter" in models.fails(2, "model", "merge", "--adapter", "a", "--as", "x")


def test_a_merge_is_made_again_after_its_parents_are_gone_from_the_branch(models: Shell) -> None:
    models("model", "merge", "a", "b", "--as", "mix")
    models("commit", "-m", "Mix")
    models("rm", "a")
    models("commit", "-m", "Less")
    assert "equal" in models("model", "merge", "--remake", "mix")


WRONG_MERGES = [
    (2, ("a", "b"), "--as NAME"),
    (2, ("a", "b", "--as", "x", "--weights", "1;2"), "numbers with commas"),
    (2, ("a", "--as", "x"), "2 or more"),
    (2, ("a", "b", "--as", "x", "--method", "median"), "no method"),
    (2, ("a", "points", "--as", "x"), "not a model"),
    (3, ("a", "gone", "--as", "x"), "no entry 'gone'"),
    (2, ("--remake", "a"), "no recipe"),
    (2, ("--remake", "a", "--as", "x"), "makes no new one"),
]


def test_a_merge_that_cannot_be_says_why(models: Shell) -> None:
    models("add", "points.npz", "--dataset", "points")
    models("commit", "-m", "Points")
    before = models.snapshot()
    for code, words, told in WRONG_MERGES:
        assert told in models.fails(code, "model", "merge", *words), words
    assert models.snapshot() == before


def test_a_whole_model_is_verified_and_a_damaged_one_is_told_apart(models: Shell) -> None:
    assert "is whole: 4 tensors, 1 file," in models("model", "verify", "a")
    damage_packs(models.folder / ".tensorrepo/store")
    assert "damaged" in models.fails(5, "model", "verify", "a")


@pytest.mark.parametrize(
    ("strategy", "expected"), [("average", 6), ("a=ours", 5), ("models/a=theirs", 7)]
)
def test_branches_that_tuned_one_model_are_merged_by_a_strategy(
    models: Shell, strategy: str, expected: float
) -> None:
    models("branch", "side")
    for branch, value in (("main", 5), ("side", 7)):
        models("switch", branch)
        changed = {**tensors(1), "layers.0.weight": np.full((40, 40), value, "f4")}
        write_safetensors(stored(changed), models.folder / "a.safetensors", overwrite=True)
        models("model", "add", "a.safetensors", "a", "--replace")
        models("commit", "-m", f"Tune on {branch}")
    models("switch", "main")
    told = models.fails(4, "merge", "side")
    assert "tensor 'layers.0.weight' changed on both sides: ours moved 100.00% by L2 160" in told
    assert "no strategy 'median'" in models.fails(2, "merge", "side", "--strategy", "a=median")
    assert "no entry" in models.fails(3, "merge", "side", "--strategy", "gone=ours")
    models("merge", "side", "--strategy", strategy)
    assert models.repository().model("a")["layers.0.weight"][0, 0] == expected


def test_an_architecture_is_built_of_what_donors_have(models: Shell) -> None:
    shapes = {
        "layers.0.weight": {"type": "F32", "shape": [40, 40]},
        "head.weight": {"type": "F32", "shape": [5, 40]},
    }
    (models.folder / "new.json").write_text(json.dumps(shapes))
    words = ("model", "construct", "new.json", "--from", "b", "--as", "new")
    assert "nobody has: 'head.weight'" in models.fails(2, *words)
    told = models.run(*words, "--init", "ones")
    assert "1 of 2 tensors are those of models/b" in told.stderr
    models("commit", "-m", "New")
    made = models.repository().model("new")
    assert (made["layers.0.weight"][0, 0], made["head.weight"][0, 0]) == (3, 1)


def test_a_graph_that_was_printed_is_an_architecture(models: Shell) -> None:
    (models.folder / "a.json").write_text(models("model", "desc", "a", "--nodes", "--json"))
    models("model", "construct", "a.json", "--from", "b", "--as", "again")
    assert models.json("model", "desc", "again", "--staged")["tensors"] == 4


@pytest.mark.together
@pytest.mark.parametrize(
    ("text", "told"),
    [("no json", "no JSON"), ("[1]", "expected a graph"), ('{"nodes": 3}', "no graph"),
     ('{"w": 1}', "type and shape")],
)  # fmt: skip
def test_a_file_that_is_no_architecture_is_refused(models: Shell, text: str, told: str) -> None:
    (models.folder / "bad.json").write_text(text)
    assert told in models.fails(2, "model", "construct", "bad.json", "--as", "x")
    assert "give the architecture" in models.fails(2, "model", "construct", "--as", "x")
    assert "gone.json" in models.fails(3, "model", "construct", "gone.json", "--as", "x")
