"""F1: data that is gone or damaged is found, and named by column and rows, or by tensor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.objects import store
from tensorrepo.repo.objects.envelope import Kind
from tests.support.processes.shell import Shell

CORRUPT = 5
ROWS = 4000


@pytest.fixture
def stored(shell: Shell) -> Shell:
    """Two versions of a dataset, whose chunks are objects, and a model with a pack of its own."""
    rng = np.random.default_rng(0)
    np.savez(shell.folder / "one.npz", x=rng.random((ROWS, 64)), y=np.arange(ROWS))
    save_file({"w": rng.random((300, 300)), "b": rng.random(300)}, shell.folder / "net.safetensors")
    shell("add", "one.npz", "--dataset", "one")
    shell("add", "net.safetensors", "--model", "net")
    shell("commit", "-m", "First")
    shell("tag", "v1")
    shell("update", "one", "--row", "7", "--set", "y=0")
    shell("commit", "-m", "Second")
    return shell


def largest(shell: Shell, kind: Kind) -> Path:
    """The file of the largest object of a kind."""
    objects = shell.repository().context.core.objects
    files = (shell.folder / ".tensorrepo/store/objects").rglob("*/*")
    of_kind = [
        path for path in files if objects.describe(path.parent.name + path.name).kind is kind
    ]
    return max(of_kind, key=lambda path: path.stat().st_size)


def flip(path: Path, at: int) -> None:
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[at] ^= 0xFF
    path.write_bytes(data)


def test_what_is_whole_is_said_to_be(stored: Shell) -> None:
    assert stored("fsck").startswith("ok: ")
    assert "2 commits" in stored("fsck", "--deep")
    assert "all there" in stored("doctor")


def test_a_pack_that_is_gone_is_named_by_its_tensors(stored: Shell) -> None:
    largest(stored, Kind.PACK).unlink()
    done = stored.run("fsck")
    assert done.exit_code == CORRUPT
    assert "models/net" in done.stdout
    assert "'w'" in done.stdout
    assert "datasets/one" not in done.stdout
    examined = stored.run("doctor")
    assert examined.exit_code == CORRUPT
    assert "models/net" in examined.stdout


def test_a_chunk_that_is_gone_or_short_is_named_by_column_and_rows(stored: Shell) -> None:
    chunk = largest(stored, Kind.CHUNK)
    whole = chunk.read_bytes()
    chunk.chmod(0o644)
    chunk.write_bytes(whole[:-1])
    (fault,) = stored.json_of_failure(CORRUPT, "fsck")["faults"]
    assert (fault["path"], fault["kind"]) == ("datasets/one", "chunk")
    assert "bytes" in fault["problem"]
    chunk.unlink()
    (fault,) = stored.json_of_failure(CORRUPT, "fsck", "datasets/one")["faults"]
    assert fault["parts"] == [f"column 'x', rows 0 to {ROWS:,}"]
    assert stored("fsck", "models/net").startswith("ok: ")


def test_a_flipped_byte_is_found_by_reading_all(stored: Shell) -> None:
    chunk = largest(stored, Kind.CHUNK)
    flip(chunk, chunk.stat().st_size // 2)
    assert stored("fsck").startswith("ok: ")
    (fault,) = stored.json_of_failure(CORRUPT, "fsck", "--deep")["faults"]
    (rows,) = fault["parts"]
    assert rows.startswith("column 'x', rows ")
    assert rows != f"column 'x', rows 0 to {ROWS:,}"


@pytest.mark.parametrize("kind", [Kind.DATASET, Kind.MODEL, Kind.PLACEMENT, Kind.COMMIT])
def test_damaged_metadata_is_a_fault_and_hides_no_other(stored: Shell, kind: Kind) -> None:
    path, chunk = largest(stored, kind), largest(stored, Kind.CHUNK)
    flip(path, path.stat().st_size - 1)
    chunk.unlink()
    faults = stored.json_of_failure(CORRUPT, "fsck")["faults"]
    assert len({fault["digest"] for fault in faults}) == len(faults) == 2


def test_an_entry_is_checked_alone_and_not_what_begins_like_it(stored: Shell) -> None:
    stored("add", "net.safetensors", "--model", "net2")
    np.savez(stored.folder / "one2.npz", x=np.random.default_rng(1).random((ROWS, 64)))
    before = {*(stored.folder / ".tensorrepo/store/objects").rglob("*/*")}
    stored("add", "one2.npz", "--dataset", "one2")
    stored("commit", "-m", "Another one")
    made = {*(stored.folder / ".tensorrepo/store/objects").rglob("*/*")} - before
    max(made, key=lambda path: path.stat().st_size).unlink()
    assert stored("fsck", "datasets/one").startswith("ok: ")
    assert stored.run("fsck", "datasets/one2").exit_code == CORRUPT


def test_a_file_is_read_in_steps(stored: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    (stored.folder / "large.bin").write_bytes(np.random.default_rng(0).bytes(3 << 20))
    stored("add", "large.bin", "--file", "large.bin")
    stored("commit", "-m", "A file")
    monkeypatch.setattr(store, "VERIFY_BYTES", 1 << 20)
    assert stored("fsck", "--deep").startswith("ok: ")
    blob = largest(stored, Kind.BLOB)
    flip(blob, 2 << 20)
    assert stored("fsck").startswith("ok: ")
    (fault,) = stored.json_of_failure(CORRUPT, "fsck", "--deep")["faults"]
    assert (fault["path"], fault["kind"]) == ("files/large.bin", "blob")
    blob.unlink()
    (fault,) = stored.json_of_failure(CORRUPT, "fsck")["faults"]
    assert fault["path"] == "files/large.bin"


def test_a_summary_that_is_not_of_the_content_is_named(stored: Shell) -> None:
    with begin(stored.repository().context.core, "main") as transaction:
        entry = transaction.entry("datasets/one")
        assert entry is not None
        transaction.stage("datasets/two", replace(entry, summary=bytes(len(entry.summary))))
        transaction.commit("Lie", author="Eve <eve@example.org>")
    (fault,) = stored.json_of_failure(CORRUPT, "fsck")["faults"]
    assert (fault["path"], fault["kind"]) == ("datasets/two", "dataset")
    assert "summary" in fault["problem"]
