"""F38: bars of progress know how much there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tensorrepo.cli import output
from tests.support.processes.shell import Shell

Told = list[tuple[str, int, int | None]]


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What bars are told: unit, how much is done, and how much there is."""
    updates: Told = []

    @contextmanager
    def bar(_: str, total: int | None, unit: str | None) -> Iterator[Callable[..., None]]:
        def update(completed: int, total: int | None = total, **_: Any) -> None:
            updates.append((unit or "bytes", completed, total))

        yield update

    monkeypatch.setattr(output, "_bar", bar)
    return updates


@pytest.mark.parametrize("how", [(), ("--append",), ("--sync",), ("--mirror",)])
def test_add_tells_bytes_of_the_file(shell: Shell, told: Told, how: tuple[str, ...]) -> None:
    source = shell.folder / "t.parquet"
    pq.write_table(pa.table({"n": range(5000), "same": ["text"] * 5000}), source)
    if how:
        shell("add", "t.parquet", "--dataset", "t")
        pq.write_table(pa.table({"n": range(9000), "same": ["text"] * 9000}), source)
    shell("add", "t.parquet", "--dataset", "t", *how)
    size = source.stat().st_size
    assert told[-1] == ("bytes", size, size)


def test_add_tells_bytes_of_a_model(full: Shell, told: Told) -> None:
    full("add", "net.safetensors", "--model", "other")
    assert told[-1] == ("bytes", 24, 24)


@pytest.mark.parametrize(
    "words",
    [
        ("export", "points", "--to", "out.parquet"),
        ("checkout", "main", "points"),
        ("update", "points", "--where", "label >= 0", "--set", "label=1"),
    ],
)
def test_rows_are_told_with_those_in_all(full: Shell, told: Told, words: tuple[str, ...]) -> None:
    full(*words)
    assert told[-1] == ("rows", 20, 20)


@pytest.mark.parametrize("how", [(), ("--deep",)])
def test_fsck_tells_bytes_of_the_store(full: Shell, told: Told, how: tuple[str, ...]) -> None:
    full("fsck", *how)
    objects = (full.folder / ".tensorrepo/store/objects").rglob("*")
    size = sum(path.stat().st_size for path in objects if path.is_file())
    unit, done, total = told[-1]
    assert (unit, total) == ("bytes", size)
    assert 0 < done <= size
