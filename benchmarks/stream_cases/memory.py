"""What memory itself gives: rows that torch takes out of a tensor, and plain copies.

Each function prepares one peer and returns what does an epoch of it.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread

import numpy as np
import torch

COPY_BYTES = 256 << 20  # of each thread's arrays: far beyond every cache


def indexed(values: np.ndarray, labels: np.ndarray, batch_size: int) -> Callable[[], int]:
    """``memory[index]``, a new tensor a batch, in an order that was made before."""
    memory, names = torch.from_numpy(values), torch.from_numpy(labels)
    order = torch.randperm(len(values)).split(batch_size)

    def epoch() -> int:
        total = 0
        for index in order:
            batch, label = memory[index], names[index]
            assert len(batch) == len(label)
            total += int(label.sum())
        return total

    return epoch


def selected(values: np.ndarray, labels: np.ndarray, batch_size: int) -> Callable[[], int]:
    """``torch.index_select(out=)``, into the same tensor again and again."""
    memory, names = torch.from_numpy(values), torch.from_numpy(labels)
    order = torch.randperm(len(values)).split(batch_size)
    room = torch.empty((batch_size, *memory.shape[1:]), dtype=memory.dtype)

    def epoch() -> int:
        total = 0
        for index in order:
            torch.index_select(memory, 0, index, out=room[: len(index)])
            total += int(names[index].sum())
        return total

    return epoch


def copied(nbytes: int) -> Callable[[], None]:
    """About `nbytes` of plain memory copied on two threads."""
    arrays = [[np.ones(COPY_BYTES, np.uint8) for _ in range(2)] for _ in range(2)]
    times = max(1, round(nbytes / (2 * COPY_BYTES)))

    def copy(target: np.ndarray, source: np.ndarray) -> None:
        for _ in range(times):
            np.copyto(target, source)

    def epoch() -> None:
        threads = [Thread(target=copy, args=pair) for pair in arrays]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return epoch


def copied_bytes(nbytes: int) -> int:
    """How many bytes `copied` really copies."""
    return 2 * COPY_BYTES * max(1, round(nbytes / (2 * COPY_BYTES)))
