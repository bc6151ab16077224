"""Adopting files in place, as people type and call it."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

import tensorrepo as tr
from tensorrepo.formats.dataset.schema.types import Link
from tensorrepo.formats.exchange.in_place.adopt import MOST_FILE_EDGES
from tensorrepo.verbs import provenance
from tests.support.builders.adopted import ROWS, write_npy, write_parquet, write_tar
from tests.support.processes.shell import Shell


def test_a_file_is_staged_and_committed_without_its_rows(shell: Shell) -> None:
    write_npy(shell.folder / "x.npy")
    assert f"{ROWS} rows" in shell("dataset", "adopt", "x.npy", "--dataset", "points")
    shell("commit", "-m", "adopt")
    assert len(shell.repository().dataset("points")) == ROWS


def test_a_folder_stands_for_its_files(shell: Shell) -> None:
    (shell.folder / "shards").mkdir()
    write_npy(shell.folder / "shards/b.npy")
    write_npy(shell.folder / "shards/a.npy")
    (shell.folder / "shards/notes.txt").write_text("no rows")
    told = shell.json("dataset", "adopt", "shards", "--dataset", "points")
    assert told["rows"] == 2 * ROWS


def test_a_name_that_exists_needs_a_mode(shell: Shell) -> None:
    write_npy(shell.folder / "x.npy")
    shell("dataset", "adopt", "x.npy", "--dataset", "points")
    assert shell.run("dataset", "adopt", "x.npy", "--dataset", "points").exit_code == 4
    assert (
        shell.json("dataset", "adopt", "x.npy", "--dataset", "points", "--append")["rows"] == ROWS
    )
    assert (
        shell.json("dataset", "adopt", "x.npy", "--dataset", "points", "--replace")["rows"] == ROWS
    )
    both = shell.run("dataset", "adopt", "x.npy", "--dataset", "points", "--append", "--replace")
    assert both.exit_code == 2


def test_columns_are_chosen_and_hashing_left_out(shell: Shell) -> None:
    write_parquet(shell.folder / "t.parquet")
    shell("dataset", "adopt", "t.parquet", "--dataset", "t", "--columns", "id,text", "--no-hash")
    shell("commit", "-m", "adopt")
    assert shell.repository().dataset("t").schema.names == ("id", "text")


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("nowhere.npy",), 3),
        (("points.npz",), 2),
        (("s3://key:secret@bucket/x.tar",), 2),
    ],
)
def test_what_cannot_be_adopted_is_refused_and_nothing_staged(
    words: tuple[str, ...], code: int, shell: Shell
) -> None:
    done = shell.run("dataset", "adopt", *words, "--dataset", "points")
    assert done.exit_code == code
    assert "secret" not in done.output
    assert shell.json("status")["staged"] == []


def test_the_sdk_adopts_in_a_transaction(tmp_path: Path) -> None:
    repo = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    path = write_tar(tmp_path / "x.tar")
    with repo.transaction("main", message="adopt") as tx:
        assert len(tx.adopt("photos", path)) == ROWS
        with pytest.raises(tr.ConflictError):
            tx.adopt("photos", path)
        assert len(tx.adopt("photos", [path], append=True)) == 2 * ROWS
    assert len(repo.dataset("photos")) == 2 * ROWS


# ------------------------------------------------------------------------------ permission


def test_a_setting_allows_places_for_this_user_alone(shell: Shell) -> None:
    shell("config", "outside.allow", "/data, S3A://bucket/raw")
    assert shell("config", "outside.allow").strip() == "/data, S3A://bucket/raw"
    assert shell.run("config", "--local", "outside.allow", "/data").exit_code == 2
    for wrong in ("data", "s3://key:secret@bucket", "/data/../etc"):
        done = shell.run("config", "outside.allow", wrong)
        assert done.exit_code == 2
        assert "secret" not in done.output


def test_a_repository_knows_what_it_may_read(tmp_path: Path) -> None:
    tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    closed = tr.open(tmp_path / "store")
    allowed = tr.open(tmp_path / "store", outside=[tmp_path / "x", "gs://bucket/raw/"])
    assert closed.context.outside.prefixes == ()
    assert allowed.context.outside.prefixes == (f"file://{tmp_path}/x", "gs://bucket/raw")
    assert (
        pickle.loads(pickle.dumps(allowed)).context.outside.prefixes
        == allowed.context.outside.prefixes
    )


def test_show_names_the_files_that_the_repository_does_not_hold(shell: Shell) -> None:
    write_npy(shell.folder / "x.npy")
    shell("dataset", "adopt", "x.npy", "--dataset", "points")
    shell("commit", "-m", "adopt")
    assert "1 file in place" in shell("show", "HEAD:points")
    (told,) = shell.json("show", "HEAD:points")["files_in_place"]
    assert told["url"].endswith("/x.npy")
    assert told["size"] == (shell.folder / "x.npy").stat().st_size


def test_doctor_looks_at_the_files_it_may_look_at(shell: Shell) -> None:
    path = write_npy(shell.folder / "x.npy")
    shell("dataset", "adopt", "x.npy", "--dataset", "points")
    shell("commit", "-m", "adopt")
    assert "1 of them not looked at" in shell("doctor")
    shell("config", "outside.allow", str(shell.folder))
    assert "1 file in place, which datasets need" in shell("doctor")
    path.write_bytes(path.read_bytes()[:-1])
    done = shell.run("doctor")
    assert done.exit_code == 5
    assert "not as they were" in done.output


def test_a_command_reads_files_in_place_only_when_it_is_allowed_to(shell: Shell) -> None:
    write_npy(shell.folder / "x.npy")
    shell("dataset", "adopt", "x.npy", "--dataset", "points")
    shell("commit", "-m", "adopt")
    refused = shell.run("cat", "points")
    assert refused.exit_code == 6
    assert "--allow-outside" in refused.output
    allow = ("--allow-outside", str(shell.folder))
    assert "float32[2, 3]" in shell(*allow, "cat", "points", "--limit", "3")
    shell(*allow, "export", "points", "--to", "out.npy")
    assert np.array_equal(np.load(shell.folder / "out.npy"), np.load(shell.folder / "x.npy"))
    shell("config", "outside.allow", str(shell.folder))
    assert shell("cat", "points", "--limit", "3")


def test_the_sdk_reads_files_in_place_only_when_it_is_allowed_to(tmp_path: Path) -> None:
    repo = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    path = write_npy(tmp_path / "x.npy")
    with repo.transaction("main") as tx:
        tx.adopt("points", path)
    with pytest.raises(tr.PermissionDenied, match="outside="):
        repo.dataset("points")[0]
    allowed = tr.open(tmp_path / "store", outside=[path]).dataset("points")
    assert np.array_equal(allowed["x"][:], np.load(path))
    assert allowed.to_arrow().num_rows == ROWS


def test_links_are_resolved_below_what_is_allowed(tmp_path: Path) -> None:
    repo = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    for name in ("a", "b"):
        (tmp_path / name).write_text(name * 3)
    links = [str(tmp_path / "a"), {"url": str(tmp_path / "b"), "start": 1, "size": 3}]
    with repo.transaction("main") as tx:
        tx.create_dataset("photos", columns={"photo": Link()}).append({"photo": links})
    assert repo.dataset("photos")["photo"][0].url == str(tmp_path / "a")
    with pytest.raises(tr.PermissionDenied):
        repo.dataset("photos").resolve("photo")
    allowed = tr.open(tmp_path / "store", outside=[tmp_path]).dataset("photos")
    assert allowed.resolve("photo") == [b"aaa", b"bb"]
    (tmp_path / "b").write_text("longer")
    with pytest.raises(tr.CorruptError, match="expected 3 bytes, found 6"):
        allowed.resolve("photo", [1])


def test_rows_in_place_are_changed_and_made_ours(tmp_path: Path) -> None:
    tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    repo = tr.open(tmp_path / "store", outside=[tmp_path], author="Ada <ada@example.org>")
    path = write_npy(tmp_path / "x.npy")
    with repo.transaction("main") as tx:
        tx.adopt("points", path).delete([0])
    with repo.transaction("main") as tx:
        tx.dataset("points").compact()
    expected = np.load(path)[1:]
    path.unlink()
    assert np.array_equal(tr.open(tmp_path / "store").dataset("points")["x"][:], expected)


def test_the_compact_command_reads_what_is_allowed(shell: Shell) -> None:
    write_npy(shell.folder / "x.npy")
    shell("dataset", "adopt", "x.npy", "--dataset", "points")
    shell("commit", "-m", "adopt")
    assert shell.run("dataset", "compact", "points").exit_code == 6
    shell("--allow-outside", str(shell.folder), "dataset", "compact", "points")
    shell("commit", "-m", "ours")
    (shell.folder / "x.npy").unlink()
    assert "float32[2, 3]" in shell("cat", "points", "--limit", "3")


def test_where_adopted_rows_lie_is_lineage(shell: Shell) -> None:
    for name in ("a.parquet", "b.parquet"):
        write_parquet(shell.folder / name)
    shell("dataset", "adopt", "a.parquet", "--dataset", "points")
    shell("dataset", "adopt", "b.parquet", "--dataset", "points", "--append")
    shell("commit", "-m", "adopt")
    steps = shell.json("lineage", "datasets/points")["steps"]
    found = {step["origin"]["path"]: step["details"] for step in steps}
    assert sorted(found) == ["a.parquet", "b.parquet"]
    data = (shell.folder / "a.parquet").read_bytes()
    assert found["a.parquet"]["blake3"] == blake3(data).hexdigest()
    assert found["a.parquet"]["bytes"] == len(data)
    assert {step["relation"] for step in steps} == {"imported-from"}


def test_many_adopted_files_are_one_origin(shell: Shell) -> None:
    (shell.folder / "shards").mkdir()
    for number in range(MOST_FILE_EDGES + 1):
        write_npy(shell.folder / f"shards/{number:03}.npy")
    shell("dataset", "adopt", "shards", "--dataset", "points", "--no-hash")
    shell("commit", "-m", "adopt")
    steps = shell.json("lineage", "datasets/points")["steps"]
    [step] = [each for each in steps if each["relation"] == "imported-from"]
    assert step["origin"]["path"] == "shards"
    assert step["details"]["files"] == MOST_FILE_EDGES + 1


def test_what_is_read_from_a_file_says_which_version_of_it(shell: Shell) -> None:
    shell("add", "points.npz", "--dataset", "points")
    shell("commit", "-m", "add")
    steps = shell.json("lineage", "datasets/points")["steps"]
    [step] = [each for each in steps if each["relation"] == "imported-from"]
    digest = hashlib.sha256((shell.folder / "points.npz").read_bytes()).hexdigest()
    assert (step["origin"]["path"], step["details"]["sha256"]) == ("points.npz", digest)


def test_a_large_file_is_told_by_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    monkeypatch.setattr(provenance, "HASHED_BYTES", 4)
    assert provenance.file_facts(tmp_path / "x") == {
        "modified_ns": (tmp_path / "x").stat().st_mtime_ns
    }
    assert provenance.file_facts(tmp_path) == provenance.file_facts(tmp_path / "none") == {}
