"""Whatever is wrong with the input: a clear error, its exit code, and nothing changed."""

from __future__ import annotations

import gzip
import json
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.repo.history.commits import Commit, write_commit
from tensorrepo.repo.history.trees import EMPTY_TREE
from tensorrepo.repo.objects.writer import ObjectWriter
from tests.support.faults.places import read_only, small_disk
from tests.support.processes.shell import Shell, write_pictures, write_points

USAGE, NOT_FOUND, CORRUPT, PERMISSION, STORAGE, UNSUPPORTED = 2, 3, 5, 6, 7, 8


def short_safetensors(path: Path) -> None:
    path.write_bytes(struct.pack("<Q", 1 << 40) + b"{}")


def lying_safetensors(path: Path) -> None:
    header = json.dumps({"w": {"dtype": "F32", "shape": [1000], "data_offsets": [0, 4000]}})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(8))


def short_gguf(path: Path) -> None:
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, 0))


def lying_idx(path: Path) -> None:
    path.write_bytes(struct.pack(">BBBBIII", 0, 0, 8, 3, 60000, 28, 28) + bytes(100))


def short_gzipped_idx(path: Path) -> None:
    whole = gzip.compress(struct.pack(">BBBBI", 0, 0, 8, 1, 1000) + bytes(1000))
    path.write_bytes(whole[: len(whole) // 2])


def short_npz(path: Path) -> None:
    write_points(path, 100)
    path.write_bytes(path.read_bytes()[:-40])


def lying_npy(path: Path) -> None:
    np.save(path, np.zeros((2, 2)))
    path.write_bytes(path.read_bytes().replace(b"(2, 2)", b"(9, 9)"))


def pickled_npy(path: Path) -> None:
    np.save(path, np.array([{"evil": 1}], dtype=object), allow_pickle=True)


def short_parquet(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": list(range(1000))}), path)
    path.write_bytes(path.read_bytes()[:-20])


def text_as_parquet(path: Path) -> None:
    path.write_text("this is no Parquet file")


def empty_file(path: Path) -> None:
    path.write_bytes(b"")


def empty_folder(path: Path) -> None:
    path.mkdir()


def only_hidden(path: Path) -> None:
    path.mkdir()
    (path / ".DS_Store").write_bytes(b"x")


def header_alone(path: Path) -> None:
    path.write_text("a,b\n")


def no_rows(path: Path) -> None:
    np.savez(path, x=np.zeros((0, 3)))


def uneven_rows(path: Path) -> None:
    np.savez(path, x=np.zeros(3), y=np.zeros(4))


def ragged_csv(path: Path) -> None:
    path.write_text("a,b\n1,2\n3\n")


def damaged_picture(path: Path) -> None:
    write_pictures(path)
    picture = path / "cat/01.png"
    picture.write_bytes(picture.read_bytes()[:40])


def foreign_pickle(path: Path) -> None:
    path.write_bytes(pickle.dumps({"w": np.zeros(3)}))


BAD_SOURCES: list[tuple[str, str, Callable[[Path], None]]] = [
    ("net.safetensors", "--model", short_safetensors),
    ("net.safetensors", "--model", lying_safetensors),
    ("net.gguf", "--model", short_gguf),
    ("net.onnx", "--model", empty_file),
    ("net.safetensors", "--model", empty_file),
    ("net.pt", "--model", foreign_pickle),
    ("net", "--model", empty_folder),
    ("images-idx3-ubyte", "--dataset", lying_idx),
    ("labels-idx1-ubyte.gz", "--dataset", short_gzipped_idx),
    ("t.npz", "--dataset", short_npz),
    ("t.npz", "--dataset", no_rows),
    ("t.npz", "--dataset", uneven_rows),
    ("t.npy", "--dataset", lying_npy),
    ("t.npy", "--dataset", pickled_npy),
    ("t.parquet", "--dataset", short_parquet),
    ("t.parquet", "--dataset", text_as_parquet),
    ("t.csv", "--dataset", header_alone),
    ("t.csv", "--dataset", ragged_csv),
    ("t.csv", "--dataset", empty_file),
    ("t.pkl", "--dataset", foreign_pickle),
    ("t", "--dataset", empty_folder),
    ("t", "--dataset", only_hidden),
    ("t", "--dataset", damaged_picture),
    ("t", "--file", empty_folder),
]


@pytest.mark.parametrize(
    ("name", "kind", "make"), BAD_SOURCES, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_a_source_that_cannot_be_used_is_named_and_changes_nothing(
    full: Shell, name: str, kind: str, make: Callable[[Path], None]
) -> None:
    (full.folder / "in").mkdir()
    make(full.folder / "in" / name)
    before = full.snapshot()
    told = full.fails(USAGE, "add", f"in/{name}", kind, "new")
    assert "error (invalid-input)" in told
    assert name in told
    assert full.snapshot() == before


def test_a_source_that_is_not_there_is_not_found(full: Shell) -> None:
    before = full.snapshot()
    assert "nowhere.csv" in full.fails(NOT_FOUND, "add", "nowhere.csv", "--dataset", "new")
    assert full.snapshot() == before


@pytest.mark.together
@pytest.mark.parametrize(
    "name", ["../up", "a//b", "/abs", "naïve", "a b", "con", "nul.txt", "x" * 300, "a\\b", ".", ""]
)
def test_names_outside_of_the_grammar_are_refused_with_the_rule(full: Shell, name: str) -> None:
    before = full.snapshot()
    full.fails(USAGE, "add", "points.npz", "--dataset", name)
    full.fails(USAGE, "mv", "points", name)
    assert full.snapshot() == before


def test_unicode_in_paths_values_and_messages_is_kept(shell: Shell) -> None:
    (shell.folder / "données ü.csv").write_text("größe\n1\n", "utf-8")
    shell("add", "données ü.csv", "--dataset", "d")
    shell("commit", "-m", "Größe – 大きさ")
    assert "Größe – 大きさ" in shell("log")
    assert shell.repository().dataset("d").schema.names == ("größe",)


@pytest.mark.parametrize("words", [("status",), ("log",), ("commit", "-m", "x"), ("undo",)])
def test_outside_of_a_workspace_the_way_in_is_told(empty: Shell, words: tuple[str, ...]) -> None:
    told = empty.fails(NOT_FOUND, *words)
    assert "tensorrepo init" in told
    assert list(empty.folder.iterdir()) == []


def test_a_folder_that_is_no_repository_is_not_taken_for_one(full: Shell, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    told = full.fails(NOT_FOUND, "log", "--repo", str(tmp_path / "plain"))
    assert "repo.json" in told
    assert list((tmp_path / "plain").iterdir()) == []


@pytest.mark.parametrize("url", ["s3:/bucket", "nosuch://place", "s3://"])
def test_a_wrong_url_is_refused(empty: Shell, url: str) -> None:
    done = empty.run("init", url)
    assert done.exit_code in {USAGE, UNSUPPORTED}, done.output
    assert "error" in done.stderr
    assert list(empty.folder.iterdir()) == []


def test_an_unknown_entry_suggests_near_ones(full: Shell) -> None:
    assert "Did you mean datasets/points?" in full.fails(NOT_FOUND, "cat", "pionts")
    with pytest.raises(tr.NotFoundError, match="datasets/points"):
        full.repository().dataset("pionts")


def test_a_digest_of_two_commits_is_ambiguous(full: Shell) -> None:
    # These two commits, found by trying, have digests that begin with the same 8 digits.
    core = full.repository().context.core
    writer = ObjectWriter(core.objects, ())
    digests = [write_commit(writer, twin(number)).digest for number in TWINS]
    writer.flush()
    assert digests[0][:8] == digests[1][:8]
    told = full.fails(USAGE, "show", digests[0][:8])
    assert "ambiguous" in told
    assert digests[0][:16] in told


TWINS = (19649, 43440)


def twin(number: int) -> Commit:
    return Commit(
        tree=EMPTY_TREE,
        parents=(),
        generation=1,
        author="Ada <ada@example.org>",
        message=f"Twin {number}",
        time_ns=1_700_000_000_000_000_000,
        metadata={},
        changed=(),
        signature=None,
    )


def test_a_damaged_object_is_never_shown(full: Shell) -> None:
    store = full.folder / ".tensorrepo/store/objects"
    for path in store.rglob("*"):
        if path.is_file():
            data = bytearray(path.read_bytes())
            data[-1] ^= 0xFF
            path.chmod(0o644)
            path.write_bytes(data)
    told = full.fails(CORRUPT, "cat", "points")
    assert "error (corrupt)" in told
    assert full.run("doctor").exit_code == CORRUPT


@pytest.mark.parametrize(
    ("file", "exit_code"),
    [("workspace.json", CORRUPT), ("staged.json", CORRUPT), ("store/repo.json", CORRUPT)],
)
def test_a_damaged_state_file_is_named(full: Shell, file: str, exit_code: int) -> None:
    path = full.folder / ".tensorrepo" / file
    path.chmod(0o644)
    path.write_text('{"format": ')
    assert path.name in full.fails(exit_code, "status")


@pytest.mark.parametrize("file", ["workspace.json", "store/repo.json"])
def test_a_newer_format_asks_for_an_update(full: Shell, file: str) -> None:
    path = full.folder / ".tensorrepo" / file
    path.chmod(0o644)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    assert "pdate" in full.fails(UNSUPPORTED, "status")


def test_a_read_only_workspace_can_be_looked_at_and_says_what_it_cannot(full: Shell) -> None:
    with read_only(full.folder):
        assert "First" in full("log")
        assert "On branch main" in full("status")
        told = full.fails(PERMISSION, "rm", "net")
        assert "error (permission)" in told


def test_a_read_only_repository_can_be_read_and_not_written(full: Shell, tmp_path: Path) -> None:
    other = Shell(tmp_path / "other", full.home)
    other.folder.mkdir()
    store = full.folder / ".tensorrepo/store"
    other("init", str(store))
    with read_only(store):
        assert "20" in other("show", "main:points")
        write_points(other.folder / "more.npz")
        before = other.snapshot()
        assert "error (permission)" in other.fails(PERMISSION, "add", "more.npz", "--dataset", "m")
        assert other.snapshot() == before


@pytest.mark.parametrize("url", [None, "store"])
def test_init_where_nothing_can_be_written(empty: Shell, url: str | None) -> None:
    with read_only(empty.folder):
        assert "permission" in empty.fails(PERMISSION, "init", *([url] if url else []))


def test_a_full_disk_says_so_and_the_work_goes_on_elsewhere(empty: Shell, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    with small_disk(disk, 2 << 20):
        empty("init", str(disk / "store"))
        np.save(empty.folder / "big.npy", np.random.default_rng(0).normal(size=(600_000,)))
        before = empty.snapshot()
        told = empty.fails(STORAGE, "add", "big.npy", "--dataset", "big")
        assert "space" in told
        assert empty.snapshot() == before
        write_points(empty.folder / "small.npz")
        empty("add", "small.npz", "--dataset", "small")
        empty("commit", "-m", "fits")


def test_a_label_that_is_nan_is_refused_with_its_row(full: Shell) -> None:
    repo = full.repository()
    before = repo.branches()
    with pytest.raises(tr.InvalidInputError, match="label"):
        append_labels(repo, np.array([0.0, float("nan")]))
    assert repo.branches() == before


def append_labels(repo: tr.Repository, labels: np.ndarray[Any, Any]) -> None:
    with repo.transaction("main") as tx:
        ds = tx.create_dataset("labelled", columns={"label": tr.ClassLabel(("cat", "dog"))})
        ds.append({"label": labels})


def test_numbers_that_are_nan_are_data(shell: Shell) -> None:
    (shell.folder / "t.csv").write_text("x\n1.0\nnan\n")
    shell("add", "t.csv", "--dataset", "t")
    shell("commit", "-m", "t")
    assert len(shell.repository().dataset("t")) == 2


@pytest.mark.together
@pytest.mark.parametrize(
    "words",
    [
        ("dataset", "stream", "points", "--shuffle", "sideways"),
        ("dataset", "stream", "points", "--window", "lots"),
        ("dataset", "stream", "points", "--batch-size", "0"),
        ("log", "v1...main"),
        ("log", "v1", "main"),
        ("diff", "a", "b", "c"),
        ("add", "points.npz", "--dataset", "a", "--model", "b"),
        ("add", "points.npz", "--dataset", "a", "--format", "exel"),
        ("add", "points.npz", "--dataset", "a", "-o", "nothing"),
        ("add", "notes.txt", "--file", "a", "-o", "header=no"),
        ("cat", "points", "--rows", "-1"),
        ("branch", "-d"),
        ("config", "cache.limit", "plenty"),
        ("comit",),
        ("log", "--nonsense"),
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2_and_changes_nothing(full: Shell, words: tuple[str, ...]) -> None:
    before = full.snapshot()
    full.fails(USAGE, *words)
    assert full.snapshot() == before


@pytest.mark.parametrize(
    "words",
    [
        ("signer", "add", "ada", "{}"),
        ("search", "points", "x", "--vector", "{}"),
        ("serve", "--tls-certificate", "{}", "--tls-key", "{}", "--data", "service"),
        ("serve", "--restore", "{}", "--data", "service"),
        ("add", "{}", "--file", "one"),
        ("bundle", "unbundle", "{}"),
        ("audit", "verify", "{}"),
    ],
    ids=" ".join,
)
def test_a_file_that_is_not_there_is_named_in_words(full: Shell, words: tuple[str, ...]) -> None:
    told = full.run(*(word.format("nowhere") for word in words)).stderr
    assert f"{full.folder}/nowhere" in told or "--vector nowhere" in told
    assert "Errno" not in told
