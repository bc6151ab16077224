"""Results of a size follow each other in one memory, and never lie in one that is looked at."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tensorrepo.formats.native.extensions import kernels
from tensorrepo.formats.native.result_memory import LEAST_BYTES, new_result
from tests.support.builders.native import needs_native

SIZE = 3 << 20
BYTE = np.dtype(np.uint8)
ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")


def place_of(array: NDArray[Any]) -> int:
    place: int = array.ctypes.data
    return place


def halved(array: NDArray[Any]) -> Any:
    return array.reshape(2, -1)[1]


def as_tensor(array: NDArray[Any]) -> Any:
    torch = pytest.importorskip("torch")
    return torch.frombuffer(array.data, dtype=torch.uint8).view(torch.float32)


@pytest.mark.parametrize("shape", [(), (0, 3), (5, 7), (LEAST_BYTES // 2, 3)])
@pytest.mark.parametrize("dtype", ["<f4", "<u2", "|b1", "<c16"])
def test_a_result_is_as_numpy_would_make_it(shape: tuple[int, ...], dtype: str) -> None:
    made = new_result(shape, np.dtype(dtype))
    assert (made.shape, made.dtype) == (shape, np.dtype(dtype))
    assert made.flags.writeable
    assert made.flags.c_contiguous
    assert made.flags.aligned


@needs_native
@pytest.mark.parametrize("size", [LEAST_BYTES, SIZE, SIZE + 5])
def test_memory_that_nobody_looks_at_is_used_again(size: int) -> None:
    first = new_result((size,), BYTE)
    other = new_result((size,), BYTE)
    place = place_of(first)
    del first
    assert place_of(new_result((size,), BYTE)) == place != place_of(other)


@needs_native
@pytest.mark.parametrize("look", [halved, as_tensor, memoryview, lambda array: array.view("<f8").T])
def test_whoever_looks_at_some_of_a_result_keeps_it(look: Callable[[Any], Any]) -> None:
    made = new_result((SIZE,), BYTE)
    made[:] = 7
    seen, place = look(made), place_of(made)
    del made
    others = [new_result((SIZE,), BYTE) for _ in range(3)]
    for other in others:
        other[:] = 9
    assert place not in map(place_of, others)
    assert set(bytes(memoryview(np.asarray(seen)).cast("B"))) == {7}


def are_mapped(places: list[int]) -> list[bool]:
    maps = Path("/proc/self/maps").read_text(encoding="ascii").splitlines()
    ranges = [[int(end, 16) for end in line.split()[0].split("-")] for line in maps]
    return [any(low <= place < high for low, high in ranges) for place in places]


def lazily_free_bytes() -> int:
    """Bytes of this process that the system may take."""
    lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("LazyFree:"))) << 10


@needs_native
@ON_LINUX
def test_the_system_may_take_what_waits_but_for_the_newest() -> None:
    size = 17 << 20  # one of them in 32 MiB
    new_result((128 << 20,), BYTE)  # instead of all that waited before
    results = [new_result((size,), BYTE) for _ in range(4)]
    before = lazily_free_bytes()
    while results:
        results.pop(0)[:] = 1
    assert round((lazily_free_bytes() - before) / size, 1) == 3  # some pages are told later


@needs_native
@ON_LINUX
def test_no_more_waits_than_may() -> None:
    size = 40 << 20  # three of them in 128 MiB
    results = [new_result((size,), BYTE) for _ in range(6)]
    places = [place_of(one) for one in results]
    while results:
        results.pop(0)
    assert are_mapped(places) == [False] * 3 + [True] * 3


@needs_native
@ON_LINUX
def test_what_waits_is_given_back_before_there_is_no_memory() -> None:
    place = place_of(new_result((SIZE,), BYTE))
    assert are_mapped([place]) == [True]
    with pytest.raises(MemoryError):
        new_result((1 << 62,), BYTE)
    assert are_mapped([place]) == [False]


@needs_native
def test_sizes_that_there_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="no result of 0 bytes"):
        kernels.result_room(0)
    with pytest.raises(ValueError, match="no result of"):
        kernels.result_room(sys.maxsize)
    with pytest.raises(MemoryError, match="a result of 4611686018427387904 bytes"):
        kernels.result_room(1 << 62)
