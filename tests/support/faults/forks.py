"""Forks that fail, as on a machine that has no more processes."""

from __future__ import annotations

from typing import Final

# Put before the program of a fork server.
FORKS_AT_THE_SECOND_TRY: Final = """
import errno, os
def _fork(fork=os.fork, refused=[OSError(errno.EAGAIN, "no more processes")]):
    if refused:
        raise refused.pop()
    return fork()
os.fork = _fork
"""
