"""Commands that run at once, are interrupted, or are killed; on a disk and against S3."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from tests.support.effort import sampled
from tests.support.processes.shell import Shell, write_points
from tests.support.servers.object_stores import SECRET, Bucket, s3_on_moto, s3_on_ours

UNKNOWN, INTERRUPTED, BROKEN_PIPE, KILLED = 9, 130, 141, -signal.SIGKILL

# The n-th call of a method ends the process at once, as `kill -9` does: before or after its work.
KILL = """
import importlib, os, signal
module, _, place = {target!r}.partition(":")
owner, _, name = place.rpartition(".")
owner = getattr(importlib.import_module(module), owner)
work, calls = getattr(owner, name), []
def killing(*words, **more):
    calls.append(1)
    if len(calls) == {number} and not {after}:
        os.kill(os.getpid(), signal.SIGKILL)
    done = work(*words, **more)
    if len(calls) == {number} and {after}:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
setattr(owner, name, killing)
"""
# A method that says that it was reached, and takes its time.
STALL = """
import importlib, sys, time
owner = getattr(importlib.import_module({module!r}), {owner!r})
work = getattr(owner, {name!r})
def stalling(self, *words, **more):
    if {wanted!r} in str(words[:1]):
        print("reached", flush=True)
        time.sleep(60)
    return work(self, *words, **more)
