"""Stage, commit and look: the way of a change into history."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorrepo.connect import read_config, write_config
from tensorrepo.repo.backends.disk import explain
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.changes.gc_collect import PackingReport
from tensorrepo.repo.changes.gc_packs import pack_history
from tensorrepo.repo.errors import Error, PermissionDenied, StorageError
from tests.support.processes.shell import Shell, write_pictures, write_points


def test_the_first_commit_goes_from_init_to_log(shell: Shell) -> None:
    assert "20 rows" in shell("add", "points.npz", "--dataset", "points")
    assert "new       datasets/points" in shell("status")
    assert "1 entry changed" in shell("commit", "-m", "Points")
    assert "Points" in shell("log")
    assert len(shell.repository().dataset("points")) == 20


def test_init_without_a_url_makes_a_store_in_the_workspace(empty: Shell) -> None:
    told = empty.json("init")
    assert told["created"] is True
    assert told["url"].endswith(".tensorrepo/store")


def test_init_joins_a_repository_that_is_there(full: Shell, tmp_path: Path) -> None:
    other = Shell(tmp_path / "other", tmp_path / "home2")
    other.folder.mkdir()
    told = other.json("init", str(full.folder / ".tensorrepo/store"))
    assert told["created"] is False
    assert "datasets/points" in other("ls")


def test_init_refuses_a_nested_workspace_unless_forced(full: Shell) -> None:
    inner = Shell(full.folder / "inner", full.home)
    inner.folder.mkdir()
    assert "--force" in inner.fails(4, "init")
    inner("init", "--force")
    assert "no commit yet" in inner("status")


def test_init_force_sets_a_workspace_up_anew_and_keeps_the_repository(full: Shell) -> None:
    full("rm", "points")
    full.fails(4, "init")
    full("init", "--force")
    assert full.json("status")["staged"] == []
    assert "First" in full("log")


def test_init_that_fails_leaves_no_half_of_a_workspace(empty: Shell) -> None:
    (empty.folder / "file").write_text("in the way")
    done = empty.run("init", "file")
    assert done.exit_code != 0
    assert not (empty.folder / ".tensorrepo").exists()


def test_init_puts_no_repository_among_the_files_of_the_workspace(
    empty: Shell, tmp_path: Path
) -> None:
    assert "Leave URL out" in empty.fails(2, "init", ".")
    assert list(empty.folder.iterdir()) == []
    empty("init", str(tmp_path / "store"))
    other = Shell(tmp_path / "store", empty.home)
    assert other.json("init", ".")["created"] is False


def test_a_name_that_exists_needs_to_be_told_what_is_meant(full: Shell) -> None:
    before = full.snapshot()
    told = full.fails(4, "add", "points.npz", "--dataset", "points")
    assert all(word in told for word in ("--append", "--sync", "--replace"))
    assert full.snapshot() == before


@pytest.mark.parametrize(("mode", "rows"), [("--append", 25), ("--replace", 5), ("--sync", 5)])
def test_append_adds_rows_and_the_others_start_anew(full: Shell, mode: str, rows: int) -> None:
    write_points(full.folder / "more.npz", 5, seed=1)
    full("add", "more.npz", "--dataset", "points", mode)
    full("commit", "-m", "more")
    assert len(full.repository().dataset("points")) == rows


def test_adding_what_is_there_already_stages_nothing(full: Shell) -> None:
    assert "unchanged" in full("add", "points.npz", "--dataset", "points", "--sync")
    assert full.json("status")["clean"] is True


def test_append_makes_no_sense_for_a_model(full: Shell) -> None:
    told = full.fails(2, "add", "net.safetensors", "--model", "net", "--append")
    assert "--replace" in told


def test_a_second_add_takes_the_place_of_the_first(shell: Shell) -> None:
    shell("add", "points.npz", "--dataset", "points")
    write_points(shell.folder / "points.npz", 7)
    shell("add", "points.npz", "--dataset", "points", "--replace")
    shell("commit", "-m", "one")
    assert len(shell.repository().dataset("points")) == 7


def test_options_of_a_format_reach_it(shell: Shell) -> None:
    (shell.folder / "t.csv").write_text("a;b\n1;2\n")
    shell("add", "t.csv", "--dataset", "t", "-o", "delimiter=;")
    shell("commit", "-m", "t")
    assert shell.repository().dataset("t").schema.names == ("a", "b")


def test_rm_and_mv_are_staged_and_committed(full: Shell) -> None:
    full("mv", "points", "dots")
    full("rm", "notes.txt")
    staged = {one["path"]: one["change"] for one in full.json("status")["staged"]}
    assert staged == {
        "datasets/dots": "new",
        "datasets/points": "deleted",
        "files/notes.txt": "deleted",
    }
    full("commit", "-m", "tidy")
    assert set(full.repository().entries()) == {"datasets/dots", "models/net"}


def test_rm_of_several_removes_all_or_none(full: Shell) -> None:
    before = full.snapshot()
    full.fails(3, "rm", "points", "nothing")
    assert full.snapshot() == before


def test_mv_moves_no_bytes(full: Shell) -> None:
    digest = full.repository().dataset("points").digest
    full("mv", "points", "dots")
    full("commit", "-m", "renamed")
    assert full.repository().dataset("dots").digest == digest


def test_restore_staged_forgets_one_change_or_all(full: Shell) -> None:
    full("rm", "points")
    full("rm", "net")
    full("restore", "--staged", "points")
    assert [one["path"] for one in full.json("status")["staged"]] == ["models/net"]
    full("rm", "points")
    full("restore", "--staged", "models/")
    assert [one["path"] for one in full.json("status")["staged"]] == ["datasets/points"]
    full("restore", "--staged", ".")
    assert full.json("status")["clean"] is True


def test_restore_source_stages_an_entry_as_it_was(full: Shell) -> None:
    write_points(full.folder / "other.npz", 3)
    full("add", "other.npz", "--dataset", "points", "--replace")
    full("commit", "-m", "other")
    full("restore", "points", "--source", "v1")
    full("commit", "-m", "back")
    assert len(full.repository().dataset("points")) == 20


@pytest.mark.parametrize("words", [(), ("points",), ("--staged", "--source", "v1")])
def test_restore_says_what_it_needs(full: Shell, words: tuple[str, ...]) -> None:
    full.fails(2, "restore", *words)


def test_commit_with_nothing_staged_ends_with_1(full: Shell) -> None:
    before = full.snapshot()
    assert "nothing to commit" in full.fails(1, "commit", "-m", "empty")
    assert full.snapshot() == before


def test_commit_needs_a_message(full: Shell) -> None:
    full("rm", "net")
    full.fails(2, "commit", "-m", "  ")
    full.fails(2, "commit")


def test_status_exit_code_tells_clean_from_dirty(full: Shell) -> None:
    full("status", "--exit-code")
    full("rm", "net")
    assert full.run("status", "--exit-code").exit_code == 1


def test_status_tells_the_age_of_the_lease(full: Shell) -> None:
    full("rm", "net")
    assert "kept for this workspace; renewed" in full("status")


def test_files_of_a_folder_are_added_without_those_that_are_ignored(shell: Shell) -> None:
    folder = shell.folder / "docs"
    (folder / "build").mkdir(parents=True)
    (folder / ".git").mkdir()
    for name in ("a.txt", "b.tmp", "build/c.txt", ".git/config"):
        (folder / name).write_text(name)
    (folder / ".tensorrepoignore").write_text("*.tmp\nbuild/\n.tensorrepoignore\n")
    added = shell.records("add", "docs", "--file", "docs")
    assert [one["path"] for one in added] == ["files/docs/a.txt"]


def test_names_that_differ_by_case_alone_are_refused_when_they_are_added(full: Shell) -> None:
    (full.folder / "Points.txt").write_text("x")
    full("add", "Points.txt", "--file", "Points.txt")
    before = full.snapshot()
    refused = full.fails(2, "add", "Points.txt", "--file", "points.txt")
    assert "'files/Points.txt' and 'files/points.txt' differ only in case" in refused
    assert "datasets/POINTS" in full.fails(2, "add", "points.npz", "--dataset", "POINTS")
    assert full.snapshot() == before


def test_links_of_a_folder_that_lead_out_of_it_or_nowhere_are_told(
    full: Shell, tmp_path: Path
) -> None:
    folder, secret = full.folder / "stranger", tmp_path / "id_rsa"
    secret.write_text("secret")
    folder.mkdir()
    (folder / "a.txt").write_text("a")
    (folder / "key").symlink_to(secret)
    (folder / "inner").symlink_to("a.txt")
    (folder / "nowhere").symlink_to("gone")
    (folder / "loop").symlink_to("loop")
    (folder / "elsewhere").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe")
    told = full.run("add", "stranger", "--file", "stranger")
    assert told.exit_code == 0
    assert f"left out 3 names of no file, such as a link that leads nowhere: {folder}/loop" in (
        told.stderr
    )
    assert f"left out 1 link to folders: {folder}/elsewhere" in told.stderr
    assert f"by 1 link this holds what lies outside of {folder}: {folder}/key -> {secret}" in (
        told.stderr
    )
    paths = [each["path"] for each in full.json("status")["staged"]]
    assert paths == [f"files/stranger/{name}" for name in ("a.txt", "inner", "key")]


def test_a_folder_in_a_folder_that_cannot_be_read_is_told(
    full: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = full.folder / "some" / "closed"
    closed.mkdir(parents=True)
    (full.folder / "some" / "a.txt").write_text("a")
    scandir = os.scandir

    def refusing(place: str) -> Any:  # the mode of a folder says nothing to root
        if str(place) == str(closed):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
        return scandir(place)

    monkeypatch.setattr("os.scandir", refusing)
    told = full.run("add", "some", "--file", "some")
    assert f"left out 1 folder that cannot be read: {closed}: Permission denied" in told.stderr
    assert "staged files/some/a.txt" in told.stdout


def test_links_of_a_folder_of_rows_that_lead_out_of_it_are_told(
    full: Shell, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text("a\n1\n")
    (full.folder / "tables").mkdir()
    (full.folder / "tables" / "t.csv").symlink_to(tmp_path / "t.csv")
    told = full.run("add", "tables", "--dataset", "tables").stderr
    assert f"{full.folder}/tables/t.csv -> {tmp_path}/t.csv" in told


def test_of_many_staged_entries_a_lease_names_pages_of_a_tree(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record of the log has no room for all of them; they are kept as if they were named."""
    monkeypatch.setattr("tensorrepo.workspace.staged_lease.MOST_NAMED", 9)
    folder = shell.folder / "many"
    folder.mkdir()
    for at in range(300):
        (folder / f"{at}.txt").write_text(f"{at}")
    shell("add", "many", "--file", "many")
    (lease,) = shell.repository().context.core.log.refresh().state.leases.values()
    assert len(lease.keep) < 30
    shell("gc", "--grace", "0s")
    shell("stash")
    shell("gc", "--grace", "0s")
    shell("stash", "pop")
    shell("commit", "-m", "many")
    assert shell("fsck", "--deep").startswith("ok")
    assert len(shell.records("ls")) == 300
    assert not shell.repository().context.core.log.refresh().state.leases


