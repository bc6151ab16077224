"""The small files of a workspace: one at a time, whole or not at all, damaged ones named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from tensorrepo.repo.changes.revisions import Head
from tensorrepo.repo.errors import (
    ConflictError,
    CorruptError,
    Error,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    StorageError,
    UnsupportedError,
)
from tensorrepo.repo.history.trees import Entry
from tensorrepo.repo.objects.envelope import Kind
from tensorrepo.workspace import state as workspace_module
from tensorrepo.workspace.state import (
    StagedEntry,
    StagingArea,
    Tracked,
    Workspace,
    changed_files,
    create_workspace,
    describe_files,
    find_workspace,
)
from tests.support.builders.log import digest
from tests.support.faults.damage import FLIPS, flipped, places
from tests.support.faults.places import read_only

URL = "memory://somewhere"
MAIN = Head(branch="main")
STAGING = StagingArea(
    digest(1),
    12,
    {
        "files/a": StagedEntry("BLOB", digest(2), None, "0a00", 0, 10, "a.txt"),
        "files/gone": StagedEntry(),
        "models/m": StagedEntry("MODEL", digest(3), digest(4)),
    },
)
TRACKED = {"data/a": Tracked("files/a", digest(2), "file", {"": (10, 1_700_000_000_000_000_000)})}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return create_workspace(tmp_path, URL, MAIN)


# ---- what is written comes back


def test_a_new_workspace_knows_where_it_works_and_has_nothing_staged(workspace: Workspace) -> None:
    state = workspace.state()
    assert (state.url, state.head) == (URL, MAIN)
    assert workspace.staging() == StagingArea()
    assert workspace.tracked() == {}


def test_what_was_written_is_read_by_another_handle(workspace: Workspace) -> None:
    workspace.write_staging(STAGING)
    workspace.write_tracked(TRACKED)
    workspace.set_head(Head(commit=digest(9)))
    other = Workspace(workspace.root)
    assert other.staging() == STAGING
    assert other.tracked() == TRACKED
    assert other.state().head == Head(commit=digest(9))


def test_staged_changes_are_entries_or_removals() -> None:
    entries = {path: staged.entry for path, staged in STAGING.entries.items()}
    assert entries == {
        "files/a": Entry(Kind.BLOB, digest(2)),
        "files/gone": None,
        "models/m": Entry(Kind.MODEL, digest(3), digest(4)),
    }


def test_the_nearest_workspace_upward_is_found(workspace: Workspace) -> None:
    deep = workspace.root / "a" / "b"
    deep.mkdir(parents=True)
    assert find_workspace(deep) == workspace
    inner = create_workspace(deep, URL, MAIN)
    assert find_workspace(deep) == inner
    assert find_workspace(deep.parent) == workspace


def test_a_folder_without_workspace_above_has_none(tmp_path: Path) -> None:
    assert find_workspace(tmp_path) is None
    with pytest.raises(NotFoundError, match="tensorrepo init"):
        Workspace(tmp_path).state()


def test_a_file_in_the_way_of_a_workspace_is_named(tmp_path: Path) -> None:
    (tmp_path / ".tensorrepo").write_text("mine")
    with pytest.raises(InvalidInputError, match=r"\.tensorrepo is in the way"):
        create_workspace(tmp_path, URL, MAIN)
    assert (tmp_path / ".tensorrepo").read_text() == "mine"


# ---- one at a time

HOLDER = """
import sys
from pathlib import Path
from tensorrepo.workspace.state import Workspace
with Workspace(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""


@contextmanager
def locked_elsewhere(root: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock."""
    arguments = [sys.executable, "-c", HOLDER, str(root)]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "locked\n"
            yield process
        finally:
            process.kill()


def take_lock(workspace: Workspace) -> None:
    with workspace.locked():
        pass


def test_only_one_process_works_in_a_workspace(workspace: Workspace) -> None:
    with locked_elsewhere(workspace.root), pytest.raises(ConflictError, match="at work"):
        take_lock(workspace)


@pytest.mark.parametrize("signal", [9, 15])
def test_a_lock_dies_with_its_holder(workspace: Workspace, signal: int) -> None:
    with locked_elsewhere(workspace.root) as holder:
        holder.send_signal(signal)
        holder.wait()
    take_lock(workspace)


def test_a_lock_is_free_again_when_its_holder_fails(workspace: Workspace) -> None:
    with suppress(RuntimeError), workspace.locked():
        raise RuntimeError
    take_lock(workspace)


def test_two_threads_are_two_users(workspace: Workspace) -> None:
    with workspace.locked(), pytest.raises(ConflictError):
        take_lock(Workspace(workspace.root))


def test_locking_where_there_is_no_workspace_says_so(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        take_lock(Workspace(tmp_path))


# ---- whole or not at all


def test_readers_beside_a_writer_see_one_version_or_the_other(workspace: Workspace) -> None:
    few = StagingArea(digest(1), 1, {"files/a": StagedEntry("BLOB", digest(2))})
    many = StagingArea(
        digest(2), 2, {f"files/{n:03}": StagedEntry("BLOB", digest(n)) for n in range(500)}
    )
    workspace.write_staging(few)
    done = threading.Event()

    def write() -> None:
        for _ in range(20):
            workspace.write_staging(many)
            workspace.write_staging(few)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = []
    while not done.is_set():
        seen.append(workspace.staging())
    writer.join()
    assert all(staging in (few, many) for staging in seen)
    assert sorted(os.listdir(workspace.folder)) == ["pending", "staged.json", "workspace.json"]


class NoSpaceError(OSError):
    def __init__(self) -> None:
        super().__init__(28, "No space left on device")


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("failure", [NoSpaceError, KeyboardInterrupt])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    workspace: Workspace,
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    failure: type[BaseException],
) -> None:
    workspace.write_staging(STAGING)

    def fail(*_: object) -> None:
        raise failure

    where: object = workspace_module.os if step == "fsync" else Path
    with monkeypatch.context() as patch:
        patch.setattr(where, step, fail)
        with pytest.raises((StorageError, KeyboardInterrupt)):
            workspace.write_staging(StagingArea())
    assert workspace.staging() == STAGING
    assert sorted(os.listdir(workspace.folder)) == ["pending", "staged.json", "workspace.json"]


def test_a_folder_that_may_not_be_written_is_refused(workspace: Workspace) -> None:
    with read_only(workspace.folder):
        with pytest.raises(PermissionDenied):
            workspace.write_staging(STAGING)
        with pytest.raises(PermissionDenied):
            take_lock(workspace)


# ---- damage

READERS: dict[str, Callable[[Workspace], object]] = {
    "workspace.json": Workspace.state,
    "staged.json": Workspace.staging,
    "tracked.json": Workspace.tracked,
}
DAMAGED = {
    "empty": b"",
    "cut short": b'{"format": 1, "url": ',
    "no object": b"[1, 2]",
    "no text": b"\xff\xfe\x00",
    "other types": b'{"format": "1", "generation": "x", "a": 7}',
    "deeply nested": b'{"zzz": ' + b"[" * 100_000,
}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_named_and_said_not_to_harm_the_repository(
    workspace: Workspace, name: str, data: bytes
) -> None:
    (workspace.folder / name).write_bytes(data)
    with pytest.raises(CorruptError, match=rf"{name} is damaged.*repository is not affected"):
        READERS[name](workspace)


@pytest.mark.parametrize(
    "staged",
    [
        {"kind": "TENSOR", "digest": digest(1)},
        {"kind": "BLOB"},
        {"digest": digest(1)},
        {"kind": "BLOB", "digest": "../../etc/passwd"},
        {"kind": "BLOB", "digest": digest(1)[1:]},
        {"kind": "MODEL", "digest": digest(1), "storage": "x"},
    ],
    ids=str,
)
def test_what_cannot_have_been_staged_is_damage(
    workspace: Workspace, staged: dict[str, str]
) -> None:
    data = json.dumps({"entries": {"files/a": staged}})
    (workspace.folder / "staged.json").write_text(data)
    with pytest.raises(CorruptError, match=r"staged\.json is damaged"):
        workspace.staging()


@pytest.mark.parametrize("head", [{}, {"branch": "main", "commit": digest(1)}, {"commit": "x"}])
def test_a_head_that_is_neither_branch_nor_commit_is_damage(
    workspace: Workspace, head: dict[str, str]
) -> None:
    data = json.dumps({"format": 1, "url": URL, "head": head})
    (workspace.folder / "workspace.json").write_text(data)
    with pytest.raises(CorruptError, match=r"workspace\.json is damaged"):
        workspace.state()


def test_a_workspace_of_a_newer_version_is_unsupported(workspace: Workspace) -> None:
    workspace.write_state(msgspec.structs.replace(workspace.state(), format=2))
    with pytest.raises(UnsupportedError, match="Update it"):
        workspace.state()


@pytest.mark.parametrize("mask", FLIPS)
@pytest.mark.parametrize("name", READERS)
def test_whatever_byte_is_flipped_readers_raise_our_errors_or_none(
    workspace: Workspace, name: str, mask: int
) -> None:
    workspace.write_staging(STAGING)
    workspace.write_tracked(TRACKED)
    path = workspace.folder / name
    data = path.read_bytes()
    raised = []
    tried = places(len(data))
    for at in tried:
        path.write_bytes(flipped(data, at, mask))
        try:
            READERS[name](workspace)
        except Error as error:
            raised.append(error.kind)
    assert set(raised) <= {"corrupt", "unsupported"}
    assert len(raised) > len(tried) // 4


# ---- files that were written out


def test_files_that_differ_from_how_they_were_written_are_told(tmp_path: Path) -> None:
    place = tmp_path / "out"
    place.mkdir()
    for name in ("same", "longer", "touched", "gone"):
        (place / name).write_bytes(b"1234")
    tracked = Tracked("files/x", digest(1), "file", describe_files(place))
    (place / "longer").write_bytes(b"12345")
    os.utime(place / "touched", ns=(1, 1))
    (place / "gone").unlink()
    (place / "sub").mkdir()
    (place / "sub" / "added").write_bytes(b"")
    assert changed_files(tmp_path, "out", tracked) == {
        "gone": "deleted",
        "longer": "modified",
        "sub/added": "new",
        "touched": "modified",
    }


def test_a_file_that_was_written_out_alone_is_compared_too(tmp_path: Path) -> None:
    place = tmp_path / "one"
    place.write_bytes(b"1234")
    tracked = Tracked("files/x", digest(1), "file", describe_files(place))
    assert changed_files(tmp_path, "one", tracked) == {}
    place.write_bytes(b"12345")
    assert changed_files(tmp_path, "one", tracked) == {"": "modified"}
