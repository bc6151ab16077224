"""Deriving datasets through the SDK: lineage, merges, and calls that were killed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tensorrepo as tr
from tensorrepo.formats.dataset.derive import DerivationReport
from tensorrepo.formats.dataset.schema.convert import decode_image
from tests.support.processes.forked_python import run_python

ROWS = 4000


def double(batch: pa.RecordBatch) -> Any:
    return {"y": batch["x"].to_numpy() * 2}


def shrink(batch: pa.RecordBatch) -> Any:
    pixels = np.stack([np.full((4, 4, 3), x % 256, "u1") for x in batch["x"].to_pylist()])
    return {"image": list(pixels), "x": batch["x"]}


def words(batch: pa.RecordBatch) -> Any:
    return [[{"word": word} for word in name.split()] for name in batch["name"].to_pylist()]


@pytest.fixture
def repo(tmp_path: Path) -> tr.Repository:
    made = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    with made.transaction() as tx:
        names = [f"a{at} b c"[: 2 + at % 7] for at in range(ROWS)]
        tx.create_dataset("source", {"x": np.arange(ROWS), "name": names})
    return made


def _derive(repo: tr.Repository, branch: str = "main", **options: Any) -> Any:
    with repo.transaction(branch) as tx:
        return tx.derive("derived", "source", double, columns=["x"], **options).derived


def _is_derived(repo: tr.Repository, ref: str = "main") -> bool:
    source, derived = repo.dataset("source", ref), repo.dataset("derived", ref)
    x = dict(zip(source.row_ids(), source["x"][:].tolist(), strict=True))
    y = dict(zip(derived.row_ids(), derived["y"][:].tolist(), strict=True))
    return y == {row: 2 * value for row, value in x.items()}


def test_lineage_tells_of_the_source_and_the_function(repo: tr.Repository) -> None:
    _derive(repo)
    steps = repo.lineage("datasets/derived").ancestors().steps
    assert [(each.relation, each.origin.path) for each in steps] == [
        ("derived-from", "datasets/source")
    ]
    details = steps[0].details
    assert details["function"] == f"{__name__}.double"
    assert details["columns"] == ["x"]
    assert "packages" not in details


def test_a_second_call_commits_nothing(repo: tr.Repository) -> None:
    _derive(repo)
    with repo.transaction() as tx:
        report = tx.derive("derived", "source", double, columns=["x"]).derived
    assert tx.commit is None
    assert (report.made, report.kept) == (0, ROWS)


def test_branches_that_both_derived_are_merged_and_derived_again(repo: tr.Repository) -> None:
    _derive(repo)
    repo.create_branch("side")
    for branch, row in (("main", 3), ("side", 7)):
        with repo.transaction(branch) as tx:
            tx.dataset("source").append({"x": [row], "name": ["new"]}).update([row], {"x": -row})
        _derive(repo, branch)
    repo.merge("side", "main")
    assert len(repo.dataset("derived")) == ROWS + 2
    report = _derive(repo)
    assert "two versions" in report.anew
    assert _is_derived(repo)
    assert _derive(repo).kept == ROWS + 2


@pytest.mark.soak
def test_pictures_and_any_number_of_rows_come_out(repo: tr.Repository) -> None:
    with repo.transaction() as tx:
        tx.derive("small", "source", shrink, types={"image": tr.Image("png")}, check=0.01)
        tx.derive("words", "source", words, columns=["name"], explode=True, check=0.01)
    small, found = repo.dataset("small"), repo.dataset("words")
    assert (decode_image(small[300]["image"]) == 300 % 256).all()
    assert "numpy" in repo.lineage("datasets/small").ancestors().steps[0].details["packages"]
    expected = [name.split() for name in repo.dataset("source")["name"][:]]
    assert found["word"][:] == [word for row in expected for word in row]
    assert found["source_part"][:].tolist() == [at for row in expected for at in range(len(row))]
    with repo.transaction() as tx:
        tx.dataset("source").update([5], {"name": "x y z w"}).delete([6])
        report = tx.derive("words", "source", words, columns=["name"], explode=True).derived
    assert (report.renewed, report.deleted, report.kept) == (1, 1, ROWS - 2)
    row = repo.dataset("source").row_ids([5])[0]
    again = repo.dataset("words").filter(tr.col("source_row") == row)
    assert again["word"][:] == ["x", "y", "z", "w"]


def test_what_a_function_is_decides_and_a_version_stands_for_it(repo: tr.Repository) -> None:
    model = object()

    def predict(batch: pa.RecordBatch) -> Any:
        assert model is not None
        return double(batch)

    with repo.transaction() as tx, pytest.raises(tr.InvalidInputError, match="version='1'"):
        tx.derive("derived", "source", predict)
    for version, anew in [("1", ""), ("1", ""), ("2", "the function is another one")]:
        with repo.transaction() as tx:
            report = tx.derive("derived", "source", predict, version=version).derived
        assert report.anew == anew


@pytest.mark.together
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"executor": "fork"}, "executor"),
        ({"batch": 0}, "batch"),
        ({"check": 2}, "check"),
        ({"workers": 0}, "workers"),
        ({"columns": "x"}, "columns"),
        ({"columns": ["z"]}, "'z'"),
        ({"version": 1}, "version"),
        ({"types": ["int64"]}, "types"),
    ],
)
def test_options_that_are_wrong_are_refused(
    repo: tr.Repository, wrong: dict[str, Any], message: str
) -> None:
    with repo.transaction() as tx, pytest.raises(tr.Error, match=message):
        tx.derive("derived", "source", double, **{"columns": ["x"], **wrong})


def test_a_source_has_to_be_another_dataset_that_is_there(repo: tr.Repository) -> None:
    with repo.transaction() as tx:
        for name in ("nothing", "derived"):
            with pytest.raises(tr.NotFoundError, match="another dataset of the branch"):
                tx.derive("derived", name, double)


def test_a_source_without_rows_needs_types(repo: tr.Repository) -> None:
    with repo.transaction() as tx:
        tx.dataset("source").delete(slice(None))
        with pytest.raises(tr.InvalidInputError, match="no rows to tell columns by"):
            tx.derive("derived", "source", double)
        assert len(tx.derive("derived", "source", double, types={"y": "int64"})) == 0


def test_a_purged_row_takes_what_was_made_of_it_along(repo: tr.Repository) -> None:
    _derive(repo)
    before = repo.dataset("derived").row_ids([5])
    repo.purge("source", where="x == 5", reason="consent withdrawn")
    assert 10 not in repo.dataset("derived")["y"][:]
    with pytest.raises(tr.Error, match="purged"):
        repo.dataset("derived").rows_by_id(before)
    assert _derive(repo) == DerivationReport(kept=ROWS - 1)
    assert _is_derived(repo)


KILLED = """
import os, sys
import tensorrepo as tr
from tests.tensorrepo.verbs.test_derive import double

def progress(done, total):
    if done >= 3000:
        os.kill(os.getpid(), 9)

with tr.open(sys.argv[1], author='Ada <ada@example.org>').transaction() as tx:
    tx.derive("derived", "source", double, columns=["x"], checkpoint=8000, workers=1,
              progress=progress)
"""


def test_a_call_that_was_killed_goes_on(repo: tr.Repository, tmp_path: Path) -> None:
    killed = run_python("-c", KILLED, tmp_path / "store", check=False)
    assert killed.returncode == -signal.SIGKILL
    assert "derived" not in repo.datasets()
    report = _derive(repo)
    assert report.kept + report.made == ROWS
    assert 1000 <= report.kept <= 3000 + 256  # one batch is stored before it is counted
    assert _is_derived(repo)
    assert repo.dataset("derived").row_ids() == repo.dataset("source").row_ids()
    assert not repo.context.core.log.refresh().state.leases
