import numpy as np
from numpy.typing import NDArray

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
