from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tensorrepo.repo.backends.base import Guarantee, overwrite_durably
from tensorrepo.repo.backends.disk import (
    LARGE_BYTES,
    STALE_SECONDS,
    TEMPORARY,
    Disk,
    _storing,
    explain,
)  # fmt: skip
from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.errors import (
    Error,
    InvalidInputError,
    NotFoundError,
    PermissionDenied,
    StorageError,
)
from tests.support.effort import sampled
from tests.support.faults.backends import Crash
from tests.support.faults.disks import RecordingDisk

SMALL = b"small"
LARGE = bytes(LARGE_BYTES)
FILES = {"objects/01/a": SMALL, "objects/01/b": LARGE, "objects/02/c": SMALL, "log/1": SMALL}
STEPS = {"by steps": 17, "in one call": 15}  # of storing FILES
needs_c = pytest.mark.skipif(_storing is None, reason="no compiler when this was installed")
ways = pytest.mark.parametrize("way", ["by steps", pytest.param("in one call", marks=needs_c)])


def store(backend: LocalBackend, files: dict[str, bytes]) -> dict[str, bool]:
    with backend.uploads() as uploads:
        for key, data in files.items():
            uploads.create(key, (data,))
        return uploads.finish()


def recorded(
    root: Path, files: dict[str, bytes], way: str = "by steps", die_after: int | None = None
) -> list[tuple[str, str]]:
    """The steps of storing files; in one call where all folders are known to be durable."""
    disk = RecordingDisk(root, in_one_call=way == "in one call")
    backend = LocalBackend(root, disk=disk)
    if way == "in one call":
        store(backend, {f"{key.rpartition('/')[0]}/before": SMALL for key in files})
        disk.steps.clear()
    disk.die_before = die_after
    store(backend, files)
    assert disk.one_calls == (way == "in one call")
    return disk.steps