def test_gc_compact_tells_what_it_packed_though_nothing_is_deleted(
    full: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(pack_history.__kwdefaults__, "least", 1)
    assert full.repository().gc(compact=True).packing == PackingReport()  # all of it is young
    lines = full("gc", "--compact", "--grace", "0s").splitlines()
    packed = re.fullmatch(
        r"packed (\d+) commits, pages of trees and small files into 1 pack: "
        r"(\d+) files of their own are gone",
        lines[0],
    )
    assert packed is not None
    assert int(packed[1]) == int(packed[2]) >= 2
    assert lines[1] == "deleted 0 objects of 0 B"


def test_pictures_in_folders_become_a_dataset_with_class_names(shell: Shell) -> None:
    write_pictures(shell.folder / "pets")
    (shell.folder / "pets/.tensorrepoignore").write_text("dog/00.png\n")
    shell("add", "pets", "--dataset", "pets")
    shell("commit", "-m", "pets")
    ds = shell.repository().dataset("pets")
    assert len(ds) == 5
    assert ds.schema.column("label").type.names == ("cat", "dog")


def test_cat_prints_rows_tensors_and_files(full: Shell) -> None:
    assert full("cat", "points", "--limit", "2").count("float32[2]") == 2
    assert "F32" in full("cat", "net")
    assert full("cat", "notes.txt") == "line one\n"
    assert full.json("cat", "notes.txt")["text"] == "line one\n"


def test_show_names_a_commit_or_an_entry(full: Shell) -> None:
    assert "A datasets/points" in full("show")
    assert "20 rows x 2 columns" in full("show", "v1:points")


def test_ls_lists_a_folder_of_a_commit(full: Shell) -> None:
    assert [one["path"] for one in full.records("ls", "v1:models")] == ["models/net"]
    assert [one["path"] for one in full.records("ls", "v1:points")] == ["datasets/points"]
    assert "models/net" in full.fails(3, "ls", "v1:nets")


def test_diff_shows_what_is_staged_and_then_what_was_committed(full: Shell) -> None:
    write_points(full.folder / "more.npz", 5, seed=1)
    full("add", "more.npz", "--dataset", "points", "--append")
    assert "M datasets/points (+5 rows)" in full("diff")
    assert full("diff", "--", "net") == ""
    full("commit", "-m", "more")
    assert full("diff") == ""
    assert "M datasets/points (+5 rows)" in full("diff", "v1..HEAD", "--stat")
    assert full("diff", "v1", "HEAD") == full("diff", "v1..main")


def test_diff_paths_come_after_dashes_or_have_a_slash(full: Shell) -> None:
    full("rm", "net")
    full("rm", "points")
    full("commit", "-m", "less")
    assert full("diff", "v1", "main", "--", "net").startswith("D models/net")
    assert full("diff", "v1", "main", "models/net") == full("diff", "v1", "main", "--", "net")


def test_diff_exit_code_is_1_where_something_differs(full: Shell) -> None:
    full("diff", "v1", "main", "--exit-code")
    full("rm", "net")
    assert full.run("diff", "--exit-code").exit_code == 1


def test_log_takes_ranges_paths_and_limits(full: Shell) -> None:
    full("rm", "net")
    full("commit", "-m", "Second")
    assert full("log", "--oneline").splitlines()[0].endswith("Second")
    assert "First" not in full("log", "v1..main")
    assert "Second" not in full("log", "--", "points")
    assert "Second" in full("log", "--", "net")
    assert len(full("log", "-n", "1", "--oneline").splitlines()) == 1


def test_log_draws_how_branches_join(full: Shell) -> None:
    full("switch", "-c", "side")
    full("rm", "net")
    full("commit", "-m", "On side")
    full("switch", "main")
    full("rm", "notes.txt")
    full("commit", "-m", "On main")
    full("merge", "side")
    drawn = full("log", "--graph")
    assert "├─╮" in drawn
    assert "├─╯" in drawn


def test_stream_reads_all_rows_and_explains_without_reading(full: Shell) -> None:
    assert "20 rows" in full("dataset", "stream", "points", "--batch-size", "8")
    assert full.json("dataset", "stream", "points", "--epochs", "2")["rows"] == 40
    assert full("dataset", "stream", "v1:points", "--explain")
    full.fails(2, "dataset", "stream", "net")


def test_stream_chooses_rows_and_says_so(full: Shell) -> None:
    chosen = ("dataset", "stream", "points", "--where", "label == 1")
    rows = full.json(*chosen)["rows"]
    assert 0 < rows < 20
    assert f"{rows} of 20 rows" in full(*chosen, "--explain")
    assert "3 classes of 'label'" in full(
        "dataset", "stream", "points", "--balance", "label", "--explain"
    )
    assert "'label' among" in full("dataset", "stream", "points", "--bucket", "label", "--explain")
    full.fails(2, "dataset", "stream", "points", "--pack", "8")
    full.fails(2, "dataset", "stream", "points", "--profile", "--explain")
    assert "no row of 20 matches label == 99" in full(
        "dataset", "stream", "points", "--where", "label == 99"
    )


def test_stream_profiles_what_a_loop_waits_for(full: Shell, tmp_path: Path) -> None:
    picture = tmp_path / "stalls.png"
    told = full(
        "dataset", "stream", "points", "--profile", "--step-ms", "1", "--picture", str(picture)
    )
    assert "without it" in told
    assert picture.read_bytes().startswith(b"\x89PNG")
    found = full.json("dataset", "stream", "points", "--profile")
    assert set(found["stalls"]) == {"step", "prepare", "storage"}
    assert found["cold"]["rows"] == found["cached"]["rows"] == 20


def test_a_profile_refuses_what_it_cannot_draw(full: Shell, tmp_path: Path) -> None:
    nowhere = str(tmp_path / "no" / "stalls.png")
    assert "in a folder that" in full.fails(
        2, "dataset", "stream", "points", "--profile", "--picture", nowhere
    )
    full.fails(
        2, "dataset", "stream", "points", "--profile", "--picture", str(tmp_path / "stalls.nothing")
    )
    assert "--profile" in full.fails(2, "dataset", "stream", "points", "--step-ms", "3")


def test_config_shows_sets_and_forgets(shell: Shell) -> None:
    shell("config", "user.name", "Bob")
    assert shell("config", "user.name") == "Bob\n"
    shell("config", "user.name", "--unset")
    assert shell.run("config", "user.name").exit_code == 1
    assert "cache.limit" in shell.fails(2, "config", "user.nmae", "x")


def test_a_password_in_a_setting_is_for_its_owner_alone(shell: Shell) -> None:
    shell("config", "catalog.url", "postgresql://bob:opensesame@db.example.org/x")
    assert "opensesame" not in shell("config") + shell("config", "catalog.url", "--json")
    (file,) = shell.home.rglob("config.json")
    assert "opensesame" in file.read_text()
    assert not file.stat().st_mode & 0o077


@pytest.mark.parametrize(
    ("why", "kind", "advice"),
    [
        (errno.ENOSPC, StorageError, "Free some space"),
        (errno.EROFS, PermissionDenied, "XDG_CONFIG_HOME"),
    ],
)
def test_settings_that_cannot_be_written_are_what_they_were_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, why: int, kind: type[Error], advice: str
) -> None:
    file = tmp_path / "config.json"
    write_config(file, {"user.name": "Ada"})

    def fail(*_: object) -> None:
        raise OSError(why, os.strerror(why))

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(kind, match=advice):
        write_config(file, {"user.name": "Bob"})
    assert (os.listdir(tmp_path), read_config(file)) == (["config.json"], {"user.name": "Ada"})


