"""Histories of git, git-lfs, DVC and the Hub become ours: whole, verified, once, and goes on."""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorrepo as tr
from tensorrepo.repo.changes.repository import RepositoryCore
from tensorrepo.repo.history.commits import read_commit
from tensorrepo.verbs import import_history as module
from tests.support.builders.foreign_histories import (
    GitProject,
    add_revision,
    make_hub_cache,
    weights,
)
from tests.support.processes.forked import FORKED


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tr.Repository:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tr.init(tmp_path / "repo", author="Eve <eve@example.org>")


@pytest.fixture
def project(tmp_path: Path) -> GitProject:
    return GitProject(tmp_path / "project")


def paths(repository: tr.Repository, ref: str = "main") -> set[str]:
    core = repository.context.core
    return {path for path, _ in core.entries(repository.resolve(ref).commit.tree)}


def content(repository: tr.Repository, path: str, ref: str = "main") -> bytes:
    core = repository.context.core
    entry = core.entry(repository.resolve(ref).commit.tree, path)
    assert entry is not None, path
    return bytes(core.objects.get(entry.digest).payload)


def messages(repository: tr.Repository, ref: str) -> list[str]:
    return [one.commit.message for one in repository.log(ref)]


def refs(repository: tr.Repository) -> set[str]:
    return set(repository.context.core.log.refresh().state.refs)


def lfs_history(project: GitProject) -> None:
    """Four commits of a model and a table, a branch that is merged, and a tag."""
    project.write("README.md", "one\n")
    project.write_lfs("nets/net.safetensors", weights(1.0))
    project.commit("First weights\n\nWith a body.")
    project.git("switch", "-q", "-c", "side")
    project.write("data/big table.csv", "id\n1\n")
    project.commit("A table")
    project.git("tag", "-a", "v1", "-m", "first")
    project.git("switch", "-q", "main")
    project.write_lfs("nets/net.safetensors", weights(2.0))
    project.commit("Other weights")
    project.hour += 1
    project.git("merge", "-q", "--no-ff", "-m", "Join", "side")


def test_commits_come_with_author_date_message_and_parents(
    repository: tr.Repository, project: GitProject
) -> None:
    lfs_history(project)
    made = repository.import_history(project.folder)
    assert (made.tool, made.commits, made.known) == ("git", 4, 0)
    assert set(made.branches) == {"main", "side"}
    assert set(made.tags) == {"v1"}
    joined = repository.resolve("main").commit
    assert joined.message == "Join"
    assert len(joined.parents) == 2
    objects = repository.context.core.objects
    assert {read_commit(objects, one).message for one in joined.parents} == {
        "Other weights",
        "A table",
    }
    first = repository.resolve("main~2").commit
    assert (first.author, first.message) == (
        "Ada <ada@example.org>",
        "First weights\n\nWith a body.",
    )
    assert first.time_ns == (1_700_000_000 + 3600) * 10**9
    assert refs(repository) == {"heads/main", "heads/side", "tags/v1"}


def test_pointers_are_what_they_name_and_weights_are_models(
    repository: tr.Repository, project: GitProject
) -> None:
    lfs_history(project)
    repository.import_history(project.folder)
    assert paths(repository) == {
        "files/README.md",
        "files/data/big_x20_table.csv",
        "models/nets/net.safetensors",
    }
    assert content(repository, "files/data/big_x20_table.csv") == b"id\n1\n"
    for ref, value in (("main", 2.0), ("main~2", 1.0)):
        model = repository.model("nets/net.safetensors", ref)
        assert np.asarray(model["w"])[1, 0] == value
    exact = b"".join(repository.model("nets/net.safetensors").stored.file_chunks("net.safetensors"))
    assert exact == weights(2.0)


