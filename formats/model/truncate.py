"""What is left of numbers when only their most significant bytes are read?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tensorrepo.formats.model.codecs.registry import PLANES

if TYPE_CHECKING:
    from tensorrepo.formats.tensors import TensorType


def truncate(data: memoryview, element: TensorType, planes: int) -> None:
    """Set all but the `planes` most significant bytes of each number to 0."""
    size = PLANES.planes(element)
    if planes < size:
        np.frombuffer(data, np.uint8).reshape(-1, size)[:, : size - planes] = 0
