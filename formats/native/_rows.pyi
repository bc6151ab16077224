from typing import Any

import numpy as np
from numpy.typing import NDArray

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
