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


@pytest.mark.parametrize("how", [(), ("--append",), ("--upsert", "n"), ("--sync",)])
@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_add_of_text_tells_bytes_of_the_file(
    shell: Shell, told: Told, suffix: str, how: tuple[str, ...]
) -> None:
    row = "{0},text {0}\n" if suffix == "csv" else '{{"n": {0}, "text": "text {0}"}}\n'
    source = shell.folder / f"t.{suffix}"
    head = "n,text\n" if suffix == "csv" else ""
    source.write_text(head + "".join(map(row.format, range(500))))
    if how:
        shell("add", source.name, "--dataset", "t")
        source.write_text(head + "".join(map(row.format, range(900))))
    shell("add", source.name, "--dataset", "t", *how)
    size = source.stat().st_size
    assert told[-1] == ("bytes", size, size)


def test_adopt_tells_bytes_of_all_files(shell: Shell, told: Told) -> None:
    for name in ("a", "b"):
        pq.write_table(pa.table({"n": range(5000)}), shell.folder / f"{name}.parquet")
    paths = [str(shell.folder / f"{name}.parquet") for name in ("a", "b")]
    shell("config", "outside.allow", str(shell.folder))
    shell("dataset", "adopt", *paths, "--dataset", "t")
    size = sum((shell.folder / f"{name}.parquet").stat().st_size for name in ("a", "b"))
    assert {total for _, _, total in told} == {size}
    assert told[-1] == ("bytes", size, size)


def test_add_of_plain_files_tells_bytes_of_all(shell: Shell, told: Told) -> None:
    (shell.folder / "docs").mkdir()
    for name in ("a", "b"):
        (shell.folder / "docs" / name).write_bytes(b"x" * 1000)
    shell("add", "docs", "--file", "docs")
    assert [done for _, done, _ in told] == [0, 1000, 1000, 2000]
    assert {(unit, total) for unit, _, total in told} == {("bytes", 2000)}


@pytest.mark.parametrize("form", ["safetensors", "npz", "gguf", "torch", "hf"])
def test_export_of_a_model_tells_bytes_of_its_tensors(full: Shell, told: Told, form: str) -> None:
    full("model", "export", "net", "--format", form, "--to", "out")
    assert told[-1] == ("bytes", 24, 24)


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
