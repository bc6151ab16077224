"""How far did each number move from its base?

Both tensors' bits become integers that are ordered as the numbers are, whose difference is small
where the numbers are close. An optimiser's step is nearly independent of a weight's size, so its
length in units of the last place is almost a function of the base's exponent. That is the context
that differences are coded in: the decoder has the base too, so it costs nothing.

Source:
    docs/spec/model.md, section "Delta".
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tensorrepo.formats.model.codecs.layers import (
    decode_layers,
    encode_layers,
    layers_seem_better,
)
from tensorrepo.formats.model.codecs.numbers import as_numbers, numbers_of
from tensorrepo.formats.model.codecs.planecodec import (
    PlaneCodec,
    StoredPlane,
    join_buffers,
    lanes_for,
    unknown_plane,
)
from tensorrepo.formats.model.codecs.tables import (
    Tables,
    decode_tables,
    encode_tables,
    tables_of,
)
from tensorrepo.formats.native import coder
from tensorrepo.formats.native.distances import BEST, SLACK_BYTES, apply, bits_of
from tensorrepo.repo.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tensorrepo.formats.model.codecs.framecodec import FrameShape
    from tensorrepo.formats.native.distances import Numbers
    from tensorrepo.formats.tensors import TensorType

_HEAD = Struct("<I")  # bytes of the coded tokens; tables, tokens and bits follow
assert _HEAD.size == 4, "docs/spec/model.md promises 4 bytes before the tables"


class Delta:
    """Against one base of the same type and size."""

    name: Final = "delta"
    number: Final = 4
    bases: Final = 1

    def fits(self, element: TensorType, shape: tuple[int, ...]) -> bool:  # noqa: ARG002
        return True

    def planes(self, element: TensorType) -> int:  # noqa: ARG002
        return 1

    def encode(
        self, frame: memoryview, bases: Sequence[memoryview], about: FrameShape
    ) -> list[StoredPlane]:
        of = numbers_of(about.element)
        return [encode_against(as_numbers(frame, of), as_numbers(bases[0], of), of)]

    def decode(
        self,
        planes: Sequence[StoredPlane],
        bases: Sequence[memoryview],
        about: FrameShape,
        out: memoryview,
    ) -> None:
        if len(planes) != 1:
            raise CorruptError(f"{len(planes)} planes, a frame of codec delta has 1")
        of = numbers_of(about.element)
        decode_against(planes[0], as_numbers(bases[0], of), of, as_numbers(out, of))


def encode_against(frame: NDArray[Any], base: NDArray[Any], of: Numbers) -> StoredPlane:
    """`frame` by its distances from `base`, or as it is where that is smaller."""
    if not frame.size:
        return StoredPlane(PlaneCodec.RAW, b"")
    tokens, counts = BEST.scan(frame, base, of)
    tables, groups = tables_of(counts)
    bits = int((groups.sum(0) * bits_of(np.arange(256, dtype=np.uint8))).sum())
    expected = (tables.bits(groups) + bits) / 8
    if layers_seem_better(frame, base, of, tokens, bits, tables):
        packed = encode_layers(frame, base, of)
        if packed.nbytes < min(expected, frame.nbytes):
            return StoredPlane(PlaneCodec.LAYERS, packed.data)
    if expected < frame.nbytes:
        packed = encode_distances(frame, base, of, tokens, tables, bits)
        if packed.nbytes < frame.nbytes:
            return StoredPlane(PlaneCodec.DISTANCES, packed.data)
    return StoredPlane(PlaneCodec.RAW, frame.view(np.uint8).data)


def encode_distances(
    frame: NDArray[Any],
    base: NDArray[Any],
    of: Numbers,
    tokens: NDArray[np.uint8],
    tables: Tables,
    bits: int,
) -> NDArray[np.uint8]:
    """The plane of distances whose tokens were scanned and leave so many `bits`."""
    coded = np.empty(0, np.uint8)
    if not tables.certain:
        contexts = BEST.contexts(base, of, tables.groups)
        coded = coder.BEST.pack(tokens, contexts, tables.frequencies, lanes_for(frame.size))
    head = join_buffers(_HEAD.pack(coded.size), encode_tables(tables), coded)
    packed = np.empty(head.size + (bits + 7) // 8 + SLACK_BYTES, np.uint8)
    packed[: head.size] = head
    BEST.pack_bits(frame, base, of, tokens, packed[head.size :])
    return packed[:-SLACK_BYTES]


def decode_against(stored: StoredPlane, base: NDArray[Any], of: Numbers, out: NDArray[Any]) -> None:
    """Fill `out` with what `encode_against` encoded.

    Raises:
        CorruptError: the plane does not decode to exactly so many numbers.
        UnsupportedError: a plane codec that this version does not know.
    """
    data = np.frombuffer(stored.data, np.uint8)
    if stored.codec == PlaneCodec.DISTANCES:
        if not BEST.decode(data, base, of, out):
            decode_in_steps(data, base, of, out)
    elif stored.codec == PlaneCodec.LAYERS:
        decode_layers(data, base, of, out)
    elif stored.codec == PlaneCodec.RAW:
        if data.size != out.nbytes:
            raise CorruptError(f"raw plane: expected {out.nbytes} bytes, found {data.size}")
        out.view(np.uint8)[...] = data
    else:
        raise unknown_plane(stored.codec)


def decode_in_steps(
    data: NDArray[np.uint8], base: NDArray[Any], of: Numbers, out: NDArray[Any]
) -> None:
    """Fill `out` with the numbers of a plane of distances: what C does in one go, and errors.

    Raises:
        CorruptError: the plane does not decode to exactly so many numbers.
    """
    if data.size < _HEAD.size:
        raise CorruptError(f"distances: {data.size} bytes are no plane")
    (coded_bytes,) = _HEAD.unpack_from(data.data)
    tables, used = decode_tables(data[_HEAD.size :])
    begin = _HEAD.size + used
    if coded_bytes > data.size - begin:
        raise CorruptError("distances: the plane ends inside its tokens")
    contexts = BEST.contexts(base, of, tables.groups)
    tokens = np.empty(out.size, np.uint8)
    coded = data[begin : begin + coded_bytes]
    if not coded.size and tables.certain:
        np.take(tables.frequencies.argmax(1).astype(np.uint8), contexts, out=tokens)
    elif not coder.BEST.unpack(coded, contexts, tables.frequencies, lanes_for(out.size), tokens):
        raise CorruptError(f"distances: {coded.size} bytes do not decode to {out.size} tokens")
    if not apply(tokens, data[begin + coded_bytes :], base, of, out):
        raise CorruptError("distances: tokens and bits do not belong together")
