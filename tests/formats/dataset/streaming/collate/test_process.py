"""What is begun for a process is given back where the process does not begin."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator
from multiprocessing.context import SpawnProcess

import numpy as np
import pytest

from tensorrepo.formats.dataset.streaming.collate.process import MadeItem, ProcessItems


def nothing() -> Generator[MadeItem, None, None]:
    """An errand that is done at once."""
    yield from ()


def items() -> ProcessItems:
    return ProcessItems(
        nothing,
        identify=np.asarray,
        finish=lambda item: item,
        stats_moved=lambda _stats: None,
    )


def no_more_processes(_process: object) -> None:
    raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")


def test_a_process_that_cannot_be_started_leaves_no_file_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SpawnProcess, "_Popen", staticmethod(no_more_processes))
    found = items()
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(BlockingIOError) as raised:
        next(found)
    assert raised.value.errno == errno.EAGAIN
    assert set(os.listdir("/proc/self/fd")) <= before
    found.close()


def test_starting_is_tried_again_after_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = items()
    with monkeypatch.context() as patched:
        patched.setattr(SpawnProcess, "_Popen", staticmethod(no_more_processes))
        with pytest.raises(BlockingIOError):
            next(found)
    assert list(found) == []
