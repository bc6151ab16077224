"""Rows for torch's own `DataLoader`: nulls, moments, and what torch makes of them."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr

torch = pytest.importorskip("torch")


@pytest.fixture
def people(tmp_path: Path) -> tr.Dataset:
    """Four rows; of the second and third nothing is known but their number."""
    repo = tr.init(tmp_path / "store", author="Ada <ada@lab>")
    with repo.transaction("main") as tx:
        draft = tx.create_dataset("people", columns={"n": "int64"}).append({"n": np.arange(4)})
        draft.add_column("age", "int16", nullable=True).update([0, 3], {"age": [7, 8]})
        draft.add_column("born", tr.Timestamp("s", "UTC"), nullable=True)
        draft.update([0, 3], {"born": [datetime(1970, 1, 2, tzinfo=UTC)] * 2})
        draft.add_column("place", tr.Tensor("float32", (2,)), nullable=True)
        draft.update([0, 3], {"place": [[1, 2], [3, 4]]})
        draft.add_column("name", tr.Text(), nullable=True).update([0, 3], {"name": ["a", "b"]})
        draft.add_column("kind", tr.ClassLabel(("cat", "dog")), nullable=True)
        draft.add_column("small", "bfloat16", default=1.5)
    return repo.dataset("people")


def batch(given: Any, size: int = 4) -> Any:
    return next(iter(torch.utils.data.DataLoader(given, batch_size=size)))


@pytest.mark.parametrize("column", ["age", "born", "place", "name"])
def test_a_null_is_an_error_that_names_its_row_and_column_and_what_to_do(
    column: str, people: tr.Dataset
) -> None:
    with pytest.raises(tr.InvalidInputError, match=f"row 1, column '{column}' is null.*nulls="):
        batch(people.torch(["n", column]))


def test_a_null_of_a_single_row_is_the_same_error(people: tr.Dataset) -> None:
    with pytest.raises(tr.InvalidInputError, match="row 2, column 'age'"):
        people.torch()[2]


def test_what_stands_for_null_keeps_the_dtype_of_its_column(people: tr.Dataset) -> None:
    found = batch(people.torch(["age"], nulls={"age": -1}))["age"]
    assert torch.equal(found, torch.tensor([7, -1, -1, 8], dtype=torch.int16))


def test_a_number_fills_a_whole_tensor(people: tr.Dataset) -> None:
    found = batch(people.torch(["place"], nulls={"place": 0}))["place"]
    assert found.tolist() == [[1, 2], [0, 0], [0, 0], [3, 4]]


def test_text_and_classes_are_filled_by_name(people: tr.Dataset) -> None:
    found = batch(people.torch(["name", "kind"], nulls={"name": "?", "kind": "dog"}))
    assert (found["name"], found["kind"].tolist()) == (["a", "?", "?", "b"], [1, 1, 1, 1])


def test_moments_are_their_numbers(people: tr.Dataset) -> None:
    found = batch(people.torch(["born"], nulls={"born": datetime(1970, 1, 1, tzinfo=UTC)}))["born"]
    assert torch.equal(found, torch.tensor([86400, 0, 0, 86400]))


def test_elements_that_numpy_has_not_come_as_tensors(people: tr.Dataset) -> None:
    assert batch(people.torch(["small"]))["small"].dtype is torch.bfloat16


def test_none_is_handed_on_to_ones_own_collate(people: tr.Dataset) -> None:
    loader = torch.utils.data.DataLoader(
        people.torch(["age"], nulls={"age": None}), batch_size=4, collate_fn=list
    )
    assert next(iter(loader)) == [{"age": 7}, {"age": None}, {"age": None}, {"age": 8}]


@pytest.mark.parametrize(("given", "says"), [({"age": 0.5}, "'age'"), ({"n": "x"}, "'n'")])
def test_a_filling_that_does_not_fit_is_refused_at_once(
    given: dict[str, Any], says: str, people: tr.Dataset
) -> None:
    with pytest.raises(tr.InvalidInputError, match=says):
        people.torch(nulls=given)


def test_a_filling_of_no_column_is_refused_at_once(people: tr.Dataset) -> None:
    with pytest.raises(tr.NotFoundError, match="'height'"):
        people.torch(nulls={"height": 0})


def test_what_fills_survives_pickling(people: tr.Dataset) -> None:
    given = pickle.loads(pickle.dumps(people.torch(["age"], nulls={"age": 0})))
    assert batch(given)["age"].tolist() == [7, 0, 0, 8]