setattr(owner, {name!r}, stalling)
"""
LINK = "tensorrepo.repo.backends.disk:Disk.link"
PUT = "tensorrepo.repo.backends.cloud:CloudBackend.create"
STAGED = "tensorrepo.workspace.state:Workspace.write_staging"
AT_SLOT = STALL.format(
    module="tensorrepo.repo.backends.local", owner="LocalBackend", name="create", wanted="log/0"
)
AT_GARBAGE = STALL.format(
    module="tensorrepo.repo.backends.local", owner="LocalBackend", name="delete", wanted="objects/"
)
AT_READING = STALL.format(
    module="tensorrepo.repo.objects.writer", owner="ObjectWriter", name="flush", wanted=""
)
AT_TIDYING = STALL.format(
    module="tensorrepo.workspace.state", owner="Workspace", name="write_staging", wanted=""
)


def kill(target: str, number: int, *, after: bool = False) -> str:
    return KILL.format(target=target, number=number, after=after)


def interrupted(shell: Shell, code: str, *words: str) -> tuple[int, str]:
    """A command that gets Ctrl-C once `code` says that it is there: exit code and errors."""
    with shell.start(*words, code=code) as process:
        try:
            assert process.stdout.readline() == "reached\n"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:  # else one that hears no Ctrl-C is blamed on the tests that follow
            process.kill()
    return process.returncode, errors


def rows(shell: Shell) -> int:
    return sum(1 for _ in shell("cat", "points", "--limit", "1000", "--json").splitlines())


def test_two_commands_never_work_in_one_workspace_at_once(full: Shell) -> None:
    process = full.start("rm", "net", code=AT_SLOT)
    assert process.stdout.readline() == "reached\n"
    assert "another tensorrepo command" in full.fails(4, "rm", "points")
    assert "First" in full("log")
    process.kill()
    process.communicate()
    full("rm", "points")


def test_ctrl_c_while_a_record_is_under_way_is_an_unknown_outcome(full: Shell) -> None:
    full("rm", "net")
    code, errors = interrupted(full, AT_SLOT, "commit", "-m", "less")
    assert code == UNKNOWN
    assert "tensorrepo resolve" in errors
    assert "nothing was committed" not in errors
    assert "is unknown: run `tensorrepo resolve`" in full("status")
    full.fails(UNKNOWN, "resolve")
    assert full.records("resolve", "--settle")[0]["outcome"] == "lost"
    full("commit", "-m", "less")
    assert full.records("resolve") == []


def test_ctrl_c_before_anything_was_decided_is_just_an_interrupt(full: Shell) -> None:
    write_points(full.folder / "more.npz")
    before = full.snapshot()
    code, errors = interrupted(full, AT_READING, "add", "more.npz", "--dataset", "more")
    assert code == INTERRUPTED
    assert "Traceback" not in errors
    assert "Repeat the command to begin anew" in errors
    assert full.snapshot() == before


def test_ctrl_c_after_the_record_landed_does_not_claim_that_nothing_happened(full: Shell) -> None:
    full("rm", "net")
    code, errors = interrupted(full, AT_TIDYING, "commit", "-m", "less")
    assert code == INTERRUPTED
    assert "tensorrepo status" in errors
    assert "already" in full("status")
    assert "already" in full("commit", "-m", "less")
    assert len(full("log", "--oneline").splitlines()) == 2


def test_a_reader_that_leaves_a_pipe_is_no_mistake(full: Shell) -> None:
    process = full.start(
        "cat", "points", "--limit", "20", "--json", code="import time; time.sleep(1)"
    )
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr as errors:
        assert errors.read() == ""
    assert process.wait(timeout=60) == BROKEN_PIPE


@pytest.mark.parametrize("streams", ["stdin", "stdout", "stdin = sys.stdout = sys.stderr"])
def test_whoever_closes_the_standard_streams_hears_nothing(full: Shell, streams: str) -> None:
    code, told, _ = full.finish("status", code=f"import sys; sys.{streams} = None")
    assert (code, told == "") == (0, "stdout" in streams)


@pytest.mark.parametrize(
    ("number", "after"), sampled([*product([1, 2, 3, 4, 5], [False, True])], 2)
)
def test_an_add_that_is_killed_can_be_repeated(shell: Shell, number: int, *, after: bool) -> None:
    words = ("add", "points.npz", "--dataset", "points")
    code, _, _ = shell.finish(*words, code=kill(LINK, number, after=after))
    assert code in {0, KILLED}
    if code or not shell.json("status")["staged"]:
        shell(*words, "--replace")
    shell("commit", "-m", "one")
    assert rows(shell) == 20
    assert len(shell("log", "--oneline").splitlines()) == 1


@pytest.mark.parametrize(("number", "after"), sampled([*product([1, 2, 3, 4], [False, True])], 2))
def test_a_commit_that_is_killed_is_made_once(full: Shell, number: int, *, after: bool) -> None:
    write_points(full.folder / "more.npz", 5)
    full("add", "more.npz", "--dataset", "points", "--append")
    code, _, _ = full.finish("commit", "-m", "more", code=kill(LINK, number, after=after))
    assert code in {0, KILLED}
    again = full.run("commit", "-m", "more")
    assert again.exit_code in {0, 1}, again.output
    assert rows(full) == 25
    assert len(full("log", "--oneline").splitlines()) == 2
    assert full.json("status")["clean"] is True


def test_a_commit_that_landed_before_it_was_killed_is_recognised(full: Shell) -> None:
    write_points(full.folder / "more.npz", 5)
    full("add", "more.npz", "--dataset", "points", "--append")
    assert full.finish("commit", "-m", "more", code=kill(STAGED, 1))[0] == KILLED
    assert "already" in full("status")
    # Others go on; the change that landed must not be made a second time.
    full.finish("--version")
    write_points(full.folder / "most.npz", 3)
    full("add", "most.npz", "--dataset", "points", "--append")
    full("commit", "-m", "most")
    assert rows(full) == 28
    assert len(full("log", "--oneline").splitlines()) == 3


@pytest.fixture(scope="module", params=sampled(["ours", "moto"], 1))
def bucket(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Bucket]:
    server = s3_on_moto() if request.param == "moto" else s3_on_ours(tmp_path_factory.mktemp("s3"))
    with server as opened:
        yield opened


@pytest.fixture
def remote(empty: Shell, bucket: Bucket, tmp_path: Path) -> Shell:
    """A workspace on a repository in S3, with one commit."""
    empty.environment = {**bucket.environment, "AWS_ALLOW_HTTP": "true"}
    empty("init", f"{bucket.url}/{tmp_path.name}")
    write_points(empty.folder / "points.npz")
    empty("add", "points.npz", "--dataset", "points")
    empty("commit", "-m", "First")
    return empty


@pytest.mark.soak
def test_the_work_goes_the_same_way_against_s3(remote: Shell) -> None:
    remote("tag", "v1")
    remote("switch", "-c", "side")
    write_points(remote.folder / "more.npz", 5)
    remote("add", "more.npz", "--dataset", "points", "--append")
    remote("commit", "-m", "more")
    remote("switch", "main")
    remote("merge", "side")
    assert rows(remote) == 25
    assert "20 rows" in remote("dataset", "stream", "v1:points")
    remote("checkout", "v1", "points")
    assert remote.json("status")["clean"] is True


@pytest.mark.soak
@pytest.mark.parametrize(
    ("number", "after"), sampled([(2, True), (1, True), (1, False), (2, False)], 1)
)
def test_commands_that_are_killed_against_s3_are_repeated_safely(
    remote: Shell, number: int, *, after: bool
) -> None:
    write_points(remote.folder / "more.npz", 5)
    code, _, _ = remote.finish(
        "add", "more.npz", "--dataset", "points", "--append", code=kill(PUT, number, after=after)
    )
    if code or not remote.json("status")["staged"]:
        remote("add", "more.npz", "--dataset", "points", "--append")
    remote.finish("commit", "-m", "more", code=kill(PUT, number, after=after))
    assert remote.run("commit", "-m", "more").exit_code in {0, 1}
    assert rows(remote) == 25
    assert len(remote("log", "--oneline").splitlines()) == 2


def silent_after_the_record() -> Callable[[str, str], str | None]:
    """A store that takes a record of the log, and refuses to answer from then on."""
    taken: list[str] = []

    def fault(method: str, path: str) -> str | None:
        if method == "PUT" and "/log/0" in path:
            taken.append(path)
            return "403 after"
        return "403 before" if taken else None

    return fault


def test_a_store_that_does_not_answer_makes_the_outcome_unknown_until_it_does(
    empty: Shell, tmp_path: Path
) -> None:
    with s3_on_ours(tmp_path / "s3") as bucket:
        assert bucket.server is not None
        empty.environment = {**bucket.environment, "AWS_ALLOW_HTTP": "true"}
        empty("init", f"{bucket.url}/r")
        write_points(empty.folder / "points.npz")
        empty("add", "points.npz", "--dataset", "points")
        bucket.server.fault = silent_after_the_record()
        told = empty.fails(UNKNOWN, "commit", "-m", "one")
        bucket.server.fault = lambda _method, _path: None
        assert SECRET not in told
        assert "resolve" in told
        assert empty.records("resolve")[0]["outcome"] == "landed"
        assert "already" in empty("commit", "-m", "one")
        assert rows(empty) == 20


def test_credentials_are_written_nowhere(remote: Shell) -> None:
    remote.fails(3, "show", "nothing")
    printed = "".join(
        remote.run(*words).output for words in (("status",), ("doctor",), ("config",))
    )
    kept = [path.read_bytes() for path in remote.home.parent.rglob("*") if path.is_file()]
    assert SECRET not in printed
    assert not any(SECRET.encode() in data for data in kept)


def test_wrong_credentials_are_a_matter_of_permission(empty: Shell, tmp_path: Path) -> None:
    with s3_on_ours(tmp_path / "s3", access_key="somebody") as bucket:
        empty.environment = {**bucket.environment, "AWS_ALLOW_HTTP": "true"}
        told = empty.fails(6, "init", f"{bucket.url}/r")
        assert SECRET not in told
        assert not (empty.folder / ".tensorrepo").exists()


def test_a_bucket_that_is_not_there_is_named(empty: Shell, tmp_path: Path) -> None:
    with s3_on_ours(tmp_path / "s3") as bucket:
        empty.environment = {**bucket.environment, "AWS_ALLOW_HTTP": "true"}
        done = empty.run("init", "s3://no-such-bucket/r")
    assert done.exit_code in {3, 7}, done.output
    assert "no-such-bucket" in done.stderr


def test_a_process_prints_json_that_another_one_can_read(full: Shell) -> None:
    code, out, errors = full.finish("status", "--json")
    assert (code, errors) == (0, "")
    assert json.loads(out)["branch"] == "main"


@pytest.mark.parametrize("code", [AT_SLOT, AT_GARBAGE])
def test_a_collection_that_gets_ctrl_c_says_to_run_it_again(full: Shell, code: str) -> None:
    full("rm", "net")
    full("commit", "-m", "less")
    full("undo")
    collection = ("gc", "--grace", "0s", "--retention", "0s")
    exit_code, errors = interrupted(full, code, *collection)
    assert exit_code == INTERRUPTED, errors
    assert "run `tensorrepo gc` again" in errors
    assert "resolve" not in full("status")
    full(*collection)
    assert full.records(*collection, "--dry-run")[0]["dead_objects"] == 0
