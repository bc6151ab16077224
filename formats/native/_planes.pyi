import numpy as np
from numpy.typing import NDArray

def split(
    frame: NDArray[np.uint8], size: int, turn: bool, planes: NDArray[np.uint8], /
) -> None: ...
def join(
    planes: tuple[NDArray[np.uint8], ...], size: int, turn: bool, out: NDArray[np.uint8], /
) -> None: ...
