"""Doctor tells what to do about the disk that a repository lies on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.backends.mounts import Mount
from tensorrepo.repo.errors import PermissionDenied
from tensorrepo.repo.log.checkpoints import decode_hint
from tensorrepo.repo.log.log_slots import HINT_KEY, checkpoint_key
from tensorrepo.repo.log.records import LogEntry
from tensorrepo.workspace.doctor import judge, judge_store
from tests.support.faults.backends import WrappedBackend
from tests.support.processes.shell import Shell

T = TypeVar("T")


@pytest.mark.parametrize(
    ("kind", "options", "level"),
    [
        ("ext4", {"rw"}, "ok"),
        ("nfs4", {"rw", "hard"}, "warning"),
        ("nfs", {"rw", "lookupcache=all"}, "warning"),
        ("nfs4", {"rw", "lookupcache=positive"}, "ok"),
        ("nfs4", {"rw", "lookupcache=none"}, "ok"),
    ],
)
def test_an_nfs_mount_must_not_remember_that_a_file_is_absent(
    kind: str, options: set[str], level: str
) -> None:
    found, _, advice = judge(Mount("/data", kind, frozenset(options)))
    assert found == level
    assert ("lookupcache=positive" in advice) == (level == "warning")


class ReadOnlyDisk(WrappedBackend):
    """What a file system that is mounted read-only answers."""

    def step(self, verb: str, key: str, work: Callable[[], T]) -> T:
        if verb in ("create", "upload", "overwrite", "delete"):
            raise PermissionDenied(f"cannot {verb} {key}: read-only file system")
        return super().step(verb, key, work)


def test_a_store_that_may_only_be_read_is_no_damage() -> None:
    level, found, _ = judge_store(ReadOnlyDisk(MemoryBackend()))
    assert level == "warning"
    assert "read-only file system" in found


@pytest.fixture
def long(full: Shell) -> Shell:
    """A workspace whose log has its first checkpoint."""
    repo = full.repository()
    for number in range(70):
        repo.create_tag(f"t{number}")
    return full


def levels(shell: Shell) -> dict[str, str]:
    return {one["what"]: one["level"] for one in shell.records("doctor")}


@pytest.mark.parametrize("key", [HINT_KEY, checkpoint_key(64)])
@pytest.mark.parametrize("data", [None, b"garbage"])
def test_lost_caches_of_the_log_are_told_and_written_anew(
    long: Shell, key: str, data: bytes | None
) -> None:
    file = long.folder / ".tensorrepo/store" / key
    before = file.read_bytes()
    assert levels(long)["caches"] == "ok"
    file.unlink()
    if data is not None:
        file.write_bytes(data)
    assert "doctor --repair" in long("doctor")
    assert levels(long)["log"] == "ok"
    assert long.json("doctor", "--repair")["checkpoint"] == 64
    assert levels(long)["caches"] == "ok"
    assert key == HINT_KEY or file.read_bytes() == before


def test_a_repaired_hint_names_the_newest_record(long: Shell) -> None:
    told = long.json("doctor", "--repair")
    store = long.folder / ".tensorrepo/store"
    hint = decode_hint((store / HINT_KEY).read_bytes())
    assert hint is not None
    assert (
        hint.generation == told["hint"] == long.repository().context.core.log.refresh().generation
    )


def test_an_empty_log_needs_no_repair(shell: Shell) -> None:
    assert "nothing to repair" in shell("doctor", "--repair")


def test_a_log_that_is_not_understood_is_not_repaired(full: Shell) -> None:
    data = {"set": {"features": ["from-the-future"]}}
    entry = LogEntry("a" * 32, "config", full.author, 0, data=data)
    full.repository().context.core.append(lambda _: (entry,))
    assert "from-the-future" in full.fails(8, "doctor", "--repair")
    assert levels(full)["caches"] == "ok"


def test_one_repair_at_a_time(full: Shell) -> None:
    full.fails(2, "doctor", "--repair", "--void", "1")
