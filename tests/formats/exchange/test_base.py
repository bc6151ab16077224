"""`.tensorrepoignore` means what git's lines mean."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorrepo.formats.exchange.base import FILE_NAME, parse_ignore, read_ignore
from tensorrepo.repo.errors import InvalidInputError


@pytest.mark.parametrize(
    ("text", "path", "is_folder"),
    [
        ("*.tmp", "a.tmp", False),
        ("*.tmp", "deep/er/a.tmp", False),
        ("raw/", "raw", True),
        ("/raw", "raw", True),
        ("a/b", "a/b", False),
        ("**/b", "x/y/b", False),
        ("**/b", "b", False),
        ("a/**", "a/x/y", False),
        ("a/**/z", "a/z", False),
        ("a/**/z", "a/x/y/z", False),
        ("?.png", "a.png", False),
        ("[ab].png", "b.png", False),
        ("[!ab].png", "c.png", False),
        ("\\#notes", "#notes", False),
        ("*.png\n!keep.png\nkeep.png", "keep.png", False),
    ],
)
def test_these_are_left_out(text: str, path: str, is_folder: bool) -> None:
    assert parse_ignore(text).leaves_out(path, is_folder=is_folder)


@pytest.mark.parametrize(
    ("text", "path", "is_folder"),
    [
        ("", "a", False),
        ("# a", "a", False),
        ("raw/", "raw", False),
        ("/raw", "deep/raw", False),
        ("a/b", "x/a/b", False),
        ("/*", "a/b", False),
        ("?.png", "ab.png", False),
        ("[!ab].png", "a.png", False),
        ("*.png\n!keep.png", "keep.png", False),
        ("a.png", "aXpng", False),
        ("a/**", "a", True),
        ("?//", "a", True),
    ],
)
def test_these_stay(text: str, path: str, is_folder: bool) -> None:
    assert not parse_ignore(text).leaves_out(path, is_folder=is_folder)


LINES = st.lists(
    st.text(alphabet="ab*?/!.", min_size=1, max_size=6).filter(lambda line: line.strip("!/")),
    max_size=4,
)
PATHS = st.lists(st.text(alphabet="ab.", min_size=1, max_size=3), min_size=1, max_size=3).filter(
    lambda parts: not {".", ".."} & set(parts)
)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the judge")
@given(lines=LINES, parts=PATHS)
def test_git_decides_alike(
    lines: list[str], parts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("git")
    path = "/".join(parts)
    (folder / "rules").write_text("\n".join(lines))
    command = ["git", "-c", f"core.excludesFile={folder / 'rules'}", "check-ignore", "-q", path]
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    said = subprocess.run(command, cwd=folder, check=False).returncode == 0
    ignore = parse_ignore("\n".join(lines))
    folders = ["/".join(parts[:at]) for at in range(1, len(parts))]
    ours = any(ignore.leaves_out(each, is_folder=True) for each in folders)
    assert (ours or ignore.leaves_out(path, is_folder=False)) == said


def test_a_folder_without_the_file_leaves_nothing_out(tmp_path: Path) -> None:
    assert not read_ignore(tmp_path).rules


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(InvalidInputError, match=FILE_NAME):
        read_ignore(tmp_path)