@pytest.mark.parametrize("url", ["postgresql:/bob:opensesame@h/db", "postgresql:bob:opensesame@h"])
def test_a_mistyped_url_shows_no_password(shell: Shell, url: str) -> None:
    assert "opensesame" not in shell.fails(2, "catalog", "status", "--catalog", url)


def test_the_author_is_config_then_the_environment_then_git(shell: Shell) -> None:
    shell("add", "points.npz", "--dataset", "points")
    shell("commit", "-m", "one")
    assert "Author: Ada" in shell("log")
    shell("config", "user.name", "Bob")
    shell("config", "user.email", "bob@example.org")
    shell("rm", "points")
    shell("commit", "-m", "two")
    assert "Author: Bob <bob@example.org>" in shell("log", "-n", "1")


def test_git_knows_the_author_where_nobody_else_does(shell: Shell) -> None:
    (shell.home / ".gitconfig").write_text("[user]\nname = Git\nemail = git@example.org\n")
    shell.author = ""
    shell("add", "points.npz", "--dataset", "points")
    shell("commit", "-m", "one")
    assert "Author: Git <git@example.org>" in shell("log")


def test_a_commit_without_an_author_is_refused_with_the_way_to_name_one(shell: Shell) -> None:
    shell("add", "points.npz", "--dataset", "points")
    shell.author = ""
    assert "config --global user.name" in shell.fails(2, "commit", "-m", "one")