def test_a_folder_with_config_is_one_model(repository: tr.Repository, project: GitProject) -> None:
    project.write_lfs("model.safetensors", weights(1.0))
    project.write("config.json", "{}")
    project.write("onnx/README.md", "text")
    project.commit("A clone of the Hub")
    repository.import_history(project.folder, name="bert")
    assert paths(repository) == {"models/bert"}
    model = repository.model("bert")
    assert set(model.files) == {"config.json", "model.safetensors", "onnx/README.md"}
    assert tuple(model.keys()) == ("w",)


def test_what_only_looks_like_weights_is_a_file(
    repository: tr.Repository, project: GitProject
) -> None:
    project.write("a.pt", "no torch")
    project.write("b.bin", b"\0" * 40)
    project.commit("Files")
    project.git("rm", "-q", "a.pt")
    project.commit("One less")
    repository.import_history(project.folder)
    assert paths(repository, "main~1") == {"files/a.pt", "files/b.bin"}
    assert paths(repository) == {"files/b.bin"}


def test_an_import_again_imports_what_is_new(
    repository: tr.Repository, project: GitProject
) -> None:
    lfs_history(project)
    repository.import_history(project.folder)
    before = repository.resolve("main").digest
    generation = repository.context.core.log.refresh().generation
    again = repository.import_history(project.folder)
    assert (again.commits, again.known, again.models) == (0, 4, 0)
    assert repository.context.core.log.refresh().generation == generation
    project.write("README.md", "two\n")
    project.commit("Words")
    more = repository.import_history(project.folder)
    assert (more.commits, more.known, more.models, more.files) == (1, 4, 0, 1)
    assert repository.resolve("main~1").digest == before
    assert content(repository, "files/README.md") == b"two\n"


