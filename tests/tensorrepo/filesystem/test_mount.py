"""Commits mounted by FUSE: what programs see, and what is left when the process is killed."""

from __future__ import annotations

import errno
import os
import signal
import stat
import time
from collections.abc import Iterator, Sequence
from ctypes.util import find_library
from pathlib import Path

import pytest

import tensorrepo as tr
from tensorrepo.cli import mount as command
from tensorrepo.filesystem.commit import files_of
from tensorrepo.filesystem.mount import BLOCK_BYTES, BlockReader, MountedFiles, mounted_at
from tests.support.processes.shell import Shell

CONFLICT, NOT_FOUND = 4, 3
has_fuse = os.path.exists("/dev/fuse") and (find_library("fuse") or find_library("fuse3"))
needs_fuse = pytest.mark.skipif(not has_fuse, reason="/dev/fuse or libfuse is missing")


@pytest.fixture
def mounted(full: Shell) -> Iterator[Path]:
    """The first commit, at a folder that did not exist."""
    place = full.folder / "seen"
    full("mount", "v1", str(place))
    try:
        yield place
    finally:
        if mounted_at(place):
            full("unmount", str(place))


def server_of(place: Path) -> int:
    """The process that serves a mounted folder."""
    words = f"{place}\0--foreground".encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if words in (process / "cmdline").read_bytes():
                return int(process.name)
        except OSError:
            continue
    raise AssertionError(f"nobody serves {place}")


@needs_fuse
def test_programs_read_files_of_the_commit(full: Shell, mounted: Path) -> None:
    assert (mounted / "files/notes.txt").read_text() == "line one\n"
    weights = (mounted / "models/net/net.safetensors").read_bytes()
    assert weights == (full.folder / "net.safetensors").read_bytes()
    assert sorted(os.listdir(mounted)) == ["datasets", "files", "models"]
    facts = (mounted / "files/notes.txt").stat()
    assert facts.st_size == len("line one\n")
    assert stat.filemode(facts.st_mode) == "-r--r--r--"


@pytest.mark.soak
@needs_fuse
def test_a_table_is_there_for_who_names_it(mounted: Path) -> None:
    assert os.listdir(mounted / "datasets") == []
    assert (mounted / "datasets/points.parquet").read_bytes()[:4] == b"PAR1"
    assert (mounted / "datasets/points.parquet").stat().st_size > 100
    assert os.listdir(mounted / "datasets") == ["points.parquet"]


@needs_fuse
def test_nothing_is_written_and_what_is_missing_is_told(mounted: Path) -> None:
    with pytest.raises(OSError) as refused:  # noqa: PT011  its number is looked at
        (mounted / "files/new.txt").write_text("no")
    assert refused.value.errno == errno.EROFS
    assert not (mounted / "files/other.txt").exists()
    with pytest.raises(FileNotFoundError):
        (mounted / "nowhere").read_text()


@pytest.mark.soak
@needs_fuse
def test_a_long_listing_has_all_sizes(full: Shell) -> None:
    names = [f"{number:04}.txt" for number in range(1500)]
    repository = tr.open(full.folder / ".tensorrepo/store", author="Ada <ada@example.org>")
    with repository.transaction(message="many") as tx:
        for number, name in enumerate(names):
            tx.save_file(f"many/{name}", b"x" * (number % 7))
    place = full.folder / "seen"
    full("mount", "main", str(place))
    try:
        with os.scandir(place / "files/many") as first, os.scandir(place / "files/many") as second:
            begun = [next(second).name for _ in range(700)]
            listed = {entry.name: entry.stat().st_size for entry in first}
            begun += [entry.name for entry in second]
    finally:
        full("unmount", str(place))
    assert listed == {name: number % 7 for number, name in enumerate(names)}
    assert sorted(begun) == names


@pytest.mark.soak
@needs_fuse
@pytest.mark.parametrize("name", ["мои фото", "a\\b\tc", "\N{LATIN SMALL LETTER E WITH ACUTE}"])
def test_a_folder_may_have_any_name(full: Shell, name: str) -> None:
    place = full.folder / name
    full("mount", "v1", name)
    try:
        assert (place / "files/notes.txt").read_text() == "line one\n"
        assert "already" in full.fails(CONFLICT, "mount", "v1", name)
    finally:
        full("unmount", name)
    assert not mounted_at(place)


@pytest.mark.soak
@needs_fuse
def test_it_ends_when_it_is_unmounted(full: Shell, mounted: Path) -> None:
    assert str(mounted) in full("unmount", str(mounted))
    assert os.listdir(mounted) == []
    assert not mounted_at(mounted)


@needs_fuse
def test_a_folder_whose_server_was_killed_is_mounted_again(full: Shell, mounted: Path) -> None:
    os.kill(server_of(mounted), signal.SIGKILL)
    full("mount", "v1", str(mounted))
    assert (mounted / "files/notes.txt").read_text() == "line one\n"


