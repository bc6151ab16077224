from typing import Any

import numpy as np
from numpy.typing import NDArray

def differ(
    frame: NDArray[Any],
    base: NDArray[Any],
    size: int,
    magnitude: bool,
    out: NDArray[Any],
    /,
) -> None: ...
def restore(
    distances: NDArray[Any],
    base: NDArray[Any],
    size: int,
    magnitude: bool,
    out: NDArray[Any],
    /,
) -> None: ...
def scan(
    frame: NDArray[Any],
    base: NDArray[Any],
    size: int,
    magnitude: bool,
    exponent: int,
    tokens: NDArray[np.uint8],
    counts: NDArray[np.uint32],
    /,
) -> None: ...
def contexts(
    base: NDArray[Any],
    size: int,
    exponent: int,
    groups: NDArray[np.uint8],
    out: NDArray[np.uint8],
    /,
) -> None: ...
def pack_bits(
    frame: NDArray[Any],
    base: NDArray[Any],
    tokens: NDArray[np.uint8],
    size: int,
    magnitude: bool,
    out: NDArray[np.uint8],
    /,
) -> int: ...
def decode(
    plane: NDArray[np.uint8],
    base: NDArray[Any],
    size: int,
    magnitude: bool,
    exponent: int,
    out: NDArray[Any],
    /,
) -> bool: ...