def cut_off(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    """Land after every commit, and fail amid the one with that number."""
    monkeypatch.setattr(module, "_BATCH_COMMITS", 1)
    add, seen = module._Import._add, []

    def failing(self: Any, commit: Any) -> None:
        seen.append(commit)
        if len(seen) == at:
            raise KeyboardInterrupt
        add(self, commit)

    monkeypatch.setattr(module._Import, "_add", failing)


def test_an_import_that_was_cut_off_goes_on(
    repository: tr.Repository, project: GitProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    lfs_history(project)
    with monkeypatch.context() as patched:
        cut_off(patched, 4)
        with pytest.raises(KeyboardInterrupt):
            repository.import_history(project.folder)
    held = refs(repository)
    assert all(ref.startswith("imports/") for ref in held)  # no branch is there in part
    assert len(held) == 2
    made = repository.import_history(project.folder)
    assert (made.commits, made.known) == (1, 3)
    assert refs(repository) == {"heads/main", "heads/side", "tags/v1"}
    other = tr.init(Path(repository.url).parent / "other", author="Eve <eve@example.org>")
    whole = other.import_history(project.folder)
    assert whole.branches == made.branches  # the same commits, digest by digest


def test_a_collection_between_takes_nothing_of_an_import_that_goes_on(
    repository: tr.Repository, project: GitProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    lfs_history(project)
    with monkeypatch.context() as patched:
        cut_off(patched, 4)
        with pytest.raises(KeyboardInterrupt):
            repository.import_history(project.folder)
    repository.gc(grace="0s")
    made = repository.import_history(project.folder)
    assert (made.commits, made.known) == (1, 3)
    assert repository.model("nets/net.safetensors", "main~2").verify().faults == ()
    assert np.asarray(repository.model("nets/net.safetensors", "side")["w"])[1, 0] == 1.0


def test_a_repository_of_sha256_is_read(repository: tr.Repository, tmp_path: Path) -> None:
    project = GitProject(tmp_path / "project", "--object-format=sha256")
    lfs_history(project)
    assert repository.import_history(project.folder).commits == 4
    assert content(repository, "files/README.md") == b"one\n"


def test_a_bare_repository_is_read(
    repository: tr.Repository, project: GitProject, tmp_path: Path
) -> None:
    project.write("a", "1")
    project.commit("First")
    project.git("clone", "-q", "--bare", ".", str(tmp_path / "bare.git"))
    assert repository.import_history(tmp_path / "bare.git").commits == 1


def _import_and_die(folder: str, url: str, appends: int, *, after: bool) -> None:
    """Import, a record for each commit, until that many records; then the process dies."""
    module._BATCH_COMMITS = 1  # type: ignore[misc]
    append, count = RepositoryCore.append, 0

    def counted(self: RepositoryCore, *words: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count == appends and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        done = append(self, *words, **named)
        if count == appends:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    RepositoryCore.append = counted  # type: ignore[method-assign]
    tr.open(url, author="Eve <eve@example.org>").import_history(folder)


@pytest.mark.parametrize(
    ("appends", "after"),
    [
        (1, False),
        pytest.param(1, True, marks=pytest.mark.soak),
        pytest.param(3, False, marks=pytest.mark.soak),
        (3, True),
        pytest.param(5, False, marks=pytest.mark.soak),
        (5, True),
    ],
)
def test_an_import_whose_process_was_killed_goes_on_to_the_same_commits(
    repository: tr.Repository, project: GitProject, appends: int, after: bool
) -> None:
    lfs_history(project)
    child = FORKED.Process(
        target=_import_and_die,
        args=(str(project.folder), repository.url, appends),
        kwargs={"after": after},
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    is_done = appends == 5 and after  # the last record sets the branches
    assert bool({"heads/main"} & refs(repository)) == is_done
    made = repository.import_history(project.folder)
    assert made.known == min(appends - (not after), 4)
    assert refs(repository) == {"heads/main", "heads/side", "tags/v1"}
    other = tr.init(Path(repository.url).parent / "other", author="Eve <eve@example.org>")
    assert other.import_history(project.folder).branches == made.branches


def test_names_that_differ_in_case_alone_are_spelled_apart_as_long_as_they_do(
    repository: tr.Repository, project: GitProject
) -> None:
    project.write("A.txt", "A")
    project.write("Data/x", "X")
    project.commit("One of each")
    project.write("a.txt", "a")
    project.write("data/x", "x")
    project.commit("Twins")
    project.git("rm", "-rq", "a.txt", "data")
    project.git("commit", "-q", "-m", "No twins")
    made = repository.import_history(project.folder)
    assert paths(repository) == paths(repository, "main~2") == {"files/A.txt", "files/Data/x"}
    assert {path: content(repository, path, "main~1") for path in paths(repository, "main~1")} == {
        "files/_x41_.txt": b"A",
        "files/a.txt": b"a",
        "files/_x44_ata/x": b"X",
        "files/data/x": b"x",
    }
    assert [note.partition(":")[0] for note in made.notes] == [
        "names that differ only in case are spelled apart"
    ]


def test_branches_with_own_commits_are_not_touched(
    repository: tr.Repository, project: GitProject
) -> None:
    with repository.transaction(message="mine") as tx:
        tx.save_file("mine.txt", b"mine")
    lfs_history(project)
    with pytest.raises(tr.ConflictError, match="--prefix project/ gives others names"):
        repository.import_history(project.folder)
    made = repository.import_history(project.folder, prefix="up/")
    assert set(made.branches) == {"up/main", "up/side"}
    assert paths(repository) == {"files/mine.txt"}


def test_missing_objects_are_refused_before_anything_is_stored(
    repository: tr.Repository, project: GitProject
) -> None:
    lfs_history(project)
    project.write_lfs("b.gguf", b"GGUF" + bytes(100)).unlink()
    project.commit("A file that is not here")
    generation = repository.context.core.log.refresh().generation
    with pytest.raises(
        tr.NotFoundError, match=r"1 file cannot be imported.*b\.gguf.*git lfs fetch"
    ):
        repository.import_history(project.folder)
    assert repository.context.core.log.refresh().generation == generation


def test_missing_objects_are_skipped_where_one_says_so_and_come_later(
    repository: tr.Repository, project: GitProject
) -> None:
    place = project.write_lfs("big.txt", b"large words")
    project.write("small.txt", "small")
    project.commit("Two files")
    place.unlink()
    made = repository.import_history(project.folder, missing="skip")
    assert [(one.path, one.why[:13]) for one in made.left_out] == [("big.txt", "its object is")]
    assert content(repository, "files/big.txt").startswith(b"version ")
    place.write_bytes(b"large words")
    project.write("small.txt", "smaller")
    project.commit("One file")
    again = repository.import_history(project.folder)
    assert (again.commits, again.left_out) == (1, ())
    assert content(repository, "files/big.txt") == b"large words"
    assert content(repository, "files/small.txt") == b"smaller"


def test_a_pointer_that_lies_about_its_size_is_told(
    repository: tr.Repository, project: GitProject
) -> None:
    project.write_lfs("a.txt", b"words", size=4)
    project.commit("A lie")
    with pytest.raises(tr.NotFoundError, match="its pointer says 4 bytes, there are 5"):
        repository.import_history(project.folder)


def test_an_object_that_is_not_what_its_pointer_names_is_refused_and_can_be_mended(
    repository: tr.Repository, project: GitProject
) -> None:
    project.write("one.txt", "1")
    project.commit("Fine")
    place = project.write_lfs("a.txt", b"words")
    project.commit("Damaged")
    place.write_bytes(b"wards")
    with pytest.raises(
        tr.CorruptError, match=r"a\.txt, commit .* of project: .*is damaged: expected"
    ):
        repository.import_history(project.folder)
    assert not {ref for ref in refs(repository) if ref.startswith("heads/")}
    place.write_bytes(b"words")
    repository.import_history(project.folder)
    assert content(repository, "files/a.txt") == b"words"


def test_links_and_submodules_are_told(repository: tr.Repository, project: GitProject) -> None:
    project.write("a.txt", "a")
    (project.folder / "link").symlink_to("/etc/passwd")
    project.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},inner")
    project.git("add", "a.txt", "link")
    project.git("commit", "-q", "-m", "Odd things")
    made = repository.import_history(project.folder)
    assert paths(repository) == {"files/a.txt"}
    assert sorted(made.notes) == [
        "inner is a submodule: import its repository by itself",
        "link is a symbolic link, and was left out",
    ]


@pytest.mark.parametrize("name", ["..", "a/b", "."])
def test_a_tree_that_leads_out_is_refused(
    repository: tr.Repository, project: GitProject, name: str
) -> None:
    blob = project.git("hash-object", "-w", "--stdin", given=b"evil")
    item = b"100644 " + name.encode() + b"\0" + bytes.fromhex(blob)
    tree = project.git("hash-object", "-w", "-t", "tree", "--literally", "--stdin", given=item)
    commit = project.git("commit-tree", tree, "-m", "evil")
    project.git("update-ref", "refs/heads/main", commit)
    with pytest.raises(tr.InvalidInputError, match="which leads out of it"):
        repository.import_history(project.folder)
    assert refs(repository) == set()


def test_names_that_cannot_be_kept_are_refused_or_left_out(
    repository: tr.Repository, project: GitProject
) -> None:
    project.write("a:b", "colon")
    project.write("fine", "fine")
    project.commit("Names")
    with pytest.raises(tr.NotFoundError, match="a:b"):
        repository.import_history(project.folder)
    made = repository.import_history(project.folder, missing="skip")
    assert [one.path for one in made.left_out] == ["a:b"]
    assert paths(repository) == {"files/fine"}


def test_odd_authors_and_messages_are_made_printable(
    repository: tr.Repository, project: GitProject
) -> None:
    tree = project.git("mktree", given=b"")
    odd = (
        f"tree {tree}\nauthor A\x1b[31m <<x> 99999999999 +0000\n"
        "committer C <c> 1 +0000\nencoding latin-1\n\nbl\xe4u\x07\r\nnext"
    )
    commit = project.git(
        "hash-object", "-w", "-t", "commit", "--literally", "--stdin", given=odd.encode("latin-1")
    )
    project.git("update-ref", "refs/heads/main", commit)
    repository.import_history(project.folder)
    made = repository.resolve("main").commit
    assert made.message == "bläu\ufffd\nnext"
    assert made.author == "A\ufffd[31m <x>"


def test_a_branch_that_was_rebased_there_moves_here(
    repository: tr.Repository, project: GitProject
) -> None:
    project.write("a", "1")
    project.commit("First")
    project.write("a", "2")
    project.commit("Second")
    repository.import_history(project.folder)
    project.write("a", "3")
    project.git("add", "-A")
    project.git("commit", "-q", "--amend", "-m", "Second, better")
    repository.import_history(project.folder)
    assert messages(repository, "main") == ["Second, better", "First"]


def test_what_is_no_repository_says_so(repository: tr.Repository, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(tr.InvalidInputError, match=r"(?s)not a git repository.*a DVC project"):
        repository.import_history(tmp_path / "empty")
    with pytest.raises(tr.NotFoundError, match="there is no folder"):
        repository.import_history(tmp_path / "nowhere")


def test_nothing_of_a_strangers_configuration_runs(
    repository: tr.Repository, project: GitProject, tmp_path: Path
) -> None:
    project.write("a.txt", "a")
    project.commit("First")
    marker = tmp_path / "ran"
    script = tmp_path / "script"
    script.write_text(f"#!/bin/sh\ntouch {marker}\n")
    script.chmod(0o755)
    project.write(".gitattributes", "* filter=evil diff=evil\n")
    project.commit("Attributes")
    for key in ("core.fsmonitor", "filter.evil.smudge", "diff.evil.textconv", "core.sshCommand"):
        project.git("config", key, str(script))
    project.git("config", "remote.origin.url", f"ext::{script}")
    project.git("config", "remote.origin.promisor", "true")
    project.git("config", "extensions.partialClone", "origin")
    blob = project.git("rev-parse", "HEAD:a.txt")
    (project.folder / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    with pytest.raises(tr.CorruptError, match="git fetch"):
        repository.import_history(project.folder)
    assert not marker.exists()


# DVC


def dvc_history(project: GitProject) -> None:
    (project.folder / ".dvc").mkdir()
    project.write(".gitignore", "/.dvc/cache\n")
    project.write(".dvc/config", "")
    project.write_dvc("data/table.csv", b"id\n1\n")
    project.write_dvc_folder("pictures", {"cat/1.txt": b"cat", "dog 2.txt": b"dog"})
    project.commit("Data")
    project.write_dvc("data/table.csv", b"id\n1\n2\n")
    project.write_dvc("net.safetensors", weights(1.0))
    project.commit("More data")


def test_a_dvc_project_comes_with_its_data(repository: tr.Repository, project: GitProject) -> None:
    dvc_history(project)
    made = repository.import_history(project.folder)
    assert (made.tool, made.commits) == ("dvc", 2)
    config = {"files/_x2e_gitignore", "files/_x2e_dvc/config"}
    first = {"files/data/table.csv", "files/pictures/cat/1.txt", "files/pictures/dog_x20_2.txt"}
    assert paths(repository, "main~1") == first | config
    assert paths(repository) == first | config | {"models/net.safetensors"}
    assert content(repository, "files/data/table.csv", "main~1") == b"id\n1\n"
    assert content(repository, "files/data/table.csv") == b"id\n1\n2\n"
    assert content(repository, "files/pictures/dog_x20_2.txt") == b"dog"


def test_outputs_of_a_lock_are_data(repository: tr.Repository, project: GitProject) -> None:
    (project.folder / ".dvc").mkdir()
    project.write(".gitignore", "/.dvc/cache\n")
    project.write_dvc("sub/a.txt", b"made")
    (project.folder / "sub" / "a.txt.dvc").unlink()
    project.write(
        "sub/dvc.lock",
        "schema: '2.0'\nstages:\n  make:\n    cmd: true\n    outs:\n"
        "    - path: a.txt\n      hash: md5\n      md5: 0b19d73c0af4e5ce9bad5b2fc49bf6e9\n"
        "      size: 4\n".replace("0b19d73c0af4e5ce9bad5b2fc49bf6e9", md5_of(b"made")),
    )
    project.commit("A pipeline")
    repository.import_history(project.folder)
    assert content(repository, "files/sub/a.txt") == b"made"
    assert "files/sub/dvc.lock" in paths(repository)


def md5_of(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


def test_texts_of_dvc_2_have_the_md5_of_their_lines(
    repository: tr.Repository, project: GitProject
) -> None:
    (project.folder / ".dvc").mkdir()
    project.write(".gitignore", "/.dvc/cache\n")
    md5 = md5_of(b"a\nb\n")
    place = project.folder / ".dvc" / "cache" / md5[:2] / md5[2:]
    place.parent.mkdir(parents=True)
    place.write_bytes(b"a\r\nb\r\n")
    project.write("t.txt.dvc", f"outs:\n- md5: {md5}\n  size: 6\n  path: t.txt\n")
    project.commit("Old")
    repository.import_history(project.folder)
    assert content(repository, "files/t.txt") == b"a\r\nb\r\n"


def test_data_that_dvc_lacks_are_refused_or_skipped(
    repository: tr.Repository, project: GitProject
) -> None:
    dvc_history(project)
    place = project.write_dvc("later.bin", b"later")
    project.commit("Later")
    place.unlink()
    with pytest.raises(tr.NotFoundError, match="dvc fetch --all-commits"):
        repository.import_history(project.folder)
    made = repository.import_history(project.folder, missing="skip")
    assert [one.path for one in made.left_out] == ["later.bin"]
    assert "files/later.bin.dvc" in paths(repository)
    place.write_bytes(b"later")
    project.write("x", "x")
    project.commit("Again")
    repository.import_history(project.folder)
    assert content(repository, "files/later.bin") == b"later"
    assert "files/later.bin.dvc" not in paths(repository)


def test_data_with_another_md5_are_refused(repository: tr.Repository, project: GitProject) -> None:
    dvc_history(project)
    project.write_dvc("a.txt", b"words").write_bytes(b"wards")
    project.commit("Damaged")
    with pytest.raises(tr.CorruptError, match="is damaged"):
        repository.import_history(project.folder)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("outs:\n- {md5: 0cc175b9c0f1b6a831c399e269772661, path: ../../etc/passwd}\n", "outside"),
        ("outs:\n- {md5: 0cc175b9c0f1b6a831c399e269772661, path: /etc/passwd}\n", "outside"),
        ("outs: [", "is no YAML"),
        ("!!python/object/apply:os.system ['true']", "is no YAML"),
    ],
)
def test_a_dvc_file_that_leads_out_or_is_none_is_refused(
    repository: tr.Repository, project: GitProject, text: str, words: str
) -> None:
    (project.folder / ".dvc").mkdir()
    project.write("a.dvc", text)
    project.commit("Bad")
    with pytest.raises(tr.InvalidInputError, match=words):
        repository.import_history(project.folder, tool="dvc")


def test_a_list_that_leads_out_is_refused(repository: tr.Repository, project: GitProject) -> None:
    (project.folder / ".dvc").mkdir()
    project.write(".gitignore", "/.dvc/cache\n")
    project.write_dvc_folder("pictures", {"../../evil": b"x"})
    project.commit("Bad")
    with pytest.raises(tr.InvalidInputError, match="lies outside of it"):
        repository.import_history(project.folder)


# The Hub


def test_revisions_of_a_hub_cache_become_commits(repository: tr.Repository, tmp_path: Path) -> None:
    folder = make_hub_cache(tmp_path / "hub")
    made = repository.import_history(tmp_path / "hub")
    assert made.tool == "huggingface"
    assert made.commits == 3
    assert set(made.branches) == {"main", "refs/pr/1"}
    assert set(made.tags) == {"v1.0"}
    for ref, value in (("main", 2.0), ("v1.0", 1.0), ("refs/pr/1", 3.0)):
        assert np.asarray(repository.model("net", ref)["w"])[1, 0] == value
    assert set(repository.model("net").files) == {"config.json", "model.safetensors"}
    again = repository.import_history(folder)
    assert (again.commits, again.known) == (0, 3)


def test_a_newer_revision_follows_the_one_before(repository: tr.Repository, tmp_path: Path) -> None:
    folder = make_hub_cache(tmp_path / "hub")
    repository.import_history(folder)
    before = repository.resolve("main").digest
    files = {"config.json": b"{}", "model.safetensors": weights(4.0)}
    add_revision(folder, "d" * 40, files, 9)
    (folder / "refs" / "main").write_text("d" * 40)
    made = repository.import_history(folder)
    assert (made.commits, made.known) == (1, 3)
    assert repository.resolve("main~1").digest == before


def test_files_of_a_dataset_of_the_hub_are_files(repository: tr.Repository, tmp_path: Path) -> None:
    folder = tmp_path / "datasets--lab--pets"
    add_revision(folder, "a" * 40, {"data/train.parquet": b"PAR1", "README.md": b"pets"}, 0)
    repository.import_history(folder)
    assert paths(repository) == {
        "files/datasets/pets/data/train.parquet",
        "files/datasets/pets/README.md",
    }


def test_a_download_into_a_folder_is_one_revision(
    repository: tr.Repository, tmp_path: Path
) -> None:
    folder = tmp_path / "net"
    told = folder / ".cache" / "huggingface" / "download"
    told.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(weights(1.0))
    (told / "model.safetensors.metadata").write_text(f"{'a' * 40}\n{'0' * 64}\n1.0\n")
    with pytest.raises(tr.CorruptError, match="is damaged"):
        repository.import_history(folder)
    etag = hashlib.sha256(weights(1.0)).hexdigest()
    (told / "model.safetensors.metadata").write_text(f"{'a' * 40}\n{etag}\n1.0\n")
    assert repository.import_history(folder).commits == 1
    assert np.asarray(repository.model("net")["w"])[1, 0] == 1.0


def damage(folder: Path) -> None:
    blob = next(each for each in (folder / "blobs").iterdir() if len(each.name) == 64)
    blob.write_bytes(blob.read_bytes()[::-1])


def lose(folder: Path) -> None:
    next(each for each in (folder / "blobs").iterdir() if len(each.name) == 64).unlink()


def lead_out(folder: Path) -> None:
    place = folder / "snapshots" / ("a" * 40) / "evil"
    place.symlink_to("/etc/passwd")


def name_nothing(folder: Path) -> None:
    (folder / "refs" / "main").write_text("../../evil")


@pytest.mark.parametrize(
    ("harm", "kind", "words"),
    [
        (damage, tr.CorruptError, "is damaged"),
        (lose, tr.NotFoundError, "its bytes are not there"),
        (lead_out, tr.InvalidInputError, "a link out of the cache"),
        (name_nothing, tr.InvalidInputError, "which is no commit"),
    ],
)
def test_a_cache_that_is_not_what_it_says_is_refused(
    repository: tr.Repository,
    tmp_path: Path,
    harm: Callable[[Path], None],
    kind: type[Exception],
    words: str,
) -> None:
    folder = make_hub_cache(tmp_path / "hub")
    harm(folder)
    with pytest.raises(kind, match=words):
        repository.import_history(folder)
    assert not {ref for ref in refs(repository) if ref.startswith("heads/")}


def test_a_cache_of_several_repositories_asks_which(
    repository: tr.Repository, tmp_path: Path
) -> None:
    make_hub_cache(tmp_path / "hub")
    make_hub_cache(tmp_path / "hub", "models--lab--other")
    with pytest.raises(tr.InvalidInputError, match="has 2 repositories of the Hub"):
        repository.import_history(tmp_path / "hub")
