"""Histories of other tools on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.builders.foreign_histories import GitProject, weights
from tests.support.processes.shell import Shell


@pytest.fixture
def project(tmp_path: Path) -> GitProject:
    project = GitProject(tmp_path / "project")
    project.write_lfs("net.safetensors", weights(1.0))
    project.write("a.txt", "a")
    project.commit("First")
    project.git("tag", "v1")
    (project.folder / "link").symlink_to("a.txt")
    project.commit("Second")
    return project


def test_a_history_is_imported_and_told(empty: Shell, project: GitProject) -> None:
    empty("init")
    told = empty("import", str(project.folder))
    assert "imported 2 commits of git; 1 model and 1 file stored" in told
    assert "branch main is at" in told
    assert "tag v1 is at" in told
    again = empty.json("import", str(project.folder), "--prefix", "again/")
    assert (again["commits"], again["known"], again["left_out"]) == (0, 2, [])
    assert list(again["branches"]) == ["again/main"]
    assert "Second" in empty("log")
    assert empty("ls", "main").split("files/a.txt")[1]


def test_what_is_missing_is_refused_or_listed(empty: Shell, project: GitProject) -> None:
    empty("init")
    project.write_lfs("gone.bin", b"gone").unlink()
    project.commit("Third")
    assert "git lfs fetch --all" in empty.fails(3, "import", str(project.folder))
    made = empty.json("import", str(project.folder), "--missing", "skip", "--prefix", "up/")
    assert [one["path"] for one in made["left_out"]] == ["gone.bin"]
    assert list(made["branches"]) == ["up/main"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--missing", "maybe"), "expected refuse or skip"),
        (("--tool", "svn"), "expected one of git, dvc, huggingface"),
        (("--prefix", "../x"), "ref"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    empty: Shell, project: GitProject, words: tuple[str, ...], said: str
) -> None:
    empty("init")
    assert said in empty.fails(2, "import", str(project.folder), *words)
