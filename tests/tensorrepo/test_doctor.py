"""Doctor tells what to do about the disk that a repository lies on, and tries stores."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeVar

import pytest

from tensorrepo.cli.setup import CORRUPT
from tensorrepo.repo.backends.conformance import CHECKS
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.backends.mounts import Mount
from tensorrepo.repo.errors import PermissionDenied
from tensorrepo.repo.log.checkpoints import decode_hint
from tensorrepo.repo.log.log_slots import HINT_KEY, checkpoint_key
from tensorrepo.repo.log.records import LogEntry
from tensorrepo.workspace import doctor
from tensorrepo.workspace.doctor import judge, judge_store
from tests.support.faults.backends import WrappedBackend
from tests.support.faults.stores import IgnoresTheCondition
from tests.support.processes.shell import Shell

T = TypeVar("T")
TIMED = ("small write", "small read", "small listing")


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


@pytest.mark.parametrize(("key", "data"), [(HINT_KEY, b"garbage"), (checkpoint_key(64), None)])
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


def test_a_repository_of_runs_alone_is_whole(shell: Shell) -> None:
    with shell.repository().run("exp", params={"lr": 1}):
        pass
    assert set(levels(shell).values()) == {"ok"}


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


def test_a_store_is_tried_and_left_as_it_was(shell: Shell) -> None:
    place = shell.folder / "place"
    done = shell.run("doctor", str(place))
    lines = done.stdout.splitlines()
    assert (done.exit_code, len(lines)) == (0, len(CHECKS) + len(TIMED) + 1)
    assert all(line.startswith("ok ") for line in lines[:-1])
    assert "any number of writers" in lines[-1]
    assert f"keys are made below {place}/doctor-" in done.stderr
    assert not place.exists()


def test_faults_of_a_store_are_told_by_what_they_mean(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "open_store", lambda *_: IgnoresTheCondition())
    told = shell.run("doctor", "memory://x")
    assert told.exit_code == CORRUPT
    assert "ERROR   creating again: expected" in told.stdout
    assert "It means: commits of two writers could overwrite each other" in told.stdout
    lines = shell.run("doctor", "memory://x", "--json").stdout.splitlines()
    records = [json.loads(line) for line in lines]
    assert {each["what"]: each["level"] for each in records}["race of threads"] == "error"
    assert all(each["median_ms"] >= 0 for each in records if each["what"] in TIMED)


@pytest.mark.parametrize(
    ("exit_code", "told", "words"),
    [
        (8, "doctor --repo https://host/team", ("https://host/team",)),
        (2, "Leave out --repo", ("place", "--repair")),
        (2, "is no URL", ("",)),
        (2, "is a file", ("file",)),
    ],
)
def test_what_is_no_store_is_not_tried(
    shell: Shell, exit_code: int, told: str, words: tuple[str, ...]
) -> None:
    (shell.folder / "file").touch()
    assert told.lower() in shell.fails(exit_code, "doctor", *words).lower()
