"""DQL, as somebody types it."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.processes.shell import Shell

USAGE = 2
SCORE = """
def size(model, data):
    return float(sum(model[name].sum() for name in model)) + len(data)

def broken(model, data):
    raise ValueError("no")

def train(model, config, data):
    return {name: model[name] * config["by"] + (0 if data is None else len(data)) for name in model}
"""


@pytest.fixture
def models(shell: Shell) -> Shell:
    """A workspace with three models and a dataset, committed."""
    repo = shell.repository()
    for at, name in enumerate(["alex", "alexa", "vgg"]):
        tensors = {
            "conv1.weight": np.full((2, 3, 3, 3), at + 1, "f4"),
            "fc.weight": np.full((4, 2), at, "f4"),
        }
        with repo.transaction("main", message="models") as tx:
            tx.save_model(name, tensors, metrics={"loss": at / 10})
    with repo.transaction("main", message="rows") as tx:
        tx.create_dataset("test", {"x": [1, 2, 3]})
    (shell.folder / "score.py").write_text(SCORE)
    return shell


def test_models_are_listed(models: Shell) -> None:
    found = models.records("dql", 'select m where m.name like "alex%" order by m["loss"] desc')
    assert [(row["path"], row["metrics"]) for row in found] == [
        ("models/alexa", {"loss": 0.1}),
        ("models/alex", {"loss": 0.0}),
    ]
    done = models.run("dql", 'select m where m["conv1"].next has FULL()')
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "model", "models/alex", "models/alexa", "models/vgg",
    ]  # fmt: skip
    assert "3 models" in done.stderr


def test_a_statement_comes_from_standard_input(models: Shell) -> None:
    models.piped = b'select m where m.name = "vgg"'
    assert [row["path"] for row in models.records("dql", "-")] == ["models/vgg"]


def test_new_models_are_staged(models: Shell) -> None:
    cut = (
        'slice h from m where m.name = "vgg" mutate h.input = m["conv1"] and h.output = m["conv1"]'
    )
    (made,) = models.records("dql", cut)
    assert (made["path"], made["tensors"]) == ("models/h/vgg", 1)
    models("commit", "-m", "half")
    assert "say another name by as" in models.fails(4, "dql", cut)
    models("dql", cut.replace("conv1", "fc"), "--replace")
    built = (
        'construct c from m where m.name like "alex%" mutate m["conv*($1)"].insert = RELU("r$1")'
    )
    assert [row["path"] for row in models.records("dql", built)] == [
        "models/c/alex", "models/c/alexa",
    ]  # fmt: skip


def test_models_are_evaluated_by_a_function_of_a_file(models: Shell) -> None:
    words = ("--over", "test", "--score", "score.py:size")
    found = models.records("dql", 'evaluate e from m keep top(1, e["size"])', *words)
    assert [(row["model"], row["kept"]) for row in found] == [
        ("models/vgg", True), ("models/alexa", False), ("models/alex", False),
    ]  # fmt: skip
    assert found[2]["metrics"] == {"size": 57.0}
    assert models.records("dql", 'evaluate e from m keep e["size"] < 60', *words)[2]["kept"]
    told = models("dql", 'evaluate e from m keep top(1, e["size"])', *words)
    assert "3 candidates, 1 kept" in told
    varied = (
        'evaluate e from m where m.name = "vgg" vary config.by in [1, 2] keep top(1, e["size"])'
    )
    words = (*words, "--train", "score.py:train", "--train-data", "main:test")
    assert [row["config"] for row in models.records("dql", varied, *words)] == [
        {"by": 2}, {"by": 1},
    ]  # fmt: skip


@pytest.mark.soak
def test_a_failure_is_told_by_candidate(models: Shell) -> None:
    words = ("--over", "test", "--score", "score.py:broken")
    found = models.records("dql", 'evaluate e from m keep top(1, e["broken"])', *words)
    assert {row["error"] for row in found} == {"ValueError: no"}


@pytest.mark.soak
def test_bounds_are_told(models: Shell) -> None:
    words = ("--over", "test", "--score", "score.py:size", "--planes", "estimates")
    found = models.records("dql", 'evaluate e from m keep top(1, e["size"])', *words)
    assert found[0]["bounds"] == [found[0]["metrics"]["size"]] * 2


EVALUATE = 'evaluate e from m keep top(1, e["size"])'


@pytest.mark.together
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("selct m",), "DQL, line 1, column 1: 'selct' was not expected"),
        (("",), "the text ends"),
        ((EVALUATE,), "evaluate needs --over DATASET"),
        ((EVALUATE, "--over", "test", "--score", "none.py:size"), "expected FILE.py:NAME"),
        ((EVALUATE, "--over", "test", "--score", "score.py:none"), "no function 'none'"),
        ((EVALUATE, "--over", "vgg", "--score", "score.py:size"), "expected a dataset or a view"),
        ((EVALUATE, "--over", "test", "--score", "bad.py:x"), "bad.py does not run: SyntaxError"),
        (
            (EVALUATE, "--over", "test", "--score", "score.py:size", "--planes", "x"),
            "progressive",
        ),
    ],
)
def test_what_is_wrong_is_told_without_a_traceback(
    models: Shell, words: tuple[str, ...], told: str
) -> None:
    (models.folder / "bad.py").write_text("def x(:\n")
    assert told in " ".join(models.fails(USAGE, "dql", *words).split())


def test_where_it_is_wrong_is_told_to_programs_too(models: Shell) -> None:
    failure = models.error(USAGE, "dql", "select m where")
    assert failure["kind"] == "invalid-input"
    assert "line 1, column 15" in failure["message"]
