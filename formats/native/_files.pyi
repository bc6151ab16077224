from typing import Any

import numpy as np
from numpy.typing import NDArray

def look_files(paths: bytes, found: NDArray[Any], /) -> int: ...
def read_files(paths: bytes, found: NDArray[Any], out: NDArray[np.uint8], /) -> int: ...
