"""How are the bytes that are wanted of one stored tensor read, in parts that go on side by side?

A part is a run of frames: it is fetched together, decoded into place or beside it, and verified
whole, also when only some of it is wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorrepo.formats.model.frames import frame_bytes
from tensorrepo.formats.model.truncate import truncate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tensorrepo.formats.model.frameread import StoredFrames
    from tensorrepo.formats.model.selection import Selection
    from tensorrepo.formats.tensors import TensorType

    Fill = Callable[[], None]


def fills(
    tensor: StoredFrames, chosen: Selection | None, out: memoryview, planes: int | None
) -> Iterator[Fill]:
    """What fills `out` with a selection of blocks, or all of them; in any order, on any thread.

    Args:
        tensor: where to read.
        chosen: what of it, counted in blocks; None: all.
        out: memory for exactly that.
        planes: only so many of the most significant bytes of each number; the others are 0.
    """
    if tensor.value is not None:
        yield _value_fill(tensor.type, tensor.value, chosen, out, planes)
    elif chosen is None:
        size = frame_bytes(tensor.type)
        for run in tensor.runs():
            yield _run_fill(tensor, run, out[run.start * size : run.stop * size], planes)
    else:
        for run in chosen_runs(tensor, chosen):
            yield _part_fill(tensor, run, chosen, out, planes)


def chosen_runs(tensor: StoredFrames, chosen: Selection) -> Iterator[range]:
    """Runs of the frames that hold something of a selection."""
    touched = chosen.frames(frame_bytes(tensor.type) // tensor.type.block_bytes)
    start = 0
    for at in range(1, len(touched) + 1):
        if at == len(touched) or touched[at] != touched[at - 1] + 1:
            yield from tensor.runs(range(touched[start], touched[at - 1] + 1))
            start = at


def _run_fill(tensor: StoredFrames, run: range, room: memoryview, planes: int | None) -> Fill:
    return lambda: tensor.run_into(run, room, planes=planes)


def _part_fill(
    tensor: StoredFrames, run: range, chosen: Selection, out: memoryview, planes: int | None
) -> Fill:
    def fill() -> None:
        size = frame_bytes(tensor.type)
        whole = np.empty(min(run.stop * size, tensor.size_bytes) - run.start * size, np.uint8)
        tensor.run_into(run, whole.data, planes=planes)
        item = item_of(tensor.type)
        start = run.start * size // item.itemsize
        chosen.copy(whole.view(item), start, np.frombuffer(out, item))

    return fill


def _value_fill(
    element: TensorType,
    value: bytes,
    chosen: Selection | None,
    out: memoryview,
    planes: int | None,
) -> Fill:
    def fill() -> None:
        if chosen is None:
            out[:] = value
        else:
            item = item_of(element)
            chosen.copy(np.frombuffer(value, item), 0, np.frombuffer(out, item))
        if planes is not None:
            truncate(out, element, planes)

    return fill


def item_of(element: TensorType) -> np.dtype[Any]:
    """An item for each block, whatever it means."""
    size = element.block_bytes
    return np.dtype(f"<u{size}") if size in {1, 2, 4, 8} else np.dtype((np.void, size))
