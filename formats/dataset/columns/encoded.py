"""Images that were read and looked at on the way in, for whoever writes them next.

Their bytes lie behind one another as a page wants them, and their headers are known: nobody copies
them into one piece or reads a header again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from tensorrepo.formats.dataset.columns.values import BinaryValues
    from tensorrepo.formats.imagebytes import ImageHeader


class LastingBatch(dict[str, Any]):
    """Columns whose memory nobody writes to again.

    The writer stores rows from where they lie while the next ones come. Of any other batch it has
    read everything before it asks for the next one, as its owner may use the memory again.
    """


@dataclass(frozen=True, slots=True, eq=False)
class EncodedImages(Sequence[bytes]):
    """A sequence of encoded images, none of them null; `headers` has one for each."""

    values: BinaryValues
    headers: Sequence[ImageHeader]

    def __post_init__(self) -> None:
        if len(self.headers) != self.values.rows or self.values.valid is not None:
            raise ValueError(f"{self.values.rows} images have {len(self.headers)} headers")

    def __len__(self) -> int:
        return self.values.rows

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> EncodedImages: ...

    def __getitem__(self, at: int | slice) -> bytes | EncodedImages:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                raise ValueError(f"images are taken one after the other, not every {step}th")
            stop = max(start, stop)
            return EncodedImages(self.values.slice(start, stop), self.headers[start:stop])
        row = range(len(self))[at]
        start, stop = self.values.offsets[row : row + 2].tolist()
        return self.values.data[start:stop].tobytes()
