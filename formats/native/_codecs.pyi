from typing import Any

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