def test_small_files_of_one_upload_open_each_folder_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = LocalBackend(tmp_path, disk=RecordingDisk(tmp_path))
    store(backend, {"objects/01/a": SMALL, "objects/02/a": SMALL})
    opened, real, before = [], os.open, os.listdir("/dev/fd")

    def noting(path: str, flags: int, *how: int, dir_fd: int | None = None) -> int:
        if flags & os.O_DIRECTORY and path != ".":  # which is a file without a name
            opened.append(path)
        return real(path, flags, *how, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", noting)
    store(backend, {"objects/01/b": SMALL, "objects/02/b": SMALL})
    assert sorted(opened) == sorted([str(tmp_path), "objects", "01", "02", TEMPORARY])
    assert len(os.listdir("/dev/fd")) == len(before)


def links(steps: list[tuple[str, str]]) -> dict[str, tuple[int, str]]:
    """For each key, the step that linked it and the temporary file that it was."""
    found = [(at, *what.split(" ")) for at, (verb, what) in enumerate(steps) if verb == "link"]
    return {key: (at, name) for at, name, key in found}


@ways
@pytest.mark.parametrize("key", FILES)
def test_a_file_is_synced_before_it_gets_its_name(tmp_path: Path, key: str, way: str) -> None:
    steps = recorded(tmp_path, FILES, way)
    at, name = links(steps)[key]
    assert steps.index(("stage", name)) < steps.index(("sync", name)) < at


@ways
@pytest.mark.parametrize("key", FILES)
def test_a_folder_is_synced_after_a_name_was_put_into_it(
    tmp_path: Path, key: str, way: str
) -> None:
    steps = recorded(tmp_path, FILES, way)
    at, _ = links(steps)[key]
    assert ("sync folder", key.rpartition("/")[0]) in steps[at:]


@pytest.mark.parametrize("folder", ["objects", ""])
def test_the_folder_of_a_new_folder_is_synced_too(tmp_path: Path, folder: str) -> None:
    steps = recorded(tmp_path, {"objects/01/a": SMALL})
    last_link = max(at for at, _ in links(steps).values())
    assert ("sync folder", folder) in steps[last_link:]


def test_a_folder_that_somebody_else_made_is_synced_by_who_first_uses_it(tmp_path: Path) -> None:
    (tmp_path / "objects/01").mkdir(parents=True)
    steps = recorded(tmp_path, {"objects/01/a": SMALL})
    assert [what for verb, what in steps if verb == "sync folder"] == ["objects/01", "objects", ""]


def test_a_folder_known_to_be_durable_is_not_looked_at_again(tmp_path: Path) -> None:
    disk = RecordingDisk(tmp_path)
    backend = LocalBackend(tmp_path, disk=disk)
    backend.create("objects/01/a", (SMALL,))
    disk.steps.clear()
    backend.create("objects/01/b", (SMALL,))
    assert [what for verb, what in disk.steps if verb == "sync folder"] == ["objects/01"]


@ways
def test_small_files_are_all_synced_before_the_first_gets_its_name(
    tmp_path: Path, way: str
) -> None:
    steps = recorded(tmp_path, {f"objects/01/{number}": SMALL for number in range(9)}, way)
    assert [verb for verb, _ in steps if verb in {"sync", "link"}] == ["sync"] * 9 + ["link"] * 9


def test_adopting_a_file_that_somebody_else_linked_syncs_its_folder(tmp_path: Path) -> None:
    LocalBackend(tmp_path).create("objects/01/a", (SMALL,))
    disk = RecordingDisk(tmp_path)
    backend = LocalBackend(tmp_path, disk=disk)
    assert backend.create("objects/01/a", (SMALL,)) is False
    assert disk.steps == [("sync folder", each) for each in ("objects/01", "objects", "")]


def test_every_upload_is_synced_when_finish_returns_however_many_there_are(tmp_path: Path) -> None:
    files = {f"objects/{number:02x}/x": SMALL for number in range(200)}
    steps = recorded(tmp_path, files)
    synced = {what for verb, what in steps if verb == "sync"}
    assert links(steps).keys() == files.keys()
    assert {name for _, name in links(steps).values()} <= synced


@pytest.mark.parametrize("unnamed", [True, False])
@pytest.mark.parametrize("die_before", sampled(range(STEPS["by steps"]), 6))
def test_a_crash_at_any_step_leaves_whole_values_or_none(
    tmp_path: Path, die_before: int, unnamed: bool
) -> None:
    disk = RecordingDisk(tmp_path, die_before, unnamed=unnamed)
    with pytest.raises(Crash):
        store(LocalBackend(tmp_path, disk=disk), FILES)
    after = LocalBackend(tmp_path)
    found = {stored.key: after.read(stored.key) for stored in after.list("")}
    assert found.items() <= FILES.items()
    assert store(after, FILES).keys() == FILES.keys()
    assert {key: after.read(key) for key in FILES} == FILES


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT])
@pytest.mark.parametrize("fails", ["open", "link"])
def test_where_no_file_can_be_without_a_name_it_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str, error: int
) -> None:
    """File systems know no such files, old kernels no such flag, and a container may lack /proc."""
    real = getattr(os, fails)

    def refuse(path: str, *args: object, **options: object) -> object:
        if path == "." or path.startswith("/proc/self/fd"):
            raise OSError(error, os.strerror(error))
        return real(path, *args, **options)

    monkeypatch.setattr(os, fails, refuse)
    backend = LocalBackend(tmp_path, disk=Disk(tmp_path, link=os.link))
    assert store(backend, FILES) == dict.fromkeys(FILES, True)
    monkeypatch.undo()
    assert {key: LocalBackend(tmp_path).read(key) for key in FILES} == FILES
    assert list((tmp_path / TEMPORARY).iterdir()) == []


def test_a_writer_that_dies_leaves_no_temporary_file(tmp_path: Path) -> None:
    try:
        os.close(os.open(tmp_path, getattr(os, "O_TMPFILE", 0) | os.O_WRONLY))
    except OSError:
        pytest.skip("the file system makes no files without a name")
    staged = Disk(tmp_path).stage((memoryview(SMALL),))
    left = list((tmp_path / TEMPORARY).iterdir())
    os.close(staged.fd)
    assert left == []