@pytest.mark.soak
@needs_fuse
def test_a_mount_that_nobody_saw_in_time_is_taken_away(
    full: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look(place: Path) -> bool:
        while not mounted_at(place):
            time.sleep(0.01)
        return False

    monkeypatch.setattr(command, "mounted_at", look)
    monkeypatch.setattr(command, "_START_SECONDS", 0.0)
    assert "nothing was mounted" in full.run("mount", "v1", "unseen").stderr
    assert not mounted_at(full.folder / "unseen")


@needs_fuse
def test_in_the_foreground_it_ends_with_the_process(full: Shell) -> None:
    place = full.folder / "seen"
    process = full.start("mount", "v1", str(place), "--foreground", "--json")
    process.stdout.readline()
    while not (mounted_at(place) and os.listdir(place)):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "Traceback" not in errors
    assert not mounted_at(place)


def test_a_folder_that_is_in_use_is_refused(full: Shell) -> None:
    (full.folder / "used").mkdir()
    (full.folder / "used/file").touch()
    assert "not empty" in full.fails(CONFLICT, "mount", "v1", "used")
    assert "is a file" in full.fails(CONFLICT, "mount", "v1", "notes.txt")
    assert "make it first" in full.fails(NOT_FOUND, "mount", "v1", "no/where")
    assert "no commit is mounted" in full.fails(NOT_FOUND, "unmount", "used")
    full.fails(NOT_FOUND, "mount", "nothing", "new")
    assert not (full.folder / "new").exists()


@pytest.mark.soak
@needs_fuse
def test_nothing_is_mounted_twice_in_one_place(full: Shell, mounted: Path) -> None:
    assert "already" in full.fails(CONFLICT, "mount", "v1", str(mounted))


def test_a_file_without_bytes_is_listed(tmp_path: Path) -> None:
    repository = tr.init(tmp_path / "store", author="Ada <ada@example.org>")
    with repository.transaction(message="one") as tx:
        tx.save_file("empty", b"")
        tx.create_dataset("numbers", {"x": [1]})
    context = repository.context
    mounted = MountedFiles(files_of(context, context.resolve("main")), time_ns=0)
    assert mounted.readdir("/files", 0) == [".", "..", "empty"]
    assert mounted.getattr("/files/empty")["st_size"] == 0
    assert mounted.readdir("/datasets", 0) == [".", ".."]


class _Counting:
    """A file of which each byte tells its place, and which counts what was read of it.

    It can be cut at `cuts` alone, its end among them.
    """

    def __init__(self, cuts: Sequence[int]) -> None:
        self.cuts = sorted(cuts)
        self.size_bytes = self.cuts[-1]
        self.asked: list[tuple[int, int]] = []

    def pieces(self, start: int, stop: int) -> Iterator[bytes]:
        self.asked.append((start, stop))
        yield _numbered(start, stop)

    def piece_start(self, at: int) -> int:
        return next((cut for cut in (0, *self.cuts) if cut >= at), self.size_bytes)


def _numbered(start: int, stop: int) -> bytes:
    turn = bytes(range(251))
    first = start // 251
    return (turn * (stop // 251 - first + 1))[start - first * 251 : stop - first * 251]


@pytest.mark.parametrize(
    "cuts",
    [
        pytest.param(range(1, 3 * BLOCK_BYTES + 9, 4096), id="short pieces"),
        pytest.param([100, BLOCK_BYTES + 5, BLOCK_BYTES + 6, 3 * BLOCK_BYTES + 7], id="long ones"),
        pytest.param([2 * BLOCK_BYTES], id="one that is longer than a block"),
        pytest.param([n * BLOCK_BYTES for n in range(1, 4)], id="blocks"),
    ],
)
def test_pieces_are_read_once_whatever_the_order(cuts: Sequence[int]) -> None:
    file, reader = _Counting(cuts), BlockReader()
    size = file.size_bytes
    near = [at + more for at in (*cuts[-20:], BLOCK_BYTES) for more in (-2, 0)]
    for at in (size - 5, 0, BLOCK_BYTES - 2, BLOCK_BYTES + 5, *near, size, size + 10):
        stop = max(at, min(at + 4, size))
        assert reader.read(1, file, at, 4) == _numbered(at, stop)
    assert reader.read(1, file, 0, size) == _numbered(0, size)
    reader.close()
    asked = sorted(file.asked)
    assert [start for start, _ in asked] == [0, *(stop for _, stop in asked[:-1])]
    assert {stop for _, stop in asked} <= set(cuts)
    assert asked[-1][1] == size


def test_mounting_tells_what_is_missing(full: Shell) -> None:
    code = "import sys; sys.modules['mfusepy'] = None"
    exit_code, told, errors = full.finish("mount", "v1", "new", code=code)
    assert "tensorrepo[mount]" in errors
    assert (exit_code, told) == (8, "")
