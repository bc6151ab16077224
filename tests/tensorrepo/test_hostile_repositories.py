"""A repository of a stranger takes no more memory, and tells a terminal no more, than its size."""

from __future__ import annotations

import tracemalloc
from uuid import uuid4

import numpy as np
import pytest

import tensorrepo as tr
from tests.support.processes.shell import Shell

ESCAPE = "\x1b]0;PWN\x07\x1b[31m\u202e"


@pytest.fixture
def hostile(shell: Shell) -> Shell:
    repo = shell.repository()
    with repo.transaction("main", message="x") as tx:
        tx.save_model("m", {f"w{ESCAPE}": np.ones(4, "f4")}, metrics={f"a{ESCAPE}": 1.0})
        classes = tr.ClassLabel([f"a{ESCAPE}", "b"])
        tx.create_dataset("c", columns={"l": classes}).append({"l": [0, 1]})
    return shell


@pytest.mark.parametrize(
    "words",
    [
        ("show", "main:models/m"),
        ("show", "main:datasets/c"),
        ("model", "desc", "m"),
        ("cat", "c"),
        ("show", "main:models/m", "--json"),
    ],
)
def test_no_name_is_obeyed_by_a_terminal(hostile: Shell, words: tuple[str, ...]) -> None:
    told = hostile(*words)
    assert "PWN" in told
    assert not set(told) & {"\x1b", "\x07", "\u202e"}


def test_no_name_in_an_error_is_obeyed_by_a_terminal(hostile: Shell) -> None:
    told = hostile.fails(2, "update", "c", "--where", "l = 'b'", "--set", "l=zzz")
    assert not set(told) & {"\x1b", "\x07", "\u202e"}


@pytest.fixture
def absent(repo_of_absent_rows: tr.Repository) -> tr.Dataset:
    return repo_of_absent_rows.dataset("n")


@pytest.fixture(scope="module")
def repo_of_absent_rows() -> tr.Repository:
    """100 rows of 64 MiB in a few KB: none of their values is stored."""
    repo = tr.init(f"memory://absent-rows-{uuid4()}", author="Ann <ann@example.org>")
    with repo.transaction("main", message="x") as tx:
        tx.create_dataset("n", {"n": list(range(100))})
    with repo.transaction("main", message="y") as tx:
        tx.dataset("n").add_column("v", tr.Tensor("float32", (4096, 4096)), nullable=True)
    return repo


def test_a_stream_makes_no_more_rows_that_are_not_stored_than_a_batch_has(
    absent: tr.Dataset,
) -> None:
    tracemalloc.start()
    try:
        batch = next(iter(absent.stream(batch_size=1)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert batch["v"].mask.all()
    assert peak < 1 << 30  # 6.25 GiB, were the rows of the run made


def test_a_batch_of_rows_that_are_not_stored_has_a_limit(absent: tr.Dataset) -> None:
    with pytest.raises(tr.InvalidInputError, match="'v' stores no values for 100 of these 100"):
        absent.stream(batch_size=100)


def test_deleted_rows_are_left_out_of_those_that_are_not_stored(
    repo_of_absent_rows: tr.Repository,
) -> None:
    with repo_of_absent_rows.transaction("main", message="z") as tx:
        tx.dataset("n").delete("n < 98")
    batches = repo_of_absent_rows.dataset("n").stream(batch_size=1, shuffle=False)
    assert [int(batch["n"][0]) for batch in batches] == [98, 99]