@needs_c
@pytest.mark.parametrize("die_before", sampled(range(STEPS["in one call"]), 6))
def test_a_crash_in_the_middle_of_one_call_leaves_whole_values_or_none(
    tmp_path: Path, die_before: int
) -> None:
    with pytest.raises(Crash):
        recorded(tmp_path, FILES, "in one call", die_before)
    after = LocalBackend(tmp_path)
    found = {stored.key: after.read(stored.key) for stored in after.list("")}
    before = {f"{key.rpartition('/')[0]}/before": SMALL for key in FILES}
    assert before.items() <= found.items() <= (before | FILES).items()
    assert store(after, FILES).keys() == FILES.keys()
    assert {key: after.read(key) for key in FILES} == FILES


@ways
def test_the_crashes_above_reach_every_step(tmp_path: Path, way: str) -> None:
    assert len(recorded(tmp_path, FILES, way)) == STEPS[way]


@needs_c
def test_one_call_tells_which_keys_were_taken_and_leaves_those_as_they_are(
    tmp_path: Path,
) -> None:
    backend = LocalBackend(tmp_path)
    store(backend, {"log/1": SMALL, "objects/01/a": SMALL})
    opened = os.listdir("/dev/fd")
    files = {"log/1": b"other", "log/2": b"", "objects/01/b": bytes(range(256)) * 255}
    assert store(backend, files) == {"log/1": False, "log/2": True, "objects/01/b": True}
    assert {key: backend.read(key) for key in files} == files | {"log/1": SMALL}
    assert len(os.listdir("/dev/fd")) == len(opened)


@needs_c
def test_one_call_follows_no_link_and_takes_no_folder_for_a_file(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path / "root")
    store(backend, {"objects/01/a": SMALL, "log/1": SMALL})
    (tmp_path / "root/log/2").mkdir()
    with pytest.raises(StorageError, match="a folder, a link or a device"):
        backend.create("log/2", (SMALL,))
    (tmp_path / "root/objects/01").rename(tmp_path / "moved")
    (tmp_path / "root/objects/01").symlink_to(tmp_path / "moved")
    with pytest.raises(StorageError, match="links are not followed"):
        backend.create("objects/01/b", (SMALL,))
    assert os.listdir(tmp_path / "moved") == ["a"]


@needs_c
def test_a_folder_that_vanished_is_made_again(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    backend.create("objects/01/a", (SMALL,))
    shutil.rmtree(tmp_path / "objects")
    assert backend.create("objects/01/a", (SMALL,))
    assert backend.read("objects/01/a") == SMALL


@needs_c
def test_writers_of_one_call_have_one_winner_for_each_key(tmp_path: Path) -> None:
    """Eight at once, each with files of its own bytes for the same forty keys."""
    keys = [f"objects/{number % 3:02}/{number}" for number in range(40)]
    store(LocalBackend(tmp_path), {f"objects/{number:02}/before": SMALL for number in range(3)})

    def write(number: int) -> dict[str, bool]:
        backend = LocalBackend(tmp_path)
        store(backend, {f"objects/{at:02}/of-{number}": SMALL for at in range(3)})
        start.wait()
        return store(backend, {key: f"{key} {number}".encode() for key in keys})

    start = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(write, range(8)))
    for key in keys:
        (winner,) = (number for number, created in enumerate(found) if created[key])
        assert LocalBackend(tmp_path).read(key) == f"{key} {winner}".encode()


def test_what_is_overwritten_durably_is_synced_before_it_has_its_name(tmp_path: Path) -> None:
    disk = RecordingDisk(tmp_path)
    backend = LocalBackend(tmp_path, disk=disk)
    overwrite_durably(backend, "log/1", (SMALL,))
    verbs = [verb for verb, _ in disk.steps]
    assert verbs[:3] == ["stage", "sync", "replace"]
    assert ("sync folder", "log") in disk.steps[3:]
    disk.steps.clear()
    backend.overwrite("log/hint", (SMALL,))
    assert [verb for verb, _ in disk.steps] == ["stage", "replace"]


