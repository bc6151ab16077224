"""An export appears whole or not at all, and never over something by accident."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from tensorrepo.formats.exchange.output import new_file, new_folder
from tensorrepo.repo.errors import InvalidInputError, NotFoundError, StorageError


def test_a_file_appears_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with new_file(path, overwrite=False) as temporary:
        temporary.write_text("new")
        assert not path.exists()
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_appears_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with new_folder(path, overwrite=False) as temporary:
        (temporary / "inside").write_text("new")
        assert not path.exists()
    assert (path / "inside").read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("make", [new_file, new_folder])
@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_a_failure_leaves_nothing_behind(
    make: object, failure: type[BaseException], tmp_path: Path
) -> None:
    def attempt() -> None:
        with make(tmp_path / "x", overwrite=False) as temporary:  # type: ignore[operator]
            (temporary / "inside" if temporary.is_dir() else temporary).write_text("half")
            raise failure

    with pytest.raises(failure):
        attempt()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("make", [new_file, new_folder])
def test_a_failure_keeps_what_was_there_before(make: object, tmp_path: Path) -> None:
    path = tmp_path / "x"
    if make is new_file:
        path.write_text("old")
    else:
        path.mkdir()
        (path / "inside").write_text("old")

    def attempt() -> None:
        with make(path, overwrite=True) as temporary:  # type: ignore[operator]
            (temporary / "inside" if temporary.is_dir() else temporary).write_text("half")
            raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        attempt()
    assert (path if path.is_file() else path / "inside").read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_what_somebody_made_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x"

    def attempt() -> None:
        with new_file(path, overwrite=False) as temporary:
            temporary.write_text("ours")
            path.write_text("theirs")

    with pytest.raises(InvalidInputError, match="appeared while"):
        attempt()
    assert path.read_text() == "theirs"


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_link_that_leads_nowhere_is_something_there(overwrite: bool, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.symlink_to(tmp_path / "nothing")

    def attempt() -> str:
        with new_file(path, overwrite=overwrite) as temporary:
            temporary.write_text("ours")
        return "written"

    if overwrite:
        assert attempt() == "written"
    else:
        with pytest.raises(InvalidInputError, match="exists already"):
            attempt()
    assert not (tmp_path / "nothing").exists()


def test_an_empty_folder_may_be_filled(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    with new_folder(tmp_path / "x", overwrite=False) as temporary:
        (temporary / "inside").write_text("new")
    assert (tmp_path / "x" / "inside").exists()


@pytest.mark.parametrize("holds", [".git", ".tensorrepo"])
def test_a_repository_is_never_replaced(holds: str, tmp_path: Path) -> None:
    (tmp_path / "x" / holds).mkdir(parents=True)
    with (
        pytest.raises(InvalidInputError, match=f"holds {holds}"),
        new_folder(tmp_path / "x", overwrite=True),
    ):
        pytest.fail("nothing may be written")


def test_the_current_folder_is_never_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x" / "y").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "x" / "y")
    with (
        pytest.raises(InvalidInputError, match="current folder"),
        new_folder(tmp_path / "x", overwrite=True),
    ):
        pytest.fail("nothing may be written")


def test_a_missing_parent_is_not_found(tmp_path: Path) -> None:
    with (
        pytest.raises(NotFoundError, match="Make it first"),
        new_file(tmp_path / "no" / "x", overwrite=False),
    ):
        pytest.fail("nothing may be written")


@pytest.mark.parametrize(("make", "other"), [(new_file, "folder"), (new_folder, "file")])
def test_files_and_folders_do_not_replace_each_other(
    make: object, other: str, tmp_path: Path
) -> None:
    path = tmp_path / "x"
    if other == "folder":
        path.mkdir()
    else:
        path.touch()
    with (
        pytest.raises(InvalidInputError, match=f"is a {other}"),
        make(path, overwrite=True),  # type: ignore[operator]
    ):
        pytest.fail("nothing may be written")


def test_a_full_disk_is_a_storage_error_and_leaves_nothing(tmp_path: Path) -> None:
    def attempt() -> None:
        with new_file(tmp_path / "x", overwrite=False) as temporary:
            temporary.write_bytes(bytes(1 << 20))

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    old = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(StorageError, match=os.strerror(27)):
            attempt()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, old)
    assert list(tmp_path.iterdir()) == []
