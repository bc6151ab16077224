"""Processes of a job: they work together, and end together however one of them ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import psutil
import pytest

from tensorrepo.repo.errors import InvalidInputError, WorkerLostError
from tensorrepo.workloads.ranks import RankLink, RankMain, RankProcesses
from tests.support.architecture.sources import ROOT

WAITED = 30.0
PARENT = """
import sys
from tests.tensorrepo.workloads.test_ranks import sleep
from tensorrepo.workloads.ranks import RankProcesses
if __name__ == "__main__":
    ranks = RankProcesses(sleep, None, 2)
    print(*(each.pid for each in ranks._processes), flush=True)
    ranks.ask(b"sleep")
"""


class Meeting(msgspec.Struct, frozen=True):
    """Where ranks leave their names."""

    folder: str


def meet(link: RankLink, job: Meeting) -> None:
    """Each order: leave a file, wait for all, and tell how many files there are."""
    for order in link.orders():
        name = f"{order.decode()}-{link.rank}"
        Path(job.folder, name).touch()
        link.progress(1)
        link.together()
        there = len(list(Path(job.folder).glob(f"{order.decode()}-*")))
        link.answer(f"{link.rank} of {link.count} saw {there}".encode())


def refuse(link: RankLink, _: object) -> None:
    for _ in link.orders():
        if link.rank == 1:
            raise InvalidInputError("rank 1 will not")
        link.together()


def die(link: RankLink, _: object) -> None:
    for _ in link.orders():
        if link.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        link.together()


def leave(link: RankLink, _: object) -> None:
    for _ in link.orders():
        os._exit(3)


def sleep(link: RankLink, _: object) -> None:
    for _ in link.orders():
        time.sleep(3600)


@pytest.mark.usefixtures("fast_ranks")
def test_all_ranks_work_on_each_order_and_answer_in_their_order(tmp_path: Path) -> None:
    told: list[int] = []
    with RankProcesses(meet, Meeting(str(tmp_path)), 3) as ranks:
        answers = [ranks.ask(order, told.append) for order in (b"a", b"b")]
    expected = [f"{rank} of 3 saw 3".encode() for rank in range(3)]
    assert answers == [expected, expected]
    assert told == [1, 1]


@pytest.mark.usefixtures("fast_ranks")
@pytest.mark.parametrize(
    ("main", "error", "told"),
    [
        (refuse, InvalidInputError, "rank 1 will not"),
        (die, InvalidInputError, "accelerator 1 was killed by signal 9"),
        (leave, WorkerLostError, "exited"),
    ],
)
def test_what_becomes_of_one_rank_is_raised_and_ends_the_others(
    main: RankMain, error: type[Exception], told: str
) -> None:
    begun = time.monotonic()
    ranks = RankProcesses(main, None, 2)
    processes = list(ranks._processes)
    with pytest.raises(error, match=told), ranks:
        ranks.ask(b"go")
    # The other one would wait at the barrier for ever.
    assert all(process.exitcode is not None for process in processes)
    assert time.monotonic() - begun < WAITED


@pytest.mark.usefixtures("fast_ranks")
def test_an_interrupt_ends_ranks_that_are_at_work() -> None:
    begun = time.monotonic()
    ranks = RankProcesses(sleep, None, 2)
    processes = list(ranks._processes)
    for orders in ranks._orders:
        orders.send_bytes(b"sleep")
    with pytest.raises(KeyboardInterrupt), ranks:
        raise KeyboardInterrupt
    assert all(process.exitcode == -signal.SIGKILL for process in processes)
    assert time.monotonic() - begun < WAITED


@pytest.mark.soak
def test_ranks_end_when_their_parent_is_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    pids = [int(word) for word in parent.stdout.readline().split()]
    assert len(pids) == 2
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + WAITED
    while any(map(_lives, pids)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(_lives, pids))


def _lives(pid: int) -> bool:
    """Whether a process works; one that ended may wait for ever for who asks what it ended with."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