def test_nothing_is_left_of_temporary_files(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    store(backend, FILES)
    store(backend, FILES)
    backend.overwrite("log/hint", (SMALL,))
    assert list((tmp_path / TEMPORARY).iterdir()) == []


def test_a_temporary_file_of_a_killed_writer_is_no_key(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    backend.create("log/1", (SMALL,))
    (tmp_path / TEMPORARY / "4711-cafe").write_bytes(b"half")
    assert [stored.key for stored in backend.list("")] == ["log/1"]
    with pytest.raises(InvalidInputError, match="no key yet"):
        backend.read(f"{TEMPORARY}/4711-cafe")


@pytest.mark.parametrize(
    ("age_seconds", "locked", "kept"),
    [(STALE_SECONDS * 2, False, False), (STALE_SECONDS * 2, True, True), (0, False, True)],
    ids=["old", "old, its writer lives", "young"],
)
def test_only_temporaries_of_dead_writers_are_swept(
    tmp_path: Path, age_seconds: float, locked: bool, kept: bool
) -> None:
    LocalBackend(tmp_path).create("log/1", (SMALL,))
    stale = tmp_path / TEMPORARY / "4711-cafe"
    stale.write_bytes(b"half")
    now = stale.stat().st_mtime + age_seconds
    with stale.open("rb") as file:
        if locked:
            fcntl.flock(file, fcntl.LOCK_EX)
        LocalBackend(tmp_path, disk=Disk(tmp_path, clock=lambda: now)).create("log/2", (SMALL,))
    assert stale.exists() is kept


def test_a_link_in_the_place_of_a_folder_leads_nowhere(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "objects").symlink_to(outside)
    backend = LocalBackend(root)
    with pytest.raises(StorageError, match="links are not followed"):
        backend.read("objects/secret")
    with pytest.raises(StorageError, match="links are not followed"):
        backend.create("objects/new", (SMALL,))
    with pytest.raises(StorageError, match="links are not followed"):
        backend.overwrite("objects/secret", (SMALL,))
    with pytest.raises(StorageError, match="links are not followed"):
        backend.delete("objects/secret")
    assert list(backend.list("")) == []
    assert (outside / "secret").read_bytes() == b"secret"


@pytest.mark.parametrize("dangling", [False, True])
def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path, dangling: bool) -> None:
    outside = tmp_path / "outside"
    if not dangling:
        outside.write_bytes(b"secret")
    backend = LocalBackend(tmp_path / "root")
    backend.create("log/1", (SMALL,))
    (tmp_path / "root/log/2").symlink_to(outside)
    with pytest.raises(StorageError, match="not followed"):
        backend.read("log/2")
    with pytest.raises(StorageError, match="a link"):
        backend.size("log/2")
    assert [stored.key for stored in backend.list("log/")] == ["log/1"]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_not_read_and_blocks_nobody(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "thing")
    with pytest.raises(StorageError, match="stands where a file must be"):
        LocalBackend(tmp_path).read("thing")


def test_the_root_comes_into_being_with_the_first_write(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path / "not" / "yet")
    assert list(backend.list("")) == []
    assert backend.size("log/1") is None
    with pytest.raises(NotFoundError):
        backend.read("log/1")
    assert not (tmp_path / "not").exists()
    assert backend.create("log/1", (SMALL,))
    assert (tmp_path / "not/yet/log/1").read_bytes() == SMALL


def test_files_of_others_are_listed_so_that_they_can_be_reported(tmp_path: Path) -> None:
    (tmp_path / "notes (old).txt").write_bytes(b"12345")
    (stored,) = LocalBackend(tmp_path).list("")
    assert (stored.key, stored.bytes) == ("notes (old).txt", 5)


def test_where_there_are_no_hard_links_one_writer_can_still_create(tmp_path: Path) -> None:
    disk = Disk(tmp_path, link=_no_links)
    backend = LocalBackend(tmp_path, guarantee=Guarantee.SINGLE_WRITER, disk=disk)
    assert backend.create("log/1", (SMALL,)) is True
    assert backend.create("log/1", (b"other",)) is False
    assert backend.read("log/1") == SMALL


def test_where_links_are_promised_their_absence_is_an_error(tmp_path: Path) -> None:
    disk = Disk(tmp_path, link=_no_links)
    with pytest.raises(StorageError, match="not supported"):
        LocalBackend(tmp_path, guarantee=Guarantee.ATOMIC, disk=disk).create("log/1", (SMALL,))
    assert list(LocalBackend(tmp_path).list("")) == []


@pytest.mark.parametrize("large", [False, True])
def test_a_write_that_fails_leaves_nothing_and_says_so(tmp_path: Path, large: bool) -> None:
    backend = LocalBackend(tmp_path)
    backend.create("log/1", (SMALL,))
    with _file_size_limit(LARGE_BYTES // 2), pytest.raises(StorageError, match="too large"):
        backend.create("log/2", (LARGE * 2 if large else LARGE[:-1],))
    assert [stored.key for stored in backend.list("")] == ["log/1"]
    assert list((tmp_path / TEMPORARY).iterdir()) == []
    assert [each.name for each in threading.enumerate() if "tensorrepo" in each.name] == []


def test_after_a_failed_create_the_same_uploads_can_store_the_key(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path)
    with backend.uploads() as uploads:
        with _file_size_limit(LARGE_BYTES // 2), pytest.raises(StorageError):
            uploads.create("log/1", (LARGE,))
        uploads.create("log/1", (SMALL,))
        assert uploads.finish() == {"log/1": True}


def test_many_small_parts_are_written_in_order(tmp_path: Path) -> None:
    parts = [bytes([number % 256]) * (number % 7) for number in range(5000)]
    backend = LocalBackend(tmp_path)
    backend.create("log/1", parts)
    assert backend.read("log/1") == b"".join(parts)


@pytest.mark.parametrize(
    ("number", "expected", "transient", "says"),
    [
        (errno.ENOSPC, StorageError, False, "No space is left"),
        (errno.EDQUOT, StorageError, False, "quota"),
        (errno.EROFS, PermissionDenied, None, "read-only"),
        (errno.EACCES, PermissionDenied, None, "owner"),
        (errno.EPERM, PermissionDenied, None, "owner"),
        (errno.EIO, StorageError, False, "defect"),
        (errno.ENOTDIR, StorageError, False, "links are not followed"),
        (errno.ELOOP, StorageError, False, "not followed"),
        (errno.EMFILE, StorageError, True, "ulimit"),
        (errno.ESTALE, StorageError, True, "network"),
        (errno.EINVAL, StorageError, False, "doctor"),
    ],
)
def test_a_failure_of_the_disk_says_what_where_and_what_to_do(
    tmp_path: Path, number: int, expected: type[Error], transient: bool | None, says: str
) -> None:
    error = explain(OSError(number, "any"), "write", tmp_path / "log/1")
    assert type(error) is expected
    assert getattr(error, "transient", None) is transient
    assert str(error).startswith(f"cannot write {tmp_path}/log/1: {os.strerror(number)}")
    assert says in str(error)


def _no_links(*_: object, **__: object) -> None:
    raise OSError(errno.EOPNOTSUPP, "no links here")


@contextmanager
def _file_size_limit(limit_bytes: int) -> Iterator[None]:
    """Let writes beyond `limit_bytes` fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_file_that_is_swept_before_it_is_locked_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a process whose clock is a day ahead: to it any file is old."""
    locked, swept = fcntl.flock, list[str]()

    def sweeps(fd: int, how: int) -> None:
        if not swept:
            swept.extend(path.name for path in (tmp_path / TEMPORARY).iterdir())
            (tmp_path / TEMPORARY / swept[0]).unlink()
        locked(fd, how)

    monkeypatch.setattr(fcntl, "flock", sweeps)
    disk = Disk(tmp_path, unnamed=False)
    LocalBackend(tmp_path, disk=disk).create("objects/01/a", (SMALL,))
    assert swept
    assert LocalBackend(tmp_path).read("objects/01/a") == SMALL
