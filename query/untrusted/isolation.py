"""Isolation from the network, taken before anything is loaded: it needs a process of one thread.

DuckDB is told to reach for nothing outside; this holds for code that a query may bring to run.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress
from typing import Final

_NEW_USER: Final = 0x10000000  # CLONE_NEWUSER, which any user may ask for, as a rule
_NEW_NETWORK: Final = 0x40000000  # CLONE_NEWNET


def leave_network() -> None:
    """Go, with all children, to where there is no network; where the system allows it."""
    with suppress(OSError, AttributeError):  # no Linux
        ctypes.CDLL(None).unshare(_NEW_USER | _NEW_NETWORK)  # else it stays as it was
