"""Interrupts of the calling thread, sent until they are heard."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY_SECONDS = 0.2


@contextmanager
def interrupts() -> Iterator[Callable[[], None]]:
    """Gives what begins to interrupt the main thread, `EVERY_SECONDS` later for the first time.

    A signal that comes just before the thread sleeps on a lock does not wake it. Once a
    KeyboardInterrupt was raised there are no more.
    """
    caller, heard = threading.get_ident(), threading.Event()

    def send() -> None:
        while not heard.wait(EVERY_SECONDS):
            signal.pthread_kill(caller, signal.SIGINT)

    def hear(*_: object) -> None:
        if not heard.is_set():
            heard.set()
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, hear)
    sender = threading.Thread(target=send)
    try:
        yield sender.start
    finally:
        heard.set()
        if sender.ident is not None:
            sender.join()
        signal.signal(signal.SIGINT, before)
