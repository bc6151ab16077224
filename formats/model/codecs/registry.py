"""Which codecs are there?

A sparse update of a tensor needs none of its own: `delta` and `rows` store numbers that did not
move in next to nothing. Adapters are tensors like others; merged ones are `low-rank`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tensorrepo.formats.model.codecs.adam import Adam
from tensorrepo.formats.model.codecs.decay import Decay
from tensorrepo.formats.model.codecs.delta import Delta
from tensorrepo.formats.model.codecs.lowrank import LowRank
from tensorrepo.formats.model.codecs.palette import Palette
from tensorrepo.formats.model.codecs.planes import Planes
from tensorrepo.formats.model.codecs.rows import Rows

if TYPE_CHECKING:
    from tensorrepo.formats.model.codecs.framecodec import FrameCodec

PLANES: Final = Planes()
PALETTE: Final = Palette()
DELTA: Final = Delta()
ROWS: Final = Rows()
ADAM: Final = Adam()
LOW_RANK: Final = LowRank()
DECAY: Final = Decay()
_ALL: Final[tuple[FrameCodec, ...]] = (PLANES, PALETTE, DELTA, ROWS, ADAM, LOW_RANK, DECAY)
CODECS: Final = {codec.name: codec for codec in _ALL}
BY_NUMBER: Final = {codec.number: codec for codec in _ALL}
