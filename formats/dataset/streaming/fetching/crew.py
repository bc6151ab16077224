"""How are just as many threads awake as there are jobs?

Threads are started when all others are at work, and sleep until they are called. Each thread that
was called, or started, counts as called until it looks for a job, so that nobody calls another one
for the same job.
"""

from __future__ import annotations

from threading import Condition, Lock, Thread
from typing import TYPE_CHECKING

from tensorrepo.repo.threads import join_all

if TYPE_CHECKING:
    from collections.abc import Callable


class Crew:
    """Daemon threads that share a lock with whoever calls them."""

    def __init__(self, lock: Lock, work: Callable[[], None], name: str) -> None:
        """Without threads. Each will run `work`, whose name begins with `name`."""
        self._there, self._work, self._name = Condition(lock), work, name
        self._threads: list[Thread] = []
        self._idle = self._called = 0

    def call(self, jobs: int, most: int) -> None:
        """See to it that threads come for `jobs` jobs. The lock is held.

        Of threads that are missing one is started, unless there are `most`; it calls the next one
        when it has its job, so that whoever calls first is not kept.
        """
        wanted = jobs - self._called
        if wanted <= 0:
            return
        woken = min(wanted, self._idle)
        self._idle -= woken
        self._called += woken
        self._there.notify(woken)
        if wanted > woken and len(self._threads) < most:
            self._called += 1
            name = f"{self._name}-{len(self._threads)}"
            thread = Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def came(self) -> None:
        """For a thread that was started or woken and looks for a job. The lock is held."""
        self._called -= 1

    def sleep(self) -> None:
        """For a thread without a job: wait until it is called. The lock is held."""
        self._idle += 1
        self._there.wait()
        self.came()

    def dismiss(self) -> None:
        """Wake all of them: they are to end. The lock is held."""
        self._there.notify_all()

    def join(self, seconds: float) -> None:
        join_all(self._threads, seconds)
