"""A project that DVC itself made, with its pipeline, comes with its data."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import tensorrepo as tr
from tests.support.builders.foreign_histories import GitProject
from tests.support.clients.environments import client_python


@pytest.mark.soak
@pytest.mark.timeout(900)  # pip looks long for the versions that fit
def test_what_dvc_made_is_read(tmp_path: Path) -> None:
    python = client_python("dvc==3.67.1")
    project = GitProject(tmp_path / "project")

    def dvc(*words: str) -> None:
        done = subprocess.run(
            [str(python), "-m", "dvc", *words],
            cwd=project.folder,
            env={
                "PATH": f"{python.parent}:/usr/bin:/bin",
                "HOME": str(tmp_path),
                "DVC_NO_ANALYTICS": "1",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.returncode, done.stdout + done.stderr

    dvc("init", "-q")
    project.write("data/table.csv", "id\r\n1\r\n")
    for name in ("cat", "dog"):
        project.write(f"pictures/{name}/1.txt", name)
    dvc("add", "-q", "data/table.csv", "pictures")
    project.commit("Data")
    dvc("stage", "add", "-q", "--run", "-n", "copy", "-d", "data/table.csv", "-o", "made.csv",
        "cp data/table.csv made.csv")  # fmt: skip
    project.write("data/table.csv", "id\n1\n2\n")
    dvc("repro", "-q")
    dvc("commit", "-q", "-f")
    project.commit("A pipeline")

    repository = tr.init(tmp_path / "repo", author="Eve <eve@example.org>")
    made = repository.import_history(project.folder)
    assert (made.tool, made.commits, made.left_out) == ("dvc", 2, ())
    core = repository.context.core

    def content(path: str, ref: str) -> bytes:
        entry = core.entry(repository.resolve(ref).commit.tree, path)
        assert entry is not None, path
        return bytes(core.objects.get(entry.digest).payload)

    assert content("files/data/table.csv", "main~1") == b"id\r\n1\r\n"
    assert content("files/data/table.csv", "main") == b"id\n1\n2\n"
    assert content("files/made.csv", "main") == b"id\n1\n2\n"
    assert content("files/pictures/dog/1.txt", "main") == b"dog"
    assert "made.csv" in content("files/dvc.lock", "main").decode()
