from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensorrepo.repo.ids import Buffer

fast: int

def check_frames(
    context: bytes, frames: list[Buffer], rooms: list[memoryview] | None, digests: bytes, /
) -> int: ...
def look_files(paths: bytes, found: NDArray[Any], /) -> int: ...
def read_files(paths: bytes, found: NDArray[Any], out: NDArray[np.uint8], /) -> int: ...
def shuffle(
    keys: NDArray[np.uint64],
    counts: NDArray[np.int64],
    at: NDArray[np.int64],
    out: NDArray[np.uint32],
    /,
) -> None: ...
def scatter(
    key: int, count: int, positions: NDArray[np.int64], out: NDArray[np.int64], /
) -> None: ...
def find(
    start: NDArray[np.int64],
    rows: NDArray[np.int64],
    piece: NDArray[np.int64],
    place: NDArray[np.int64],
    /,
) -> None: ...
def look_up(
    shuffled: NDArray[np.uint32],
    slot: NDArray[np.int64],
    run: NDArray[np.int64],
    place: NDArray[np.int64],
    out: NDArray[np.int64],
    /,
) -> None: ...
def walk_lanes(
    start: NDArray[np.int64],
    cut: NDArray[np.int64],
    first: NDArray[np.int64],
    lanes: int,
    bands: int,
    stride: int,
    key: int,
    blocks: tuple[int, int],
    own_bands: tuple[int, int],
    out: NDArray[np.int64],
    /,
) -> int: ...
def opened(
    run: NDArray[np.int64], is_open: NDArray[np.bool_], out: NDArray[np.int64], /
) -> int: ...
def closed(
    run: NDArray[np.int64],
    busy: NDArray[np.bool_],
    following: NDArray[np.int64],
    is_open: NDArray[np.bool_],
    marks: NDArray[np.uint8],
    out: NDArray[np.int64],
    /,
) -> int: ...
def split(
    frame: NDArray[np.uint8], size: int, turn: bool, planes: NDArray[np.uint8], /
) -> None: ...
def join(
    planes: tuple[NDArray[np.uint8], ...], size: int, turn: bool, out: NDArray[np.uint8], /
) -> None: ...
def take_rows(
    live: NDArray[np.int64],
    at: NDArray[np.int64],
    sums_at: NDArray[np.int64] | None,
    run: NDArray[np.int64],
    row: NDArray[np.int64],
    step_bytes: int,
    row_bytes: int,
    out: NDArray[Any],
    threads: int,
    /,
) -> int: ...
def copy_rows(
    addresses: NDArray[np.int64],
    row_bytes: int,
    out: NDArray[Any],
    sums_at: NDArray[np.int64] | None,
    threads: int,
    /,
) -> int: ...
def copy_spans(
    addresses: NDArray[np.int64],
    lengths: NDArray[np.int64],
    out: NDArray[Any],
    threads: int,
    /,
) -> int: ...
