"""What a caller gives is checked where a call begins, and told by the name of the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.catalog.sql import checked_params

WEIGHTS = {"w": np.ones((4, 4), np.float32)}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> tr.Repository:
    made = tr.init(f"memory://given-{uuid4()}", author="Ada <ada@example.org>")
    catalog = tmp_path_factory.mktemp("catalog") / "catalog.db"
    made = tr.open(made.url, author=made.author, catalog=f"sqlite:///{catalog}")
    with made.transaction() as tx:
        tx.create_dataset("points", columns={"x": "float32"}).append(
            {"x": np.arange(9, dtype="f4")}
        )
        tx.save_model("net", WEIGHTS)
    return made


def _construct(repo: tr.Repository, target: Any, donors: Any = ()) -> None:
    repo.transaction().construct_model("m", target, donors)


def _save(repo: tr.Repository, **given: Any) -> None:
    repo.transaction().save_model("m", WEIGHTS, **given)


def _draft(repo: tr.Repository, name: str, **given: Any) -> None:
    repo.transaction().create_dataset(name, columns={"x": "float32"}, **given)


def _points(repo: tr.Repository) -> Any:
    return repo.transaction().dataset("points")


WRONG: dict[str, tuple[str, Callable[[tr.Repository], Any]]] = {
    "params": ("params is a mapping", lambda repo: repo.run("r", params="lr=1")),
    "params as a list": ("params is a mapping", lambda repo: repo.run("r", params=[])),
    "memory": ("memory is bytes", lambda repo: repo.sql("SELECT 1", memory="-1")),
    "query": ("a query is text", lambda repo: repo.sql(5)),
    "values": ("params is a list", lambda repo: repo.sql("SELECT ?", params="a")),
    "limits": ("untrusted is", lambda repo: repo.sql("SELECT 1", untrusted=True)),
    "ref": ("a ref is", lambda repo: repo.dataset("points", 5)),
    "no ref": ("a ref is", lambda repo: repo.log(None)),
    "limit": ("limit is a whole number", lambda repo: repo.log(limit="x")),
    "name": ("a name in datasets", lambda repo: repo.dataset(5)),
    "view": ("a query is text", lambda repo: repo.view("v", sql=5)),
    "path": ("path is text", lambda repo: repo.lineage(5)),
    "depth": ("depth is", lambda repo: repo.lineage("models/net").ancestors(depth="x")),
    "other": ("other is the lineage", lambda repo: repo.lineage("models/net").data_changes(5)),
    "branch": ("branch is text", lambda repo: repo.transaction(5)),
    "message": ("message is text", lambda repo: repo.transaction("main", 5)),
    "new branch": ("name is text", lambda repo: repo.create_branch(5)),
    "run": ("runs are found by name", lambda repo: repo.runs()[5]),
    "donors": ("an architecture is", lambda repo: repo.catalog.donors(5)),
    "owners": ("model is one", lambda repo: repo.catalog.owners(5, "w")),
    "source": ("source is a model", lambda repo: repo.registry.register("net", 5)),
    "catalog": ("catalog is the URL", lambda repo: tr.open(repo.url, catalog=5).catalog.url),
    "columns": (
        "columns is a mapping",
        lambda repo: repo.transaction().create_dataset("q", columns=5),
    ),
    "content": ("content is bytes", lambda repo: repo.transaction().save_file("q", "text")),
    "alpha": ("alpha is a finite number", lambda repo: repo.repack_models(alpha="x")),
    "bases": ("depth is a whole number", lambda repo: repo.repack_models(depth=None)),
    "registered": ("the name of a registered model", lambda repo: repo.registry[5]),
    "registered version": (
        "the name of a registered model",
        lambda repo: repo.registry.model(None),
    ),
    "labels": ("labels is a mapping", lambda repo: repo.registry.create("a", labels="x")),
    "protected": ("on is True or", lambda repo: repo.registry.protect("a", "b", on=[])),
    "told": (
        "message is text",
        lambda repo: repo.registry.register("a", "main:models/net", message=5),
    ),
    "SQL's ref": ("a ref is", lambda repo: repo.sql("SELECT 1", ref=[])),
    "pattern": ("first is text that", lambda repo: repo.catalog.find_models("\ud800")),
    "metric": (
        "metric is text that",
        lambda repo: repo.catalog.donors(repo.model("net"), metric="\ud800"),
    ),
    "tensor": ("tensor is text", lambda repo: repo.catalog.owners(repo.model("net"), 5)),
    "spec": ("the name of a tensor", lambda repo: repo.model("net").spec(5)),
    "file": ("the name of a file", lambda repo: repo.model("net").file(None)),
    "output": ("output is 'numpy' or", lambda repo: repo.model("net").load(output=[])),
    "module": ("module is a torch", lambda repo: repo.model("net").load_into(5)),
    "target": ("path is the path", lambda repo: repo.model("net").save(5)),
    "NUL": ("path is the path", lambda repo: repo.model("net").export("a\0b")),
    "form": ("format is text", lambda repo: repo.model("net").export("a.npz", 5)),
    "other model": ("other is a model", lambda repo: repo.model("net").diff(5)),
    "models": ("models is a list", lambda repo: repo.transaction().merge_models("m", 5)),
    "donor models": ("donors is a list", lambda repo: _construct(repo, WEIGHTS, 5)),
    "architecture": ("target is a graph", lambda repo: _construct(repo, 5)),
    "graph": ("graph is a graph", lambda repo: _save(repo, graph=5)),
    "files": ("files is a mapping", lambda repo: _save(repo, files=5)),
    "a file": ("file 'a' is bytes", lambda repo: _save(repo, files={"a": 5})),
    "a file's name": ("the name of a file", lambda repo: _save(repo, files={5: b""})),
    "tensors": (
        "tensor name .* is not text",
        lambda repo: repo.transaction().save_model("m", np.zeros(3)),
    ),
    "metadata": ("metadata is a mapping", lambda repo: _save(repo, metadata=5)),
    "base": ("base is a model", lambda repo: _save(repo, base=5)),
    "origin": ("derived_from takes datasets", lambda repo: _save(repo, derived_from=5)),
    "restored": ("path is text", lambda repo: repo.transaction().restore(5, "main")),
    "how": ("how is a mapping", lambda repo: _draft(repo, "w", how=5)),
    "expressions": ("values is a mapping", lambda repo: _points(repo).update_sql(5)),
    "expression": ("an expression is text", lambda repo: _points(repo).update_sql({"x": 5})),
    "nullable": (
        "nullable is True or",
        lambda repo: _points(repo).add_column("y", "i4", nullable=5),
    ),
    "type": ("type is text that", lambda repo: _points(repo).add_column("y", "\ud800")),
    "sql": ("sql is text", lambda repo: _points(repo).add_column("y", sql=5)),
    "versions": ("all_versions is", lambda repo: repo.lineage("models/net", all_versions=[])),
    "metrics": (
        "metrics is a mapping",
        lambda repo: repo.transaction().save_model("n", WEIGHTS, metrics=5),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_has_another_type_is_refused_by_its_name(repo: tr.Repository, case: str) -> None:
    said, call = WRONG[case]
    with pytest.raises(tr.InvalidInputError, match=said):
        call(repo)


def test_numbers_of_numpy_are_parameters_metrics_and_metadata(repo: tr.Repository) -> None:
    given = {"lr": np.float32(0.5), "sizes": [np.int64(3)], "deep": {"on": np.bool_(True)}}
    with repo.run("numpy", params=given) as run:
        run.log_param("also", np.float16(2))
        run.log_metric("loss", np.float32(0.25), np.int32(7))
        made = run.save_model("m", WEIGHTS, metrics={"a": np.float32(1.5)}, metadata=given)
    wanted = {"lr": 0.5, "sizes": [3], "deep": {"on": True}}
    assert run.record.params == {**wanted, "also": 2.0}
    assert (made.metrics, made.metadata) == ({"a": 1.5}, wanted)


def test_numbers_of_numpy_are_values_of_a_query(repo: tr.Repository) -> None:
    assert list(repo.sql("SELECT ? AS a", params=[np.float32(1.5)])) == [{"a": 1.5}]
    assert checked_params({"a": np.int8(3)}) == {"a": 3}


def test_one_input_of_a_run_needs_no_list(repo: tr.Repository) -> None:
    url = "https://example.org/data.csv"
    with repo.run("one-url", derived_from=url) as run:
        pass
    assert [edge.path for edge in run.record.inputs] == [url]
    with repo.run("one-dataset", derived_from=repo.dataset("points")) as run:
        pass
    assert [edge.path for edge in run.record.inputs] == ["datasets/points"]


def test_a_model_may_be_trained_on_one_dataset(repo: tr.Repository) -> None:
    with repo.transaction() as tx:
        tx.save_model("one", WEIGHTS, derived_from=repo.dataset("points"))
    assert [edge.path for edge in repo.model("one").lineage()] == ["datasets/points"]


@pytest.mark.parametrize("name", ["points", "datasets/points"])
def test_a_view_of_a_datasets_name_is_refused(repo: tr.Repository, name: str) -> None:
    with pytest.raises(tr.ConflictError, match="give the view another name"):
        repo.view(name.removeprefix("datasets/"), sql="SELECT row_id FROM points")


def test_a_name_that_a_dataset_and_a_view_share_is_asked_about() -> None:
    made = tr.init(f"memory://shared-{uuid4()}", author="Ada <ada@example.org>")
    for name in ("points", "other"):
        with made.transaction() as tx:
            tx.create_dataset(name, columns={"x": "float32"}).append(
                {"x": np.arange(9, dtype="f4")}
            )
        made.view("other", sql="SELECT row_id FROM points") if name == "points" else None
    with pytest.raises(tr.InvalidInputError, match="both a dataset and a view"):
        made.sql("SELECT * FROM other")
    assert len(list(made.sql('SELECT * FROM "views/other"'))) == 9


def test_polars_is_told_about_columns_of_one_name(repo: tr.Repository) -> None:
    pytest.importorskip("polars")
    with pytest.raises(tr.InvalidInputError, match="several columns are called 'a'"):
        repo.sql("SELECT 1 AS a, 2 AS a").pl()


@pytest.mark.parametrize("name", [[], {}, 5, "\ud800"])
def test_what_can_be_no_name_is_in_nothing(repo: tr.Repository, name: object) -> None:
    assert name not in repo.model("net")
    assert name not in repo.registry


def test_what_a_run_is_told_has_names(repo: tr.Repository) -> None:
    with repo.run("names") as run:
        for call in (run.log_metric, run.log_param):
            with pytest.raises(tr.InvalidInputError, match="the name of a"):
                call([], 1)
    with pytest.raises(tr.InvalidInputError, match="mode is 'min' or 'max'"):
        run.record.best("loss", [])  # type: ignore[arg-type]


def test_a_registered_model_is_taken_by_its_name(repo: tr.Repository) -> None:
    repo.registry.register("shelf/net", "main:models/net")
    assert repo.registry["shelf/net"].versions == (1,)
    assert "shelf/net" in repo.registry
    with pytest.raises(tr.NotFoundError, match="nothing is registered as 'shelf'"):
        repo.registry["shelf"]
