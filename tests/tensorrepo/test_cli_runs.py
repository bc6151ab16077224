"""Runs and lineage on the command line."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from tensorrepo.runs.summary import chart, sparkline
from tests.support.processes.shell import Shell


@pytest.fixture
def trained(full: Shell) -> Shell:
    """Two runs, of which the second trained models/net anew, and rows deleted since."""
    repository = full.repository()
    for name, rate, losses in (("exp1", 0.1, [3.0, 2.0]), ("exp2", 0.01, [2.5, 1.0, math.nan])):
        with repository.run(name, params={"lr": rate, "seed": 1}) as run:
            list(repository.dataset("points").stream(batch_size=2))
            for loss in losses:
                run.log_metric("loss", loss)
            run.save_model("net", {"w": np.full(6, rate, "f4")})
    full("delete", "points", "--row", "0")
    full("commit", "-m", "less")
    return full


def test_runs_are_listed_by_what_they_reached(trained: Shell) -> None:
    listed = [row["name"] for row in trained.records("runs", "ls")]
    best = [row["name"] for row in trained.records("runs", "ls", "--best", "loss")]
    assert listed == ["exp2", "exp1"]
    assert best == ["exp2", "exp1"]
    assert [row["name"] for row in trained.records("runs", "ls", "--best", "loss", "--max")] == [
        "exp1", "exp2",
    ]  # fmt: skip
    assert "1" in trained("runs", "ls", "--best", "loss")


def test_runs_are_filtered(trained: Shell) -> None:
    assert [row["name"] for row in trained.records("runs", "ls", "--param", "lr=0.1")] == ["exp1"]
    assert trained.records("runs", "ls", "--status", "failed") == []
    assert len(trained.records("runs", "ls", "--limit", "1")) == 1
    assert "NAME=VALUE" in trained.fails(2, "runs", "ls", "--param", "lr")


@pytest.mark.soak
@pytest.mark.together
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["runs", "ls", "--status", "done"], 2, "running, finished, failed, interrupted, stale"),
        (["runs", "ls", "--metric", "los"], 3, "loss"),
        (["runs", "ls", "--best", "accuracy"], 3, "loss"),
        (["runs", "compare", "exp1", "exp2", "--metric", "accuracy"], 3, "loss"),
        (["lineage", "models/net", "--relation", "trained"], 3, "Did you mean trained-on"),
        (["lineage", "models/net", "--relation", "xyz"], 3, "adapter-of"),
    ],
)
def test_words_that_nothing_has_are_told_with_those_that_there_are(
    trained: Shell, words: list[str], code: int, said: str
) -> None:
    assert said in trained.fails(code, *words)


def test_a_run_is_shown_with_what_it_read_and_made(trained: Shell) -> None:
    told = trained("runs", "show", "exp2")
    wanted = ("param     lr = 0.01", "trained-on datasets/points", "made      models/net", "▁")
    assert [each for each in wanted if each not in told] == []
    drawn = trained("runs", "show", "exp2", "--metric", "loss")
    assert drawn.splitlines()[0] == "loss: 3 points"
    points = trained.json("runs", "show", "exp2", "--metric", "loss")["points"]["loss"]
    assert points == {"steps": [0, 1, 2], "values": [2.5, 1.0, "NaN"]}
    assert "no run 'exp3'" in trained.fails(3, "runs", "show", "exp3")


def test_runs_are_compared_by_what_differs(trained: Shell) -> None:
    told = trained.json("runs", "compare", "exp1", "exp2")
    assert told["facts"] == {"lr": [0.1, 0.01]}
    smallest = trained.json("runs", "compare", "exp1", "exp2", "--min")
    assert (smallest["mode"], smallest["metrics"]) == ("min", {"loss": [2.0, 1.0]})
    assert (told["mode"], told["metrics"]) == ("last", {"loss": [2.0, "NaN"]})
    assert "seed" in trained("runs", "compare", "exp1", "exp2", "--equal")


def test_lineage_goes_up_and_down(trained: Shell) -> None:
    up = trained("lineage", "models/net")
    down = trained("lineage", "datasets/points", "--down", "--all-versions", "--depth", "1")
    assert "├─ made-by runs/exp2" in up
    assert "trained-on models/net" in down
    assert "digraph lineage {" in trained("lineage", "models/net", "--up", "--down", "--dot")
    assert "no models/none" in trained.fails(3, "lineage", "models/none")
    assert trained("lineage", "net") == up
    assert "expected a whole path" in trained.fails(2, "lineage", "none")


@pytest.mark.soak
def test_lineage_of_a_path_at_a_revision_is_asked_for_in_both_forms(trained: Shell) -> None:
    old = trained("lineage", "HEAD~2:models/net")
    assert old != trained("lineage", "models/net")
    assert trained("lineage", "models/net@HEAD~2") == trained("lineage", "net@HEAD~2") == old


def test_what_lineage_means_for_a_model_is_told(trained: Shell) -> None:
    deleted = trained.records("lineage", "datasets/points", "--deleted")
    assert [one["deleted"] for one in deleted] == [1, 1]
    assert "same version" in trained("lineage", "models/net", "--data-since", "HEAD~2:models/net")
    assert "same version" in trained("lineage", "models/net", "--data-since", "models/net@HEAD~2")
    done = trained.run("lineage", "models/net", "--reproducible")
    assert "order of datasets/points" in done.output
    assert done.exit_code in {0, 1}  # whether these tests lie in a git checkout is not theirs


def test_a_sparkline_shows_means_and_where_nothing_is_finite() -> None:
    values = np.array([0.0, 1.0, 2.0, 7.0, np.nan, np.inf])
    assert sparkline(values, 3) == "▁█·"
    assert sparkline(values, 100) == "▁▂▃█··"
    assert sparkline(np.ones(3)) == "▅▅▅"
    assert sparkline(np.empty(0)) == ""


def test_the_largest_floats_make_a_chart_as_well() -> None:
    assert sparkline(np.array([-1.7e308, 1.7e308])) == "▁█"
    assert sparkline(np.array([1.7e308, 1.7e308]), 1) == "▅"


def test_a_chart_has_the_largest_on_top_and_labels() -> None:
    lines = list(chart(np.array([1.0, 2.0, 4.0]), height=2))
    assert lines == ["         4 ┤  █", "         1 ┤▁▆█"]
    assert json.dumps(list(chart(np.empty(0), height=1)))
