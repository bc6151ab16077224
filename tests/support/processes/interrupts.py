"""Interrupts of the calling thread, sent until they are heard."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

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


@contextmanager
def interrupted_after(instants: int, *files: str) -> Iterator[None]:
    """An interrupt of what follows at the instant of that number, counted from 0, if it gets there.

    An instant is where Python hears of signals: where a function begins, and where a call of one in
    C has come back. Those of functions in `files`, ends of paths, are counted.
    """
    left = instants

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal left
        if event in {"call", "c_return"} and frame.f_code.co_filename.endswith(files):
            left -= 1
            if left < 0:
                sys.setprofile(None)
                raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        sys.setprofile(profile)
        try:
            yield
        finally:
            sys.setprofile(None)
