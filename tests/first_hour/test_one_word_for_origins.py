"""One word, derived_from, says what datasets, models and runs came from, in SDK and shell."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import tensorrepo as tr
from tests.support.processes.shell import Shell

WEIGHTS = {"w": np.ones(4, "f4")}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> tr.Repository:
    repo = tr.init(str(tmp_path_factory.mktemp("origins")), author="Ada <ada@example.org>")
    with repo.transaction("main") as tx:
        tx.create_dataset("points", columns={"x": "int64"}).append({"x": np.arange(9)})
        tx.save_model("net", WEIGHTS)
    return repo


@pytest.mark.parametrize(
    ("origin", "relation", "path"),
    [
        (lambda repo: repo.dataset("points"), "trained-on", "datasets/points"),
        (lambda repo: repo.dataset("points").stream(batch_size=3), "trained-on", "datasets/points"),
        (lambda _: "main:datasets/points", "trained-on", "datasets/points"),
        (lambda repo: [repo.model("net")], "derived-from", "models/net"),
        (lambda _: "main:models/net", "derived-from", "models/net"),
        (lambda _: "https://example.org/w?key=1", "derived-from", "https://example.org/w"),
    ],
)
def test_a_model_says_what_it_came_from(
    repo: tr.Repository, origin: Any, relation: str, path: str
) -> None:
    with repo.transaction("main") as tx:
        tx.save_model("made", WEIGHTS, derived_from=origin(repo))
    (edge,) = repo.model("made").lineage()
    assert (edge.relation, edge.path) == (relation, path)


def test_rows_and_runs_take_the_same(repo: tr.Repository) -> None:
    with repo.transaction("main") as tx:
        draft = tx.create_dataset(
            "copy", columns={"x": "int64"}, derived_from="main:datasets/points"
        )
        draft.append({"x": np.arange(3)}, derived_from=["main:models/net"])
    origins = {step.origin.path for step in repo.lineage("datasets/copy").ancestors()}
    assert origins == {"datasets/points", "models/net"}
    with repo.run(
        "exp1", derived_from=["main:datasets/points", "https://example.org/a.csv"]
    ) as run:
        pass
    assert [edge.path for edge in run.record.inputs] == [
        "datasets/points", "https://example.org/a.csv"
    ]  # fmt: skip
    with pytest.raises(tr.InvalidInputError, match=r"derived_from takes .* got 'points'"):
        repo.transaction().save_model("x", WEIGHTS, derived_from="points")


def test_the_shell_has_the_same_word(shell: Shell) -> None:
    (shell.folder / "a.csv").write_text("x\n1\n2\n")
    save_file(WEIGHTS, shell.folder / "net.safetensors")
    shell("add", "a.csv", "--dataset", "a")
    shell("commit", "-m", "Rows")
    shell("add", "net.safetensors", "--model", "net", "--derived-from", "a")
    shell(
        "add",
        "a.csv",
        "--dataset",
        "b",
        "--derived-from",
        "a",
        "--derived-from",
        "https://example.org/y",
    )
    shell("commit", "-m", "Made of them")
    assert "trained-on datasets/a" in shell("lineage", "models/net")
    told = shell("lineage", "datasets/b")
    assert "derived-from datasets/a" in told
    assert "derived-from https://example.org/y" in told
    assert "no" in shell.fails(
        3, "add", "net.safetensors", "--model", "o", "--derived-from", "nope"
    )
