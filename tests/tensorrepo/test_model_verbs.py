"""What the SDK does with models, in a repository on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tests.support.builders.graphs import small_network


def weights(value: float) -> dict[str, Any]:
    return {f"layers.{at}.weight": np.full((30, 30), value, "f4") for at in range(3)}


@pytest.fixture
def repo(tmp_path: Path) -> Any:
    """A repository with models a, b and base, full of 1, 3 and 0."""
    opened = tr.init(tmp_path / "r", author="Ada <ada@example.org>")
    with opened.transaction("main") as tx:
        for name, value in {"a": 1, "b": 3, "base": 0}.items():
            tx.save_model(name, weights(value))
    return opened


def test_models_are_merged_and_made_again(repo: Any) -> None:
    parents = [repo.model("a"), repo.model("b")]
    with repo.transaction("main") as tx:
        tx.merge_models("mean", parents, weights=[3, 1], metrics={"acc": 0.5})
        tx.merge_models("both", parents, "task-arithmetic", base=repo.model("base"))
    mean, both = repo.model("mean"), repo.model("both")
    assert (mean["layers.0.weight"] == 1.5).all()
    assert (both["layers.0.weight"] == 4).all()
    assert (mean.metrics, mean.remake(), both.remake()) == ({"acc": 0.5}, (), ())
    assert [edge.relation for edge in both.lineage()] == [
        "merged-from", "merged-from", "merged-onto",
    ]  # fmt: skip


def test_an_adapter_is_saved_with_its_base_and_put_into_it(repo: Any) -> None:
    lora = {"layers.0.lora_A.weight": np.ones((1, 30)), "layers.0.lora_B.weight": np.ones((30, 1))}
    config = {"adapter_config": {"lora_alpha": 2}}
    with repo.transaction("main") as tx:
        tx.save_model("lora", lora, adapter_of="main:models/a", metadata=config)
    found = repo.model("lora").adapter()
    assert (found.method, found.changes["layers.0.weight"].rank) == ("lora", 1)
    with repo.transaction("main") as tx:
        tx.merge_models("tuned", [repo.model("lora")], "adapter")
    tuned = repo.model("tuned")
    assert (tuned["layers.0.weight"] == 3).all()
    assert (tuned["layers.1.weight"] == 1).all()
    assert tuned.remake() == ()
    assert repo.model("a").adapter() is None
    with (
        pytest.raises(tr.InvalidInputError, match="adapter_of="),
        repo.transaction("main") as tx,
    ):
        tx.merge_models("x", [repo.model("a")], "adapter")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [0.5, float("-inf")]])
def test_a_metric_by_which_nothing_can_be_ranked_is_refused(repo: Any, value: Any) -> None:
    with (
        pytest.raises(tr.InvalidInputError, match="expected finite numbers"),
        repo.transaction("main") as tx,
    ):
        tx.save_model("x", weights(1), metrics={"loss": value})


def test_a_model_without_tensors_is_refused_unless_it_has_files(repo: Any) -> None:
    with repo.transaction("main") as tx:
        with pytest.raises(tr.InvalidInputError, match="holds no tensors"):
            tx.save_model("x", {})
        tx.save_model("words", {}, files={"tokenizer.json": b"{}"})
    assert repo.model("words").files == ("tokenizer.json",)


def test_a_model_that_was_not_merged_is_not_made_again(repo: Any) -> None:
    with pytest.raises(tr.InvalidInputError, match="no recipe"):
        repo.model("a").remake()


def test_a_part_is_cut_out_and_an_architecture_built(repo: Any) -> None:
    with repo.transaction("main") as tx:
        tx.slice_model("part", repo.model("a"), "layers.1", "layers.2")
        target = {**weights(0), "head.weight": np.zeros((5, 30), "f4")}
        tx.construct_model("deeper", target, [repo.model("b")], rule="ones")
    assert len(repo.model("part")) == 2
    assert (repo.model("deeper")["layers.0.weight"] == 3).all()
    assert (repo.model("deeper")["head.weight"] == 1).all()


@pytest.mark.soak
def test_a_traced_graph_is_kept_with_the_model(repo: Any) -> None:
    import torch

    module = small_network()
    graph = tr.graph(module, (torch.zeros(1, 1, 8, 8),))
    with repo.transaction("main") as tx:
        tx.save_model("net", module.state_dict(), graph=graph)
        tx.construct_model("new", tr.graph(small_network(layers=3)), rule="default")
    assert repo.model("net").graph() == graph
    assert repo.model("net").describe().graph == "export"
    assert repo.model("new").graph().source == "fx"
    assert repo.model("a").graph().source == "names"
    assert repo.model("net").verify().faults == ()


def test_a_diff_ranks_layers_and_may_read_nothing(repo: Any) -> None:
    found = repo.model("a").diff(repo.model("b"))
    assert [round(layer.relative, 6) for layer in found.layers] == [2, 2, 2]
    assert found.changed[0].cosine == pytest.approx(1)
    assert repo.model("a").diff(repo.model("b"), measure=False).layers == ()


def test_two_branches_that_tuned_different_layers_are_joined_by_a_merge(repo: Any) -> None:
    repo.create_branch("side")
    for branch, name in (("main", "layers.0.weight"), ("side", "layers.2.weight")):
        with repo.transaction(branch) as tx:
            tx.save_model("a", {**weights(1), name: np.full((30, 30), 7, "f4")})
    repo.merge("side")
    joined = repo.model("a")
    assert [float(joined[name][0, 0]) for name in joined] == [7, 1, 7]
    assert joined.metrics == {}


@pytest.mark.parametrize(
    ("strategy", "expected"), [("average", 6), ("ours", 5), ({"models/a": "theirs"}, 7)]
)
def test_a_contested_tensor_is_settled_by_the_strategy_of_its_path(
    repo: Any, strategy: Any, expected: float
) -> None:
    repo.create_branch("side")
    for branch, value in (("main", 5), ("side", 7)):
        with repo.transaction(branch) as tx:
            tx.save_model("a", {**weights(1), "layers.0.weight": np.full((30, 30), value, "f4")})
    with pytest.raises(tr.ConflictError) as met:
        repo.merge("side")
    assert "by L2 120" in met.value.conflicts[0].details[0]["line"]
    repo.merge("side", strategy=strategy)
    assert repo.model("a")["layers.0.weight"][0, 0] == expected
