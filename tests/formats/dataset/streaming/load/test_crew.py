"""Threads come for jobs, each for one, and are started only where all others are called."""

from __future__ import annotations

import threading
import time

from tensorrepo.formats.dataset.streaming.load.downloads import ThreadPool


class Counted:
    """A crew whose threads count how often they come, and sleep again."""

    def __init__(self) -> None:
        self.lock, self.came, self.over = threading.Lock(), 0, False
        self.crew = ThreadPool(self.lock, self._work, "tensorrepo-test")

    def _work(self) -> None:
        with self.lock:
            self.crew.came()
            while not self.over:
                self.came += 1
                self.crew.sleep()

    def call(self, jobs: int, most: int = 8) -> None:
        with self.lock:
            self.crew.call(jobs, most)

    def wait(self, came: int) -> None:
        until = time.monotonic() + 30
        while self.came < came and time.monotonic() < until:
            time.sleep(0.001)
        with self.lock:  # whoever came sleeps again
            assert self.came == came

    def close(self) -> None:
        with self.lock:
            self.over = True
            self.crew.dismiss()
        self.crew.join(30)


def test_threads_are_started_one_by_one_up_to_a_number() -> None:
    counted = Counted()
    counted.call(1, most=2)
    counted.wait(1)
    counted.call(2, most=2)  # the one that sleeps, and another one
    counted.wait(3)
    counted.call(9, most=2)
    counted.wait(5)
    counted.close()
    assert not [each for each in threading.enumerate() if "tensorrepo-test" in each.name]


def test_a_thread_that_was_called_is_not_called_again() -> None:
    counted = Counted()
    counted.call(1)
    counted.wait(1)
    with counted.lock:
        for _ in range(5):
            counted.crew.call(1, 8)
    counted.wait(2)
    counted.close()


def test_nobody_is_called_for_nothing() -> None:
    counted = Counted()
    counted.call(0)
    counted.call(-3)
    counted.wait(0)
    counted.close()
    assert counted.came == 0
