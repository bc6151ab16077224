"""Questions about the architectures of all stored models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.catalog.catalog import Catalog
from tensorrepo.formats.model.graph.graph import Graph, GraphNode, Input, Parameter, make_graph
from tensorrepo.repo.errors import InvalidInputError, NotFoundError
from tensorrepo.repository import Repository
from tensorrepo.sdk import init
from tests.support.builders.models import stored
from tests.support.processes.shell import Shell

WIDTH = 4


def chain(*ops: str) -> Graph:
    """A graph of these operations one behind the other; each has a tensor ``<name>.weight``."""
    nodes = [GraphNode("input", "input")]
    for at, op in enumerate(ops):
        parameter = Parameter("weight", f"{op}{at}.weight", "F32", (WIDTH,))
        taken = (Input("0", nodes[-1].name),)
        nodes.append(GraphNode(f"{op}{at}", op, {}, taken, (parameter,)))
    return make_graph("given", nodes, [Input("0", nodes[-1].name)])


def weights(graph: Graph, value: float) -> dict[str, Any]:
    return {name: np.full(WIDTH, value, "f4") for name in graph.tensors()}


ARCHITECTURES = {
    "short": (chain("conv", "relu", "head"), 0.7),
    "deep": (chain("conv", "relu", "conv", "relu", "head"), 0.9),
    "other": (chain("linear", "relu", "head"), 0.99),
    "unmeasured": (chain("conv", "relu", "conv"), None),
}


@pytest.fixture
def repository(request: pytest.FixtureRequest) -> Repository:
    made = init(f"memory://architecture-{abs(hash(request.node.nodeid))}", author="Ada <a@b.org>")
    with made.transaction() as tx:
        for name, (graph, accuracy) in ARCHITECTURES.items():
            metrics = None if accuracy is None else {"accuracy": accuracy}
            tx.save_model(name, weights(graph, 1), graph=graph, metrics=metrics)
    return made


@pytest.fixture
def catalog(repository: Repository) -> Catalog:
    return Catalog(repository.context.core, "sqlite://")


def paths(found: Any) -> list[str]:
    return [version.path.removeprefix("models/") for one in found for version in one.versions]


@pytest.mark.together
@pytest.mark.parametrize(
    ("first", "last", "steps", "expected"),
    [
        ("conv", None, None, ["deep", "short", "unmeasured"]),
        ("conv2", None, None, ["deep", "unmeasured"]),
        ("conv", "relu", 1, ["deep", "short", "unmeasured"]),
        ("conv[02]", "head", 2, ["deep", "short"]),
        ("conv0", "head", 2, ["short"]),
        ("relu", "relu", None, ["deep"]),
        ("head", "conv", None, []),
        ("con", None, None, []),
        ("linear|conv2", "head", None, ["deep", "other"]),
    ],
)
def test_models_are_found_by_a_way_through_them(
    catalog: Catalog, first: str, last: str | None, steps: int | None, expected: list[str]
) -> None:
    assert sorted(paths(catalog.find_models(first, last, steps=steps))) == expected


def test_the_way_that_was_found_is_the_shortest(catalog: Catalog) -> None:
    found = {one.versions[0].path: one.nodes for one in catalog.find_models("conv", "head")}
    assert found == {
        "models/short": ("conv0", "relu1", "head2"),
        "models/deep": ("conv2", "relu3", "head4"),
    }


@pytest.mark.together
@pytest.mark.parametrize("pattern", ["(", "a{99999}", "[", "(?<=a)b"])
def test_a_pattern_that_is_none_is_refused(catalog: Catalog, pattern: str) -> None:
    with pytest.raises(InvalidInputError, match="pattern"):
        catalog.find_models(pattern)


def test_the_longest_common_prefix_comes_first(catalog: Catalog) -> None:
    wanted = chain("conv", "relu", "conv", "relu", "conv", "head")
    found = catalog.donors(wanted)
    assert [(path, one.shared) for path, one in zip(paths(found), found, strict=True)] == [
        ("deep", 5), ("unmeasured", 4), ("short", 3), ("other", 1),
    ]  # fmt: skip
    assert {one.nodes for one in found} == {7}


def test_a_metric_decides_between_equal_prefixes(repository: Repository, catalog: Catalog) -> None:
    graph = chain("conv", "relu", "head")
    with repository.transaction() as tx:
        tx.save_model("better", weights(graph, 2), graph=graph, metrics={"accuracy": 0.8})
    assert paths(catalog.donors(graph, metric="accuracy", limit=2)) == ["better", "short"]
    worst = catalog.donors(graph, metric="accuracy", smallest=True, limit=2)
    assert paths(worst) == ["short", "better"]


def test_the_best_of_those_that_share_half_may_come_first(catalog: Catalog) -> None:
    wanted = chain("conv", "relu", "head")
    found = catalog.donors(wanted, metric="accuracy", order_by_metric=True)
    assert [(path, one.value) for path, one in zip(paths(found), found, strict=True)] == [
        ("deep", 0.9), ("short", 0.7),
    ]  # fmt: skip


def test_a_model_is_no_donor_to_itself(repository: Repository, catalog: Catalog) -> None:
    assert paths(catalog.donors(repository.model("deep"), limit=1)) == ["unmeasured"]


def test_donors_of_branching_graphs_share_what_both_branches_lead_to(
    repository: Repository, catalog: Catalog
) -> None:
    def branching(left: str, right: str) -> Graph:
        start = [GraphNode("input", "input"), GraphNode("stem", "conv", {}, (Input("0", "input"),))]
        sides = [
            GraphNode(name, op, {}, (Input("0", "stem"),))
            for name, op in (("l", left), ("r", right))
        ]
        joined = GraphNode("sum", "add", {}, (Input("0", "l"), Input("1", "r")))
        return make_graph("given", [*start, *sides, joined], [Input("0", "sum")])

    with repository.transaction() as tx:
        tx.save_model("y", {"w": np.ones(3)}, graph=branching("relu", "tanh"))
    (found, *_) = catalog.donors(branching("relu", "gelu"))
    assert (paths([found]), found.shared, found.nodes) == (["y"], 3, 5)


def test_models_that_share_a_tensor_are_its_owners(
    repository: Repository, catalog: Catalog
) -> None:
    big = np.arange(100, dtype="f4")
    with repository.transaction() as tx:
        tx.save_model("one", {"a": big, "b": big + 1})
        tx.save_model("two", {"c": big})
    found = catalog.owners(repository.model("one"), "a")
    assert sorted((paths([one])[0], one.tensor) for one in found) == [("one", "a"), ("two", "c")]
    assert paths(catalog.owners(repository.model("one"), "b")) == ["one"]


def test_a_tensor_that_stands_in_the_models_themselves_is_each_ones_own(
    repository: Repository, catalog: Catalog
) -> None:
    assert paths(catalog.owners(repository.model("deep"), "conv0.weight")) == ["deep"]


def test_owners_of_no_tensor_are_not_found(repository: Repository, catalog: Catalog) -> None:
    with pytest.raises(NotFoundError):
        catalog.owners(repository.model("deep"), "nothing")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('{"model_type": "bert"}', "is a config"),
        ("[]", "expected a graph"),
        ("{", "no JSON"),
        ('{"nodes": 3}', "no graph"),
        ('{"w": {"type": "F32"}}', "expected its type and shape"),
    ],
)
def test_a_file_that_describes_no_architecture_is_refused(
    catalog: Catalog, tmp_path: Path, content: str, says: str
) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(InvalidInputError, match=says):
        catalog.donors(path)


@pytest.mark.soak
def test_the_shell_asks_the_same(shell: Shell) -> None:
    from tensorrepo.formats.exchange.checkpoints.safetensors import write_safetensors

    for name, layers in (("a", 2), ("b", 3)):
        tensors = {f"layers.{at}.weight": np.ones((20, 20), "f4") for at in range(layers)}
        write_safetensors(stored(tensors), shell.folder / f"{name}.safetensors")
    shell("model", "add", "a.safetensors", "a")
    shell("commit", "-m", "a")
    assert "layers.0 -> layers.1" in shell("model", "find", "layers.0", "layers.1")
    (donor,) = shell.records("model", "donors", "b.safetensors")
    assert (donor["versions"][0]["path"], donor["shared_nodes"]) == ("models/a", 3)
    described = {"layers.0.weight": {"type": "F32", "shape": [20, 20]}}
    (shell.folder / "small.json").write_text(json.dumps(described))
    assert "2 of 2 nodes" in shell("model", "donors", "small.json")
    (owner,) = shell.records("model", "owners", "a", "layers.1.weight")[:1]
    assert owner["versions"][0]["path"] == "models/a"
    assert "pattern" in shell.fails(2, "model", "find", "(")
    assert "by which" not in shell.fails(3, "model", "donors", "nothing")
