"""How is something finished when the program ends, while work can still be given to threads?

At the end of a program `concurrent.futures` first refuses all new work, and then waits for what its
threads have begun. A thread that needs others for its work, as storing does, would fail in there,
and nobody would be told. What is registered here runs before that; `atexit` comes long after.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401  it registers itself, and who is last goes first
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakMethod

if TYPE_CHECKING:
    from collections.abc import Callable


def before_pools_end(finish: Callable[[], None]) -> None:
    """Call a bound method when the program ends; its object is not kept alive for that.

    What it raises is printed as an uncaught error is, and does not keep others from being called.
    """
    method = WeakMethod(finish)

    def call() -> None:
        found = method()
        if found is None:
            return
        try:
            found()
        except BaseException as error:  # noqa: BLE001  whatever it is, it is told
            sys.excepthook(type(error), error, error.__traceback__)

    # Private to Python, whose own pools use it; without it failures are printed at least.
    register = getattr(threading, "_register_atexit", atexit.register)
    with suppress(RuntimeError):  # the program is ending already
        register(call)
