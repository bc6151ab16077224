"""Blocks of shared memory: who sees what, and when they are free again."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable

import numpy as np
import pytest

from tensorrepo.formats.dataset.streaming.collate.shared_block import SharedBlock


def fill(block: SharedBlock, size: int) -> None:
    block.grow(size)
    block.memory[:size] = np.arange(size) % 251


@pytest.mark.soak
def test_a_child_writes_what_its_parent_reads() -> None:
    block = SharedBlock()
    child = multiprocessing.get_context("spawn").Process(target=fill, args=(block, 3 << 20))
    child.start()
    child.join()
    block.map(3 << 20)
    assert np.array_equal(block.memory, np.arange(3 << 20) % 251)
    block.close()


def test_a_block_is_returned_with_the_last_view_of_it() -> None:
    torch = pytest.importorskip("torch")
    block, returned = SharedBlock(), list[str]()
    block.grow(100)
    lent = block.lend(100, note(returned))
    view = lent[4:68].view(np.float32).reshape(4, 4)[1:]
    tensor = torch.from_numpy(view)[0]
    del lent, view
    assert returned == []
    del tensor
    assert returned == ["back"]
    block.close()


def test_what_was_lent_outlives_growth_and_the_end_of_the_block() -> None:
    block = SharedBlock()
    fill(block, 100)
    lent = block.lend(100, list)
    block.grow(5 << 20)
    block.close()
    assert lent.tolist() == list(range(100))


def test_a_block_has_no_name() -> None:
    block = SharedBlock()
    assert "(deleted)" in os.readlink(f"/proc/self/fd/{block._fd}")
    block.close()
    block.close()


def note(where: list[str]) -> Callable[[], None]:
    return lambda: where.append("back")
