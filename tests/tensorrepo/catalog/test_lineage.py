"""Lineage, asked of a repository: what a model came from, who saw what, can it be made again."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.catalog.lineage import Kinship, _seen
from tensorrepo.query.lineage import LineageNode, LineageStep

ADA = "Ada <ada@example.org>"
COLUMNS = {"x": np.arange(40, dtype=np.float32), "label": np.arange(40, dtype=np.int64) % 4}
WEIGHTS = {"w": np.ones((4, 4), np.float32)}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> tr.Repository:
    """points -> run exp1 -> net -> tuned, in which rows of points were deleted in between."""
    catalog = tmp_path_factory.mktemp("catalog") / "catalog.db"
    made = tr.init(f"memory://lineage-{uuid4()}", author=ADA)
    made = tr.open(made.url, author=ADA, catalog=f"sqlite:///{catalog}")
    with made.transaction() as tx:
        tx.create_dataset("points", columns={"x": "float32", "label": "int64"}).append(COLUMNS)
    with made.run("exp1", params={"lr": 0.1}) as run:
        list(made.dataset("points").stream(batch_size=8, seed=3))
        run.log_metric("loss", float("nan"))
        run.log_metric("loss", 0.5)
        run.save_model("net", WEIGHTS)
    made.create_tag("v1")
    with made.transaction() as tx:
        tx.dataset("points").delete("label == 1")
    points = made.dataset("points")
    with made.transaction() as tx:
        tx.save_model("tuned", WEIGHTS, base="main:models/net", derived_from=[points])
    return made


def test_ancestors_go_through_parents_and_runs_to_data(repository: tr.Repository) -> None:
    found = repository.lineage("models/tuned").ancestors()
    assert found.paths == ["models/net", "datasets/points", "runs/exp1"]
    assert [(step.depth, step.relation, step.origin.path) for step in found] == [
        (1, "fine-tuned-from", "models/net"),
        (1, "trained-on", "datasets/points"),
        (2, "made-by", "runs/exp1"),
        (2, "trained-on", "datasets/points"),
        (3, "trained-on", "datasets/points"),
    ]
    assert all(step.origin.stored for step in found)


def test_descendants_of_data_are_found_of_one_version_and_of_all(
    repository: tr.Repository,
) -> None:
    now = repository.lineage("datasets/points", "main").descendants()
    then = repository.lineage("datasets/points", "v1").descendants(relations=["trained-on"])
    ever = repository.lineage("datasets/points").descendants()
    assert now.paths == ["models/tuned"]
    assert then.paths == ["models/net", "runs/exp1"]
    assert sorted(ever.paths) == ["models/net", "models/tuned", "runs/exp1"]


def test_a_bound_of_depth_and_relations_narrows_what_is_found(repository: tr.Repository) -> None:
    lineage = repository.lineage("models/tuned")
    assert lineage.ancestors(depth=1).paths == ["models/net", "datasets/points"]
    assert lineage.ancestors(relations=["parent"]).paths == ["models/net"]


def test_models_that_saw_rows_that_are_gone_now_are_named(repository: tr.Repository) -> None:
    (found,) = repository.lineage("datasets/points").saw_deleted()
    assert (found.model.path, found.deleted, found.seen) == ("models/net", 10, "all")
    assert found.details["seed"] == 3
    assert repository.lineage("datasets/points", "v1").saw_deleted() == []


def test_a_model_of_a_version_that_is_not_stored_is_named_with_what_is_unknown(
    tmp_path: Path,
) -> None:
    made = tr.init(f"memory://gone-{uuid4()}", author=ADA)
    made = tr.open(made.url, author=ADA, catalog=f"sqlite:///{tmp_path / 'catalog.db'}")
    elsewhere = tr.init(f"memory://elsewhere-{uuid4()}", author=ADA)
    for one, rows in ((made, 30), (elsewhere, 40)):
        with one.transaction() as tx:
            columns = {name: values[:rows] for name, values in COLUMNS.items()}
            tx.create_dataset("points", columns={"x": "float32", "label": "int64"}).append(columns)
    with made.transaction() as tx:
        tx.save_model("net", WEIGHTS, derived_from=[elsewhere.dataset("points")])
        tx.save_model("other", WEIGHTS, derived_from=[made.dataset("points")])
    (found,) = made.lineage("datasets/points").saw_deleted()
    assert (found.model.path, found.deleted, found.seen) == ("models/net", None, "unknown")
    assert found.summary == "unknown: that version is not stored any more"


@pytest.mark.parametrize(
    ("place", "rows", "seen"),
    [
        ({}, 40, "unknown"),
        ({"epoch": 1, "position": 0}, None, "all"),
        ({"epoch": 0, "position": 9}, None, "unknown"),
        ({"epoch": 0, "position": 9}, 40, "part"),
        ({"epoch": 0, "position": 40}, 40, "all"),
        ({"epoch": 9, "position": 0, "selection": 1}, 40, "part"),
    ],
)
def test_how_much_a_training_saw_is_told_by_its_place(
    place: dict[str, int], rows: int | None, seen: str
) -> None:
    assert _seen(place, rows) == seen


def test_a_model_of_which_no_data_are_known_cannot_be_made_again(tmp_path: Path) -> None:
    made = tr.init(f"memory://blind-{uuid4()}", author=ADA)
    made = tr.open(made.url, author=ADA, catalog=f"sqlite:///{tmp_path / 'catalog.db'}")
    with made.run("exp1") as run:
        run.save_model("blind", WEIGHTS)
    found = {one.what: one for one in made.lineage("models/blind").reproducible()}
    assert not found["data"].ok


def test_a_url_is_asked_about_without_its_secrets(repository: tr.Repository) -> None:
    with repository.run("exp2", derived_from=["https://ada:s3cret@host/d.csv?token=abc"]):
        pass
    found = repository.lineage("https://bob:other@host/d.csv?token=xyz").descendants()
    assert (found.start.path, found.paths) == ("https://host/d.csv", ["runs/exp2"])


def test_what_changed_between_the_data_of_two_models_is_told(repository: tr.Repository) -> None:
    old, new = repository.lineage("models/net"), repository.lineage("models/tuned")
    (change,) = old.data_changes(new)
    assert (change.path, change.summary) == ("datasets/points", "-10 rows")
    assert old.data_changes(old)[0].summary == "the same version"


def test_whether_a_model_can_be_made_again_is_told_with_reasons(
    repository: tr.Repository,
) -> None:
    net = {one.what: one for one in repository.lineage("models/net").reproducible()}
    tuned = {one.what: one for one in repository.lineage("models/tuned").reproducible()}
    assert net["trained-on datasets/points"].ok
    assert net["order of datasets/points"].why == "seed 3, epoch 0, position 40"
    assert "code of runs/exp1" in net
    assert "data" not in {*net, *tuned}
    assert not tuned["order of datasets/points"].ok
    assert not tuned["run"].ok


def test_a_catalog_made_anew_says_the_same_of_runs(repository: tr.Repository) -> None:
    assert repository.catalog.verify() == []


def test_runs_are_asked_in_sql(repository: tr.Repository) -> None:
    with repository.catalog.reading() as connection:
        (run,) = connection.exec_driver_sql(
            "SELECT name, status, id FROM run WHERE name = 'exp1'"
        ).all()
        (metric,) = connection.exec_driver_sql(
            "SELECT points, not_finite, last, min FROM run_metric WHERE name = 'loss'"
        ).all()
        (parameter,) = connection.exec_driver_sql("SELECT name, value FROM parameter").all()
    assert tuple(run) == ("exp1", "finished", repository.runs()["exp1"].id)
    assert tuple(metric) == (2, 1, 0.5, 0.5)
    assert tuple(parameter) == ("lr", "0.1")


def test_what_a_dataset_was_made_of_is_told_by_who_made_it_and_by_what_was_read(
    tmp_path: Path,
) -> None:
    (tmp_path / "points.csv").write_text("x\n1.5\n")
    made = tr.open(tr.init("memory://derived", author=ADA).url, author=ADA, catalog="sqlite://")
    with made.transaction() as tx:
        read = tr.read(tmp_path / "points.csv")
        tx.create_dataset("points", columns=read.schema).append(read)
    points = made.dataset("points")
    with made.transaction() as tx:
        half = tx.create_dataset(
            "half", columns={"x": "float32"}, derived_from=points, how={"function": "half"}
        )
        half.append({"x": points["x"][:] / 2}, derived_from=[points.stream(batch_size=1)])
        with pytest.raises(tr.Error, match="derived_from takes"):
            half.append({"x": [1.0]}, derived_from="points")
    found = made.lineage("datasets/half").ancestors()
    assert [(step.relation, step.origin.path) for step in found] == [
        ("derived-from", "datasets/points"),
        ("imported-from", "points.csv"),
    ]
    assert found.steps[1].details["format"] == "csv"
    assert list(found.lines())[-1].endswith("imported-from points.csv")  # no version, no digest


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("net", "models/net"),
        ("models/none", "no models/none"),
        ("runs/none", "no run 'none'"),
        ("models/net", "is a model, not a dataset"),
    ],
)
def test_what_cannot_be_asked_about_is_refused(
    repository: tr.Repository, path: str, told: str
) -> None:
    with pytest.raises(tr.Error, match=told):
        repository.lineage(path).saw_deleted()


def test_a_tree_for_people_shows_everything_once(repository: tr.Repository) -> None:
    lines = list(repository.lineage("models/tuned").ancestors().lines())
    assert lines[0].startswith("models/tuned (")
    assert [line.partition(" (")[0] for line in lines[1:]] == [
        "├─ fine-tuned-from models/net",
        "│  ├─ made-by runs/exp1",
        "│  │  └─ trained-on datasets/points",
        "│  └─ trained-on datasets/points",
        "└─ trained-on datasets/points",
    ]


def test_names_are_quoted_for_graphviz() -> None:
    evil = LineageNode("url", 'https://example.org/"];\n', 'https://example.org/"];\n')
    start = LineageNode("dataset", "1" * 64, "datasets/a", None, True)
    dot = Kinship(start, (LineageStep(1, start, "imported-from", evil, {}),), True).dot()
    assert dot.splitlines() == [
        "digraph lineage {",
        '  n0 [label="datasets/a (111111111111)"];',
        '  n1 [label="https://example.org/\\"];\\n"];',
        '  n0 -> n1 [label="imported-from"];',
        "}",
    ]


def test_what_goes_in_a_circle_is_shown_once() -> None:
    one, other = (
        LineageNode("run", "1", "runs/a"),
        LineageNode("model", "2", "models/b", None, True),
    )
    steps = (LineageStep(1, one, "used", other, {}), LineageStep(2, other, "made-by", one, {}))
    assert list(Kinship(one, steps, True).lines()) == [
        "runs/a",
        "└─ used models/b (2)",
        "   └─ made-by runs/a (see above)",
    ]
