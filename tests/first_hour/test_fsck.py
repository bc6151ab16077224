"""F1: data that is gone or damaged is found, and named by column and rows, or by tensor."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from tensorrepo.formats.dataset.read import open_dataset
from tensorrepo.formats.model.stored_model import open_model
from tensorrepo.formats.model.verification import verify_model
from tensorrepo.repo.changes import object_content as checking
from tensorrepo.repo.changes.transaction import begin
from tensorrepo.repo.errors import CorruptError, NotFoundError
from tensorrepo.repo.history.commits import walk
from tensorrepo.repo.objects.envelope import Kind
from tests.support.effort import check_each
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


def test_what_the_error_of_a_damaged_file_says_to_run_finds_it(shell: Shell) -> None:
    (shell.folder / "notes.bin").write_bytes(bytes(3000))
    shell("add", "notes.bin", "--file", "notes.bin")
    shell("commit", "-m", "First")
    blob = largest(shell, Kind.BLOB)
    flip(blob, 2000)
    told = shell.fails(CORRUPT, "cat", "files/notes.bin")
    (command,) = re.findall(r"`tensorrepo (fsck[^`]*)`", told)
    assert f"{blob.parent.name}{blob.name:.10}" in shell.run(*shlex.split(command)).stdout


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
    monkeypatch.setattr(checking, "VERIFY_BYTES", 1 << 20)
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
        empty = msgspec.structs.replace(entry, summary=bytes(len(entry.summary)))
        transaction.stage("datasets/two", empty)
        transaction.commit("Lie", author="Eve <eve@example.org>")
    (fault,) = stored.json_of_failure(CORRUPT, "fsck")["faults"]
    assert (fault["path"], fault["kind"]) == ("datasets/two", "dataset")
    assert "summary" in fault["problem"]


def readable(shell: Shell) -> set[str]:
    """Entries of all commits that can be read to the last byte, as ``commit:path``."""
    core = shell.repository().context.core
    found = set()
    state = core.log.refresh().state
    for digest, commit in _commits(core.objects, sorted(set(state.refs.values()))):
        for path, entry in core.entries(commit.tree):
            try:
                if entry.kind is Kind.DATASET:
                    list(open_dataset(core.objects, entry.digest).to_batches())
                elif verify_model(open_model(core.objects, entry)).faults:
                    continue
            except (CorruptError, NotFoundError):
                continue
            found.add(f"{digest}:{path}")
    return found


def _commits(objects: object, tips: list[str]) -> Iterator[tuple[str, object]]:
    try:
        yield from walk(objects, tips)
    except (CorruptError, NotFoundError):
        return  # of the history behind it nothing is known


def test_what_is_not_damaged_can_be_read_and_what_cannot_is_named(stored: Shell) -> None:
    whole = readable(stored)
    assert len(whole) == 4

    def check(kind: Kind) -> None:
        path = largest(stored, kind)
        before = path.read_bytes()
        flip(path, len(before) // 2)
        lost = whole - readable(stored)
        told = stored.json_of_failure(CORRUPT, "fsck", "--deep")["faults"]
        named = {name for fault in told for name in (fault["path"], *fault["also"])}
        assert lost
        assert kind is Kind.COMMIT or {each.partition(":")[2] for each in lost} == named
        assert kind is Kind.COMMIT or len(named) == 1  # the other one reads
        assert len({fault["digest"] for fault in told}) == len(told) == 1
        path.write_bytes(before)

    kinds = [Kind.CHUNK, Kind.PACK, Kind.DATASET, Kind.MODEL, Kind.PLACEMENT, Kind.COMMIT]
    check_each(kinds, check)
    assert readable(stored) == whole


def test_repair_asks_the_copy_that_is_named_and_keeps_what_was_damaged(stored: Shell) -> None:
    copy = stored.folder.parent / "copy"
    stored("clone", ".", str(copy))
    stored("add", "net.safetensors", "--model", "twin")
    stored("commit", "-m", "The same model under another name")
    pack = largest(stored, Kind.PACK)
    before = pack.read_bytes()
    flip(pack, len(before) // 2)
    damaged = pack.read_bytes()
    (fault,) = stored.json_of_failure(CORRUPT, "fsck", "--deep")["faults"]
    assert {fault["path"], *fault["also"]} == {"models/net", "models/twin"}
    assert "give both" in stored.fails(2, "fsck", "--from", str(copy))
    assert "by --from URL" in stored.run("fsck", "--deep", "--repair").stdout
    done = stored.records("fsck", "--deep", "--repair", "--from", str(copy))
    quarantined, repaired, report = done
    assert repaired["repaired"] == "pack"
    assert repaired["from"].startswith(str(copy))
    kept = stored.folder / ".tensorrepo/store" / quarantined["place"]
    assert kept.read_bytes() == damaged
    assert report["faults"] == []
    assert report["unknown"] == []
    assert pack.read_bytes() == before


def test_a_repository_without_its_identity_gets_it_back_from_a_mirror(stored: Shell) -> None:
    mirror = stored.folder.parent / "mirror"
    identity = stored.folder / ".tensorrepo/store/repo.json"
    stored("clone", ".", str(mirror), "--mirror")
    identity.chmod(0o644)
    identity.write_text("{}")
    assert "repo.json is damaged" in stored.fails(CORRUPT, "fsck")
    told = stored("fsck", "--repair", "--from", str(mirror))
    assert f"repo.json is back, from {mirror}" in told
    assert "ok: " in told


def test_the_command_that_an_error_names_finds_the_damage(stored: Shell) -> None:
    lazy = stored.folder.parent / "lazy"
    origin = stored.folder / ".tensorrepo/store"
    stored("clone", ".", str(lazy), "--lazy")
    chunk = largest(stored, Kind.CHUNK)
    digest = chunk.parent.name + chunk.name
    flip(chunk, chunk.stat().st_size // 2)
    there = replace(stored, folder=lazy)
    error = there.fails(CORRUPT, "cat", "one", "-n", str(ROWS), "--json")
    assert str(lazy) not in error
    assert there("fsck", "--deep").startswith("ok: ")  # what it left at its origin is checked there
    (command,) = set(re.findall(r"`tensorrepo (fsck [^`]*)`", error))
    assert str(origin) in command
    words = [word for word in shlex.split(command) if word != "--repair"]
    (fault,) = there.json_of_failure(CORRUPT, *words)["faults"]
    assert fault["digest"] == digest
