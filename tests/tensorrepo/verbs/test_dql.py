"""DQL carried out: models by conditions, cuts, constructions and evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.formats.model.graph.graph import Graph, GraphNode, Input, Parameter, make_graph
from tensorrepo.repo.errors import ConflictError, InvalidInputError, NotFoundError

SHAPES = {"conv1": (8, 3, 3, 3), "conv2": (8, 8, 3, 3), "fc": (10, 32)}


def network(pool: str, seed: int = 0) -> tuple[dict[str, Any], Graph]:
    """in -> conv1 -> pool1 -> conv2 -> pool2 -> fc, as torch.export would call them."""
    rng = np.random.default_rng(seed)
    tensors = {
        f"{name}.weight": rng.normal(size=shape).astype("f4") for name, shape in SHAPES.items()
    }

    def with_weight(name: str, op: str, before: str) -> GraphNode:
        parameter = Parameter("weight", f"{name}.weight", "F32", SHAPES[name])
        return GraphNode(name, op, {"stride": [1, 1]}, (Input("x", before),), (parameter,))

    kinds = {"pool1": "max", "pool2": pool}
    nodes = [
        GraphNode("in", "input", {"index": 0}),
        with_weight("conv1", "aten.conv2d.default", "in"),
        *(
            GraphNode(
                name, f"aten.{kinds[name]}_pool2d.default", {"k": 2}, (Input("x", f"conv{at}"),)
            )
            for at, name in enumerate(kinds, 1)
        ),
        with_weight("conv2", "aten.conv2d.default", "pool1"),
        with_weight("fc", "aten.linear.default", "pool2"),
    ]
    return tensors, make_graph("export", nodes, [Input("0", "fc")])


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    made = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    for at, (name, pool) in enumerate([("alex_v1", "avg"), ("alex_v2", "max"), ("vgg", "avg")]):
        tensors, graph = network(pool, at)
        with made.transaction(message=f"add {name}") as tx:
            tx.save_model(name, tensors, graph=graph, metrics={"loss": at / 10})
    with made.transaction(message="without a graph") as tx:
        tx.save_model("plain", {"conv1.weight": np.ones((2, 3, 3, 3), "f4")})
        tx.create_dataset("test", {"x": [1.0, 2.0]})
    return made


def found(repo: tr.Repository, where: str, **options: Any) -> list[str]:
    return [one.name for one in repo.dql(f"select m {where}", **options)]


@pytest.mark.together
@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("", ["alex_v1", "alex_v2", "plain", "vgg"]),
        ('where m.name like "alex%"', ["alex_v1", "alex_v2"]),
        ('where m.name like "alex_v_" and not m.name = "alex_v1"', ["alex_v2"]),
        ('where m.name in ["vgg", "x"]', ["vgg"]),
        ('where m.path = "models/vgg" or m.message like "%alex_v1"', ["alex_v1", "vgg"]),
        ('where m["loss"] < 0.15', ["alex_v1", "alex_v2"]),
        ('where not m["loss"] < 0.15', ["plain", "vgg"]),
        ('where m["loss"] in [0.2, 7]', ["vgg"]),
        ('order by m["loss"] desc limit 2', ["vgg", "alex_v2"]),
        ('order by m["loss"]', ["alex_v1", "alex_v2", "vgg", "plain"]),
        ("where m.parameters = 54", ["plain"]),
        ("where m.tensors >= 3 and m.bytes > 100", ["alex_v1", "alex_v2", "vgg"]),
        ('where m.creation_time > "2015-11-22"', ["alex_v1", "alex_v2", "plain", "vgg"]),
        ('where m.creation_time < "yesterday"', []),
        ('where m.author like "Ada%" and m.name > "p"', ["plain", "vgg"]),
        ('where m["conv[1,2]"].next has POOL("AVG")', ["alex_v1", "vgg"]),
        ('where m["conv1"].next has POOL("AVG")', []),
        ('where m["conv1"].next.next.next has POOL("AVG")', ["alex_v1", "vgg"]),
        ('where m["fc"].prev has POOL("MAX")', ["alex_v2"]),
        ('where m["*conv2d*"] has CONV()', ["alex_v1", "alex_v2", "plain", "vgg"]),
        ('where m["conv*"] has CONV("conv2", stride=[1, 1])', ["alex_v1", "alex_v2", "vgg"]),
        ('where m["conv*"] has CONV("conv2", stride=[2, 1])', []),
        ('where m["*"] has POOL("MAX", k=2) and m["loss"] > 0', ["alex_v2", "vgg"]),
    ],
)
def test_conditions_choose(repo: tr.Repository, where: str, expected: list[str]) -> None:
    assert found(repo, where) == expected


def test_models_of_a_commit_or_of_every_one(repo: tr.Repository) -> None:
    repo.create_tag("old")
    with repo.transaction(message="tuned") as tx:
        tensors, graph = network("max", 9)
        tx.save_model("vgg", tensors, graph=graph, metrics={"loss": 0.01})
        tx.remove("models/plain")
    assert found(repo, 'order by m["loss"] limit 2') == ["alex_v1", "vgg"]
    assert found(repo, 'at "old" where m.name = "plain"') == ["plain"]
    assert found(repo, 'where m.name = "plain"', ref="old") == ["plain"]
    every = repo.dql('select m at every where m.name = "vgg" and m["loss"] < 1')
    assert [one.metrics["loss"] for one in every] == [0.01, 0.2]
    assert every[0].commit != every[1].commit
    assert str(every).splitlines()[0].split() == [
        "model", "digest", "created", "parameters", "loss",
    ]  # fmt: skip
    with pytest.raises(NotFoundError, match="nothere"):
        repo.dql('select m at "nothere"')


@pytest.mark.soak
def test_a_slice_is_made_of_each_model(repo: tr.Repository) -> None:
    made = repo.dql(
        'slice half from m where m.name like "alex%" '
        'mutate half.input = m["conv1"] and half.output = m["pool2"]'
    )
    assert [one.path for one in made] == ["models/half/alex_v1", "models/half/alex_v2"]
    model = repo.model("half/alex_v1")
    assert sorted(model) == ["conv1.weight", "conv2.weight"]
    assert model.lineage()[0].relation == "sliced-from"
    assert repo.log()[0].commit.message.startswith("slice half from m where")


def test_a_construction_inserts_behind_each_node_that_fits(repo: tr.Repository) -> None:
    made = repo.dql(
        'construct new from m where m.name like "alex%" and m["conv*($1)"].next has POOL("AVG") '
        'mutate m["conv*($1)"].insert = RELU("relu$1") as "$name-relu"'
    )
    assert [one.path for one in made] == ["models/alex_v1-relu"]
    graph = repo.model("alex_v1-relu").graph()
    assert graph.node("pool1").inputs == (Input("x", "relu1"),)
    assert graph.node("relu2").inputs == (Input("input", "conv2"),)
    one, other = repo.model("alex_v1"), repo.model("alex_v1-relu")
    assert {name: one.spec(name).fingerprint for name in one} == {
        name: other.spec(name).fingerprint for name in other
    }


def test_a_construction_replaces_and_deletes(repo: tr.Repository) -> None:
    repo.dql(
        'construct new from m where m.name = "vgg" mutate m["fc"].replace = '
        'LINEAR("head", weight=[3, 32], bias=[3], scale=2) and m["pool1"].delete init "ones"'
    )
    model = repo.model("new/vgg")
    assert np.array_equal(model["head.weight"], np.ones((3, 32), "f4"))
    assert "fc.weight" not in model
    graph = model.graph()
    assert graph.node("head").config == {"scale": 2}
    assert graph.node("conv2").inputs == (Input("x", "conv1"),)
    assert graph.source == "given"


@pytest.mark.together
@pytest.mark.parametrize(
    ("statement", "error", "words"),
    [
        ('slice h from m where m.name = "x" {cut}', NotFoundError, "no model is meant by: m where"),
        ('slice h from m where m.name = "vgg" {cut} as "vgg"', ConflictError, "models/vgg exists"),
        ('slice h from m where m["loss"] < 9 {cut} as "x"', InvalidInputError, "3 new models"),
        (
            (
                'slice h from m where m.name = "vgg" '
                'mutate h.output = m["fc"] and h.input = m["conv*"]'
            ),
            InvalidInputError,
            r"2 nodes 'conv\*'.*: conv1, conv2",
        ),
        (
            'slice h from m where m.name = "vgg" mutate h.input = m["cnv1"] and h.output = m["fc"]',
            NotFoundError,
            "Did you mean conv1",
        ),
        (
            'construct c from m where m.name = "vgg" mutate m["dense*"].delete',
            NotFoundError,
            "has no node 'dense",
        ),
        (
            'construct c from m where m.name = "vgg" mutate m["conv*"].insert = RELU("r")',
            ConflictError,
            "'r' already",
        ),
        (
            'construct c from m where m.name = "vgg" mutate m["conv1"].insert = RELU("r$1")',
            InvalidInputError,
            r"has no \$1",
        ),
        ('select m where m["[(]"] has X()', InvalidInputError, r"\[\(\] is none of"),
        ('evaluate e from m keep top(1, e["loss"])', InvalidInputError, "metric=function"),
        ('evaluate e from m vary config.x in [1] keep e["x"] < 1', InvalidInputError, "metric="),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_made(
    repo: tr.Repository, statement: str, error: type[Exception], words: str
) -> None:
    before = repo.entries()
    cut = 'mutate h.input = m["conv1"] and h.output = m["fc"]'
    with pytest.raises(error, match=words):
        repo.dql(statement.replace("{cut}", cut))
    assert repo.entries() == before


def test_names_may_be_taken_when_that_is_said(repo: tr.Repository) -> None:
    text = 'slice h from m where m.name = "vgg" mutate h.input = m["conv1"] and h.output = m["fc"]'
    repo.dql(text)
    with pytest.raises(ConflictError, match="replace=True"):
        repo.dql(text)
    repo.dql(text, replace=True)


def norm(model: Any, _data: Any) -> float:
    return float(sum(np.abs(model[name]).sum() for name in model))


def scaled(model: Any, config: dict[str, Any], _data: Any) -> dict[str, Any]:
    factor = config["lr"] * config.get("iterations", 1)
    return {name: model[name] * np.float32(factor) for name in model}


def test_an_evaluation_scores_what_a_statement_means(repo: tr.Repository) -> None:
    answer = repo.dql(
        'evaluate e from m where m.name like "alex%" keep top(1, e["norm"] asc)',
        data="test", metric=norm,
    )  # fmt: skip
    expected = {name: norm(repo.model(name), None) for name in ("alex_v1", "alex_v2")}
    assert answer.kept[0].candidate.model.name == min(expected, key=expected.__getitem__)
    condition = f'evaluate e from m keep e["norm"] > {max(expected.values()) - 1e-3}'
    kept = repo.dql(condition, data="test", metric=norm).kept
    assert max(expected, key=expected.__getitem__) in {one.candidate.model.name for one in kept}


@pytest.mark.soak
def test_an_evaluation_trains_with_what_a_statement_varies(repo: tr.Repository) -> None:
    text = (
        'evaluate e from m where m.name = "vgg" vary config.lr in [1, 3] and config.net.x in [0] '
        'keep top(1, e["norm"], 10)'
    )
    answer = repo.dql(text, data="test", metric=norm, train=scaled, name="grid")
    assert answer.kept[0].candidate.config == {"lr": 3, "net.x": 0, "iterations": 10}
    assert np.allclose(
        repo.model(answer.kept[0].model.removeprefix("models/"))["fc.weight"],
        repo.model("vgg")["fc.weight"] * 30,
    )
    with pytest.raises(InvalidInputError, match="give train=function"):
        repo.dql(text, data="test", metric=norm)
    with pytest.raises(InvalidInputError, match=r"no argument 'metrik'\. Did you mean metric"):
        repo.dql(text, data="test", metrik=norm)
    with pytest.raises(InvalidInputError, match="needs metric="):
        repo.dql(text, data="test")
