"""Arguments of `Dataset.stream`: wrong ones are named as written, and ranks are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.connect import Machine, page_cache, world


@pytest.fixture
def numbers(tmp_path: Path) -> tr.Dataset:
    repo = tr.init(str(tmp_path / "repo"), author="Ada <ada@example.org>")
    with repo.transaction("main") as tx:
        tx.create_dataset("numbers", columns=tr.Schema.of({"x": "int64"})).append(
            {"x": np.arange(100)}
        )
    return repo.dataset("numbers")


@pytest.mark.together
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loading": tr.Loading(cache_dir=3)}, "cache_dir is the path of a folder, got 3"),  # type: ignore[arg-type]
        ({"batch_size": "64"}, "batch_size is a whole number"),
        ({"sampling": "label"}, r"sampling is .* as tr.Sampling\(...\) gives it, got 'label'"),
        ({"ranks": tr.Ranks(rank=3)}, "rank=3 and no world_size= or WORLD_SIZE"),
        (
            {"ranks": tr.Ranks(world_size=2)},
            r"world_size=2 without a rank: .* Give Ranks\(rank=...\), or set RANK",
        ),
        ({"transform": 3}, "transform is a function, got 3"),
        ({"columns": "x"}, r"columns=\['x'\]"),
    ],
)
def test_a_wrong_argument_is_named_as_it_was_written(
    numbers: tr.Dataset, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(tr.InvalidInputError, match=message):
        numbers.stream(**{"batch_size": 8} | options)


@pytest.mark.usefixtures("numbers")
def test_the_state_of_another_dataset_of_the_commit_is_named(tmp_path: Path) -> None:
    repo = tr.open(str(tmp_path / "repo"), author="Ada <ada@example.org>")
    with repo.transaction("main") as tx:
        tx.create_dataset("others", columns=tr.Schema.of({"x": "int64"})).append(
            {"x": np.arange(9)}
        )
    state = repo.dataset("others").stream(batch_size=8).state_dict()
    found = repo.dataset("numbers").stream(batch_size=8)
    with pytest.raises(
        tr.InvalidInputError, match=r"state of dataset 'others' .* and 'numbers' at"
    ):
        found.load_state_dict(state)
    del state["name"]
    with pytest.raises(tr.InvalidInputError, match="state of another dataset at"):
        found.load_state_dict(state)


def test_a_step_that_cannot_be_called_is_refused_before_reading(numbers: tr.Dataset) -> None:
    with pytest.raises(tr.InvalidInputError, match="step is a function, got 3"):
        numbers.stream(batch_size=8).profile(step=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environment", "given", "expected"),
    [
        ({}, (None, None), (0, 1)),
        ({"WORLD_SIZE": "1"}, (None, None), (0, 1)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, (None, None), (1, 4)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, (2, None), (2, 4)),
        ({"RANK": "1"}, (None, 3), (1, 3)),
        ({"RANK": "x", "WORLD_SIZE": "y"}, (np.int64(2), 3), (2, 3)),
        ({"WORLD_SIZE": "4"}, (0, None), (0, 4)),
    ],
)
def test_what_is_given_counts_and_else_what_is_set(
    environment: dict[str, str], given: tuple[Any, Any], expected: tuple[int, int]
) -> None:
    assert world(environment, *given) == expected


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE=2 in the environment without a rank: .* rank 0"),
        ({"RANK": "1"}, "RANK=1 in the environment and no world_size= or WORLD_SIZE"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 in the environment and WORLD_SIZE=2"),
        ({"RANK": "two", "WORLD_SIZE": "2"}, "RANK=two in the environment: expected a whole"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK=-1 in the environment: expected a whole"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE=0 in the environment: .* at least 1"),
    ],
)
def test_a_job_that_is_half_told_is_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(tr.InvalidInputError, match=message):
        world(environment)


@pytest.mark.parametrize(
    ("folder", "expected"),
    [("~/pages", "home/pages"), ("~", "home"), ("pages", "here/pages"), ("a~b", "here/a~b")],
)
def test_a_cache_may_be_named_from_home(tmp_path: Path, folder: str, expected: str) -> None:
    machine = Machine({}, tmp_path / "home", tmp_path / "here")
    cache = page_cache(machine, folder, "1MB")
    assert cache is not None
    assert cache.root == tmp_path / expected
