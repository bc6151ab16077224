import numpy as np
from numpy.typing import NDArray

def count(
    symbols: NDArray[np.uint8], contexts: NDArray[np.uint8] | None, counts: NDArray[np.uint32], /
) -> None: ...
def pack(
    symbols: NDArray[np.uint8],
    contexts: NDArray[np.uint8] | None,
    frequencies: NDArray[np.uint16],
    lanes: int,
    out: NDArray[np.uint8],
    /,
) -> int: ...
def tables(
    data: NDArray[np.uint8], groups: NDArray[np.uint8], frequencies: NDArray[np.uint16], /
) -> int: ...
def unpack(
    data: NDArray[np.uint8],
    contexts: NDArray[np.uint8] | None,
    frequencies: NDArray[np.uint16],
    lanes: int,
    out: NDArray[np.uint8],
    /,
) -> bool: ...
