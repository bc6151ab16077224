"""What a caller gives is checked where a call begins, and told by the name of the argument."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.sql import checked_params

if TYPE_CHECKING:
    from collections.abc import Callable

WEIGHTS = {"w": np.ones((4, 4), np.float32)}


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> tr.Repository:
    made = tr.init(f"memory://given-{os.getpid()}", author="Ada <ada@example.org>")
    catalog = tmp_path_factory.mktemp("catalog") / "catalog.db"
    made = tr.open(made.url, author=made.author, catalog=f"sqlite:///{catalog}")
    with made.transaction() as tx:
        tx.create_dataset("points", {"x": "float32"}).append({"x": np.arange(9, dtype="f4")})
        tx.save_model("net", WEIGHTS)
    return made


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
    "run": ("the name of a run", lambda repo: repo.runs()[5]),
    "donors": ("an architecture is", lambda repo: repo.catalog.donors(5)),
    "owners": ("model is one", lambda repo: repo.catalog.owners(5, "w")),
    "source": ("source is a model", lambda repo: repo.registry.register("net", 5)),
    "catalog": ("catalog is the URL", lambda repo: tr.open(repo.url, catalog=5).catalog.url),
    "columns": ("columns is a mapping", lambda repo: repo.transaction().create_dataset("q", 5)),
    "content": ("content is bytes", lambda repo: repo.transaction().save_file("q", "text")),
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
    with repo.run("one-url", inputs=url) as run:
        pass
    assert [edge.path for edge in run.record.inputs] == [url]
    with repo.run("one-dataset", inputs=repo.dataset("points")) as run:
        pass
    assert [edge.path for edge in run.record.inputs] == ["datasets/points"]


def test_a_model_may_be_trained_on_one_dataset(repo: tr.Repository) -> None:
    with repo.transaction() as tx:
        tx.save_model("one", WEIGHTS, trained_on=repo.dataset("points"))
    assert [edge.path for edge in repo.model("one").lineage()] == ["datasets/points"]


@pytest.mark.parametrize("name", ["points", "datasets/points"])
def test_a_view_of_a_datasets_name_is_refused(repo: tr.Repository, name: str) -> None:
    with pytest.raises(tr.ConflictError, match="give the view another name"):
        repo.view(name.removeprefix("datasets/"), sql="SELECT row_id FROM points")


def test_a_name_that_a_dataset_and_a_view_share_is_asked_about() -> None:
    made = tr.init(f"memory://shared-{os.getpid()}", author="Ada <ada@example.org>")
    for name in ("points", "other"):
        with made.transaction() as tx:
            tx.create_dataset(name, {"x": "float32"}).append({"x": np.arange(9, dtype="f4")})
        made.view("other", sql="SELECT row_id FROM points") if name == "points" else None
    with pytest.raises(tr.InvalidInputError, match="both a dataset and a view"):
        made.sql("SELECT * FROM other")
    assert len(list(made.sql('SELECT * FROM "views/other"'))) == 9


def test_polars_is_told_about_columns_of_one_name(repo: tr.Repository) -> None:
    pytest.importorskip("polars")
    with pytest.raises(tr.InvalidInputError, match="several columns are called 'a'"):
        repo.sql("SELECT 1 AS a, 2 AS a").pl()
