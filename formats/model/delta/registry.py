"""Registry of frame codecs by name and number.

A sparse update of a tensor needs none of its own: `delta` and `rows` store numbers that did not
move in next to nothing. Adapters are tensors like others; merged ones are `low-rank`.
"""

from __future__ import annotations

from typing import Final

from tensorrepo.formats.model.delta.distances import Cast, Delta, RowDelta
from tensorrepo.formats.model.delta.frame_codec import FrameCodec, Palette, Planes
from tensorrepo.formats.model.delta.predictions import Adam, Decay, LowRank

PLANES: Final = Planes()
PALETTE: Final = Palette()
DELTA: Final = Delta()
ROWS: Final = RowDelta()
ADAM: Final = Adam()
LOW_RANK: Final = LowRank()
DECAY: Final = Decay()
CAST: Final = Cast()
_ALL: Final[tuple[FrameCodec, ...]] = (PLANES, PALETTE, DELTA, ROWS, ADAM, LOW_RANK, DECAY, CAST)
CODECS: Final = {codec.name: codec for codec in _ALL}
