"""F8: arrays are plain where no value is null, whatever the schema of a Parquet file allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tensorrepo as tr
from tests.support.processes.shell import Shell


@pytest.fixture
def scores(shell: Shell) -> tr.Dataset:
    """Rows of a Parquet file, all of whose columns are nullable: `holed` has a null in row 3."""
    x = np.arange(40, dtype="f4").reshape(10, 4)
    table = {
        "x": pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), 4),
        "n": pa.array(range(10)),
        "holed": pa.array([None if at == 3 else at for at in range(10)], pa.int32()),
        "name": pa.array([None if at == 3 else "a" for at in range(10)]),
    }
    pq.write_table(pa.table(table), shell.folder / "scores.parquet")
    shell("add", "scores.parquet", "--dataset", "scores")
    shell("commit", "-m", "Scores")
    return shell.repository().dataset("scores")


def masked(value: Any) -> bool:
    return isinstance(value, np.ma.MaskedArray)


def test_slices_are_masked_only_where_they_hold_a_null(scores: tr.Dataset) -> None:
    assert scores.schema["x"].nullable
    assert not masked(scores["x"][:])
    assert (scores["x"][:] ** 2).sum(1).shape == (10,)
    assert masked(scores["holed"][:])
    assert not masked(scores["holed"][4:])
    assert {name: masked(each) for name, each in scores[[1, 3]].items()} == {
        "x": False, "n": False, "holed": True, "name": False,
    }  # fmt: skip


def test_a_streams_batches_are_of_one_type_by_the_schema(scores: tr.Dataset) -> None:
    batches = list(scores.stream(batch_size=2, columns=["n", "holed"], shuffle=False))
    assert {masked(batch["n"]) for batch in batches} == {True}
    assert {batch["n"].mask is np.ma.nomask for batch in batches} == {True}  # and takes no memory
    assert batches[1]["holed"].mask.tolist() == [False, True]


def test_streams_give_plain_arrays_when_told_what_stands_for_null(scores: tr.Dataset) -> None:
    batches = list(scores.stream(batch_size=2, shuffle=False, nulls=-1))
    assert {masked(batch[name]) for batch in batches for name in ("x", "n", "holed")} == {False}
    assert batches[1]["holed"].tolist() == [2, -1]
    assert batches[1].valid["holed"].tolist() == [True, False]
    assert batches[1]["name"] == ["a", None]


def test_values_stand_for_null_by_column(scores: tr.Dataset) -> None:
    nulls = {"holed": 0, "name": "?"}
    batches = list(scores.stream(batch_size=5, shuffle=False, output="torch", nulls=nulls))
    assert (batches[0]["holed"].tolist(), batches[0]["name"][3]) == ([0, 1, 2, 0, 4], "?")


def test_a_null_is_refused_by_row_and_column(scores: tr.Dataset) -> None:
    plain = scores.stream(batch_size=2, columns=["x", "n"], shuffle=False, nulls="raise")
    assert {masked(batch["x"]) for batch in plain} == {False}
    with pytest.raises(tr.InvalidInputError, match="row 3, column 'holed' is null"):
        list(scores.stream(batch_size=2, shuffle=False, nulls="raise"))


@pytest.mark.parametrize(
    ("nulls", "told"),
    [("skip", "nulls is None"), ({"n": "x"}, "'n'"), ([1], "nulls is None"), (0.5, "'n'")],
)
def test_what_cannot_stand_for_null_is_refused_before_anything_is_read(
    nulls: Any, told: str, scores: tr.Dataset
) -> None:
    with pytest.raises(tr.InvalidInputError, match=told):
        scores.stream(batch_size=2, nulls=nulls)


def test_arrow_keeps_its_nulls(scores: tr.Dataset) -> None:
    with pytest.raises(tr.InvalidInputError, match="Arrow arrays have nulls"):
        scores.stream(batch_size=2, output="arrow", nulls=0)


def test_sql_and_torch_are_plain_likewise(scores: tr.Dataset) -> None:
    found = scores.query("SELECT x, n, holed FROM self").numpy()
    assert {name: masked(each) for name, each in found.items()} == {
        "x": False, "n": False, "holed": True,
    }  # fmt: skip
    assert (found["x"].shape, found["holed"].mask.tolist()[3]) == ((10, 4), True)
    assert scores.to_torch(["x"])["x"].shape == (10, 4)
    assert scores.to_torch(["holed"], nulls=0)["holed"][3] == 0
    with pytest.raises(tr.InvalidInputError, match="row 3, column 'holed' is null"):
        scores.to_torch(["holed"])


def test_a_mix_fills_what_is_null_in_any_of_its_sources(scores: tr.Dataset, shell: Shell) -> None:
    repository = shell.repository()
    with repository.transaction() as tx:
        tx.create_dataset("whole", columns={"holed": "int32"}).append({"holed": np.arange(10)})
    sources = [repository.dataset("whole"), scores]
    streams = [each.stream(batch_size=5, columns=["holed"], nulls=-7) for each in sources]
    found = [batch["holed"] for batch in tr.Mix(streams)]
    assert {masked(each) for each in found} == {False}
    assert np.concatenate(found).tolist().count(-7) == 1
