"""fsspec's filesystem as libraries use it: pandas, pyarrow and DuckDB read and write by URL."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import duckdb
import fsspec
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save

import tensorrepo as tr
from tensorrepo.filesystem.filesystem import TensorrepoFileSystem
from tensorrepo.filesystem.urls import FileUrl, parse_url
from tests.support.processes.forked_python import run_python
from tests.support.servers.service import RunningService, running_service

ADA = "Ada <ada@example.org>"
FRAME = pd.DataFrame({"a": [1, 2, 3], "b": ["x", "y", "z"]})


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with numbers and a file; nobody's cache is touched."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TENSORREPO_AUTHOR", ADA)
    place = tmp_path / "store"
    with tr.init(place).transaction(message="one") as tx:
        tx.create_dataset("numbers", {"x": np.arange(5)})
        tx.save_file("notes.txt", b"hello world")
    return place


@pytest.fixture
def filesystem(store: Path) -> TensorrepoFileSystem:
    TensorrepoFileSystem.clear_instance_cache()
    made: TensorrepoFileSystem = fsspec.filesystem("tensorrepo", url=str(store))
    return made


def messages(store: Path) -> list[str]:
    return [each.commit.message for each in tr.open(store).log("main")]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "tensorrepo://host/team/photos@main/datasets/pets.parquet",
            FileUrl("https://host/team/photos", "main", "datasets/pets.parquet"),
        ),
        ("tensorrepo://127.0.0.1:8420/a@v1", FileUrl("http://127.0.0.1:8420/a", "v1", "")),
        ("tensorrepo://[::1]:8420/a@v1/b", FileUrl("http://[::1]:8420/a", "v1", "b")),
        ("tensorrepo://localhost/a@/b", FileUrl("http://localhost/a", "main", "b")),
        ("tensorrepo:///data/store@x%2Fy/files/a", FileUrl("/data/store", "x/y", "files/a")),
        ("tensorrepo://@v1/files/a", FileUrl(None, "v1", "files/a")),
        ("tensorrepo://files/a", FileUrl(None, None, "files/a")),
        ("tensorrepo://", FileUrl(None, None, "")),
        ("files/a", FileUrl(None, None, "files/a")),
        ("/files/a/", FileUrl(None, None, "files/a")),
    ],
)
def test_a_url_names_a_repository_a_commit_and_a_path(url: str, expected: FileUrl) -> None:
    assert parse_url(url) == expected


@pytest.mark.parametrize("url", ["tensorrepo:///data/store/files/a", "tensorrepo://a.org/b/c"])
def test_a_url_that_does_not_tell_its_commit_is_refused(url: str) -> None:
    with pytest.raises(tr.InvalidInputError, match="@"):
        parse_url(url)


def test_pandas_reads_any_commit_by_url(store: Path) -> None:
    with tr.open(store).transaction(message="two") as tx:
        tx.dataset("numbers").append({"x": np.arange(2)})
    for ref, rows in (("main", 7), ("main~1", 5)):
        frame = pd.read_parquet(f"tensorrepo://{store}@{ref}/datasets/numbers.parquet")
        assert len(frame) == rows


def test_duckdb_reads_tables_by_pattern(filesystem: TensorrepoFileSystem) -> None:
    with duckdb.connect() as connection:
        connection.register_filesystem(filesystem)
        asked = connection.execute("SELECT sum(x) FROM 'tensorrepo://@main/datasets/*.parquet'")
        assert asked.fetchall() == [(10,)]


def test_a_chained_url_names_the_repository_behind_it(store: Path) -> None:
    with fsspec.open(f"tensorrepo://files/notes.txt::file://{store}") as file:
        assert file.read() == b"hello world"
    with fsspec.open(f"tensorrepo://@main/files/notes.txt::file://{store}") as file:
        assert file.read() == b"hello world"


def test_parts_of_files_are_read(filesystem: TensorrepoFileSystem) -> None:
    assert filesystem.cat_file("files/notes.txt", 6) == b"world"
    assert filesystem.cat_file("files/notes.txt", -5, -1) == b"worl"
    assert filesystem.cat_file("files/notes.txt", 5, 5) == b""
    with filesystem.open("files/notes.txt") as file:
        file.seek(-5, 2)
        assert file.read() == b"world"
    with filesystem.open("files/notes.txt", "rt") as text:
        assert text.read() == "hello world"


def test_what_is_not_there_is_told_as_python_tells_it(filesystem: TensorrepoFileSystem) -> None:
    assert not filesystem.exists("files/other.txt")
    for ask in (filesystem.info, filesystem.open, filesystem.ls, filesystem.cat_file):
        with pytest.raises(FileNotFoundError):
            ask("files/other.txt")


def test_listings_have_sizes_and_are_walked(filesystem: TensorrepoFileSystem) -> None:
    assert filesystem.find("") == ["datasets/numbers.parquet", "files/notes.txt"]
    assert filesystem.info("files/notes.txt")["size"] == 11
    size = filesystem.info("datasets/numbers.parquet")["size"]
    assert len(filesystem.cat_file("datasets/numbers.parquet")) == size
    assert filesystem.isdir("datasets")
    assert filesystem.isfile("files/notes.txt")


def test_a_frame_that_is_written_becomes_a_dataset(store: Path) -> None:
    url = f"tensorrepo://{store}@main/datasets/people.parquet"
    FRAME.to_parquet(url)
    FRAME.to_parquet(url)  # over it
    assert tr.open(store).dataset("people").to_pandas()["b"].tolist() == ["x", "y", "z"]
    FRAME.to_csv(f"tensorrepo://{store}@main/datasets/table.csv", index=False)
    assert len(tr.open(store).dataset("table")) == 3


def test_a_transaction_is_one_commit(store: Path, filesystem: TensorrepoFileSystem) -> None:
    with filesystem.transaction:
        with filesystem.open("files/a.txt", "wb") as file:
            file.write(b"one")
        with filesystem.open("models/net/config.json", "w") as text:
            text.write("{}")
        with filesystem.open("models/net/model.safetensors", "wb") as file:
            file.write(save({"w": np.ones(4, np.float32)}))
        filesystem.rm("files/notes.txt")
        assert tr.open(store).entries("main", "models/") == {}
    assert len(messages(store)) == 2
    repository = tr.open(store)
    assert list(repository.entries("main")) == ["datasets/numbers", "files/a.txt", "models/net"]
    assert repository.model("net")["w"].tolist() == [1, 1, 1, 1]
    assert filesystem.cat_file("models/net/config.json") == b"{}"


def test_a_transaction_that_fails_commits_nothing(
    store: Path, filesystem: TensorrepoFileSystem
) -> None:
    def change() -> None:
        with filesystem.transaction:
            with filesystem.open("files/a.txt", "wb") as file:
                file.write(b"one")
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        change()
    assert messages(store) == ["one"]
    with filesystem.open("files/b.txt", "wb") as file:
        file.write(b"two")
    assert filesystem.cat_file("files/b.txt") == b"two"


def test_a_table_that_cannot_be_read_is_not_committed(
    store: Path, filesystem: TensorrepoFileSystem
) -> None:
    def write() -> None:
        with filesystem.open("datasets/bad.parquet", "wb") as file:
            file.write(b"garbage")

    with pytest.raises(tr.InvalidInputError):
        write()
    assert messages(store) == ["one"]


def test_a_file_whose_writer_fails_is_not_committed(
    store: Path, filesystem: TensorrepoFileSystem
) -> None:
    def write() -> None:
        with filesystem.open("files/half.txt", "wb") as file:
            file.write(b"half")
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        write()
    assert messages(store) == ["one"]


@pytest.mark.together
@pytest.mark.parametrize(
    "path", ["other/a.txt", "files", "datasets/x", "models/x", "models/x.txt", "files/../a", ""]
)
def test_nothing_is_written_where_no_entry_can_be(
    filesystem: TensorrepoFileSystem, path: str
) -> None:
    with pytest.raises(tr.InvalidInputError):
        filesystem.open(path, "wb")


def test_nothing_is_written_to_a_tag(store: Path) -> None:
    tr.open(store).create_tag("v1")
    tagged = fsspec.filesystem("tensorrepo", url=str(store), ref="v1")
    with pytest.raises(tr.ConflictError, match="no branch"):
        tagged.pipe_file("files/a.txt", b"a")


def test_entries_are_copied_moved_and_removed(filesystem: TensorrepoFileSystem) -> None:
    filesystem.cp_file("files/notes.txt", "files/copy.txt")
    assert filesystem.cat_file("files/copy.txt") == b"hello world"
    filesystem.mv("datasets/numbers.parquet", "datasets/moved.parquet")
    assert pq.read_table("datasets/moved.parquet", filesystem=filesystem)["x"].to_pylist() == [
        0, 1, 2, 3, 4,
    ]  # fmt: skip
    with pytest.raises(IsADirectoryError):
        filesystem.rm("files")
    filesystem.rm("files", recursive=True)
    assert filesystem.find("") == ["datasets/moved.parquet"]


def test_a_filesystem_goes_to_other_processes(filesystem: TensorrepoFileSystem) -> None:
    again = pickle.loads(pickle.dumps(filesystem))
    assert again.cat_file("files/notes.txt") == b"hello world"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with running_service(tmp_path_factory.mktemp("service")) as running:
        yield running


FORKED = """
import os, signal, sys, fsspec

def read():
    with fsspec.open(sys.argv[1], "rb") as file:
        return len(file.read())

before = read()
if os.fork() == 0:
    signal.alarm(60)
    os._exit(0 if read() == before else 1)
sys.exit(os.WEXITSTATUS(status) if os.WIFEXITED(status := os.wait()[1]) else 2)
"""


def test_a_process_that_was_forked_reads_models_too(store: Path) -> None:
    weights = {"w": np.arange(1_000_000, dtype="f4"), "v": np.ones((200, 100), "f4")}
    with tr.open(store).transaction(message="Model") as tx:
        tx.save_model("forked", weights)
    url = f"tensorrepo://{store}@main/models/forked/model.safetensors"
    assert run_python("-c", FORKED, url).returncode == 0


def test_files_are_read_and_written_through_a_service(
    service: RunningService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    tr.init(f"{service.url}/team/files", storage_options={"token": service.token})
    place = service.url.removeprefix("http://")
    options = {"token": service.token, "author": ADA}
    url = f"tensorrepo://{place}/team/files@main/datasets/people.parquet"
    FRAME.to_parquet(url, storage_options=options)
    assert pd.read_parquet(url, storage_options=options)["a"].tolist() == [1, 2, 3]
