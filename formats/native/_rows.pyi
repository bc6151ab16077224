from typing import Any

import numpy as np
from numpy.typing import NDArray

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
