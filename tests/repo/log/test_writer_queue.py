from __future__ import annotations

import errno
import fcntl
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import monotonic, sleep

import pytest

from tensorrepo.repo.backends.local import LocalBackend
from tensorrepo.repo.backends.memory import MemoryBackend
from tensorrepo.repo.log.writer_queue import STUCK_SECONDS, turn_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="has no such locks")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "log").mkdir()
    return tmp_path


class Clock:
    """Time that passes by sleeping alone."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def turn(self, root: Path | None, prepare: Callable[[], None] = lambda: None):  # type: ignore[no-untyped-def]
        return queued(root, self.sleep, self, prepare)


def queued(
    root: Path | None,
    sleep: Callable[[float], None] = sleep,
    clock: Callable[[], float] = monotonic,
    prepare: Callable[[], None] = lambda: None,
):  # type: ignore[no-untyped-def]
    backend = MemoryBackend() if root is None else LocalBackend(root)
    return turn_of(
        backend, prepare=prepare, newest=lambda: 0, first=tuple, sleep=sleep, clock=clock
    )


def test_nobody_is_waited_for_when_nobody_is_there(root: Path) -> None:
    clock = Clock()
    for place in (root, None, root / "missing"):
        with clock.turn(place):
            pass
    assert clock.now == 0


def test_thirty_writers_in_a_loop_have_their_turns_in_the_order_in_which_they_come(
    root: Path,
) -> None:
    came: list[tuple[int, int]] = []
    turns: list[tuple[int, int]] = []

    def commit_in_a_loop(writer: int) -> None:
        for number in range(8):
            came.append((writer, number))
            with queued(root):
                turns.append((writer, number))
                sleep(0.001)

    threads = [threading.Thread(target=commit_in_a_loop, args=(each,)) for each in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    arrival = {who: at for at, who in enumerate(came)}
    order = [arrival[who] for who in turns]
    passed_by = [sum(other > at for other in order[:turn]) for turn, at in enumerate(order)]
    assert len(turns) == 240
    # Threads may change places between coming and drawing a ticket. Without tickets one of them
    # sees nearly all turns of all others go by.
    assert max(passed_by) <= 60


def test_a_writer_that_gives_up_keeps_nobody_waiting(root: Path) -> None:
    clock = Clock()

    def give_up(_: float) -> None:
        raise KeyboardInterrupt

    with Clock().turn(root), pytest.raises(KeyboardInterrupt), queued(root, give_up):
        pass
    with clock.turn(root):
        assert clock.now == 0


def test_a_lock_of_something_else_to_the_end_of_the_file_stops_nobody(root: Path) -> None:
    clock = Clock()
    with (root / "tmp" / "append-queue").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        with Clock().turn(root), clock.turn(root):
            assert clock.now == 0


def test_where_nothing_can_be_locked_nobody_is_waited_for(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EINVAL, "no such locks")

    monkeypatch.setattr(fcntl, "fcntl", refuse)
    clock = Clock()
    with clock.turn(root), clock.turn(root):
        assert clock.now == 0


def test_only_who_has_to_wait_prepares(root: Path) -> None:
    prepared: list[str] = []
    first, second = (partial(prepared.append, name) for name in ("first", "second"))
    with Clock().turn(root, first), Clock().turn(root, second):
        pass
    assert prepared == ["second"]


def test_a_writer_that_hangs_is_waited_for_once_only_while_the_log_stands_still(root: Path) -> None:
    clock = Clock()
    with Clock().turn(root), clock.turn(root):
        assert STUCK_SECONDS <= clock.now < 2 * STUCK_SECONDS


def test_a_queue_that_moves_is_waited_for_longer(root: Path) -> None:
    clock = Clock()

    def append_now_and_then(seconds: float) -> None:
        clock.now += seconds
        if clock.now < 4 * STUCK_SECONDS:
            (root / "log" / f"{clock.now}").touch()

    clock.sleep = append_now_and_then  # type: ignore[method-assign]
    with Clock().turn(root), clock.turn(root):
        assert clock.now >= 4 * STUCK_SECONDS
