"""The end of a worker of pytest-xdist: at once, when it has told all.

Python's own end collects garbage and takes apart 1,500 modules and 10,000 tests, which takes five
seconds of a processor, in all workers at the same time, while nothing else is left to run.
"""

from __future__ import annotations

import atexit
import os

_ENDING: set[int] = set()


def end_at_once() -> None:
    """End this process by `os._exit` once what was registered for its end has been called."""
    _ENDING.add(os.getpid())


def _end() -> None:
    if os.getpid() in _ENDING:  # and no process that it forked, whose status says something
        os._exit(0)


# As this module is imported, and before what tests need: what is registered first is called last.
atexit.register(_end)
