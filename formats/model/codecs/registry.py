"""Which codecs are there?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tensorrepo.formats.model.codecs.delta import Delta
from tensorrepo.formats.model.codecs.planes import Planes

if TYPE_CHECKING:
    from tensorrepo.formats.model.codecs.framecodec import FrameCodec

PLANES: Final = Planes()
DELTA: Final = Delta()
_ALL: Final[tuple[FrameCodec, ...]] = (PLANES, DELTA)
CODECS: Final = {codec.name: codec for codec in _ALL}
BY_NUMBER: Final = {codec.number: codec for codec in _ALL}
