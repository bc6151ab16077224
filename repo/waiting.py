"""How does a thread wait for others, where Ctrl-C may come at any moment?

An interrupt that comes while `threading.Condition` gets its lock leaves it locked for ever, or
gives back a lock that another thread has: entering and waking up are Python code with an instant
between the lock and the block that returns it. A `with` on a plain lock has no such instant, so
here a thread waits outside of it:

    while True:
        with lock:
            if there_is_something:
                return it
            wait = waiting.add()
        wait()

Threads of our own are never interrupted: for them conditions, entered by their lock, are as good.
"""

from __future__ import annotations

from threading import Lock
from typing import Protocol


class Wait(Protocol):
    """Waits for the next `wake`; False when `timeout` seconds pass before."""

    def __call__(self, *, timeout: float = -1) -> bool: ...


class Waiting:
    """Threads that wait for a change of what a lock guards; all methods are for who holds it."""

    def __init__(self) -> None:
        self._gates: list[Lock] = []

    def add(self) -> Wait:
        """What to call, once, when the lock is given back: it returns after the next `wake`.

        It takes ``timeout``, seconds, and is False if they pass before.
        """
        gate = Lock()
        gate.acquire()
        self._gates.append(gate)
        return gate.acquire

    def wake(self) -> None:
        """Let all threads go that were added."""
        while self._gates:  # one that an interrupt leaves here is opened by the next wake
            gate = self._gates[-1]
            if gate.locked():
                gate.release()
            self._gates.pop()