def test_a_workspace_is_found_from_below_by_a_variable_and_by_c(full: Shell) -> None:
    inner = full.folder / "a/b"
    inner.mkdir(parents=True)
    below = Shell(inner, full.home)
    assert below("log", "--oneline") == full("log", "--oneline")
    elsewhere = Shell(full.home, full.home, environment={"TENSORREPO_DIR": str(full.folder)})
    assert elsewhere("log", "--oneline", "-n", "1")


def test_commands_that_read_need_no_workspace_with_repo(full: Shell) -> None:
    url = str(full.folder / ".tensorrepo/store")
    outside = Shell(full.home, full.home)
    for words in (("log",), ("show",), ("ls",), ("cat", "points"), ("branch",), ("tag",)):
        assert outside(*words, "--repo", url)
    assert "no workspace" in outside.fails(3, "log")


def test_numbers_survive_the_way_through_a_repository(full: Shell) -> None:
    with np.load(full.folder / "points.npz") as arrays:
        ds = full.repository().dataset("points")
        assert np.array_equal(ds["point"][:], arrays["point"])
        assert np.array_equal(ds["label"][:], arrays["label"])


@pytest.mark.parametrize(
    ("why", "advice"),
    [(errno.ENOSPC, "free 1 MiB or more at once"), (errno.EIO, "run `tensorrepo gc` again, which")],
)
def test_a_collection_on_a_full_disk_says_how_much_it_needs(
    full: Shell, monkeypatch: pytest.MonkeyPatch, why: int, advice: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        error = OSError(why, os.strerror(why))
        raise explain(error, "write", full.folder) from error

    monkeypatch.setattr(LocalBackend, "overwrite", fail)
    assert advice in " ".join(full.fails(7, "gc", "--grace", "0s").split())
