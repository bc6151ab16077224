"""F32: a live loss is logged in silence, a metric told twice counts once, tables of runs."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest

import tensorrepo as tr


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> tr.Repository:
    repo = tr.init(str(tmp_path_factory.mktemp("runs")), author="Ada <ada@example.org>")
    for name, rate in (("one", 0.1), ("two", 1)):
        with repo.run(name, params={"lr": rate, "layers": [1, 2]}) as run:
            saver = run.checkpointer()
            for epoch in range(2):
                run.log_metric("val/acc", 0.5 + epoch / 4, epoch)
                saver.save(epoch, {"step": epoch}, metrics={"val/acc": 0.5 + epoch / 4})
            saver.close()
    return repo


def test_a_loss_amid_its_graph_is_logged_without_a_word(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    repo = tr.init(str(tmp_path / "repo"), author="Ada <ada@example.org>")
    loss = (torch.ones(3, requires_grad=True) * 2).sum()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with repo.run("exp1") as run:
            run.log_metric("loss", loss)
    assert repo.runs()["exp1"].metrics == {"loss": 6.0}


def test_a_metric_of_run_and_checkpoint_counts_once(repo: tr.Repository) -> None:
    points = repo.runs()["one"].points("val/acc")
    assert (points.steps.tolist(), points.values.tolist()) == ([0, 1], [0.5, 0.75])


def test_runs_are_a_table(repo: tr.Repository) -> None:
    pytest.importorskip("pandas")
    table = repo.runs().to_pandas()
    assert table["name"].tolist() == ["one", "two"]
    assert table["metric.val/acc"].tolist() == [0.75, 0.75]
    assert table["param.lr"].tolist() == [0.1, 1.0]
    assert table["param.layers"].tolist() == ["[1, 2]", "[1, 2]"]
    assert str(table["started"].dtype).startswith("datetime64")


def test_polars_has_the_same_rows(repo: tr.Repository) -> None:
    pytest.importorskip("polars")
    assert repo.runs().to_polars()["name"].to_list() == ["one", "two"]


def test_runs_are_found_by_name_and_the_newest_by_its_own_word(repo: tr.Repository) -> None:
    runs = repo.runs()
    newest = runs.newest()
    assert newest is not None
    assert newest.document.started_ns == max(run.document.started_ns for run in runs.values())
    for wrong in (0, -1, slice(0, 1)):
        with pytest.raises(tr.InvalidInputError, match=r"found by name, got .*runs\.newest\(\)"):
            runs[wrong]  # type: ignore[index]
